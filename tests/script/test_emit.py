"""The LaTeX and the JavaScript of a formula say what its Python says."""

import inspect
import json
import math
import re
import typing
from collections.abc import Callable, Sequence
from enum import StrEnum
from itertools import islice, product
from math import ceil, floor
from pathlib import Path
from typing import Any, NamedTuple

import pytest
import quickjs
from by_name import f
from hypothesis import assume, example, given, settings
from hypothesis import strategies as st

from atlas import taxonomy
from atlas.formulas import FORMULAS
from atlas.formulas.law import LawError
from atlas.formulas.ranges import AtLeast, Below, ranges
from atlas.script.formulas import javascript
from atlas.script.latex import formula_latex, latex, law_latex, symbol
from atlas.script.source import EXACT, ScriptError, arguments

ROOT = Path(__file__).parents[2]
p, r, n = symbol("ranks"), symbol("rank"), symbol("elements")


class Script:
    """A generated script in an engine of its own."""

    def __init__(self, *fns: Callable[..., Any]) -> None:
        self.engine = quickjs.Context()
        self.engine.eval(javascript(fns))

    def all(self, name: str, rows: Sequence[tuple[Any, ...]]) -> list[Any]:
        """A value for each row of arguments, or the message of what was thrown."""
        tries = (
            "JSON.stringify(rows.map(row => {"
            f"try {{ return atlasFormulas.{name}(...row); }}"
            "catch (error) { return error.name + ': ' + error.message; } }))"
        )
        return list(json.loads(self.engine.eval(f"rows = {json.dumps(rows)}; {tries}")))

    def __call__(self, name: str, *row: Any) -> Any:
        return self.all(name, [row])[0]


@pytest.fixture(scope="module")
def script() -> Script:
    return Script(*FORMULAS.values())


def same(python: float, other: float) -> bool:
    """Integers exactly, as far as a double can; fractions to the last digits."""
    if isinstance(python, int) and abs(python) < EXACT:
        return type(other) is int and other == python
    return math.isclose(python, other, rel_tol=1e-12)


# JavaScript: parity

#: Values of every argument, by the range it has.
SMALL: dict[object, list[float]] = {
    None: [-9, -1, 0, 1, 5, 1024],
    AtLeast(0): [0, 1, 7, 100_003],
    AtLeast(1): [1, 2, 3, 768],
    Below("ranks"): [0, 1, 2],
}
FEW: dict[object, list[float]] = {rule: row[:3] for rule, row in SMALL.items()}


def grid(name: str) -> list[tuple[float, ...]]:
    """Legal values of every argument, crossed."""
    names = arguments(FORMULAS[name])
    known, values = ranges(FORMULAS[name]), SMALL if len(names) < 6 else FEW
    columns = [values[known.get(key)] for key in names]
    rows = [dict(zip(names, row, strict=True)) for row in product(*columns)]
    return [tuple(row.values()) for row in rows if allowed(name, row)]


def allowed(name: str, row: dict[str, float]) -> bool:
    """Whether the formula takes these values; its refusals are tested below."""
    try:
        return math.isfinite(float(FORMULAS[name](**row)))
    except (ValueError, OverflowError):  # no double is so large
        return False


@pytest.mark.parametrize("name", FORMULAS)
def test_javascript_equals_python_on_a_grid(script: Script, name: str) -> None:
    rows = grid(name)
    assert rows
    found = script.all(name, rows)
    for row, other in zip(rows, found, strict=True):
        assert same(FORMULAS[name](*row), other), (row, other)


