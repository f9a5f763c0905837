"""Strategies, clusters, predictions and presets: what they say and what they refuse."""

import math
from dataclasses import replace
from pathlib import Path

import pytest

from atlas.planner import budget, computing, presets
from atlas.planner.cluster import Band, Cluster, Device, Level, Link
from atlas.planner.errors import OracleError
from atlas.planner.explain import explain
from atlas.planner.mesh import mesh
from atlas.planner.network import Item, network
from atlas.planner.predict import predict
from atlas.planner.prediction import Prediction
from atlas.planner.records import Cut
from atlas.planner.rules import limit
from atlas.planner.stages import total
from atlas.planner.strategy import (
    AXES,
    Data,
    DiLoCo,
    Offload,
    ParameterServer,
    Pipeline,
    Spatial,
    Strategy,
    Tensor,
    Zero,
    parse,
)
from atlas.planner.train import PRECISIONS, Train
from atlas.taxonomy import TaxonomyError

ROOT = Path(__file__).resolve().parents[2]


def asked(
    model: str, text: str, batch: int = 64, cluster: str = "a100-80g"
) -> Prediction:
    made, where = presets.model(model), presets.cluster(cluster)
    return predict(made, parse(text), where, Train(batch))


# Strategies


@pytest.mark.parametrize(
    "text",
    [
        "Data(16) * Pipeline(8, schedule='interleaved', chunks=3) * Tensor(8)",
        "Zero(3, 64, within=8) * Checkpoint()",
        "Data(4) * Compress(kind='powersgd', rank=2)",
        "LocalSGD(8, every=4)",
        "Context(2, method='ulysses') * Tensor(4, sequence_parallel=True)",
    ],
)
def test_a_strategy_is_read_as_it_is_written(text: str) -> None:
    assert str(parse(text)) == text


@pytest.mark.parametrize("kind", AXES.values(), ids=AXES)
def test_every_axis_alone_is_read_as_it_is_written(kind: type) -> None:
    made = Strategy.of(kind())
    assert parse(str(made)) == made


WRONG = [
    ("Dta(3)", 'unknown axis "Dta": expected "Data"'),
    ("Tensor(x)", "Tensor: expected numbers, words, True or False"),
    ("Tensor(8, sp=True)", "Tensor: unknown sp: expected one of ranks, sequence"),
    ("Zero(5)", "Zero(5, 1): stage 5: expected one of 1, 2, 3"),
    ("Pipeline(4, 'gpip')", "schedule 'gpip': expected \"gpipe\""),
    ("Pipeline(4, chunks=2)", "interleaved, and it alone, has chunks above 1"),
    ("Zero(1, 8, within=3)", "expected a within that divides 8"),
    ("Data(0)", "Data(0): expected 1 rank or more"),
    ("Data(2, 3)", "Data: 2 values: expected ranks"),
    ("Data('x')", "ranks = 'x': expected like 1"),
    ("3", 'expected axes like "Data(2) * Tensor(8)"'),
    ("Tensor(8", 'expected axes like "Data(2) * Tensor(8)"'),
    ("__import__('os')", 'unknown axis "__import__"'),
]


@pytest.mark.parametrize(("text", "says"), WRONG)
def test_a_wrong_strategy_is_one_line(text: str, says: str) -> None:
    with pytest.raises(OracleError) as caught:
        parse(text)
    assert says in str(caught.value)
    assert "\n" not in str(caught.value)


