"""What ranks tell one another inside layers, of one micro-batch.

Part of the arithmetic: see `atlas.planner.arithmetic`.
"""

from atlas.planner.computing import (
    forward_flops,
    host_seconds,
    kernels_of,
    largest_part,
    moved_bytes,
    product_seconds,
    recomputed_products,
    recomputed_scores,
    samples_of,
    score_flops,
    score_seconds,
)
from atlas.planner.records import Cut, Link, Load, Recipe, Recompute, Speed, Wires, Work
from atlas.planner.rings import gather_seconds, reduce_seconds, send_seconds


def cut_forward_seconds(work: Work, cut: Cut, recipe: Recipe, wires: Wires) -> float:
    """Seconds that the axis that cuts layers communicates forward.

    Source: Shoeybi et al. 2019, section 3; Korthikanti et al. 2022, section 4.2.2;
    Kahira et al. 2021, table III.
    """
    a = samples_of(cut) * recipe.activation
    f = cut.filter
    return (
        (
            gather_seconds(
                cut.tensor, work.entries, a * work.entered, wires.cut.all_gather
            )
            + gather_seconds(
                cut.tensor, work.exits, a * work.left, wires.cut.reduce_scatter
            )
            if cut.sequence
            else reduce_seconds(
                cut.tensor, work.exits, a * work.left, wires.cut.all_reduce
            )
        )
        + gather_seconds(
            f,
            work.convolutions,
            a * f * largest_part(work.narrow, f) * work.y,
            wires.cut.all_gather,
        )
        + reduce_seconds(
            cut.channel, work.channelled, a * work.channel_y, wires.cut.all_reduce
        )
        + halo_seconds(work, cut, recipe, wires)
    )


def cut_backward_seconds(work: Work, cut: Cut, recipe: Recipe, wires: Wires) -> float:
    """Seconds that the axis that cuts layers communicates backward.

    Source: as forward; with sequence parallelism what entered is gathered again, and
    recomputing a layer repeats its forward communication.
    """
    a = samples_of(cut) * recipe.activation
    c = cut.channel
    again = (
        cut_forward_seconds(work, cut, recipe, wires)
        if recipe.recompute == Recompute.FULL
        else 0.0
    )
    return (
        again
        + (
            gather_seconds(
                cut.tensor,
                work.entries + work.exits,
                a * (work.entered + work.left),
                wires.cut.all_gather,
            )
            + gather_seconds(
                cut.tensor, work.entries, a * work.entered, wires.cut.reduce_scatter
            )
            if cut.sequence
            else reduce_seconds(
                cut.tensor, work.entries, a * work.entered, wires.cut.all_reduce
            )
        )
        + reduce_seconds(
            cut.filter, work.convolutions, a * work.x, wires.cut.all_reduce
        )
        + gather_seconds(
            c,
            work.channelled,
            a * c * largest_part(work.thin, c) * work.channel_x,
            wires.cut.all_gather,
        )
        + halo_seconds(work, cut, recipe, wires)
    )


def halo_seconds(work: Work, cut: Cut, recipe: Recipe, wires: Wires) -> float:
    """Seconds one way of a rank with neighbors on both sides, and of batch norms.

    Source: Kahira et al. 2021, table III; a norm sums 2C + 1 numbers each way.
    """
    whole = cut.micro / cut.context * recipe.activation
    inner = 2 if cut.spatial > 2 else 1
    return (
        0.0
        if cut.spatial == 1
        else send_seconds(
            inner * work.halos / 2, inner * whole * work.halo / 2, wires.cut.p2p
        )
        + reduce_seconds(
            cut.spatial,
            work.norms,
            (2 * work.normed + work.norms) * recipe.activation,
            wires.cut.all_reduce,
        )
    )


def context_seconds(
    work: Work, cut: Cut, recipe: Recipe, wires: Wires, backward: bool
) -> float:
    """Seconds of the context axis one way, before any hides behind attention.

    Source: Liu et al. 2023 and Jacobs et al. 2023, section 3; backward, gradients of
    keys and values go all the way round.
    """
    c = cut.context
    a = cut.micro * recipe.activation / cut.tensor
    home = 1 if backward else 0
    hops = c - 1 + home
    return (
        0.0
        if c == 1
        else send_seconds(
            work.attentions * hops,
            a * work.pairs * ((c - 1) / c + home),
            wires.context.p2p,
        )
        if cut.ring
        else gather_seconds(
            c,
            2 * work.attentions,
            a * (work.queries + work.pairs) / c,
            wires.context.all_to_all,
        )
    )


