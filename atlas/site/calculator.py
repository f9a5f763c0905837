"""The calculator: the oracle itself in the reader's browser, with presets baked in."""

import dataclasses
import json
import re
from collections.abc import Iterator, Mapping
from functools import cache
from html import escape
from typing import Any

from atlas.planner import answers, presets
from atlas.planner.arithmetic import ARITHMETIC
from atlas.planner.cluster import Cluster
from atlas.planner.explain import explain
from atlas.planner.findings import NAMES
from atlas.planner.model import Model
from atlas.planner.prediction import Prediction
from atlas.planner.records import Work
from atlas.planner.train import OPTIMIZERS, PRECISIONS, RECOMPUTE
from atlas.planner.transformer import dimensions
from atlas.planner.units import seconds, size
from atlas.script.derive import derivation
from atlas.script.modules import needed, transpile
from atlas.site import address
from atlas.site.text import front, raw
from atlas.views.context import Context

__all__ = ["FIRST", "data", "page", "program"]

HERE = "calculator.md"
SCRIPT = "assets/js/oracle.js"
#: Where the page enters the oracle; what these import is written too.
ROOTS = (
    *("atlas.planner.predict", "atlas.planner.explain"),
    *("atlas.planner.frameworks", "atlas.planner.huggingface", "atlas.planner.answers"),
)
#: What only the command line needs, or needs of Python what a browser has not.
LEFT_OUT = ("nearest", "parse", "_product", "_axis", "_words", "_KNOWN", "SPOKEN")
#: What a page shows before anything is chosen, and where there are no scripts.
FIRST: dict[str, Any] = {
    "model": "gpt3-175b",
    "cluster": "a100-80g",
    "gpus": 1024,
    "batch": 1536,
    "micro": 1,
    "pipeline": 8,
    "tensor": 8,
    "sequence": True,
    "replicas": "zero1",
    "recompute": "selective",
    "schedule": "interleaved",
    "chunks": 3,
}
#: For each number: the formulas behind it, of which function and, if any, field.
BEHIND: Mapping[str, tuple[tuple[str, str | None], ...]] = {
    "compute": (("times", "compute"), ("load", "forward"), ("load", "backward")),
    "memory": (("times", "memory"), ("load", "forward_moved"), ("moved_bytes", None)),
    "bubble": (("times", "bubble"),),
    "cut": (
        ("times", "cut"),
        ("cut_forward_seconds", None),
        ("cut_backward_seconds", None),
    ),
    "context": (("times", "context"), ("context_seconds", None)),
    "expert": (("times", "expert"), ("expert_seconds", None)),
    "pipeline": (("times", "pipeline"), ("message_seconds", None)),
    "data": (("times", "data"), ("exchange", "reduce"), ("exchange", "gather")),
    "optimizer": (("times", "optimizer"), ("optimizer_seconds", None)),
    "overhead": (("times", "overhead"),),
    "parameters": (("state_bytes", "parameters"), ("held", None)),
    "gradients": (("state_bytes", "gradients"),),
    "state": (("state_bytes", "optimizer"),),
    "activations": (
        ("memory", "activations"),
        ("in_flight", None),
        ("kept_bytes", None),
        ("input_bytes", None),
    ),
    "buffers": (("memory", "buffers"),),
    "gather_seconds": (("gather_seconds", None),),
    "reduce_seconds": (("reduce_seconds", None),),
    "send_seconds": (("send_seconds", None),),
}


# The program


@cache
def program() -> str:
    """The planner as JavaScript: its modules, and the formulas behind its numbers."""
    whole = transpile(needed(ROOTS), LEFT_OUT, _derivations())
    return re.sub(r"\n\s+", "\n", whole)  # a page is weighed


def _derivations() -> str:
    taken: dict[str, list[str]] = {}
    for name, fn in ARITHMETIC.items():
        taken.setdefault(fn.__module__, []).append(name)
    names = "".join(
        f"const {{{', '.join(own)}}} = $M[{json.dumps(module)}];\n"
        for module, own in taken.items()
    )
    rows = []
    for number, parts in BEHIND.items():
        made = ",\n".join(derivation(ARITHMETIC[fn], field) for fn, field in parts)
        rows.append(f"{json.dumps(number)}: [\n{made}\n]")
    table = ",\n".join(rows)
    return f"""$M.behind = (function () {{
{names}const {{ chunk }} = $F;
const $n = x => {{
  if (Number.isInteger(x) && Math.abs(x) < 1e15)
    return String(x).replace(/\\B(?=(\\d{{3}})+(?!\\d))/g, "\\\\,");
  const [digits, power] = x.toExponential(3).split("e");
  if (+power >= -2 && +power < 5) return String(+x.toPrecision(4));
  return `${{+digits}} \\\\cdot 10^{{${{+power}}}}`;
}};
return {{ number: $n,
{table}
}};
}})();
"""


