"""Formulas of sync-strategy/layer-local: bytes, rounds, memory, time."""

from atlas.formulas.ranges import Amount, Count, Positive, Rank, Ranks, formula

# Local parallelism: one layer per rank; batches are not cut


@formula
def greedy_bytes(
    ranks: Ranks, rank: Rank, microbatches: Positive, activation_bytes: Count
) -> int:
    """Bytes that rank r sends: activations onward, and nothing back.

    Source: Laskin et al. 2020.
    """
    return 0 if rank == ranks - 1 else microbatches * activation_bytes


@formula
def chunked_backward_bytes(
    ranks: Ranks,
    rank: Rank,
    chunks: Positive,
    microbatches: Positive,
    activation_bytes: Count,
) -> int:
    """Bytes of gradients that rank r sends back: none where a chunk begins.

    Source: Laskin et al. 2020.
    """
    return (
        0
        if rank == 0 or rank * chunks // ranks > (rank - 1) * chunks // ranks
        else microbatches * activation_bytes
    )


@formula
def greedy_makespan(
    ranks: Ranks, microbatches: Positive, forward: Amount, backward: Amount
) -> float:
    """Seconds of all batches: a layer waits once, for the forwards below it.

    Source: derived from Laskin et al. 2020: no layer waits for a
    backward but its own.
    """
    return microbatches * (forward + backward) + (ranks - 1) * forward


# Overlapping local parallelism: one layer per rank, blocks of two layers


@formula
def overlapping_backward_bytes(
    ranks: Ranks, rank: Rank, microbatches: Positive, activation_bytes: Count
) -> int:
    """Bytes of gradients that rank r sends back: those of the layer below, once.

    Source: Xiong et al. 2020 (LoCo): two blocks share a layer.
    """
    return 0 if rank == 0 else microbatches * activation_bytes


@formula
def overlapping_makespan(
    ranks: Ranks, microbatches: Positive, forward: Amount, backward: Amount
) -> float:
    """Seconds of all batches: a layer waits for the forward and backward above it.

    Source: derived from Xiong et al. 2020 (LoCo).
    """
    return 2 * microbatches * (forward + backward) + max(0, ranks - 2) * forward


# Interlocking backpropagation: one layer per rank, a loss each, and a bounded way back


@formula
def interlocking_backward_bytes(
    ranks: Ranks,
    rank: Rank,
    window: Positive,
    microbatches: Positive,
    activation_bytes: Count,
) -> int:
    """Bytes of gradients that rank r sends back: one for each loss that goes on.

    Source: derived from Gomez et al. 2022.
    """
    return (
        0
        if rank == 0
        else min(window - 1, ranks - rank) * microbatches * activation_bytes
    )


@formula
def interlocking_bytes(
    ranks: Ranks,
    rank: Rank,
    window: Positive,
    microbatches: Positive,
    activation_bytes: Count,
) -> int:
    """Bytes that rank r sends: its activations onward, and gradients back.

    Source: derived from Gomez et al. 2022.
    """
    return (
        (
            (0 if rank == ranks - 1 else 1)
            + (0 if rank == 0 else min(window - 1, ranks - rank))
        )
        * microbatches
        * activation_bytes
    )
