"""Every formula: its properties, what a simulation counts, what papers print."""

import ast
import inspect
import math
from itertools import product
from pathlib import Path
from typing import get_type_hints

import pytest
import torch
from by_name import f
from hypothesis import given
from hypothesis import strategies as st

from atlas.formulas import FORMULAS

ROOT = Path(__file__).resolve().parent.parent
ranks = st.integers(1, 64)
sizes = st.integers(0, 10**6)
width = st.sampled_from([1, 2, 4, 8])
steps = st.integers(0, 50)


# What a formula is


@pytest.mark.parametrize("name", FORMULAS)
def test_each_formula_is_one_sentence_and_its_source(name: str) -> None:
    says, blank, source = (inspect.getdoc(FORMULAS[name]) or "").split("\n", 2)
    assert says.endswith(".")
    assert blank == ""
    assert source.startswith("Source: ")
    assert len(source) > len("Source: ")


def test_the_table_has_every_formula_of_every_family() -> None:
    assert FORMULAS["chunk"] is f.chunk
    assert not [name for name in FORMULAS if name.startswith("_")]
    for path in sorted((ROOT / "atlas" / "formulas").rglob("*.py")):
        for node in ast.parse(path.read_text(encoding="utf-8")).body:
            decorators = map(ast.unparse, getattr(node, "decorator_list", ()))
            if isinstance(node, ast.FunctionDef) and "formula" in decorators:
                assert node.name in FORMULAS, f"{path}: {node.name}"


BAD = [
    ("chunk", (5, 0, 0), "ranks = 0: must be 1 or more"),
    ("chunk", (-1, 2, 0), "elements = -1: must be 0 or more"),
    (
        "ring_all_reduce_bytes",
        (4, 4, 9, 8),
        "rank = 4: must be from 0 to 3, as ranks = 4",
    ),
    (
        "ring_all_reduce_bytes",
        (4, -1, 9, 8),
        "rank = -1: must be from 0 to 3, as ranks = 4",
    ),
    ("ring_all_reduce_bytes", (4, 0, 9, 0), "itemsize = 0: must be 1 or more"),
    ("ring_all_reduce_rounds", (-2,), "ranks = -2: must be 1 or more"),
    ("bucketed_calls", (5, 0, 1), "bucket = 0: must be 1 or more"),
    ("ssp_gap", (4, 5, -1, 1), "staleness = -1: must be 0 or more"),
    ("ssp_waits", (4, 0, 5, 1, 0), "slowdown = 0: must be 1 or more"),
    ("one_f_one_b_in_flight", (4, 0, 0), "microbatches = 0: must be 1 or more"),
    ("pipeline_idle", (0, 1, 1), "ranks = 0: must be 1 or more"),
    ("zero_3_state_bytes", (0, 8, 1, 4), "ranks = 0: must be 1 or more"),
    ("all_reduce_seconds", (2, 8, -1, 1), "alpha = -1: must be 0 or more"),
]


@pytest.mark.parametrize(("name", "values", "says"), BAD)
def test_outside_its_range_a_formula_says_what_it_was_given(
    name: str, values: tuple[int, ...], says: str
) -> None:
    with pytest.raises(ValueError, match="=") as caught:
        FORMULAS[name](*values)
    assert str(caught.value) == says


@pytest.mark.parametrize("name", FORMULAS)
def test_every_argument_has_a_range(name: str) -> None:
    names = list(inspect.signature(FORMULAS[name]).parameters)
    for wrong in names:
        if (name, wrong) == ("chunk", "index"):  # any index: it is taken modulo p
            continue
        values = {key: int(key != "rank") for key in names}
        FORMULAS[name](**values)
        for bad in (-1, math.nan):
            with pytest.raises(ValueError, match=rf"^{wrong} = {bad}: \w"):
                FORMULAS[name](**values | {wrong: bad})


WHOLE = [n for n in FORMULAS if get_type_hints(FORMULAS[n])["return"] is int]


@pytest.mark.parametrize("name", WHOLE)
def test_integers_in_integers_out(name: str) -> None:
    names = inspect.signature(FORMULAS[name]).parameters
    assert type(FORMULAS[name](**{key: 3 - (key == "rank") for key in names})) is int


