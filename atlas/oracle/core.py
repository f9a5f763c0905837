"""The oracle's arithmetic: plain functions of numbers and records of numbers.

The planner scores with these, `predict` names what they give, and
`atlas.oracle.emit` writes them as JavaScript for the calculator: one source. They
are therefore written in the little Python that emit reads, and check nothing:
who calls them has checked.
"""

from math import ceil

from atlas.oracle.formulas import chunk
from atlas.oracle.records import (
    Bytes,
    Cut,
    Exchange,
    Link,
    Load,
    Recipe,
    Replicas,
    Schedule,
    Speed,
    Times,
    Wires,
    Work,
)

# Collectives as rings: so many calls, n bytes in all


def gather_seconds(p: int, calls: float, n: float, link: Link) -> float:
    """Seconds of all-gathers or reduce-scatters of n bytes, whole, in all.

    Source: Thakur et al. 2005, section 4.1; launch: what a call costs of itself.
    """
    return (
        0.0
        if p == 1
        else calls * (link.launch + (p - 1) * link.alpha) + (p - 1) / p * n * link.beta
    )


def reduce_seconds(p: int, calls: float, n: float, link: Link) -> float:
    """Seconds of all-reduces of n bytes in all.

    Source: Thakur et al. 2005, section 4; Kahira et al. 2021, table III.
    """
    return (
        0.0
        if p == 1
        else calls * (link.launch + 2 * (p - 1) * link.alpha)
        + 2 * (p - 1) / p * n * link.beta
    )


def send_seconds(calls: float, n: float, link: Link) -> float:
    """Seconds of messages of n bytes in all, one after the other.

    Source: Thakur et al. 2005.
    """
    return calls * (link.launch + link.alpha) + n * link.beta


# Computing


def product_seconds(flops: float, kernels: float, speed: Speed) -> float:
    """Seconds of so many products: the peak times top f / (f + half), f of each.

    Source: derived: f over that rate is (f + half) / (peak top).
    """
    return (flops + kernels * speed.half) / (
        speed.peak * speed.top
    ) + kernels * speed.overhead


def largest_part(narrow: int, p: int) -> float:
    """Share of a layer that the rank with most filters or channels has.

    Source: Kahira et al. 2021, table III, in whole filters.
    """
    return chunk(narrow, p, 0) / narrow


def cut_part(work: Work, cut: Cut) -> float:
    """Share of a cut layer's weights, and of its products, on the fullest rank.

    Source: Shoeybi et al. 2019, section 3; Kahira et al. 2021, table III.
    """
    return (
        largest_part(work.narrow, cut.filter)
        if cut.filter > 1
        else largest_part(work.thin, cut.channel)
        if cut.channel > 1
        else 1 / cut.tensor
    )


def divided(whole: float, apart: float, work: Work, cut: Cut) -> float:
    """What the fullest rank has of a whole, of which channels do not cut a part.

    Source: Kahira et al. 2021, table III: the first layer has few channels.
    """
    rest = apart if cut.channel > 1 else 0.0
    return (whole - rest) * cut_part(work, cut) + rest


def samples_of(cut: Cut) -> float:
    """Samples that a rank has of a micro-batch; a part of one counts as a fraction.

    Source: arithmetic.
    """
    return cut.micro / (cut.context * cut.spatial)


def forward_flops(work: Work, cut: Cut) -> float:
    """Operations of one micro-batch forward on one rank, attention's scores left out.

    Source: Narayanan et al. 2021, appendix; Kahira et al. 2021, table III.
    """
    return samples_of(cut) * (
        divided(work.flops, work.unchannelled_flops, work, cut) + work.serial
    )


def score_flops(work: Work, cut: Cut) -> float:
    """Operations of attention's two products, of one micro-batch forward on one rank.

    Source: Narayanan et al. 2021, appendix.
    """
    return samples_of(cut) * work.scores / cut.tensor


def moved_bytes(work: Work, cut: Cut, recipe: Recipe) -> float:
    """Bytes that element-wise layers move through memory, of one micro-batch forward.

    Source: derived: each kernel reads its inputs once and writes its output once.
    """
    whole = work.moved / (cut.tensor if cut.sequence == 1 else 1)
    return (
        samples_of(cut)
        * recipe.activation
        * (whole + (work.moved_cut + scores_moved(work, recipe)) / cut.tensor)
    )


