"""Cases: operations that a rank computes, of the products that the meter sees.

A product forward is two backward, of which nobody computes the one that would be the
gradient of the data: it is taken off where samples are not asked for theirs.
"""

from collections.abc import Callable
from dataclasses import replace
from typing import Any

from by_name import f
from exact import (
    Given,
    Most,
    digits_network,
    four_networks,
    image_network,
    letters_network,
    perceptron,
    run,
    searched_widths,
    share,
    spilled_widths,
)

from atlas.planner.model import Layer, Model
from atlas.planner.records import Work
from atlas.planner.strategy import (
    Axis,
    Channel,
    Checkpoint,
    Context,
    Data,
    Expert,
    Filter,
    Offload,
    Pipeline,
    ScheduleName,
    Spatial,
    Strategy,
    Tensor,
)
from atlas.planner.transformer import transformer

#: Samples of a step, in exemplars whose records do not give their number.
LOCAL_BATCH = 8

Operations = float | Most | Callable[[int], float]
Counted = Callable[[int, Given], Operations]
FLOPS: dict[str, Counted] = {}


def case(*names: str) -> Callable[[Counted], Counted]:
    """Registers how many operations the ranks of these techniques compute."""

    def keep(fn: Counted) -> Counted:
        for name in names:
            assert name not in FLOPS
            FLOPS[name] = fn
        return fn

    return keep


def samples(p: int, r: int, count: int, micros: int = 1) -> int:
    """Of a batch that is cut unevenly, a rank's in all its micro-batches."""
    return sum(f.chunk(count, p * micros, r * micros + k) for k in range(micros))


# Networks: operations of one sample, there and back


def learned(model: Model, strategy: Strategy | Axis | None = None) -> float:
    """Of one sample."""
    axis = strategy or Data(1)
    ranks = Strategy.of(axis).ranks
    return run(model, axis, batch=ranks).executed / ranks


def first(model: Model) -> float:
    """Of the gradient of one sample: as many as the first layer forward."""
    return learned(Model("first", "cnn", model.layers[:1])) / 3


def row(model: Model) -> float:
    """Without the gradient of the sample itself."""
    return learned(model) - first(model)


def digit() -> float:
    return row(digits_network())


def sentence() -> float:
    """Letters are looked up: nothing is the first product's to leave out."""
    return learned(letters_network())


def equal_layers(g: Given) -> Model:
    """The layers that most exemplars of the state's place have."""
    return perceptron(*[g["width"]] * (g.get("units", g.get("layers", 0)) + 1))


# Nothing is multiplied


@case(
    "all-to-all",
    "double-binary-tree",
    "embedding-sharding",
    "gossip-exchange",
    "halving-doubling",
    "hierarchical",
    "recursive-doubling",
    "reduce-scatter-all-gather",
    "ring-all-reduce",
    "shared-memory-all-reduce",
    "tensor-fusion",
    "tree-all-reduce",
    "zero-copy-transfer",
)
def _(p: int, g: Given) -> Operations:
    return 0


# Replicas


@case("bsp-synchronous-sgd", "gradient-accumulation")
def _(p: int, g: Given) -> Operations:
    both = digit() + sentence()
    return lambda r: g["steps"] * samples(p, r, g["batch"]) * both


@case("ddp-by-hand")
def _(p: int, g: Given) -> Operations:
    return lambda r: (
        g["steps"] * samples(p, r, g["batch"], g["microbatches"]) * sentence()
    )


@case("diloco", "elastic-averaging", "local-sgd")
def _(p: int, g: Given) -> Operations:
    batch = g.get("local_batch", LOCAL_BATCH)
    return g["steps"] * batch * (digit() + sentence())


@case("d-psgd")
def _(p: int, g: Given) -> Operations:
    return g["steps"] * g["local_batch"] * digit()


@case("one-bit-sgd", "qsgd", "top-k-error-feedback")
def _(p: int, g: Given) -> Operations:
    return g["steps"] * g["local_batch"] * (digit() + sentence())


