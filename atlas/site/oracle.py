"""How the oracle computes: its formulas as executed, its limits, its sources."""

import inspect
import re
from collections.abc import Iterator

from atlas.planner import presets, records
from atlas.planner.arithmetic import ARITHMETIC
from atlas.planner.rules import limit
from atlas.planner.strategy import Axis, Channel, Filter, Pipeline, Spatial
from atlas.script.latex import field_latex
from atlas.site import address
from atlas.site.text import attr, front, md, raw
from atlas.views.context import Context

__all__ = ["page"]

HERE = "oracle.md"
NAME = re.compile(r"\\mathrm\{([^}]*)\}")
FIELD = re.compile(r"    (\w+): \w+(?: = .*?)?  # (.+)")
ACCURACY = "accuracy.md"
NETWORKS = ("resnet-50", "resnet-152", "vgg-16", "cosmoflow")
LIMITED: tuple[tuple[type[Axis], str], ...] = (
    (Spatial, "rows of the smallest map"),
    (Filter, "filters of the smallest layer"),
    (Channel, "channels of the smallest layer, the first left out"),
    (Pipeline, "layers, a block that cannot be cut counting as one"),
)
Part = tuple[str, str | None, str]
#: (heading, anchor, what is said, the formulas: function, field, what it is)
SECTIONS: tuple[tuple[str, str, str, tuple[Part, ...]], ...] = (
    (
        "An analytic oracle",
        "analytic-oracle",
        "A simulator replays every message; a profiler needs the machine. An analytic "
        "oracle, as ParaDL introduced it for convolutional networks, adds up closed "
        "formulas instead: a model is a list of layers with operations, parameters and "
        "activations, a strategy says which part of each a rank has, a cluster says "
        "what an operation and a byte cost. A step is the sum of these parts, and only "
        "what is known to overlap is hidden:",
        (
            ("times", "compute", "computing"),
            ("times", "cut", "communication inside layers"),
            ("times", "data", "agreement between replicas"),
            ("exposed", None, "communication not hidden by computing"),
            ("felt", None, "the same, with what hiding it costs"),
        ),
    ),
    (
        "The alpha-beta cost model",
        "alpha-beta-cost-model",
        "A message of n bytes costs a latency, alpha, and n times beta, the seconds of "
        "a byte; a call adds what it costs to launch. Collectives are rings. Each "
        "level of a cluster's network has its own constants, and a group pays those "
        "of the innermost level that holds all its ranks; groups that leave a node "
        "together share its network cards.",
        (
            ("send_seconds", None, "messages"),
            ("gather_seconds", None, "all-gather, reduce-scatter, all-to-all"),
            ("reduce_seconds", None, "all-reduce"),
            ("shared_beta", None, "seconds of a byte where groups share rails"),
            ("ring_alpha", None, "latency of a round where a ring leaves its nodes"),
            ("slower", None, "how bandwidth falls with the nodes of a group"),
        ),
    ),
    (
        "Computing",
        "computing",
        "A product of f operations reaches a share of the peak that grows with f, up "
        "to what the device sustains in a step, not what its best product ever "
        "reached; flash attention sustains a share of its own. Element-wise layers are "
        "bound by what they reach of the memory's bandwidth. Where all of that is "
        "short, the host that launches it sets the pace.",
        (
            ("product_seconds", None, "matrix products"),
            ("score_seconds", None, "attention"),
            ("host_seconds", None, "waiting for the host"),
            ("moved_bytes", None, "bytes that element-wise layers move"),
            ("recomputed_flops", None, "operations that backward repeats"),
            ("optimizer_seconds", None, "the optimizer's step"),
        ),
    ),
    (
        "Pipelines",
        "pipelines",
        "A pipeline idles while it fills and drains; how long, and how many "
        "micro-batches a stage holds meanwhile, depends on its schedule: 0 GPipe, "
        "1 1F1B, 2 interleaved, 3 zero bubble, 4 weight stashing, 5 a loss for each "
        "stage.",
        (
            ("bubble_seconds", None, "idle time of a step"),
            ("in_flight", None, "micro-batches held at once"),
        ),
    ),
    (
        "Memory",
        "memory",
        "The fullest rank is the one that counts. Parameters, gradients and the "
        "optimizer's state are divided as ZeRO's stage says; activations by the axes "
        "that cut a sample or a layer.",
        (
            ("state_bytes", "parameters", "parameters"),
            ("state_bytes", "gradients", "gradients"),
            ("state_bytes", "optimizer", "the optimizer's state"),
            ("kept_bytes", None, "activations of a micro-batch"),
            ("memory", "activations", "activations at the peak"),
        ),
    ),
    (
        "How many parameter servers",
        "ps-sizing",
        "Each of w workers pushes and pulls n bytes in a step; s servers share that "
        "traffic evenly, so a server's link is busy for w n beta / s seconds. The "
        "traffic hides behind a step's computing when that is no longer than the "
        "computing itself; the least such s follows. A worker's own link carries n "
        "bytes however many servers there are, so more servers than workers do not "
        "help.",
        (
            ("server_seconds", None, "a push and a pull, on the busier side"),
            ("servers_needed", None, "servers that computing hides"),
        ),
    ),
)
#: Names of which the source says nothing more.
WORDS = {
    "activation": "bytes of an element of an activation",
    "backward": "seconds of products backward; or of exchanges in it; or 1: backward",
    "below": "seconds of a byte on the level below",
    "calls": "how often it is called",
    "crossing": "seconds more of a round that leaves a unit of the level below",
    "cut_backward": "communication inside layers, backward",
    "decay": "power of the units by which bandwidth falls",
    "gradient": "bytes of an element of a gradient",
    "inside": "ranks of the group in one unit of the level below",
    "launch": "seconds that a call costs of itself",
    "place": "the stage, counted from 0",
    "rails": "links by which a unit of the level below leaves it",
    "seconds": "of the exchange; or of a step's computing",
    "servers": "how many there are",
    "stages": "of the pipeline",
    "tensor": "ranks of the tensor axis",
    "unit": "ranks of a unit of the level below",
    "versions": "of the parameters, as weight stashing keeps them",
    "weight": "bytes of an element of a weight",
    "window": "seconds of computing that may hide it",
    "workers": "how many there are",
}
#: What is not in the formulas.
NOT_MODELLED = (
    "Reading data, saving checkpoints, and starting up.",
    "Other jobs on the same network, and collisions between flows beyond the equal "
    "sharing of a node's cards.",
    "Collectives other than rings: trees and in-network reduction are faster for small "
    "messages on many ranks.",
    "Slow ranks, failures, and the varying clocks of devices.",
    "How evenly tokens choose experts; the capacity factor stands for it.",
    "Memory lost to fragmentation, and what the libraries keep for themselves.",
    "Convergence: a larger batch or an older gradient may need more steps.",
)
#: ParaDL's own list, in our words, and what our findings say of it.
BOTTLENECKS = (
    ("Memory redundancy", "data, spatial", "replicas keep the same state: ZeRO"),
    ("Gradient exchange", "data, spatial", "grows with parameters, not with ranks"),
    ("Layer-wise exchange", "filter, channel", "several collectives for each layer"),
    ("Halo exchange", "spatial", "rows beside a border, for each layer"),
    ("Idle stages", "pipeline", "the bubble, and stages of unequal work"),
    ("Levels of the network", "all", "an axis that leaves the node pays for it"),
    ("Whole layers on each rank", "all", "norms and the last layer are not cut"),
)