def scores_moved(work: Work, recipe: Recipe) -> float:
    """Elements of attention's scores that go through memory.

    Source: Dao et al. 2022: none, if they never leave the chip.
    """
    return 0 if recipe.flash == 1 else work.moved_scores


def recomputed_flops(work: Work, cut: Cut, recipe: Recipe) -> float:
    """Operations of one micro-batch that are done a second time in backward.

    Source: Korthikanti et al. 2022, section 5: attention's products alone, or every
    layer; Dao et al. 2022: of 5 backward products one repeats half of forward.
    """
    once = samples_of(cut) * work.once / cut.tensor
    again = forward_flops(work, cut) - once + score_flops(work, cut)
    flash = 0.5 * score_flops(work, cut) if recipe.flash == 1 else 0.0
    return flash + (
        again
        if recipe.recompute == 2
        else score_flops(work, cut)
        if recipe.recompute == 1 and recipe.flash == 0
        else 0.0
    )


# Traffic inside layers, of one micro-batch


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
            if cut.sequence == 1
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
        cut_forward_seconds(work, cut, recipe, wires) if recipe.recompute == 2 else 0.0
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
            if cut.sequence == 1
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
    """Seconds one way of a rank with neighbours on both sides, and of batch norms.

    Source: Kahira et al. 2021, table III; a norm sums 2C + 1 numbers each way.
    """
    whole = cut.micro / cut.context * recipe.activation
    inner = 2 if cut.spatial > 2 else 1
    return (
        0.0
        if cut.spatial == 1
        else send_seconds(
            inner * work.halos, inner * whole * work.halo / 2, wires.cut.p2p
        )
        + reduce_seconds(
            cut.spatial,
            work.norms,
            (2 * work.normed + work.norms) * recipe.activation,
            wires.cut.all_reduce,
        )
    )


def context_seconds(
    work: Work, cut: Cut, recipe: Recipe, wires: Wires, backward: int
) -> float:
    """Seconds of the context axis one way, before any hides behind attention.

    Source: Liu et al. 2023 and Jacobs et al. 2023, section 3; backward, gradients of
    keys and values go all the way round.
    """
    c = cut.context
    a = cut.micro * recipe.activation / cut.tensor
    hops = c - 1 + backward
    return (
        0.0
        if c == 1
        else send_seconds(
            work.attentions * hops,
            a * work.pairs * ((c - 1) / c + backward),
            wires.context.p2p,
        )
        if cut.ring == 1
        else gather_seconds(
            c,
            2 * work.attentions,
            a * (work.queries + work.pairs) / c,
            wires.context.all_to_all,
        )
    )


def hidden_behind(seconds: float, work: float, ring: int, overlap: int) -> float:
    """Seconds of a ring's hops that its attention does not hide.

    Source: Liu et al. 2023: a block is passed on while it is attended to.
    """
    return max(0.0, seconds - work) if ring == 1 and overlap == 1 else seconds


def expert_seconds(work: Work, cut: Cut, recipe: Recipe, wires: Wires) -> float:
    """Seconds of the expert axis one way: tokens go to their experts and home.

    Source: Lepikhin et al. 2021 (GShard).
    """
    a = samples_of(cut) * recipe.activation / (cut.tensor if cut.sequence == 1 else 1)
    return gather_seconds(
        cut.expert,
        2 * work.routes,
        2 * a * cut.capacity * work.routed,
        wires.expert.all_to_all,
    )


def embedding_seconds(
    work: Work, cut: Cut, recipe: Recipe, wires: Wires, backward: int
) -> float:
    """Seconds of the embedding axis one way: indices out and rows back, or gradients.

    Source: Naumov et al. 2019 (DLRM); indices have 8 bytes.
    """
    rows = samples_of(cut) * recipe.activation * work.lookups
    asked = 0 if backward == 1 else samples_of(cut) * 8 * work.indices
    return (
        0.0
        if cut.embedding == 1 or work.tables == 0
        else gather_seconds(
            cut.embedding, 2 - backward, rows + asked, wires.expert.all_to_all
        )
    )


def message_seconds(work: Work, cut: Cut, recipe: Recipe, link: Link) -> float:
    """Seconds of one message between stages.

    Source: Huang et al. 2019 (GPipe), section 2.3; with sequence parallelism a rank
    has, and sends, its own tokens.
    """
    part = cut.tensor if cut.sequence == 1 else 1
    return send_seconds(
        1, samples_of(cut) * recipe.activation * work.passed / part, link
    )