REFUSED = [
    ("gpt3-175b", "Tensor(5)", "Tensor(5) for 96 heads: expected 4 or 6"),
    (
        "gpt3-175b",
        "Data(48)",
        "batch 64 for 48 replicas: expected a multiple, 48",
    ),
    ("gpt3-175b", "Data(128)", "batch 64 for 128 replicas: expected a multiple, 128"),
    ("gpt3-175b", "Data(8000)", "8000 ranks on a100-80g: expected at most 4480"),
    ("gpt3-175b", "Pipeline(97)", "expected at most 96: it has 96 separable layers"),
    ("gpt3-175b", "Data(2) * Zero(1, 2)", "Data and Zero are two ways of replicating"),
    ("gpt3-175b", "Data(2) * Data(2)", "two Data axes: expected one"),
    ("gpt3-175b", "Filter(2)", "expected at most 1: the smallest layer has 1 filters"),
    ("gpt3-175b", "Context(3)", "Context(3) for 2048 tokens: expected 2 or 4"),
    ("resnet-50", "Filter(65)", "at most 64: the smallest layer has 64 filters"),
    ("resnet-50", "Spatial(8)", "at most 7: the smallest feature map has rows for 7"),
    ("resnet-50", "Filter(2) * Spatial(2)", "Filter and Spatial are two splits"),
    ("resnet-50", "Context(2)", "it has no sequences"),
    ("mixtral-8x7b", "Expert(3)", "Expert(3) for 8 experts: expected 2 or 4"),
    ("llama3-8b", "Context(16, 'ulysses')", "for 8 heads: expected 8"),
    ("dlrm", "Embedding(27)", "expected at most 26: it has 26 embedding tables"),
    ("resnet-50", "Zero(1, 2) * Compress()", "Compress needs Data"),
    ("resnet-50", "Pipeline(4, 'interleaved', 30)", "chunks, one for each layer"),
    (
        "resnet-50",
        "Data(2) * Filter(4) * Compress('powersgd')",
        "Compress(kind='powersgd') with Filter(4): expected whole matrices, or another",
    ),
    ("resnet-50", "Data(2) * Channel(4) * Compress('factors')", "with Channel(4): exp"),
    ("gpt3-175b", "Data(8) * Compress('powersgd')", "no matrices known: expected ano"),
]


@pytest.mark.parametrize(("model", "text", "says"), REFUSED)
def test_what_is_out_of_range_is_refused_with_the_nearest_choices(
    model: str, text: str, says: str
) -> None:
    with pytest.raises(OracleError) as caught:
        asked(model, text)
    assert says in str(caught.value)
    assert "\n" not in str(caught.value)


def test_a_micro_batch_divides_the_share() -> None:
    train = Train(64, 5)
    with pytest.raises(OracleError, match="expected a divisor, 4 or 8"):
        predict(presets.model("resnet-50"), Data(8), presets.cluster("a100-80g"), train)


def test_the_host_is_asked_for_before_it_is_used() -> None:
    bare = replace(presets.cluster("a100-80g"), host_bandwidth=None)
    with pytest.raises(OracleError, match="expected a cluster with host_bandwidth"):
        predict(presets.model("resnet-50"), Data(2) * Offload(), bare, Train(64))


# Placement


def test_an_axis_uses_the_innermost_level_that_holds_it() -> None:
    cluster = presets.cluster("abci-v100")
    names = [cluster.levels[cluster.group([(1, n)]).level].name for n in (4, 5, 68, 69)]
    assert names == ["node", "leaf", "leaf", "rack"]
    assert cluster.levels[cluster.group([(4, 2)]).level].name == "leaf"


def test_groups_that_leave_a_node_together_share_its_rails() -> None:
    level = Level("node", 4, {"any": Link(0.0, 1.0)})
    device = Device("d", {"bf16": 1.0}, 1.0, 1.0)
    for rails, alone, beside in ((1, 10.0, 40.0), (4, 2.5, 10.0)):
        outer = Level("all", 64, {"any": Link(0.0, 10.0)}, rails)
        cluster = Cluster("c", device, (level, outer))
        assert cluster.link(cluster.group([(1, 8)]), "all_reduce").beta == alone
        assert cluster.link(cluster.group([(4, 8)]), "all_reduce").beta == beside
        assert cluster.link(cluster.group([(4, 8)]), "p2p").beta == beside


