"""ParaDL's tables executed: limits of devices, networks, and what holds them back."""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from math import prod

from atlas.planner import presets
from atlas.planner.model import Layer, Model
from atlas.planner.network import Item, network
from atlas.planner.predict import predict
from atlas.planner.prediction import Finding
from atlas.planner.rules import limit
from atlas.planner.strategy import Axis, Channel, Filter, Pipeline, Spatial, parse
from atlas.planner.train import Train
from atlas.site import address
from atlas.site.templating import macro
from atlas.taxonomy.tables import Case, Cost, Experiment, KahiraTables
from atlas.views.context import Context

HERE = "surveys/paradl-tables.md"
PARTS = "paradl.html.j2"
MARKS = ("d", "s", "p", "fc", "df", "ds")


def tables(ctx: Context) -> KahiraTables:
    """ParaDL's tables, without which there is no page."""
    assert ctx.atlas.tables is not None
    assert ctx.atlas.tables.kahira2021 is not None
    return ctx.atlas.tables.kahira2021


# Table 3: the limits, by its expressions and by our planner


@dataclass(frozen=True)
class Limit:
    """Devices at most: a number, or so many times the batch."""

    number: int
    batches: bool = False

    def __str__(self) -> str:
        """As a product, where the batch is in it."""
        if not self.batches:
            return str(self.number)
        return "B" if self.number == 1 else f"{self.number} B"


def printed(cost: Cost, model: Model, experiment: Experiment) -> Limit:
    """The table's expression, with the sizes of our layers and its own G."""
    weighted = [layer for layer in model.layers if layer.matrix[0]]
    filters = min(layer.matrix[0] for layer in weighted)
    match cost.id:
        case "serial":
            return Limit(1)
        case "data":
            return Limit(1, batches=True)
        case "spatial":
            return Limit(min(_maps(model)))
        case "pipeline":
            return Limit(experiment.layers)
        case "filter":
            return Limit(filters)
        case "channel":
            return Limit(min(layer.work.thin for layer in weighted))
        case "data-filter":
            return Limit(filters, batches=True)


def _maps(model: Model) -> Iterator[int]:
    """Width times height (times depth) of what enters each layer that reads a map."""
    channels = 0
    for layer in model.layers:
        if _is_linear(layer):
            continue
        c = layer.work.thin if layer.matrix[0] else channels
        yield layer.work.inputs // c
        channels = layer.matrix[0] or channels


def _is_linear(layer: Layer) -> bool:
    return layer.name.endswith("linear")


AXES: Mapping[str, type[Axis]] = {
    "spatial": Spatial,
    "pipeline": Pipeline,
    "filter": Filter,
    "channel": Channel,
    "data-filter": Filter,
}


def planned(cost: Cost, model: Model) -> Limit:
    """What our planner allows."""
    axis = AXES.get(cost.id)
    found = limit(model, axis) if axis else None
    number = found[0] if found else 1
    return Limit(number, batches=cost.id in ("data", "data-filter"))


@dataclass(frozen=True)
class Row:
    """A strategy, and both limits for every network."""

    cost: Cost
    pairs: list[tuple[Limit, Limit]]

    @property
    def equal(self) -> bool:
        return all(a == b for a, b in self.pairs)


def limits(ctx: Context) -> list[Row]:
    """Every strategy of Table 3 for every network of Table 5."""
    made = tables(ctx)
    networks = [(x, presets.model(x.model, ctx.root)) for x in made.experiments.rows]
    return [
        Row(cost, [(printed(cost, m, x), planned(cost, m)) for x, m in networks])
        for cost in made.costs.rows
    ]


# Table 5: the networks


@dataclass(frozen=True)
class Network:
    """A network of Table 5 beside our file of it."""

    experiment: Experiment
    model: Model
    image: tuple[int, ...]
    changed: int | None  # parameters after the change that gives the printed number
    weighted: int  # layers with weights, shortcuts left out
    modules: int | None  # with activations and pools; None: residual blocks

    @property
    def off(self) -> float:
        """How far our parameters are from the printed ones."""
        return self.model.parameters / (self.experiment.millions * 1e6) - 1

    @property
    def exact(self) -> int:
        """The parameters that the printed number, cut to millions, is of."""
        return self.changed or self.model.parameters


def networks(ctx: Context) -> list[Network]:
    """All networks of Table 5."""
    return [_network(ctx, x) for x in tables(ctx).experiments.rows]


def _network(ctx: Context, x: Experiment) -> Network:
    model = presets.model(x.model, ctx.root)
    items = presets.items(x.model, ctx.root)
    last = model.layers[-1].work
    changed = None
    if x.gives == "without-last":
        changed = model.parameters - last.weights - last.shared
    elif x.gives == "rounded-pools":
        rounded = [replace(item, ceil=item.pool is not None) for item in items]
        changed = network(model.name, x.sample, rounded).parameters
    named = [a for a in model.layers if a.matrix[0] and "shortcut" not in a.name]
    sample = _sample(model)
    return Network(x, model, sample, changed, len(named), _modules(items))


def _sample(model: Model) -> tuple[int, ...]:
    """Channels, and elements of one channel, of what enters our network."""
    first = model.layers[0].work
    return first.thin, first.inputs // first.thin


def _modules(items: tuple[Item, ...]) -> int | None:
    if any(item.basic or item.bottleneck for item in items):
        return None
    return sum(i.repeat * (1 + (i.relu and i.pool is None)) for i in items)


# Table 6: what our planner says


def said(ctx: Context, case: Case) -> Finding | None:
    """The finding of the planner that says the row, if it does."""
    found = predict(
        presets.model(case.model, ctx.root),
        parse(case.strategy),
        presets.cluster(case.cluster, ctx.root),
        Train(case.batch),
    )
    return next((f for f in found.findings if case.finds in f.says), None)


# The page


def heads(ctx: Context) -> list[str]:
    return [x.name for x in tables(ctx).experiments.rows]


def limit_table(ctx: Context) -> str:
    return macro(PARTS, "limits", heads(ctx), limits(ctx))


def expressions(ctx: Context) -> str:
    return macro(PARTS, "expressions", tables(ctx).costs)


def network_table(ctx: Context) -> str:
    rows = [(n, _equal_samples(n)) for n in networks(ctx)]
    return macro(PARTS, "networks", rows)


def _equal_samples(n: Network) -> bool:
    channels, *sides = n.experiment.sample
    return n.image == (channels, prod(sides))


def remark_table(ctx: Context) -> str:
    rows = [
        (r, said(ctx, r.case) if r.case else None) for r in tables(ctx).remarks.rows
    ]
    return macro(PARTS, "remarks", MARKS, rows)


def unsaid(ctx: Context) -> str:
    rows = [r for r in tables(ctx).remarks.rows if r.case is None]
    return macro(PARTS, "unsaid", len(tables(ctx).remarks.rows), rows)


# What docs/surveys/paradl-tables.md may mark, as `{{ name }}`.
PLACES: Mapping[str, Callable[[Context], object]] = {
    "assets": lambda ctx: address.assets(HERE, "terms.css"),
    "costs": lambda ctx: tables(ctx).costs.where,
    "limits": limit_table,
    "expressions": expressions,
    "experiments": lambda ctx: tables(ctx).experiments.where,
    "networks": network_table,
    "remarked": lambda ctx: tables(ctx).remarks.where,
    "remarks": remark_table,
    "unsaid": unsaid,
}
