"""`atlas plan`: search every legal strategy and shortlist five to benchmark."""

import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from math import log
from typing import Annotated, Any

import typer

from atlas.commands import common
from atlas.commands.common import PATIENCE, Json, Wrong
from atlas.planner import frameworks, presets, search
from atlas.planner.commands import forecast, given, published
from atlas.planner.commands.given import needed
from atlas.planner.findings import NAMES
from atlas.planner.mesh import SCHEDULES
from atlas.planner.prediction import Prediction
from atlas.planner.rules import limit
from atlas.planner.score import Stage
from atlas.planner.search import Candidate, Plan
from atlas.planner.strategy import Data, Strategy, Zero
from atlas.planner.train import SEARCHED
from atlas.planner.units import count, seconds, size

WHY = (
    "Benchmark the whole shortlist; do not trust the ranking. Neighboring predictions "
    "differ by less than their error, and the first place can be badly wrong."
)
#: What can be allowed or forbidden: axes, stages of ZeRO, schedules.
KINDS = (
    *("data", "tensor", "pipeline", "context", "expert", "embedding"),
    *("filter", "channel", "spatial"),
    *("zero", "zero1", "zero2", "zero3"),
    *SCHEDULES,
)
#: What frameworks call some of these.
CALLED = {
    "ddp": "data",
    "dp": "data",
    "fsdp": "zero3",
    "hsdp": "zero3",
    "tp": "tensor",
    "pp": "pipeline",
    "cp": "context",
    "ep": "expert",
}
USUAL = ("1f1b", "interleaved", "zero-bubble")  # schedules, unless others are named
FRONT = 12  # rows of the front that are shown
PLOT = (56, 12)  # columns and rows


def complete_kinds(incomplete: str) -> list[str]:
    """Kinds, the last of a list with commas."""
    head, comma, last = incomplete.rpartition(",")
    return [f"{head}{comma}{kind}" for kind in KINDS if kind.startswith(last)]


AllowOption = Annotated[
    str | None,
    typer.Option(
        help=f"Only these kinds, comma-separated: {', '.join(KINDS)}.",
        metavar="KINDS",
        autocompletion=complete_kinds,
    ),
]
ForbidOption = Annotated[
    str | None,
    typer.Option(
        help="All kinds but these.", metavar="KINDS", autocompletion=complete_kinds
    ),
]


def plan(
    model: given.ModelOption = None,
    cluster: given.ClusterOption = None,
    gpus: Annotated[int | None, typer.Option(help="Number of devices.")] = None,
    batch: given.BatchOption = None,
    micro_batch: given.MicroOption = None,
    precision: given.PrecisionOption = None,
    optimizer: given.OptimizerOption = "adam",
    recompute: given.RecomputeOption = None,
    seq: given.SeqOption = None,
    flash: given.FlashOption = True,
    eager: given.EagerOption = False,
    allow: AllowOption = None,
    forbid: ForbidOption = None,
    tokens: given.TokensOption = None,
    epochs: given.EpochsOption = None,
    price: given.PriceOption = None,
    presets_: Annotated[
        bool, typer.Option("--list", help="List the presets and their sources.")
    ] = False,
    json: Json = False,
) -> None:
    """Search all legal strategies and shortlist five that fit, for benchmarking.

    Examples:

    \b
    atlas plan --list
    atlas plan --model gpt3-175b --cluster a100-80g --gpus 1024 --batch 1536
    atlas plan --model resnet-50 --cluster abci-v100 --gpus 64 --batch 2048
      --precision fp32 --optimizer momentum --epochs 90
    atlas plan --model llama3-8b --cluster h100-80g --gpus 64 --batch 512
      --forbid pipeline --tokens 1e12 --price 2.5
    """
    if presets_:
        _list(json)
        return
    where = given.cluster_of(needed(cluster, "--cluster"))
    train = given.train_of(
        needed(batch, "--batch"),
        where,
        micro_batch=micro_batch,
        precision=precision,
        optimizer=optimizer,
        recompute=recompute or "none",
        flash=flash,
        eager=eager,
    )
    kinds = wanted(allow, forbid)
    begun = time.perf_counter()
    seen, name = _Wanted(kinds), needed(model, "--model")
    found = search.plan(
        given.model_of(name, seq),
        where,
        needed(gpus, "--gpus"),
        train,
        recompute=(train.recompute,) if recompute else SEARCHED,
        stages=_stages(kinds),
        schedules=_schedules(kinds, allow),
        among=seen,
    )
    took = time.perf_counter() - begun
    budget = (tokens, epochs, price)
    forecast.cost(found.shortlist[0], *budget)  # a wrong budget is refused here
    runs = published.published(name, found)
    if json:
        made = plain(found, seen.left_out, budget)
        common.print_json({**made, "published": [run.plain() for run in runs]})
    else:
        _show(found, seen.left_out, budget, took)
        for run in runs:
            common.out().print(f"\n{run.says()}")


# What may be searched


