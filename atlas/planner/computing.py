"""What one rank computes of a micro-batch, and how long it takes.

Part of the arithmetic: see `atlas.planner.arithmetic`.
"""

from atlas.formulas.parts import chunk
from atlas.planner.records import Cut, Recipe, Recompute, Speed, Work


def product_seconds(flops: float, kernels: float, speed: Speed) -> float:
    """Seconds of so many products: the peak times top f / (f + half), f of each.

    Source: derived: f over that rate is (f + half) / (peak top).
    """
    return (flops + kernels * speed.half) / (
        speed.peak * speed.top
    ) + kernels * speed.overhead


def score_seconds(flops: float, recipe: Recipe, speed: Speed) -> float:
    """Seconds of attention's two products: flash attention has a rate of its own.

    Source: Dao 2023 (FlashAttention-2), section 4.1: its share of the peak is another
    than that of plain products.
    """
    return flops / (
        speed.attention
        if recipe.flash and speed.attention > 0
        else speed.peak * speed.top
    )


def kernels_of(work: Work, cut: Cut) -> float:
    """Products of one micro-batch forward on one rank: it has its own experts alone.

    Source: Lepikhin et al. 2021 (GShard).
    """
    return work.kernels - work.seat_kernels + work.seat_kernels / cut.expert


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


def whole_flops(work: Work, cut: Cut) -> float:
    """Operations forward, of a sample, that every rank of a cut does.

    Source: Kahira et al. 2021, table III: the first layer has few channels.
    """
    return work.serial + (work.unchannelled_flops if cut.channel > 1 else 0.0)


def divided(whole: float, apart: float, work: Work, cut: Cut) -> float:
    """What the fullest rank has of a whole, of which channels do not cut a part.

    Source: Kahira et al. 2021, table III: the first layer has few channels.
    """
    rest = apart if cut.channel > 1 else 0.0
    return (whole - rest) * cut_part(work, cut) + rest


def samples_of(cut: Cut) -> float:
    """Samples that the fullest rank has of a micro-batch; a part of one is a fraction.

    Source: arithmetic; parts begin where rows of the smallest map begin, so that
    strides keep in step on all ranks.
    """
    return (
        cut.micro / (cut.context * cut.spatial)
        if cut.rows == 0
        else cut.micro * chunk(cut.rows, cut.spatial, 0) / (cut.context * cut.rows)
    )


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


def scores_moved(work: Work, recipe: Recipe) -> float:
    """Elements of attention's scores that go through memory.

    Source: Dao et al. 2022: none, if they never leave the chip.
    """
    return 0 if recipe.flash else work.moved_scores


def moved_bytes(work: Work, cut: Cut, recipe: Recipe) -> float:
    """Bytes that element-wise layers move through memory, of one micro-batch forward.

    Source: derived: each kernel reads its inputs once and writes its output once.
    """
    whole = work.moved / (cut.tensor if cut.sequence else 1)
    return (
        samples_of(cut)
        * recipe.activation
        * (whole + (work.moved_cut + scores_moved(work, recipe)) / cut.tensor)
    )


def recomputed_products(work: Work, cut: Cut, recipe: Recipe) -> float:
    """Operations of products of one micro-batch that backward does a second time.

    Source: Korthikanti et al. 2022, section 5: every layer, the head not; or, of every
    second product (torchtitan, per-operation checkpoints), half of them. PyTorch's
    checkpoint stops when it has what backward reads: before a unit's last product.
    """
    once = samples_of(cut) * work.once / cut.tensor
    last = samples_of(cut) * work.last / cut.tensor if recipe.stops else 0.0
    return (
        forward_flops(work, cut) - once - last
        if recipe.recompute == Recompute.FULL
        else 0.5 * (forward_flops(work, cut) - once)
        if recipe.recompute == Recompute.OPERATIONS
        else 0.0
    )


def recomputed_scores(work: Work, cut: Cut, recipe: Recipe) -> float:
    """Operations of attention of one micro-batch that backward does a second time.

    Source: Korthikanti et al. 2022, section 5: all of them; Dao et al. 2022: of 5
    backward products one repeats half of forward.
    """
    flash = 0.5 * score_flops(work, cut) if recipe.flash else 0.0
    return flash + (
        score_flops(work, cut)
        if recipe.recompute == Recompute.FULL
        or (recipe.recompute == Recompute.SELECTIVE and not recipe.flash)
        else 0.0
    )


def recomputed_flops(work: Work, cut: Cut, recipe: Recipe) -> float:
    """Operations of one micro-batch that are done a second time in backward.

    Source: the two parts above.
    """
    return recomputed_products(work, cut, recipe) + recomputed_scores(work, cut, recipe)


def host_seconds(kernels: float, busy: float, speed: Speed) -> float:
    """Seconds that the device waits for the host, which launches so many products.

    Source: derived: the host runs ahead of the device; the longer of the two sets the
    pace.
    """
    return max(0.0, kernels * speed.host - busy)