@pytest.mark.parametrize(
    "value",
    [
        f.ring_all_reduce_bytes(1, 0, 100_003, 8),
        f.ring_all_reduce_rounds(1),
        f.ring_all_reduce_total(1, 100_003, 8),
        f.ssp_updates(1, 0, 9),
        f.ssp_waits(1, 0, 9, 0, 4),
        f.ssp_bytes(1, 0, 100, 8, 9),
        f.pipeline_bytes(1, 0, 8, 64),
        f.pipeline_idle(1, 1, 2),
        f.pipeline_bubble(1, 8),
        f.zero_3_volume(1, 100, 3, 4, 9),
        f.top_k_gathered(1, 10, 4, 9),
        f.all_gather_seconds(1, 100, 1.0, 1.0),
        f.all_reduce_seconds(1, 100, 1.0, 1.0),
    ],
)
def test_one_rank_alone_sends_and_waits_for_nothing(value: float) -> None:
    assert value == 0


# Ring all-reduce


@given(st.integers(0, 500), ranks)
def test_chunks_are_those_of_tensor_split(n: int, p: int) -> None:
    cut = [len(part) for part in torch.empty(n).tensor_split(p)]
    assert [f.chunk(n, p, i) for i in range(p)] == cut
    assert [f.chunk(n, p, i - p) for i in range(2 * p)] == cut + cut


@given(sizes, st.integers(1, 24), width)
def test_ring_bytes_are_those_of_the_rounds(n: int, p: int, b: int) -> None:
    """The table: in round k, rank r sends chunk r-k, then chunk r-k+1."""
    for r in range(p):
        sent = sum(
            f.chunk(n, p, r - k) + f.chunk(n, p, r - k + 1) for k in range(p - 1)
        )
        assert f.ring_all_reduce_bytes(p, r, n, b) == sent * b


@given(sizes, ranks, width)
def test_ring_bytes_sum_to_the_total(n: int, p: int, b: int) -> None:
    sent = [f.ring_all_reduce_bytes(p, r, n, b) for r in range(p)]
    assert sum(sent) == f.ring_all_reduce_total(p, n, b) == 2 * (p - 1) * n * b
    assert max(sent) <= 2 * n * b


@given(sizes, ranks, width)
def test_equal_chunks_send_the_textbook_share(c: int, p: int, b: int) -> None:
    assert f.ring_all_reduce_bytes(p, p - 1, c * p, b) == 2 * (p - 1) * c * b


def test_ring_bytes_of_the_run_in_the_record() -> None:
    sent = [f.ring_all_reduce_bytes(4, r, 100_003, 8) for r in range(4)]
    assert sent == [1_200_032, 1_200_040, 1_200_040, 1_200_032]
    assert f.ring_all_reduce_rounds(4) == 6


# Other all-reduces


@given(ranks, sizes, width)
def test_the_halves_of_an_all_reduce_send_what_a_ring_sends(
    p: int, n: int, b: int
) -> None:
    scattered = sum(f.reduce_scatter_bytes(p, r, n, b) for r in range(p))
    gathered = sum(f.all_gather_bytes(p, r, n, b) for r in range(p))
    assert scattered == gathered == f.ring_all_reduce_total(p, n, b) // 2
    assert sum(f.reduce_scatter_shard(p, r, n, b) for r in range(p)) == n * b


@given(ranks)
def test_doubling_messages_are_those_of_the_rounds(p: int) -> None:
    core = 1 << p.bit_length() - 1
    sent = [f.recursive_doubling_messages(p, r) for r in range(p)]
    exchanges = core.bit_length() - 1
    folded = [r >= core or r + core < p for r in range(p)]
    assert sent == [exchanges * (r < core) + folded[r] for r in range(p)]
    assert f.recursive_doubling_rounds(p) == exchanges + 2 * any(folded)


@given(ranks, sizes, width)
def test_a_tree_has_one_edge_less_than_ranks(p: int, n: int, b: int) -> None:
    parents = [r - (1 << r.bit_length() - 1) for r in range(1, p)]
    children = [f.tree_children(p, r) for r in range(p)]
    assert children == [parents.count(r) for r in range(p)]
    sent = [f.tree_all_reduce_bytes(p, r, n, b) for r in range(p)]
    assert sum(sent) == f.tree_all_reduce_total(p, n, b)
    assert f.tree_all_reduce_rounds(p) == 2 * children[0] == 2 * (p - 1).bit_length()


