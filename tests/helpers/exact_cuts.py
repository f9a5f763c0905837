"""Cases: layers, samples and stages that are cut."""

import math
from collections.abc import Iterator
from dataclasses import replace
from typing import Any, Literal

from by_name import f
from exact import (
    CLUSTER,
    TRAIN,
    Expected,
    Given,
    Most,
    by_stage,
    case,
    four_networks,
    run,
    share,
    spread,
    stack,
    total,
)

from atlas.planner import computing, holding
from atlas.planner.blocks import block_work
from atlas.planner.mesh import mesh
from atlas.planner.model import Layer, Model
from atlas.planner.network import Item, network
from atlas.planner.prediction import Prediction
from atlas.planner.records import Block, Bytes, Work
from atlas.planner.strategy import (
    Axis,
    Channel,
    Context,
    Data,
    Embedding,
    Expert,
    Filter,
    Pipeline,
    ScheduleName,
    Spatial,
    Strategy,
    Tensor,
)
from atlas.planner.traffic import inside, sites_of
from atlas.planner.transformer import transformer

# Inside layers


@case("tensor-parallel-column-row")
def _(p: int, g: Given) -> Expected:
    layers, tokens, width = g["layers"], g["tokens"], g["width"]
    whole = transformer(
        "gpt",
        layers=layers,
        width=width,
        heads=g["heads"],
        vocabulary=2,
        tokens=tokens,
        dropout=0,
    )
    model = replace(whole, layers=whole.layers[1:-1], tied=0)
    found = run(model, Tensor(p), batch=g["batch"])
    # Korthikanti et al. leave out each norm's mean and deviation of a token, and
    # masks; and the loss keeps the output.
    vectors = layers * 2 * 2 * g["batch"] * tokens * g["itemsize"]
    masks = layers * tokens**2
    output = g["batch"] * tokens * width * g["itemsize"]
    return {
        "calls.all_reduce.wire": total(found, "wire"),
        "memory.peak.activations": found.memory.activations + vectors + masks + output,
        "payload": total(found, "payload"),
        "forward_calls": total(found, "count") / 2,
        "backward_calls": total(found, "count") / 2,
        "held": found.memory.parameters,
        "memory.peak.parameters": found.memory.parameters,
    }


def convolved(g: Given, axis: Filter | Channel) -> Expected:
    found = run(four_networks(), axis, batch=g["batch"])
    return {
        "gathers": total(found, "count", op="all_gather"),
        "gathered": total(found, "payload", op="all_gather"),
        "sums": total(found, "count", op="all_reduce"),
        "summed": total(found, "payload", op="all_reduce"),
        "calls.all_gather.wire": total(found, "wire", op="all_gather"),
        "calls.all_reduce.wire": total(found, "wire", op="all_reduce"),
        "held": Most(found.memory.parameters),
        "memory.peak.parameters": Most(found.memory.parameters),
        "memory.peak.gradients": Most(found.memory.gradients),
    }


def peak(g: Given, axis: Filter | Channel, copied: float = 0.0) -> float:
    """Activations when the third of four networks, the deepest, has gone forward."""
    *others, third = three_networks()
    found = run(third, axis, batch=g["batch"])
    # The images and maps of networks before are kept to be compared.
    before = sum(net.layers[0].work.inputs + sum(maps(net)) for net in others)
    # The last map is the loss's to keep; a norm has a mean and a deviation.
    vectors = 2 * sum(layer.work.normed for layer in third.layers)
    return (
        found.memory.activations
        + g["batch"] * 8 * (before + third.layers[-1].work.passed)
        + 8 * vectors
        + copied
    )


def copied_peak(
    strategy: Strategy | Axis, batch: int, rows: int | None = None
) -> float:
    """The same where each map is convolved as a copy, and norms are spelled out."""
    *others, third = three_networks(rows)
    train = replace(TRAIN, batch=batch)
    samples = computing.samples_of(
        mesh(third, Strategy.of(strategy), CLUSTER, train).cut
    )
    # A ReLU keeps its map, a convolution the copy; only copies are kept of images.
    before = sum(sum(maps(net)) for net in others)
    copies = sum(layer.work.inputs for layer in third.layers[1:])
    # A norm keeps its sums and their count, a mean, a deviation and a scale.
    vectors = sum(5 * a.work.normed + a.work.norms for a in third.layers)
    return (
        run(third, strategy, batch=batch).memory.activations
        + 8 * samples * (before + copies + third.layers[-1].work.passed)
        + 8 * vectors
    )


