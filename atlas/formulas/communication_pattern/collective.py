"""Formulas of communication-pattern/collective: bytes, rounds, memory, time."""

from math import floor

from atlas.formulas.parts import ceil_log2, chunk, floor_log2, lowest_bit
from atlas.formulas.ranges import Count, Positive, Rank, Ranks, formula


@formula
def ring_all_reduce_bytes(
    ranks: Ranks, rank: Rank, elements: Count, itemsize: Positive
) -> int:
    """Bytes that rank r sends: all chunks but r+1, then all chunks but r+2.

    Source: Patarasuk and Yuan 2009, with chunks of uneven size.
    """
    return itemsize * (
        2 * elements
        - chunk(elements, ranks, rank + 1)
        - chunk(elements, ranks, rank + 2)
    )


@formula
def ring_all_reduce_rounds(ranks: Ranks) -> int:
    """Rounds of messages: p-1 that reduce and p-1 that gather.

    Source: Patarasuk and Yuan 2009.
    """
    return 2 * (ranks - 1)


@formula
def ring_all_reduce_total(ranks: Ranks, elements: Count, itemsize: Positive) -> int:
    """Bytes that all ranks together send in one ring all-reduce.

    Source: Patarasuk and Yuan 2009; no all-reduce can send fewer.
    """
    return 2 * (ranks - 1) * elements * itemsize


@formula
def halving_doubling_core(ranks: Ranks, rank: Rank, elements: Count) -> int:
    """Elements that rank r of p, a power of two, sends; the last chunk takes the rest.

    Source: Rabenseifner 2004: all chunks but its own go when halving; doubling sends
    every window of 1, 2, 4, ... chunks around it, with the rest if it reaches the end.
    """
    rest = elements % ranks
    ends = floor_log2(ranks) - floor_log2(2 * (ranks - rank) - 1)
    return 2 * (ranks - 1) * (elements // ranks) + rest * (
        ends + (0 if rank == ranks - 1 else 1)
    )


@formula
def halving_doubling_bytes(
    ranks: Ranks, rank: Rank, elements: Count, itemsize: Positive
) -> int:
    """Bytes that rank r sends: its part in the power of two, and folded tensors.

    Source: Thakur et al. 2005: folded ranks send all, and get all back.
    """
    q = 2 ** floor_log2(ranks)
    return itemsize * (
        elements
        if rank >= q
        else halving_doubling_core(q, rank, elements)
        + (elements if rank + q < ranks else 0)
    )


@formula
def halving_doubling_rounds(ranks: Ranks) -> int:
    """Rounds of messages: lg p each way, and two for the ranks that were folded.

    Source: Thakur et al. 2005.
    """
    q = floor_log2(ranks)
    return 2 * q + (0 if 2**q == ranks else 2)


# Reduce-scatter and all-gather: shards go straight to their owners, or from them


@formula
def reduce_scatter_bytes(
    ranks: Ranks, rank: Rank, elements: Count, itemsize: Positive
) -> int:
    """Bytes that rank r sends in a reduce-scatter: all shards but its own.

    Source: Thakur et al. 2005, pairwise exchange, with shards of uneven size.
    """
    return itemsize * (elements - chunk(elements, ranks, rank))


@formula
def all_gather_bytes(
    ranks: Ranks, rank: Rank, elements: Count, itemsize: Positive
) -> int:
    """Bytes that rank r sends in an all-gather: its own shard, to all others.

    Source: the mirror image of a reduce-scatter, with shards of uneven size.
    """
    return itemsize * (ranks - 1) * chunk(elements, ranks, rank)


@formula
def reduce_scatter_shard(
    ranks: Ranks, rank: Rank, elements: Count, itemsize: Positive
) -> int:
    """Bytes of the sum that rank r holds between the halves: its shard.

    Source: torch.tensor_split: the first n mod p shards have one element more.
    """
    return itemsize * chunk(elements, ranks, rank)


@formula
def reduce_scatter_all_gather_rounds(ranks: Ranks) -> int:
    """Rounds of messages: p-1 in each half, one for every other rank.

    Source: Thakur et al. 2005, pairwise exchange.
    """
    return 2 * (ranks - 1)


# Recursive doubling: whole tensors, lg p times