def test_innermost_last_decides_who_shares_a_node() -> None:
    inside = asked("gpt2-medium", "Data(4) * Tensor(8)")
    outside = asked("gpt2-medium", "Tensor(8) * Data(4)")
    assert inside.times.cut < outside.times.cut / 3
    assert any("place it innermost" in finding.says for finding in outside.findings)
    assert not any("place it innermost" in finding.says for finding in inside.findings)


# Predictions


def test_times_add_up_and_the_band_holds_them() -> None:
    found = asked("gpt3-175b", "Data(2) * Pipeline(8) * Tensor(8)")
    assert sum(found.times) == found.seconds
    assert found.low <= found.seconds * 1.01 <= found.high
    assert found.binds == "compute"
    assert 0.3 < found.mfu <= found.hfu < 0.7


def test_an_uncalibrated_cluster_has_no_band() -> None:
    found = asked("resnet-50", "Data(8)", cluster="abci-v100")
    assert found.low == found.seconds == found.high
    assert found.cluster.band.of == "not calibrated"
    with pytest.raises(OracleError, match="expected 0 < low <= high"):
        Band(1.2, 1.1)


def test_limits_are_said_as_paradl_says_them() -> None:
    found = asked("resnet-50", "Data(2) * Filter(4)", cluster="abci-v100")
    says = [finding.says for finding in found.findings]
    limit = (
        "filter parallelism cannot exceed 64 ranks: the smallest layer has 64 filters"
    )
    assert limit in says
    assert "data parallelism cannot exceed 64 ranks: the batch size" in says


@pytest.mark.parametrize(
    ("model", "text", "says"),
    [
        ("vgg-16", "Pipeline(16)", "the heaviest of 16 stages is"),
        ("resnet-50", "Channel(64)", "of the compute: it is not split"),
        ("resnet-50", "Data(8) * Filter(4)", "4 groups share 1 link out of each node"),
        ("vgg-16", "Data(64)", "synchronization between replicas takes"),
        ("resnet-50", "Filter(8)", "communication inside layers takes"),
        ("gpt3-175b", "Data(2) * Tensor(4)", "each of 2 replicas keeps the same"),
    ],
)
def test_bottlenecks_are_those_of_paradl_s_table(
    model: str, text: str, says: str
) -> None:
    found = asked(model, text, cluster="abci-v100")
    assert any(says in finding.says for finding in found.findings), found.findings
    calm = asked("gpt2-medium", "Data(1)", cluster="h100-80g")
    assert not any(says in finding.says for finding in calm.findings)


def test_what_does_not_fit_is_said_with_its_largest_part() -> None:
    found = asked("gpt3-175b", "Tensor(8)")
    assert not found.fits
    limits = [f.says for f in found.findings if f.axis == "memory"]
    assert limits
    assert "on a device with 77.7 GiB: the largest part is activations, " in limits[0]


def test_an_explanation_is_sentences_with_the_numbers() -> None:
    found = asked("gpt3-175b", "Data(2) * Pipeline(8) * Tensor(8) * Checkpoint()")
    lines = explain(found).splitlines()
    assert lines[0].startswith("A step of gpt3-175b (175 B parameters) with Data(2)")
    assert all(line.endswith(".") for line in lines)
    assert "which fits in 77.7 GiB" in explain(found)
    assert "The largest share of the time goes to compute." in lines


def test_a_budget_becomes_hours_and_money() -> None:
    found = asked("gpt3-175b", "Data(16) * Pipeline(8) * Tensor(8)", batch=1536)
    cost = budget.cost(found, tokens=300e9, price=2.0)
    assert cost.steps == math.ceil(300e9 / (1536 * 2048))
    assert math.isclose(cost.gpu_hours, cost.hours * 1024)
    assert cost.money == 2.0 * cost.gpu_hours
    assert budget.cost(found, tokens=300e9).money is None
    epochs = budget.cost(asked("resnet-50", "Data(8)"), epochs=90)
    assert epochs.steps == math.ceil(90 * 1281167 / 64)
    with pytest.raises(OracleError, match="expected one of tokens, epochs, samples"):
        budget.cost(found)
    with pytest.raises(OracleError, match="has no data set"):
        budget.cost(found, epochs=1)
    with pytest.raises(OracleError, match="expected more than 0"):
        budget.cost(found, tokens=-1)


