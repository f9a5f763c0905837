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


# One table cut by rows, or by columns; p divides the samples


@formula
def row_cut_held(
    ranks: Ranks, rank: Rank, rows: Count, columns: Count, itemsize: Positive
) -> int:
    """Bytes of a rank's rows of a table.

    Source: TorchRec's documentation: row-wise sharding.
    """
    return chunk(rows, ranks, rank) * columns * itemsize


@formula
def column_cut_held(
    ranks: Ranks, rank: Rank, rows: Count, columns: Count, itemsize: Positive
) -> int:
    """Bytes of a rank's columns of a table.

    Source: TorchRec's documentation: column-wise sharding.
    """
    return rows * chunk(columns, ranks, rank) * itemsize


@formula
def bag_indices(ranks: Ranks, batch: Count, bag: Count) -> int:
    """Bytes that a rank must send so that all know the indices of its bags.

    Source: derived: an all-gather of 8 bytes for each index.
    """
    return (ranks - 1) * (batch // ranks) * bag * 8


@formula
def row_cut_backward(
    ranks: Ranks, batch: Count, columns: Count, itemsize: Positive
) -> int:
    """Bytes that a rank must send so that all have the gradients of its bags.

    Source: derived: an all-gather, the reverse of the reduce-scatter of forward.
    """
    return (ranks - 1) * (batch // ranks) * columns * itemsize


@formula
def row_cut_forward(
    ranks: Ranks, batch: Count, bag: Count, columns: Count, itemsize: Positive
) -> int:
    """Bytes that a rank must send: its indices, and its terms of others' bags.

    Source: TorchRec's documentation: a reduce-scatter for row-wise sharding.
    """
    return bag_indices(ranks, batch, bag) + row_cut_backward(
        ranks, batch, columns, itemsize
    )


@formula
def column_cut_forward(
    ranks: Ranks,
    rank: Rank,
    batch: Count,
    bag: Count,
    columns: Count,
    itemsize: Positive,
) -> int:
    """Bytes that a rank must send: its indices, and its columns of others' bags.

    Source: TorchRec's documentation: an all-to-all for column-wise sharding.
    """
    width = chunk(columns, ranks, rank)
    return bag_indices(ranks, batch, bag) + row_cut_backward(
        ranks, batch, width, itemsize
    )


@formula
def column_cut_backward(
    ranks: Ranks, batch: Count, columns: Count, itemsize: Positive
) -> float:
    """Bytes that a rank must send: to each other rank its columns of the gradients.

    Source: derived: the all-to-all of forward, reversed.
    """
    return row_cut_backward(ranks, batch, columns, itemsize) / ranks


@formula
def rows_before_sums(
    ranks: Ranks, batch: Count, bag: Count, columns: Count, itemsize: Positive
) -> int:
    """Bytes for the result of F.embedding if rows travel before they are added up.

    Source: derived; torch 2.13, whose DTensor has no rule for bags that are cut so.
    """
    return bag * row_cut_backward(ranks, batch, columns, itemsize)
