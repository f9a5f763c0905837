"""Cases: layers, samples and stages that are cut."""

import math
from dataclasses import replace
from typing import Literal

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

from atlas.oracle import core
from atlas.oracle import formulas as f
from atlas.oracle.blocks import block_work
from atlas.oracle.mesh import mesh
from atlas.oracle.model import Layer, Model
from atlas.oracle.network import Item, network
from atlas.oracle.prediction import Prediction
from atlas.oracle.records import Block, Bytes, Work
from atlas.oracle.strategy import (
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
from atlas.oracle.traffic import inside, sites_of
from atlas.oracle.transformer import transformer

# Inside layers


@case("tensor-parallel-column-row")
def _(p: int, g: Given) -> Expected:
    from exemplars.parameter_distribution.intra_layer import (
        tensor_parallel_column_row as own,
    )

    layers, tokens = g["l"], own.TOKENS
    whole = transformer(
        "gpt",
        layers=layers,
        width=g["h"],
        heads=g["heads"],
        vocabulary=2,
        tokens=tokens,
        dropout=0,
    )
    model = replace(whole, layers=whole.layers[1:-1], tied=0)
    found = run(model, Tensor(p), batch=own.BATCH)
    # Korthikanti et al. leave out each norm's mean and deviation of a token, and
    # masks; and the loss keeps the output.
    vectors = layers * 2 * 2 * g["tokens"] * g["b"]
    masks, output = layers * tokens**2, g["tokens"] * g["h"] * g["b"]
    return {
        "calls.all_reduce.wire": total(found, "wire"),
        "memory.peak.activations": found.memory.activations + vectors + masks + output,
        "payload": total(found, "payload"),
        "forward_calls": total(found, "count") / 2,
        "backward_calls": total(found, "count") / 2,
        "memory.peak.parameters": found.memory.parameters,
    }


def convolved(axis: Filter | Channel) -> Expected:
    found = run(four_networks(), axis, batch=2)
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


def peak(axis: Filter | Channel, copied: float = 0.0) -> float:
    """Activations when the third of four networks, the deepest, has gone forward."""
    image = (3, 35, 6)
    *others, third = three_networks(image)
    found = run(third, axis, batch=2)
    # The maps of networks before are kept to be compared.
    before = sum(math.prod(image) + sum(maps(net)) for net in others)
    # The last map is the loss's to keep; a norm has a mean and a deviation.
    vectors = 2 * sum(layer.work.normed for layer in third.layers)
    return (
        found.memory.activations
        + 2 * 8 * (before + third.layers[-1].work.passed)
        + 8 * vectors
        + copied
    )


def copied_peak(strategy: Strategy | Axis, batch: int, rows: int = 35) -> float:
    """The same where each map is convolved as a copy, and norms are spelled out."""
    *others, third = three_networks((3, rows, 6))
    train = replace(TRAIN, batch=batch)
    samples = core.samples_of(mesh(third, Strategy.of(strategy), CLUSTER, train).cut)
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


def three_networks(image: tuple[int, ...]) -> list[Model]:
    """Of the exemplars' four, those up to the deepest."""
    plain = [Item(conv=f, stride=s) for f, s in ((8, 1), (8, 2), (16, 1), (16, 2))]
    blocks = ((1, 1, 1), (1, 2, 2))
    return [network("plain", image, plain), *(resnet(image, n) for n in blocks)]


def resnet(image: tuple[int, ...], blocks: tuple[int, ...]) -> Model:
    stages = zip(((8, 1), (16, 2), (24, 2)), blocks, strict=True)
    items = [Item(basic=f, stride=s, repeat=n) for (f, s), n in stages]
    return network("resnet", image, [Item(conv=8, norm=True, bias=False), *items])


def maps(net: Model) -> list[int]:
    """What its ReLUs leave."""
    return [a.work.passed for a in net.layers if not a.name.endswith("shortcut")]


@case("filter")
def _(p: int, g: Given) -> Expected:
    axis = Filter(p)
    return {**convolved(axis), "memory.peak.activations": peak(axis)}


@case("channel")
def _(p: int, g: Given) -> Expected:
    # The channels that a rank reads are a copy, beside the whole map.
    third = replace(four_networks(), layers=four_networks().layers[13:26])
    own = total(run(third, axis := Channel(p), batch=2), "payload", op="all_gather")
    return {**convolved(axis), "memory.peak.activations": Most(peak(axis, own))}


@case("data-filter")
def _(p: int, g: Given) -> Expected:
    d, q = p // g["q"], g["q"]
    batch = d * share(d, 0, g["s"])  # as if all groups had the largest's samples
    found = run(four_networks(), Data(d) * Filter(q), batch=batch)
    norms = 2 * (2 * g["v"] + g["u"]) * g["b"]  # between groups: one batch norm
    expected: Expected = {
        "memory.peak.parameters": Most(found.memory.parameters),
        "memory.peak.gradients": Most(found.memory.gradients),
        "memory.peak.activations": Most(copied_peak(Data(d) * Filter(q), batch)),
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
        "calls.send.count": Most(total(found, "count", op="p2p")),
        "calls.all_reduce.wire": total(found, "wire", op="all_reduce"),
        "memory.peak.parameters": found.memory.parameters,
        "memory.peak.gradients": found.memory.gradients,
    }


def rows_peak(strategy: Strategy | Axis, batch: int, samples: int) -> Most:
    """Activations of a rank with most rows.

    It has whole parts of four rows, as of 36: only the last part of 35 has three.
    """
    third = three_networks((3, 36, 6))[-1]
    # Below the rows that a strided window sees, a row of zeros is kept.
    zeros = sum(a.work.halo for a in third.layers if a.work.halos == 1)
    return Most(copied_peak(strategy, batch, rows=36) + 8 * samples * zeros)


@case("spatial")
def _(p: int, g: Given) -> Expected:
    return {
        **bordered(run(four_networks(), Spatial(p), batch=2)),
        "memory.peak.activations": rows_peak(Spatial(p), 2, samples=2),
    }


@case("data-spatial")
def _(p: int, g: Given) -> Expected:
    d, q = p // g["q"], g["q"]
    batch = d * share(d, 0, g["s"])
    found = run(four_networks(), Data(d) * Spatial(q), batch=batch)
    # Between groups there is one batch norm, of all ranks' rows.
    norms = 2 * (p - 1) / p * total(found, "payload", what="norms")
    rest = total(found, "wire", op="all_reduce") - total(found, "wire", what="norms")
    samples = batch // d
    return {
        **bordered(found),
        "calls.all_reduce.wire": norms + rest,
        "memory.peak.activations": rows_peak(Data(d) * Spatial(q), batch, samples),
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
        memory=Bytes(activations=core.kept_bytes(work, made.cut, made.recipe)),
    )


def headed(tokens: int, heads: int, head: int) -> Block:
    """A transformer's layer without a perceptron."""
    width = heads * head
    return Block(tokens, width, heads, head, heads, ffn=0, vocabulary=0, dropout=0)


@case("ring-attention")
def _(p: int, g: Given) -> Expected:
    from exemplars.parameter_distribution.within_sample import ring_attention as own

    n, h, b = g["n"], g["h"], g["b"]
    found = attention(p, headed(n, own.HEADS, own.WIDTH), "ring")
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
        # given. And of each token and head it keeps the softmax's normaliser.
        "memory.peak.tokens": lambda r: kept(r) * 3 / 4,
        "memory.peak.activations": lambda r: kept(r) / 4 + tokens[r] * own.HEADS * b,
        "memory.peak.gradients": lambda r: kept(r) * 3 / 4,  # of the tokens
    }