@pytest.mark.parametrize(("sequence", "passes"), [(False, 8), (True, 10)])
def test_sequence_parallelism_gathers_once_more_than_tensor_parallelism(
    sequence: bool, passes: int
) -> None:
    whole = presets.model("gpt3-175b")
    model = replace(whole, layers=whole.layers[1:-1], tied=0)
    found = predict(
        model, Tensor(8, sequence), presets.cluster("a100-80g"), Train(4, 1)
    )
    sent = sum(c.wire for c in found.collectives)
    assert sent == 4 * 96 * passes * 7 / 8 * 2048 * 12288 * 2


#: The field of Times that the collectives of an axis add up to.
WAITS = {"Tensor": "cut", "Filter": "cut", "Channel": "cut", "Spatial": "cut"}
WAITS |= {"Context": "context", "Expert": "expert", "Embedding": "expert"}
WAITS |= {"Data": "data", "Zero": "data", "LocalSGD": "data", "Gossip": "data"}
WAITS |= {"Compress": "data", "ParameterServer": "data", "Elastic": "data"}


@pytest.mark.parametrize(
    ("model", "text"),
    [
        ("gpt3-175b", "Data(2) * Tensor(8)"),
        ("gpt3-175b", "Zero(1, 2) * Tensor(8, True) * Checkpoint()"),
        ("gpt3-175b", "Zero(2, 4) * Tensor(2)"),
        ("gpt3-175b", "Zero(3, 16, within=8)"),
        ("llama3-8b", "Data(2) * Context(4)"),
        ("llama3-8b", "Data(2) * Context(4, 'ulysses') * Tensor(2)"),
        ("mixtral-8x7b", "Zero(3, 2) * Expert(4, capacity=1.5)"),
        ("mixtral-8x7b", "Data(2) * Expert(8) * Checkpoint()"),
        ("dlrm", "Data(2) * Embedding(8)"),
        ("resnet-50", "Data(4) * Filter(8)"),
        ("resnet-50", "Data(4) * Channel(3)"),
        ("resnet-50", "Data(4) * Spatial(4)"),
        ("resnet-50", "Data(4) * Spatial(2)"),
        ("resnet-50", "LocalSGD(8)"),
        ("resnet-50", "Gossip(8)"),
        ("resnet-50", "ParameterServer(8, servers=2)"),
        ("resnet-50", "Elastic(8)"),
        ("resnet-50", "Elastic(8, mode='async')"),
        ("resnet-50", "Data(8) * Compress(kind='qsgd')"),
        ("vgg-16", "Data(8) * Compress(kind='factors')"),
    ],
)
def test_the_table_of_collectives_and_the_times_are_one(model: str, text: str) -> None:
    """Where nothing hides, seconds of the calls are the seconds of the step."""
    made, cluster = presets.model(model), presets.cluster("a100-80g")
    found = predict(made, parse(text), cluster, Train(64, 4, overlap=False))
    waited: dict[str, float] = {}
    for c in found.collectives:
        field = WAITS[c.axis]
        if c.axis == "Spatial" and c.what == "gradients":
            field = "data"
        waited[field] = waited.get(field, 0.0) + c.seconds
    assert waited
    for field, seconds in waited.items():
        told = getattr(found.times, field)
        assert math.isclose(told, seconds, rel_tol=2e-3), field  # units are unequal


def test_sharding_over_more_ranks_never_takes_more_memory() -> None:
    held = [sum(asked("llama3-8b", f"Zero(3, {n})").memory) for n in (2, 4, 8, 16)]
    assert held == sorted(held, reverse=True)


