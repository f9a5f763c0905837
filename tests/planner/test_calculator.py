"""The calculator: the oracle in JavaScript is the oracle, number by number."""

import importlib
import importlib.util
import json
import math
import re
from itertools import cycle
from pathlib import Path
from typing import Any

import pytest
import quickjs

from atlas.planner import answers, frameworks, presets
from atlas.planner.arithmetic import ARITHMETIC
from atlas.planner.explain import explain
from atlas.planner.predict import predict
from atlas.planner.strategy import parse
from atlas.script.latex import field_latex
from atlas.script.modules import transpile
from atlas.script.source import ScriptError
from atlas.site import calculator, oracle
from atlas.views.context import Context, read

ROOT = Path(__file__).resolve().parents[2]
AXES = {
    "gpt3-175b": {"tensor": 8, "pipeline": 8},
    "llama3-8b": {"tensor": 4, "context": 2},
    "mixtral-8x7b": {"expert": 4, "tensor": 2},
    "gpt2-medium": {"pipeline": 4},
    "resnet-50": {"filter": 4},
    "resnet-152": {"channel": 4, "pipeline": 2},
    "vgg-16": {"spatial": 4},
    "cosmoflow": {"spatial": 2, "pipeline": 2},
    "dlrm": {"embedding": 8},
}
WAYS = ("data", "zero1", "zero2", "zero3", "hybrid")
OTHER = ("local-sgd", "diloco", "elastic", "server", "gossip")
MORE: tuple[dict[str, Any], ...] = (
    {},
    {"recompute": "full", "schedule": "gpipe", "outside": True, "sequence": True},
    {"recompute": "selective", "schedule": "zero-bubble", "method": "ulysses"},
    {"schedule": "interleaved", "chunks": 2, "micro": 2, "scores": True, "eager": True},
    {"schedule": "stashing", "optimizer": "sgd", "offload": "optimizer"},
    {"compress": "top-k", "micro": 2},
    {"compress": "factors", "schedule": "local", "offload": "layers"},
    {"compress": "powersgd", "micro": 1},
    {"gpus": 24, "tensor": 3},
)
LLAMA = {
    "model_type": "llama",
    "hidden_size": 4096,
    "intermediate_size": 14336,
    "max_position_embeddings": 8192,
    "num_attention_heads": 32,
    "num_hidden_layers": 32,
    "num_key_value_heads": 8,
    "rms_norm_eps": 1e-05,
    "vocab_size": 128256,
}
ASK = """
var D = %s, A = atlasOracle["atlas.planner.answers"];
var F = atlasOracle["atlas.planner.frameworks"];
function asked(choice) {
  const m = A.model_of(choice.model, D.models[choice.model]);
  return A.ask(m, A.cluster_of(choice.cluster, D.clusters[choice.cluster]), choice);
}
function run(choice) {
  let p;
  try { p = asked(choice); } catch (e) { return JSON.stringify({refused: e.message}); }
  const plain = {};
  for (const f of ["seconds", "low", "high", "times", "memory", "stages", "mfu", "hfu",
    "flops", "executed", "fullest", "collectives", "findings", "binds", "fits",
    "verdict", "capacity", "samples_per_second", "micro_batch",
    "micro_batches"]) plain[f] = p[f];
  plain.strategy = p.strategy.__str__();
  plain.explain = atlasOracle["atlas.planner.explain"].explain(p);
  plain.megatron = F.megatron(p);
  plain.torchtitan = F.torchtitan(p);
  plain.measure = F.measure(p);
  return JSON.stringify(plain);
}
"""


@pytest.fixture(scope="module")
def engine() -> quickjs.Context:
    made = quickjs.Context()
    made.eval(calculator.program())
    made.eval(ASK % json.dumps(calculator.data()))
    return made


@pytest.fixture(scope="module")
def known() -> presets.Presets:
    return presets.load()


@pytest.fixture(scope="module")
def ctx() -> Context:
    return read(ROOT)


def grid() -> list[dict[str, Any]]:
    """Models x clusters x ways of agreeing, the rest of the choices in turn."""
    rest = cycle(MORE)
    clusters = presets.clusters()
    found = [calculator.FIRST]
    for model, axes in AXES.items():
        for i, way in enumerate((*WAYS, *OTHER)):
            for j in (0, 1, 2):
                where = clusters[(i + j) % len(clusters)]
                flops = presets.cluster(where).device.flops
                precision = "mixed" if "bf16" in flops else "fp32"
                one = {"model": model, "cluster": where, "gpus": 64, "batch": 512}
                more = {"replicas": way, "precision": precision}
                found.append({**one, **axes, **more, **next(rest)})
    return found


def plain(value: Any) -> Any:
    """What JSON makes of it, records and dataclasses as objects."""
    if hasattr(value, "_asdict"):
        return {k: plain(v) for k, v in value._asdict().items()}
    if isinstance(value, list | tuple):
        return [plain(v) for v in value]
    if hasattr(value, "__dataclass_fields__"):
        return {k: plain(v) for k, v in vars(value).items()}
    return value


