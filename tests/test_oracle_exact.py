"""The oracle against the meter: bytes, calls and memory of recorded runs, with ==.

For each technique a strategy is predicted on a small network of the exemplar's own
sizes, and compared with what its records hold, on gloo and dry up to 1024 ranks. A
prediction is of the fullest rank; where parts are uneven, `every` rank's figures
add up to the predicted one times the ranks.
"""

import math
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any, Literal

import pytest

from atlas.oracle import core
from atlas.oracle import formulas as f
from atlas.oracle.cluster import Cluster, Device, Level, Link
from atlas.oracle.mesh import mesh
from atlas.oracle.model import Layer, Model
from atlas.oracle.network import Item, convolution, unchannelled
from atlas.oracle.predict import predict
from atlas.oracle.prediction import Prediction
from atlas.oracle.records import Cut, Work
from atlas.oracle.strategy import (
    Axis,
    Channel,
    Checkpoint,
    Compress,
    Context,
    Data,
    DiLoCo,
    Embedding,
    Expert,
    Filter,
    Gossip,
    LocalSGD,
    Offload,
    ParameterServer,
    Pipeline,
    Spatial,
    Strategy,
    Tensor,
    Zero,
)
from atlas.oracle.traffic import inside, sites_of
from atlas.oracle.train import OPTIMIZERS, PRECISIONS, Train
from atlas.oracle.transformer import transformer
from atlas.record import read

ROOT = Path(__file__).resolve().parent.parent
CLUSTER = Cluster(
    "any",
    Device("any", {"fp64": 1e12, "bf16": 1e12}, 1e15, 1e12),
    (Level("all", 2048, {"any": Link(1e-6, 1e-9)}),),
    host_bandwidth=1e9,
)
TRAIN = Train(
    1,
    precision=PRECISIONS["fp64"],
    optimizer=OPTIMIZERS["adam"],
    overlap=False,
    bucket=0,
)

Given = dict[str, int]
#: Which ranks' figure a prediction is: every one's, the largest, or their mean.
Of = Literal["each", "most", "mean"]
Expected = dict[str, tuple[float, Of]]
CASES: dict[str, Callable[[int, Given], Expected]] = {}


def case(name: str) -> Callable[[Any], Any]:
    """Registers what a technique's records must hold."""

    def keep(fn: Callable[[int, Given], Expected]) -> Any:
        CASES[name] = fn
        return fn

    return keep


def stack(units: int, parameters: int, **more: Any) -> Model:
    """Equal units of so many parameters that no axis cuts."""
    work = Work(
        layers=1, shared=parameters, largest=parameters, flops=1.0, kernels=1, **more
    )
    layers = tuple(Layer(f"unit {i}", work) for i in range(units))
    return Model("stack", "cnn", layers, uniform=True)


def run(model: Model, strategy: Strategy | Axis, **train: Any) -> Prediction:
    return predict(model, strategy, CLUSTER, replace(TRAIN, **train))


def total(found: Prediction, field: str, axis: str = "", op: str = "") -> Any:
    """A field of the prediction's collectives, added up."""
    return sum(
        getattr(c, field)
        for c in found.collectives
        if axis in ("", c.axis) and op in ("", c.op)
    )


def state(found: Prediction) -> float:
    held = found.memory
    return held.parameters + held.gradients + held.optimizer


# Sharded and replicated


@case("zero-1")
def _(p: int, g: Given) -> Expected:
    found = run(stack(1, g["n"]), Zero(1, p), batch=p)
    return {
        "volume": (g["t"] * total(found, "wire"), "each"),
        "state": (state(found), "each"),
        # and one that adds up the gradient's norm
        "calls": (g["t"] * (total(found, "count") + 1), "each"),
    }


@case("zero-2")
def _(p: int, g: Given) -> Expected:
    found = run(stack(g["u"], g["n"]), Zero(2, p), batch=g["k"] * p, micro_batch=1)
    return {
        "volume": (g["t"] * total(found, "wire"), "each"),
        "calls": (g["t"] * total(found, "count"), "each"),
        "state": (state(found), "each"),
    }


