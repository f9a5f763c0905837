"""A pipeline's bubble, what it has in flight, and the seconds of a step.

Part of the arithmetic: see `atlas.planner.arithmetic`.
"""

from atlas.planner.agreement import felt
from atlas.planner.records import Exchange, Load, Recipe, Schedule, ScheduleKind, Times


def bubble_seconds(
    schedule: Schedule, forward: float, backward: float, weights: float
) -> float:
    """Seconds that a rank idles in a step: while the pipeline fills and drains.

    Source: Narayanan et al. 2021, section 2.2; Qi et al. 2023 (ZB-H1), here with a
    backward that includes the gradients of weights; weight stashing never drains; with
    losses of their own stages wait for forwards alone (Laskin et al. 2020).
    """
    p = schedule.stages
    return (
        0.0
        if schedule.kind == ScheduleKind.STASHING
        else (p - 1) * forward
        if schedule.kind == ScheduleKind.LOCAL
        else (p - 1) * max(0.0, forward + backward - 2 * weights)
        if schedule.kind == ScheduleKind.ZERO_BUBBLE
        else (p - 1) * (forward + backward) / schedule.chunks
    )


def in_flight(schedule: Schedule, place: int) -> float:
    """Micro-batches whose activations a stage holds at once, at most.

    Source: Huang et al. 2019 (GPipe), section 2.3: all; Narayanan et al. 2021, section
    2.2.1: as many as stages follow; interleaved, Korthikanti et al. 2022, section 4.2;
    one, where a stage learns as soon as it has seen it (Laskin et al. 2020).
    """
    p = schedule.stages
    v = schedule.chunks
    return min(
        schedule.micros,
        schedule.micros
        if schedule.kind == ScheduleKind.GPIPE
        else (2 * (p - place - 1) + (v - 1) * p + 1) / v
        if schedule.kind == ScheduleKind.INTERLEAVED
        else 1
        if schedule.kind == ScheduleKind.LOCAL
        else p - place,
    )


def stash(schedule: Schedule, place: int) -> int:
    """Versions of its parameters that a stage holds.

    Source: Narayanan et al. 2019 (PipeDream), section 3.3, stages counted from 0.
    """
    return schedule.stages - place if schedule.kind == ScheduleKind.STASHING else 1


def busy(one: Load) -> float:
    """Seconds of one micro-batch on one rank, forward and backward.

    Source: Kahira et al. 2021, table III: the slowest stage sets the pace.
    """
    return forward_busy(one) + backward_busy(one)


def forward_busy(one: Load) -> float:
    """Seconds of one micro-batch forward: computing, and waiting inside layers.

    Source: arithmetic.
    """
    return (
        one.forward
        + one.forward_moved
        + one.forward_host
        + one.cut_forward
        + one.context_forward
        + one.expert_forward
    )


def backward_busy(one: Load) -> float:
    """Seconds of one micro-batch backward: computing, and waiting inside layers.

    Source: arithmetic.
    """
    return (
        one.backward
        + one.backward_moved
        + one.backward_host
        + one.cut_backward
        + one.context_backward
        + one.expert_backward
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
    f = forward_busy(one)
    b = backward_busy(one)
    every_f = felt(agree.forward, f, agree.pieces, recipe)
    every_b = felt(agree.backward, b, agree.pieces, recipe)
    once = felt(agree.reduce, b, agree.pieces, recipe) + felt(
        agree.gather, f, agree.pieces, recipe
    )
    ways = 1 if schedule.kind == ScheduleKind.LOCAL else 2  # onward; and back
    messages = ways * (m + schedule.stages - 2) * schedule.chunks
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
        overhead=overhead + m * (one.forward_host + one.backward_host),
    )