def hidden_behind(seconds: float, work: float, ring: bool, overlap: bool) -> float:
    """Seconds of a ring's hops that its attention does not hide.

    Source: Liu et al. 2023: a block is passed on while it is attended to.
    """
    return max(0.0, seconds - work) if ring and overlap else seconds


def woven_seconds(seconds: float, products: float, recipe: Recipe) -> float:
    """Seconds that exchanges inside layers add when they are cut up among products.

    Source: Wang et al. 2023 (ASPLOS, decomposition): a piece travels while another is
    multiplied; computing slows down meanwhile, as behind any exchange.
    """
    hidden = min(seconds, products) if recipe.woven else 0.0
    return seconds - hidden + recipe.contention * hidden


def expert_seconds(work: Work, cut: Cut, recipe: Recipe, wires: Wires) -> float:
    """Seconds of the expert axis one way: tokens go to their experts and home.

    Source: Lepikhin et al. 2021 (GShard).
    """
    a = samples_of(cut) * recipe.activation / (cut.tensor if cut.sequence else 1)
    return gather_seconds(
        cut.expert,
        2 * work.routes,
        2 * a * cut.capacity * work.routed,
        wires.expert.all_to_all,
    )


def embedding_seconds(
    work: Work, cut: Cut, recipe: Recipe, wires: Wires, backward: bool
) -> float:
    """Seconds of the embedding axis one way: indices out and rows back, or gradients.

    Source: Naumov et al. 2019 (DLRM); indices have 8 bytes.
    """
    rows = samples_of(cut) * recipe.activation * work.lookups
    asked = 0 if backward else samples_of(cut) * 8 * work.indices
    return (
        0.0
        if cut.embedding == 1 or work.tables == 0
        else gather_seconds(
            cut.embedding, 1 if backward else 2, rows + asked, wires.expert.all_to_all
        )
    )


def message_seconds(work: Work, cut: Cut, recipe: Recipe, link: Link) -> float:
    """Seconds of one message between stages.

    Source: Huang et al. 2019 (GPipe), section 2.3; with sequence parallelism a rank
    has, and sends, its own tokens.
    """
    part = cut.tensor if cut.sequence else 1
    return send_seconds(
        1, samples_of(cut) * recipe.activation * work.passed / part, link
    )


def load(work: Work, cut: Cut, recipe: Recipe, speed: Speed, wires: Wires) -> Load:
    """Seconds of one micro-batch on one rank.

    Source: backward has two products for each forward one.
    """
    kernels = kernels_of(work, cut)
    products = product_seconds(forward_flops(work, cut), kernels, speed)
    attention = score_seconds(score_flops(work, cut), recipe, speed)
    repeated = 1 if recipe.recompute == Recompute.FULL else 0
    some = 1 if recipe.recompute == Recompute.OPERATIONS else repeated
    again = product_seconds(
        recomputed_products(work, cut, recipe), repeated * kernels, speed
    ) + score_seconds(recomputed_scores(work, cut, recipe), recipe, speed)
    forward = products + attention
    backward = 2 * forward + again
    moved = 0.0 if speed.timed else moved_bytes(work, cut, recipe) / speed.bandwidth
    experts = expert_seconds(work, cut, recipe, wires)
    cut_forward = woven_seconds(
        cut_forward_seconds(work, cut, recipe, wires), products, recipe
    )
    cut_backward = woven_seconds(
        cut_backward_seconds(work, cut, recipe, wires), 2 * products, recipe
    )
    return Load(
        forward=forward,
        backward=backward,
        weights=products,
        forward_moved=moved,
        backward_moved=(2 + some) * moved,
        forward_host=host_seconds(kernels, forward + moved + cut_forward, speed),
        backward_host=host_seconds(
            (1 + some) * kernels, backward + (2 + some) * moved + cut_backward, speed
        ),
        cut_forward=cut_forward,
        cut_backward=cut_backward,
        context_forward=hidden_behind(
            context_seconds(work, cut, recipe, wires, False),
            attention,
            cut.ring,
            recipe.overlap,
        ),
        context_backward=hidden_behind(
            context_seconds(work, cut, recipe, wires, True),
            2 * attention,
            cut.ring,
            recipe.overlap,
        ),
        expert_forward=experts + embedding_seconds(work, cut, recipe, wires, False),
        expert_backward=(1 + repeated) * experts
        + embedding_seconds(work, cut, recipe, wires, True),
        message=message_seconds(work, cut, recipe, wires.pipeline.p2p),
    )