@case("zero-3")
def _(p: int, g: Given) -> Expected:
    found = run(stack(g["u"], g["n"]), Zero(3, p), batch=p)
    return {
        "volume": (g["t"] * total(found, "wire"), "each"),
        "calls": (g["t"] * total(found, "count"), "each"),
        "state": (state(found), "each"),
        "gathered": (found.memory.buffers, "each"),
    }


@case("bsp-synchronous-sgd")
def _(p: int, g: Given) -> Expected:
    found = run(stack(1, g["n"]), Data(p), batch=p, bucket=g["c"] * g["b"])
    return {
        "calls": (g["t"] * total(found, "count"), "each"),
        "payload": (g["t"] * total(found, "payload"), "each"),
    }


@case("ddp-by-hand")
def _(p: int, g: Given) -> Expected:
    plain = {"optimizer": OPTIMIZERS["sgd"], "bucket": g["c"] * g["b"]}
    found = run(stack(1, g["n"]), Data(p), batch=p, **plain)
    # Once a step the tokens are counted, in 8 bytes; z parameters are frozen.
    return {
        "calls": (g["t"] * (total(found, "count") + 1), "each"),
        "payload": (g["t"] * (total(found, "payload") + 8), "each"),
        "state": (state(found) + g["z"] * g["b"], "each"),
    }


@case("mixed-precision")
def _(p: int, g: Given) -> Expected:
    found = run(stack(1, g["n"]), Data(p), batch=p, precision=PRECISIONS["mixed"])
    return {
        "state": (state(found), "each"),
        "payload": (g["t"] * total(found, "payload"), "each"),
    }


@case("cpu-offload-optimizer")
def _(p: int, g: Given) -> Expected:
    found = run(stack(1, g["n"]), Zero(1, p) * Offload(), batch=p)
    return {
        "down": (g["t"] * total(found, "wire", "Offload") / 2, "each"),
        "up": (g["t"] * total(found, "wire", "Offload") / 2, "each"),
        "volume": (g["t"] * total(found, "wire", "Zero"), "each"),
        "fast": (state(found) + found.memory.buffers, "each"),
    }