def ours(known: presets.Presets, choice: dict[str, Any]) -> dict[str, Any]:
    models, clusters = known
    try:
        p = answers.ask(models[choice["model"]], clusters[choice["cluster"]], choice)
    except ValueError as error:
        return {"refused": str(error)}
    names = ("seconds", "low", "high", "times", "memory", "stages", "mfu", "hfu")
    names += ("flops", "executed", "fullest", "collectives", "findings", "binds")
    names += ("fits", "verdict")
    names += ("capacity", "samples_per_second", "micro_batch", "micro_batches")
    return {
        **{name: plain(getattr(p, name)) for name in names},
        "strategy": str(p.strategy),
        "explain": explain(p),
        "megatron": plain(frameworks.megatron(p)),
        "torchtitan": plain(frameworks.torchtitan(p)),
        "measure": frameworks.measure(p),
    }


def differences(a: Any, b: Any, at: str = "") -> list[str]:
    """Where two answers differ: numbers by more than 1e-12 of themselves."""
    if isinstance(a, dict) and isinstance(b, dict):
        if a.keys() != b.keys():
            return [f"{at}: {sorted(a.keys() ^ b.keys())}: {a} {b}"[:400]]
        return [d for k in a for d in differences(a[k], b[k], f"{at}.{k}")]
    if isinstance(a, list) and isinstance(b, list) and len(a) == len(b):
        pairs = enumerate(zip(a, b, strict=True))
        return [d for i, (x, y) in pairs for d in differences(x, y, f"{at}[{i}]")]
    numbers = all(type(x) in (int, float) for x in (a, b))
    same = math.isclose(a, b, rel_tol=1e-12, abs_tol=1e-300) if numbers else a == b
    return [] if same else [f"{at}: {a!r} {b!r}"]


def test_the_browser_predicts_what_python_predicts(
    engine: quickjs.Context, known: presets.Presets
) -> None:
    refused = 0
    for choice in grid():
        own = ours(known, choice)
        other = json.loads(engine.eval(f"run({json.dumps(choice)})"))
        assert not differences(own, other), choice
        refused += "refused" in own
    assert refused < len(grid()) / 2  # the rest are real predictions


def test_a_difference_in_the_twelfth_digit_is_seen() -> None:
    assert differences({"a": [1.0]}, {"a": [1.0 + 1e-11]}) == [
        ".a[0]: 1.0 1.00000000001"
    ]
    assert not differences({"a": [1.0]}, {"a": [1.0 + 1e-13]})


def test_every_preset_survives_being_made_compact(known: presets.Presets) -> None:
    models, clusters = known
    for name, model in models.items():
        data = json.loads(json.dumps(calculator.model_data(model)))
        again = answers.model_of(name, data)
        assert again.layers == model.layers, name
        assert (again.heads, again.tied, again.tables, again.epoch) == (
            *(model.heads, model.tied, model.tables, model.epoch),
        )
    for name, one in clusters.items():
        data = json.loads(json.dumps(calculator.cluster_data(one)))
        again_ = answers.cluster_of(name, data)
        assert (again_.levels, again_.device, again_.band, again_.host_bandwidth) == (
            *(one.levels, one.device, one.band, one.host_bandwidth),
        )


def test_what_is_copied_as_a_command_is_read_back_the_same() -> None:
    p = calculator.example()
    assert parse(str(p.strategy)) == p.strategy
    again = predict(p.model, parse(str(p.strategy)), p.cluster, p.train)
    assert again.seconds == p.seconds


def test_a_config_is_read_the_same_in_the_browser(engine: quickjs.Context) -> None:
    call = "atlasOracle['atlas.planner.huggingface'].hugging_face"
    text = f"JSON.stringify({call}({json.dumps(LLAMA)}, 'it', null).block)"
    block = presets.model("llama3-8b").block
    assert block is not None
    assert json.loads(engine.eval(text)) == block._asdict()


# --- the formula behind a number


@pytest.mark.parametrize("number", calculator.BEHIND)
def test_the_formula_behind_a_number_gives_the_number(
    engine: quickjs.Context, number: str
) -> None:
    choice = json.dumps(calculator.FIRST)
    head = f"var p = asked({choice}), r = A.recall(p);"
    found = engine.eval(
        f"{head} JSON.stringify(atlasOracle.behind[{json.dumps(number)}].map(part => {{"
        "const c = {p: 4, calls: 7, n: 2 ** 20, link: r.link};"
        "const x = part.at({...c, ...r, link: c.link});"
        "return [part.name, part.symbols, x.tex, x.value]; }))"
    )
    for name, symbols, tex, value in json.loads(found):
        assert symbols
        assert tex
        assert "undefined" not in tex
        assert "NaN" not in tex
        assert isinstance(value, int | float), name


