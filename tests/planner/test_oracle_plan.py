"""The planner: what a person who knows Megatron expects, quickly, and refusals."""

import math
import time

import pytest

from atlas.planner import presets
from atlas.planner.errors import OracleError
from atlas.planner.predict import predict
from atlas.planner.records import Recompute
from atlas.planner.search import Plan, plan
from atlas.planner.strategy import Context, Data, Pipeline, Tensor, Zero, parse
from atlas.planner.train import PRECISIONS, Train

GIB = 2**30
#: Megatron-LM adds gradients up in 32 bits.
TRAIN = Train(1536, precision=PRECISIONS["mixed-fp32-gradients"])


@pytest.fixture(scope="module")
def gpt3() -> Plan:
    return plan(presets.model("gpt3-175b"), presets.cluster("a100-80g"), 1024, TRAIN)


def test_tensor_parallelism_stays_in_the_node_and_pipelines_go_between(
    gpt3: Plan,
) -> None:
    lengths = []
    for found in gpt3.shortlist:
        t = found.strategy.length(Tensor)
        p = found.strategy.length(Pipeline)
        lengths.append((t, p))
        assert found.fits
        assert 1 < t <= 8
        assert p > 1
        levels = {c.axis: c.level for c in found.collectives}
        assert levels["Tensor"] == "node"
        assert levels["Pipeline"] == "pod"
        tensor = found.strategy.find(Tensor)
        assert tensor is not None
        assert tensor.sequence_parallel
        assert found.train.recompute != "full"
    assert (8, 8) in lengths  # the layout of Narayanan 2021 and Korthikanti 2022
    assert len(set(lengths)) == len(lengths) == 5


def test_megatron_s_own_layout_is_close_to_the_best_and_has_korthikanti_s_memory(
    gpt3: Plan,
) -> None:
    strategy = Data(16) * Pipeline(8, "interleaved", 3) * Tensor(8, True)
    train = Train(1536, 1, TRAIN.precision, recompute="selective")
    found = predict(gpt3.model, strategy, gpt3.cluster, train)
    assert found.fits
    # Korthikanti et al. 2022: 12.3516 GiB of activations and 45.5625 of state, both
    # of the layers alone; here the embedding, its dropout and the vectors add to it.
    state = found.memory.parameters + found.memory.gradients + found.memory.optimizer
    assert 12.3515625 < found.memory.activations / GIB < 12.3515625 * 1.003
    assert 45.5625 < state / GIB < 45.5625 * 1.04
    assert found.seconds < 1.15 * gpt3.shortlist[0].seconds


def test_a_score_is_the_prediction(gpt3: Plan) -> None:
    seen = (*gpt3.ranked[::7], *gpt3.front)
    assert len(seen) > 20
    for candidate in seen:
        args = (candidate.strategy, gpt3.cluster, candidate.train)
        found = predict(gpt3.model, *args)
        assert math.isclose(found.seconds, candidate.seconds, rel_tol=1e-12)
        assert math.isclose(sum(found.memory), candidate.bytes, rel_tol=1e-12)


@pytest.mark.parametrize(
    ("model", "gpus", "batch"),
    [
        ("resnet-50", 64, 512),
        ("vgg-16", 16, 64),
        ("mixtral-8x7b", 64, 64),
        ("dlrm", 16, 2048),
    ],
)
def test_scores_are_predictions_for_every_kind_of_network(
    model: str, gpus: int, batch: int
) -> None:
    found = plan(
        presets.model(model),
        presets.cluster("h100-80g"),
        gpus,
        Train(batch),
        sharded_pipelines=True,
    )
    for candidate in found.ranked[::9]:
        args = (candidate.strategy, found.cluster, candidate.train)
        whole = predict(found.model, *args)
        assert math.isclose(whole.seconds, candidate.seconds, rel_tol=1e-9)
        assert math.isclose(sum(whole.memory), candidate.bytes, rel_tol=1e-9)


def test_all_candidates_are_counted_and_the_front_only_falls(gpt3: Plan) -> None:
    assert gpt3.candidates == gpt3.fitting + sum(gpt3.pruned.values())
    assert gpt3.fitting > 1000
    assert any("memory" in reason for reason in gpt3.pruned)
    assert any("ZeRO-2 or 3 with a pipeline" in reason for reason in gpt3.pruned)
    seconds = [c.seconds for c in gpt3.ranked]
    assert seconds == sorted(seconds)
    held = [c.bytes for c in gpt3.front]
    assert held == sorted(held, reverse=True)
    assert len(set(held)) == len(held)
    for candidate in gpt3.ranked:
        assert not any(
            c.seconds < candidate.seconds and c.bytes < candidate.bytes
            for c in gpt3.ranked
            if candidate in gpt3.front
        )


