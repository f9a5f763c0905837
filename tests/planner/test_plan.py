"""`atlas plan` and `atlas predict`: what they print, refuse, and hand on."""

import io
import json
import shlex
from pathlib import Path
from typing import Any

import pytest
from clone import ROOT
from command_line import app
from typer.testing import CliRunner

from atlas import taxonomy
from atlas.commands import common
from atlas.planner import frameworks, presets
from atlas.planner.commands import given
from atlas.planner.commands import plan as planning
from atlas.planner.commands import predict as predicting
from atlas.planner.errors import OracleError
from atlas.planner.explain import explain
from atlas.planner.huggingface import hugging_face
from atlas.planner.mesh import SCHEDULES
from atlas.planner.predict import predict
from atlas.planner.search import plan
from atlas.planner.strategy import parse
from atlas.planner.train import PRECISIONS, Train

GPT3 = ("--model", "gpt3-175b", "--cluster", "a100-80g")
LLAMA = {
    "model_type": "llama",
    "hidden_size": 4096,
    "intermediate_size": 14336,
    "max_position_embeddings": 8192,
    "num_attention_heads": 32,
    "num_hidden_layers": 32,
    "num_key_value_heads": 8,
    "rms_norm_eps": 1e-05,
    "tie_word_embeddings": False,
    "vocab_size": 128256,
}