@given(ranks, sizes, width)
def test_two_trees_send_a_rings_bytes_and_no_rank_over_two_tensors(
    p: int, n: int, b: int
) -> None:
    parents = [(place - 1) // 2 for place in range(1, p)]
    edges = [f.binary_tree_edges(p, r) for r in range(p)]
    assert edges == [parents.count(r) + (r > 0) for r in range(p)]
    assert all(min(edges[r], edges[p - 1 - r]) <= 1 for r in range(p))
    sent = [f.double_binary_tree_bytes(p, r, n, b) for r in range(p)]
    assert sum(sent) == f.ring_all_reduce_total(p, n, b)
    assert max(sent) <= f.double_binary_tree_most(n, b) <= (2 * n + 1) * b


@given(ranks, st.integers(1, 99))
def test_two_trees_take_no_more_rounds_than_published(p: int, k: int) -> None:
    """Sanders et al. 2009: at most 2 lg p + 2k, lg p rounded up, up or down."""
    assert f.double_binary_tree_rounds(p, k) <= 2 * (2 * (p - 1).bit_length() + 2 * k)


# Broadcasts


@given(ranks, st.data(), sizes, width)
def test_a_broadcast_sends_each_rank_but_the_root_one_tensor(
    p: int, data: st.DataObject, n: int, b: int
) -> None:
    root = data.draw(st.integers(0, p - 1))
    sent = [f.binomial_broadcast_bytes(p, r, root, n, b) for r in range(p)]
    received = [f.binomial_broadcast_received(p, r, root, n, b) for r in range(p)]
    assert sum(sent) == sum(received) == (p - 1) * n * b
    assert received[root] == 0
    assert sent[root] == max(sent) == f.binomial_broadcast_rounds(p) * n * b
    assert sum(s == 0 for s in sent) >= p // 2 or n == 0


@given(st.integers(1, 2**32 - 1))
def test_the_lowest_bit_is_the_largest_power_of_two_that_divides(i: int) -> None:
    assert f.lowest_bit(i) == i & -i


@given(ranks, st.data(), sizes, width)
def test_a_scatter_sends_each_chunk_down_the_tree_and_a_ring_the_rest(
    p: int, data: st.DataObject, n: int, b: int
) -> None:
    root = data.draw(st.integers(0, p - 1))
    chunk = [len(part) for part in torch.empty(n).tensor_split(p)]
    assert [f.chunks_before(n, p, i) for i in range(p)] == [
        sum(chunk[:i]) for i in range(p)
    ]
    scattered = [f.binomial_scatter_elements(p, place, n) for place in range(p)]
    hops = [place.bit_count() for place in range(p)]  # from the root to each place
    assert sum(scattered) == sum(c * h for c, h in zip(chunk, hops, strict=True))
    sent = [f.scatter_all_gather_broadcast_bytes(p, r, root, n, b) for r in range(p)]
    assert sum(sent) == (sum(scattered) + (p - 1) * n) * b
    assert sent[root] == max(sent) == f.scatter_all_gather_broadcast_most(p, n, b)


@given(st.integers(3, 4096), st.floats(1e-9, 1), st.floats(1e-12, 1))
def test_the_scatter_overtakes_the_tree_at_the_printed_size(
    p: int, alpha: float, beta: float
) -> None:
    """For two ranks never: both send one tensor, and the tree in one round."""
    tree, cut = f.binomial_broadcast_seconds, f.scatter_all_gather_broadcast_seconds
    saved = math.ceil(math.log2(p)) - 2 * (p - 1) / p
    crossover = (p - 1) * alpha / (beta * saved)
    assert tree(p, crossover, alpha, beta) == pytest.approx(
        cut(p, crossover, alpha, beta), rel=1e-9
    )
    assert cut(p, 2 * crossover, alpha, beta) < tree(p, 2 * crossover, alpha, beta)
    assert cut(p, crossover / 2, alpha, beta) > tree(p, crossover / 2, alpha, beta)
    assert cut(2, crossover, alpha, beta) > tree(2, crossover, alpha, beta)
    assert tree(p, 1, 1, 0) == f.binomial_broadcast_rounds(p)
    assert cut(p, 1, 1, 0) == f.scatter_all_gather_broadcast_rounds(p)


# All-to-all


@given(st.integers(1, 2**12), st.integers(0, 99), width)
def test_bruck_sends_block_i_once_for_each_one_of_i(p: int, m: int, b: int) -> None:
    ones = [sum(i >> k & 1 for i in range(p)) for k in range(12)]
    assert ones == [f.blocks_with_bit(p, 2**k) for k in range(12)]
    assert f.bruck_all_to_all_bytes(p, m, b) == sum(ones) * m * b
    assert f.bruck_all_to_all_rounds(p) == sum(some > 0 for some in ones)
    assert f.bruck_all_to_all_rounds(p) <= f.all_to_all_rounds(p)
    assert f.bruck_all_to_all_hops(p) >= p - 1


@pytest.mark.parametrize("q", range(32))
def test_bruck_sends_half_of_the_blocks_in_each_round_of_a_power_of_two(q: int) -> None:
    assert f.bruck_all_to_all_hops(2**q) == 2**q * q // 2


@given(st.integers(1, 32), st.integers(1, 32), st.integers(0, 99), width)
def test_two_levels_send_the_same_bytes_between_nodes_in_fewer_messages(
    nodes: int, size: int, m: int, b: int
) -> None:
    p = nodes * size
    between = f.two_level_all_to_all_between(p, size, m, b)
    assert between == (p - size) * m * b
    assert f.two_level_all_to_all_messages(p, size) * size == p - size
    assert f.two_level_all_to_all_inside(p, size, m, b) == (p - nodes) * m * b
    assert f.two_level_all_to_all_rounds(p, size) <= f.all_to_all_rounds(p)


# Invariant reduction


@given(ranks, st.integers(1, 300), sizes, width)
def test_sums_are_sent_where_the_tree_crosses_from_rank_to_rank(
    p: int, leaves: int, n: int, b: int
) -> None:
    owner = [
        r for r, run in enumerate(torch.arange(leaves).tensor_split(p)) for _ in run
    ]
    crossing = [i for i in range(1, leaves) if owner[i] != owner[i - (i & -i)]]
    sums = [f.invariant_reduction_sums(p, r, leaves) for r in range(p)]
    assert sums == [sum(owner[i] == r for i in crossing) for r in range(p)]
    sent = [f.invariant_reduction_bytes(p, r, leaves, n, b) for r in range(p)]
    assert sum(sent) == (len(crossing) + p - 1) * n * b
    if leaves % p == 0 and p & (p - 1) == 0:
        assert sums == [min(1, r) for r in range(p)]
        assert sum(sent) == f.tree_all_reduce_total(p, n, b)


# Buckets


@given(sizes, st.integers(1, 10**5), steps)
def test_buckets_hold_everything_and_none_is_empty(n: int, c: int, t: int) -> None:
    assert f.bucketed_calls(n, c, t) == t * len(range(0, n, c))
    assert f.bucketed_calls(n, max(1, n), t) == (t if n else 0)
    assert f.bucketed_payload(n, 4, t) == t * f.bucketed_payload(n, 4, 1)


# Gradient accumulation


@given(st.integers(1, 24), st.integers(0, 999), st.integers(1, 9), width)
def test_activations_are_those_of_the_largest_micro_batch(
    p: int, n: int, k: int, b: int
) -> None:
    for r, share in enumerate(torch.empty(n).tensor_split(p)):
        largest = max(len(part) for part in share.tensor_split(k))
        held = f.accumulated_activations(p, r, n, k, 42, b)
        assert held == (42 * largest + 1) * b
        assert held <= f.accumulated_activations(p, r, n, 1, 42, b)


# Stale synchronous parallel


def waits(p: int, t: int, s: int, k: int) -> list[int]:
    """Reads that waited, by rank, in a run second by second with one server."""
    done = [0] * p  # clocks each worker has pushed; [0], the server's, is not used
    ends: list[int | None] = [None] * p  # when the clock at hand ends; None: not read
    waited = [0] * p
    asked = [-1] * p  # the clock whose read has been counted as waiting
    second = 0
    while any(done[w] < t for w in range(1, p)):
        for w in range(1, p):  # pushes before reads
            if ends[w] == second:
                done[w], ends[w] = done[w] + 1, None
        for w in range(1, p):
            if ends[w] is None and done[w] < t:
                if min(done[1:]) >= done[w] - s:
                    ends[w] = second + (k if w == 1 else 1)
                elif asked[w] != done[w]:
                    waited[w], asked[w] = waited[w] + 1, done[w]
        second += 1
    waited[0] = sum(waited)
    return waited


@pytest.mark.parametrize("k", [1, 2, 3, 5])
@pytest.mark.parametrize("s", [0, 1, 2, 3, 7])
def test_ssp_waits_are_those_of_a_simulated_run(s: int, k: int) -> None:
    for p, t in product([1, 2, 3, 5], [0, 1, 2, 5, 12, 20]):
        predicted = [f.ssp_waits(p, r, t, s, k) for r in range(p)]
        assert predicted == waits(p, t, s, k), (p, t)


def test_ssp_really_waits() -> None:
    assert waits(p=3, t=10, s=1, k=2) == [7, 0, 7]


@given(ranks, st.integers(0, 40), st.integers(0, 9), st.integers(1, 9))
def test_more_slack_never_means_more_waits(p: int, t: int, s: int, k: int) -> None:
    assert f.ssp_waits(p, 0, t, s + 1, k) <= f.ssp_waits(p, 0, t, s, k)
    assert f.ssp_waits(p, 0, t, s, k) <= f.ssp_waits(p, 0, t + 1, s, k)
    assert f.ssp_waits(p, 0, t, t, k) == 0


@given(st.integers(1, 64), st.integers(0, 999), width, steps)
def test_the_server_handles_what_all_workers_send(
    p: int, n: int, b: int, t: int
) -> None:
    workers = range(1, p)
    assert f.ssp_updates(p, 0, t) == sum(f.ssp_updates(p, r, t) for r in workers)
    server = f.ssp_bytes(p, 0, n, b, t)
    assert server == sum(f.ssp_bytes(p, r, n, b, t) for r in workers)


def gap(p: int, t: int, s: int, k: int) -> int:
    """The greatest lead of a read, in a run in which pushes come one by one."""
    done, lead, waiting = [0] * p, 0, list(range(1, p))
    due: list[tuple[int, int]] = []
    now = 0
    while waiting or due:
        for w in [w for w in waiting if done[w] - min(done[1:]) <= s]:
            waiting.remove(w)
            lead = max(lead, done[w] - min(done[1:]))
            due.append((now + (k if w == 1 else 1), w))
        now, w = min(due)
        due.remove((now, w))
        done[w] += 1
        if done[w] < t:
            waiting.append(w)
    return lead


@pytest.mark.parametrize("k", [1, 2, 3, 5])
@pytest.mark.parametrize("s", [0, 1, 2, 3, 7])
def test_ssp_gaps_are_those_of_a_simulated_run(s: int, k: int) -> None:
    for p, t in product([2, 3, 5], [1, 2, 5, 12, 20]):
        assert f.ssp_gap(p, t, s, k) == gap(p, t, s, k), (p, t)


# Hogwild


@given(ranks, st.integers(0, 30), st.integers(0, 30), steps)
def test_an_entry_keeps_one_increment_per_step_however_many_share_it(
    p: int, apart: int, o: int, t: int
) -> None:
    s = apart + o
    covered = {r * apart + i for r in range(p) for i in range(s)}
    assert f.hogwild_applied(p, t, s, o) == t * len(covered)
    assert f.hogwild_applied(p, t, s, 0) == p * t * s


# Pipelines


def one_f_one_b(p: int, r: int, m: int) -> list[tuple[str, int]]:
    """Stage r's order: warm up, then one forward one backward, then drain."""
    warm = min(m, p - 1 - r)
    order = [("F", i) for i in range(warm)]
    for i in range(m - warm):
        order += [("F", warm + i), ("B", i)]
    return order + [("B", i) for i in range(m - warm, m)]


def ends(p: int, m: int, f: int, b: int) -> dict[tuple[int, str, int], int]:
    """When each (stage, kind, micro-batch) ends, started as early as it can be."""
    todo = [one_f_one_b(p, r, m) for r in range(p)]
    free, end = [0] * p, dict[tuple[int, str, int], int]()
    while any(todo):
        before = len(end)
        for r in range(p):
            while todo[r]:
                kind, i = todo[r][0]
                peer = r - 1 if kind == "F" else r + 1
                if 0 <= peer < p and (peer, kind, i) not in end:
                    break
                start = max(free[r], end.get((peer, kind, i), 0))
                free[r] = end[r, kind, i] = start + (f if kind == "F" else b)
                todo[r].pop(0)
        assert len(end) > before, "the schedule is stuck"
    return end


@pytest.mark.parametrize("p", [1, 2, 3, 4, 8])
@pytest.mark.parametrize("m", [1, 2, 4, 7, 16])
def test_pipeline_formulas_are_those_of_a_simulated_flush(p: int, m: int) -> None:
    end = max(ends(p, m, f=1, b=2).values())
    assert f.pipeline_makespan(p, m, 1, 2) == end
    assert f.pipeline_idle(p, 1, 2) == end - m * (1 + 2)
    assert f.pipeline_bubble(p, m) == f.pipeline_idle(p, 1, 2) / end
    for r in range(p):
        held = [1 if kind == "F" else -1 for kind, _ in one_f_one_b(p, r, m)]
        most = max(sum(held[: i + 1]) for i in range(len(held)))
        assert f.one_f_one_b_in_flight(p, r, m) == most


@given(ranks, st.integers(1, 99), st.integers(0, 9999))
def test_each_cut_is_crossed_twice_by_every_micro_batch(p: int, m: int, a: int) -> None:
    sent = [f.pipeline_bytes(p, r, m, a) for r in range(p)]
    assert sum(sent) == 2 * (p - 1) * m * a
    assert sent == [m * a * ((r > 0) + (r < p - 1)) for r in range(p)]


@given(st.integers(2, 64), st.integers(1, 999))
def test_more_micro_batches_make_a_smaller_bubble(p: int, m: int) -> None:
    assert 0 < f.pipeline_bubble(p, m + 1) < f.pipeline_bubble(p, m) < 1


@pytest.mark.parametrize(
    ("m", "ratio"), [(1, 7), (2, 3.5), (4, 1.75), (8, 0.875), (32, 0.21875)]
)
def test_bubble_of_eight_stages_as_the_playbook_prints_it(m: int, ratio: float) -> None:
    """The Ultra-Scale Playbook prints idle over useful time, not over the whole."""
    bubble = f.pipeline_bubble(8, m)
    assert bubble / (1 - bubble) == pytest.approx(ratio, rel=1e-12)


# ZeRO stage 3

ZERO_TABLE_1: dict[
    int, dict[int, float]
] = {  # Rajbhandari et al. 2020, table 1, P_os+g+p: GB by ranks
    7_500_000_000: {1: 120, 4: 30, 16: 7.5, 64: 1.88, 256: 0.47, 1024: 0.12},
    128_000_000_000: {1: 2048, 4: 512, 16: 128, 64: 32, 256: 8, 1024: 2},
    1_000_000_000_000: {1: 16000, 4: 4000, 16: 1000, 64: 250, 256: 62.5, 1024: 15.6},
}


@pytest.mark.parametrize("n", ZERO_TABLE_1)
def test_state_is_that_of_table_1(n: int) -> None:
    """Four float32 values are the paper's 16 bytes of mixed precision."""
    for p, printed in ZERO_TABLE_1[n].items():
        digit = 0.01 if printed < 2 else 0.1
        held = f.zero_3_state_bytes(p, n, 1, 4) / 1e9
        assert abs(held - printed) < digit, p


@given(ranks, sizes)
def test_shards_cover_a_unit_with_less_than_one_row_of_padding(p: int, n: int) -> None:
    assert n <= p * f.zero_3_shard(p, n) < n + p
    assert f.zero_3_shard(p, n) == f.chunk(n, p, 0)
    assert f.zero_3_gathered_bytes(p, n, 4) == 4 * p * f.zero_3_shard(p, n)


@given(ranks, sizes, st.integers(0, 9), width, steps)
def test_volume_is_three_shares_of_a_ring(
    p: int, shard: int, u: int, b: int, t: int
) -> None:
    """All-reduce sends two shares: stage 3 sends 50 % more."""
    ring = f.ring_all_reduce_bytes(p, 0, p * shard, b)
    assert 2 * f.zero_3_volume(p, p * shard, u, b, t) == 3 * ring * u * t
    assert f.zero_3_calls(u, t) == 3 * u * t


# Tensor parallelism and top-k


def test_four_all_reduces_a_layer_as_megatron_draws_them() -> None:
    assert 2 * f.tensor_parallel_calls(layers=1) == 4
    one = 3 * 16 * 8 * 4
    sizes = {"layers": 5, "batch": 3, "tokens": 16, "width": 8, "itemsize": 4}
    assert f.tensor_parallel_payload(**sizes) == 5 * 4 * one


@given(st.integers(2, 64), st.integers(1, 999), width, steps)
def test_top_k_grows_with_the_ranks_and_dense_does_not(
    p: int, k: int, b: int, t: int
) -> None:
    sent = f.top_k_gathered(p, k, b, t)
    assert sent == (p - 1) * t * (k * b + k * 4)
    assert sent == (p - 1) * f.top_k_payload(k, b, t)
    assert f.paired_gathers(t) == t + t


@given(st.integers(0, 999), width, steps)
def test_random_k_sends_what_top_k_sends_but_no_places(k: int, b: int, t: int) -> None:
    places = 4 * k * t
    assert f.random_k_payload(k, b, t) == f.top_k_payload(k, b, t) - places
    assert 2 * f.random_k_calls(t) == f.paired_gathers(t)


@given(ranks, st.integers(0, 999), width, steps)
def test_a_merging_tree_sends_k_pairs_twice_over_each_edge(
    p: int, k: int, b: int, t: int
) -> None:
    sent = [f.global_top_k_bytes(p, r, k, b, t) for r in range(p)]
    assert sum(sent) == 2 * (p - 1) * f.top_k_payload(k, b, t)
    assert max(sent) <= (p - 1).bit_length() * f.top_k_payload(k, b, t)
    assert f.global_top_k_rounds(p, t) == 2 * t * (p - 1).bit_length()
    assert f.global_top_k_nonzeros(k) == k


@given(st.integers(2, 9), st.integers(1, 9), st.integers(1, 99), width, steps)
def test_two_levels_send_a_node_size_fewer_entries_out_of_a_node_than_a_flat_ring(
    nodes: int, g: int, k: int, b: int, t: int
) -> None:
    p = nodes * g
    uplink = g * f.hierarchical_top_k_between(p, k, b, t, g)
    # Of the same density: each rank selects from a whole tensor, not from a shard.
    flat = f.top_k_gathered(p, g * k, b, t)
    assert flat >= g * uplink
    assert flat == uplink * (p - 1) // (nodes - 1)
    assert f.hierarchical_top_k_between(p, k, b, t, p) == 0
    assert f.hierarchical_top_k_between(p, k, b, t, 1) == f.top_k_gathered(p, k, b, t)


@given(sizes, st.integers(1, 9), st.integers(1, 9), width, steps)
def test_a_nodes_residuals_are_one_tensor(
    n: int, nodes: int, g: int, b: int, t: int
) -> None:
    p = nodes * g
    shards = [f.hierarchical_top_k_residual(p, r, n, b, g) for r in range(g)]
    assert sum(shards) == n * b
    inside = [f.hierarchical_top_k_inside(p, r, n, b, t, g) for r in range(p)]
    assert sum(inside) == nodes * t * f.ring_all_reduce_total(g, n, b)
    assert f.hierarchical_top_k_rounds(p, t, g) == 2 * t * (g - 1 + nodes - 1)


@given(st.integers(2, 99), st.integers(1, 10**4), st.integers(1, 99), width)
def test_workers_send_a_switch_half_of_what_a_ring_sends(
    p: int, n: int, packet: int, b: int
) -> None:
    sent = [f.in_network_bytes(p, r, n, b) for r in range(p)]
    workers = p - 1
    # All that workers send, and the switch as much again; a ring sends it twice.
    assert sum(sent[1:]) == sent[0] == n * b * workers
    assert f.ring_all_reduce_total(workers, n, b) == 2 * (workers - 1) * n * b
    packets = -(-n // packet)
    rounds = [f.in_network_rounds(p, n, packet, s) for s in (1, packets, 2 * packets)]
    assert rounds == [workers * (packets + 1)] + [2 * workers * packets] * 2
    assert f.in_network_pool(p, 0, packet, 3, b) == 3 * packet * b
    assert f.in_network_pool(p, 1, packet, 3, b) == 0


@given(st.integers(1, 10**6), st.integers(1, 999), st.integers(0, 9), steps)
def test_warm_up_sends_a_quarter_as_much_in_each_stage(
    n: int, k: int, warmup: int, t: int
) -> None:
    stages = [max(k, n // 4**i) for i in (1, 2, 3, 4)]
    sent = [each for each in stages for _ in range(warmup)] + [k] * t
    assert f.deep_gradient_compression_entries(n, k, t, warmup) == sum(sent[:t])
    pairs = f.deep_gradient_compression_payload(n, k, 8, t, 0)
    assert pairs == f.top_k_payload(k, 8, t)


@given(st.integers(2, 64), st.integers(1, 999))
def test_the_first_stage_of_warm_up_sends_p_quarters_of_a_ring(p: int, k: int) -> None:
    n = 4 * p * k
    gathered = (p - 1) * f.deep_gradient_compression_payload(n, 1, 4, 1, 1)
    assert 4 * gathered == p * f.ring_all_reduce_bytes(p, 0, n, 4)


@given(st.integers(0, 10**6), st.integers(1, 256), st.integers(0, 9), width, steps)
def test_every_chunk_sends_as_many_components(
    n: int, c: int, k: int, b: int, t: int
) -> None:
    chunks = len(range(0, n, c))
    sent = f.momentum_components_payload(n, c, k, b, t)
    assert sent == f.top_k_payload(chunks * k, b, t)


@given(st.integers(2, 64), st.integers(0, 99), st.integers(1, 99), width)
def test_pairs_win_until_the_ranks_touch_two_tables(
    p: int, s: int, h: int, b: int
) -> None:
    sent = f.sparse_gradient_bytes(p, 0, s, h, b)
    assert sent == (p - 1) * (s * h * b + 4 * s)
    fitting = p * s * (h * b + 4) // (2 * h * b)
    assert f.sparse_gradient_wins(p, 0, s, fitting, h, b) == 0
    assert f.sparse_gradient_wins(p, 0, s, fitting + 1, h, b) == 1


@given(ranks, sizes, width)
def test_bits_both_ways_do_not_grow_with_the_ranks(p: int, n: int, b: int) -> None:
    way = f.sign_vote_bytes(p, n, 1)
    assert 8 * way <= n + 8 * (p - 1)  # and what fills up the last byte of a stripe
    assert f.one_bit_bytes(p, n, b, 1) == 2 * (way + (p - 1) * 2 * b)
    assert f.one_bit_gathered(p, n) >= way
    assert f.one_bit_gathered(p, 8 * p * n) == p * f.sign_vote_bytes(p, 8 * p * n, 1)


# Time


@given(ranks, sizes)
def test_seconds_are_rounds_and_bytes_of_the_ring(p: int, c: int) -> None:
    """One second a message, or one a byte, counts messages, or bytes."""
    n = c * p
    assert f.all_reduce_seconds(p, n, 1, 0) == f.ring_all_reduce_rounds(p)
    sent = f.ring_all_reduce_bytes(p, 0, n, 1)
    assert f.all_reduce_seconds(p, n, 0, 1) == pytest.approx(sent, rel=1e-12)
    half = f.all_gather_seconds(p, n, 3e-6, 1e-9)
    assert f.all_reduce_seconds(p, n, 3e-6, 1e-9) == pytest.approx(2 * half, rel=1e-12)


def test_two_ranks_gather_by_one_message_of_half() -> None:
    message = f.p2p_seconds(message_bytes=500, alpha=1e-5, beta=1e-9)
    assert f.all_gather_seconds(2, 1000, 1e-5, 1e-9) == pytest.approx(message)