@case("powersgd")
def _(p: int, g: Given) -> Operations:
    from exemplars.workload import characters, digits

    both = (*digits.model().parameters(), *characters.model().parameters())
    # Two factors of k columns, and what they stand for: three products a matrix.
    factors = sum(3 * 2 * t.numel() * g["factor_rank"] for t in both if t.dim() == 2)
    return g["steps"] * (g["local_batch"] * (digit() + sentence()) + factors)


@case("sufficient-factor-broadcast")
def _(p: int, g: Given) -> Operations:
    # Forward once, and to compare the weights' gradient twice, of all ranks' samples
    # and of its own; no layer below asks for its own.
    forward = learned(perceptron(g["features_in"], g["features_out"])) / 3
    return g["local_batch"] * (forward + (p + 1) * forward)


@case("wait-free-backprop")
def _(p: int, g: Given) -> Operations:
    each = g["steps"] * row(equal_layers(g))
    return lambda r: samples(p, r, g["batch"]) * each


# With a server, which computes nothing


@case("push-pull")
def _(p: int, g: Given) -> Operations:
    steps, batch = g["steps"], g["batch"]
    return lambda r: steps * samples(p - 1, r - 1, batch) * digit() if r > 0 else 0


@case("backup-workers")
def _(p: int, g: Given) -> Operations:
    sizes = g["steps"], g["backups"], g["slowdown"]
    each = LOCAL_BATCH * digit()
    return lambda r: f.backup_gradients(p, r, *sizes) * each if r > 0 else 0


@case("stale-synchronous-parallel")
def _(p: int, g: Given) -> Operations:
    batch = g.get("local_batch", LOCAL_BATCH)
    return lambda r: g["steps"] * batch * digit() if r > 0 else 0


