"""The oracle's arithmetic: the same in JavaScript, and right where it degenerates."""

import inspect
import json
import math
import random
from collections.abc import Callable, Iterator
from itertools import product
from typing import Any, NamedTuple, get_type_hints

import pytest
import quickjs

from atlas.formulas import FORMULAS
from atlas.planner import agreement, computing, layerwise, pipelining, presets, rings
from atlas.planner.arithmetic import ARITHMETIC
from atlas.planner.joining import joined, repeated, stage_work
from atlas.planner.mesh import Mesh, mesh
from atlas.planner.records import (
    Block,
    Bytes,
    Cut,
    Exchange,
    Link,
    Load,
    Recipe,
    Recompute,
    Replicas,
    Schedule,
    ScheduleKind,
    Speed,
    Times,
    Wires,
    Work,
)
from atlas.planner.stages import stages, total, works
from atlas.planner.strategy import parse
from atlas.planner.train import Train
from atlas.script.formulas import javascript
from atlas.script.latex import formula_latex, latex
from atlas.script.modules import needed, transpile
from atlas.script.source import ScriptError

#: Strategies that between them use every axis of the core.
TRIED = [
    ("gpt2-medium", "Data(2) * Tensor(4)"),
    (
        "gpt3-175b",
        "Zero(1, 4) * Pipeline(8, 'interleaved', chunks=3) * Tensor(8, True)",
    ),
    ("llama3-8b", "Zero(3, 16, within=8) * Context(2)"),
    ("llama3-8b", "Data(2) * Context(4, 'ulysses') * Tensor(2, True)"),
    ("mixtral-8x7b", "Zero(2, 2) * Expert(4, capacity=1.25) * Tensor(2)"),
    ("resnet-50", "Data(4) * Filter(8)"),
    ("resnet-50", "Channel(3)"),
    ("vgg-16", "Data(2) * Spatial(4)"),
    ("resnet-50", "Data(2) * Spatial(3)"),
    ("vgg-16", "Pipeline(4, 'zero-bubble')"),
    ("vgg-16", "Pipeline(4, 'stashing')"),
    ("dlrm", "Data(2) * Embedding(8)"),
]


def tried() -> Iterator[tuple[Mesh, tuple[Work, ...]]]:
    for model, text in TRIED:
        made, train = presets.model(model), Train(64)
        found = mesh(made, parse(text), presets.cluster("a100-80g"), train)
        yield found, works(made, found.schedule.stages)


class Bank(NamedTuple):
    """Values for every type of argument, taken from real strategies."""

    values: dict[Any, list[Any]]

    def rows(self, fn: Callable[..., Any], most: int) -> list[tuple[Any, ...]]:
        """Some legal arguments of a function, always the same ones."""
        hints = get_type_hints(fn)
        names = inspect.signature(fn).parameters
        pick = random.Random(fn.__name__)
        columns = [self.values[hints[name]] for name in names]
        if math.prod(map(len, columns)) <= most:
            return list(product(*columns))
        return [tuple(map(pick.choice, columns)) for _ in range(most)]


@pytest.fixture(scope="module")
def bank() -> Bank:
    values: dict[Any, list[Any]] = {
        int: [1, 2, 3, 8],
        bool: [True, False],
        float: [0.0, 0.5, 3.0, 1e9],
        Link: [Link(), Link(1e-5, 1 / 3e9, 4e-5)],
    }
    for made, summed in tried():
        parts = (made.cut, made.schedule, made.replicas, made.recipe, made.wires)
        for part in (*parts, made.speed, *summed):
            values.setdefault(type(part), []).append(part)
        recipe = made.recipe._replace(
            recompute=Recompute.FULL, flash=True, overlap=False, bucket=2**20
        )
        values[Recipe].append(recipe)
        values[Recipe].append(made.recipe._replace(recompute=Recompute.SELECTIVE))
        args = (summed[0], made.cut, made.recipe)
        values.setdefault(Load, []).append(
            layerwise.load(*args, made.speed, made.wires)
        )
        agree = agreement.exchange(*args, made.replicas, made.wires)
        values.setdefault(Exchange, []).append(agree)
    names = ("gpt2-medium", "llama3-8b", "mixtral-8x7b")
    values[Block] = [presets.model(name).block for name in names]
    return Bank(values)


@pytest.fixture(scope="module")
def engine() -> quickjs.Context:
    made = quickjs.Context()
    made.eval(javascript([*FORMULAS.values(), *ARITHMETIC.values()]))
    return made


def plain(value: Any) -> Any:
    """A record as JSON has it."""
    if isinstance(value, tuple):
        return {f: plain(v) for f, v in value._asdict().items()}  # type: ignore[attr-defined]
    return value


def same(ours: Any, other: Any) -> bool:
    if isinstance(ours, dict):
        return set(ours) == set(other) and all(same(ours[k], other[k]) for k in ours)
    return math.isclose(ours, other, rel_tol=1e-12, abs_tol=1e-300)