def three_networks(rows: int | None = None) -> list[Model]:
    """Of the exemplars' four, those up to the deepest; of images with so many rows."""
    from exemplars.workload import SAMPLES, cnns

    pairs = [*zip(cnns("meta"), SAMPLES, strict=True)][:3]
    return [
        network("flat", (channels, rows or height, width), [*items(net)])
        for net, (channels, height, width) in pairs
    ]


def items(net: Any) -> Iterator[Item]:
    """A network's list, as its paper would print it."""
    from torch import nn

    from exemplars.workload import Residual

    for part in net:
        if isinstance(part, Residual):
            conv: Any = part.first[0]
            yield Item(basic=conv.out_channels, stride=conv.stride[0])
        elif isinstance(part, nn.Conv2d):
            bias = part.bias is not None  # a norm makes a bias pointless
            filters, stride = part.out_channels, part.stride[0]
            yield Item(conv=filters, stride=stride, bias=bias, norm=not bias)


def maps(net: Model) -> list[int]:
    """What its ReLUs leave."""
    return [a.work.passed for a in net.layers if not a.name.endswith("shortcut")]


@case("filter")
def _(p: int, g: Given) -> Expected:
    axis = Filter(p)
    return {**convolved(g, axis), "memory.peak.activations": peak(g, axis)}


@case("channel")
def _(p: int, g: Given) -> Expected:
    axis, (*others, deepest) = Channel(p), three_networks()
    # The channels that a rank reads are a copy, beside the whole map.
    first = sum(len(net.layers) for net in others)
    layers = four_networks().layers[first : first + len(deepest.layers)]
    third = replace(four_networks(), layers=layers)
    own = total(run(third, axis, batch=g["batch"]), "payload", op="all_gather")
    return {**convolved(g, axis), "memory.peak.activations": Most(peak(g, axis, own))}


