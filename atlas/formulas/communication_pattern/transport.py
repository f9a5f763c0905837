"""Formulas of communication-pattern/transport: bytes, rounds, memory, time."""

from atlas.formulas.ranges import Count, Positive, Rank, Ranks, formula

# All-reduce in shared memory: a row for each rank and one for the result


@formula
def shared_memory_outside() -> int:
    """What stays outside the mapping: no byte on a socket, no file on the disk.

    Source: Jain et al. 2018: data stays in the mapping.
    """
    return 0


@formula
def shared_memory_barriers() -> int:
    """Barriers: after all have written, and after all have summed.

    Source: Jain et al. 2018.
    """
    return 2


@formula
def shared_memory_mapped(ranks: Ranks, elements: Count, itemsize: Positive) -> int:
    """Bytes of the mapping that all ranks of the host share.

    Source: Jain et al. 2018, with one buffer for the whole tensor.
    """
    return (ranks + 1) * elements * itemsize


# Zero-copy transfer: a tensor as it lies, or a pickle; odd ranks pickle one more


@formula
def zero_copy_bytes(elements: Count, itemsize: Positive) -> int:
    """Bytes of a tensor that is sent as it lies.

    Source: Xue et al. 2019: the receiver knows everything but the numbers.
    """
    return elements * itemsize


@formula
def zero_copy_messages() -> int:
    """Messages for a tensor whose size is known: one.

    Source: Xue et al. 2019.
    """
    return 1


@formula
def pickled_bytes(
    ranks: Ranks, rank: Rank, elements: Count, itemsize: Positive, pickle_header: Count
) -> int:
    """Bytes of an array sent as its length, 8 bytes, and its pickle.

    Source: torch.distributed.send_object_list, which does the same; here an odd rank
    pickles one element more.
    """
    return 8 + pickle_header + (elements + rank % 2) * itemsize


@formula
def pickled_messages() -> int:
    """Messages for an object whose size is not known: its length, its pickle.

    Source: torch.distributed.send_object_list, which does the same.
    """
    return 2