@pytest.mark.parametrize("name", ARITHMETIC)
def test_the_core_is_the_same_in_javascript(
    engine: quickjs.Context, bank: Bank, name: str
) -> None:
    rows = [row for row in bank.rows(ARITHMETIC[name], 60) if allowed(name, row)]
    assert rows
    given = json.dumps([[plain(value) for value in row] for row in rows])
    call = f"JSON.stringify({given}.map(row => atlasFormulas.{name}(...row)))"
    for row, other in zip(rows, json.loads(engine.eval(call)), strict=True):
        assert same(plain(ARITHMETIC[name](*row)), other), row


@pytest.mark.parametrize("fn", [joined, repeated, stage_work])
def test_parts_are_joined_the_same_in_javascript(
    bank: Bank, fn: Callable[..., Work]
) -> None:
    engine = quickjs.Context()
    engine.eval(transpile(needed(["atlas.planner.joining"])))
    rows = bank.rows(fn, 60)
    given = json.dumps([[plain(value) for value in row] for row in rows])
    call = f'atlasOracle["atlas.planner.joining"].{fn.__name__}(...row)'
    found = engine.eval(f"JSON.stringify({given}.map(row => {call}))")
    for row, other in zip(rows, json.loads(found), strict=True):
        assert same(plain(fn(*row)), other), row


def allowed(name: str, row: tuple[Any, ...]) -> bool:
    try:
        ARITHMETIC[name](*row)
    except (ValueError, ZeroDivisionError):
        return False
    return True


def test_a_record_with_a_field_missing_is_refused_by_name(
    engine: quickjs.Context,
) -> None:
    with pytest.raises(quickjs.JSException, match=r"link\.beta = undefined"):
        engine.eval("atlasFormulas.reduce_seconds(2, 1, 8, {alpha: 0, launch: 0})")
    with pytest.raises(quickjs.JSException, match="link = 7: not a record"):
        engine.eval("atlasFormulas.reduce_seconds(2, 1, 8, 7)")


@pytest.mark.parametrize("name", ARITHMETIC)
def test_each_function_of_the_core_is_a_sentence_and_its_source(name: str) -> None:
    says, _, rest = (inspect.getdoc(ARITHMETIC[name]) or "").partition("\n")
    assert says.endswith((".", ";", ","))
    assert "Source: " in rest


def test_no_two_functions_share_a_name() -> None:
    assert not set(ARITHMETIC) & set(FORMULAS)


def test_a_field_is_written_alone_and_its_value_put_in() -> None:
    assert latex(rings.send_seconds) == (
        r"\mathrm{calls} \, (\mathrm{launch} + \alpha) + n \beta"
    )
    link = Link(alpha=2.0, beta=0.5, launch=1.0)
    written = formula_latex(rings.send_seconds, {"calls": 3, "n": 8, "link": link})
    assert written == r"3 (1 + 2) + 8 \cdot 0.5 = 13"


def gives_a_record(n: int) -> Bytes:
    return Bytes(parameters=n)


def misnames(n: int) -> Bytes:
    return Bytes(weights=n)  # type: ignore[call-arg]


def by_place(n: int) -> Bytes:
    return Bytes(n)


def test_records_are_made_by_name_and_not_in_latex() -> None:
    made = quickjs.Context()
    made.eval(javascript([gives_a_record]))
    found = json.loads(made.eval("JSON.stringify(atlasFormulas.gives_a_record(3))"))
    assert found == Bytes(parameters=3)._asdict()
    with pytest.raises(ScriptError, match="Bytes has no field weights"):
        javascript([misnames])
    with pytest.raises(ScriptError, match="expected its fields by name"):
        javascript([by_place])
    with pytest.raises(ScriptError, match="gives a record"):
        latex(gives_a_record)


# Where it degenerates


def test_parts_joined_are_the_network() -> None:
    for name in ("gpt2-medium", "resnet-50", "dlrm"):
        model = presets.model(name)
        whole = total(model.layers)
        parts = works(model, 4)
        extra = model.tied  # the last stage's copy of the embedding
        assert sum(w.weights for w in parts) == whole.weights + extra
        assert math.isclose(sum(w.flops for w in parts), whole.flops)
        assert sum(w.kept for w in parts) == whole.kept


def test_a_transformer_s_stage_is_the_sum_of_its_layers() -> None:
    model = presets.model("gpt2-medium")
    assert model.block is not None
    for p in (1, 2, 3, 8):
        for place, work in enumerate(works(model, p)):
            layers = sum(not a.glued for a in stages(model, p)[place])
            first, last = place == 0, place == p - 1
            assert stage_work(model.block, layers, first, last) == work


