"""Formulas of parameter-distribution/within-sample: bytes, rounds, memory, time."""

from atlas.formulas.parts import chunk
from atlas.formulas.ranges import Count, Positive, Rank, Ranks, formula

# Ring attention: the tokens lie in 2p chunks, of which a rank has two


@formula
def zigzag_tokens(ranks: Ranks, rank: Rank, tokens: Count) -> int:
    """Tokens that a rank holds: chunk r of 2p, and chunk r from the end.

    Source: Llama Team 2024, section 3.3.2.
    """
    return chunk(tokens, 2 * ranks, rank) + chunk(
        tokens, 2 * ranks, 2 * ranks - 1 - rank
    )


@formula
def ring_attention_forward(
    ranks: Ranks, rank: Rank, tokens: Count, width: Positive, itemsize: Positive
) -> int:
    """Bytes that a rank sends forward: all keys and values but those of rank r+1.

    Source: Liu et al. 2023, section 3, with shares of uneven size.
    """
    return (
        2
        * width
        * itemsize
        * (tokens - zigzag_tokens(ranks, (rank + 1) % ranks, tokens))
    )


@formula
def ring_attention_backward(
    ranks: Ranks, rank: Rank, tokens: Count, width: Positive, itemsize: Positive
) -> int:
    """Bytes that a rank sends backward: those of forward, and everyone's gradients.

    Source: derived from Liu et al. 2023, section 3: gradients make p hops.
    """
    return ring_attention_forward(ranks, rank, tokens, width, itemsize) + (
        0 if ranks == 1 else 2 * width * itemsize * tokens
    )


@formula
def ring_attention_rounds(ranks: Ranks) -> int:
    """Rounds of messages: p-1 hops forward, and p backward.

    Source: derived from Liu et al. 2023, section 3.
    """
    return 0 if ranks == 1 else 2 * ranks - 1


