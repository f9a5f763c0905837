"""Bytes that a rank holds at its peak.

Part of the arithmetic: see `atlas.planner.arithmetic`.
"""

from atlas.planner.agreement import alone_shard, held, held_alone, padded
from atlas.planner.computing import cut_part, samples_of
from atlas.planner.pipelining import in_flight, stash
from atlas.planner.records import (
    Bytes,
    Cut,
    Recipe,
    Recompute,
    Replicas,
    Schedule,
    Work,
)


def border_bytes(work: Work, cut: Cut, recipe: Recipe) -> float:
    """Bytes of rows beyond a border that windows see: kept with a rank's own rows.

    Source: Dryden et al. 2019: a convolution reads its rows and the halo as one map;
    at the map's own edge there are zeros in their place.
    """
    whole = cut.micro / cut.context * recipe.activation
    return 0.0 if cut.spatial == 1 else whole * work.halo


def kept_bytes(work: Work, cut: Cut, recipe: Recipe) -> float:
    """Bytes of activations that a micro-batch leaves for backward, all recorded.

    Source: Korthikanti et al. 2022, section 4: 34 + 5 a s / h, and its parts.
    """
    part = cut.tensor if cut.sequence else 1
    more = 1 if recipe.eager else 0
    plain = 1 if not recipe.flash and recipe.recompute == Recompute.NONE else 0
    return border_bytes(work, cut, recipe) + samples_of(cut) * (
        (work.kept * recipe.activation + work.fixed + more * work.eager) / part
        + (
            (work.kept_cut + more * work.eager_cut) * recipe.activation
            + work.fixed_cut * (0.5 if recipe.lean else 1.0)
        )
        / cut.tensor
        + plain
        * (work.kept_scores * recipe.activation + work.fixed_scores)
        / cut.tensor
    )


def input_bytes(work: Work, cut: Cut, recipe: Recipe) -> float:
    """Bytes that a micro-batch leaves when units keep their inputs alone.

    Source: Korthikanti et al. 2022, section 5: 2 s b h.
    """
    part = cut.tensor if cut.sequence else 1
    return samples_of(cut) * work.inputs * recipe.activation / part


def logit_bytes(work: Work, cut: Cut, recipe: Recipe) -> float:
    """Bytes of the words' scores that a micro-batch leaves: they are computed once.

    Source: Korthikanti et al. 2022, section 4.3: in 32 bits; code that fuses nothing
    keeps what it was given too; FlashAttention's loss keeps 16 bits and writes over
    them (Dao 2023).
    """
    return (
        0.0
        if work.once == 0
        else samples_of(cut)
        * work.fixed_cut
        * (0.5 if recipe.lean else 2.0 if recipe.eager else 1.0)
        / cut.tensor
    )


def noted_bytes(work: Work, cut: Cut, recipe: Recipe) -> float:
    """Bytes that a micro-batch leaves when every second product is done again.

    Source: torchtitan's checkpoints per operation: a unit's input, attention's output,
    and the outputs of every second product. What a head keeps, it keeps.
    """
    part = cut.tensor if cut.sequence else 1
    return samples_of(cut) * (
        (work.noted * recipe.activation) / part
        + work.noted_cut * recipe.activation / cut.tensor
    ) + logit_bytes(work, cut, recipe)


def state_bytes(
    work: Work, cut: Cut, recipe: Recipe, replicas: Replicas, versions: int
) -> Bytes:
    """Bytes of parameters, gradients, optimizer, and of units gathered whole.

    To hide its gathering, the next unit is gathered while one is in use, its experts
    too where they are shared out.

    Source: Rajbhandari et al. 2020, section 5; stashed versions of the parameters:
    Narayanan et al. 2019 (PipeDream), section 3.3.
    """
    s = replicas.shard
    whole = padded(held(work, cut), work.layers, s)
    shard = whole / s
    alone = held_alone(work, cut)
    few = alone / alone_shard(replicas)
    experts = work.experts / (cut.expert * cut.tensor * max(1, work.layers))
    gathered = experts if alone_shard(replicas) > 1 else 0.0
    return Bytes(
        parameters=versions
        * recipe.weight
        * (shard + few if replicas.stage == 3 else whole + alone),
        gradients=recipe.gradient
        * (shard + few if replicas.stage > 1 else whole + alone),
        optimizer=recipe.state * (shard + few if replicas.stage > 0 else whole + alone),
        buffers=(2 if recipe.overlap else 1)
        * recipe.weight
        * (padded(work.largest * cut_part(work, cut), 1, s) + gathered)
        if replicas.stage == 3
        else 0.0,
    )


def activation_bytes(work: Work, cut: Cut, recipe: Recipe) -> float:
    """Bytes that one micro-batch in flight leaves on a rank.

    Source: Korthikanti et al. 2022, sections 4 and 5.
    """
    return (
        input_bytes(work, cut, recipe)
        if recipe.recompute == Recompute.FULL
        else noted_bytes(work, cut, recipe)
        if recipe.recompute == Recompute.OPERATIONS
        else kept_bytes(work, cut, recipe)
    )


def unit_bytes(work: Work, cut: Cut, recipe: Recipe) -> float:
    """Bytes of the one unit in backward: gradients, and what is computed again.

    Source: Chen et al. 2016 (sublinear memory), section 4.1; the gradients of what
    enters and leaves the largest unit are derived.
    """
    logits = logit_bytes(work, cut, recipe)
    again = logits + (kept_bytes(work, cut, recipe) - logits) / max(1, work.layers)
    gradients = (
        samples_of(cut)
        * recipe.activation
        * (work.working + work.working_cut / cut.tensor)
    )
    return gradients + (again if recipe.recompute == Recompute.FULL else 0.0)


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