def test_twice_the_same_is_joined() -> None:
    work = total(presets.model("resnet-50").layers)
    assert repeated(work, 2) == joined(work, work)


def test_one_rank_alone_waits_for_nobody() -> None:
    for name in ("gpt2-medium", "vgg-16", "dlrm"):
        model = presets.model(name)
        made = mesh(model, parse("Data(1)"), presets.cluster("a100-80g"), Train(1))
        args = (total(model.layers), made.cut, made.recipe)
        one = layerwise.load(*args, made.speed, made.wires)
        waits = [f for f in Load._fields if f.startswith(("cut", "context", "expert"))]
        assert [getattr(one, f) for f in waits] == [0.0] * len(waits)
        agree = agreement.exchange(*args, made.replicas, made.wires)
        assert agree[:4] == (0.0, 0.0, 0.0, 0.0)


@pytest.mark.parametrize(("stage", "passes"), [(0, 2), (1, 2), (2, 2), (3, 3)])
def test_zero_s_volume_is_two_or_three_times_the_parameters(
    stage: int, passes: int
) -> None:
    work = Work(layers=4, weights=4096)
    recipe = Recipe(weight=2, gradient=2)
    links = Wires()._replace(
        **{
            field: type(Wires().data)(*[Link(beta=1.0)] * 5)
            for field in ("data", "shard", "copies")
        }
    )
    replicas = Replicas(ranks=4, alone=4, stage=stage, shard=4 if stage else 1)
    found = agreement.exchange(work, Cut(), recipe, replicas, links)
    assert sum(found[:4]) == passes * 2 * 4096 * 3 / 4


@pytest.mark.parametrize(
    ("stage", "passes"),
    [(0, lambda k: 2), (1, lambda k: 2), (2, lambda k: k + 1), (3, lambda k: 3 * k)],
)
@pytest.mark.parametrize("k", [1, 2, 8])
def test_accumulation_multiplies_what_zero_2_and_3_send(
    stage: int, passes: Callable[[int], int], k: int
) -> None:
    from atlas.planner.predict import predict
    from atlas.planner.strategy import Data, Zero

    axis = Zero(stage, 4) if stage else Data(4)  # type: ignore[arg-type]
    model, train = presets.model("gpt2-medium"), Train(4 * k, 1)
    found = predict(model, axis, presets.cluster("a100-80g"), train)
    psi = 2 * model.parameters * 3 / 4
    sent = sum(c.wire for c in found.collectives)
    assert math.isclose(sent, passes(k) * psi, rel_tol=1e-3)  # padding


def test_an_exchange_hides_all_but_its_last_piece() -> None:
    assert agreement.exposed(8.0, 100.0, 4, True) == 2.0
    assert agreement.exposed(8.0, 4.0, 4, True) == 5.0
    assert agreement.exposed(8.0, 100.0, 1, True) == 8.0
    assert agreement.exposed(8.0, 100.0, 4, False) == 8.0


def test_half_the_operations_reach_half_the_efficiency() -> None:
    speed = Speed(peak=1e12, top=0.8, half=1e9)
    assert math.isclose(computing.product_seconds(1e9, 1, speed), 1e9 / (0.4 * 1e12))


@pytest.mark.parametrize("m", [4, 8])
def test_the_schedules_hold_what_their_papers_say(m: int) -> None:
    p = 4
    gpipe, one_f_one_b, stashing, zero_bubble = (
        Schedule(p, m, kind=kind)
        for kind in (
            ScheduleKind.GPIPE,
            ScheduleKind.ONE_F_ONE_B,
            ScheduleKind.STASHING,
            ScheduleKind.ZERO_BUBBLE,
        )
    )
    for place in range(p):
        assert pipelining.in_flight(gpipe, place) == m
        assert pipelining.in_flight(one_f_one_b, place) == min(m, p - place)
        assert pipelining.stash(stashing, place) == p - place
    interleaved = Schedule(p, 64, 3, ScheduleKind.INTERLEAVED)
    assert pipelining.in_flight(interleaved, 0) == p * (1 + (p - 1) / (p * 3))
    thirds = pipelining.bubble_seconds(zero_bubble, 1.0, 2.0, 1.0)
    assert thirds == pipelining.bubble_seconds(one_f_one_b, 1.0, 2.0, 1.0) / 3


def test_times_add_up_to_the_step() -> None:
    for made, summed in tried():
        args = (summed[0], made.cut, made.recipe)
        one = layerwise.load(*args, made.speed, made.wires)
        agree = agreement.exchange(*args, made.replicas, made.wires)
        found = pipelining.times(one, agree, made.schedule, made.recipe, 0.25, 0.5)
        assert isinstance(found, Times)
        assert found.optimizer == 0.25
        waits = one.forward_host + one.backward_host  # for the host to launch
        assert found.overhead == 0.5 + made.schedule.micros * waits
        assert all(seconds >= 0 for seconds in found)