def test_the_first_formula_behind_a_time_is_that_time(engine: quickjs.Context) -> None:
    p = calculator.example()
    choice = json.dumps(calculator.FIRST)
    engine.eval(f"var p = asked({choice}), r = A.recall(p);")
    full = "({...r, work: r.full})"
    for name, value in p.times._asdict().items():
        got = engine.eval(f"atlasOracle.behind[{json.dumps(name)}][0].at(r).value")
        assert math.isclose(got, value, rel_tol=1e-12, abs_tol=1e-300), name
    for name, value in p.memory._asdict().items():
        key = json.dumps("state" if name == "optimizer" else name)
        got = engine.eval(f"atlasOracle.behind[{key}][0].at({full}).value")
        assert math.isclose(got, value, rel_tol=1e-12, abs_tol=1e-300), name


def test_the_values_are_put_into_the_formula(engine: quickjs.Context) -> None:
    link = {"alpha": 2e-6, "beta": 1e-9, "launch": 0.5}
    given = {"p": 4, "calls": 7, "n": 2**20, "link": link}
    part = f"atlasOracle.behind.gather_seconds[0].at({json.dumps(given)})"
    assert engine.eval(f"{part}.tex") == (
        r"7 (0.5 + (4 - 1) \cdot 2 \cdot 10^{-6}) + "
        r"\frac{4 - 1}{4} \cdot 1\,048\,576 \cdot 1 \cdot 10^{-9}"
    )
    alone = f"atlasOracle.behind.gather_seconds[0].at({json.dumps({**given, 'p': 1})})"
    assert engine.eval(f"{alone}.tex") == "0"  # of the cases, the one that holds


def test_every_collective_of_the_example_finds_its_formula(
    engine: quickjs.Context,
) -> None:
    choice = json.dumps(calculator.FIRST)
    found = engine.eval(
        f"var p = asked({choice});"
        "JSON.stringify(p.collectives.map(c => [A.called(p, c), c.seconds]))"
    )
    for called, seconds in json.loads(found):
        given = {k: called[k] for k in ("p", "calls", "n")}
        again = engine.eval(
            f"atlasOracle.behind[{json.dumps(called['name'])}][0]"
            f".at({{...{json.dumps(given)}, link: {json.dumps(called['link'])}}}).value"
        )
        assert math.isclose(again, seconds, rel_tol=1e-9)


# --- what cannot be written


def refused(folder: Path, source: str) -> str:
    """What the transpiler says of a module with this source."""
    file = folder / f"sample_{len(list(folder.iterdir()))}.py"
    file.write_text(source)
    spec = importlib.util.spec_from_file_location("sample", file)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    with pytest.raises(ScriptError) as error:
        transpile([module])
    return str(error.value)


def test_a_statement_that_has_no_javascript_is_named_with_its_line(
    tmp_path: Path,
) -> None:
    lines = "def f():\n    with x: pass\n"
    assert refused(tmp_path, lines).startswith("sample:2: ")
    lines = "def f():\n    return a @ b\n"
    assert refused(tmp_path, lines).startswith("sample:2: ")
    lines = "try:\n    pass\nfinally:\n    pass\n"
    assert refused(tmp_path, lines).startswith("sample:1: ")


def test_everything_that_the_page_enters_is_written(engine: quickjs.Context) -> None:
    for name in calculator.ROOTS:
        assert importlib.import_module(name)
        assert engine.eval(f"typeof atlasOracle[{json.dumps(name)}]") == "object"


# --- the pages


def test_the_page_has_an_example_without_scripts(ctx: Context) -> None:
    text = calculator.page(ctx)
    p = calculator.example()
    assert calculator.command(p).split(" --strategy")[0] in text
    assert "<noscript>" in text
    assert p.fits


def test_the_scripts_and_the_data_stay_small() -> None:
    data = json.dumps(calculator.data(), separators=(",", ":"))
    assert len(calculator.program()) < 200_000
    assert len(data) < 80_000


def test_the_oracles_page_shows_every_formula_that_it_names(ctx: Context) -> None:
    text = oracle.page(ctx)
    for _, anchor, _, formulas in oracle.SECTIONS:
        assert f"{{#{anchor}}}" in text
        for name, field, _ in formulas:
            assert field_latex(ARITHMETIC[name], field)
            assert f"<code>{name}</code>" in text
    for name in oracle.NETWORKS:
        assert name.replace("-", "&#45;") in text


def test_every_name_in_the_oracles_formulas_is_said(ctx: Context) -> None:
    text = oracle.page(ctx)
    said = set(re.findall(r"<dt><code>(\w+)</code></dt>", text))
    shown = [
        field_latex(ARITHMETIC[n], f)
        for *_, parts in oracle.SECTIONS
        for n, f, _ in parts
    ]
    names = {w.replace(r"\_", "_") for t in shown for w in oracle.NAME.findall(t)}
    assert not names - said


def test_the_oracles_page_leads_to_how_far_it_is_to_be_trusted(ctx: Context) -> None:
    assert "(accuracy.md)" in oracle.page(ctx)
