"""How things are cut into parts: chunks, and logarithms in whole numbers."""

from atlas.formulas.ranges import Count, Positive, Ranks, formula


@formula
def chunk(elements: Count, ranks: Ranks, index: int) -> int:
    """Elements of one chunk, its index taken modulo p, when n are cut into p chunks.

    Source: torch.tensor_split: the first n mod p chunks have one element more.
    """
    return -(-(elements - index % ranks) // ranks)


def _log_below_16(p: int) -> int:
    return 0 if p < 2 else 1 if p < 4 else 2 if p < 8 else 3


def _log_below_256(p: int) -> int:
    return _log_below_16(p) if p < 16 else 4 + _log_below_16(p // 16)


def _log_below_65536(p: int) -> int:
    return _log_below_256(p) if p < 256 else 8 + _log_below_256(p // 256)


def _log_below_2_to_32(p: int) -> int:
    return _log_below_65536(p) if p < 65536 else 16 + _log_below_65536(p // 65536)


@formula
def floor_log2(ranks: Ranks) -> int:
    """Whole part of the binary logarithm of p.

    Source: arithmetic: the place of the highest bit of p, found by bisection.
    """
    return (
        _log_below_2_to_32(ranks)
        if ranks < 2**32
        else 32 + _log_below_2_to_32(ranks // 2**32)
    )


@formula
def ceil_log2(ranks: Ranks) -> int:
    """Binary logarithm of p, rounded up.

    Source: arithmetic: the highest bit of 2p-1 is the power of two at or above p.
    """
    return floor_log2(2 * ranks - 1)


def _bit_below_16(i: int) -> int:
    return 1 if i % 2 > 0 else 2 if i % 4 > 0 else 4 if i % 8 > 0 else 8


def _bit_below_256(i: int) -> int:
    return _bit_below_16(i) if i % 16 > 0 else 16 * _bit_below_16(i // 16)


def _bit_below_65536(i: int) -> int:
    return _bit_below_256(i) if i % 256 > 0 else 256 * _bit_below_256(i // 256)


@formula
def lowest_bit(index: Positive) -> int:
    """Largest power of two that divides i.

    Source: arithmetic: the place of the lowest bit of i, found by bisection; i has at
    most 32 bits.
    """
    return (
        _bit_below_65536(index)
        if index % 65536 > 0
        else 65536 * _bit_below_65536(index // 65536)
    )