@case("activation-checkpointing")
def _(p: int, g: Given) -> Expected:
    layers, width = g["l"] // g["s"], g["a"] // g["b"]
    model = stack(g["s"], g["n"] // g["s"], kept=layers * width, inputs=width)
    found = run(model, Data(p) * Checkpoint(), batch=p)
    return {
        "peak": (found.memory.activations + found.memory.buffers, "each"),
        "payload": (total(found, "payload"), "each"),
    }


# Periodic, servers, gossip


@case("local-sgd")
def _(p: int, g: Given) -> Expected:
    found = run(stack(1, g["n"]), LocalSGD(p, every=g["h"]), batch=p)
    meetings = f.periodic_rounds(g["t"], g["h"])  # and one at the end
    return {"payload": (meetings * g["h"] * total(found, "payload"), "each")}


@case("diloco")
def _(p: int, g: Given) -> Expected:
    found = run(stack(1, g["n"]), DiLoCo(p, every=g["h"]), batch=p)
    inner = run(stack(1, g["n"]), LocalSGD(p, every=g["h"]), batch=p)
    meetings = f.periodic_rounds(g["t"], g["h"])
    return {
        "payload": (meetings * g["h"] * total(found, "payload"), "each"),
        "outer_state": (state(found) - state(inner), "each"),
    }


@case("d-psgd")
def _(p: int, g: Given) -> Expected:
    found = run(stack(1, g["n"]), Gossip(p), batch=p)
    return {"bytes_sent": (g["t"] * total(found, "wire"), "each")}


@case("gossip-exchange")
def _(p: int, g: Given) -> Expected:
    found = run(stack(1, g["n"]), Gossip(p, degree=1), batch=p)
    steps = f.gossip_messages(p, g["t"])
    return {
        "bytes_sent": (steps * total(found, "wire"), "each"),
        "messages": (steps * total(found, "count"), "each"),
    }


@case("push-pull")
def _(p: int, g: Given) -> Expected:
    found = run(stack(1, g["n"]), ParameterServer(p - 1), batch=p - 1)
    sent = g["t"] * total(found, "wire")  # of a worker; the server answers them all
    return {"bytes_sent": (2 * (p - 1) * sent / p, "mean")}


@case("ring-all-reduce")
def _(p: int, g: Given) -> Expected:
    found = run(stack(1, g["n"]), Data(p), batch=p)
    return {"bytes_sent": (total(found, "wire"), "mean")}


@case("sharded-parameter-server")
def _(p: int, g: Given) -> Expected:
    found = run(stack(1, g["n"]), Data(p), batch=p)  # as many bytes as an all-reduce
    return {"bytes_sent": (g["t"] * total(found, "wire"), "mean")}


# Compressed


def compressed(p: int, g: Given, how: Compress, n: int) -> Expected:
    found = run(stack(1, n), Data(p) * how, batch=p)
    return {
        "payload": (g["t"] * total(found, "payload"), "each"),
        "calls": (g["t"] * total(found, "count"), "each"),
    }


@case("top-k-error-feedback")
def _(p: int, g: Given) -> Expected:
    return compressed(p, g, Compress("top-k", ratio=0.01), 100 * g["k"])


@case("qsgd")
def _(p: int, g: Given) -> Expected:
    return compressed(p, g, Compress("qsgd", bucket=g["c"]), g["n"])


@case("one-bit-sgd")
def _(p: int, g: Given) -> Expected:
    return compressed(p, g, Compress("one-bit"), g["n"])


@case("powersgd")
def _(p: int, g: Given) -> Expected:
    from exemplars.workload import characters

    parameters = list(characters.model().parameters())
    layers = [
        Layer(
            str(tuple(t.shape)),
            Work(layers=1, shared=t.numel(), flops=1.0),
            matrix=(t.shape[0], t.shape[1]) if t.dim() == 2 else (0, 0),
        )
        for t in parameters
    ]
    model = Model("characters", "cnn", tuple(layers))
    found = run(model, Data(p) * Compress("powersgd", rank=g["k"]), batch=p)
    return {
        "payload": (g["t"] * total(found, "payload"), "each"),
        "calls": (g["t"] * total(found, "count"), "each"),
    }


# Inside layers


@case("tensor-parallel-column-row")
def _(p: int, g: Given) -> Expected:
    whole = transformer(
        "gpt",
        layers=g["l"],
        width=g["h"],
        heads=g["heads"],
        vocabulary=2,
        tokens=g["tokens"],
    )
    model = replace(whole, layers=whole.layers[1:-1], tied=0)
    found = run(model, Tensor(p))
    return {
        "payload": (total(found, "payload"), "each"),
        "forward_calls": (total(found, "count") / 2, "each"),
        "backward_calls": (total(found, "count") / 2, "each"),
    }


def four_networks() -> Model:
    """The exemplars' four networks, layer by layer, from their shapes alone."""
    from exemplars.workload import NARROW, convs

    layers = []
    for conv, x, _y in convs():
        item = Item(
            kernel=conv.kernel_size[0],
            stride=conv.stride[0],
            bias=conv.bias is not None,
            norm=conv.bias is None,  # a norm makes a bias pointless
        )
        layer, _ = convolution(tuple(x), item, conv.out_channels)
        layers.append(layer if conv.in_channels >= NARROW else unchannelled(layer))
    return Model("four", "cnn", tuple(layers))


@case("filter")
def _(p: int, g: Given) -> Expected:
    found = run(four_networks(), Filter(p), batch=2)
    return {
        "gathers": (total(found, "count", op="all_gather"), "each"),
        "gathered": (total(found, "payload", op="all_gather"), "each"),
        "sums": (total(found, "count", op="all_reduce"), "each"),
        "summed": (total(found, "payload", op="all_reduce"), "each"),
        "held": (found.memory.parameters, "most"),
    }


@case("channel")
def _(p: int, g: Given) -> Expected:
    found = run(four_networks(), Channel(p), batch=2)
    return {
        "gathers": (total(found, "count", op="all_gather"), "each"),
        "gathered": (total(found, "payload", op="all_gather"), "each"),
        "sums": (total(found, "count", op="all_reduce"), "each"),
        "summed": (total(found, "payload", op="all_reduce"), "each"),
        "held": (found.memory.parameters, "most"),
    }


@case("spatial")
def _(p: int, g: Given) -> Expected:
    found = run(four_networks(), Spatial(p), batch=2)
    return {
        "halo": (total(found, "wire", op="p2p"), "most"),
        "sums": (total(found, "count", op="all_reduce"), "each"),
        "summed": (total(found, "payload", op="all_reduce"), "each"),
    }


@case("data-filter")
def _(p: int, g: Given) -> Expected:
    d, q = p // g["q"], g["q"]
    share = -(-g["s"] // d)  # of the group with most samples
    found = run(four_networks(), Data(d) * Filter(q), batch=share * d)
    norms = 2 * (2 * g["v"] + g["u"]) * g["b"]  # between groups: one batch norm
    expected: Expected = {}
    if q > 1:
        dx = total(found, "payload", "Filter", "all_reduce")
        expected["summed"] = (dx + norms, "most")
        expected["gathered"] = (total(found, "payload", "Filter", "all_gather"), "most")
    if d > 1:
        expected["exchanged"] = (total(found, "payload", "Data"), "most")
    return expected


@case("data-spatial")
def _(p: int, g: Given) -> Expected:
    d, q = p // g["q"], g["q"]
    share = -(-g["s"] // d)
    found = run(four_networks(), Data(d) * Spatial(q), batch=share * d)
    return {
        "halo": (total(found, "wire", op="p2p"), "most"),
        "sums": (total(found, "count", op="all_reduce"), "each"),
        "summed": (total(found, "payload", op="all_reduce"), "each"),
    }


# Within a sample; experts and tables


def attention(p: int, tokens: int, heads: int, head: int, method: Any) -> Prediction:
    """One attention cut into p uneven parts: `predict` would ask for even ones."""
    work = Work(
        layers=1,
        flops=1.0,
        attentions=1,
        queries=2 * tokens * heads * head,
        pairs=2 * tokens * heads * head,
    )
    model = Model("attention", "transformer", (Layer("attention", work),))
    strategy = Strategy.of(Context(p, method))
    made = mesh(model, strategy, CLUSTER, TRAIN)
    found = run(model, Data(1))
    return replace(found, collectives=tuple(inside(sites_of(model, made, CLUSTER)[0])))


@case("ring-attention")
def _(p: int, g: Given) -> Expected:
    found = attention(p, g["n"], 1, g["h"], "ring")
    whole = 2 * g["n"] * g["h"] * g["b"]
    forward = whole * (p - 1) / p
    assert math.isclose(total(found, "wire"), 2 * forward + whole)
    return {"forward": (forward, "mean"), "backward": (forward + whole, "mean")}


@case("ulysses")
def _(p: int, g: Given) -> Expected:
    found = attention(p, g["n"], g["heads"], g["h"], "ulysses")
    return {
        "payload": (total(found, "payload"), "mean"),
        "calls": (total(found, "count"), "each"),
    }


@case("expert-parallel")
def _(p: int, g: Given) -> Expected:
    tokens, seats = g["n"], p * g["e"] * g["c"]
    routed = g["k"] * tokens * g["h"]
    work = Work(layers=1, flops=1.0, routes=1, routed=routed, experts=p * g["e"])
    model = Model("moe", "transformer", (Layer("moe", work),), experts=p * g["e"])
    strategy = Expert(p, capacity=seats / (g["k"] * tokens))
    found = run(model, strategy, batch=p)
    return {
        "payload": (total(found, "payload", "Expert"), "each"),
        "calls": (total(found, "count", "Expert") / 2, "each"),
        "backward_calls": (total(found, "count", "Expert") / 2, "each"),
    }


@case("embedding-sharding")
def _(p: int, g: Given) -> Expected:
    elements = g["l"] * g["h"]
    work = Work(
        layers=1,
        flops=1.0,
        tables=g["rows"] * elements,
        lookups=elements,
        indices=g["l"],
    )
    layers = (Layer("tables", work),)
    model = Model("tables", "recommender", layers, tables=g["l"])
    found = run(model, Embedding(p), batch=p)
    back = g["s"] / p * elements * g["b"]
    both = g["s"] / p * total(found, "payload", "Embedding")
    return {
        "forward": (both - back, "mean"),
        "backward": (back, "mean"),
        "state": (found.memory.parameters, "mean"),
    }


# Pipelines: each stage is a rank


def stages_of(
    p: int, g: Given, kind: Any, width: int
) -> tuple[list[float], Prediction]:
    """Bytes that each stage sends, and the prediction."""
    elements = g["a"] // width
    model = stack(p, 1, passed=elements, inputs=elements, kept=elements)
    train = replace(TRAIN, batch=g["m"], micro_batch=1)
    strategy = Strategy.of(Pipeline(p, kind))
    made = mesh(model, strategy, CLUSTER, train)
    sent = [
        sum(c.wire for c in inside(site)) for site in sites_of(model, made, CLUSTER)
    ]
    return sent, predict(model, strategy, CLUSTER, train)


PIPELINES = {
    "gpipe": ("gpipe", "in_flight"),
    "one-f-one-b": ("1f1b", "in_flight"),
    "weight-stashing": ("stashing", "versions"),
    "layer-partition": ("gpipe", ""),
}


@pytest.mark.parametrize("name", PIPELINES)
@pytest.mark.parametrize("backend", ["gloo", "dry"])
def test_every_stage_sends_and_holds_what_was_counted(name: str, backend: str) -> None:
    kind, held = PIPELINES[name]
    record = read(ROOT, backend, name)
    assert record is not None
    for made in record["runs"]:
        p, g = made["p"], made["given"]
        if p == 1:
            continue
        sent, found = stages_of(p, g, kind, 8)
        schedule = mesh(
            found.model,
            found.strategy,
            CLUSTER,
            replace(TRAIN, batch=g["m"], micro_batch=1),
        ).schedule
        for rank in made["ranks"]:
            r, measured = rank["rank"], rank["measured"]
            assert sent[r] == measured["bytes_sent"], (p, r)
            if held == "in_flight":
                assert core.in_flight(schedule, r) == measured[held], (p, r)
            elif held:
                assert core.stash(schedule, r) == measured[held], (p, r)


@pytest.mark.parametrize("backend", ["gloo", "dry"])
def test_three_axes_at_once_move_what_was_counted(backend: str) -> None:
    record = read(ROOT, backend, "three-d")
    assert record is not None
    for made in record["runs"]:
        p, g = made["p"], made["given"]
        if p == 1:
            continue
        elements = g["a"] // g["e"]
        work = Work(
            layers=1,
            weights=(2 * g["h"] + 1) * g["u"],
            shared=g["h"],
            flops=1.0,
            passed=elements,
            entries=1,
            entered=elements,
            exits=1,
            left=elements,
        )
        layers = tuple(Layer(f"stage {i}", work) for i in range(g["q"]))
        model = Model("3d", "transformer", layers, heads=g["k"], kv_heads=g["k"])
        strategy = Data(g["d"]) * Pipeline(g["q"]) * Tensor(g["k"])
        found = run(model, strategy, batch=g["m"] * g["d"], micro_batch=1)
        for rank in made["ranks"]:
            measured = rank["measured"]
            if g["k"] > 1:
                assert total(found, "payload", "Tensor") == measured["tensor_bytes"]
                assert total(found, "count", "Tensor") == measured["tensor_calls"]
            if rank["rank"] == 0 and g["q"] > 1:
                assert total(found, "wire", "Pipeline") == measured["sent"]
        if g["d"] > 1 and backend == "gloo":
            # The loss travels with the gradients: one element more.
            counted = [rank["measured"]["data_bytes"] for rank in made["ranks"]]
            predicted = total(found, "payload", "Data") + g["e"]
            assert sum(counted) == predicted * p


def runs(name: str, backend: str) -> Iterator[dict[str, Any]]:
    """The recorded runs of more than one rank."""
    record = read(ROOT, backend, name)
    assert record is not None, f"no {backend} record of {name}"
    yield from (made for made in record["runs"] if made["p"] > 1)


@pytest.mark.parametrize("name", CASES)
def test_a_prediction_is_what_gloo_counted(name: str) -> None:
    seen = 0
    for made in runs(name, "gloo"):
        expected = CASES[name](made["p"], made["given"])
        for claim, (predicted, of) in expected.items():
            counted = [rank["measured"][claim] for rank in made["ranks"]]
            where = (name, claim, made["p"], predicted, counted)
            if of == "each":
                assert all(figure == predicted for figure in counted), where
            elif of == "most":
                assert max(counted) == predicted, where
            else:
                assert math.isclose(sum(counted), predicted * made["p"]), where
            seen += 1
    assert seen


@pytest.mark.parametrize("name", CASES)
def test_a_prediction_is_what_a_dry_run_counted(name: str) -> None:
    """Dry runs hold three ranks: what every rank has can be compared, and rank 0."""
    seen = 0
    for made in runs(name, "dry"):
        expected = CASES[name](made["p"], made["given"])
        for claim, (predicted, of) in expected.items():
            if of == "mean":
                continue
            counted = [rank["measured"][claim] for rank in made["ranks"]]
            where = (name, claim, made["p"], predicted, counted)
            if of == "each":
                assert all(figure == predicted for figure in counted), where
            else:
                assert max(counted) == predicted, where
            seen += 1
    assert seen or all(of == "mean" for _, of in expected.values())


# Parameters, operations and saved activations, against torch itself


def saved_bytes(module: Any, x: Any) -> int:
    """Bytes that autograd keeps for backward, each storage once, without parameters."""
    import torch

    own = {p.untyped_storage().data_ptr() for p in module.parameters()}
    kept: dict[int, tuple[Any, int]] = {}

    def pack(t: Any) -> Any:
        storage = t.untyped_storage()
        if storage.data_ptr() not in own:
            kept[storage.data_ptr()] = (t, storage.nbytes())
        return t

    with torch.autograd.graph.saved_tensors_hooks(pack, lambda t: t):
        module(x)
    return sum(size for _, size in kept.values())


def gpt_block(width: int, heads: int) -> Any:
    """A GPT's layer in plain torch, with its three dropouts."""
    import torch
    from torch import nn
    from torch.nn import functional as F

    def dropout(x: Any) -> Any:
        """With a mask of bytes, as on a GPU; a CPU would keep numbers."""
        return torch.native_dropout(x, 0.1, True)[0]

    class Block(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.norm1, self.norm2 = nn.LayerNorm(width), nn.LayerNorm(width)
            self.qkv = nn.Linear(width, 3 * width)
            self.out = nn.Linear(width, width)
            self.up = nn.Linear(width, 4 * width)
            self.down = nn.Linear(4 * width, width)

        def forward(self, x: Any) -> Any:
            q, k, v = (
                t.unflatten(-1, (heads, -1)).transpose(1, 2)
                for t in self.qkv(self.norm1(x)).chunk(3, dim=-1)
            )
            scores = (q @ k.transpose(-1, -2)) / (width // heads) ** 0.5
            weights = dropout(scores.softmax(-1))
            y = self.out((weights @ v).transpose(1, 2).flatten(2))
            x = x + dropout(y)
            y = self.down(F.gelu(self.up(self.norm2(x))))
            return x + dropout(y)

    return Block()


BATCH, TOKENS, WIDTH, HEADS = 3, 32, 48, 4


def layer_of_gpt() -> Work:
    made = transformer(
        "gpt", layers=1, width=WIDTH, heads=HEADS, vocabulary=2, tokens=TOKENS
    )
    return made.layers[1].work


def test_a_layer_saves_the_activations_that_torch_saves() -> None:
    import torch

    x = torch.randn(BATCH, TOKENS, WIDTH, requires_grad=True)
    recipe = replace(TRAIN, precision=PRECISIONS["fp32"]).recipe()
    predicted = core.kept_bytes(layer_of_gpt(), Cut(micro=BATCH), recipe)
    # Korthikanti et al. leave out each norm's mean and deviation of a token.
    vectors = 2 * 2 * BATCH * TOKENS * 4
    assert saved_bytes(gpt_block(WIDTH, HEADS), x) == predicted + vectors


def counted_flops(module: Any, x: Any) -> int:
    from torch.utils.flop_counter import FlopCounterMode

    with FlopCounterMode(display=False) as counter:
        module(x)
    return counter.get_total_flops()


def test_a_layer_has_the_operations_and_parameters_that_torch_counts() -> None:
    import torch

    block, work = gpt_block(WIDTH, HEADS), layer_of_gpt()
    counted = counted_flops(block, torch.randn(BATCH, TOKENS, WIDTH))
    assert counted == BATCH * (work.flops + work.scores)
    held = sum(p.numel() for p in block.parameters())
    assert held == work.weights + work.shared


def test_convolutions_have_the_operations_and_parameters_that_torch_counts() -> None:
    import torch

    from exemplars.workload import SAMPLES, cnns

    model, counted, held = four_networks(), 0, 0
    for net, sample in zip(cnns("cpu"), SAMPLES, strict=True):
        counted += counted_flops(net, torch.zeros(1, *sample, dtype=torch.double))
        held += sum(p.numel() for p in net.parameters())
    assert counted == model.flops
    assert held == model.parameters


def test_a_convolution_saves_the_activations_that_torch_saves() -> None:
    import torch
    from torch import nn

    items = [Item(kernel=3, norm=True, bias=False), Item(kernel=3, stride=2)]
    net = nn.Sequential(
        nn.Conv2d(3, 8, 3, padding=1, bias=False),
        nn.BatchNorm2d(8, track_running_stats=False),
        nn.ReLU(),
        nn.Conv2d(8, 16, 3, stride=2, padding=1),
        nn.ReLU(),
    )
    first, shape = convolution((3, 9, 12), items[0], 8)
    second, _ = convolution(shape, items[1], 16)
    x = torch.randn(BATCH, 3, 9, 12, requires_grad=True)
    kept = first.work.kept + second.work.kept
    # The last map is the next layer's to keep; a norm has a mean and a deviation.
    more = BATCH * second.work.y + 2 * 8
    assert saved_bytes(net, x) == 4 * (BATCH * kept + more)


def test_a_residual_block_and_a_pool_save_the_activations_that_torch_saves() -> None:
    import torch
    from torch import nn

    from atlas.oracle.network import network

    def convolved(c: int, f: int, k: int, stride: int) -> Any:
        norm = nn.BatchNorm2d(f, track_running_stats=False)
        return nn.Sequential(nn.Conv2d(c, f, k, stride, k // 2, bias=False), norm)

    class Block(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.body = nn.Sequential(
                convolved(8, 4, 1, 1),
                nn.ReLU(),
                convolved(4, 4, 3, 2),
                nn.ReLU(),
                convolved(4, 16, 1, 1),
            )
            self.short = convolved(8, 16, 1, 2)

        def forward(self, x: Any) -> Any:
            return torch.relu(self.body(x) + self.short(x))

    items = [
        Item(conv=8, kernel=3),
        Item(bottleneck=4, stride=2),
        Item(pool="average", kernel=2, stride=2),
    ]
    model = network("block", (3, 12, 8), items)
    first = nn.Sequential(nn.Conv2d(3, 8, 3, padding=1), nn.ReLU())
    net = nn.Sequential(first, Block(), nn.AvgPool2d(2))
    x = torch.randn(BATCH, 3, 12, 8, requires_grad=True)
    kept = sum(layer.work.kept for layer in model.layers)
    vectors = 2 * (4 + 4 + 16 + 16)  # mean and deviation of each norm's channels
    assert saved_bytes(net, x) == 4 * (BATCH * kept + vectors)
    held = sum(p.numel() for p in net.parameters())
    assert model.parameters == held