@case("ulysses")
def _(p: int, g: Given) -> Expected:
    n, heads, h, b = g["n"], g["heads"], g["h"], g["b"]
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
    tokens, seats = g["n"], p * g["e"] * g["c"]
    routed = g["k"] * tokens * g["h"]
    every = p * g["e"]
    work = Work(
        layers=1,
        flops=1.0,
        routes=1,
        routed=routed,
        shared=every * g["h"],  # the router, which every rank has
        experts=every * 2 * g["h"] * 2 * g["h"],  # twice as wide inside
        kept=routed,
        kept_cut=2 * routed,
        seat_kept=routed,
        seat_kept_cut=2 * routed,
    )
    model = Model("moe", "transformer", (Layer("moe", work),), experts=every)
    strategy = Expert(p, capacity=seats / (g["k"] * tokens))
    found = run(model, strategy, batch=p)
    # Autograd keeps a token, its scores and its sum; of each choice the index, weight
    # and seat, what was sent, and what came back.
    router = every + 2 * g["h"] + g["k"] * (3 + 2 * g["h"])
    return {
        "payload": total(found, "payload", "Expert"),
        "calls": total(found, "count", "Expert") / 2,
        "backward_calls": total(found, "count", "Expert") / 2,
        "calls.all_to_all.wire": total(found, "wire", "Expert"),
        "memory.peak.parameters": found.memory.parameters,
        "memory.peak.activations": found.memory.activations + tokens * router * g["b"],
        # Tokens have gradients too, beside parameters.
        "memory.peak.gradients": found.memory.gradients + tokens * g["h"] * g["b"],
    }