def load(work: Work, cut: Cut, recipe: Recipe, speed: Speed, wires: Wires) -> Load:
    """Seconds of one micro-batch on one rank.

    Source: backward has two products for each forward one.
    """
    scores = score_flops(work, cut)
    products = forward_flops(work, cut)
    forward = product_seconds(products + scores, work.kernels, speed)
    again = recomputed_flops(work, cut, recipe)
    kernels = work.kernels if recipe.recompute == 2 else 0
    attention = scores / (speed.peak * speed.top)
    moved = (
        0.0 if speed.timed == 1 else moved_bytes(work, cut, recipe) / speed.bandwidth
    )
    repeated = 1 if recipe.recompute == 2 else 0
    experts = expert_seconds(work, cut, recipe, wires)
    return Load(
        forward=forward,
        backward=2 * forward + product_seconds(again, kernels, speed),
        weights=product_seconds(products, work.kernels, speed),
        forward_moved=moved,
        backward_moved=(2 + repeated) * moved,
        cut_forward=cut_forward_seconds(work, cut, recipe, wires),
        cut_backward=cut_backward_seconds(work, cut, recipe, wires),
        context_forward=hidden_behind(
            context_seconds(work, cut, recipe, wires, 0),
            attention,
            cut.ring,
            recipe.overlap,
        ),
        context_backward=hidden_behind(
            context_seconds(work, cut, recipe, wires, 1),
            2 * attention,
            cut.ring,
            recipe.overlap,
        ),
        expert_forward=experts + embedding_seconds(work, cut, recipe, wires, 0),
        expert_backward=(1 + repeated) * experts
        + embedding_seconds(work, cut, recipe, wires, 1),
        message=message_seconds(work, cut, recipe, wires.pipeline.p2p),
    )


# What a rank holds


def held(work: Work, cut: Cut) -> float:
    """Parameters on the fullest rank that all replicas share.

    Source: Shoeybi et al. 2019, section 3; Kahira et al. 2021, table III.
    """
    return divided(work.weights, work.unchannelled, work, cut) + work.shared


def held_alone(work: Work, cut: Cut) -> float:
    """Parameters of experts and tables on one rank.

    Source: Lepikhin et al. 2021 (GShard); Naumov et al. 2019 (DLRM).
    """
    return work.experts / (cut.expert * cut.tensor) + work.tables / cut.embedding


def padded(n: float, units: int, p: int) -> float:
    """Elements of so many equal units when each is padded to a multiple of p.

    Source: Rajbhandari et al. 2020, section 5.3; Zhao et al. 2023.
    """
    return units * p * ceil(n / (units * p)) if p > 1 and units > 0 else n


# Replicas agree


def buckets(n: float, recipe: Recipe) -> int:
    """Messages that n gradients go in.

    Source: Li et al. 2020, PyTorch Distributed.
    """
    return max(1, ceil(n * recipe.gradient / recipe.bucket)) if recipe.bucket > 0 else 1


def alone_shard(replicas: Replicas) -> int:
    """Ranks that share one copy of an expert's or a table's state.

    Source: Rajbhandari et al. 2020: only ranks that hold the same can share it.
    """
    return min(replicas.alone, replicas.shard)


def exchange(
    work: Work, cut: Cut, recipe: Recipe, replicas: Replicas, wires: Wires
) -> Exchange:
    """Seconds in which replicas agree on gradients and weights.

    Source: Rajbhandari et al. 2020, section 7: ZeRO-1 scatters gradients and gathers
    weights once a step; ZeRO-2 scatters in every micro-batch; ZeRO-3 gathers weights
    twice and scatters in every micro-batch. Those that hold the same expert or table
    do the same among themselves (Lepikhin et al. 2021).
    """
    stage = replicas.stage
    s = replicas.shard
    e = alone_shard(replicas)
    n = padded(held(work, cut), work.layers, s)
    alone = held_alone(work, cut)
    units = buckets(n, recipe) if stage < 2 else max(1, work.layers)
    few = 0 if alone == 0 else buckets(alone, recipe) if stage < 2 else work.layers
    gathered = gather_seconds(
        s, units, n * recipe.weight, wires.shard.all_gather
    ) + gather_seconds(e, few, alone * recipe.weight, wires.alone.all_gather)
    scattered = gather_seconds(
        s, units, n * recipe.gradient, wires.shard.reduce_scatter
    ) + gather_seconds(e, few, alone * recipe.gradient, wires.alone.reduce_scatter)
    copies = reduce_seconds(
        replicas.ranks // s, units, n / s * recipe.gradient, wires.copies.all_reduce
    )
    summed = reduce_seconds(
        replicas.ranks, units, n * recipe.gradient, wires.data.all_reduce
    ) + reduce_seconds(
        replicas.alone, few, alone * recipe.gradient, wires.alone.all_reduce
    )
    return Exchange(
        forward=gathered if stage == 3 else 0.0,
        backward=gathered + scattered
        if stage == 3
        else scattered
        if stage == 2
        else 0.0,
        reduce=summed if stage == 0 else copies + (scattered if stage == 1 else 0.0),
        gather=gathered if 1 <= stage <= 2 else 0.0,
        pieces=units,
    )