def test_offload_frees_the_device_and_takes_time() -> None:
    plain = asked("llama3-8b", "Zero(1, 8)")
    moved = asked("llama3-8b", "Zero(1, 8) * Offload()")
    assert moved.memory.optimizer == 0 < plain.memory.optimizer
    assert moved.times.optimizer > plain.times.optimizer
    assert any(c.op == "copy" for c in moved.collectives)


def test_local_steps_divide_the_traffic_and_an_outer_optimizer_adds_state() -> None:
    every = asked("resnet-50", "LocalSGD(8, every=1)")
    seldom = asked("resnet-50", "LocalSGD(8, every=4)")
    assert math.isclose(every.times.data, 4 * seldom.times.data)
    outer = asked("resnet-50", "DiLoCo(8, every=4)")
    assert outer.memory.optimizer > seldom.memory.optimizer
    assert DiLoCo().every == 500


@pytest.mark.parametrize("model", ["mixtral-8x7b", "dlrm", "llama3-8b", "resnet-50"])
def test_replicas_agree_on_experts_and_tables_too(model: str) -> None:
    """However they agree: what is handed over, or stepped, is the whole model."""
    n = presets.model(model).parameters
    for text, bytes_ in (
        ("Data(8)", 2 * n),
        ("LocalSGD(8, every=1)", 2 * n),
        ("Elastic(8, every=1)", 2 * n),
        ("Elastic(8, every=1, mode='async')", 4 * n),
        ("Gossip(8, degree=1)", 2 * n),
        ("ParameterServer(8)", 4 * n),
        ("Data(8) * Compress(kind='top-k', ratio=1.0)", 6 * n),
        ("Data(8) * Offload()", 6 * n),
    ):
        sent = sum(c.payload for c in asked(model, text).collectives)
        assert math.isclose(sent, bytes_, rel_tol=1e-9), text
    outer = asked(model, "DiLoCo(8)").memory.optimizer
    assert outer == asked(model, "LocalSGD(8)").memory.optimizer + 2 * 2 * n


def test_the_fullest_rank_computes_its_share_and_what_is_not_cut() -> None:
    even = asked("llama3-8b", "Data(2) * Tensor(4)")
    assert math.isclose(even.fullest, even.executed / 8, rel_tol=1e-12)
    cut = asked("resnet-50", "Channel(4)")
    layers = [layer.work for layer in cut.model.layers]
    alone = sum(w.serial + w.unchannelled_flops for w in layers)
    whole = 3 * cut.train.batch * alone  # by every rank, which the model has once
    assert math.isclose(cut.executed, cut.flops + 3 * whole, rel_tol=1e-12)
    assert math.isclose(cut.fullest, cut.executed / 4, rel_tol=1e-12)
    odd = asked("resnet-50", "Filter(3)")
    assert odd.fullest > odd.executed / 3  # 22 of 64 filters


def test_seats_of_experts_are_computed_and_kept_though_empty() -> None:
    few, many = (
        asked("mixtral-8x7b", f"Expert(8, capacity={c})") for c in ("1.0", "1.5")
    )
    assert many.flops == few.flops == few.executed
    assert few.executed < many.executed < 1.5 * few.executed
    assert few.times.compute < many.times.compute < 1.5 * few.times.compute
    kept = many.memory.activations / few.memory.activations
    assert 1 < kept < 1.5


def test_a_unit_is_gathered_with_its_experts() -> None:
    plain, shared = (asked("mixtral-8x7b", a) for a in ("Data(8)", "Zero(3, 8)"))
    layer = presets.model("mixtral-8x7b").layers[1].work
    gathered = 2 * 2 * (layer.largest + layer.experts)  # 2 bytes; and the next layer
    assert shared.memory.buffers - plain.memory.buffers == gathered


def test_springs_move_what_local_steps_do_and_keep_a_center() -> None:
    local, springs = (asked("resnet-50", f"{a}(8)") for a in ("LocalSGD", "Elastic"))
    assert springs.times.data == local.times.data
    center = springs.memory.optimizer - local.memory.optimizer
    assert center == springs.memory.parameters
    says = [finding.says for finding in springs.findings]
    assert "an elastic coefficient of 2 / 9 or more diverges" in says