# The presets


def data() -> dict[str, Any]:
    """Every preset, compact, and the choices of the page."""
    models, clusters = presets.load()
    return {
        "models": {name: model_data(model) for name, model in models.items()},
        "clusters": {name: cluster_data(one) for name, one in clusters.items()},
        "first": FIRST,
        "names": NAMES,
        "precisions": {p.name: p.arithmetic for p in PRECISIONS.values()},
    }


def model_data(model: Model) -> dict[str, Any]:
    """A model in as little as it can be told in."""
    if model.block is not None:
        return {"transformer": dimensions(model), "epoch": model.epoch}
    works: list[Work] = []
    layers = []
    for layer in model.layers:
        if layer.work not in works:
            works.append(layer.work)
        layers.append(
            [
                *(layer.name, works.index(layer.work), layer.filters, layer.channels),
                *(layer.rows, layer.matrix, int(layer.glued), layer.height),
            ]
        )
    return {
        "kind": model.kind,
        "tables": model.tables,
        "epoch": model.epoch,
        "layers": layers,
        "works": [dict(_changed(work)) for work in works],
    }


def _changed(work: Work) -> Iterator[tuple[str, int | float]]:
    """The fields that are not as by default, and their values: whole if they are."""
    for name, value in work._asdict().items():
        if value != Work._field_defaults[name]:
            yield name, int(value) if value == int(value) else value


def cluster_data(cluster: Cluster) -> dict[str, Any]:
    """A cluster in as little as it can be told in."""
    levels = [
        {
            "name": level.name,
            "size": level.size,
            "rails": level.rails,
            "crossing": level.crossing,
            "decay": level.decay,
            "links": {op: list(link) for op, link in level.links.items()},
        }
        for level in cluster.levels
    ]
    device = {k: _plain(v) for k, v in vars(cluster.device).items()}
    return {
        "device": device,
        "levels": levels,
        "price": cluster.price,
        "host_bandwidth": cluster.host_bandwidth,
        "host_memory": cluster.host_memory,
        "band": list(dataclasses.astuple(cluster.band)),
    }


def _plain(value: Any) -> Any:
    return dict(value) if isinstance(value, Mapping) else value


# The page


def example() -> Prediction:
    """The prediction that the page begins with."""
    model = answers.model_of(FIRST["model"], _model(FIRST["model"]))
    cluster = presets.cluster(FIRST["cluster"])
    return answers.ask(model, cluster, FIRST)


def _model(name: str) -> dict[str, Any]:
    return model_data(presets.model(name))


def command(p: Prediction) -> str:
    """The same question on the command line."""
    said = (
        f"atlas predict --model {p.model.name} --cluster {p.cluster.name} "
        f'--batch {p.train.batch} --strategy "{p.strategy}"'
    )
    return f"{said} --micro-batch {p.micro_batch} --recompute {p.train.recompute}"


def page(ctx: Context) -> str:
    """The whole page; without scripts, one example and the command line."""
    p = example()
    baked = json.dumps(data(), separators=(",", ":")).replace("</", r"<\/")
    # The script fetches KaTeX when the first formula is asked for.
    maths = address.link(HERE, "assets/vendor/katex/")
    parts = [
        front(
            "Calculator",
            description="What a strategy costs, whether it fits, and why.",
            hide=["navigation", "toc"],
        ),
        "# Calculator",
        '<p class="lede">What a strategy costs on a cluster, whether it fits, and what '
        "holds it back. Click a number for its formula. Everything is computed in this "
        "page, by the oracle's own code; nothing is sent anywhere.</p>",
        "How the numbers are made, and how far to trust them: "
        "[how the oracle computes](oracle.md).",
        address.assets(HERE, "calculator.css", "permalink.js", "oracle.js"),
        address.assets(HERE, "calculator.js"),
        raw(
            f'<script type="application/json" id="calc-data">{baked}</script>'
            f'<form class="calc" id="calc-form" hidden>{_controls()}</form>'
            f'<div class="calc-out" id="calc-out" data-maths="{maths}" hidden></div>'
            f'<div id="calc-example">{_static(p)}</div>'
        ),
    ]
    return "\n\n".join(parts) + "\n"