def exposed(seconds: float, window: float, pieces: int, overlap: int) -> float:
    """Seconds of an exchange in equal pieces that a window of computing does not hide.

    Source: derived from Li et al. 2020: the last piece is ready when computing ends.
    """
    return (
        max(seconds / pieces, seconds - window * (pieces - 1) / pieces)
        if overlap == 1
        else seconds
    )


def optimizer_seconds(
    work: Work, cut: Cut, recipe: Recipe, replicas: Replicas, speed: Speed
) -> float:
    """Seconds of the optimizer's step: it reads and writes all state once.

    Source: derived: the memory's bandwidth binds, not its arithmetic.
    """
    own = padded(held(work, cut), work.layers, replicas.shard)
    alone = held_alone(work, cut)
    mine = own / replicas.shard if replicas.stage > 0 else own
    others = alone / alone_shard(replicas) if replicas.stage > 0 else alone
    return (mine + others) * recipe.stepped / speed.bandwidth


# Pipelines


def bubble_seconds(
    schedule: Schedule, forward: float, backward: float, weights: float
) -> float:
    """Seconds that a rank idles in a step: while the pipeline fills and drains.

    Source: Narayanan et al. 2021, section 2.2; Qi et al. 2023 (ZB-H1), here with a
    backward that includes the gradients of weights; weight stashing never drains.
    """
    p = schedule.stages
    return (
        0.0
        if schedule.kind == 4
        else (p - 1) * max(0.0, forward + backward - 2 * weights)
        if schedule.kind == 3
        else (p - 1) * (forward + backward) / schedule.chunks
    )


def in_flight(schedule: Schedule, place: int) -> float:
    """Micro-batches whose activations a stage holds at once, at most.

    Source: Huang et al. 2019 (GPipe), section 2.3: all; Narayanan et al. 2021, section
    2.2.1: as many as stages follow; interleaved, Korthikanti et al. 2022, section 4.2.
    """
    p = schedule.stages
    v = schedule.chunks
    return min(
        schedule.micros,
        schedule.micros
        if schedule.kind == 0
        else (2 * (p - place - 1) + (v - 1) * p + 1) / v
        if schedule.kind == 2
        else p - place,
    )


def times(
    one: Load,
    agree: Exchange,
    schedule: Schedule,
    recipe: Recipe,
    optimizer: float,
    overhead: float,
) -> Times:
    """Seconds of one step, by what they are spent on.

    Source: Kahira et al. 2021, table III, for what adds up; Narayanan et al. 2021.
    """
    m = schedule.micros
    f = (
        one.forward
        + one.forward_moved
        + one.cut_forward
        + one.context_forward
        + one.expert_forward
    )
    b = (
        one.backward
        + one.backward_moved
        + one.cut_backward
        + one.context_backward
        + one.expert_backward
    )
    every_f = exposed(agree.forward, f, agree.pieces, recipe.overlap)
    every_b = exposed(agree.backward, b, agree.pieces, recipe.overlap)
    once = exposed(agree.reduce, b, agree.pieces, recipe.overlap) + exposed(
        agree.gather, f, agree.pieces, recipe.overlap
    )
    messages = 2 * (m + schedule.stages - 2) * schedule.chunks
    return Times(
        compute=m * (one.forward + one.backward),
        memory=m * (one.forward_moved + one.backward_moved),
        bubble=bubble_seconds(schedule, f + every_f, b + every_b, one.weights),
        cut=m * (one.cut_forward + one.cut_backward),
        context=m * (one.context_forward + one.context_backward),
        expert=m * (one.expert_forward + one.expert_backward),
        pipeline=0.0 if schedule.stages == 1 else messages * one.message,
        data=m * (every_f + every_b) + once,
        optimizer=optimizer,
        overhead=overhead,
    )


# Memory