@formula
def recursive_doubling_messages(ranks: Ranks, rank: Rank) -> int:
    """Messages that rank r sends: one per round, one to or from a folded rank.

    Source: Thakur et al. 2005, for a power of two; others are folded, as there.
    """
    q = 2 ** floor_log2(ranks)
    return 1 if rank >= q else floor_log2(ranks) + (1 if rank + q < ranks else 0)


@formula
def recursive_doubling_bytes(
    ranks: Ranks, rank: Rank, elements: Count, itemsize: Positive
) -> int:
    """Bytes that rank r sends: the whole tensor in every message.

    Source: Thakur et al. 2005: n lg p for a power of two.
    """
    return recursive_doubling_messages(ranks, rank) * elements * itemsize


@formula
def recursive_doubling_rounds(ranks: Ranks) -> int:
    """Rounds of messages: lg p, and two for the ranks that were folded.

    Source: Thakur et al. 2005.
    """
    q = floor_log2(ranks)
    return q + (0 if 2**q == ranks else 2)


# Tree all-reduce: without its highest bit, a rank's number is its parent's


@formula
def tree_children(ranks: Ranks, rank: Rank) -> int:
    """Children of rank r in a binomial tree: r + 2^k below p, beyond r's highest bit.

    Source: Thakur et al. 2005, binomial tree; lg 2m-1 rounded down is lg m rounded up.
    """
    return max(0, floor_log2(2 * (ranks - rank) - 1) - floor_log2(2 * rank + 1))


@formula
def tree_all_reduce_bytes(
    ranks: Ranks, rank: Rank, elements: Count, itemsize: Positive
) -> int:
    """Bytes that rank r sends: to each child, and to its parent unless it is the root.

    Source: Thakur et al. 2005: a reduce and a broadcast of whole tensors.
    """
    return (tree_children(ranks, rank) + (0 if rank == 0 else 1)) * elements * itemsize


@formula
def tree_all_reduce_total(ranks: Ranks, elements: Count, itemsize: Positive) -> int:
    """Bytes that all ranks together send: each edge carries the tensor up and down.

    Source: a tree of p ranks has p-1 edges; no all-reduce can send fewer bytes.
    """
    return 2 * (ranks - 1) * elements * itemsize


@formula
def tree_all_reduce_rounds(ranks: Ranks) -> int:
    """Rounds of messages: lg p, rounded up, to the root, and as many back.

    Source: Thakur et al. 2005; Langer et al. 2020, section 3.4.1, with p-1 workers.
    """
    return 2 * floor_log2(2 * ranks - 1)


# Double binary tree: half of the tensor up and down each of two heaps


@formula
def binary_tree_edges(ranks: Ranks, rank: Rank) -> int:
    """Edges at place r of a binary tree of p: to its children, and to its parent.

    Source: a heap: 2r+1 and 2r+2 are below r, if they are below p.
    """
    return min(2, max(0, ranks - 1 - 2 * rank)) + (0 if rank == 0 else 1)