def wanted(allow: str | None, forbid: str | None) -> set[str]:
    """The kinds that are left; zero alone stands for its three stages."""
    if allow is not None and forbid is not None:
        raise Wrong("--allow and --forbid together: give only one")
    said = allow if allow is not None else forbid or ""
    words = {word.strip().lower() for word in said.split(",")} - {""}
    named = {CALLED.get(word, word) for word in words}
    for word in sorted(named):
        if word not in KINDS:
            raise common.unknown("kind", word, KINDS, f"there are {', '.join(KINDS)}")
    if "zero" in named:
        named |= {"zero1", "zero2", "zero3"}
    return {*named, "data"} if allow is not None else set(KINDS) - named


def _stages(kinds: set[str]) -> list[Stage]:
    every: tuple[Stage, ...] = (1, 2, 3)
    return [0, *(stage for stage in every if f"zero{stage}" in kinds)]


def _schedules(kinds: set[str], allow: str | None) -> list[Any]:
    named = [s for s in SCHEDULES if s in kinds]
    if allow is None:
        return [s for s in named if s in USUAL]
    return named or list(USUAL)


@dataclass
class _Wanted:
    """Lets meshes of some kinds through, and counts those that it keeps back."""

    kinds: set[str]
    left_out: int = 0

    def __call__(self, every: Iterable[Strategy]) -> Iterator[Strategy]:
        """The wanted ones; on a terminal, a bar shows how far the search is."""
        legal = []
        for mesh in every:
            axes = (axis for axis in mesh.axes if axis.ranks > 1)
            if {type(axis).__name__.lower() for axis in axes} <= self.kinds:
                legal.append(mesh)
            else:
                self.left_out += 1
        if not legal:
            raise Wrong("no mesh of this many devices remains: allow more kinds")
        yield from _shown(legal)


def _shown(meshes: Sequence[Strategy]) -> Iterator[Strategy]:
    """The meshes, and a bar once they take more than a moment."""
    console = common.err()
    begun = time.perf_counter()
    bar: Any = None
    try:
        for i, mesh in enumerate(meshes):
            late = time.perf_counter() - begun > PATIENCE
            if bar is None and late and console.is_terminal:
                from rich.progress import Progress

                bar = Progress(console=console, transient=True)
                task = bar.add_task("searching", total=len(meshes))
                bar.start()
            if bar is not None:
                bar.update(task, completed=i)
            yield mesh
    finally:
        if bar is not None:
            bar.stop()


# Showing


Budget = tuple[float | None, float | None, float | None]


def _show(p: Plan, left_out: int, budget: Budget, took: float) -> None:
    out = common.out()
    out.print(
        f"[bold]{p.model.name}[/bold] ({count(p.model.parameters)} parameters) on "
        f"{p.gpus} devices of [bold]{p.cluster.name}[/bold], batch {p.train.batch}, "
        f"{p.train.precision.name}, {p.train.optimizer.name}"
    )
    out.print(f"{p.candidates:,} candidates in {took:.2f} s")
    table = forecast.grid(2, 0)
    for reason, n in p.pruned.items():
        table.add_row(f"{n:,}", f"pruned: {reason}")
    if left_out:
        table.add_row(f"{left_out:,}", "meshes not searched: excluded kinds")
    table.add_row(f"{p.fitting:,}", "legal and fit in memory")
    out.print(table)
    _front(p)
    _shortlist(p, budget)
    out.print(f"\n{WHY}")


def _front(p: Plan) -> None:
    out = common.out()
    out.print(
        "\n[bold]Pareto front[/bold]: no other strategy is both faster and smaller"
    )
    table = forecast.lines()
    table.add_column("step", justify="right", no_wrap=True)
    table.add_column("memory", justify="right", no_wrap=True)
    table.add_column("micro", justify="right")
    table.add_column("recompute")
    table.add_column("strategy")
    for c in _some(p.front):
        table.add_row(
            *(seconds(c.seconds), size(c.bytes), str(c.train.micro_batch)),
            *(c.train.recompute, str(c.strategy)),
        )
    out.print(table)
    if len(p.front) > FRONT:
        out.print(f"{FRONT} of {len(p.front)} shown; --json has all", style="dim")
    if len(p.front) > 1:
        out.print("\n".join(plotted(p)))


def _some(front: Sequence[Candidate]) -> list[Candidate]:
    """So many of the front, evenly, both ends included."""
    if len(front) <= FRONT:
        return list(front)
    step = (len(front) - 1) / (FRONT - 1)
    return [front[round(i * step)] for i in range(FRONT)]


def plotted(p: Plan) -> list[str]:
    """Time against memory in characters: o the front, . others of the first hundred."""
    wide, high = PLOT
    points = [(c, ".") for c in p.ranked] + [(c, "o") for c in p.front]
    xs, ys = [c.seconds for c, _ in points], [c.bytes for c, _ in points]
    span = log(min(xs)), log(max(xs))
    cells = [[" "] * wide for _ in range(high)]
    for c, mark in points:
        x = _place(log(c.seconds), *span, wide)
        y = _place(c.bytes, min(ys), max(ys), high)
        cells[high - 1 - y][x] = mark
    labels = [""] * high
    labels[0], labels[-1] = size(max(ys)), size(min(ys))
    edge = max(map(len, labels))
    lines = [
        f"{labels[i]:>{edge}} |{''.join(row).rstrip()}" for i, row in enumerate(cells)
    ]
    left, right = seconds(min(xs)), seconds(max(xs))
    lines.append(f"{'':{edge}} +{'-' * wide}")
    lines.append(f"{'':{edge}}  {left}{right:>{wide - len(left)}}")
    lines.append(
        f"{'':{edge}}  time (log scale); o: on the front, .: the first hundred"
    )
    return lines