def kept_bytes(work: Work, cut: Cut, recipe: Recipe) -> float:
    """Bytes of activations that a micro-batch leaves for backward, all recorded.

    Source: Korthikanti et al. 2022, section 4: 34 + 5 a s / h, and its parts.
    """
    part = cut.tensor if cut.sequence == 1 else 1
    plain = 1 if recipe.flash == 0 and recipe.recompute == 0 else 0
    return samples_of(cut) * (
        (work.kept * recipe.activation + work.fixed) / part
        + (work.kept_cut * recipe.activation + work.fixed_cut) / cut.tensor
        + plain
        * (work.kept_scores * recipe.activation + work.fixed_scores)
        / cut.tensor
    )


def input_bytes(work: Work, cut: Cut, recipe: Recipe) -> float:
    """Bytes that a micro-batch leaves when units keep their inputs alone.

    Source: Korthikanti et al. 2022, section 5: 2 s b h.
    """
    part = cut.tensor if cut.sequence == 1 else 1
    return samples_of(cut) * work.inputs * recipe.activation / part


def state_bytes(
    work: Work, cut: Cut, recipe: Recipe, replicas: Replicas, versions: int
) -> Bytes:
    """Bytes of parameters, gradients, optimizer, and of units gathered whole.

    To hide its gathering, the next unit is gathered while one is in use.

    Source: Rajbhandari et al. 2020, section 5; stashed versions of the parameters:
    Narayanan et al. 2019 (PipeDream), section 3.3.
    """
    s = replicas.shard
    whole = padded(held(work, cut), work.layers, s)
    shard = whole / s
    alone = held_alone(work, cut)
    few = alone / alone_shard(replicas)
    return Bytes(
        parameters=versions
        * recipe.weight
        * (shard + few if replicas.stage == 3 else whole + alone),
        gradients=recipe.gradient
        * (shard + few if replicas.stage > 1 else whole + alone),
        optimizer=recipe.state * (shard + few if replicas.stage > 0 else whole + alone),
        buffers=(1 + recipe.overlap)
        * recipe.weight
        * padded(work.largest * cut_part(work, cut), 1, s)
        if replicas.stage == 3
        else 0.0,
    )


def activation_bytes(work: Work, cut: Cut, recipe: Recipe) -> float:
    """Bytes that one micro-batch in flight leaves on a rank.

    Source: Korthikanti et al. 2022, sections 4 and 5.
    """
    return (
        input_bytes(work, cut, recipe)
        if recipe.recompute == 2
        else kept_bytes(work, cut, recipe)
    )


def unit_bytes(work: Work, cut: Cut, recipe: Recipe) -> float:
    """Bytes of the one unit that is being computed again.

    Source: Chen et al. 2016 (sublinear memory), section 4.1.
    """
    return (
        kept_bytes(work, cut, recipe) / max(1, work.layers)
        if recipe.recompute == 2
        else 0.0
    )


def stash(schedule: Schedule, place: int) -> int:
    """Versions of its parameters that a stage holds.

    Source: Narayanan et al. 2019 (PipeDream), section 3.3, stages counted from 0.
    """
    return schedule.stages - place if schedule.kind == 4 else 1


def memory(
    work: Work,
    cut: Cut,
    recipe: Recipe,
    replicas: Replicas,
    schedule: Schedule,
    place: int,
) -> Bytes:
    """Bytes of one rank of the pipeline's stage `place`.

    Source: the parts above.
    """
    state = state_bytes(work, cut, recipe, replicas, stash(schedule, place))
    return Bytes(
        parameters=state.parameters,
        gradients=state.gradients,
        optimizer=state.optimizer,
        activations=in_flight(schedule, place) * activation_bytes(work, cut, recipe),
        buffers=state.buffers + unit_bytes(work, cut, recipe),
    )


# Parameter servers


def servers_needed(workers: int, n: float, beta: float, seconds: float) -> int:
    """Servers whose traffic takes no longer than a step's computing.

    Source: derived, as Zou et al. 2017 ask: s servers take w workers' n bytes, pushed
    and pulled, through links of 1/beta bytes a second: w n beta / s seconds.
    """
    return max(1, ceil(workers * n * beta / seconds))


def server_seconds(workers: int, servers: int, n: float, link: Link) -> float:
    """Seconds in which workers push and pull n bytes: the busier side's.

    Source: derived from Li et al. 2014: a worker moves n, a server its part of all.
    """
    return 2 * (link.launch + link.alpha) + max(1, workers / servers) * n * link.beta