@formula
def double_binary_tree_bytes(
    ranks: Ranks, rank: Rank, elements: Count, itemsize: Positive
) -> int:
    """Bytes that rank r sends: a half on each edge, in a tree and in its mirror image.

    Source: Sanders et al. 2009: inside one tree, a rank is a leaf of the other.
    """
    return itemsize * (
        -(-elements // 2) * binary_tree_edges(ranks, rank)
        + elements // 2 * binary_tree_edges(ranks, ranks - 1 - rank)
    )


@formula
def double_binary_tree_most(elements: Count, itemsize: Positive) -> int:
    """Bytes that no rank exceeds: three times its larger half, once the other.

    Source: Sanders et al. 2009: inside a tree up once and down twice, as a leaf once.
    """
    return itemsize * (3 * -(-elements // 2) + elements // 2)


@formula
def double_binary_tree_rounds(ranks: Ranks, pieces: Positive) -> int:
    """Rounds of messages: two in each of k + lg p - 1 steps, up and down again.

    Source: Sanders et al. 2009, at most 2 lg p + 2k for one direction. In a power of
    two, one rank alone is at the lowest level, and each direction has an idle round.
    """
    q = floor_log2(ranks)
    return (
        2 * (ranks - 1) * pieces
        if ranks < 3
        else 4 * (pieces + q - 1) - (2 if 2**q == ranks else 0)
    )


# Binomial broadcast: the tree of the tree all-reduce, counted from the root


@formula
def binomial_broadcast_bytes(
    ranks: Ranks, rank: Rank, root: Count, elements: Count, itemsize: Positive
) -> int:
    """Bytes that rank r sends: the tensor, to each of its children.

    Source: Thakur et al. 2005, binomial tree; the root has lg p children, rounded up.
    """
    return tree_children(ranks, (rank - root) % ranks) * elements * itemsize


@formula
def binomial_broadcast_received(
    ranks: Ranks, rank: Rank, root: Count, elements: Count, itemsize: Positive
) -> int:
    """Bytes that rank r receives: the tensor once, and the root nothing.

    Source: a tree: each rank but the root has one parent.
    """
    return (0 if rank == root % ranks else 1) * elements * itemsize


@formula
def binomial_broadcast_rounds(ranks: Ranks) -> int:
    """Rounds of messages: lg p, rounded up, as those who have the tensor double.

    Source: Thakur et al. 2005, binomial tree.
    """
    return ceil_log2(ranks)


# Scatter and all-gather: chunks are numbered by places, counted from the root


@formula
def chunks_before(elements: Count, ranks: Ranks, index: Count) -> int:
    """Elements of all chunks before chunk i, when n are cut into p chunks.

    Source: torch.tensor_split: the first n mod p chunks have one element more.
    """
    return index * (elements // ranks) + min(index, elements % ranks)


@formula
def binomial_scatter_elements(ranks: Ranks, rank: Rank, elements: Count) -> int:
    """Elements that place r sends in a binomial scatter: the chunks of all below it.

    Source: Thakur et al. 2005: below place r are as many as its lowest bit says, if
    that many places follow; below the root are all.
    """
    end = ranks if rank == 0 else min(ranks, rank + lowest_bit(rank))
    return chunks_before(elements, ranks, end) - chunks_before(
        elements, ranks, rank + 1
    )


@formula
def scatter_all_gather_broadcast_bytes(
    ranks: Ranks, rank: Rank, root: Count, elements: Count, itemsize: Positive
) -> int:
    """Bytes that rank r sends: its part of the scatter, then all chunks but the next.

    Source: Thakur et al. 2005: a binomial scatter and a ring all-gather, here with
    chunks of uneven size.
    """
    place = (rank - root) % ranks
    return itemsize * (
        binomial_scatter_elements(ranks, place, elements)
        + elements
        - chunk(elements, ranks, place + 1)
    )


@formula
def scatter_all_gather_broadcast_most(
    ranks: Ranks, elements: Count, itemsize: Positive
) -> int:
    """Bytes that the root, the busiest rank, sends: all chunks twice, but two once.

    Source: Thakur et al. 2005: 2(p-1)/p of the tensor, with chunks of uneven size.
    """
    return itemsize * (
        2 * elements - chunk(elements, ranks, 0) - chunk(elements, ranks, 1)
    )


@formula
def scatter_all_gather_broadcast_rounds(ranks: Ranks) -> int:
    """Rounds of messages: lg p, rounded up, for the scatter, and p-1 for the ring.

    Source: Thakur et al. 2005.
    """
    return ceil_log2(ranks) + ranks - 1


# Hierarchical all-reduce: rank r is number r mod g of its node of g ranks


@formula
def hierarchical_most_nodes(ranks: Ranks) -> int:
    """Most nodes that the ranks may be split into: no more than ranks per node.

    Source: derived: the more ranks a node has, the less each sends out of it.
    """
    return floor(ranks**0.5)


@formula
def hierarchical_fewest_nodes(ranks: Ranks) -> int:
    """Fewest nodes of a table as square as it can be: all of them for a power of two.

    Source: derived: of a power of two, half the factors make nodes, half make ranks.
    """
    q = floor_log2(ranks)
    return 2 ** (q // 2) if 2**q == ranks else 1


@formula
def hierarchical_inside(
    ranks: Ranks, rank: Rank, elements: Count, itemsize: Positive, node_size: Positive
) -> int:
    """Bytes that rank r sends inside its node: a ring all-reduce of the tensor.

    Source: Mikami et al. 2018: reduce-scatter and all-gather in a row.
    """
    return ring_all_reduce_bytes(node_size, rank % node_size, elements, itemsize)


@formula
def hierarchical_between(
    ranks: Ranks, rank: Rank, elements: Count, itemsize: Positive, node_size: Positive
) -> int:
    """Bytes that rank r sends to other nodes: a ring all-reduce of one chunk.

    Source: Mikami et al. 2018: the column sums what the row scattered.
    """
    return ring_all_reduce_bytes(
        -(-ranks // node_size),
        rank // node_size,
        chunk(elements, node_size, rank + 1),
        itemsize,
    )


@formula
def hierarchical_rounds(ranks: Ranks, node_size: Positive) -> int:
    """Rounds of messages: a ring of the node's ranks and a ring of the nodes.

    Source: Mikami et al. 2018.
    """
    return ring_all_reduce_rounds(node_size) + ring_all_reduce_rounds(
        -(-ranks // node_size)
    )


# All-to-all: rows and columns, both cut into p chunks


@formula
def all_to_all_bytes(
    ranks: Ranks, rank: Rank, rows: Count, columns: Count, itemsize: Positive
) -> int:
    """Bytes that rank r sends: its rows, without the columns that stay.

    Source: Thakur et al. 2005, with chunks of uneven size.
    """
    return itemsize * chunk(rows, ranks, rank) * (columns - chunk(columns, ranks, rank))


@formula
def all_to_all_rounds(ranks: Ranks) -> int:
    """Rounds of messages: one for every other rank.

    Source: Thakur et al. 2005.
    """
    return ranks - 1


# Bruck's all-to-all: block i moves i places, by powers of two


@formula
def blocks_with_bit(ranks: Ranks, power: Positive) -> int:
    """Blocks, numbered from 0 to p-1, whose number has the bit of this power of two.

    Source: arithmetic: of each two runs as long as the power, the second has it.
    """
    return ranks // (2 * power) * power + max(0, ranks % (2 * power) - power)


def _four_bits(p: int, q: int) -> int:
    return (
        0
        if p <= q
        else blocks_with_bit(p, q)
        + blocks_with_bit(p, 2 * q)
        + blocks_with_bit(p, 4 * q)
        + blocks_with_bit(p, 8 * q)
    )


def _sixteen_bits(p: int, q: int) -> int:
    return (
        0
        if p <= q
        else _four_bits(p, q)
        + _four_bits(p, 16 * q)
        + _four_bits(p, 256 * q)
        + _four_bits(p, 4096 * q)
    )


@formula
def bruck_all_to_all_hops(ranks: Ranks) -> int:
    """Blocks that a rank sends in all rounds: block i once for each one in binary i.

    Source: Bruck et al. 1997, p lg p / 2 for powers of two, here for any p of at most
    32 bits.
    """
    return (
        _sixteen_bits(ranks, 1)
        if ranks <= 65536
        else _sixteen_bits(ranks, 1) + _sixteen_bits(ranks, 65536)
    )


@formula
def bruck_all_to_all_bytes(ranks: Ranks, block: Count, itemsize: Positive) -> int:
    """Bytes that each rank sends: all blocks of every round.

    Source: Bruck et al. 1997: about half of the blocks move in each round.
    """
    return bruck_all_to_all_hops(ranks) * block * itemsize


@formula
def bruck_all_to_all_rounds(ranks: Ranks) -> int:
    """Rounds of messages: lg p, rounded up, one for each bit of a block's number.

    Source: Bruck et al. 1997.
    """
    return ceil_log2(ranks)


# Two-level all-to-all: inside nodes of g ranks, then between them


@formula
def two_level_all_to_all_inside(
    ranks: Ranks, node_size: Positive, block: Count, itemsize: Positive
) -> int:
    """Bytes that each rank sends inside its node: to each place, a block per node.

    Source: Rajbhandari et al. 2022, hierarchical all-to-all; Hwang et al. 2023, 2DH.
    """
    return (node_size - 1) * -(-ranks // node_size) * block * itemsize


@formula
def two_level_all_to_all_between(
    ranks: Ranks, node_size: Positive, block: Count, itemsize: Positive
) -> int:
    """Bytes that each rank sends to other nodes: to each, a block from every place.

    Source: Rajbhandari et al. 2022; as many as a direct exchange sends there.
    """
    return (-(-ranks // node_size) - 1) * node_size * block * itemsize


@formula
def two_level_all_to_all_messages(ranks: Ranks, node_size: Positive) -> int:
    """Messages that each rank sends to other nodes: one to each.

    Source: Hwang et al. 2023, 2DH; a direct exchange sends one to each rank of them.
    """
    return -(-ranks // node_size) - 1


@formula
def two_level_all_to_all_rounds(ranks: Ranks, node_size: Positive) -> int:
    """Rounds of messages: one for every other rank of the node and every other node.

    Source: Rajbhandari et al. 2022: g + p/g hops instead of p.
    """
    return node_size - 1 + -(-ranks // node_size) - 1


# Invariant reduction: rank r holds a run of neighboring leaves of a binary tree


def _sum_sent(a: int, b: int, q: int) -> int:
    return 1 if -(-a // q) % 2 == 1 and -(-a // q) * q < b else 0


def _four_sums_sent(a: int, b: int, q: int) -> int:
    return (
        0
        if b <= q
        else _sum_sent(a, b, q)
        + _sum_sent(a, b, 2 * q)
        + _sum_sent(a, b, 4 * q)
        + _sum_sent(a, b, 8 * q)
    )


def _sixteen_sums_sent(a: int, b: int, q: int) -> int:
    return (
        0
        if b <= q
        else _four_sums_sent(a, b, q)
        + _four_sums_sent(a, b, 16 * q)
        + _four_sums_sent(a, b, 256 * q)
        + _four_sums_sent(a, b, 4096 * q)
    )


@formula
def invariant_reduction_sums(ranks: Ranks, rank: Rank, leaves: Positive) -> int:
    """Sums that rank r, with the leaves from a up to b, sends to ranks on its left.

    Source: derived: a run of 2^k leaves that begins at an odd multiple of 2^k is added
    to what is 2^k before it. Of each size, one at most begins here and belongs there;
    there are at most 32 sizes.
    """
    a = chunks_before(leaves, ranks, rank)
    b = chunks_before(leaves, ranks, rank + 1)
    return (
        _sixteen_sums_sent(a, b, 1)
        if leaves <= 65536
        else _sixteen_sums_sent(a, b, 1) + _sixteen_sums_sent(a, b, 65536)
    )


@formula
def invariant_reduction_bytes(
    ranks: Ranks, rank: Rank, leaves: Positive, elements: Count, itemsize: Positive
) -> int:
    """Bytes that rank r sends: sums up the tree, then the result down a broadcast.

    Source: derived: the tree of Zhang et al. 2025, its leaves dealt out in runs.
    """
    return (
        (invariant_reduction_sums(ranks, rank, leaves) + tree_children(ranks, rank))
        * elements
        * itemsize
    )


@formula
def invariant_reduction_most_rounds(ranks: Ranks, leaves: Positive) -> int:
    """Most rounds of messages: one for each level of the tree, and the broadcast.

    Source: derived: at each level, a rank sends one sum at most and receives one.
    """
    return ceil_log2(leaves) + ceil_log2(ranks)


@formula
def invariant_reduction_fewest_rounds(ranks: Ranks, leaves: Positive) -> int:
    """Fewest rounds of messages: lg p up and lg p down, as in any tree.

    Source: derived: each round halves the number of sums at best; where p is a power of
    two that divides the leaves, it does.
    """
    return ceil_log2(min(ranks, leaves)) + ceil_log2(ranks)


@formula
def reordered_elements_most(ranks: Ranks, elements: Count) -> int:
    """Most elements whose bits a plain all-reduce changes: all, and on one rank none.

    Source: one rank alone adds in the order of one rank alone.
    """
    return 0 if ranks == 1 else elements


@formula
def reordered_elements_fewest(ranks: Ranks, elements: Count) -> int:
    """Fewest elements whose bits a plain all-reduce changes: a tenth is certain.

    Source: measured: of sums of 8 or more numbers in two orders, over a third differ.
    """
    return 0 if ranks == 1 else elements // 10