def _place(x: float, low: float, high: float, cells: int) -> int:
    return 0 if high <= low else min(cells - 1, int((x - low) / (high - low) * cells))


def _shortlist(p: Plan, budget: Budget) -> None:
    out = common.out()
    out.print(f"\n[bold]Shortlist of {len(p.shortlist)}[/bold]")
    for i, one in enumerate(p.shortlist, 1):
        again = one.train.recompute
        out.print(
            f"\n[bold]{i}. {one.strategy}[/bold], micro-batch {one.micro_batch}, "
            f"recompute {again}"
        )
        out.print(f"   time    {forecast.headline(one)}")
        _bar(forecast.times_of(one), one.seconds, seconds)
        out.print(f"   memory  {forecast.room(one)}")
        _bar(forecast.memory_of(one), one.capacity, size)
        out.print(f"   bound   by {NAMES[one.binds]}; {_limit(one)}")
        if spent := forecast.cost(one, *budget):
            out.print(f"   cost    {spent}")
        out.print("   measure", end=" ")
        out.print(frameworks.measure(one), soft_wrap=True, markup=False)
        for caveat in frameworks.caveats(one):
            out.print(f"           {caveat}", style="dim")


def _limit(p: Prediction) -> str:
    """The limit of the axis that is nearest to it; none if no axis has one."""
    near, says = 0.0, "no axis has a limit"
    for axis in p.strategy.axes:
        most = limit(p.model, type(axis))
        if isinstance(axis, Data | Zero):
            most = (p.train.batch, "the batch size")
        if most is not None and axis.ranks / most[0] > near:
            near = axis.ranks / most[0]
            says = f"{axis.ranks} {type(axis).__name__} ranks "
            says += f"(limit {most[0]}: {most[1]})"
    return says


def _bar(rows: list[tuple[str, float]], whole: float, show: Callable[..., str]) -> None:
    out = common.out()
    bar = forecast.stacked([value for _, value in rows], whole)
    out.print("          ", end=" ")
    out.print(bar)
    shown = [(n, v) for n, v in rows if v > 0.005 * whole]
    said = ", ".join(f"{n} {show(v)}" for n, v in shown)
    out.print(f"           {said}", style="dim")


# As JSON


def plain(p: Plan, left_out: int, budget: Budget) -> dict[str, Any]:
    """The whole plan."""
    return {
        "model": p.model.name,
        "cluster": p.cluster.name,
        "gpus": p.gpus,
        "batch": p.train.batch,
        "candidates": p.candidates,
        "pruned": dict(p.pruned),
        "meshes_left_out": left_out,
        "fitting": p.fitting,
        "front": [_plain_candidate(c) for c in p.front],
        "ranked": [_plain_candidate(c) for c in p.ranked],
        "shortlist": [
            {
                **forecast.plain(one),
                "cost": forecast.plain_cost(one, *budget),
                "measure": frameworks.measure(one),
                "caveats": list(frameworks.caveats(one)),
                "megatron": frameworks.megatron(one)._asdict(),
                "torchtitan": frameworks.torchtitan(one)._asdict(),
            }
            for one in p.shortlist
        ],
        "why": WHY,
    }


def _plain_candidate(c: Candidate) -> dict[str, Any]:
    return {
        "strategy": str(c.strategy),
        "micro_batch": c.train.micro_batch,
        "recompute": c.train.recompute,
        "seconds": c.seconds,
        "bytes": c.bytes,
    }


# The presets


def _list(as_json: bool) -> None:
    models, clusters = presets.load()
    if as_json:
        found: dict[str, Any] = {"models": models, "clusters": clusters}
        common.print_json(
            {
                kind: {name: dict(one.sources) for name, one in known.items()}
                for kind, known in found.items()
            }
        )
        return
    out = common.out()
    table = forecast.lines()
    table.add_column("model", no_wrap=True)
    table.add_column("parameters", justify="right", no_wrap=True)
    table.add_column("sources", overflow="fold")
    for name, model in models.items():
        table.add_row(name, count(model.parameters), _sources(model.sources))
    out.print(table)
    table = forecast.lines()
    for name in ("cluster", "device", "memory"):
        table.add_column(name, no_wrap=True)
    table.add_column("sources", overflow="fold")
    for name, cluster in clusters.items():
        room = size(cluster.device.memory)
        sources = _sources(cluster.sources)
        table.add_row(name, cluster.device.name, room, sources)
    out.print(table)
    out.print("A YAML file of the same form or a Hugging Face config.json also works.")


def _sources(sources: Any) -> str:
    return "\n".join(dict.fromkeys(sources.values()))
