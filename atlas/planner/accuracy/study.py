"""Predicted steps against measured ones, by ParaDL's metric: 1 - |p - m| / m.

For every network: its units are profiled and exchanges are timed, both at other
sizes; the oracle predicts the step of every strategy; then the step is measured.
Nothing that is judged goes into what it is predicted from. All of that is a round,
and a study has several: a machine is faster at one hour than at another, and a
round is short.
"""

import json
import os
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import combinations
from pathlib import Path
from statistics import fmean, median
from typing import Any

from atlas.bench.study import today, versions
from atlas.launch import launch
from atlas.planner.accuracy import links, profile
from atlas.planner.accuracy.links import Points
from atlas.planner.accuracy.networks import NETWORKS, Network
from atlas.planner.accuracy.profile import PEAK, Costs, Gauge, Kind, in_step, last, mean
from atlas.planner.accuracy.programs import program
from atlas.planner.calibrate.machine import rounded
from atlas.planner.calibrate.timing import timed
from atlas.planner.cluster import Cluster, Device, Level
from atlas.planner.model import Model
from atlas.planner.predict import predict
from atlas.planner.prediction import Prediction
from atlas.planner.records import Link
from atlas.planner.stages import stages
from atlas.planner.strategy import (
    Axis,
    Channel,
    Data,
    Filter,
    Pipeline,
    Spatial,
    Strategy,
)
from atlas.planner.train import OPTIMIZERS, PRECISIONS, Train
from atlas.record import RecordError, compact, predictor, write_text

PLACE = Path("measurements") / "studies" / "accuracy.json"
DEADLINE = 900.0
ROUNDS = 3
CORES = 2  # ranks that profile at once: those that the goals are about

Json = dict[str, Any]
Progress = Callable[[str], None]
Turn = tuple[Prediction, list[float]]  # and the measured seconds of every step


def _numbered(turn: int, progress: Progress, text: str) -> None:
    progress(f"round {turn} of {ROUNDS}, {text}")


@dataclass(frozen=True)
class Case:
    """A strategy: its mesh, how its batch is cut, and which exchanges it makes."""

    name: str
    strategy: Strategy | Axis
    samples: int  # of a batch, ranks that share it
    part: str  # what of a unit the cut divides: see `profile.paced`
    profile: str  # whose costs its units have: see PROFILES

    @property
    def ranks(self) -> int:
        """How many run at once."""
        return Strategy.of(self.strategy).ranks


CASES = {
    case.name: case
    for case in (
        Case("data", Data(2), 2, "unit", "replicas"),
        Case("filter", Filter(2), 1, "filters", "meeting"),
        Case("channel", Channel(2), 1, "channels", "meeting"),
        Case("spatial", Spatial(2), 2, "unit", "rows"),
        Case("pipeline", Pipeline(2, "gpipe"), 1, "unit", "stages"),
        Case("data+filter", Data(2) * Filter(2), 2, "filters", "meeting"),
        Case("data+spatial", Data(2) * Spatial(2), 4, "unit", "rows"),
    )
}
#: How each is measured: modules, ranks at once, and what of the ranks counts.
PROFILES: Mapping[str, tuple[Kind, int, Gauge]] = {
    "replicas": ("whole", CORES, last),
    "stages": ("whole", CORES, mean),
    "meeting": ("whole", CORES, in_step),
    "rows": ("rows", CORES, in_step),
    "alone": ("alone", 1, mean),
}


@dataclass(frozen=True)
class Known:
    """What predictions are made from: profiles of a network, times of exchanges."""

    costs: Mapping[str, Costs]  # by the names of PROFILES
    exchanges: Mapping[int, Points]  # by ranks


def parts(nets: Sequence[str], cases: Sequence[str]) -> int:
    """How often `progress` is told of something."""
    chosen = [CASES[name] for name in cases]
    groups = {case.ranks for case in chosen}
    each = len(_kinds(chosen)) + len(chosen)
    return ROUNDS * (len(groups) + len(nets) * each)


def _kinds(cases: Iterable[Case]) -> set[tuple[Kind, int]]:
    """What has to be profiled, and by how many ranks at once."""
    names = {case.profile for case in cases}
    if any(case.name == "pipeline" for case in cases):
        names.add("alone")
    return {PROFILES[name][:2] for name in names}