def test_a_loss_for_each_stage_sends_nothing_back_and_keeps_one_micro_batch() -> None:
    waits, local = (
        asked("gpt2-medium", f"Pipeline(4, '{s}')") for s in ("gpipe", "local")
    )
    assert math.isclose(waits.times.pipeline, 2 * local.times.pipeline)
    assert local.times.bubble <= waits.times.bubble / 2  # equal if the host binds
    assert all(
        math.isclose(a.activations, 64 * b.activations)
        for a, b in zip(waits.stages, local.stages, strict=True)
    )
    assert any(
        "only the last stage trains on the network's loss" in f.says
        for f in local.findings
    )


def test_factors_are_for_wide_layers_and_few_samples() -> None:
    plain, few, many = (
        asked("vgg-16", f"Data(2){how}", batch)
        for how, batch in (
            ("", 2),
            (" * Compress('factors')", 2),
            (" * Compress('factors')", 64),
        )
    )
    sent = [sum(c.wire for c in found.collectives) for found in (plain, few, many)]
    assert sent[1] < sent[0] < sent[2]
    worse = "matrices, the samples' factors take more bytes than an all-reduce"
    assert any(worse in finding.says for finding in many.findings)
    assert few.memory.buffers == plain.memory.buffers  # exact: no error is kept


def test_layers_that_take_turns_leave_room_for_one() -> None:
    whole = asked("llama3-8b", "Data(8)")
    turns = asked("llama3-8b", "Data(8) * Offload('layers')")
    held = turns.memory
    assert (held.parameters, held.gradients, held.optimizer) == (0, 0, 0)
    assert held.buffers < whole.memory.buffers + whole.memory.parameters / 4
    down, up = (c.wire for c in turns.collectives if c.op == "copy")
    assert down < up < 2 * down


def test_a_window_needs_parts_as_high_as_its_border() -> None:
    made = network("wide", (3, 12, 12), [Item(conv=8, kernel=5), Item(conv=8)])
    assert limit(made, Spatial) == (6, "the smallest feature map has rows for 6")


@pytest.mark.parametrize("p", range(1, 8))
def test_the_rank_with_most_rows_counts(p: int) -> None:
    model, where = presets.model("resnet-50"), presets.cluster("a100-80g")
    work = total(model.layers)
    cut = mesh(model, Strategy.of(Spatial(p)), where, Train(7)).cut
    rows = {1: 7, 2: 4, 3: 3, 4: 2, 5: 2, 6: 2, 7: 1}[p]  # of the smallest map's
    assert computing.samples_of(cut) == rows
    whole = computing.forward_flops(work, Cut(micro=7))
    assert math.isclose(computing.forward_flops(work, cut), rows * whole / 7)


@pytest.mark.parametrize("p", [1, 2, 3, 4, 6, 12])
def test_rows_that_divide_are_cut_evenly(p: int) -> None:
    items = [Item(conv=8), Item(pool="max", kernel=2, stride=2), Item(conv=8)]
    made = network("even", (3, 24, 24), [*items, Item(pool="all"), Item(linear=2)])
    cut = mesh(made, Strategy.of(Spatial(p)), presets.cluster("a100-80g"), Train(5)).cut
    assert cut.rows == 12
    assert (
        computing.samples_of(cut) == computing.samples_of(cut._replace(rows=0)) == 5 / p
    )


def test_recomputing_counts_the_rows_of_all_ranks_not_the_most_of_each() -> None:
    again = asked("resnet-50", "Spatial(2) * Checkpoint()")
    assert math.isclose(again.executed, asked("resnet-50", "Checkpoint()").executed)


