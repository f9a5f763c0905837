"""Our collectives do what they should to any tensor on any few ranks, or refuse it.

Hypothesis draws tensors; all of them go through all collectives in one launch.
"""

from collections.abc import Iterable
from dataclasses import dataclass
from math import prod

import pytest
import torch
import torch.distributed as dist
from hypothesis import example, given, settings
from hypothesis import strategies as st
from torch import Tensor

from atlas.collectives.calls import CALLS
from atlas.launch import launch
from atlas.meter import meter
from atlas.views.collectives import COLLECTIVES, node_size
from exemplars.communication_pattern.collective import (
    all_to_all,
    halving_doubling,
    recursive_doubling,
)
from exemplars.runtime import World

DTYPES = (torch.float32, torch.float64, torch.bfloat16, torch.int64)
#: Small tensors: the ranks outnumber the elements, and no number divides another.
SHAPES = st.lists(st.integers(0, 7), max_size=3).map(tuple)
COUNTS = [2, 3] + [pytest.param(p, marks=pytest.mark.nightly) for p in (1, 4, 5)]
CASES_A_LAUNCH = 12
OURS = {name: c for name, c in COLLECTIVES.items() if c.technique}
#: What takes a tensor as it is, and so has to cope with its strides.
WHOLE = [n for n, c in OURS.items() if c.kind == "all-reduce"]
WHOLE += ["pairwise reduce-scatter"]
EXACT, ROUGH, ODD = "exact", "rough", "odd"


@dataclass(frozen=True)
class Case:
    """A tensor on every rank: sums that are exact, that round, or are no numbers."""

    shape: tuple[int, ...]
    dtype: torch.dtype
    values: str
    seed: int
    strided: bool = False

    def on(self, rank: int) -> Tensor:
        """This rank's tensor."""
        source = torch.Generator().manual_seed(1000 * self.seed + rank)
        shape = (*self.shape, 2) if self.strided else self.shape
        if self.values == ROUGH and self.dtype.is_floating_point:
            x = torch.randn(shape, generator=source).to(self.dtype)
        else:
            x = torch.randint(-8, 9, shape, generator=source).to(self.dtype)
        if self.values == ODD and self.dtype.is_floating_point:
            for odd in (torch.nan, torch.inf, -torch.inf):
                x[torch.rand(shape, generator=source) < 0.1] = odd
        return x[..., 0] if self.strided else x


CASES = st.builds(
    Case,
    SHAPES,
    st.sampled_from(DTYPES),
    st.sampled_from((EXACT, ROUGH, ODD)),
    st.integers(0, 999),
    st.booleans(),
)
EDGES = [Case((), dtype, EXACT, 1) for dtype in DTYPES]
EDGES += [Case((0,), torch.float32, EXACT, 2), Case((1,), torch.int64, EXACT, 3)]
EDGES += [Case((5, 3), torch.float64, ROUGH, 4, strided=True)]
#: What every number of ranks up to six divides, for an all-to-all.
EDGES += [Case((60,), dtype, ROUGH, 6) for dtype in DTYPES]
EDGES += [Case((61,), dtype, values, 5) for dtype in DTYPES for values in (ROUGH, ODD)]


def expected(kind: str, every: list[Tensor], rank: int) -> Tensor:
    """By its definition, on one process."""
    p = len(every)
    if kind == "broadcast":
        return every[0]
    total = torch.stack([plain(x) for x in every]).sum(0)
    if kind == "all-reduce":
        return total
    if kind == "reduce-scatter":
        return total.flatten().tensor_split(p)[rank]
    parts = [x.flatten().tensor_split(p) for x in every]
    if kind == "all-gather":
        return torch.cat([parts[q][q] for q in range(p)])
    return torch.cat([parts[q][rank] for q in range(p)])


def plain(x: Tensor) -> Tensor:
    """In the widest type of its kind: sums of a few are then exact."""
    return x.double() if x.dtype.is_floating_point else x


def equal(a: Tensor, b: Tensor) -> bool:
    """The same numbers, and the same that are none."""
    return torch.allclose(plain(a), plain(b), rtol=0, atol=0, equal_nan=True)


def wrong(case: Case, kind: str, got: Tensor, p: int, rank: int) -> str | None:
    """What is wrong with a result, if anything."""
    every = [case.on(q) for q in range(p)]
    want = expected(kind, every, rank)
    got = got.reshape(want.shape)
    if got.dtype != case.dtype:
        return f"dtype {got.dtype}"
    summed = kind in ("all-reduce", "reduce-scatter")
    if case.values != ROUGH or not summed or not case.dtype.is_floating_point:
        return (
            None if equal(got, want) else f"{got.tolist()} instead of {want.tolist()}"
        )
    #: p - 1 additions, each off by half a unit of a partial sum, which is at most
    #: the sum of the magnitudes.
    most = torch.stack(every).double().abs().sum(0).max() if want.numel() else 0.0
    slack = (p - 1) * torch.finfo(case.dtype).eps * most
    off = (got.double() - want).abs().max() if want.numel() else 0.0
    return None if off <= slack else f"off by {off:.2g}, may be {slack:.2g}"