def study(
    nets: Sequence[str],
    cases: Sequence[str],
    progress: Progress = lambda text: None,
) -> list[Json]:
    """A row for every strategy on every network."""
    chosen = [CASES[name] for name in cases]
    turns: dict[tuple[str, str], list[Turn]] = {}
    for i in range(ROUNDS):
        tell = partial(_numbered, i + 1, progress)
        seen: dict[int, Points] = {}
        for p in sorted({case.ranks for case in chosen}):
            tell(f"exchanges between {p} ranks")
            seen[p] = links.points(launch(links.measured, p, timeout=DEADLINE))
        for net in (NETWORKS[name] for name in nets):
            known = Known(profiles(net, chosen, tell), seen)
            for case in chosen:
                tell(f"{net.name}: {case.name}")
                turn = judged(net, case, known)
                turns.setdefault((net.name, case.name), []).append(turn)
    return [row(NETWORKS[net], CASES[case], turns[net, case]) for net, case in turns]


def profiles(
    net: Network, cases: Sequence[Case], progress: Progress
) -> dict[str, Costs]:
    """What the network's units cost, by the names of PROFILES."""
    seen = {}
    for kind, ranks in sorted(_kinds(cases)):
        progress(f"{net.name}: units, {kind}")
        seen[kind] = launch(profile.profiled, ranks, net, kind, timeout=DEADLINE)
    return {
        name: profile.costs(seen[kind], gauge)
        for name, (kind, _, gauge) in PROFILES.items()
        if kind in seen
    }


def judged(net: Network, case: Case, known: Known) -> Turn:
    """One strategy on one network: predicted first, measured then."""
    found, cuts = predicted(net, case, known)
    seconds = launch(_measured, case.ranks, net, case.name, cuts, timeout=DEADLINE)
    return found, [max(turn) for turn in zip(*seconds, strict=True)]


