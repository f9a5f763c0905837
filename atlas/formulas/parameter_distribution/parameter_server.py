"""Formulas of parameter-distribution/parameter-server: bytes, rounds, memory, time."""

from atlas.formulas.communication_pattern.collective import ring_all_reduce_total
from atlas.formulas.communication_pattern.star import push_pull_bytes
from atlas.formulas.parts import chunk
from atlas.formulas.ranges import Count, Positive, Rank, Ranks, formula

# Central parameter server: rank 0 keeps all state, the others are workers


@formula
def central_server_bytes(
    ranks: Ranks, rank: Rank, elements: Count, itemsize: Positive, steps: Count
) -> int:
    """Bytes that a rank sends, and receives too: parameters one way, gradients back.

    Source: Dean et al. 2012, section 4: a worker asks for parameters and pushes
    gradients, both as large as the model.
    """
    return push_pull_bytes(ranks, rank, elements, itemsize, steps)


@formula
def central_server_state(
    ranks: Ranks, rank: Rank, elements: Count, itemsize: Positive
) -> int:
    """Bytes of optimizer state: two moments of Adam on the server, none elsewhere.

    Source: derived from Dean et al. 2012, section 4: the server applies the gradients.
    """
    return 2 * elements * itemsize if rank == 0 else 0


# Sharded parameter server: a server on every rank, with one chunk each


@formula
def sharded_server_bytes(
    ranks: Ranks, rank: Rank, elements: Count, itemsize: Positive, steps: Count
) -> int:
    """Bytes that a rank sends, and receives too: others' chunks, and its own.

    Source: derived from Li et al. 2014: it pushes all chunks but its own,
    and answers the pulls of p-1 workers.
    """
    return steps * itemsize * (elements + (ranks - 2) * chunk(elements, ranks, rank))


@formula
def sharded_server_total(
    ranks: Ranks, elements: Count, itemsize: Positive, steps: Count
) -> int:
    """Bytes that all ranks together send: those of one ring all-reduce per step.

    Source: derived from Li et al. 2014; Jiang et al. 2020.
    """
    return steps * ring_all_reduce_total(ranks, elements, itemsize)
