"""Every formula of the atlas, once: plain functions of numbers.

The number in a test, the LaTeX of a page and the JavaScript of a calculator all
come from the source below (`atlas.oracle.emit` says which Python it may use).
The symbols mean the same everywhere:

    p ranks      r this rank    n elements     b bytes of one element
    t steps      u units        m micro-batches   l layers

Integers in, integers out, exactly: sizes are divided with `//` alone.
"""

# Range checks. They return nothing; JavaScript has them too, with the same words.


def _ranks(p: int) -> None:
    if not p >= 1:
        raise ValueError(f"p = {p}: a group has at least 1 rank")


def _rank(p: int, r: int) -> None:
    _ranks(p)
    if not 0 <= r < p:
        raise ValueError(f"r = {r}: with p = {p} the ranks are 0 to {p - 1}")


def _count(name: str, value: float) -> None:
    if not value >= 0:
        raise ValueError(f"{name} = {value}: must be 0 or more")


def _positive(name: str, value: float) -> None:
    if not value >= 1:
        raise ValueError(f"{name} = {value}: must be 1 or more")


# Ring all-reduce


def chunk(n: int, p: int, i: int) -> int:
    """Elements of chunk i, modulo p, when n elements are cut into p chunks.

    Source: torch.tensor_split: the first n mod p chunks have one element more.
    """
    _count("n", n)
    _ranks(p)
    return -(-(n - i % p) // p)


def ring_all_reduce_bytes(p: int, r: int, n: int, b: int) -> int:
    """Bytes that rank r sends: all chunks but r+1, then all chunks but r+2.

    Source: Patarasuk and Yuan 2009, with chunks of uneven size.
    """
    _rank(p, r)
    _count("n", n)
    _positive("b", b)
    return b * (2 * n - chunk(n, p, r + 1) - chunk(n, p, r + 2))


def ring_all_reduce_rounds(p: int) -> int:
    """Rounds of messages: p-1 that reduce and p-1 that gather.

    Source: Patarasuk and Yuan 2009.
    """
    _ranks(p)
    return 2 * (p - 1)


def ring_all_reduce_total(p: int, n: int, b: int) -> int:
    """Bytes that all ranks together send in one ring all-reduce.

    Source: Patarasuk and Yuan 2009; no all-reduce can send fewer.
    """
    _ranks(p)
    _count("n", n)
    _positive("b", b)
    return 2 * (p - 1) * n * b


# Synchronous SGD, gradients in buckets


def bucketed_calls(n: int, c: int, t: int) -> int:
    """All-reduces of t steps when n gradient elements go in buckets of c.

    Source: Li et al. 2020, PyTorch Distributed.
    """
    _count("n", n)
    _positive("c", c)
    _count("t", t)
    return t * -(-n // c)


def bucketed_payload(n: int, b: int, t: int) -> int:
    """Bytes that t steps hand to all-reduce, however the buckets are cut.

    Source: Li et al. 2020, PyTorch Distributed.
    """
    _count("n", n)
    _positive("b", b)
    _count("t", t)
    return t * n * b


# Stale synchronous parallel: rank 0 is the server, the others are workers


def ssp_gap(s: int) -> int:
    """Clocks by which a worker that starts one may lead the slowest finished one.

    Source: Ho et al. 2013.
    """
    _count("s", s)
    return s


def ssp_sees() -> int:
    """Updates of clocks up to c-s-1, and own ones, that a read at clock c lacks.

    Source: Ho et al. 2013.
    """
    return 0


def ssp_updates(p: int, r: int, t: int) -> int:
    """Updates in t clocks: a worker pushes t, the server applies every worker's.

    Source: Ho et al. 2013.
    """
    _rank(p, r)
    _count("t", t)
    return (p - 1) * t if r == 0 else t


def ssp_waits(p: int, r: int, t: int, s: int, k: int) -> int:
    """Reads that must wait in t clocks when rank 1 is k times slower than the rest.

    Source: derived from the rule of Ho et al. 2013: a fast worker is at
    clock c after c seconds and needs k(c-s); the server's value is the workers' sum.
    """
    _rank(p, r)
    _count("t", t)
    _count("s", s)
    _positive("k", k)
    return (
        0
        if k == 1 or r == 1
        else max(0, t - 1 - k * s // (k - 1))
        if r > 1
        else max(0, p - 2) * max(0, t - 1 - k * s // (k - 1))
    )


def ssp_bytes(p: int, r: int, n: int, b: int, t: int) -> int:
    """Bytes sent in t clocks: a worker pushes n elements, the server answers reads.

    Source: Ho et al. 2013, without its cache: every read is answered.
    """
    _rank(p, r)
    _count("n", n)
    _positive("b", b)
    _count("t", t)
    return (p - 1) * t * n * b if r == 0 else t * n * b


# Pipelines: stage r is rank r


def one_f_one_b_in_flight(p: int, r: int, m: int) -> int:
    """Micro-batches whose activations stage r holds at once, at most.

    Source: Narayanan et al. 2021, section 2.2.1.
    """
    _rank(p, r)
    _positive("m", m)
    return min(m, p - r)


def pipeline_bytes(p: int, r: int, m: int, a: int) -> int:
    """Bytes stage r sends: m activations of a bytes onward, m gradients back.

    Source: Huang et al. 2019 (GPipe), section 2.3: only the cut activations travel.
    """
    _rank(p, r)
    _positive("m", m)
    _count("a", a)
    return 0 if p == 1 else m * a if r == 0 or r == p - 1 else 2 * m * a


def pipeline_makespan(p: int, m: int, f: float, b: float) -> float:
    """Seconds of one flush: m forwards of f and backwards of b through p stages.

    Source: Huang et al. 2019 (GPipe), section 2.3; Narayanan et al. 2021, 2.2.1.
    """
    _ranks(p)
    _positive("m", m)
    _count("f", f)
    _count("b", b)
    return (m + p - 1) * (f + b)


def pipeline_idle(p: int, f: float, b: float) -> float:
    """Seconds that each stage is idle in one flush, whatever the micro-batches.

    Source: Narayanan et al. 2021, section 2.2.1.
    """
    _ranks(p)
    _count("f", f)
    _count("b", b)
    return (p - 1) * (f + b)


def pipeline_bubble(p: int, m: int) -> float:
    """Idle share of the whole flush (the ratio to the useful time is (p-1)/m).

    Source: Huang et al. 2019 (GPipe), section 2.3.
    """
    _ranks(p)
    _positive("m", m)
    return (p - 1) / (m + p - 1)


# ZeRO stage 3: u units of n elements, each padded to a multiple of p


def zero_3_shard(p: int, n: int) -> int:
    """Elements of a unit's shard, the same on every rank: the last ones are padding.

    Source: Rajbhandari et al. 2020, section 5.3; Zhao et al. 2023.
    """
    _ranks(p)
    _count("n", n)
    return -(-n // p)


def zero_3_state_bytes(p: int, n: int, u: int, b: int) -> int:
    """Bytes a rank keeps: shards of parameter, gradient and Adam's two moments.

    Source: Rajbhandari et al. 2020, section 5.3, all four in one precision.
    """
    _count("u", u)
    _positive("b", b)
    return 4 * b * u * zero_3_shard(p, n)


def zero_3_gathered_bytes(p: int, n: int, b: int) -> int:
    """Bytes of one unit gathered whole, its padding included.

    Source: Zhao et al. 2023.
    """
    _positive("b", b)
    return p * zero_3_shard(p, n) * b


def zero_3_calls(u: int, t: int) -> int:
    """Collectives of t steps: a unit is gathered twice and its gradient scattered.

    Source: Rajbhandari et al. 2020, section 7.2.2.
    """
    _count("u", u)
    _count("t", t)
    return 3 * u * t


def zero_3_volume(p: int, n: int, u: int, b: int, t: int) -> int:
    """Bytes a rank sends in t steps when the collectives are rings.

    Source: Rajbhandari et al. 2020, section 7.2.2: 3 psi, of which (p-1)/p travels.
    """
    _count("u", u)
    _positive("b", b)
    _count("t", t)
    return 3 * t * u * (p - 1) * zero_3_shard(p, n) * b


# Tensor parallelism, a column split then a row split


def tensor_parallel_calls(l: int) -> int:  # noqa: E741 (the symbol of the page)
    """All-reduces each way through l layers: one for attention, one for the MLP.

    Source: Shoeybi et al. 2019, section 3.
    """
    _count("l", l)
    return 2 * l


def tensor_parallel_payload(
    l: int,  # noqa: E741 (the symbol of the page)
    tokens: int,
    h: int,
    b: int,
) -> int:
    """Bytes handed to all-reduce, forward and backward, by l layers of width h.

    Source: Shoeybi et al. 2019, section 3.
    """
    _count("l", l)
    _count("tokens", tokens)
    _positive("h", h)
    _positive("b", b)
    return 4 * l * tokens * h * b


def tensor_parallel_limit(heads: int) -> int:
    """Ranks at most: attention is cut between heads, never inside one.

    Source: Shoeybi et al. 2019, section 3.
    """
    _positive("heads", heads)
    return heads


# Top-k sparsification


def top_k_payload(k: int, b: int, t: int) -> int:
    """Bytes a rank hands over in t steps: k values and their int32 indices.

    Source: Lin et al. 2018, section 3.
    """
    _count("k", k)
    _positive("b", b)
    _count("t", t)
    return t * k * (b + 4)


def top_k_calls(t: int) -> int:
    """All-gathers of t steps: one of values, one of indices.

    Source: Renggli et al. 2019 (SparCML): sums of sparse vectors go by all-gather.
    """
    _count("t", t)
    return 2 * t


def top_k_gathered(p: int, k: int, b: int, t: int) -> int:
    """Bytes a rank sends in t steps when the all-gathers are rings.

    Source: Thakur et al. 2005, section 4.1: p-1 rounds, one contribution in each.
    """
    _ranks(p)
    return (p - 1) * top_k_payload(k, b, t)


# Time, by latency and bandwidth: n bytes, alpha seconds a message, beta a byte


def p2p_seconds(n: float, alpha: float, beta: float) -> float:
    """Seconds of one message of n bytes.

    Source: Thakur et al. 2005.
    """
    _count("n", n)
    _count("alpha", alpha)
    _count("beta", beta)
    return alpha + n * beta


def all_gather_seconds(p: int, n: float, alpha: float, beta: float) -> float:
    """Seconds of a ring all-gather whose result has n bytes.

    Source: Thakur et al. 2005, section 4.1.
    """
    _ranks(p)
    _count("n", n)
    _count("alpha", alpha)
    _count("beta", beta)
    return (p - 1) * alpha + (p - 1) / p * n * beta


def all_reduce_seconds(p: int, n: float, alpha: float, beta: float) -> float:
    """Seconds of a ring all-reduce of n bytes, the additions left out.

    Source: Thakur et al. 2005, section 4; Kahira et al. 2021, table III.
    """
    _ranks(p)
    _count("n", n)
    _count("alpha", alpha)
    _count("beta", beta)
    return 2 * (p - 1) * alpha + 2 * (p - 1) / p * n * beta


# Periodic averaging: t steps, and a meeting after every h of them and at the end


def periodic_rounds(t: int, h: int) -> int:
    """Meetings in t steps: one after every h, and one for what is left over.

    Source: Stich 2019, with an average after the last step.
    """
    _count("t", t)
    _positive("h", h)
    return -(-t // h)


def periodic_payload(n: int, b: int, t: int, h: int) -> int:
    """Bytes that t steps hand to all-reduce: all n parameters at every meeting.

    Source: Stich 2019.
    """
    _count("n", n)
    _positive("b", b)
    return periodic_rounds(t, h) * n * b


# GPipe: its time and its bytes are those of every pipeline with a flush


def gpipe_in_flight(m: int) -> int:
    """Micro-batches whose activations every stage holds when backward begins.

    Source: Huang et al. 2019 (GPipe), section 2.3.
    """
    _positive("m", m)
    return m


# Halving and doubling: p ranks, of which a power of two takes part in full


def _log_below_16(p: int) -> int:
    return 0 if p < 2 else 1 if p < 4 else 2 if p < 8 else 3


def _log_below_256(p: int) -> int:
    return _log_below_16(p) if p < 16 else 4 + _log_below_16(p // 16)


def _log_below_65536(p: int) -> int:
    return _log_below_256(p) if p < 256 else 8 + _log_below_256(p // 256)


def _log_below_2_to_32(p: int) -> int:
    return _log_below_65536(p) if p < 65536 else 16 + _log_below_65536(p // 65536)


def floor_log2(p: int) -> int:
    """Whole part of the binary logarithm of p.

    Source: arithmetic: the place of the highest bit of p, found by bisection.
    """
    _ranks(p)
    return _log_below_2_to_32(p) if p < 2**32 else 32 + _log_below_2_to_32(p // 2**32)


def halving_doubling_core(p: int, r: int, n: int) -> int:
    """Elements that rank r of p, a power of two, sends; the last chunk takes the rest.

    Source: Rabenseifner 2004: all chunks but its own go when halving; doubling sends
    every window of 1, 2, 4, ... chunks around it, with the rest if it reaches the end.
    """
    _rank(p, r)
    _count("n", n)
    rest = n % p
    ends = floor_log2(p) - floor_log2(2 * (p - r) - 1)
    return 2 * (p - 1) * (n // p) + rest * (ends + (0 if r == p - 1 else 1))


def halving_doubling_bytes(p: int, r: int, n: int, b: int) -> int:
    """Bytes that rank r sends: its part in the power of two, and folded tensors.

    Source: Thakur et al. 2005: folded ranks send all, and get all back.
    """
    _rank(p, r)
    _count("n", n)
    _positive("b", b)
    q = 2 ** floor_log2(p)
    return b * (
        n if r >= q else halving_doubling_core(q, r, n) + (n if r + q < p else 0)
    )


def halving_doubling_rounds(p: int) -> int:
    """Rounds of messages: lg p each way, and two for the ranks that were folded.

    Source: Thakur et al. 2005.
    """
    _ranks(p)
    q = floor_log2(p)
    return 2 * q + (0 if 2**q == p else 2)


# Downpour: rank 0 serves for t seconds; a worker takes 1 a step, rank 1 takes k


def downpour_staleness(p: int) -> int:
    """Versions between a gradient's read and its push: every other worker's one.

    Source: derived from Dean et al. 2012, section 4.1: equal workers push in turn.
    """
    _ranks(p)
    return max(0, p - 2)


def downpour_straggler_staleness(p: int, k: int) -> int:
    """Age of a gradient that took k times as long: the others push k times each.

    Source: derived from Dean et al. 2012, section 4.1.
    """
    _positive("k", k)
    return k * downpour_staleness(p)


def downpour_updates(p: int, r: int, t: int, k: int) -> int:
    """Updates in t seconds: rank 1 makes one in k, the server applies all.

    Source: derived from Dean et al. 2012, section 4.1: nobody waits.
    """
    _rank(p, r)
    _count("t", t)
    _positive("k", k)
    return t // k if r == 1 else t if r > 1 else 0 if p == 1 else (p - 2) * t + t // k


def downpour_bytes(p: int, r: int, n: int, b: int, t: int, k: int) -> int:
    """Bytes sent in t seconds: a gradient for every update, and weights before it.

    Source: Dean et al. 2012, section 4.1, fetching and pushing at every step.
    """
    _count("n", n)
    _positive("b", b)
    return downpour_updates(p, r, t, k) * n * b


def downpour_makespan(p: int, t: int, k: int) -> int:
    """Seconds until the last of the updates that fit into t: nobody waits.

    Source: derived from Dean et al. 2012, section 4.1.
    """
    _ranks(p)
    _count("t", t)
    _positive("k", k)
    return t if p > 2 else 0 if p == 1 else t // k * k


# Push and pull: rank 0 is the server, the others are workers


def push_pull_bytes(p: int, r: int, n: int, b: int, t: int) -> int:
    """Bytes a rank sends in t steps, and receives too: a tensor for each peer.

    Source: Li et al. 2014: a worker has one peer, the server p-1.
    """
    _rank(p, r)
    _count("n", n)
    _positive("b", b)
    _count("t", t)
    return t * n * b * (p - 1 if r == 0 else min(1, p - 1))


def push_pull_rounds(p: int, t: int) -> int:
    """Rounds of t steps when the server sends one message and takes one at a time.

    Source: derived: p-1 pushes and p-1 pulls queue; a worker that has pulled early
    pushes again while the others still wait, so each further step costs only p.
    """
    _ranks(p)
    _count("t", t)
    return 0 if p == 1 or t == 0 else t * p + p - 2


# Hierarchical all-reduce: nodes of c ranks; rank r is number r mod c of its node


def hierarchical_inside(p: int, r: int, n: int, b: int, c: int) -> int:
    """Bytes that rank r sends inside its node: a ring all-reduce of the tensor.

    Source: Mikami et al. 2018: reduce-scatter and all-gather in a row.
    """
    _rank(p, r)
    _count("n", n)
    _positive("b", b)
    _positive("c", c)
    return ring_all_reduce_bytes(c, r % c, n, b)


def hierarchical_between(p: int, r: int, n: int, b: int, c: int) -> int:
    """Bytes that rank r sends to other nodes: a ring all-reduce of one chunk.

    Source: Mikami et al. 2018: the column sums what the row scattered.
    """
    _rank(p, r)
    _count("n", n)
    _positive("b", b)
    _positive("c", c)
    return ring_all_reduce_bytes(-(-p // c), r // c, chunk(n, c, r + 1), b)


def hierarchical_rounds(p: int, c: int) -> int:
    """Rounds of messages: a ring of the node's ranks and a ring of the nodes.

    Source: Mikami et al. 2018.
    """
    _ranks(p)
    _positive("c", c)
    return ring_all_reduce_rounds(c) + ring_all_reduce_rounds(-(-p // c))


# All-to-all: n rows and m columns, both cut into p chunks


def all_to_all_bytes(p: int, r: int, n: int, m: int, b: int) -> int:
    """Bytes that rank r sends: its rows, without the columns that stay.

    Source: Thakur et al. 2005, with chunks of uneven size.
    """
    _rank(p, r)
    _count("n", n)
    _count("m", m)
    _positive("b", b)
    return b * chunk(n, p, r) * (m - chunk(m, p, r))


def all_to_all_rounds(p: int) -> int:
    """Rounds of messages: one for every other rank.

    Source: Thakur et al. 2005.
    """
    _ranks(p)
    return p - 1


# Mixing on a ring: a rank takes the mean of its own and its neighbours' n elements


def ring_mixing_bytes(p: int, n: int, b: int, t: int) -> int:
    """Bytes a rank sends in t steps: its weights to each neighbour, however many ranks.

    Source: Lian et al. 2017: two neighbours, of two ranks one.
    """
    _ranks(p)
    _count("n", n)
    _positive("b", b)
    _count("t", t)
    return min(2, p - 1) * t * n * b


def ring_mixing_halved(p: int) -> float:
    """Rounds of mixing, at most, until the ranks are half as far from their mean.

    Source: derived: the eigenvalue 1 - 4/3 sin(pi/p)^2 is at most 1 - 16/(3 p^2),
    and ln 2 * 3/16 is less than 1/7; the last round may be a part of one.
    """
    _ranks(p)
    return p * p / 7 + 1


# Data parallelism by hand: n elements learn, z are frozen, e are ready last


def ddp_calls(n: int, c: int, t: int) -> int:
    """All-reduces of t steps: the token count, and n elements in buckets of c.

    Source: Li et al. 2020, PyTorch Distributed.
    """
    _count("t", t)
    return t + bucketed_calls(n, c, t)


def ddp_payload(n: int, b: int, t: int) -> int:
    """Bytes that t steps hand to all-reduce: n gradients and an 8-byte count.

    Source: Li et al. 2020, PyTorch Distributed: not per micro-batch.
    """
    _count("t", t)
    return 8 * t + bucketed_payload(n, b, t)


def ddp_early(n: int, e: int, c: int, t: int) -> int:
    """All-reduces of t steps that start before the last e elements are ready.

    Source: Li et al. 2020, PyTorch Distributed.
    """
    _count("n", n)
    _count("e", e)
    _positive("c", c)
    _count("t", t)
    return t * (max(0, n - e) // c)


def ddp_state_bytes(n: int, z: int, b: int) -> int:
    """Bytes every rank keeps: n parameters with gradients, z without.

    Source: Rajbhandari et al. 2020, section 3.1, with no optimizer state.
    """
    _count("n", n)
    _count("z", z)
    _positive("b", b)
    return b * (2 * n + z)


# Weight stashing: a pipeline of p stages that never empties


def stashing_staleness(p: int, r: int) -> int:
    """Updates of stage r between a batch's forward and its backward.

    Source: Narayanan et al. 2019 (PipeDream), section 3.3, stages counted from 0.
    """
    _rank(p, r)
    return p - 1 - r


def stashing_versions(p: int, r: int) -> int:
    """Versions of its weights that stage r holds at once, the newest included.

    Source: Narayanan et al. 2019 (PipeDream), section 3.3, stages counted from 0.
    """
    _rank(p, r)
    return p - r


# 1-bit SGD: n entries, a sign for each, two means of b bytes


def one_bit_payload(n: int, b: int, t: int) -> int:
    """Bytes a rank hands over in t steps: n signs, eight to a byte, and two means.

    Source: Seide et al. 2014, with one pair of means.
    """
    _count("n", n)
    _positive("b", b)
    _count("t", t)
    return t * (-(-n // 8) + 2 * b)


def one_bit_calls(t: int) -> int:
    """All-gathers of t steps: one of signs, one of means.

    Source: Seide et al. 2014: sums of signs do not fit into a bit.
    """
    _count("t", t)
    return 2 * t


# Halo exchange: an image of h rows with a elements each, a kernel of k x k


def halo_bytes(p: int, r: int, k: int, a: int, b: int) -> int:
    """Bytes that rank r sends: k // 2 rows to each neighbour it has.

    Source: Dryden et al. 2019, on halo exchange; Kahira et al. 2021.
    """
    _rank(p, r)
    _positive("k", k)
    _count("a", a)
    _positive("b", b)
    return (min(r, 1) + min(p - 1 - r, 1)) * (k // 2) * a * b


def halo_rounds(p: int) -> int:
    """Rounds of messages: up and down, where there are ranks on both sides.

    Source: Dryden et al. 2019, on halo exchange.
    """
    _ranks(p)
    return min(2, p - 1)


def halo_limit(h: int, k: int) -> int:
    """Ranks at most: each part of the h rows is at least as high as the halo.

    Source: derived: h // p, the thinnest part, must be k // 2 rows or more.
    """
    _positive("h", h)
    _positive("k", k)
    return h // max(1, k // 2)


# Gossip: t sweeps over the shifts 1, 2, 4, ... below p


def gossip_messages(p: int, t: int) -> int:
    """Messages a rank sends in t sweeps: one in each of ceil(lg p) steps.

    Source: Daily et al. 2018, on rotating partners: shifts double, below p.
    """
    _ranks(p)
    _count("t", t)
    return t * floor_log2(2 * p - 1)


def gossip_bytes(p: int, n: int, b: int, t: int) -> int:
    """Bytes a rank sends in t sweeps: a whole tensor in each step.

    Source: Daily et al. 2018, on rotating partners.
    """
    _ranks(p)
    _count("n", n)
    _positive("b", b)
    _count("t", t)
    return n * b * gossip_messages(p, t)


def gossip_disagreement(p: int, t: int) -> float:
    """Share of the distance from the mean that is left after t sweeps, at most.

    Source: derived: of 2^S shares, S = ceil(lg p), 2^S - p ranks hold two; less the
    mean, that circulant's norm is at most the smaller of the two groups over 2^S.
    """
    _ranks(p)
    _count("t", t)
    s = 2 ** floor_log2(2 * p - 1)
    return (min(s - p, 2 * p - s) / s) ** t


# QSGD: n entries of one byte, a norm of b bytes for each c of them, k levels


def qsgd_payload(n: int, b: int, t: int, c: int) -> int:
    """Bytes a rank hands over in t steps: a level for each entry, a norm a bucket.

    Source: Alistarh et al. 2017, section 3.1, with whole bytes for Elias codes.
    """
    _count("n", n)
    _positive("b", b)
    _count("t", t)
    _positive("c", c)
    return t * (n + b * -(-n // c))


def qsgd_calls(t: int) -> int:
    """All-gathers of t steps: one of levels, one of norms.

    Source: Alistarh et al. 2017, algorithm 1: every rank decodes every gradient.
    """
    _count("t", t)
    return 2 * t


def qsgd_variance(c: int, k: int) -> float:
    """Expected squared error of a draw, at most, as a share of the squared norm.

    Source: Alistarh et al. 2017, lemma 3.1.
    """
    _positive("c", c)
    _positive("k", k)
    return min(c / k**2, c**0.5 / k)


# DiLoCo: its rounds and payload are those of periodic averaging


def diloco_outer_bytes(n: int, b: int) -> int:
    """Bytes of the outer optimizer: where the period began, and the momentum.

    Source: Douillard et al. 2023, algorithm 1.
    """
    _count("n", n)
    _positive("b", b)
    return 2 * n * b


# Local parallelism: p layers in c chunks, m batches, a bytes of activations each


def greedy_bytes(p: int, r: int, m: int, a: int) -> int:
    """Bytes rank r sends: activations onward, and nothing back.

    Source: Laskin et al. 2020.
    """
    _rank(p, r)
    _positive("m", m)
    _count("a", a)
    return 0 if r == p - 1 else m * a


def chunked_backward_bytes(p: int, r: int, c: int, m: int, a: int) -> int:
    """Bytes of gradients rank r sends back: none where a chunk begins.

    Source: Laskin et al. 2020.
    """
    _rank(p, r)
    _positive("c", c)
    _positive("m", m)
    _count("a", a)
    return 0 if r == 0 or r * c // p > (r - 1) * c // p else m * a


def greedy_makespan(p: int, m: int, f: float, b: float) -> float:
    """Seconds of m batches: a layer waits for the forwards below it, once.

    Source: derived from Laskin et al. 2020: no layer waits for a
    backward but its own.
    """
    _ranks(p)
    _positive("m", m)
    _count("f", f)
    _count("b", b)
    return m * (f + b) + (p - 1) * f


# Tensor fusion: u tensors of n elements, a buffer of c


def fusion_calls(u: int, n: int, c: int) -> int:
    """All-reduces when as many whole tensors as fit share a buffer, at least one.

    Source: Sergeev and Del Balso 2018, on tensor fusion.
    """
    _count("u", u)
    _count("n", n)
    _positive("c", c)
    return -(-u // max(1, c // max(1, n)))


def fusion_saved(u: int, n: int, c: int) -> int:
    """All-reduces that fusion saves, and with each its latency.

    Source: derived: u calls one by one, less those that remain.
    """
    _count("u", u)
    _count("n", n)
    _positive("c", c)
    return u - fusion_calls(u, n, c)


def fusion_payload(u: int, n: int, b: int) -> int:
    """Bytes handed to all-reduce, fused or not.

    Source: Sergeev and Del Balso 2018, on tensor fusion.
    """
    _count("u", u)
    _count("n", n)
    _positive("b", b)
    return u * n * b


def fusion_saved_seconds(p: int, u: int, n: int, c: int, alpha: float) -> float:
    """Seconds that fusion saves when each round of a ring all-reduce costs alpha.

    Source: derived: 2(p-1) rounds for every call that is not made.
    """
    _ranks(p)
    _count("u", u)
    _count("n", n)
    _positive("c", c)
    _count("alpha", alpha)
    return ring_all_reduce_rounds(p) * fusion_saved(u, n, c) * alpha


# Wait-free backpropagation: u layers


def wait_free_calls(u: int) -> int:
    """All-reduces of one backward pass: one for each layer.

    Source: Zhang et al. 2017.
    """
    _count("u", u)
    return u


def wait_free_early(u: int) -> int:
    """All-reduces that begin before backward ends: of all layers but the last.

    Source: derived from Zhang et al. 2017.
    """
    _count("u", u)
    return max(0, u - 1)


# All-reduce in shared memory: a row of n elements for each rank, one for the result


def shared_memory_sent() -> int:
    """Bytes of tensors that pass messages or collectives: none.

    Source: Jain et al. 2018: data stays in the mapping.
    """
    return 0


def shared_memory_barriers() -> int:
    """Barriers: after all have written, and after all have summed.

    Source: Jain et al. 2018.
    """
    return 2


def shared_memory_mapped(p: int, n: int, b: int) -> int:
    """Bytes of the mapping that all ranks of the host share.

    Source: Jain et al. 2018, with one buffer for the whole tensor.
    """
    _ranks(p)
    _count("n", n)
    _positive("b", b)
    return (p + 1) * n * b


# PowerSGD: l matrices whose heights and widths add up to s, v entries of vectors


def powersgd_payload(k: int, s: int, v: int, b: int, t: int) -> int:
    """Bytes that t steps hand to all-reduce: k(n + m) of each matrix, and vectors.

    Source: Vogels et al. 2019, algorithm 1; vectors go uncompressed.
    """
    _positive("k", k)
    _count("s", s)
    _count("v", v)
    _positive("b", b)
    _count("t", t)
    return t * b * (k * s + v)


def powersgd_calls(l: int, t: int) -> int:  # noqa: E741 (the symbol of the page)
    """All-reduces of t steps: two factors of each matrix, and all vectors at once.

    Source: Vogels et al. 2019, algorithm 1.
    """
    _count("l", l)
    _count("t", t)
    return t * (2 * l + 1)


# Zero-copy transfer: a tensor of n elements, s bytes long when pickled


def zero_copy_bytes(n: int, b: int) -> int:
    """Bytes of a tensor that is sent as it lies.

    Source: Xue et al. 2019: the receiver knows everything but the numbers.
    """
    _count("n", n)
    _positive("b", b)
    return n * b


def zero_copy_messages() -> int:
    """Messages for a tensor whose size is known: one.

    Source: Xue et al. 2019.
    """
    return 1


def pickled_bytes(s: int) -> int:
    """Bytes of an object sent as its length, 8 bytes, and its pickle.

    Source: torch.distributed.send_object_list, which does the same.
    """
    _count("s", s)
    return s + 8


def pickled_messages() -> int:
    """Messages for an object whose size is not known: its length, its pickle.

    Source: torch.distributed.send_object_list, which does the same.
    """
    return 2


# Sufficient factors: k samples a rank, each a column of m and a row of n entries


def sufficient_factor_payload(k: int, m: int, n: int, b: int) -> int:
    """Bytes a rank hands to the all-gather: the factors of its k samples.

    Source: Xie et al. 2016.
    """
    _count("k", k)
    _count("m", m)
    _count("n", n)
    _positive("b", b)
    return k * (m + n) * b


def sufficient_factor_wins(p: int, k: int, m: int, n: int) -> int:
    """Whether factors take fewer bytes than a ring all-reduce of the matrix.

    Source: derived: (p-1) k (m + n) sent against 2 (p-1)/p m n.
    """
    _ranks(p)
    _count("k", k)
    _count("m", m)
    _count("n", n)
    return 1 if p > 1 and k * p * (m + n) < 2 * m * n else 0


def pickled_overhead(n: int, b: int, s: int) -> int:
    """Bytes that a pickle of s bytes adds to those of its tensor.

    Source: derived: what describes the tensor, and the length that goes first.
    """
    _count("s", s)
    return pickled_bytes(s) - zero_copy_bytes(n, b)


# ZeRO stage 1: n elements, padded to a multiple of p


def zero_1_state_bytes(p: int, n: int, b: int) -> int:
    """Bytes a rank keeps: whole parameters and gradients, a shard of two moments.

    Source: Rajbhandari et al. 2020, section 5.1, all four in one precision.
    """
    _positive("b", b)
    return b * (2 * p + 2) * zero_3_shard(p, n)


def zero_1_volume(p: int, n: int, b: int, t: int) -> int:
    """Bytes a rank sends in t steps when the collectives are rings.

    Source: Rajbhandari et al. 2020, section 7.2.1: 2 psi, of which (p-1)/p travels.
    """
    _positive("b", b)
    _count("t", t)
    return 2 * t * (p - 1) * zero_3_shard(p, n) * b


def zero_1_calls(t: int) -> int:
    """Collectives of t steps: scatter the gradient, sum its norm, gather weights.

    Source: Xu et al. 2020.
    """
    _count("t", t)
    return 3 * t


# ZeRO stage 2: u units of n elements, k micro-batches a step


def zero_2_state_bytes(p: int, n: int, u: int, b: int) -> int:
    """Bytes a rank keeps: whole parameters, shards of gradient and two moments.

    Source: Rajbhandari et al. 2020, section 5.2, all four in one precision.
    """
    _count("u", u)
    _positive("b", b)
    return b * u * (p + 3) * zero_3_shard(p, n)


def zero_2_calls(u: int, k: int, t: int) -> int:
    """Collectives of t steps: k scatters of each unit's gradient, one gather.

    Source: derived from Rajbhandari et al. 2020, section 5.2: scattered gradients
    cannot be added to at home.
    """
    _count("u", u)
    _count("k", k)
    _count("t", t)
    return t * (k + 1) * u


def zero_2_volume(p: int, n: int, u: int, b: int, k: int, t: int) -> int:
    """Bytes a rank sends in t steps when the collectives are rings.

    Source: Rajbhandari et al. 2020, section 7.2.1: 2 psi, with k = 1.
    """
    _positive("b", b)
    return zero_2_calls(u, k, t) * (p - 1) * zero_3_shard(p, n) * b


# Filters or channels cut: l layers, the narrowest c wide, the others multiples of it


def cut_calls(l: int) -> int:  # noqa: E741 (the symbol of the page)
    """Collectives each way through l convolutions: one for every layer.

    Source: Kahira et al. 2021, table III.
    """
    _count("l", l)
    return l


def filter_gathered(p: int, y: int, c: int, b: int) -> int:
    """Bytes a rank hands to all-gather for outputs of y elements, with padding.

    Source: Kahira et al. 2021, table III: a p-th of each map, here rounded up.
    """
    _ranks(p)
    _count("y", y)
    _positive("c", c)
    _positive("b", b)
    return chunk(c, p, 0) * (y // c) * b


def filter_summed(x: int, b: int) -> int:
    """Bytes a rank hands to all-reduce: the gradients of inputs of x elements.

    Source: Kahira et al. 2021, table III.
    """
    _count("x", x)
    _positive("b", b)
    return x * b


def channel_summed(y: int, b: int) -> int:
    """Bytes a rank hands to all-reduce: its terms of outputs of y elements.

    Source: Kahira et al. 2021, table III.
    """
    _count("y", y)
    _positive("b", b)
    return y * b


def channel_gathered(p: int, x: int, c: int, b: int) -> int:
    """Bytes a rank hands to all-gather for gradients of x elements, with padding.

    Source: Kahira et al. 2021, table III: a p-th of each map, here rounded up.
    """
    _ranks(p)
    _count("x", x)
    _positive("c", c)
    _positive("b", b)
    return chunk(c, p, 0) * (x // c) * b


def cut_held(p: int, r: int, n: int, z: int, c: int, b: int) -> int:
    """Bytes of parameters on rank r: its part of n that are cut, all z that are not.

    Source: Kahira et al. 2021, table III: a p-th of the weights, in whole parts.
    """
    _rank(p, r)
    _count("n", n)
    _count("z", z)
    _positive("c", c)
    _positive("b", b)
    return (chunk(c, p, r) * (n // c) + z) * b


def cut_limit(c: int) -> int:
    """Ranks at most: each has one filter or channel of the narrowest layer.

    Source: Kahira et al. 2021, table III.
    """
    _positive("c", c)
    return c


# Overlapping local parallelism: p layers, blocks of two, m batches of a bytes


def overlapping_backward_bytes(p: int, r: int, m: int, a: int) -> int:
    """Bytes of gradients rank r sends back: those of the layer below, once.

    Source: Xiong et al. 2020 (LoCo): two blocks share a layer.
    """
    _rank(p, r)
    _positive("m", m)
    _count("a", a)
    return 0 if r == 0 else m * a


def overlapping_makespan(p: int, m: int, f: float, b: float) -> float:
    """Seconds of m batches: a layer waits for the next one's forward and backward.

    Source: derived from Xiong et al. 2020 (LoCo).
    """
    _ranks(p)
    _positive("m", m)
    _count("f", f)
    _count("b", b)
    return 2 * m * (f + b) + max(0, p - 2) * f


# Embedding sharding: l tables of so many rows of h elements, s samples


def embedding_forward_bytes(
    p: int,
    r: int,
    s: int,
    l: int,  # noqa: E741 (the symbol of the page)
    h: int,
    b: int,
) -> int:
    """Bytes rank r hands to all-to-all forward: 8-byte indices, then rows.

    Source: Naumov et al. 2019 (DLRM), its own share included.
    """
    _rank(p, r)
    _count("s", s)
    _count("l", l)
    _count("h", h)
    _positive("b", b)
    return 8 * chunk(s, p, r) * l + b * s * chunk(l, p, r) * h


def embedding_backward_bytes(
    p: int,
    r: int,
    s: int,
    l: int,  # noqa: E741 (the symbol of the page)
    h: int,
    b: int,
) -> int:
    """Bytes rank r hands to all-to-all backward: a gradient for every row it read.

    Source: Naumov et al. 2019 (DLRM), its own share included.
    """
    _rank(p, r)
    _count("s", s)
    _count("l", l)
    _count("h", h)
    _positive("b", b)
    return b * chunk(s, p, r) * l * h


def embedding_state_bytes(
    p: int,
    r: int,
    l: int,  # noqa: E741 (the symbol of the page)
    rows: int,
    h: int,
    b: int,
) -> int:
    """Bytes of the tables that rank r holds.

    Source: Naumov et al. 2019 (DLRM).
    """
    _rank(p, r)
    _count("l", l)
    _count("rows", rows)
    _count("h", h)
    _positive("b", b)
    return b * chunk(l, p, r) * rows * h


def embedding_limit(l: int) -> int:  # noqa: E741 (the symbol of the page)
    """Ranks at most, if every rank holds a whole table.

    Source: Naumov et al. 2019 (DLRM).
    """
    _positive("l", l)
    return l


# Ring attention: n tokens in 2p chunks, two of them a rank's; h heads times width


def zigzag_tokens(p: int, r: int, n: int) -> int:
    """Tokens of rank r: chunk r of 2p, and chunk r from the end.

    Source: Llama Team 2024, section 3.3.2.
    """
    _rank(p, r)
    return chunk(n, 2 * p, r) + chunk(n, 2 * p, 2 * p - 1 - r)


def ring_attention_forward(p: int, r: int, n: int, h: int, b: int) -> int:
    """Bytes that rank r sends forward: all keys and values but those of rank r+1.

    Source: Liu et al. 2023, section 3, with shares of uneven size.
    """
    _rank(p, r)
    _count("n", n)
    _positive("h", h)
    _positive("b", b)
    return 2 * h * b * (n - zigzag_tokens(p, (r + 1) % p, n))


def ring_attention_backward(p: int, r: int, n: int, h: int, b: int) -> int:
    """Bytes that rank r sends backward: as forward, and the gradients of all n.

    Source: derived from Liu et al. 2023, section 3: gradients make p hops.
    """
    return ring_attention_forward(p, r, n, h, b) + (0 if p == 1 else 2 * h * b * n)


def ring_attention_rounds(p: int) -> int:
    """Rounds of messages: p-1 hops forward, and p backward.

    Source: derived from Liu et al. 2023, section 3.
    """
    _ranks(p)
    return 0 if p == 1 else 2 * p - 1


def ring_attention_pairs(p: int, r: int, n: int) -> int:
    """Pairs of query and key on rank r: each token and those before it.

    Source: derived from Llama Team 2024, section 3.3.2: the cut into 2p chunks.
    """
    _rank(p, r)
    _count("n", n)
    early = chunk(n, 2 * p, r)
    late = chunk(n, 2 * p, 2 * p - 1 - r)
    before_early = r * (n // (2 * p)) + min(r, n % (2 * p))
    before_late = (2 * p - 1 - r) * (n // (2 * p)) + min(2 * p - 1 - r, n % (2 * p))
    return (
        early * before_early
        + early * (early + 1) // 2
        + late * before_late
        + late * (late + 1) // 2
    )


# Activation checkpointing: l layers in s segments, a bytes kept by a layer


def checkpoint_peak(
    l: int,  # noqa: E741 (the symbol of the page)
    s: int,
    a: int,
) -> int:
    """Bytes of activations at most: every segment's input, one segment's layers.

    Source: Chen et al. 2016 (sublinear memory), section 4.1.
    """
    _count("l", l)
    _positive("s", s)
    _count("a", a)
    return a * (s + -(-l // s))


def checkpoint_best(l: int) -> float:  # noqa: E741 (the symbol of the page)
    """Segments that keep the fewest activations, if that is a whole number.

    Source: Chen et al. 2016 (sublinear memory), section 4.1.
    """
    _positive("l", l)
    return l**0.5


def checkpoint_forwards(l: int) -> int:  # noqa: E741 (the symbol of the page)
    """Times that a layer is run forward: each of l layers twice.

    Source: Chen et al. 2016 (sublinear memory), section 4.1.
    """
    _count("l", l)
    return 2 * l


def checkpoint_makespan(l: int) -> int:  # noqa: E741 (the symbol of the page)
    """Seconds of a step if a layer takes 1 forward and 2 backward; plainly 3 l.

    Source: Chen et al. 2016 (sublinear memory), section 4.1: one extra forward.
    """
    _count("l", l)
    return 4 * l


def gradient_payload(n: int, b: int) -> int:
    """Bytes of n gradient elements, handed to all-reduce once.

    Source: Li et al. 2020, PyTorch Distributed.
    """
    _count("n", n)
    _positive("b", b)
    return n * b


# Asynchronous elastic averaging: h steps of a second, of k seconds on rank 1


def elastic_meetings(p: int, r: int, t: int, h: int, k: int) -> int:
    """Meetings in t seconds: a worker's own, and at the centre everybody's.

    Source: Zhang, Choromanska and LeCun 2015: nobody waits.
    """
    _rank(p, r)
    _count("t", t)
    _positive("h", h)
    _positive("k", k)
    return downpour_updates(p, r, t // h, k)


def elastic_bytes(p: int, r: int, n: int, b: int, t: int, h: int, k: int) -> int:
    """Bytes sent in t seconds: at each meeting weights one way, the centre back.

    Source: Zhang, Choromanska and LeCun 2015.
    """
    _count("n", n)
    _positive("b", b)
    return elastic_meetings(p, r, t, h, k) * n * b


def elastic_makespan(p: int, t: int, h: int, k: int) -> int:
    """Seconds until the last of the meetings that fit into t: nobody waits.

    Source: derived from Zhang, Choromanska and LeCun 2015.
    """
    _ranks(p)
    _count("t", t)
    _positive("h", h)
    _positive("k", k)
    return h * downpour_makespan(p, t // h, k)


# Ulysses: n tokens, heads of width h, both cut into p parts


def ulysses_calls() -> int:
    """All-to-alls of one attention: into heads and out again, forward and backward.

    Source: Jacobs et al. 2023, section 3, with queries, keys and values in one.
    """
    return 4


def ulysses_payload(p: int, r: int, n: int, heads: int, h: int, b: int) -> int:
    """Bytes rank r hands over: four tensors by its tokens, four by its heads.

    Source: Jacobs et al. 2023, section 3.2, with parts of uneven size.
    """
    _rank(p, r)
    _count("n", n)
    _positive("heads", heads)
    _positive("h", h)
    _positive("b", b)
    return 4 * h * b * (chunk(n, p, r) * heads + n * chunk(heads, p, r))


def ulysses_limit(heads: int) -> int:
    """Ranks at most: a head is attended to by one rank.

    Source: Jacobs et al. 2023, section 3.
    """
    _positive("heads", heads)
    return heads


# Rows cut: n parameters, u batch norms of v channels in all, h rows at the least


def spatial_halo(p: int, r: int, a: int, b: int) -> int:
    """Bytes rank r sends: for each neighbour a elements, forward and backward.

    Source: Kahira et al. 2021, table III; a is, over all layers, K - s rows: what a
    window of K rows that moves by s shares with the next. It goes to and fro.
    """
    _rank(p, r)
    _count("a", a)
    _positive("b", b)
    return (min(r, 1) + min(p - 1 - r, 1)) * a * b


def spatial_sums(u: int) -> int:
    """All-reduces: one of the gradients, and one each way in every norm.

    Source: Kahira et al. 2021, table III, with batch norms of whole samples.
    """
    _count("u", u)
    return 1 + 2 * u


def spatial_summed(n: int, u: int, v: int, b: int) -> int:
    """Bytes a rank hands to all-reduce: gradients, and 2C + 1 sums a norm each way.

    Source: Kahira et al. 2021, table III, with batch norms of whole samples.
    """
    _count("n", n)
    _count("u", u)
    _count("v", v)
    _positive("b", b)
    return (n + 2 * (2 * v + u)) * b


def spatial_limit(h: int) -> int:
    """Ranks at most: each has a row of the smallest map.

    Source: Kahira et al. 2021, table III, cut in one dimension.
    """
    _positive("h", h)
    return h


# Layer partition: c matrices of h x h a rank, m batches one after the other


def layer_partition_makespan(p: int, c: int, m: int, f: float, b: float) -> float:
    """Seconds of m batches: all matrices in turn, f forward and b backward each.

    Source: Huang et al. 2019 (GPipe), section 2.3.
    """
    _ranks(p)
    _count("c", c)
    _count("m", m)
    _count("f", f)
    _count("b", b)
    return m * p * c * (f + b)


def layer_partition_idle(p: int, c: int, m: int, f: float, b: float) -> float:
    """Seconds each rank waits in m batches: while any other computes.

    Source: Huang et al. 2019 (GPipe), section 2.3.
    """
    _ranks(p)
    _count("c", c)
    _count("m", m)
    _count("f", f)
    _count("b", b)
    return m * (p - 1) * c * (f + b)


def layer_partition_state(c: int, h: int, e: int) -> int:
    """Bytes of c matrices and biases of width h, in elements of e bytes.

    Source: Dean et al. 2012, section 3: each machine holds its own layers.
    """
    _count("c", c)
    _count("h", h)
    _positive("e", e)
    return e * c * (h * h + h)


# Sharded parameter server: p co-located servers, one chunk each


def sharded_server_bytes(p: int, r: int, n: int, b: int, t: int) -> int:
    """Bytes rank r sends in t steps, and receives too: others' chunks, and its own.

    Source: derived from Li et al. 2014: it pushes all chunks but its own,
    and answers the pulls of p-1 workers.
    """
    _rank(p, r)
    _positive("b", b)
    _count("t", t)
    return t * b * (n + (p - 2) * chunk(n, p, r))


def sharded_server_total(p: int, n: int, b: int, t: int) -> int:
    """Bytes that all ranks together send in t steps: those of t ring all-reduces.

    Source: derived from Li et al. 2014; Jiang et al. 2020.
    """
    _count("t", t)
    return t * ring_all_reduce_total(p, n, b)


# Expert parallelism: e experts a rank, c seats for each on every rank


def expert_calls() -> int:
    """All-to-alls of one layer each way: to the experts, and home.

    Source: Lepikhin et al. 2021 (GShard).
    """
    return 2


def expert_payload(p: int, e: int, c: int, h: int, b: int) -> int:
    """Bytes a rank hands to the four all-to-alls: all seats, taken or not.

    Source: Lepikhin et al. 2021 (GShard).
    """
    _ranks(p)
    _positive("e", e)
    _count("c", c)
    _count("h", h)
    _positive("b", b)
    return 4 * p * e * c * h * b


def expert_dropped(n: int, k: int, s: int) -> int:
    """Choices dropped at most, of n tokens with k each: all like the same k.

    Source: derived from Lepikhin et al. 2021 (GShard), section 2.2: s seats each.
    """
    _count("n", n)
    _count("k", k)
    _count("s", s)
    return k * max(0, n - s)


# Offloaded optimizer: n elements, padded to a multiple of p; a shard crosses


def offload_bytes(p: int, n: int, b: int, t: int) -> int:
    """Bytes a rank moves down in t steps, and up too: its shard, once a step.

    Source: Ren et al. 2021 (ZeRO-Offload), all in one precision.
    """
    _positive("b", b)
    _count("t", t)
    return t * zero_3_shard(p, n) * b


def offload_fast_bytes(p: int, n: int, b: int) -> int:
    """Bytes a rank keeps in fast memory: weights, gradients, and one shard's buffer.

    Source: Ren et al. 2021 (ZeRO-Offload), section 3.
    """
    _positive("b", b)
    return b * (2 * p + 1) * zero_3_shard(p, n)


def offload_slow_bytes(p: int, n: int, b: int) -> int:
    """Bytes a rank keeps in slow memory: a shard of masters and two moments.

    Source: Ren et al. 2021 (ZeRO-Offload), section 3.
    """
    _positive("b", b)
    return 3 * b * zero_3_shard(p, n)


# Data and filters: groups of q ranks share s samples; x and y are of one sample


def data_filter_gathered(p: int, r: int, q: int, s: int, y: int, c: int, b: int) -> int:
    """Bytes rank r hands to all-gather: its group's samples, its filters' maps.

    Source: Kahira et al. 2021, table III, data and filter, rounded up to whole parts.
    """
    _rank(p, r)
    _positive("q", q)
    _count("s", s)
    return chunk(s, p // q, r // q) * filter_gathered(q, y, c, b)


def data_filter_summed(
    p: int, r: int, q: int, s: int, x: int, u: int, v: int, b: int
) -> int:
    """Bytes rank r hands to all-reduce: its samples' dx inside, norms' sums between.

    Source: Kahira et al. 2021, table III, data and filter, with u batch norms of v
    channels in all, each of which adds 2C + 1 sums forward and backward.
    """
    _rank(p, r)
    _positive("q", q)
    _count("s", s)
    _count("x", x)
    _count("u", u)
    _count("v", v)
    _positive("b", b)
    return (chunk(s, p // q, r // q) * x + 2 * (2 * v + u)) * b


def data_filter_exchanged(
    p: int, r: int, q: int, n: int, v: int, c: int, b: int
) -> int:
    """Bytes of gradients rank r hands over: its filters', and 2 a channel of a norm.

    Source: Kahira et al. 2021, table III, data and filter: a q-th of the weights.
    """
    _rank(p, r)
    _positive("q", q)
    _count("v", v)
    return cut_held(q, r % q, n, 2 * v, c, b)


def data_filter_limit(s: int, c: int) -> int:
    """Ranks at most: a group for every sample, a rank for every filter.

    Source: Kahira et al. 2021, table III.
    """
    _positive("s", s)
    _positive("c", c)
    return s * c


# Strategy search: of c equal parts of every size, each rank has some


def turn_total(p: int, t: int, c: int, b: int) -> int:
    """Bytes that all ranks send to turn t elements from rows to columns.

    Source: derived: a rank keeps what it has in both layouts, and sends the rest.
    """
    _ranks(p)
    _count("t", t)
    _positive("c", c)
    _positive("b", b)
    q = c // p
    stay = c * (2 * q + 1) - p * q * (q + 1)  # of c**2: the shares, squared
    return b * (t - t * stay // c**2)


def search_sent(p: int, r: int, s: int, t: int, c: int, b: int) -> int:
    """Bytes rank r sends when s elements are all-reduced, and t turned.

    Source: derived: of its terms a rank sends all but its own part, h of c, and that
    to all others when it is summed; in a turn it sends what others have of its part.
    """
    _rank(p, r)
    _count("s", s)
    _count("t", t)
    _positive("c", c)
    _positive("b", b)
    h = chunk(c, p, r)
    return b * (s + h * ((p - 2) * s * c + t * (c - h)) // c**2)


def search_total(p: int, s: int, t: int, c: int, b: int) -> int:
    """Bytes that all ranks send when s elements are all-reduced, and t turned.

    Source: Song et al. 2019: the cost of a plan is its communication.
    """
    _count("s", s)
    return ring_all_reduce_total(p, s, b) + turn_total(p, t, c, b)


def search_single(p: int, n: int, z: int, a: int, y: int, c: int, b: int) -> int:
    """Bytes that all ranks send if every layer is cut alike: by data, or by filters.

    Source: Jia et al. 2018: data and model parallelism are plans among the others. Of
    n + z weights, a activations between layers and y outputs; by channels it is more.
    """
    _count("n", n)
    _count("z", z)
    _count("a", a)
    _count("y", y)
    _ranks(p)
    turned = turn_total(p, y, c, b)
    return 2 * min((p - 1) * (n + z) * b, (p - 1) * a * b + turned)


def search_asked(k: int, l: int) -> int:  # noqa: E741 (the symbol of the page)
    """Costs that are asked for: k ways after k others, for each of l layers.

    Source: Song et al. 2019: dynamic programming by layers; before the first and
    after the last there is no choice.
    """
    _positive("k", k)
    _positive("l", l)
    return (l - 1) * k**2 + 2 * k


def search_plans(k: int, l: int) -> int:  # noqa: E741 (the symbol of the page)
    """Plans there are: one of k ways for each of l layers.

    Source: Jia et al. 2018: layer-wise parallelism.
    """
    _positive("k", k)
    _positive("l", l)
    return k**l


# Mixed precision: n parameters in 16 bits, with 32-bit masters and Adam


def mixed_precision_state(n: int) -> int:
    """Bytes a rank keeps: 2 of weight and of gradient, 4 of master, 8 of moments.

    Source: Rajbhandari et al. 2020, section 3.1.
    """
    _count("n", n)
    return 16 * n


def mixed_precision_payload(n: int, t: int) -> int:
    """Bytes of 16-bit gradients that a rank hands over in t steps.

    Source: Micikevicius et al. 2018, section 3.
    """
    _count("n", n)
    _count("t", t)
    return 2 * n * t


def mixed_precision_lost() -> int:
    """Elements of a scaled gradient that underflow to zero.

    Source: Micikevicius et al. 2018, section 3.2.
    """
    return 0


# Data and rows: groups of q ranks share s samples; a is of one sample


def data_spatial_halo(p: int, r: int, q: int, s: int, a: int, b: int) -> int:
    """Bytes rank r sends to neighbours in its group, for its group's samples.

    Source: derived from Kahira et al. 2021, table III: spatial inside, data between.
    """
    _rank(p, r)
    _positive("q", q)
    _count("s", s)
    return chunk(s, p // q, r // q) * spatial_halo(q, r % q, a, b)


def data_spatial_limit(s: int, h: int) -> int:
    """Ranks at most: a group for every sample, a rank for every row.

    Source: derived from Kahira et al. 2021, table III: spatial inside, data between.
    """
    _positive("s", s)
    _positive("h", h)
    return s * h


# Model spilling: n weights in all, m in the largest layer, z in the last


def spill_peak(m: int, b: int) -> int:
    """Most bytes of weights in fast memory at once: the largest layer's.

    Source: derived; one layer is resident, as in Pudipeddi et al. 2020.
    """
    _count("m", m)
    _positive("b", b)
    return m * b


def spill_budget(m: int, b: int) -> int:
    """Bytes of fast memory that suffice: the largest layer's weights and gradient.

    Source: derived; one layer is resident, as in Pudipeddi et al. 2020.
    """
    return 2 * spill_peak(m, b)


def spill_up(n: int, z: int, b: int) -> int:
    """Bytes of weights that come up: all forward, all but the last layer backward.

    Source: derived; the last layer forward is the first one backward.
    """
    _count("n", n)
    _count("z", z)
    _positive("b", b)
    return (2 * n - z) * b


def spill_down(n: int, b: int) -> int:
    """Bytes of gradients, summed and moved down once; weights are only dropped.

    Source: derived; one layer is resident, as in Pudipeddi et al. 2020.
    """
    _count("n", n)
    _positive("b", b)
    return n * b


# 3D: d replicas of q stages of k parts; m micro-batches, a bytes at each cut


def three_d_ranks(d: int, q: int, k: int) -> int:
    """Ranks of the box: the lengths of its axes, multiplied.

    Source: Narayanan et al. 2021.
    """
    _positive("d", d)
    _positive("q", q)
    _positive("k", k)
    return d * q * k


def three_d_place(p: int, r: int) -> int:
    """The number (d S + s) T + t of rank r's place: the rank itself.

    Source: derived; places in their order, with t next to one another.
    """
    _rank(p, r)
    return r


def three_d_tensor_calls(m: int) -> int:
    """All-reduces of a stage of one perceptron: one each way for a micro-batch.

    Source: Shoeybi et al. 2019, section 3.
    """
    _positive("m", m)
    return 2 * m


def three_d_tensor_bytes(m: int, a: int) -> int:
    """Bytes handed to those all-reduces, a whole activation each.

    Source: Shoeybi et al. 2019, section 3.
    """
    _count("a", a)
    return a * three_d_tensor_calls(m)


def three_d_sent(p: int, r: int, q: int, k: int, m: int, a: int) -> int:
    """Bytes rank r sends to the stages beside its own, as in a pipeline of q.

    Source: Huang et al. 2019 (GPipe), section 2.3; r is at (r // k) mod q.
    """
    _rank(p, r)
    _positive("q", q)
    _positive("k", k)
    return pipeline_bytes(q, r // k % q, m, a)


def three_d_messages(p: int, r: int, q: int, k: int, m: int) -> int:
    """Messages rank r sends to the stages beside its own.

    Source: Huang et al. 2019 (GPipe), section 2.3; r is at (r // k) mod q.
    """
    return three_d_sent(p, r, q, k, m, 1)


def three_d_data_calls() -> int:
    """All-reduces among replicas in a step, when gradients are one vector.

    Source: Narayanan et al. 2021: once a batch, not once a micro-batch.
    """
    return 1


def three_d_data_bytes(p: int, r: int, k: int, h: int, u: int, e: int) -> int:
    """Bytes rank r hands to it: its neurons of u, a bias of width h, and the loss.

    Source: derived; a neuron has h weights in, a bias, and h weights out.
    """
    _rank(p, r)
    _positive("k", k)
    _positive("h", h)
    _count("u", u)
    _positive("e", e)
    return ((2 * h + 1) * chunk(u, k, r % k) + h + 1) * e


def three_d_makespan(q: int, m: int, f: float, b: float) -> float:
    """Seconds of one step: a flush of q stages, however many ranks there are.

    Source: Huang et al. 2019 (GPipe), section 2.3; Narayanan et al. 2021, 2.2.1.
    """
    _positive("q", q)
    return pipeline_makespan(q, m, f, b)


# ParaDL's own memory: values and gradients of every tensor, nothing reused


def paradl_memory(s: int, x: int, y: int, w: int, b: int) -> int:
    """Bytes of s samples that take x and make y elements, and of w weights.

    Source: Kahira et al. 2021, table III, data parallelism; deliberately an excess.
    """
    _count("s", s)
    _count("x", x)
    _count("y", y)
    _count("w", w)
    _positive("b", b)
    return 2 * b * (s * (x + y) + w)


# DeepSpeed's estimators: n parameters, m in the largest layer, p devices


def deepspeed_zero_2(p: int, n: int) -> float:
    """Bytes of a device: weights and gradients in 16 bits, a share of 16 bytes each.

    Source: DeepSpeed's documentation, memory requirements, ZeRO-2 without offload.
    """
    _ranks(p)
    _count("n", n)
    return 4 * n + 16 * n / p


def deepspeed_zero_2_offload(n: int) -> int:
    """Bytes of a device when all but 16-bit weights are on the host.

    Source: DeepSpeed's documentation, memory requirements, ZeRO-2 with offload.
    """
    _count("n", n)
    return 2 * n


def deepspeed_zero_3(p: int, n: int, m: int) -> float:
    """Bytes of a device: a share of 18 bytes each, and the largest layer whole.

    Source: DeepSpeed's documentation, memory requirements, ZeRO-3 without offload.
    """
    _ranks(p)
    _count("n", n)
    _count("m", m)
    return 4 * m + 18 * n / p


def deepspeed_zero_3_offload(p: int, n: int, m: int) -> float:
    """Bytes of a device when the optimizer is on the host.

    Source: DeepSpeed's documentation, memory requirements, ZeRO-3 with offload.
    """
    _ranks(p)
    _count("n", n)
    _count("m", m)
    return 4 * m + 2 * n / p


def deepspeed_zero_3_all_offload(m: int) -> int:
    """Bytes of a device when the weights are on the host too.

    Source: DeepSpeed's documentation, memory requirements, ZeRO-3 with offload of all.
    """
    _count("m", m)
    return 4 * m


# Published operation counts: s tokens, width h, l layers, v words, n sequences


def transformer_flops(
    n: int,
    s: int,
    h: int,
    l: int,  # noqa: E741 (the symbol of the page)
    v: int,
) -> float:
    """Operations of a step of a GPT, forward and backward.

    Source: Narayanan et al. 2021, appendix; Korthikanti et al. 2022, appendix A.
    """
    _count("n", n)
    _positive("s", s)
    _positive("h", h)
    _positive("l", l)
    _count("v", v)
    return 72 * n * s * l * h * h * (1 + s / (6 * h) + v / (12 * l * h))


def transformer_flops_selective(
    n: int,
    s: int,
    h: int,
    l: int,  # noqa: E741 (the symbol of the page)
    v: int,
) -> float:
    """Operations of a step with selective recomputation, as published.

    Source: Korthikanti et al. 2022, appendix A, which counts the scores 6 times; the
    work that is done has them 4 times, and so has the core.
    """
    _count("n", n)
    _positive("s", s)
    _positive("h", h)
    _positive("l", l)
    _count("v", v)
    return 72 * n * s * l * h * h * (1 + s / (3 * h) + v / (12 * l * h))


def transformer_flops_full(
    n: int,
    s: int,
    h: int,
    l: int,  # noqa: E741 (the symbol of the page)
    v: int,
) -> float:
    """Operations of a step when every layer is computed again, but not the head.

    Source: Narayanan et al. 2021, appendix.
    """
    _count("n", n)
    _positive("s", s)
    _positive("h", h)
    _positive("l", l)
    _count("v", v)
    return 96 * n * s * l * h * h * (1 + s / (6 * h) + v / (16 * l * h))