@case("data-filter")
def _(p: int, g: Given) -> Expected:
    from exemplars.workload import SAMPLES

    q = f.group_ranks(p)
    d = p // q
    batch = d * share(d, 0, g["batch"])  # as if all groups had the largest's samples
    found = run(four_networks(), Data(d) * Filter(q), batch=batch)
    # Between groups there is one batch norm.
    norms = 2 * (2 * g["norm_channels"] + g["norms"]) * g["itemsize"]
    # A layer reads its map where it is, and a group's images are views of them all.
    maps_read = sum(a.work.inputs for a in three_networks()[-1].layers)
    images = sum(math.prod(shape) for shape in SAMPLES)
    read = 8 * (g["batch"] * images - batch // d * maps_read)
    expected: Expected = {
        "group": q,
        "memory.peak.parameters": Most(found.memory.parameters),
        "memory.peak.gradients": Most(found.memory.gradients),
        "memory.peak.activations": Most(copied_peak(Data(d) * Filter(q), batch) + read),
    }
    if q > 1:
        dx = total(found, "payload", "Filter", "all_reduce")
        expected["summed"] = Most(dx + norms)
        expected["gathered"] = Most(total(found, "payload", "Filter", "all_gather"))
    if d > 1:
        expected["exchanged"] = Most(total(found, "payload", "Data"))
    return expected


# Inside samples


def bordered(found: Prediction) -> Expected:
    return {
        "halo": Most(total(found, "wire", op="p2p")),
        "sums": total(found, "count", op="all_reduce"),
        "summed": total(found, "payload", op="all_reduce"),
        "messages": Most(total(found, "count", op="p2p")),
        "calls.send.count": Most(total(found, "count", op="p2p")),
        "calls.all_reduce.wire": total(found, "wire", op="all_reduce"),
        "memory.peak.parameters": found.memory.parameters,
        "memory.peak.gradients": found.memory.gradients,
    }


def rows_peak(strategy: Strategy, batch: int) -> Most:
    """Activations of a rank with most rows.

    It has whole parts of four rows, as of 36: only the last part of 35 has three. A
    rank that shares its samples with nobody has that part too.
    """
    from exemplars.workload import ROWS, SAMPLES

    spatial, height = strategy.length(Spatial), SAMPLES[0][1]
    rows = height if spatial == 1 else ROWS * -(-height // ROWS)
    third = three_networks(rows)[-1]
    # Below the rows that a strided window sees, a row of zeros is kept.
    zeros = sum(a.work.halo for a in third.layers if a.work.halos == 1)
    if spatial == 1:  # zeros are in the place of the neighbors' rows, too
        zeros += sum(a.work.halo for a in third.layers)
    samples = batch * spatial // strategy.ranks
    return Most(copied_peak(strategy, batch, rows) + 8 * samples * zeros)


@case("spatial")
def _(p: int, g: Given) -> Expected:
    axis, batch = Spatial(p), g["batch"]
    return {
        **bordered(run(four_networks(), axis, batch=batch)),
        "memory.peak.activations": rows_peak(Strategy.of(axis), batch),
    }


@case("data-spatial")
def _(p: int, g: Given) -> Expected:
    q = f.group_ranks(p)
    d = p // q
    batch = d * share(d, 0, g["batch"])
    found = run(four_networks(), Data(d) * Spatial(q), batch=batch)
    # There is one batch norm of all ranks' rows and samples, even if no sample is cut.
    norms = run(four_networks(), Spatial(2))
    payload = total(norms, "payload", what="norms")

    def agreed(field: str) -> float:
        """Of what is summed beside norms."""
        every = total(found, field, op="all_reduce")
        return every - total(found, field, what="norms")

    return {
        **bordered(found),
        "group": q,
        "sums": agreed("count") + total(norms, "count", what="norms"),
        "summed": agreed("payload") + payload,
        "calls.all_reduce.wire": agreed("wire") + 2 * (p - 1) / p * payload,
        "memory.peak.activations": rows_peak(Data(d) * Spatial(q), batch),
    }


def attention(p: int, block: Block, method: Literal["ring", "ulysses"]) -> Prediction:
    """One attention cut into p uneven parts: `predict` would ask for even ones."""
    # Alone: norms and matrices of the layer, which keep their inputs too, are left out.
    work = block_work(block)._replace(kept=0)
    model = Model("attention", "transformer", (Layer("attention", work),))
    train = replace(TRAIN, flash=method == "ring")
    made = mesh(model, Strategy.of(Context(p, method)), CLUSTER, train)
    return replace(
        run(model, Data(1)),
        collectives=tuple(inside(sites_of(model, made, CLUSTER)[0])),
        memory=Bytes(activations=holding.kept_bytes(work, made.cut, made.recipe)),
    )


def headed(tokens: int, heads: int, head: int) -> Block:
    """A transformer's layer without a perceptron."""
    width = heads * head
    return Block(tokens, width, heads, head, heads, ffn=0, vocabulary=0, dropout=0)


@case("ring-attention")
def _(p: int, g: Given) -> Expected:
    n, h, b = g["tokens"], g["width"], g["itemsize"]
    found = attention(p, headed(n, g["heads"], g["head_width"]), "ring")
    whole = 2 * n * h * b
    forward = whole * (p - 1) / p
    assert math.isclose(total(found, "wire"), 2 * forward + whole)
    there = [f.ring_attention_forward(p, r, n, h, b) for r in range(p)]
    back = [f.ring_attention_backward(p, r, n, h, b) for r in range(p)]
    tokens = [f.zigzag_tokens(p, r, n) for r in range(p)]
    kept = spread(found.memory.activations, [4 * t * h * b for t in tokens])
    return {
        "forward": spread(forward, there),
        "backward": spread(forward + whole, back),
        "calls.send.count": total(found, "count"),
        # Of four that are kept, queries, keys and values are its tokens: what it is
        # given. And of each token and head it keeps the softmax's normalizer.
        "memory.peak.tokens": lambda r: kept(r) * 3 / 4,
        "memory.peak.activations": lambda r: kept(r) / 4 + tokens[r] * g["heads"] * b,
        "memory.peak.gradients": lambda r: kept(r) * 3 / 4,  # of the tokens
    }


@case("ulysses")
def _(p: int, g: Given) -> Expected:
    n, heads, h, b = g["tokens"], g["heads"], g["head_width"], g["itemsize"]
    found = attention(p, headed(n, heads, h), "ulysses")
    parts = [f.ulysses_payload(p, r, n, heads, h, b) for r in range(p)]
    handed = spread(total(found, "payload"), parts)
    away = total(found, "wire") / total(found, "payload")
    own = [f.chunk(heads, p, r) for r in range(p)]
    kept = spread(found.memory.activations, [(4 * h + n) * n * k * b for k in own])
    # The outputs are for the next layer to keep; a mask has a byte for each pair.
    outputs, mask = [n * h * k * b for k in own], n**2
    inputs = found.memory.activations - (h + n) * n * heads * b / p
    return {
        "payload": handed,
        "held": own.__getitem__,
        "calls": total(found, "count"),
        "calls.all_to_all.wire": lambda r: away * handed(r),
        "memory.peak.activations": lambda r: kept(r) - outputs[r] + mask,
        # Of queries, keys and values, by tokens again.
        "memory.peak.gradients": spread(
            inputs, [3 * heads * h * b * f.chunk(n, p, r) for r in range(p)]
        ),
    }


# Experts and tables


@case("expert-parallel")
def _(p: int, g: Given) -> Expected:
    tokens, width, choices = g["tokens"], g["width"], g["choices"]
    routed = choices * tokens * width
    every = p * g["experts_per_rank"]
    work = Work(
        layers=1,
        flops=1.0,
        routes=1,
        routed=routed,
        shared=every * width,  # the router, which every rank has
        experts=every * 2 * width * g["hidden"],
        kept=routed,
        kept_cut=2 * routed,
        seat_kept=routed,
        seat_kept_cut=2 * routed,
    )
    model = Model("moe", "transformer", (Layer("moe", work),), experts=every)
    strategy = Expert(p, capacity=every * g["seats"] / (choices * tokens))
    found = run(model, strategy, batch=p)
    # Autograd keeps a token, its scores and its sum; of each choice the index, weight
    # and seat, what was sent, and what came back.
    router = every + 2 * width + choices * (3 + 2 * width)
    return {
        "payload": total(found, "payload", "Expert"),
        "calls": total(found, "count", "Expert") / 2,
        "backward_calls": total(found, "count", "Expert") / 2,
        "calls.all_to_all.wire": total(found, "wire", "Expert"),
        "memory.peak.parameters": found.memory.parameters,
        "memory.peak.activations": found.memory.activations
        + tokens * router * g["itemsize"],
        # Tokens have gradients too, beside parameters.
        "memory.peak.gradients": found.memory.gradients
        + tokens * width * g["itemsize"],
    }


@case("embedding-sharding")
def _(p: int, g: Given) -> Expected:
    batch, tables, b = g["batch"], g["tables"], g["itemsize"]
    row = tables * g["width"]  # what a sample reads
    work = Work(
        layers=1,
        flops=1.0,
        tables=g["table_rows"] * row,
        kept=row,
        lookups=row,
        indices=tables,
    )
    layers = (Layer("tables", work),)
    model = Model("tables", "recommender", layers, tables=tables)
    found = run(model, Embedding(p), batch=p)
    sample = found.memory.activations + 8  # and its label
    table = 8 * (batch + 1)  # who asks for which row
    back = batch / p * row * b
    both = batch / p * total(found, "payload", "Embedding")
    sizes = {name: g[name] for name in ("tables", "width", "itemsize")}
    there = [f.embedding_forward_bytes(p, r, batch, **sizes) for r in range(p)]
    home = [f.embedding_backward_bytes(p, r, batch, **sizes) for r in range(p)]
    held = [
        row * g["table_rows"] * b // tables * f.chunk(tables, p, r) for r in range(p)
    ]
    return {
        "forward": spread(both - back, there),
        "backward": spread(back, home),
        "state": spread(found.memory.parameters, held),
        "dense": row * b,
        "memory.peak.activations": lambda r: (
            sample * share(p, r, batch) + table * share(p, r, tables)
        ),
    }


# Pipelines: each stage is a rank


def staged(
    p: int, g: Given, schedule: ScheduleName, own: int = 1
) -> tuple[Prediction, Expected]:
    """A pipeline of p stages; what each sends, and how often."""
    elements = g["activation_bytes"] // 8
    model = stack(p, own, passed=elements, inputs=elements, kept=elements)
    found = run(model, Pipeline(p, schedule), batch=g["microbatches"], micro_batch=1)
    calls = by_stage(found)
    sent = [sum(c.wire for c in stage) for stage in calls]
    often = [sum(c.count for c in stage) for stage in calls]
    return found, {
        "bytes_sent": sent.__getitem__,
        "calls.send.count": often.__getitem__,
    }


def held(found: Prediction, g: Given) -> Expected:
    """Micro-batches whose activations a stage keeps."""
    return {"in_flight": lambda r: found.stages[r].activations / g["activation_bytes"]}


@case("gpipe")
def _(p: int, g: Given) -> Expected:
    found, expected = staged(p, g, "gpipe")
    return {**expected, **held(found, g)}


@case("one-f-one-b")
def _(p: int, g: Given) -> Expected:
    found, expected = staged(p, g, "1f1b")
    return {**expected, **held(found, g)}


@case("weight-stashing")
def _(p: int, g: Given) -> Expected:
    width = g["activation_bytes"] // 8 // g["batch"]
    own = (width + 1) * width
    found, expected = staged(p, g, "stashing", own)
    stashed = [stage.parameters for stage in found.stages]
    versions = [parameters / (own * 8) for parameters in stashed]
    # A layer's input and output; and the output of the batch that has just gone back,
    # or at the end the loss's logarithms, with the labels and their total weight.
    kept = [2 * stage.activations + g["activation_bytes"] for stage in found.stages]
    kept[-1] += (g["batch"] + 1) * 8
    # The matrix of the first version counts as saved: only later ones are watched. The
    # first stage saves none, for nobody asks for the gradient of the data.
    kept[1:] = [activations + width**2 * 8 for activations in kept[1:]]
    return {
        **expected,
        "versions": versions.__getitem__,
        "staleness": lambda r: versions[r] - 1,
        # An update makes one version more, and then lets go of the oldest.
        "memory.peak.parameters": lambda r: stashed[r] + own * 8,
        "memory.peak.activations": kept.__getitem__,
    }


@case("layer-partition")
def _(p: int, g: Given) -> Expected:
    own = (g["width"] + 1) * g["width"]
    found, expected = staged(p, g, "gpipe", own)
    # Batches go one after the other. A layer's input and output; at the end, also
    # the loss's logarithms of all outputs, the labels, and their total weight.
    one = found.stages[0].activations / g["microbatches"]
    kept = [one + g["activation_bytes"]] * p
    kept[-1] += g["activation_bytes"] + (g["batch"] + 1) * g["itemsize"]
    return {
        **expected,
        "state": lambda r: found.stages[r].parameters,
        "memory.peak.parameters": lambda r: found.stages[r].parameters,
        "memory.peak.activations": lambda r: kept[r],
    }


@case("local-parallelism")
def _(p: int, g: Given) -> Expected:
    _, greedy = staged(p, g, "local")
    # A chunk is a pipeline of its own: who is not its first sends gradients back.
    chunks = [r * g["chunks"] // p for r in range(p)]
    _, backprop = staged(2, g, "gpipe")
    first = [r == 0 or chunks[r] != chunks[r - 1] for r in range(p)]
    back = backprop["bytes_sent"]
    assert callable(back)
    return {**greedy, "sent_back": lambda r: 0 if first[r] else back(1)}


@case("local-parallelism-overlapping")
def _(p: int, g: Given) -> Expected:
    # The gradients of other losses, but as many: what a pipeline sends.
    _, expected = staged(p, g, "gpipe")
    sent = expected["bytes_sent"]
    assert callable(sent)
    return {**expected, "sent_back": lambda r: sent(p - 1) if r > 0 else 0}


@case("three-d")
def _(p: int, g: Given) -> Expected:
    q, k = g["stages"], g["tensor_ranks"]
    k = k if p % (q * k) == 0 else 1
    q = q if p % q == 0 else 1
    d, m = p // (q * k), g["microbatches"]
    h, u, e = g["width"], g["hidden"], g["itemsize"]
    elements = g["activation_bytes"] // e
    work = Work(
        layers=1,
        weights=(2 * h + 1) * u,
        shared=h,
        flops=1.0,
        kept=elements,
        kept_cut=elements // h * u,
        passed=elements,
        entries=1,
        entered=elements,
        exits=1,
        left=elements,
    )
    layers = tuple(Layer(f"stage {i}", work) for i in range(q))
    model = Model("3d", "transformer", layers, heads=k, kv_heads=k)
    strategy = Data(d) * Pipeline(q, "gpipe") * Tensor(k)
    found = run(model, strategy, batch=m * d, micro_batch=1)
    stages = [[c for c in calls if c.axis == "Pipeline"] for calls in by_stage(found)]
    place = [r // k % q for r in range(p)]
    neurons = [elements // h * f.chunk(u, k, r % k) for r in range(p)]
    kept = [m * (elements + n) * e for n in neurons]
    expected: Expected = {
        "data": d,
        "stages": q,
        "tensor": k,
        "memory.peak.parameters": lambda r: found.stages[place[r]].parameters,
        "memory.peak.activations": spread(found.stages[0].activations, kept),
        "sent": lambda r: sum(c.wire for c in stages[place[r]]),
        "messages": lambda r: sum(c.count for c in stages[place[r]]),
    }
    if k > 1:
        expected["tensor_bytes"] = total(found, "payload", "Tensor")
        expected["tensor_calls"] = total(found, "count", "Tensor")
    if d > 1:
        # The loss travels with the gradients: one element more.
        parts = [
            f.three_d_data_bytes(p, r, g["stages"], g["tensor_ranks"], h, u, e)
            for r in range(p)
        ]
        expected["data_bytes"] = spread(total(found, "payload", "Data") + e, parts)
        expected["data_calls"] = total(found, "count", "Data")
    return expected