def run(w: World, cases: Iterable[Case]) -> list[tuple[str, Case, str | None, bytes]]:
    """All cases through all collectives: what is wrong, and the bits of each result."""
    found = []
    for case in cases:
        for name, c in OURS.items():
            x = case.on(w.rank)
            if case.strided and name not in WHOLE:
                x = x.contiguous()
            if not divides(c.kind, x, w.size):
                continue
            try:
                got = CALLS[name](x, node_size(w.size))()
            except ValueError as error:
                refused = (
                    str(error) if "\n" in str(error) or x.is_contiguous() else None
                )
                found.append((name, case, refused, b""))
                continue
            bad = wrong(case, c.kind, got, w.size, w.rank)
            found.append((name, case, bad, bits(got)))
    return found


def bits(x: Tensor) -> bytes:
    """Of the numbers; all NaN alike, since a sum of two keeps either one's sign."""
    flat = x.flatten()
    numbers = torch.where(flat.isnan(), torch.zeros_like(flat), flat)
    kept = [t.contiguous().view(torch.uint8) for t in (numbers, flat.isnan())]
    return b"".join(t.numpy().tobytes() for t in kept)


def divides(kind: str, x: Tensor, p: int) -> bool:
    """An all-to-all has equal blocks here: the library takes no other."""
    return kind != "all-to-all" or x.numel() % p == 0


@pytest.mark.parametrize("p", COUNTS)
@settings(max_examples=2)
@example(cases=EDGES)
@given(cases=st.lists(CASES, min_size=CASES_A_LAUNCH, max_size=CASES_A_LAUNCH))
def test_any_tensor_gives_the_sum_or_the_right_order(p: int, cases: list[Case]) -> None:
    ranks = launch(run, p, cases)
    problems = [(n, c, bad) for seen in ranks for n, c, bad, _ in seen if bad]
    assert not problems
    for same in zip(*ranks, strict=True):
        name, case, _, _ = same[0]
        if OURS[name].kind in ("all-reduce", "all-gather", "broadcast"):
            assert len({kept for *_, kept in same}) == 1, f"{name}: {case}"


def as_the_library(w: World, cases: Iterable[Case]) -> list[str]:
    """All-reduces whose NaN and infinities are not where gloo's are."""
    bad = []
    for case in cases:
        theirs = case.on(w.rank).contiguous()
        dist.all_reduce(theirs)
        for name in (n for n, c in OURS.items() if c.kind == "all-reduce"):
            x = case.on(w.rank).contiguous()
            ours = CALLS[name](x, node_size(w.size))()
            if not equal(ours, theirs):
                bad.append(f"{name}: {case}")
    return bad


@pytest.mark.parametrize("p", COUNTS)
def test_nan_and_infinity_end_where_the_library_has_them(p: int) -> None:
    cases = [Case((41,), dtype, ODD, seed) for seed in (1, 2) for dtype in DTYPES[:3]]
    assert launch(as_the_library, p, cases) == [[]] * p


def folded(w: World) -> list[dict[int, int]]:
    """Bytes by receiver, of both algorithms that need a power of two."""
    found = []
    for reduce in (halving_doubling.all_reduce, recursive_doubling.all_reduce):
        with meter() as moved:
            reduce(torch.ones(7))
        found.append(dict(moved.sent_to))
    return found


@pytest.mark.parametrize("p", [3, pytest.param(5, marks=pytest.mark.nightly)])
def test_ranks_beyond_a_power_of_two_are_folded_in(p: int) -> None:
    """As in MPICH and Rabenseifner: each hands its tensor to one rank and waits."""
    core = 2 if p == 3 else 4
    ranks = launch(folded, p)
    for extra in range(core, p):
        assert ranks[extra] == [{extra - core: 7 * 4}] * 2
    for other in range(p - core, core):
        assert all(set(sent) <= set(range(core)) for sent in ranks[other])


def in_columns(w: World) -> str:
    """Blocks of columns, which are not contiguous, or what is said of them."""
    x = torch.arange(6.0 * w.size).view(6, w.size)
    into = [torch.empty(6, 1) for _ in range(w.size)]
    try:
        all_to_all.all_to_all(list(x.tensor_split(w.size, dim=1)), into)
    except RuntimeError as error:
        return str(error)
    return "done"


def test_blocks_that_are_not_contiguous_are_refused_in_one_line() -> None:
    assert launch(in_columns, 2) == ["input tensor has to be contiguous"] * 2


def test_every_collective_of_the_table_is_called_by_its_name() -> None:
    assert set(CALLS) == set(COLLECTIVES)


def test_the_edges_have_what_they_are_for() -> None:
    sizes = {prod(case.shape) for case in EDGES}
    assert {0, 1} < sizes
    assert any(case.strided for case in EDGES)
    assert any(case.on(0).isnan().any() for case in EDGES if case.values == ODD)