def test_a_hundred_thousand_candidates_take_two_seconds() -> None:
    model, cluster = presets.model("gpt3-175b"), presets.cluster("a100-80g")
    started, seen = time.process_time(), 0
    for gpus in (1024, 2048, 4096):
        seen += plan(model, cluster, gpus, TRAIN, sharded_pipelines=True).candidates
    taken = time.process_time() - started
    assert seen > 100_000
    assert taken * 100_000 / seen < 2.0


def test_long_sequences_are_cut_and_short_ones_not(gpt3: Plan) -> None:
    assert all(c.strategy.length(Context) == 1 for c in gpt3.ranked)
    found = plan(
        presets.model("mixtral-8x7b"), presets.cluster("h100-80g"), 64, Train(64)
    )
    assert any(c.strategy.length(Context) > 1 for c in found.front)


def test_sharding_is_what_makes_a_large_network_fit() -> None:
    model, cluster = presets.model("llama3-8b"), presets.cluster("a100-80g")
    with pytest.raises(OracleError, match="expected more devices"):
        plan(model, cluster, 1, Train(1))
    found = plan(model, cluster, 8, Train(8, flash=True))
    assert all(c.strategy.find(Zero) or c.strategy.ranks > 1 for c in found.ranked)


REFUSED = [
    (0, 1536, "0 devices on a100-80g: expected 1 to 4480"),
    (5000, 1536, "5000 devices on a100-80g: expected 1 to 4480"),
    (7, 1536, "gpt3-175b on 7 devices of a100-80g: the smallest of"),
    (
        1021,
        1536,
        "gpt3-175b on 1021 devices of a100-80g: batch 1536 is not divisible by the "
        "replicas: expected 768 or 1536 devices",
    ),
]


@pytest.mark.parametrize(("gpus", "batch", "says"), REFUSED)
def test_what_cannot_be_planned_is_one_line(gpus: int, batch: int, says: str) -> None:
    model, cluster = presets.model("gpt3-175b"), presets.cluster("a100-80g")
    with pytest.raises(OracleError) as caught:
        plan(model, cluster, gpus, Train(batch))
    assert str(caught.value).startswith(says)
    assert "\n" not in str(caught.value)


def test_a_batch_of_two_asks_for_devices_that_divide_it() -> None:
    model, cluster = presets.model("gpt2-medium"), presets.cluster("a100-80g")
    found = plan(model, cluster, 3, Train(3))
    assert found.shortlist[0].strategy.ranks == 3
    assert parse(str(found.shortlist[0].strategy)) == found.shortlist[0].strategy


def test_layers_that_do_not_divide_are_interleaved_too() -> None:
    # Llama Team 2024, section 3.3.2: 126 layers on 16 stages, one less at both ends.
    model, cluster = presets.model("llama3-405b"), presets.cluster("h100-80g")
    strategy = parse("Pipeline(16, 'interleaved', 8) * FSDP(2) * Tensor(8, True)")
    found = predict(model, strategy, cluster, Train(32, 1, flash=True))
    plain = parse("Pipeline(16) * FSDP(2) * Tensor(8, True)")
    whole = predict(model, plain, cluster, Train(32, 1, flash=True))
    assert found.times.bubble < whole.times.bubble / 4
    assert found.times.compute == whole.times.compute


def test_deepseek_v3_fits_as_its_builders_laid_it_out() -> None:
    # DeepSeek-AI 2024, section 3.2.1: 2048 devices, pipeline 16, experts over 64
    # ranks of 8 nodes, ZeRO-1, no tensor parallelism; norms and up-projections are
    # computed again.
    model, cluster = presets.model("deepseek-v3"), presets.cluster("h800-80g")
    strategy = parse("PP(16) * ZeRO1(2) * EP(64)")
    train = Train(
        15360, 1, PRECISIONS["fp8"], recompute=Recompute.OPERATIONS, flash=True
    )
    found = predict(model, strategy, cluster, train)
    assert strategy.ranks == cluster.size
    assert found.fits
    assert found.strategy.find(Tensor) is None
    assert round(model.parameters / 1e9) == 671


def test_llama_405b_is_laid_out_as_its_builders_did() -> None:
    # Llama Team 2024, table 4: 16,384 devices, tensor 8, pipeline 16, data 128.
    model, cluster = presets.model("llama3-405b"), presets.cluster("h100-80g")
    found = plan(model, cluster, 16384, Train(2048, flash=True))
    lengths = [
        (c.strategy.length(Tensor), c.strategy.length(Pipeline))
        for c in found.shortlist
    ]
    assert (8, 16) in lengths
    assert found.shortlist[0].strategy.length(Pipeline) >= 16


def test_a_small_network_on_many_devices_is_not_cut_into_stages() -> None:
    model, cluster = presets.model("resnet-50"), presets.cluster("abci-v100")
    train = Train(8192, precision=PRECISIONS["fp32"])
    first = plan(model, cluster, 256, train).shortlist[0].strategy
    assert first.length(Pipeline) == 1
    assert first.length(Data, Zero) == 256
