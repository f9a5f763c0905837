"""Claims hold at other sizes than the default ones, or the sizes are refused."""

import ast
import re
from pathlib import Path
from typing import Any
from zlib import crc32

import pytest
from daily import allowed, marks
from hypothesis import HealthCheck, given, seed, settings
from hypothesis import strategies as st

from atlas import measure as measuring
from atlas.launch import LaunchError
from atlas.mutants.parts import parts
from atlas.taxonomy import Technique, load
from atlas.verdict import judge

ROOT = Path(__file__).resolve().parents[2]
#: How many examples are drawn on how many ranks; on two with every change.
EXAMPLES = {2: 1, 3: 2}
#: Other sizes than the largest are tried: twice the default takes twice as long.
MOST = 2

Sizes = dict[str, Any]


def defaults(technique: Technique) -> Sizes:
    """The sizes that main takes, read as text."""
    source = (ROOT / technique.exemplar).read_text(encoding="utf-8")
    arguments = parts(source).main.args
    pairs = zip(arguments.kwonlyargs, arguments.kw_defaults, strict=True)
    found = {a.arg: value(default) for a, default in pairs if default is not None}
    return {name: default for name, default in found.items() if default is not None}


def value(default: ast.expr) -> Any:
    """A default that is written as a value; None for any other, which stays."""
    try:
        return ast.literal_eval(default)
    except ValueError:
        return None


def prime(n: int) -> int:
    """The first prime from here on."""
    while n < 2 or any(n % d == 0 for d in range(2, int(n**0.5) + 1)):
        n += 1
    return n


def others(default: Any) -> list[Any]:
    """Values that a size may have instead, the most likely to be legal first."""
    match default:
        case bool():
            return [not default, default]
        case int():
            found = (default, MOST * default, default + 1, default - 1)
            found += (prime(default // 2), max(1, default // 2), 1)
            return [n for n in dict.fromkeys(found) if 1 <= n <= max(3, MOST * default)]
        case float():
            return [default, default / 2, default * 1.5]
        case tuple() if default and all(isinstance(n, int) for n in default):
            longer = tuple(n + 1 for n in default)
            return list(dict.fromkeys((default, longer, default[::-1])))
    return [default]


def legal(sizes: Sizes) -> st.SearchStrategy[Sizes]:
    """Some sizes changed, the others as they come; never none."""
    names = [name for name in sizes if len(others(sizes[name])) > 1]
    changed = {name: st.sampled_from(others(sizes[name])) for name in names}
    return st.fixed_dictionaries(changed).filter(
        lambda drawn: any(drawn[name] != sizes[name] for name in names)
    )


def refused(error: LaunchError, sizes: Sizes) -> bool:
    """Refused in one line; a ValueError has to show a value that was given."""
    if error.refused:
        return "\n" not in str(error)
    said = re.fullmatch(r"rank \d+: ValueError: (.+)", error.summary)
    numbers = {str(n) for v in sizes.values() for n in (v if _many(v) else [v])}
    return bool(said) and bool(numbers & set(re.findall(r"[\w.]+", said[1])))


def _many(size: Any) -> bool:
    return isinstance(size, tuple)


def holds(technique: Technique, ranks: int, sizes: Sizes) -> bool:
    """Whether it ran; then every claim holds. Else it was refused in one line."""
    try:
        run = measuring.measure(technique, ranks, **sizes)
    except LaunchError as error:
        if not refused(error, {**defaults(technique), **sizes}):
            pytest.fail(f"{sizes}\n{error}")
        return False
    wrong = [v for v in judge(technique, run) if v.ok is False]
    assert not wrong, f"{sizes}\n" + "\n".join(map(str, wrong))
    return True


def one_by_one(sizes: Sizes) -> list[Sizes]:
    """One size changed at a time."""
    return [{n: v} for n, d in sizes.items() for v in others(d) if v != d]


WRITTEN = [t for t in load(ROOT).techniques.values() if (ROOT / t.exemplar).exists()]
CASES = [
    pytest.param(t, p, id=f"{t.id}-{p}", marks=marks(p == counts[0]))
    for t in WRITTEN
    if defaults(t)  # that all have some, test_exemplar_rules.py checks
    for counts in [allowed(t, EXAMPLES)]
    for p in counts
]


@pytest.mark.parametrize(("technique", "ranks"), CASES)
def test_claims_hold_at_other_sizes(technique: Technique, ranks: int) -> None:
    ran: list[Sizes] = []

    @seed(crc32(f"{technique.id} {ranks}".encode()))  # the same on every run
    @settings(
        max_examples=EXAMPLES[ranks],
        database=None,
        suppress_health_check=[HealthCheck.filter_too_much, HealthCheck.too_slow],
    )
    @given(sizes=legal(defaults(technique)))
    def check(sizes: Sizes) -> None:
        if holds(technique, ranks, sizes):
            ran.append(sizes)

    check()
    for sizes in one_by_one(defaults(technique)):
        if not ran and holds(technique, ranks, sizes):
            ran.append(sizes)
    assert ran, f"{technique.id} runs at no other sizes than its own"


def test_a_traceback_is_no_refusal() -> None:
    sizes = {"elements": 7, "nodes": (2, 3)}
    assert refused(LaunchError("7 elements: too few", refused=True), sizes)
    assert refused(LaunchError("rank 1: ValueError: nodes of 3 ranks"), sizes)
    assert not refused(LaunchError("rank 1: ValueError: no dimension"), sizes)
    assert not refused(LaunchError("rank 1: RuntimeError: 7 of 8"), sizes)


def test_other_sizes_are_other_and_positive() -> None:
    for default in (1, 2, 6, 100_003, 0.5, (2, 2), True):
        found = others(default)
        assert len(set(found)) == len(found) > 1, default
        assert all(n > 0 for n in found if not isinstance(n, tuple | bool))