@pytest.fixture(autouse=True)
def _in_the_root(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(ROOT)


def atlas(*arguments: str) -> Any:
    return CliRunner().invoke(app, arguments, env={"COLUMNS": "160"})


def found(*arguments: str) -> Any:
    done = atlas(*arguments, "--json")
    assert done.exit_code == 0, done.output
    return json.loads(done.stdout)


def refusal(*arguments: str) -> str:
    """The one line with which a command refuses."""
    done = atlas(*arguments)
    assert done.exit_code == 2, done.output
    assert done.stderr.count("\n") == 1
    assert not done.stdout
    return str(done.stderr)


# --- plan


def test_a_plan_for_gpt3_counts_what_it_pruned_and_ends_in_five_to_measure() -> None:
    asked = ("plan", *GPT3, "--gpus", "1024", "--batch", "1536")
    made = found(*asked)
    assert made["fitting"] == made["candidates"] - sum(made["pruned"].values()) > 0
    assert len(made["shortlist"]) == 5
    for one in made["shortlist"]:
        assert one["ranks"] == 1024
        assert one["fits"]
        assert sum(one["times"].values()) == pytest.approx(one["seconds"])
        assert one["measure"].startswith("torchrun --nnodes 128 --nproc-per-node 8 ")
    text = atlas(*asked).stdout
    for reason, n in made["pruned"].items():
        assert f"{n:,}  pruned: {reason}" in text
    for one in made["shortlist"]:
        assert one["strategy"] in text.replace("\n", " ")
    assert planning.WHY in " ".join(text.split())


def test_tensor_parallelism_of_gpt3_stays_inside_a_node() -> None:
    made = found("plan", *GPT3, "--gpus", "1024", "--batch", "1536")
    for one in made["shortlist"]:
        tensor = [c for c in one["collectives"] if c["axis"] == "Tensor"]
        assert tensor
        assert {c["level"] for c in tensor} == {"node"}


def test_the_front_falls_in_memory_as_it_rises_in_time() -> None:
    made = found("plan", *GPT3, "--gpus", "1024", "--batch", "1536")
    front = [(c["seconds"], c["bytes"]) for c in made["front"]]
    assert front == sorted(front)
    assert [b for _, b in front] == sorted((b for _, b in front), reverse=True)
    assert len(set(front)) == len(front) > 5


def test_a_convolutional_network_is_planned_and_costed() -> None:
    asked = ("--model", "resnet-50", "--cluster", "v100-abci")  # parts in any order
    made = found("plan", *asked, "--gpus", "64", "--batch", "2048", "--epochs", "90")
    assert made["cluster"] == "abci-v100"
    kinds = {c["strategy"].partition("(")[0] for c in made["ranked"]}
    assert kinds >= {"Data", "Zero"}
    steps = -(-90 * (presets.model("resnet-50").epoch or 0) // 2048)
    assert {one["cost"]["steps"] for one in made["shortlist"]} == {steps}


@pytest.mark.parametrize("kind", ["tensor", "pipeline", "zero", "zero3"])
def test_what_is_forbidden_is_not_planned(kind: str) -> None:
    asked = ("plan", *GPT3, "--gpus", "512", "--batch", "512")
    word = {"zero": "Zero(", "zero3": "Zero(3"}.get(kind, f"{kind.capitalize()}(")
    free = [c["strategy"] for c in found(*asked)["front"]]
    assert any(word in strategy for strategy in free)
    left = [c["strategy"] for c in found(*asked, "--forbid", kind)["front"]]
    assert left
    assert not any(word in strategy for strategy in left)


def test_only_what_is_allowed_is_planned() -> None:
    asked = ("plan", "--model", "llama3-8b", "--cluster", "h100-80g")
    asked = (*asked, "--gpus", "64", "--batch", "512", "--allow", "pipeline,gpipe")
    made = found(*asked)
    assert made["meshes_left_out"] > 0
    for c in made["ranked"]:
        assert all(x in ("Data", "Pipeline") for x in kinds_of(c["strategy"]))
        assert "Pipeline" not in c["strategy"] or "gpipe" in c["strategy"]


def kinds_of(strategy: str) -> list[str]:
    return [type(axis).__name__ for axis in parse(strategy).axes]


def test_a_plan_shows_the_published_layout_with_the_memory_of_its_table() -> None:
    # Korthikanti et al. 2022: eight ways inside the node, a pipeline between nodes.
    (run,) = found("plan", *GPT3, "--gpus", "1024", "--batch", "1536")["published"]
    assert "Tensor(8, sequence_parallel=True)" in run["here"]
    assert "Pipeline(8" in run["here"]
    assert "Data(16)" in run["here"]
    golden = json.loads((ROOT / "tests/planner/data/golden.json").read_text())[
        "korthikanti"
    ]
    activations = golden["act_GiB_seqsel"]["175B"]
    assert run["memory"]["activations"] / 2**30 == pytest.approx(activations, rel=1e-2)
    assert run["published_seconds"] == 13.75
    assert run["predicted_seconds"] == pytest.approx(13.75, rel=0.2)
    told = atlas("plan", *GPT3, "--gpus", "1024", "--batch", "1536").stdout
    assert "As published (korthikanti2022reducing)" in told


def test_a_published_layout_that_does_not_fit_the_devices_is_not_shown() -> None:
    made = found("plan", *GPT3, "--gpus", "96", "--batch", "96", "--micro-batch", "1")
    assert made["published"] == []


def test_a_hundred_thousand_candidates_take_two_seconds_of_this_process() -> None:
    import time

    model, cluster = presets.model("gpt3-175b"), presets.cluster("a100-80g")
    begun = time.process_time()
    made = plan(model, cluster, 3072, Train(3072), schedules=SCHEDULES)
    assert made.candidates > 50_000
    took = time.process_time() - begun
    assert took * 1e5 / made.candidates < 2.0


def test_a_bar_shows_how_far_a_long_search_is(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    from rich.console import Console

    said = io.StringIO()
    console = Console(file=said, force_terminal=True, width=80)
    monkeypatch.setattr(common, "err", lambda: console)
    monkeypatch.setattr(planning, "PATIENCE", -1.0)
    asked = [parse(f"Data({n})") for n in (1, 2, 3)]
    assert list(planning._shown(asked)) == asked
    assert "searching" in said.getvalue()
    monkeypatch.setattr(planning, "PATIENCE", 60.0)
    said.truncate(0)
    assert list(planning._shown(asked)) == asked
    assert "searching" not in said.getvalue()


def test_the_list_names_every_preset_with_its_sources() -> None:
    text = "".join(atlas("plan", "--list").stdout.split())
    models, clusters = presets.load()
    for name, one in [*models.items(), *clusters.items()]:
        assert name in text
        assert one.sources
        assert all(source in text for source in one.sources.values())


def test_every_plan_that_the_site_suggests_can_be_made() -> None:
    choose = taxonomy.load(ROOT).choose
    assert choose is not None
    for leaf in choose.leaves:
        done = atlas(*shlex.split(leaf.plan.command)[1:], "--json")
        refused = "expected more devices" in done.stderr  # the offloading leaf
        assert done.exit_code == 0 or refused, f"{leaf.plan.command}: {done.stderr}"


# --- predict


def test_a_prediction_is_the_oracles_own() -> None:
    text = "Data(16) * Pipeline(8) * Tensor(8)"
    asked = ("predict", *GPT3, "--batch", "1536", "--recompute", "full")
    made = found(*asked, "--strategy", text)
    train = Train(1536, recompute="full", flash=True)
    args = presets.model("gpt3-175b"), parse(text), presets.cluster("a100-80g"), train
    ours = predict(*args)
    assert made["seconds"] == ours.seconds
    assert made["times"] == ours.times._asdict()
    assert made["memory"] == ours.memory._asdict()
    assert len(made["collectives"]) == len(ours.collectives)
    assert made["explain"] == explain(ours)
    shown = " ".join(atlas(*asked, "--strategy", text).stdout.split())
    for line in explain(ours).splitlines():
        assert line in shown


def test_a_config_of_hugging_face_is_the_preset_of_that_model(tmp_path: Path) -> None:
    path = tmp_path / "config.json"
    path.write_text(json.dumps(LLAMA))
    made = given.model_of(str(path))
    assert made.block == presets.model("llama3-8b").block
    assert made.parameters == presets.model("llama3-8b").parameters


@pytest.mark.parametrize(
    ("change", "says"),
    [
        ({"is_encoder_decoder": True}, "has an encoder"),
        ({"model_type": "jamba"}, "model_type jamba: expected one of llama"),
        ({"kv_lora_rank": 512}, "expected qk_nope_head_dim of 1 or more"),
        ({"attention_bias": True}, "llama with attention_bias: expected one without"),
        ({"model_type": "qwen3_moe", "mlp_only_layers": [3]}, "mlp_only_layers"),
        ({"model_type": "qwen2_moe", "decoder_sparse_step": 2}, "one of 2 layers"),
        ({"vocab_size": None}, "expected vocab_size of 1 or more"),
        ({"hidden_size": 4097}, "width 4097 for 32 heads: expected a multiple"),
        ({"vocab_size": -1}, "vocab_size is -1: expected 0 to"),
        (
            {"num_attention_heads": True},
            "num_attention_heads is True: expected a",
        ),
        ({"num_key_value_heads": 2.5}, "num_key_value_heads is 2.5: expected a whole"),
        ({"num_hidden_layers": 10**7}, "10000000 layers: expected at most 10000"),
        (
            {"num_hidden_layers": 10**9},
            "is 1000000000: expected 0 to",
        ),
        ({"num_key_value_heads": 5}, "32 heads share 5 of keys: expected a divisor"),
    ],
)
def test_a_config_outside_the_range_is_refused(
    change: dict[str, Any], says: str
) -> None:
    with pytest.raises(OracleError, match=says):
        hugging_face({**LLAMA, **change}, "it", None)


CONFIGS: dict[str, Any] = json.loads(
    (ROOT / "tests" / "planner" / "data" / "configs.json").read_text(encoding="utf-8")
)


@pytest.mark.parametrize("name", CONFIGS)
def test_a_real_config_has_as_many_parameters_as_its_source_states(name: str) -> None:
    said, source = CONFIGS[name]["parameters"], CONFIGS[name]["source"]
    made = hugging_face(CONFIGS[name]["config"], name, 1024 if name != "gpt2" else None)
    if "README" in source:  # in billions, rounded
        unit = 1e8 if name == "deepseek-v2-lite" else 1e9
        assert round(made.parameters / unit) == round(said / unit)
    else:
        assert made.parameters == said


def test_tokens_of_another_length_change_nothing_else() -> None:
    made = hugging_face(CONFIGS["deepseek-v3"]["config"], "v3", 4096)
    longer = given.with_tokens(made, 8192)
    assert longer.tokens == 8192
    assert longer.parameters == made.parameters
    assert given.with_tokens(longer, 4096).layers == made.layers


def test_a_cluster_of_ones_own_needs_no_sources(tmp_path: Path) -> None:
    source = (ROOT / "taxonomy" / "clusters" / "a100-80g.yaml").read_text()
    path = tmp_path / "mine.yaml"
    path.write_text(source.partition("sources:")[0])
    assert given.cluster_of(str(path)).levels == presets.cluster("a100-80g").levels
    path.write_text(source.partition("sources:")[0].replace("levels:", "level:"))
    with pytest.raises(taxonomy.TaxonomyError, match="levels"):
        given.cluster_of(str(path))


LEAST = """\
device: {flops: {bf16: 312.0e+12}, memory: 80.0e+9, bandwidth: 2.0e+12}
levels:
  - {name: node, size: 8, links: {any: {bandwidth: 229.0e+9}}}
"""


def test_a_file_of_ones_own_says_what_the_planner_needs_and_no_more(
    tmp_path: Path,
) -> None:
    (tmp_path / "mine.yaml").write_text(LEAST)
    (tmp_path / "net.yaml").write_text(
        "transformer: {layers: 2, width: 64, heads: 2, vocabulary: 96, tokens: 32}\n"
    )
    asked = ("--model", f"{tmp_path}/net.yaml", "--cluster", f"{tmp_path}/mine.yaml")
    made = found("plan", *asked, "--gpus", "8", "--batch", "64")
    assert (made["model"], made["cluster"]) == ("net", "mine")


def test_no_device_is_assumed_to_reach_its_peak(tmp_path: Path) -> None:
    path = tmp_path / "mine.yaml"
    path.write_text(LEAST)
    mine = given.cluster_of(str(path))
    fitted = presets.cluster("h100-80g").device
    for name, value in presets.TYPICAL.items():
        assert getattr(mine.device, name) == value == getattr(fitted, name)
    assert mine.device.top < 1
    band = presets.cluster("b200").band  # of a device that nobody published runs on
    assert (mine.band.low, mine.band.high) == (band.low, band.high)
    path.write_text(LEAST.replace("memory", "top: 0.9, memory"))
    said = given.cluster_of(str(path))
    assert (said.device.top, said.device.host) == (0.9, 0.0)
    assert said.band.of == "not calibrated"


@pytest.mark.parametrize("word", ["name", "summary"])
def test_a_preset_is_introduced(
    word: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    source = (ROOT / "taxonomy" / "clusters" / "a100-80g.yaml").read_text()
    kept = [s for s in source.splitlines() if not s.startswith(f"{word}:")]
    folder = tmp_path / "taxonomy" / "clusters"
    folder.mkdir(parents=True)
    (folder / "one.yaml").write_text("\n".join(kept))
    (folder.parent / "papers.bib").write_text(
        (ROOT / "taxonomy" / "papers.bib").read_text()
    )
    with pytest.raises(taxonomy.TaxonomyError, match=f'missing key "{word}"'):
        presets.cluster("one", tmp_path)


def test_attention_is_flash_unless_it_is_asked_to_keep_its_scores() -> None:
    asked = ("predict", *GPT3, "--batch", "64", "--strategy", "Data(64) * Tensor(8)")
    flash, plain = found(*asked), found(*asked, "--no-flash")
    assert flash["memory"]["activations"] < plain["memory"]["activations"]
    planned = ("plan", *GPT3, "--gpus", "512", "--batch", "512")
    made = found(*planned, "--recompute", "selective")  # nothing left to compute again
    assert {c["recompute"] for c in made["ranked"]} == {"none"}


def test_a_device_that_is_nearly_full_is_said_to_be() -> None:
    asked = ("predict", "--model", "llama3-8b", "--cluster", "h100-80g")
    asked = (*asked, "--micro-batch", "1", "--strategy", "FSDP(8)")
    verdicts = {}
    for tokens in ("8192", "11264", "16384"):
        made = found(*asked, "--batch", "8", "--seq", tokens)
        share = made["bytes"] / made["capacity"]
        verdicts[made["verdict"]] = share
        assert made["fits"] == (share <= 1)
    assert list(verdicts) == ["fits", "tight", "does not fit"]
    assert verdicts["fits"] <= 0.85 < verdicts["tight"] <= 1 < verdicts["does not fit"]


def test_code_that_fuses_nothing_keeps_more() -> None:
    asked = ("predict", "--model", "llama3-8b", "--cluster", "h100-80g", "--batch", "8")
    asked = (*asked, "--strategy", "FSDP(8)")
    fused, eager = found(*asked), found(*asked, "--eager")
    kept = [made["memory"]["activations"] for made in (fused, eager)]
    assert 1.2 < kept[1] / kept[0] < 1.5
    assert fused["memory"]["parameters"] == eager["memory"]["parameters"]


@pytest.mark.parametrize(
    ("said", "meant"),
    [
        ("DDP(2) * TP(8)", "Data(2) * Tensor(8)"),
        ("pp(4) * FSDP(2) * cp(2)", "Pipeline(4) * Zero(3, 2) * Context(2)"),
        ("HSDP(16, within=8)", "Zero(3, 16, within=8)"),
        ("ZeRO1(4) * EP(8) * data(2)", "Zero(1, 4) * Expert(8) * Data(2)"),
    ],
)
def test_the_words_of_frameworks_are_known(said: str, meant: str) -> None:
    assert parse(said) == parse(meant)


def test_kinds_may_be_called_as_frameworks_do() -> None:
    assert planning.wanted("FSDP,tp", None) == {"zero3", "tensor", "data"}
    assert "pipeline" not in planning.wanted(None, "PP")


def test_a_yaml_of_ones_own_is_read_as_a_preset_is(tmp_path: Path) -> None:
    for folder, name in (("models", "vgg-16"), ("clusters", "a100-80g")):
        source = ROOT / "taxonomy" / folder / f"{name}.yaml"
        (tmp_path / f"{folder}.yaml").write_text(source.read_text())
    model = given.model_of(str(tmp_path / "models.yaml"))
    cluster = given.cluster_of(str(tmp_path / "clusters.yaml"))
    assert model.layers == presets.model("vgg-16").layers
    assert cluster.levels == presets.cluster("a100-80g").levels


def test_a_sequence_of_another_length_changes_the_model() -> None:
    asked = ("predict", *GPT3, "--batch", "64", "--strategy", "Data(64) * Tensor(8)")
    asked = (*asked, "--no-flash")  # scores grow with the square
    short, long = found(*asked, "--seq", "1024"), found(*asked)
    assert short["memory"]["activations"] < long["memory"]["activations"] / 2


# --- refusals


@pytest.mark.parametrize(
    ("line", "says"),
    [
        ("plan --model gpt3 --cluster a100-80g --gpus 8 --batch 8", "gpt3-175b"),
        ("plan --model gpt3-175b --cluster a100 --gpus 8 --batch 8", "a100-80g"),
        ("plan --model gpt3-175b --cluster a100-80g --batch 8", "--gpus is missing"),
        (
            "plan --model gpt3-175b --cluster a100-80g --gpus 2 --batch 8",
            "expected more devices",
        ),
        (
            "plan --model gpt3-175b --cluster a100-80g --gpus 9999 --batch 8",
            "expected 1 to 4480",
        ),
        (
            "plan --model dlrm --cluster a100-80g --gpus 1009 --batch 512",
            "expected 512 devices",
        ),
        (
            "plan --model vgg-16 --cluster a100-80g --gpus 8 --batch 8 --forbid x",
            'no kind "x"',
        ),
        (
            "predict --model vgg-16 --cluster a100-80g --batch 4 --strategy Data(8)",
            "batch 4 for 8 replicas: expected a multiple, 8",
        ),
        (
            "predict --model vgg-16 --cluster a100-80g --batch 8 --strategy Dat(8)",
            'unknown axis "Dat": expected "Data"',
        ),
        (
            "predict --model vgg-16 --cluster a100-80g --batch 8 --strategy Data(",
            'expected axes like "Data(2) * Tensor(8)"',
        ),
        (
            "predict --model gpt2-medium --cluster a100-80g --batch 8 "
            "--strategy Tensor(5)",
            "Tensor(5) for 16 heads: expected 4 or 8",
        ),
        (
            "predict --model vgg-16 --cluster a100-80g --batch 8 --strategy Data(8) "
            "--precision fp31",
            "did you mean fp32",
        ),
        (
            "predict --model vgg-16 --cluster a100-80g --batch 8 --strategy Data(8) "
            "--seq 9",
            "vgg-16 has no sequences",
        ),
        (
            "predict --model gpt2-medium --cluster a100-80g --batch 8 "
            "--strategy Data(8) --epochs 2",
            "gpt2-medium has no data set: expected tokens",
        ),
        (
            "plan --model vgg-16 --cluster a100-80g --gpus 8 --batch 8 --epochs 2 "
            "--tokens 9",
            "a budget of tokens, epochs: expected one",
        ),
        (
            "plan --model vgg-16 --cluster a100-80g --gpus 8 --batch 8 "
            "--allow zero --forbid data",
            "--allow and --forbid together",
        ),
        (
            "predict --model none.json --cluster a100-80g --batch 8 --strategy Data(8)",
            "none.json: No such file or directory",
        ),
    ],
)
def test_wrong_input_is_one_line_with_the_nearest_choice(line: str, says: str) -> None:
    assert says in refusal(*line.split())


def test_a_formula_outside_its_range_is_one_line_too(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def refuse(*_: Any) -> None:
        raise ValueError("v = -1: must be 0 or more")

    monkeypatch.setattr(predicting, "predicted", refuse)
    asked = "predict --model vgg-16 --cluster a100-80g --batch 8 --strategy Data(8)"
    said = refusal(*asked.split())
    assert said == "Data(8) for vgg-16: v = -1: must be 0 or more\n"


# --- completion, frameworks


def test_presets_and_kinds_are_completed() -> None:
    assert given.complete_model("gpt") == ["gpt2-medium", "gpt3-175b"]
    assert given.complete_cluster("a1") == ["a100-40g", "a100-80g"]
    assert planning.complete_kinds("tensor,zero") == [
        *("tensor,zero", "tensor,zero1", "tensor,zero2", "tensor,zero3"),
        "tensor,zero-bubble",
    ]


def flags(model: str, text: str, framework: Any, **more: Any) -> tuple[str, str]:
    train = Train(512, precision=PRECISIONS["mixed-fp32-gradients"], **more)
    cluster = presets.cluster("a100-80g")
    made = framework(predict(presets.model(model), parse(text), cluster, train))
    return " ".join(made.flags), " ".join(made.missing)


def test_megatrons_flags_say_the_whole_strategy() -> None:
    text = "Pipeline(8, 'interleaved', chunks=3) * Zero(1, 4) * Tensor(8, True)"
    said, missing = flags("gpt3-175b", text, frameworks.megatron)
    for flag in (
        "--tensor-model-parallel-size 8 --sequence-parallel",
        "--pipeline-model-parallel-size 8 --num-virtual-stages-per-pipeline-rank 3",
        "--use-distributed-optimizer",
        "--num-layers 96 --hidden-size 12288 --num-attention-heads 96",
        "--micro-batch-size 1 --global-batch-size 512",
    ):
        assert flag in said
    assert "--use-tp-pp-dp-mapping" not in said
    assert not missing
    outside, _ = flags("gpt3-175b", "Data(4) * Pipeline(8)", frameworks.megatron)
    assert "--use-tp-pp-dp-mapping" in outside


def test_torchtitans_flags_say_the_whole_strategy() -> None:
    text = "Pipeline(2) * Zero(3, 16, within=4) * Tensor(4, True)"
    said, missing = flags("llama3-8b", text, frameworks.torchtitan)
    for flag in (
        "--parallelism.data_parallel_replicate_degree 4",
        "--parallelism.data_parallel_shard_degree 4",
        "--parallelism.tensor_parallel_degree 4",
        "--parallelism.pipeline_parallel_degree 2",
        "--parallelism.pipeline_parallel_schedule 1F1B",
        "--parallelism.pipeline_parallel_microbatch_size 1",
        "--training.local_batch_size 32 ",
    ):
        assert flag in f"{said} "
    assert not missing


@pytest.mark.parametrize(
    ("model", "text", "framework", "says"),
    [
        ("vgg-16", "Filter(8)", frameworks.megatron, "trains transformers"),
        ("vgg-16", "Filter(8)", frameworks.torchtitan, "trains transformers"),
        ("gpt2-medium", "Gossip(8)", frameworks.megatron, "no Gossip(8)"),
        ("llama3-8b", "Zero(1, 8)", frameworks.torchtitan, "always shards weights"),
        ("llama3-8b", "Tensor(8)", frameworks.torchtitan, "sequence parallel"),
    ],
)
def test_what_a_framework_lacks_is_said(
    model: str, text: str, framework: Any, says: str
) -> None:
    assert says in flags(model, text, framework)[1]


def test_every_exemplar_that_measures_is_there() -> None:
    for module in frameworks.EXEMPLARS.values():
        assert (ROOT / "exemplars" / f"{module.replace('.', '/')}.py").is_file()