@formula
def ring_attention_pairs(ranks: Ranks, rank: Rank, tokens: Count) -> int:
    """Pairs of query and key that a rank computes: each token and those before it.

    Source: derived from Llama Team 2024, section 3.3.2: the cut into 2p chunks.
    """
    early = chunk(tokens, 2 * ranks, rank)
    late = chunk(tokens, 2 * ranks, 2 * ranks - 1 - rank)
    before_early = rank * (tokens // (2 * ranks)) + min(rank, tokens % (2 * ranks))
    before_late = (2 * ranks - 1 - rank) * (tokens // (2 * ranks)) + min(
        2 * ranks - 1 - rank, tokens % (2 * ranks)
    )
    return (
        early * before_early
        + early * (early + 1) // 2
        + late * before_late
        + late * (late + 1) // 2
    )


# Zigzag, stripes and runs: whose tokens attend to how much


@formula
def contiguous_pairs(ranks: Ranks, rank: Rank, tokens: Count) -> int:
    """Pairs of query and key that a rank computes where it holds one run of tokens.

    Source: derived from Brandon et al. 2023, section 3: the causal mask's triangle.
    """
    before = rank * (tokens // ranks) + min(rank, tokens % ranks)
    own = chunk(tokens, ranks, rank)
    return own * before + own * (own + 1) // 2


@formula
def striped_pairs(ranks: Ranks, rank: Rank, tokens: Count) -> int:
    """Pairs of query and key that a rank computes where it holds every p-th token.

    Source: derived from Brandon et al. 2023, section 3: token i p + r sees i p + r + 1.
    """
    own = chunk(tokens, ranks, rank)
    return own * (rank + 1) + ranks * (own * (own - 1) // 2)


@formula
def contiguous_document_pairs(
    ranks: Ranks, rank: Rank, tokens: Count, border: Count
) -> int:
    """The same as for one run of tokens, with a second document after s_1 tokens.

    Source: derived from Llama Team 2024, section 3.3.2: the document mask.
    """
    begin = rank * (tokens // ranks) + min(rank, tokens % ranks)
    end = begin + chunk(tokens, ranks, rank)
    begin_in_first = min(begin, border)
    end_in_first = min(end, border)
    begin_in_second = begin - begin_in_first
    end_in_second = end - end_in_first
    return (
        end_in_first * (end_in_first + 1)
        - begin_in_first * (begin_in_first + 1)
        + end_in_second * (end_in_second + 1)
        - begin_in_second * (begin_in_second + 1)
    ) // 2


@formula
def zigzag_document_pairs(
    ranks: Ranks, rank: Rank, tokens: Count, border: Count
) -> int:
    """The same as for zigzag, where both documents are cut into 2p chunks each.

    Source: derived from Llama Team 2024, section 3.3.2: the document mask.
    """
    first = min(border, tokens)
    return ring_attention_pairs(ranks, rank, first) + ring_attention_pairs(
        ranks, rank, tokens - first
    )


@formula
def striped_document_pairs(
    ranks: Ranks, rank: Rank, tokens: Count, border: Count
) -> int:
    """The same as for stripes, which do not begin anew with the second document.

    Source: derived from Brandon et al. 2023, section 3, and Llama Team 2024, section
    3.3.2: in the second document, rank r has the stripe (r - s_1) mod p.
    """
    first = min(border, tokens)
    return striped_pairs(ranks, rank, first) + striped_pairs(
        ranks, (rank - first) % ranks, tokens - first
    )


@formula
def even_ring_traffic(
    ranks: Ranks, rank: Rank, tokens: Count, width: Positive, itemsize: Positive
) -> int:
    """Bytes that a rank sends, forward and backward, where shares differ by one token.

    Source: derived from Liu et al. 2023, section 3: keys and values make p-1 hops each
    way, and their gradients p.
    """
    there = tokens - chunk(tokens, ranks, rank + 1)
    return 2 * width * itemsize * (2 * there + (0 if ranks == 1 else tokens))


@formula
def zigzag_ring_traffic(
    ranks: Ranks, rank: Rank, tokens: Count, width: Positive, itemsize: Positive
) -> int:
    """Bytes that a rank sends, forward and backward, where it has two of 2p chunks.

    Source: derived from Liu et al. 2023, section 3, with shares of uneven size.
    """
    return ring_attention_forward(
        ranks, rank, tokens, width, itemsize
    ) + ring_attention_backward(ranks, rank, tokens, width, itemsize)


# Gathered keys and values: all of them at once, on every rank


@formula
def gathered_keys_calls() -> int:
    """Collectives of one attention: an all-gather forward, a reduce-scatter backward.

    Source: Llama Team 2024, section 3.3.2; backward is derived. Keys and values in one.
    """
    return 2


@formula
def gathered_keys_payload(
    ranks: Ranks,
    tokens: Count,
    kv_heads: Positive,
    head_width: Positive,
    itemsize: Positive,
) -> int:
    """Bytes that a rank hands to all-gather: keys and values of its own tokens.

    Source: Llama Team 2024, section 3.3.2; p divides the tokens.
    """
    return 2 * (tokens // ranks) * kv_heads * head_width * itemsize


@formula
def all_keys_bytes(
    tokens: Count, kv_heads: Positive, head_width: Positive, itemsize: Positive
) -> int:
    """Bytes of the keys and values of all tokens, or of their gradients.

    Source: Llama Team 2024, section 3.3.2: they are gathered on every rank.
    """
    return 2 * tokens * kv_heads * head_width * itemsize


@formula
def gathered_keys_volume(
    ranks: Ranks,
    tokens: Count,
    kv_heads: Positive,
    head_width: Positive,
    itemsize: Positive,
) -> int:
    """Bytes that a rank sends when both collectives are rings.

    Source: derived from Llama Team 2024, section 3.3.2: (p-1)/p of all keys and values
    forward, and of their gradients backward.
    """
    return 4 * (ranks - 1) * (tokens // ranks) * kv_heads * head_width * itemsize


# Ulysses: tokens and heads are both cut into p parts


@formula
def ulysses_calls() -> int:
    """All-to-alls of one attention: into heads and out again, forward and backward.

    Source: Jacobs et al. 2023, section 3, with queries, keys and values in one.
    """
    return 4


@formula
def ulysses_payload(
    ranks: Ranks,
    rank: Rank,
    tokens: Count,
    heads: Positive,
    head_width: Positive,
    itemsize: Positive,
) -> int:
    """Bytes that a rank hands over: four tensors by its tokens, four by its heads.

    Source: Jacobs et al. 2023, section 3.2, with parts of uneven size.
    """
    return (
        4
        * head_width
        * itemsize
        * (chunk(tokens, ranks, rank) * heads + tokens * chunk(heads, ranks, rank))
    )


@formula
def held_heads(ranks: Ranks, rank: Rank, heads: Positive) -> int:
    """Attention heads of a rank, of which the last rank must have one.

    Source: Jacobs et al. 2023, section 3; Shoeybi et al. 2019, section 3.
    """
    return chunk(heads, ranks, rank)


# Rows cut


@formula
def spatial_rows(ranks: Ranks, rank: Rank, map_rows: Positive) -> int:
    """Rows of the smallest map that a rank holds, of which the last must have one.

    Source: Kahira et al. 2021, table III, cut in one dimension.
    """
    return chunk(map_rows, ranks, rank)


@formula
def spatial_halo(
    ranks: Ranks, rank: Rank, batch: Count, halo: Count, itemsize: Positive
) -> int:
    """Bytes that a rank sends to each neighbor, forward and backward.

    Source: Kahira et al. 2021, table III; of each layer it is K - s rows: what a
    window of K rows that moves by s shares with the next. It goes to and fro.
    """
    return (min(rank, 1) + min(ranks - 1 - rank, 1)) * batch * halo * itemsize


@formula
def spatial_messages(ranks: Ranks, rank: Rank, halos: Count) -> int:
    """Messages that a rank sends to its neighbors; none is empty.

    Source: derived from Kahira et al. 2021, table III.
    """
    return (min(rank, 1) + min(ranks - 1 - rank, 1)) * halos


@formula
def spatial_sums(norms: Count) -> int:
    """All-reduces: one of the gradients, and one each way in every norm.

    Source: Kahira et al. 2021, table III, with batch norms of whole samples.
    """
    return 1 + 2 * norms


@formula
def spatial_summed(
    elements: Count, norms: Count, norm_channels: Count, itemsize: Positive
) -> int:
    """Bytes that a rank hands to all-reduce: gradients, and 2C + 1 sums per norm.

    Source: Kahira et al. 2021, table III, with batch norms of whole samples, whose
    sums are added forward and their gradients backward.
    """
    return (elements + 2 * (2 * norm_channels + norms)) * itemsize
