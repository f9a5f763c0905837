"""What the sync-strategy exemplars say of themselves, held against simulations."""

import math
from itertools import product

import pytest
import torch
from by_name import f

from atlas.schedule import Action, in_flight, simulate
from exemplars.sync_strategy.asynchronous import n_softsync
from exemplars.sync_strategy.consensus import d_psgd, push_sum, rotating_partners
from exemplars.sync_strategy.layer_local import local_parallelism
from exemplars.sync_strategy.pipeline_flush import gpipe
from exemplars.sync_strategy.pipeline_stale import weight_stashing
from exemplars.sync_strategy.synchronous import backup_workers

PIPELINES = [(1, 3), (2, 4), (4, 4), (4, 8), (3, 5)]
SECONDS = {"F": 1.0, "B": 2.0}


def test_the_table_of_gpipe_is_its_schedule() -> None:
    drawn = simulate([list(gpipe.gpipe(4))] * 3, SECONDS)
    for s in range(3):
        cells = [". "] * int(drawn.makespan)
        for x in (x for x in drawn.spans if x.rank == s):
            for second in range(int(x.start), int(x.end)):
                cells[second] = f"{x.name}{x.label}"
        assert f"    stage {s}  {' '.join(cells).rstrip()}\n" in (gpipe.__doc__ or "")


@pytest.mark.parametrize(("p", "m"), PIPELINES)
def test_bubble_and_memory_of_gpipe_are_those_of_its_schedule(p: int, m: int) -> None:
    drawn = simulate([list(gpipe.gpipe(m))] * p, SECONDS)
    assert drawn.makespan == f.pipeline_makespan(p, m, 1, 2)
    assert drawn.idle == [f.pipeline_idle(p, 1, 2)] * p
    assert in_flight(gpipe.gpipe(m)) == f.gpipe_in_flight(m)


def versions(actions: list[Action]) -> list[str]:
    """The schedule, with the version that each batch goes forward through."""
    words, version = [], 0
    for kind, i in actions:
        words.append(f"F{i}v{version}" if kind == "F" else f"B{i}")
        version += kind == "B"
    return words


def test_the_table_of_weight_stashing_is_its_schedule() -> None:
    text = weight_stashing.__doc__ or ""
    for s in range(3):
        words = versions(list(weight_stashing.without_flush(s, 3, 9)))
        line = next(x for x in text.splitlines() if f"stage {s} " in x)
        drawn = line.split()[2:-1]
        assert len(drawn) == 9 - s
        assert drawn == words[: len(drawn)]


@pytest.mark.parametrize(("p", "m"), PIPELINES)
def test_an_unflushed_pipeline_idles_once_in_a_training(p: int, m: int) -> None:
    stages = [list(weight_stashing.without_flush(s, p, m)) for s in range(p)]
    drawn = simulate(stages, SECONDS)
    assert drawn.makespan == f.pipeline_makespan(p, m, 1, 2)
    assert drawn.idle == [f.pipeline_idle(p, 1, 2)] * p


def ages(p: int, t: int, k: int) -> dict[int, list[int]]:
    """Second by second: who is due pushes, in order of rank, and reads again."""
    found: dict[int, list[int]] = {q: [] for q in range(1, p)}
    read, version = dict.fromkeys(found, 0), 0
    for second in range(1, t + 1):
        for q, old in found.items():
            if second % (k if q == 1 else 1) == 0:
                old.append(version - read[q])
                version += 1
                read[q] = version
    return found


@pytest.mark.parametrize(("p", "k"), [*product([2, 3, 4, 8], [1, 2, 3, 5])])
def test_downpour_is_as_stale_as_a_simulated_run(p: int, k: int) -> None:
    t = 2 * k + 1
    slow, *others = ages(p, t, k).values()
    assert slow[1] == f.downpour_straggler_staleness(p, k)
    assert max([0, *(age for a in others for age in a)]) == f.downpour_staleness(p)
    pushed = [len(slow), *map(len, others)]
    assert pushed == [f.downpour_updates(p, r, t, k) for r in range(1, p)]
    assert sum(pushed) == f.downpour_updates(p, 0, t, k)