def test_rows_are_kept_with_those_that_windows_see_beyond() -> None:
    made = network("wide", (3, 12, 10), [Item(conv=8, kernel=5), Item(conv=8)])
    where, train = presets.cluster("a100-80g"), Train(6)
    one, two, three = (
        predict(made, Spatial(p), where, train).memory.activations for p in (1, 2, 3)
    )
    beyond = 6 * 2 * (4 * 3 * 10 + 2 * 8 * 10)  # four rows of the image, two of the map
    assert (two, three) == (one / 2 + beyond, one / 3 + beyond)


def test_enough_servers_hide_their_traffic() -> None:
    few = asked("resnet-50", "ParameterServer(8)", cluster="cloud-100g")
    says = next(f.says for f in few.findings if "servers would" in f.says)
    needed = int(says.split()[0])
    enough = asked("resnet-50", f"ParameterServer(8, servers={needed})")
    n = 4 * enough.model.parameters  # 2 bytes pushed, 2 pulled
    link = few.cluster.levels[0].link("p2p")
    busy = few.times.compute + few.times.memory
    assert (needed - 1) * busy < 8 * n * link.beta <= needed * busy
    lazy = asked("resnet-50", "ParameterServer(8, mode='async')")
    strict = asked("resnet-50", "ParameterServer(8)")
    assert lazy.times.data < strict.times.data
    assert ParameterServer().mode == "sync"


def test_the_slowest_stage_sets_the_pace_not_the_one_with_most_operations() -> None:
    found = asked("dlrm", "Pipeline(2) * Embedding(4)", batch=8192)
    assert found.times.expert > 0  # its tables compute nothing, and wait most
    assert any(c.axis == "Embedding" for c in found.collectives)


def test_recomputing_trades_memory_for_time() -> None:
    plain = asked("gpt2-medium", "Data(8)")
    again = asked("gpt2-medium", "Data(8) * Checkpoint()")
    assert again.memory.activations < plain.memory.activations / 5
    assert 1.2 < again.times.compute / plain.times.compute < 1.4


def test_flash_attention_keeps_no_scores() -> None:
    model, cluster = presets.model("gpt2-medium"), presets.cluster("a100-80g")
    plain = predict(model, Data(8), cluster, Train(64))
    flash = predict(model, Data(8), cluster, Train(64, flash=True))
    work = model.layers[1].work
    scores = 2 * work.kept_scores + work.fixed_scores
    saved = plain.memory.activations - flash.memory.activations
    assert saved == 24 * 8 * scores


def test_a_precision_that_the_device_lacks_is_refused() -> None:
    model, cluster = presets.model("resnet-50"), presets.cluster("a100-80g")
    bare = replace(cluster, device=replace(cluster.device, flops={"bf16": 1e12}))
    with pytest.raises(OracleError, match='has no "fp32": expected one of bf16'):
        predict(model, Data(2), bare, Train(2, precision=PRECISIONS["fp32"]))


def test_the_stages_of_a_pipeline_are_told_apart() -> None:
    found = asked("gpt3-175b", "Pipeline(8) * Tensor(8)")
    assert len(found.stages) == 8
    assert found.memory == max(found.stages, key=sum)
    held = [stage.activations for stage in found.stages]
    assert held[0] > held[1] > held[6]


def test_a_pipeline_s_ends_send_one_way() -> None:
    found = asked("gpt3-175b", "Pipeline(8) * Tensor(8, True)")
    (message,) = [c for c in found.collectives if c.axis == "Pipeline"]
    assert message.count == 64
    assert message.wire == 64 * 2048 * 12288 * 2 / 8


def test_axes_of_one_rank_change_nothing() -> None:
    bare = asked("gpt2-medium", "Data(4)")
    more = asked("gpt2-medium", "Data(4) * Pipeline(1) * Tensor(1)")
    assert bare.times == more.times
    assert bare.memory == more.memory
    assert (Zero(1, 1) * Tensor(1) * Pipeline(1)).ranks == 1


# Presets