def page(ctx: Context) -> str:
    """The whole page."""
    parts = [
        front(
            "How the oracle computes",
            description="The formulas behind plans, predictions and the calculator.",
        ),
        "# How the oracle computes",
        address.assets(HERE, "calculator.css"),
        '<p class="lede">Every number of <code>atlas plan</code>, <code>atlas '
        "predict</code> and the calculator comes from these formulas.</p>",
        "They are shown as they are executed: this page, the command line and the "
        "[calculator](calculator.md) are written from one source.",
    ]
    for heading, anchor, says, formulas in SECTIONS:
        parts += [f"## {heading} {{#{anchor}}}", says, *map(_formula, formulas)]
    parts += [
        "## Limits and bottlenecks {#limits}",
        "How far a strategy can go is set by the network's shape "
        "([ParaDL](papers.md#kahira2021oracle), table III). Data parallelism ends at "
        "the batch. The other ends, for networks that the oracle knows:",
        _limits(),
        "The same networks by the table's own expressions: "
        "[ParaDL's tables, executed](surveys/paradl-tables.md).",
        "What holds a strategy back before that end, and what the findings of a "
        "prediction say of it:",
        _bottlenecks(),
        "## What it does not know {#unknown}",
        "\n".join(f"- {line}" for line in NOT_MODELLED),
        "Outside its range the oracle refuses and says why. Every prediction for a "
        "calibrated cluster carries a band, low to high: how far measured steps lay "
        "from predicted ones. A plan ends in a shortlist for the same reason: "
        "neighbors differ by less than the error, so the five are to be measured.",
    ]
    parts.append(f"How far off it has been: [how far to trust it]({ACCURACY}).")
    parts += [
        "## The names {#names}",
        "Names that the formulas use; a call is written with those of its arguments "
        "that are numbers.",
        raw(_names()),
        "## Sources {#sources}",
        "\n".join(f"- {md(line)}" for line in _sources()),
        "Constants of models and clusters have their own sources: "
        "`atlas plan --list` prints them.",
    ]
    return "\n\n".join(parts) + "\n"