@case("downpour", "elastic-averaging-asynchronous")
def _(p: int, g: Given) -> Operations:
    duration, period = g["duration"], g.get("period", 1)  # only whole periods
    slow = duration // (period * g["slowdown"]) * period
    steps = [0, slow, *[duration // period * period] * (p - 2)]
    batch = g.get("local_batch", LOCAL_BATCH)
    return lambda r: steps[r] * batch * digit()


@case("sharded-parameter-server")
def _(p: int, g: Given) -> Operations:
    return lambda r: g["steps"] * samples(p, r, g["batch"]) * digit()


# Where the state is


@case("zero-1", "zero-2")
def _(p: int, g: Given) -> Operations:
    each = g["steps"] * row(equal_layers(g))
    return lambda r: samples(p, r, g["batch"], g["microbatches"]) * each


@case("zero-3", "cpu-offload-optimizer", "mixed-precision")
def _(p: int, g: Given) -> Operations:
    each = g["steps"] * row(equal_layers(g))
    return lambda r: samples(p, r, g["batch"]) * each


@case("model-spilling")
def _(p: int, g: Given) -> Operations:
    strategy = Data(p) * Offload("layers") * Checkpoint()
    each = learned(perceptron(*spilled_widths(g)), strategy)
    return lambda r: samples(p, r, g["batch"]) * each


@case("activation-checkpointing")
def _(p: int, g: Given) -> Operations:
    # A segment asks for its input's gradient, even the first.
    return g["batch"] * learned(equal_layers(g), Data(p) * Checkpoint())


# Pipelines


def staged(p: int, g: Given, rows: int, schedule: ScheduleName) -> float:
    """Of each of p stages, which have a layer each, for micro-batches of so many."""
    model = perceptron(*[g["activation_bytes"] // 8 // rows] * (p + 1))
    batch = g["microbatches"] * rows
    found = run(model, Pipeline(p, schedule), batch=batch, micro_batch=rows)
    assert found.fullest == found.executed / p
    return found.fullest


@case("gpipe")
def _(p: int, g: Given) -> Operations:
    each = staged(p, g, g["batch"] // g["microbatches"], "gpipe")
    return lambda r: each if r > 0 else each * 2 / 3


@case("one-f-one-b")
def _(p: int, g: Given) -> Operations:
    each = staged(p, g, g["batch"] // g["microbatches"], "1f1b")
    return lambda r: each if r > 0 else each * 2 / 3


@case("weight-stashing")
def _(p: int, g: Given) -> Operations:
    each = staged(p, g, g["batch"], "stashing")
    return lambda r: each if r > 0 else each * 2 / 3


@case("layer-partition")
def _(p: int, g: Given) -> Operations:
    each = staged(p, g, g["batch"], "gpipe")
    return lambda r: each if r > 0 else each * 2 / 3


def local(g: Given) -> tuple[float, float]:
    """A layer's operations forward, and its classifier's, of all batches."""
    width = g["activation_bytes"] // 8 // g["batch"]
    forward = g["microbatches"] * g["batch"] * learned(perceptron(width, width)) / 3
    return forward, forward  # the classifier is one more layer


@case("local-parallelism")
def _(p: int, g: Given) -> Operations:
    body, head = local(g)
    assert 3 * body == staged(p, g, g["batch"], "local")
    return 2 * body + 3 * head  # nothing goes below a layer that has its own loss


@case("local-parallelism-overlapping")
def _(p: int, g: Given) -> Operations:
    body, head = local(g)
    forward, own, following = body + head, 2 * (body + head), 2 * body
    middle = forward + own + following  # backward twice
    ends = {0: body + body, p - 1: forward + own}  # the first has no loss
    return lambda r: ends.get(r, middle)


@case("three-d")
def _(p: int, g: Given) -> Operations:
    q, k = g["stages"], g["tensor_ranks"]
    k = k if p % (q * k) == 0 else 1
    q = q if p % q == 0 else 1
    d, h, u = p // (q * k), g["width"], g["hidden"]
    model = perceptron(*[width for _ in range(q) for width in (h, u)], h)
    rows = g["activation_bytes"] // g["itemsize"] // h
    found = run(model, Data(d), batch=d * g["microbatches"] * rows)
    stage = found.executed / d / q
    return lambda r: stage * f.chunk(u, k, r % k) / u


# Inside layers and samples


@case("filter")
def _(p: int, g: Given) -> Operations:
    from exemplars.workload import NARROW

    found = run(four_networks(), Filter(p), batch=g["batch"])
    parts = [f.chunk(NARROW, p, r) for r in range(p)]
    assert round(found.fullest * NARROW) == round(found.executed * parts[0])
    return lambda r: found.executed * parts[r] / NARROW


@case("channel")
def _(p: int, g: Given) -> Operations:
    from exemplars.workload import NARROW

    found = run(four_networks(), Channel(p), batch=g["batch"])
    whole = sum(layer.work.unchannelled_flops for layer in found.model.layers)
    alone = g["batch"] * 3 * whole  # by every rank
    cut = found.executed - p * alone
    parts = [f.chunk(NARROW, p, r) for r in range(p)]
    assert round(found.fullest - alone) == round(cut * parts[0] / NARROW)
    return lambda r: alone + cut * parts[r] / NARROW


@case("data-filter")
def _(p: int, g: Given) -> Operations:
    q = f.group_ranks(p)
    d = p // q
    batch = d * share(d, 0, g["batch"])  # as if all groups had the largest's samples
    return Most(run(four_networks(), Data(d) * Filter(q), batch=batch).fullest)


@case("spatial")
def _(p: int, g: Given) -> Operations:
    found = run(four_networks(), Spatial(p), batch=g["batch"])
    return lambda r: g["batch"] * 3 * rows_of(found.model, p, r)


@case("data-spatial")
def _(p: int, g: Given) -> Operations:
    q = f.group_ranks(p)
    d, batch = p // q, g["batch"]
    return lambda r: samples(d, r // q, batch) * 3 * rows_of(four_networks(), q, r % q)


def rows_of(model: Model, p: int, r: int) -> float:
    """Operations forward of a sample's rows, as many as belong to a rank's.

    Larger maps go with the rows of the smallest, and end a little short of a multiple:
    the oracle, which has one share for all, is a hundredth low for the first rank.
    """
    from exemplars.workload import ROWS, convs

    begin = sum(f.chunk(ROWS, p, q) for q in range(r))
    end = begin + f.chunk(ROWS, p, r)
    done = 0.0
    for layer, (_, _, y) in zip(model.layers, convs(), strict=True):
        each = -(-y[1] // ROWS)  # by 4 or 2 or 1
        rows = min(y[1], end * each) - min(y[1], begin * each)
        done += layer.work.flops * rows / y[1]
    return done


@case("halo-exchange")
def _(p: int, g: Given) -> Operations:
    forward = g["batch"] * learned(image_network(g)) / 3
    return lambda r: forward * f.chunk(g["rows"], p, r) / g["rows"]


@case("tensor-parallel-column-row")
def _(p: int, g: Given) -> Operations:
    h, heads = g["width"], g["heads"]
    sizes = {name: g[name] for name in ("layers", "width", "heads", "tokens")}
    model = transformer("gpt", vocabulary=2, dropout=0, **sizes)
    blocks = replace(model, layers=model.layers[1:-1], tied=0)
    found = run(blocks, Data(1), batch=g["batch"])
    if heads % p == 0:
        even = run(blocks, Tensor(p), batch=g["batch"])
        assert even.fullest == found.executed / p
    # Uneven parts, which the oracle refuses: by heads, and by neurons.
    tokens = g["batch"] * g["tokens"]
    neurons = 3 * 2 * tokens * g["layers"] * 2 * h * 4 * h
    attention = found.executed - neurons
    return lambda r: (
        attention * f.chunk(heads, p, r) / heads
        + neurons * f.chunk(4 * h, p, r) / (4 * h)
    )


EVEN = 24


def attended(tokens: int, width: int, p: int, method: Any) -> float:
    """Of one attention over all tokens."""
    work = Work(layers=1, scores=2 * 2.0 * tokens**2 * width, attentions=1)
    layers = (Layer("attention", work),)
    parts = {"tokens": EVEN, "heads": EVEN, "kv_heads": EVEN}  # to be cut, if evenly
    model = Model("attention", "transformer", layers, **parts)
    found = run(model, Data(1))
    if EVEN % p == 0:
        assert run(model, Context(p, method)).fullest == found.executed / p
    return found.executed


@case("ring-attention")
def _(p: int, g: Given) -> Operations:
    n, h = g["tokens"], g["width"]
    chunks = [f.chunk(n, 2 * p, i) for i in range(2 * p)]
    held = [chunks[r] + chunks[-1 - r] for r in range(p)]
    # Scores are computed again backward, as where they never leave the chip.
    whole = attended(n, h, p, "ring") + 2 * n**2 * h
    return lambda r: whole * held[r] / n


@case("ulysses")
def _(p: int, g: Given) -> Operations:
    whole = attended(g["tokens"], g["heads"] * g["head_width"], p, "ulysses")
    return lambda r: whole * f.chunk(g["heads"], p, r) / g["heads"]


@case("expert-parallel")
def _(p: int, g: Given) -> Operations:
    n, h, choices = g["tokens"], g["width"], g["choices"]
    every = p * g["experts_per_rank"]
    routed = 2 * 2.0 * h * g["hidden"]  # of a token at one expert
    work = Work(
        layers=1,
        flops=n * (2.0 * h * every + choices * routed),
        experts=every * 2 * h * g["hidden"],
        routes=1,
        routed=choices * n * h,
        seat_flops=n * choices * routed,
    )
    model = Model("moe", "transformer", (Layer("moe", work),), experts=every)
    strategy = Expert(p, capacity=every * g["seats"] / (choices * n))
    found = run(model, strategy, batch=p)
    assert round(found.fullest) == round(found.executed / p)
    return found.fullest


@case("strategy-search")
def _(p: int, g: Given) -> Operations:
    return g["batch"] * row(perceptron(*searched_widths(g))) / p
