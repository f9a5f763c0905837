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


# Decoupled greedy learning with a buffer: block 0 stands still once, for some steps of
# the others; block 1 replays the pairs that it has


@formula
def replay_goes_on(
    ranks: Ranks, rank: Rank, steps: Count, fall: Count, pause: Count
) -> int:
    """Steps of this block on pairs that it has learned from before.

    Source: derived: only block 1 hears nothing, and only as long as block 0 stands.
    """
    return min(pause, steps - fall) if rank == 1 else 0


@formula
def replay_oldest(
    ranks: Ranks,
    rank: Rank,
    steps: Count,
    fall: Count,
    pause: Count,
    capacity: Positive,
) -> int:
    """Most steps since a pair came that is learned from, with room for no more pairs.

    Source: derived: the newest pair first, then the one before, over and over.
    """
    replays = replay_goes_on(ranks, rank, steps, fall, pause)
    round_ = replays // capacity
    return (
        0
        if replays == 0
        else max(
            replays + (replays - 1) % capacity,
            round_ * capacity + capacity - 1 if round_ > 0 else 0,
        )
    )


@formula
def replay_buffer(
    ranks: Ranks, rank: Rank, batch: Count, capacity: Positive, activation_bytes: Count
) -> int:
    """Bytes of the pairs that are kept: activations, and 8 for each label.

    Source: derived from Belilovsky et al. 2020, abstract.
    """
    return 0 if rank == 0 else capacity * (activation_bytes + 8 * batch)


@formula
def replay_bytes(
    ranks: Ranks, rank: Rank, batch: Count, steps: Count, activation_bytes: Count
) -> int:
    """Bytes that this block sends: a pair in every step, and nothing back.

    Source: derived from Belilovsky et al. 2020, abstract.
    """
    return 0 if rank == ranks - 1 else steps * (activation_bytes + 8 * batch)


@formula
def replay_backward_bytes() -> int:
    """Bytes that a block sends to the one below.

    Source: Belilovsky et al. 2020, abstract: each block has a loss of its own.
    """
    return 0


@formula
def replay_makespan(ranks: Ranks, steps: Count, pause: Count) -> int:
    """Seconds, if a step takes one: the slower of the first block and of the last.

    Source: derived: block r begins r seconds late; only block 0 loses the pause.
    """
    return steps + max(pause, ranks - 1)


# Synthetic gradients: one layer per rank, a predictor for each but the last


@formula
def synthetic_backward_bytes(
    ranks: Ranks, rank: Rank, microbatches: Positive, activation_bytes: Count
) -> int:
    """Bytes of gradients that rank r sends back: with each next batch, for the last.

    Source: derived from Jaderberg et al. 2017, section 2.1; nobody asks for the last.
    """
    return 0 if rank == 0 else (microbatches - 1) * activation_bytes


@formula
def synthetic_bytes(
    ranks: Ranks, rank: Rank, microbatches: Positive, activation_bytes: Count
) -> int:
    """Bytes that rank r sends: activations onward, and gradients back.

    Source: derived from Jaderberg et al. 2017, section 2.1.
    """
    onward = 0 if rank == ranks - 1 else microbatches
    back = 0 if rank == 0 else microbatches - 1
    return (onward + back) * activation_bytes