def row(net: Network, case: Case, turns: Sequence[Turn]) -> Json:
    """The rounds together: the median prediction, and of all steps the median."""
    steps = [s for _, measured in turns for s in measured]
    found = sorted((f for f, _ in turns), key=lambda f: f.seconds)[len(turns) // 2]
    took = median(steps)
    return {
        "network": net.name,
        "strategy": case.name,
        "mesh": str(Strategy.of(case.strategy)),
        "ranks": case.ranks,
        "batch": net.batch,
        "predicted": found.seconds,
        "measured": took,
        "fastest": min(steps),
        "slowest": max(steps),
        "rounds": [[f.seconds, median(measured)] for f, measured in turns],
        "accuracy": accuracy(found.seconds, took),
        "times": {k: v for k, v in found.times._asdict().items() if v},
    }


def _measured(w: Any, net: Network, name: str, cuts: tuple[int, ...]) -> list[float]:
    _, step = program(w, net, name, cuts)
    return timed(w, step, net.repeats, net.warm_up)


def predicted(
    net: Network, case: Case, known: Known
) -> tuple[Prediction, tuple[int, ...]]:
    """The oracle's prediction, and after which units a pipeline is cut."""
    # Where there are more ranks than cores, they take turns.
    costs = known.costs[case.profile].slowed(max(1.0, case.ranks / CORES))
    if case.name != "pipeline":
        return _asked(net, case, known, costs, net.batch / case.samples), ()
    model = profile.paced(net, costs, net.micro, case.part)
    share = waiting(net, costs, _asked(net, case, known, costs, net.micro))
    mixed = costs.mixed(known.costs["alone"], share)
    return _asked(net, case, known, mixed, net.micro), _cuts(model)


def waiting(net: Network, costs: Costs, found: Prediction) -> float:
    """Of a pipeline's time, the share in which one of two stages works alone.

    Both together work W seconds in a time of T. While both do, two seconds of W go by
    in one of T, and W - T is how long that is; the rest, 2 T - W, is one's alone.
    """
    work = sum(pace.unit for pace in costs.at(net.micro)) * net.batch / net.micro
    took = found.times.compute + found.times.memory + found.times.bubble
    return min(1.0, max(0.0, 2 - work / took))


def _asked(
    net: Network, case: Case, known: Known, costs: Costs, size: float
) -> Prediction:
    """What the oracle says, of units that cost so much."""
    model = profile.paced(net, costs, size, case.part)
    train = Train(
        net.batch,
        micro_batch=net.micro if case.name == "pipeline" else None,
        precision=PRECISIONS["fp32"],
        optimizer=OPTIMIZERS["sgd"],
        overlap=False,
        bucket=0,
    )
    seen = known.exchanges[case.ranks]
    # Calls and bytes do not depend on the links: ask once without, then with them.
    free = _cluster(case, costs, {}, {})
    asked = predict(model, case.strategy, free, train)
    inner, outer = _links(asked, case, seen)
    return predict(model, case.strategy, _cluster(case, costs, inner, outer), train)


def _links(
    asked: Prediction, case: Case, seen: Points
) -> tuple[dict[str, Link], dict[str, Link]]:
    """Links inside a cut, and between replicas, for messages of this step's sizes."""
    inner: dict[str, Link] = {}
    outer: dict[str, Link] = {}
    for c in asked.collectives:
        agree = c.axis == "Data"
        whole = c.payload * (c.ranks if c.op == "all_gather" else 1) / c.count
        if c.op == "p2p":
            what = "message" if c.axis == "Pipeline" else "swap"
            inner["p2p"] = links.link(seen[what], whole, c.ranks, 0)
        elif c.op == "all_gather":
            inner[c.op] = links.link(seen["gather"], whole, c.ranks, c.ranks - 1)
        else:
            what = "sum" if not agree else "all" if c.ranks > 2 else "replicas"
            made = links.link(seen[what], whole, c.ranks, 2 * (c.ranks - 1))
            (outer if agree else inner)[c.op] = made
    return inner, outer


def _cluster(
    case: Case, costs: Costs, inner: Mapping[str, Link], outer: Mapping[str, Link]
) -> Cluster:
    """This machine: ranks of a cut are near one another, replicas beyond."""
    device = Device("one process", {"fp32": PEAK}, 1e12, costs.bandwidth)
    near, far = {"any": Link(), **inner}, {"any": Link(), **outer}
    if not inner:
        return Cluster("here", device, (Level("all", case.ranks, far),))
    if not outer:
        return Cluster("here", device, (Level("all", case.ranks, near),))
    # Of spatial cuts alone, all ranks are replicas too: their own sums go by gradient.
    within = Level("cut", 2, near)
    return Cluster("here", device, (within, Level("all", 4, far, rails=2)))


def _cuts(model: Model) -> tuple[int, ...]:
    """How many units the first stage of two has."""
    first, _ = stages(model, 2)
    return (sum(not layer.glued for layer in first),)


def accuracy(predicted: float, measured: float) -> float:
    """ParaDL's: one, less the relative error."""
    return 1 - abs(predicted - measured) / measured


# What the rows come to


def summary(rows: Sequence[Json]) -> Json:
    """By strategy mean and worst, by network the order; goals count two ranks only."""
    plain = [row for row in rows if row["ranks"] == 2]
    return {
        "mean": fmean(row["accuracy"] for row in plain) if plain else None,
        "strategies": {
            name: _told([r for r in rows if r["strategy"] == name])
            for name in dict.fromkeys(row["strategy"] for row in rows)
        },
        "networks": {
            name: order([r for r in plain if r["network"] == name])
            for name in dict.fromkeys(row["network"] for row in plain)
        },
    }


def _told(rows: Sequence[Json]) -> Json:
    found = [row["accuracy"] for row in rows]
    return {
        "ranks": rows[0]["ranks"],
        "mean": fmean(found),
        "worst": min(found),
        "of": min(rows, key=lambda row: row["accuracy"])["network"],
        "correlation": correlation(rows),
    }


def order(rows: Sequence[Json]) -> Json:
    """A network's strategies from fast to slow, and how many pairs are in order."""
    by = {
        key: [r["strategy"] for r in sorted(rows, key=lambda r: r[key])]
        for key in ("predicted", "measured")
    }
    pairs = [
        (a["predicted"] - b["predicted"]) * (a["measured"] - b["measured"]) > 0
        for a, b in combinations(rows, 2)
    ]
    return {
        **by,
        "pairs": len(pairs),
        "right": sum(pairs),
        "correlation": correlation(rows),
    }


def correlation(rows: Sequence[Json]) -> float | None:
    """Spearman's, of predicted and measured seconds; None of fewer than two."""
    if len(rows) < 2:
        return None
    places = []
    for key in ("predicted", "measured"):
        values = sorted(row[key] for row in rows)
        places.append([values.index(row[key]) for row in rows])
    n = len(rows)
    off = sum((a - b) ** 2 for a, b in zip(*places, strict=True))
    return 1 - 6 * off / (n * (n * n - 1))


def keep(root: Path, rows: Sequence[Json]) -> Path:
    """Write the study."""
    made = {
        "recorded": today(),
        "versions": versions(),
        "machine": {"cores": os.cpu_count()},
        "load": round(os.getloadavg()[2], 2),
        "source": predictor(root),
        "given": {
            net.name: {
                "batch": net.batch,
                "micro": net.micro,
                "calibrated": net.calibrated,
                "parameters": net.model.parameters,
                "repeats": net.repeats,
                "warm_up": net.warm_up,
            }
            for net in NETWORKS.values()
        },
        "rows": [rounded(row) for row in rows],
        "summary": rounded(summary(rows)),
    }
    target = root / PLACE
    write_text(target, compact(json.dumps(made, indent=1, sort_keys=True) + "\n"))
    return target


def kept(root: Path) -> Json | None:
    """The study that lies there."""
    try:
        found: Json = json.loads((root / PLACE).read_text())
    except FileNotFoundError:
        return None
    except ValueError as error:
        raise RecordError(f"{PLACE}: {error}; remove it and measure again") from None
    return found