@case("embedding-sharding")
def _(p: int, g: Given) -> Expected:
    s, l, h, b = g["s"], g["l"], g["h"], g["b"]  # noqa: E741 (the symbol of the page)
    work = Work(
        layers=1,
        flops=1.0,
        tables=g["rows"] * l * h,
        kept=l * h,
        lookups=l * h,
        indices=l,
    )
    layers = (Layer("tables", work),)
    model = Model("tables", "recommender", layers, tables=l)
    found = run(model, Embedding(p), batch=p)
    sample = found.memory.activations + 8  # and its label
    table = 8 * (s + 1)  # who asks for which row
    back = s / p * l * h * b
    both = s / p * total(found, "payload", "Embedding")
    ranks = range(p)
    return {
        "forward": spread(
            both - back, [f.embedding_forward_bytes(p, r, s, l, h, b) for r in ranks]
        ),
        "backward": spread(
            back, [f.embedding_backward_bytes(p, r, s, l, h, b) for r in ranks]
        ),
        "state": spread(
            found.memory.parameters,
            [f.embedding_state_bytes(p, r, l, g["rows"], h, b) for r in ranks],
        ),
        "memory.peak.activations": lambda r: (
            sample * share(p, r, s) + table * share(p, r, l)
        ),
    }


# Pipelines: each stage is a rank


def staged(
    p: int, g: Given, schedule: ScheduleName, own: int = 1
) -> tuple[Prediction, Expected]:
    """A pipeline of p stages; what each sends, and how often."""
    elements = g["a"] // 8
    model = stack(p, own, passed=elements, inputs=elements, kept=elements)
    found = run(model, Pipeline(p, schedule), batch=g["m"], micro_batch=1)
    calls = by_stage(found)
    sent = [sum(c.wire for c in stage) for stage in calls]
    often = [sum(c.count for c in stage) for stage in calls]
    return found, {
        "bytes_sent": sent.__getitem__,
        "calls.send.count": often.__getitem__,
    }


def held(found: Prediction, g: Given) -> Expected:
    """Micro-batches whose activations a stage keeps."""
    return {"in_flight": lambda r: found.stages[r].activations / g["a"]}


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
    found, expected = staged(p, g, "stashing")
    versions = [stage.parameters / 8 for stage in found.stages]
    return {
        **expected,
        "versions": versions.__getitem__,
        "staleness": lambda r: versions[r] - 1,
    }


@case("layer-partition")
def _(p: int, g: Given) -> Expected:
    own = g["c"] * (g["h"] + 1) * g["h"]
    found, expected = staged(p, g, "gpipe", own)
    one = found.stages[0].activations / g["m"]  # batches go one after the other
    return {
        **expected,
        "state": lambda r: found.stages[r].parameters,
        "memory.peak.parameters": lambda r: found.stages[r].parameters,
        "memory.peak.activations": g["c"] * one + g["a"],  # of its layers; the output
    }


@case("local-parallelism")
def _(p: int, g: Given) -> Expected:
    _, greedy = staged(p, g, "local")
    # A chunk of c is a pipeline of its own: who is not its first sends gradients back.
    chunks = [r * g["c"] // p for r in range(p)]
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
    d, q, k, h, u, e = (g[name] for name in "dqkhue")
    elements = g["a"] // e
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
    found = run(model, strategy, batch=g["m"] * d, micro_batch=1)
    stages = [[c for c in calls if c.axis == "Pipeline"] for calls in by_stage(found)]
    place = [r // k % q for r in range(p)]
    # A rank's neurons are views of the whole stage, which lives as long as they do.
    uncut = run(model, Data(d) * Pipeline(q, "gpipe"), batch=g["m"] * d, micro_batch=1)
    neurons = [elements // h * f.chunk(u, k, r % k) for r in range(p)]
    kept = [g["m"] * (elements + n) * e for n in neurons]
    expected: Expected = {
        "memory.peak.parameters": lambda r: uncut.stages[place[r]].parameters,
        "memory.peak.activations": spread(found.stages[0].activations, kept),
        "sent": lambda r: sum(c.wire for c in stages[place[r]]),
        "messages": lambda r: sum(c.count for c in stages[place[r]]),
    }
    if k > 1:
        expected["tensor_bytes"] = total(found, "payload", "Tensor")
        expected["tensor_calls"] = total(found, "count", "Tensor")
    if d > 1:
        # The loss travels with the gradients: one element more.
        parts = [f.three_d_data_bytes(p, r, k, h, u, e) for r in range(p)]
        expected["data_bytes"] = spread(total(found, "payload", "Data") + e, parts)
        expected["data_calls"] = total(found, "count", "Data")
    return expected