def _static(p: Prediction) -> str:
    rows = "".join(
        f"<tr><th scope=row>{escape(NAMES[name])}</th><td>{seconds(t)}</td>"
        f"<td>{t / p.seconds:.1%}</td></tr>"
        for name, t in p.times._asdict().items()
        if t > 0
    )
    held = "".join(
        f"<tr><th scope=row>{name}</th><td>{size(n)}</td>"
        f"<td>{n / p.capacity:.1%} of the device</td></tr>"
        for name, n in p.memory._asdict().items()
        if n > 0
    )
    said = "".join(f"<p>{escape(line)}</p>" for line in explain(p).splitlines())
    return (
        "<noscript><p>The calculator needs JavaScript. Without it, the command line "
        "answers the same questions.</p></noscript>"
        f"<h2>An example</h2><pre><code>{escape(command(p))}</code></pre>"
        "<table><thead><tr><th>time</th><th>a step</th><th>share</th></tr></thead>"
        f"<tbody>{rows}</tbody></table>"
        "<table><thead><tr><th>memory</th><th>fullest rank</th><th>share</th></tr>"
        f"</thead><tbody>{held}</tbody></table>{said}"
    )


def _options(names: Mapping[str, str] | list[str]) -> str:
    pairs = (
        names.items() if isinstance(names, Mapping) else zip(names, names, strict=True)
    )
    return "".join(
        f'<option value="{escape(k)}">{escape(v)}</option>' for k, v in pairs
    )


def _select(name: str, label: str, names: Mapping[str, str] | list[str]) -> str:
    return (
        f'<label class="field" data-field="{name}"><span>{label}</span>'
        f'<select name="{name}">{_options(names)}</select></label>'
    )


def _number(name: str, label: str, most: int) -> str:
    return (
        f'<label class="field" data-field="{name}"><span>{label}</span>'
        f'<input type="number" name="{name}" min="1" max="{most}" step="1" '
        'inputmode="numeric" required></label>'
    )


def _slider(name: str, label: str) -> str:
    return (
        f'<label class="slide" data-axis="{name}"><span>{label}</span>'
        f'<input type="range" name="{name}" min="0" max="0" step="1">'
        f"<output>1</output></label>"
    )


def _check(name: str, label: str) -> str:
    return (
        f'<label class="check" data-field="{name}"><input type="checkbox" '
        f'name="{name}"> {label}</label>'
    )


def _controls() -> str:
    schedules = {
        "1f1b": "1F1B",
        "interleaved": "interleaved",
        "zero-bubble": "zero bubble",
        "gpipe": "GPipe",
        "stashing": "weight stashing",
        "local": "a loss for each stage",
    }
    ways = {
        "data": "each a full copy",
        "zero1": "ZeRO-1",
        "zero2": "ZeRO-2",
        "zero3": "ZeRO-3",
        "hybrid": "ZeRO-3 in a node",
        "local-sgd": "local SGD",
        "diloco": "DiLoCo",
        "elastic": "elastic averaging",
        "server": "parameter server",
        "gossip": "gossip",
    }
    compress = ["none", "top-k", "qsgd", "one-bit", "powersgd", "factors"]
    sliders = {
        "pipeline": "Pipeline",
        "expert": "Expert",
        "embedding": "Embedding",
        "context": "Context",
        "tensor": "Tensor",
        "filter": "Filter",
        "channel": "Channel",
        "spatial": "Spatial",
    }
    return "".join(
        [
            "<fieldset><legend>What and where</legend>",
            _select("model", "Model", presets.models()),
            _select("cluster", "Cluster", presets.clusters()),
            _number("gpus", "Devices", 65536),
            _number("batch", "Batch", 2**24),
            _number("tokens", "Tokens of a sequence", 2**22),
            '<label class="field file"><span>Hugging Face config.json</span>'
            '<input type="file" name="config" accept=".json,application/json"></label>',
            "</fieldset><fieldset><legend>Axes, outermost first</legend>",
            '<p class="left" role="status"></p>',
            *(_slider(name, label) for name, label in sliders.items()),
            _check("outside", "replicas outside the pipeline"),
            "</fieldset><fieldset><legend>How</legend>",
            _select("replicas", "Replicas", ways),
            _select("compress", "Compress gradients", compress),
            _select("micro", "Micro-batch", ["1"]),
            _select("recompute", "Recompute", list(RECOMPUTE)),
            _select("schedule", "Schedule", schedules),
            _select("chunks", "Chunks of a rank", ["2"]),
            _select("method", "Context", ["ring", "ulysses"]),
            _select("precision", "Precision", list(PRECISIONS)),
            _select("optimizer", "Optimizer", list(OPTIMIZERS)),
            _check("sequence", "sequence parallel"),
            _check("eager", "no kernels fused"),
            _check("scores", "attention keeps its scores (no flash)"),
            "</fieldset>",
            '<p class="actions"></p>',
        ]
    )


def files() -> dict[str, str]:
    """The scripts that are made for the page."""
    return {SCRIPT: program()}