def _formula(part: Part) -> str:
    name, field, what = part
    text = attr(field_latex(ARITHMETIC[name], field))
    return (
        f"<p>{md(what.capitalize())}: <code>{name}</code></p>\n\n"
        f'<div class="arithmatex">\\[{text}\\]</div>'
    )


def _limits() -> str:
    models = [presets.model(name) for name in NETWORKS]
    head = "| axis | ends at | " + " | ".join(md(m.name) for m in models) + " |"
    rows = [head, "|---|---|" + "---|" * len(models)]
    for kind, what in LIMITED:
        cells = [str((limit(m, kind) or (0,))[0]) for m in models]
        rows.append(f"| {kind.__name__} | {what} | {' | '.join(cells)} |")
    return "\n".join(rows)


def _bottlenecks() -> str:
    rows = ["| bottleneck | where | what it is |", "|---|---|---|"]
    rows += [f"| {a} | {b} | {c} |" for a, b, c in BOTTLENECKS]
    return "\n".join(rows)


def _names() -> str:
    """What each name in the formulas is: the comments and docstrings of the source."""
    shown = [
        field_latex(ARITHMETIC[n], f) for _, _, _, all_ in SECTIONS for n, f, _ in all_
    ]
    used = {w.replace(r"\_", "_") for t in shown for w in NAME.findall(t)}
    fields = _comments()
    rows = []
    for name in sorted(used):
        if name in ARITHMETIC:
            doc = " ".join((ARITHMETIC[name].__doc__ or "").split())
            says = doc.partition(" Source:")[0].rstrip(".")
        else:
            says = WORDS.get(name) or fields.get(name, "")
        if says:
            rows.append(f"<dt><code>{attr(name)}</code></dt><dd>{attr(says)}</dd>")
    return f'<dl class="names">{"".join(rows)}</dl>'


def _comments() -> dict[str, str]:
    """The fields of the records, each with what the source says of it."""
    found: dict[str, str] = {}
    for line in inspect.getsource(records).splitlines():
        if match := FIELD.match(line):
            name, says = match.groups()
            found[name] = f"{found[name]}; or {says}" if name in found else says
    return found


def _sources() -> Iterator[str]:
    """What the shown functions cite, each once."""
    seen: set[str] = set()
    for _, _, _, formulas in SECTIONS:
        for name, _, _ in formulas:
            _, _, said = " ".join((ARITHMETIC[name].__doc__ or "").split()).partition(
                "Source: "
            )
            if said and said not in seen:
                seen.add(said)
                yield f"`{name}`: {said}"