@pytest.mark.parametrize("name", FORMULAS)
@settings(max_examples=40)
@given(data=st.data())
def test_javascript_equals_python_anywhere(
    script: Script, name: str, data: st.DataObject
) -> None:
    hints = typing.get_type_hints(FORMULAS[name])
    kinds = {key: hints[key] for key in arguments(FORMULAS[name])}
    known = ranges(FORMULAS[name])
    whole = sum(kind is int for kind in kinds.values())
    most = int((EXACT // 64) ** (1 / max(1, whole)))  # their product stays exact
    row: dict[str, float] = {}
    for key, kind in kinds.items():
        if kind is float:
            row[key] = data.draw(st.floats(0, 1e12), key)
        elif isinstance(known.get(key), Below):
            row[key] = data.draw(st.integers(0, int(row["ranks"]) - 1), key)
        else:
            row[key] = data.draw(st.integers(1 if key in known else -most, most), key)
    assume(allowed(name, row))
    value = FORMULAS[name](**row)
    assume(isinstance(value, float) or abs(value) < EXACT)
    assert same(value, script(name, *row.values()))


@pytest.mark.parametrize("name", FORMULAS)
def test_javascript_refuses_in_the_words_of_python(script: Script, name: str) -> None:
    names, known = arguments(FORMULAS[name]), ranges(FORMULAS[name])
    for wrong, bad in product(names, (-1, -7)):
        if (name, wrong) == ("chunk", "index"):
            continue
        row = {key: int(not isinstance(known.get(key), Below)) for key in names}
        row[wrong] = bad
        with pytest.raises(ValueError, match=r"must|group|ranks") as caught:
            FORMULAS[name](**row)
        assert script(name, *row.values()) == f"RangeError: {caught.value}"


@pytest.mark.parametrize("bad", ["", "undefined", "NaN", "'4'", "2.5", "2**53", "null"])
def test_javascript_refuses_what_python_types_rule_out(
    script: Script, bad: str
) -> None:
    first = arguments(f.zero_3_shard)[0]
    with pytest.raises(quickjs.JSException, match=f"{first} = .*: not a whole number"):
        script.engine.eval(f"atlasFormulas.zero_3_shard({bad})")
    first = arguments(f.p2p_seconds)[0]
    with pytest.raises(quickjs.JSException, match=f"{first} = .*: not a number"):
        script.engine.eval("atlasFormulas.p2p_seconds(Infinity, 1, 1)")


def test_the_script_is_classic_and_defines_one_name() -> None:
    engine = quickjs.Context()
    before = engine.eval("Object.getOwnPropertyNames(globalThis).join()")
    engine.eval(javascript(FORMULAS.values()))
    after = engine.eval("Object.getOwnPropertyNames(globalThis).join()")
    assert set(after.split(",")) - set(before.split(",")) == {"atlasFormulas"}
    names = engine.eval("Object.keys(atlasFormulas).join()")
    assert names.split(",") == list(FORMULAS)


def test_a_script_of_one_formula_brings_what_it_calls() -> None:
    alone = Script(f.ring_all_reduce_bytes)
    assert alone("ring_all_reduce_bytes", 4, 1, 100_003, 8) == 1_200_040
    assert alone.engine.eval("Object.keys(atlasFormulas).join()") == (
        "ring_all_reduce_bytes"
    )


def test_zero_has_no_sign_in_the_script(script: Script) -> None:
    assert script.engine.eval("1 / atlasFormulas.zero_3_shard(4, 0)") == math.inf


# The subset, by formulas written here


def every_operator(a: int, b: int) -> float:
    low = min(a, b) - 1
    return low + a * b - a // b + a % b - a / b + (a % 5) ** 3 + ceil(a / b) - floor(-b)


def every_condition(a: int, b: int) -> int:
    return (
        1
        if 0 <= a < b
        else 2
        if not (a == -3 or b > 50) and (b != 4 or a >= 7)
        else max(a, b, 3)
        if a > b
        else -a
    )


def calls_cases(a: int, b: int) -> int:
    return 2 * every_condition(a, b)


def divided(a: int, b: int) -> int:
    return a // b


def left_over(a: int, b: int) -> int:
    return a % b


def raised(a: int, b: int) -> float:
    return a**b


@given(st.integers(-99, 99), st.integers(-99, 99).filter(bool))
def test_the_whole_subset_has_python_s_meaning(a: int, b: int) -> None:
    fns = [every_operator, every_condition, calls_cases, divided, left_over]
    own = Script(*fns)
    for fn in fns:
        assert same(fn(a, b), own(fn.__name__, a, b)), fn.__name__


exact = st.integers(-EXACT + 1, EXACT - 1)


@given(exact, exact.filter(bool))
def test_division_is_exact_to_the_last_integer(a: int, b: int) -> None:
    own = Script(divided, left_over)
    assert own("divided", a, b) == a // b
    assert own("left_over", a, b) == a % b


def divided_fractions(a: float, b: float) -> float:
    return a // b


def left_over_fractions(a: float, b: float) -> float:
    return a % b


@given(st.floats(-1e6, 1e6), st.floats(0.01, 1e3), st.sampled_from([1, -1]))
@example(1.0, 0.1, 1)  # 9 in Python: 0.1 is a little more than a tenth
def test_fractions_are_divided_as_python_divides_them(
    a: float, b: float, sign: int
) -> None:
    own = Script(divided_fractions, left_over_fractions)
    assert own("divided_fractions", a, sign * b) == a // (sign * b)
    assert own("left_over_fractions", a, sign * b) == a % (sign * b)


@given(st.integers(-9, 9), st.integers(0, 16))
def test_powers_of_integers_are_exact(a: int, b: int) -> None:
    assert Script(raised)("raised", a, b) == a**b


def loops(a: int) -> int:
    total = 0
    for i in range(a):
        total += i
    return total


def compares_as_number(a: int) -> int:
    return 2 * (a > 1)


def number_as_condition(a: int) -> int:
    return 1 if a else 2


def calls_outside(a: int) -> int:
    return len(str(a))


def unknown_name(a: int) -> int:
    return a * EXACT


def assigns_twice(a: int) -> int:
    c = a
    c = c + 1
    return c


def has_default(a: int = 1) -> int:
    return a


def untyped(a):  # type: ignore[no-untyped-def]
    return a


def takes_any(*a: int) -> int:
    return 1


def bitwise(a: int) -> int:
    return a ^ 2


def returns_nothing(a: int) -> int:  # type: ignore[return]
    c = a  # noqa: F841


def wrong_error(a: int) -> int:
    if a < 1:
        raise TypeError("no")
    return a


def reserved(new: int) -> int:
    return new


def too_big(a: int) -> int:
    return a + 9007199254740993


def by_keyword(a: int) -> int:
    return divided(a, b=2)


def recursive(a: int) -> int:
    return recursive(a - 1)


REFUSED = {
    loops: "cannot write `for i in range(a):`",
    compares_as_number: "`a > 1` is used as a number",
    number_as_condition: "`a` is used as a condition",
    calls_outside: "calls len, which is no formula of its file",
    unknown_name: "EXACT is neither argument nor local name",
    assigns_twice: "c is assigned a second time",
    has_default: "expected arguments without defaults",
    untyped: "a is typed nothing: expected int or float",
    takes_any: "expected plain arguments",
    bitwise: "`a ^ 2`: unknown operator",
    returns_nothing: "expected a return at the end",
    wrong_error: "expected `raise ValueError",
    reserved: "new means something else in JavaScript",
    too_big: "is no number up to 2**53",
    by_keyword: "expected divided(a, b) by place",
}


@pytest.mark.parametrize("fn", REFUSED, ids=lambda fn: fn.__name__)
def test_what_cannot_be_written_is_refused_with_its_line(
    fn: Callable[..., int],
) -> None:
    with pytest.raises(ScriptError) as caught:
        javascript([fn])
    where, says = str(caught.value).split(f": {fn.__name__}: ")
    file, line = where.split(":")
    assert file == "test_emit.py"
    code, first = inspect.getsourcelines(fn)
    assert first <= int(line) < first + len(code)
    assert REFUSED[fn] in says


def test_an_endless_formula_is_refused() -> None:
    with pytest.raises(ScriptError, match="recursive calls itself"):
        latex(recursive)


@pytest.mark.parametrize("fn", [min, lambda a: a])
def test_only_functions_with_source_are_read(fn: Callable[..., Any]) -> None:
    with pytest.raises(ScriptError, match=r"source|def"):
        latex(fn)


def in_range(a: int) -> None:
    if not 1 <= a <= 9:
        raise ValueError(f"a = {a}: must be from 1 to 9")


def checked(a: int) -> int:
    in_range(a)
    return 2 * a


def test_a_range_check_is_no_formula() -> None:
    with pytest.raises(ScriptError, match="in_range: is a range check"):
        javascript([in_range])  # type: ignore[list-item]


def test_a_range_check_comes_with_the_formula_that_calls_it() -> None:
    assert Script(checked)("checked", 4) == 8
    assert Script(checked)("checked", 10) == "RangeError: a = 10: must be from 1 to 9"


class Way(StrEnum):
    """How far."""

    SHORT = "short"
    LONG = "long"


class Trip(NamedTuple):
    """A record with a truth and a member of an enumeration."""

    miles: int
    way: Way = Way.SHORT
    back: bool = False


def fare(trip: Trip, rate: float) -> float:
    twice = trip.miles * (2 if trip.back else 1)
    return twice * rate if trip.way == Way.LONG else twice


def longer(miles: int, back: bool) -> Trip:
    return Trip(miles=miles, way=Way.LONG, back=back)


@pytest.mark.parametrize("way", Way)
@pytest.mark.parametrize("back", [True, False])
def test_truths_and_members_of_enumerations_mean_the_same(way: Way, back: bool) -> None:
    own, trip = Script(fare, longer), Trip(10, way, back)
    assert own("fare", trip._asdict(), 0.5) == fare(trip, 0.5)
    assert own("longer", 10, back) == longer(10, back)._asdict()


def test_a_member_that_there_is_not_is_refused() -> None:
    own = Script(fare)
    trip = {"miles": 1, "way": "far", "back": False}
    refusal = "RangeError: trip.way = far: expected one of short, long"
    assert own("fare", trip, 0.5) == refusal
    refusal = "RangeError: trip.back = 1: neither true nor false"
    assert own("fare", trip | {"way": "long", "back": 1}, 0.5) == refusal


def test_conditions_on_them_are_written_as_they_are_said() -> None:
    assert r"\text{if } \mathrm{back}" in latex(fare)
    assert r"\mathrm{way} = \text{long}" in latex(fare)
    trip = Trip(10, Way.LONG, True)
    assert formula_latex(fare, {"trip": trip, "rate": 0.5}) == (
        r"10 \cdot 2 \cdot 0.5 = 10"
    )


# LaTeX

#: What a person writes, given the symbols of the arguments in their order.
WRITTEN: dict[Callable[..., float], Callable[..., str]] = {
    f.chunk: lambda n, p, i: (
        rf"\left\lceil \frac{{{n} - ({i} \bmod {p})}}{{{p}}} \right\rceil"
    ),
    f.ring_all_reduce_total: lambda p, n, b: f"2 ({p} - 1) {n} {b}",
    f.zero_3_state_bytes: lambda p, n, u, b: (
        rf"4 {b} {u} \left\lceil \frac{{{n}}}{{{p}}} \right\rceil"
    ),
    f.pipeline_bubble: lambda p, m: rf"\frac{{{p} - 1}}{{{m} + {p} - 1}}",
    f.one_f_one_b_in_flight: lambda p, r, m: rf"\min({m},\, {p} - {r})",
    f.ssp_updates: lambda p, r, t: (
        rf"\begin{{cases}} ({p} - 1) {t} & \text{{if }} {r} = 0 \\ "
        rf"{t} & \text{{otherwise}} \end{{cases}}"
    ),
    f.p2p_seconds: lambda n, alpha, beta: f"{alpha} + {n} {beta}",
    f.tensor_parallel_payload: lambda l, n, s, h, b: f"4 {l} {n} {s} {h} {b}",  # noqa: E741
    calls_cases: lambda a, b: rf"2 \mathrm{{every\_condition}}({a},\, {b})",
}


def symbols(fn: Callable[..., float]) -> list[str]:
    return [symbol(name) for name in arguments(fn)]


@pytest.mark.parametrize("fn", WRITTEN, ids=lambda fn: fn.__name__)
def test_latex_reads_as_a_person_would_write_it(fn: Callable[..., float]) -> None:
    spaced = latex(fn).replace(r" \, ", " ")  # between factors of several letters
    assert spaced == WRITTEN[fn](*symbols(fn))


def test_a_call_is_written_out_in_the_caller_s_symbols() -> None:
    p, r, n, b = symbols(f.ring_all_reduce_bytes)
    first = rf"\left\lceil \frac{{{n} - (({r} + 1) \bmod {p})}}{{{p}}} \right\rceil"
    second = rf"\left\lceil \frac{{{n} - (({r} + 2) \bmod {p})}}{{{p}}} \right\rceil"
    expected = rf"{b} \left(2 {n} - {first} - {second}\right)"
    assert latex(f.ring_all_reduce_bytes) == expected


LAWS = {
    "2 * (ranks - 1) / ranks * elements": rf"\frac{{2 ({p} - 1)}}{{{p}}} \, {n}",
    "elements % ranks == 0": rf"{n} \bmod {p} = 0",
    "max(abs(rank - 1), 2) ** 2 - -rank": (
        rf"{{\max\left(\left|{r} - 1\right|,\, 2\right)}}^{{2}} - (-{r})"
    ),
    "ranks if rank > 0 else 1": (
        rf"\begin{{cases}} {p} & \text{{if }} {r} > 0 \\ "
        r"1 & \text{otherwise} \end{cases}"
    ),
}


@pytest.mark.parametrize("text", LAWS)
def test_a_law_is_written_in_symbols(katex: quickjs.Context, text: str) -> None:
    assert law_latex(text) == LAWS[text]
    assert "katex-html" in render(katex, law_latex(text))


@pytest.mark.parametrize("text", ["ranks ^ 2", "ring(ranks)", "ranks[0]", "1 +"])
def test_what_is_no_law_is_refused_with_its_text(text: str) -> None:
    with pytest.raises(LawError, match=re.escape(repr(text))):
        law_latex(text)


def test_every_law_of_the_taxonomy_is_written(katex: quickjs.Context) -> None:
    techniques = taxonomy.load(ROOT).techniques.values()
    laws = [c.law for t in techniques for c in t.claims if c.law is not None]
    assert laws
    for law in laws:
        for text in filter(None, (law.says, law.equal_when, law.within)):
            assert "katex-html" in render(katex, law_latex(text))


def brackets(a: int, b: int) -> float:
    c = a - b
    return a - (b - c) - (-a) + -b * (a + b) * (a % b) + (a + b) ** (a - 1) * 2 * 3


def test_brackets_stand_where_they_must_and_nowhere_else() -> None:
    assert latex(brackets) == (
        r"a - (b - (a - b)) - (-a) + (-b) (a + b) (a \bmod b)"
        r" + {(a + b)}^{a - 1} \cdot 2 \cdot 3"
    )


PUT_IN = [
    (
        f.ring_all_reduce_bytes,
        (4, 1, 100_003, 8),
        r"8 (2 \cdot 100\,003 - 25\,001 - 25\,000) = 1\,200\,040",
    ),
    (f.ssp_updates, (4, 0, 9), r"(4 - 1) \cdot 9 = 27"),
    (f.ssp_updates, (4, 2, 9), "9"),
    (f.ssp_waits, (4, 1, 9, 0, 1), "0"),
    (f.pipeline_bubble, (4, 8), r"\frac{4 - 1}{8 + 4 - 1} \approx 0.272727"),
    (f.pipeline_idle, (3, 1.0, 0.5), "(3 - 1) (1 + 0.5) = 3"),
    (
        f.p2p_seconds,
        (1000, 1e-5, 2.5e-10),
        r"10^{-5} + 1000 \cdot 2.5 \cdot 10^{-10} = 1.025 \cdot 10^{-5}",
    ),
]


@pytest.mark.parametrize(("fn", "row", "expected"), PUT_IN)
def test_numbers_are_put_in(
    fn: Callable[..., float], row: tuple[float, ...], expected: str
) -> None:
    assert formula_latex(fn, dict(zip(arguments(fn), row, strict=True))) == expected


def test_numbers_must_be_those_the_formula_takes() -> None:
    taken = "periodic_rounds takes steps, period: given steps, q"
    with pytest.raises(ValueError, match=taken):
        formula_latex(f.periodic_rounds, {"steps": 1, "q": 2})
    with pytest.raises(ValueError, match="steps = -1: must be 0 or more"):
        formula_latex(f.periodic_rounds, {"steps": -1, "period": 1})


@pytest.fixture(scope="module")
def katex() -> quickjs.Context:
    engine = quickjs.Context()
    engine.eval("var document = {compatMode: 'CSS1Compat'}")  # what KaTeX asks of it
    source = ROOT / "docs/assets/vendor/katex/katex.min.js"
    engine.eval(source.read_text("utf-8"))
    return engine


def render(katex: quickjs.Context, text: str) -> str:
    options = "{throwOnError: true, strict: 'error', displayMode: true}"
    html: str = katex.eval(f"katex.renderToString({json.dumps(text)}, {options})")
    return html


@pytest.mark.parametrize("name", FORMULAS)
def test_katex_renders_every_formula(katex: quickjs.Context, name: str) -> None:
    drawn = render(katex, latex(FORMULAS[name]))
    assert "katex-html" in drawn
    assert "MM" not in drawn, "a bracket that KaTeX stretches into a broken path"
    names = arguments(FORMULAS[name])
    for row in islice(grid(name), 0, None, 1 + len(grid(name)) // 5):
        values = dict(zip(names, row, strict=True))
        assert "katex-html" in render(katex, formula_latex(FORMULAS[name], values))


@pytest.mark.parametrize("fn", [every_operator, every_condition, calls_cases, brackets])
def test_katex_renders_the_whole_subset(
    katex: quickjs.Context, fn: Callable[..., float]
) -> None:
    assert "katex-html" in render(katex, latex(fn))


def test_katex_refuses_what_is_not_latex(katex: quickjs.Context) -> None:
    with pytest.raises(quickjs.JSException, match="KaTeX"):
        render(katex, r"\frac{1}{")


def test_arguments_are_in_the_order_of_the_signature() -> None:
    assert arguments(fare) == ("trip", "rate")
