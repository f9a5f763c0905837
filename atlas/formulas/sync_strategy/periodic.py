"""Formulas of sync-strategy/periodic: bytes, rounds, memory, time."""

from atlas.formulas.ranges import Count, Positive, Ranks, formula

# Periodic averaging: a meeting after every period of steps, and one at the end


@formula
def periodic_rounds(steps: Count, period: Positive) -> int:
    """Meetings: one after every period, and one for the steps left over.

    Source: Stich 2019, with an average after the last step.
    """
    return -(-steps // period)


@formula
def periodic_payload(
    elements: Count, itemsize: Positive, steps: Count, period: Positive
) -> int:
    """Bytes handed to all-reduce: all parameters at every meeting.

    Source: Stich 2019.
    """
    return periodic_rounds(steps, period) * elements * itemsize


# DiLoCo: its rounds and payload are those of periodic averaging


@formula
def diloco_outer_bytes(elements: Count, itemsize: Positive) -> int:
    """Bytes of the outer optimizer: where the period began, and the momentum.

    Source: Douillard et al. 2023, algorithm 1.
    """
    return 2 * elements * itemsize


# Block momentum: its rounds and payload are those of periodic averaging


@formula
def block_momentum_bytes(elements: Count, itemsize: Positive) -> int:
    """Bytes beside the model: the average weights, and the block momentum.

    Source: Chen and Huo 2016.
    """
    return 2 * elements * itemsize


# Post-local SGD: every step at first, then as periodic averaging


@formula
def post_local_rounds(steps: Count, together: Count, period: Positive) -> int:
    """Meetings: one in every step up to the switch, one in every period after it.

    Source: Lin et al. 2020, with an average after the last step.
    """
    first = min(together, steps)
    return first + periodic_rounds(steps - first, period)


@formula
def post_local_payload(
    elements: Count, itemsize: Positive, steps: Count, together: Count, period: Positive
) -> int:
    """Bytes handed to all-reduce: a gradient or the weights, which are as long.

    Source: Lin et al. 2020.
    """
    return post_local_rounds(steps, together, period) * elements * itemsize


# Streaming DiLoCo: fragments, each after another step of the period


@formula
def fragments_left_over(steps: Count, period: Positive, fragments: Positive) -> int:
    """Fragments that are sent after the last whole period.

    Source: Douillard et al. 2025, algorithm 2, with fragments spread evenly.
    """
    return -(-(steps % period + 1) * fragments // period) - 1


@formula
def streaming_rounds(steps: Count, period: Positive, fragments: Positive) -> int:
    """Fragments sent in all steps: each of them once in a period.

    Source: Douillard et al. 2025, algorithm 2.
    """
    whole = steps // period * fragments
    return whole + fragments_left_over(steps, period, fragments)


@formula
def streaming_payload(
    elements: Count,
    itemsize: Positive,
    steps: Count,
    period: Positive,
    fragments: Positive,
) -> int:
    """Bytes handed to all-reduce: after whole periods, those of DiLoCo.

    Source: Douillard et al. 2025, section 2.2.
    """
    left = fragments_left_over(steps, period, fragments)
    rest = left * (elements // fragments) + min(left, elements % fragments)
    return (steps // period * elements + rest) * itemsize


@formula
def streaming_peak(elements: Count, itemsize: Positive, fragments: Positive) -> int:
    """Bytes of the largest exchange: one fragment.

    Source: Douillard et al. 2025, section 2.2.
    """
    return -(-elements // fragments) * itemsize


@formula
def streaming_exposed(
    ranks: Ranks, steps: Count, period: Positive, fragments: Positive, delay: Count
) -> float:
    """Seconds that a rank waits if a step takes one, and an exchange as long.

    Source: derived: all of them without a delay, else what is sent after the last step.
    """
    sent = streaming_rounds(steps, period, fragments)
    early = streaming_rounds(max(0, steps - 1), period, fragments)
    hidden = early if delay > 0 else 0
    return sent - hidden if ranks > 1 else 0


# Federated averaging: a server, and some of the clients in each round


@formula
def federated_clients(ranks: Ranks, percent: Positive) -> int:
    """Clients that take part in a round, of all ranks but the server.

    Source: McMahan et al. 2017, algorithm 1: max(C K, 1), here rounded down.
    """
    return max(1, (ranks - 1) * percent // 100)


@formula
def federated_down(
    ranks: Ranks, percent: Positive, rounds: Count, elements: Count, itemsize: Positive
) -> int:
    """Bytes that the server sends: the model, to every client of every round.

    Source: McMahan et al. 2017, algorithm 1.
    """
    return rounds * federated_clients(ranks, percent) * elements * itemsize


@formula
def federated_up(
    ranks: Ranks, percent: Positive, rounds: Count, elements: Count, itemsize: Positive
) -> int:
    """Bytes that come back: the weights, and a number of samples with each.

    Source: McMahan et al. 2017, algorithm 1.
    """
    return rounds * federated_clients(ranks, percent) * (elements + 1) * itemsize