def test_all_presets_load_and_know_their_sources() -> None:
    models, clusters = presets.load()
    assert {"gpt3-175b", "resnet-50", "dlrm", "mixtral-8x7b"} <= set(models)
    assert set(clusters) == {
        *("a100-40g", "a100-80g", "abci-v100", "b200", "cloud-100g", "h100-80g"),
        *("h200", "h800-80g", "mi300x", "this-machine", "v100-32g"),
    }
    assert all(made.sources for made in (*models.values(), *clusters.values()))


COUNTED = {
    "resnet-50": 25_557_032,
    "resnet-152": 60_192_808,
    "vgg-16": 138_357_544,
    "gpt2-medium": 354_823_168,
    "llama3-8b": 8_030_261_248,
    "llama3-70b": 70_553_706_496,
    "llama3-405b": 405_853_388_800,
    "mixtral-8x7b": 46_702_792_704,
}


@pytest.mark.parametrize("name", COUNTED)
def test_presets_have_the_published_number_of_parameters(name: str) -> None:
    assert presets.model(name).parameters == COUNTED[name]


def test_an_unknown_preset_is_one_line_with_the_nearest() -> None:
    with pytest.raises(OracleError) as caught:
        presets.model("gpt3")
    assert str(caught.value) == 'unknown model "gpt3": expected "gpt3-175b"'
    with pytest.raises(OracleError) as caught:
        presets.cluster("a100-80")
    assert str(caught.value) == 'unknown cluster "a100-80": expected "a100-80g"'


@pytest.fixture
def home(tmp_path: Path) -> Path:
    """A copy of the files that presets are read from."""
    taxonomy = tmp_path / "taxonomy"
    for folder in ("models", "clusters"):
        (taxonomy / folder).mkdir(parents=True)
        for path in (ROOT / "taxonomy" / folder).glob("*.yaml"):
            (taxonomy / folder / path.name).write_text(path.read_text("utf-8"), "utf-8")
    bib = (ROOT / "taxonomy" / "papers.bib").read_text("utf-8")
    (taxonomy / "papers.bib").write_text(bib, "utf-8")
    return tmp_path


BROKEN = [
    (
        "models/gpt3-175b",
        "layers: 96",
        "layers: many",
        '"many": expected a whole number',
    ),
    ("models/gpt3-175b", "heads: 96", "heads: 95", "for 95 heads: expected a multiple"),
    ("models/gpt3-175b", "layers:", "layer:", 'unknown key "layer": expected "layers"'),
    ("models/resnet-50", "cnn:", "transformer:", "unknown key"),
    ("models/vgg-16", "{conv: 64, repeat: 2}", "{repeat: 2}", "a layer without conv"),
    ("models/dlrm", "naumov2019deep", "naumov2019", 'unknown source "naumov2019"'),
    (
        "clusters/a100-80g",
        "  device.top: https",
        "  device.tip: https",
        "has no source",
    ),
    ("clusters/a100-80g", "size: 8,", "size: 9000,", "each larger than the one before"),
    ("clusters/a100-80g", "top: 0.73", "top: 1.73", "expected above 0, at most 1"),
    ("clusters/abci-v100", "links: {any:", "links: {p2p:", 'without "any"'),
]


@pytest.mark.parametrize(("file", "old", "new", "says"), BROKEN)
def test_a_broken_preset_is_a_line_with_its_place(
    home: Path, file: str, old: str, new: str, says: str
) -> None:
    path = home / "taxonomy" / f"{file}.yaml"
    text = path.read_text("utf-8")
    assert old in text
    path.write_text(text.replace(old, new, 1), "utf-8")
    with pytest.raises(TaxonomyError) as caught:
        presets.load(home)
    assert any(
        says in problem and problem.startswith(f"taxonomy/{file}.yaml:")
        for problem in caught.value.problems
    ), caught.value.problems


@pytest.mark.parametrize("kind", ["model", "cluster"])
def test_the_committed_schema_is_the_current_one(kind: str) -> None:
    import json

    path = ROOT / "taxonomy" / "schema" / f"{kind}.schema.json"
    assert json.loads(path.read_text("utf-8")) == presets.json_schema()[kind]
