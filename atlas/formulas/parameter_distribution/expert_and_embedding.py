"""Formulas of parameter-distribution/expert-and-embedding: bytes, calls, memory."""

from atlas.formulas.parts import chunk
from atlas.formulas.ranges import Count, Positive, Rank, Ranks, formula

# Embedding sharding: whole tables on each rank


@formula
def embedding_forward_bytes(
    ranks: Ranks,
    rank: Rank,
    batch: Count,
    tables: Count,
    width: Count,
    itemsize: Positive,
) -> int:
    """Bytes that a rank hands to all-to-all forward: 8-byte indices, then rows.

    Source: Naumov et al. 2019 (DLRM), its own share included.
    """
    return (
        8 * chunk(batch, ranks, rank) * tables
        + itemsize * batch * chunk(tables, ranks, rank) * width
    )


@formula
def embedding_backward_bytes(
    ranks: Ranks,
    rank: Rank,
    batch: Count,
    tables: Count,
    width: Count,
    itemsize: Positive,
) -> int:
    """Bytes that a rank hands to all-to-all backward: a gradient for every row it read.

    Source: Naumov et al. 2019 (DLRM), its own share included.
    """
    return itemsize * chunk(batch, ranks, rank) * tables * width


@formula
def embedding_state_bytes(
    ranks: Ranks,
    rank: Rank,
    tables: Count,
    table_rows: Count,
    width: Count,
    itemsize: Positive,
) -> int:
    """Bytes of the tables that a rank holds.

    Source: Naumov et al. 2019 (DLRM).
    """
    return itemsize * chunk(tables, ranks, rank) * table_rows * width


@formula
def embedding_dense_bytes(tables: Count, width: Count, itemsize: Positive) -> int:
    """Bytes that a rank hands to all-reduce: the gradient of the dense part.

    Source: Naumov et al. 2019 (DLRM): the dense part is data-parallel.
    """
    return itemsize * tables * width


# Expert parallelism: every rank has the same number of seats for each expert


@formula
def expert_calls() -> int:
    """All-to-alls of one layer each way: to the experts, and home.

    Source: Lepikhin et al. 2021 (GShard).
    """
    return 2


@formula
def expert_payload(
    ranks: Ranks,
    experts_per_rank: Positive,
    seats: Count,
    width: Count,
    itemsize: Positive,
) -> int:
    """Bytes that a rank hands to the four all-to-alls: all seats, taken or not.

    Source: Lepikhin et al. 2021 (GShard).
    """
    return 4 * ranks * experts_per_rank * seats * width * itemsize


@formula
def expert_dropped(tokens: Count, choices: Count, scarce_seats: Count) -> int:
    """Choices dropped at most: all tokens like the same experts.

    Source: derived from Lepikhin et al. 2021 (GShard), section 2.2.
    """
    return choices * max(0, tokens - scarce_seats)


@formula
def expert_dropped_least(
    ranks: Ranks,
    experts_per_rank: Positive,
    tokens: Count,
    choices: Count,
    scarce_seats: Count,
) -> int:
    """Choices dropped at least: the tokens spread evenly, and all seats are taken.

    Source: derived from Lepikhin et al. 2021 (GShard), section 2.2.
    """
    return max(0, choices * tokens - scarce_seats * experts_per_rank * ranks)


# Dropless experts: as many rows as there are choices


@formula
def dropless_calls() -> int:
    """All-to-alls of one layer: one of counts, two forward, two backward.

    Source: Gale et al. 2023 (MegaBlocks), section 4; the counts are derived.
    """
    return 5


@formula
def rows_when_even(tokens: Count, choices: Count) -> int:
    """Rows that a rank's experts compute where all experts are chosen equally often.

    Source: derived from Gale et al. 2023 (MegaBlocks), section 3: none dropped.
    """
    return tokens * choices


@formula
def rows_when_one(
    ranks: Ranks,
    rank: Rank,
    tokens: Count,
    choices: Count,
    experts_per_rank: Positive,
) -> int:
    """Rows that a rank's experts compute where all tokens choose the first k experts.

    Source: derived from Gale et al. 2023 (MegaBlocks), section 3: none dropped.
    """
    mine = min(choices, (rank + 1) * experts_per_rank) - rank * experts_per_rank
    return ranks * tokens * max(0, mine)


@formula
def dropless_payload_even(
    ranks: Ranks,
    tokens: Count,
    choices: Count,
    experts_per_rank: Positive,
    width: Count,
    itemsize: Positive,
) -> int:
    """Bytes that a rank hands to all five all-to-alls: 8 for each count, and all rows.

    Source: derived from Gale et al. 2023 (MegaBlocks), section 3: no padding.
    """
    return 8 * ranks * experts_per_rank + 4 * tokens * choices * width * itemsize


@formula
def dropless_payload_one(
    ranks: Ranks,
    rank: Rank,
    tokens: Count,
    choices: Count,
    experts_per_rank: Positive,
    width: Count,
    itemsize: Positive,
) -> int:
    """The same where all tokens choose the same experts: their ranks send all results.

    Source: derived from Gale et al. 2023 (MegaBlocks), section 3: no padding.
    """
    sent = tokens * choices + rows_when_one(
        ranks, rank, tokens, choices, experts_per_rank
    )
    return 8 * ranks * experts_per_rank + 2 * sent * width * itemsize