@pytest.mark.parametrize(("p", "k"), [*product([3, 4, 5, 8], [1, 2, 3, 5])])
def test_a_slow_worker_counts_for_what_its_ages_in_a_simulated_run_say(
    p: int, k: int
) -> None:
    slow, other, *_ = ages(p, 4 * k, k).values()
    one = 1 / max(1, slow[-1])
    many = sum(1 / max(1, age) for age in other[-k - 1 : -1])
    assert one / many == pytest.approx(f.staleness_aware_share(p, k), abs=1e-12)
    assert f.staleness_aware_share(p, k) <= 1 / k**2 + 1e-12
    if k == 1:
        whole = sum(1 / max(1, age[-1]) for age in ages(p, 4, 1).values())
        assert whole == pytest.approx(f.staleness_aware_round(p), abs=1e-12)


def softsync(p: int, n: int, k: int = 1) -> dict[int, list[list[int]]]:
    """By worker, [version it read, its update] of every gradient, second by second."""
    c = max(1, (p - 1) // n)
    found: dict[int, list[list[int]]] = {q: [] for q in range(1, p)}
    read, came = dict.fromkeys(found, 0), 0
    for second in range(1, 6 * k + 1):
        for q, pairs in found.items():
            if second % (k if q == 1 else 1) == 0:
                pairs.append([read[q], came // c])
                came += 1
                read[q] = came // c
    return found


@pytest.mark.parametrize(("p", "n"), [*product([2, 3, 4, 5, 8, 13], [1, 2, 3, 4, 7])])
def test_softsync_is_as_stale_as_a_simulated_run(p: int, n: int) -> None:
    if n >= p:
        return
    made: dict[int, list[int]] = {}
    for pairs in softsync(p, n).values():
        for read, update in pairs:
            made.setdefault(update, []).append(update - read)
    c, workers = f.softsync_per_update(p, n), p - 1
    whole = [made[update] for update in sorted(made) if len(made[update]) == c]
    steady = whole[-(-workers // c) :]
    assert {sum(ages) for ages in steady} == {workers - 1}
    assert {min(ages) for ages in steady} == {f.softsync_youngest(p, n)}
    assert {max(ages) for ages in steady} == {f.softsync_oldest(p, n)}
    mean = f.softsync_mean_staleness(p, n)
    if workers % n == 0:
        assert mean == pytest.approx(n * (workers - 1) / workers)
        assert mean < n
    for k in (1, 2, 3, 5):
        slow = [update - read for read, update in softsync(p, n, k)[1]][1:]
        assert f.softsync_straggler_least(p, n, k) <= min(slow)
        assert max(slow) <= f.softsync_straggler(p, n, k)


def test_softsync_is_staler_than_n_where_n_does_not_divide_the_workers() -> None:
    assert f.softsync_mean_staleness(8, 4) == 6


def test_the_table_of_softsync_is_a_simulated_run() -> None:
    rows = [pairs[turn] for turn in range(2) for pairs in softsync(5, 2).values()]
    lines = (n_softsync.__doc__ or "").splitlines()
    read, age = (
        [*map(int, s.split()[-8:])] for s in lines if s[4:8] in ("vers", "age ")
    )
    assert read == [version for version, _ in rows]
    assert age == [update - version for version, update in rows]


def taken(p: int, t: int, b: int, k: int) -> tuple[list[int], int, int]:
    """Step by step: gradients of each worker, those dropped, and the last second."""
    clock = backup_workers.stalls(p - 1, k)
    free, made, dropped, now = [0.0] * p, [0] * p, 0, 0.0
    for step in range(t):
        start = [max(now, x) for x in free]
        ends = sorted((start[q] + clock(q, step), q) for q in range(1, p))
        now = ends[p - 2 - b][0]
        for place, (end, q) in enumerate(ends):
            if start[q] < now:
                free[q], made[q] = end, made[q] + 1
                dropped += place >= p - 1 - b
    return made[1:], dropped, int(max(free))


@pytest.mark.parametrize(("p", "k"), [*product([3, 4, 5, 8], [1, 2, 3, 5])])
def test_backup_workers_drop_what_a_simulated_run_drops(p: int, k: int) -> None:
    for t, b in product([1, 2, 5, 6, 9, 20], range(min(4, p - 1))):
        made, dropped, end = taken(p, t, b, k)
        assert made == [f.backup_gradients(p, q, t, b, k) for q in range(1, p)]
        assert sum(made) == f.backup_gradients(p, 0, t, b, k)
        assert dropped == f.backup_dropped(t, b, k) <= b * t
        assert end == f.backup_makespan(t, b, k)


@pytest.mark.parametrize("p", [1, 2, 3, 4, 5, 8, 33, 128])
def test_the_ring_mixes_by_its_second_eigenvalue(p: int) -> None:
    mixing = torch.zeros(p, p, dtype=torch.double)
    for r in range(p):
        near = d_psgd.neighbors(r, p)
        for q in (r, *near):
            mixing[r, q] = 1 / (len(near) + 1)
    assert torch.equal(mixing, mixing.T)
    assert torch.allclose(mixing.sum(0), torch.ones(p, dtype=torch.double))
    sizes = torch.linalg.eigvalsh(mixing).abs().sort(descending=True).values
    second = sizes[1].item() if p > 1 else 0.0
    if p > 2:
        printed = (1 + 2 * math.cos(2 * math.pi / p)) / 3
        assert second == pytest.approx(printed, abs=1e-12)
    assert second ** int(f.ring_mixing_halved(p)) <= 0.5
    if p > 3:
        assert math.ceil(math.log(0.5, second)) >= f.ring_mixing_halved_least(p)


@pytest.mark.parametrize("p", [3, 4, 5, 8, 33, 128])
def test_rotating_partners_choose_each_other(p: int) -> None:
    met = 0
    for step in range(3 * (p - 1).bit_length()):
        chosen = [rotating_partners.partner(r, p, step) for r in range(p)]
        assert [chosen[q] for q in chosen] == list(range(p))
        met += sum(q != r for r, q in enumerate(chosen))
    assert met == f.rotating_total_bytes(p, 1, 1, 3)
    assert met <= p * f.rotating_messages(p, 3)
    if p & (p - 1) == 0:
        assert met == p * f.rotating_messages(p, 3)


@pytest.mark.parametrize("p", [3, 4, 5, 8, 33, 128])
def test_push_sum_needs_its_weights_on_uneven_links_alone(p: int) -> None:
    assert f.push_sum_bytes(p, p - 1, 9, 8, 5) == 2 * 5 * 10 * 8
    for links in (push_sum.uneven, push_sum.exponential):
        mixing = torch.zeros(p, p, dtype=torch.double)
        for q in range(p):
            out = links(q, p, 0)
            if links is push_sum.uneven:
                assert len(out) * 8 == f.push_sum_bytes(p, q, 0, 8, 1)
            for r in (q, *out):
                mixing[r, q] = 1 / (len(out) + 1)
        assert torch.allclose(mixing.sum(0), torch.ones(p, dtype=torch.double))
        weights = torch.linalg.matrix_power(mixing, 64).sum(1)
        even = torch.allclose(weights, torch.ones(p, dtype=torch.double))
        assert even is (links is push_sum.exponential)


@pytest.mark.parametrize("p", [1, 2, 3, 4, 8, 33])
def test_springs_hold_up_to_their_limit_and_no_further(p: int) -> None:
    for times, holds in ((0.99, True), (1.01, False)):
        alpha = times * 2 / (p + 1)
        step = (1 - alpha) * torch.eye(p + 1, dtype=torch.double)
        step[p] = step[:, p] = alpha  # the center is last
        step[p, p] = 1 - alpha * p
        sizes = torch.linalg.eigvalsh(step).abs().sort(descending=True).values
        kept = (sizes - 1).abs().argmin()  # the mass
        others = torch.cat([sizes[:kept], sizes[kept + 1 :]])
        assert bool(others.max() < 1) is holds


@pytest.mark.parametrize(("p", "c"), [(4, 1), (4, 2), (4, 4), (5, 2), (8, 3)])
def test_chunks_cover_the_layers_and_send_back_only_inside(p: int, c: int) -> None:
    begins = [local_parallelism.ends_chunk(s - 1, p, c) for s in range(p + 1)]
    assert begins[0]
    assert begins[p]
    assert sum(begins[:p]) == c
    sent = [f.chunked_backward_bytes(p, r, c, 1, 1) for r in range(p)]
    assert sent == [int(not begun) for begun in begins[:p]]
