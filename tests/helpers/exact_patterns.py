"""Cases: patterns of communication, as a strategy that has them would use them."""

from itertools import pairwise

from by_name import f
from exact import (
    Expected,
    Given,
    case,
    image_network,
    run,
    searched_widths,
    spread,
    stack,
    total,
)

from atlas.planner.model import Layer, Model
from atlas.planner.prediction import Prediction
from atlas.planner.records import Work
from atlas.planner.strategy import (
    Axis,
    Data,
    Expert,
    Filter,
    Gossip,
    Spatial,
    Tensor,
    Zero,
)

# All-reduces: the mean of the ranks, whose chunks of a prime number are uneven


@case("ring-all-reduce")
def _(p: int, g: Given) -> Expected:
    n, b = g["elements"], g["itemsize"]
    found = run(stack(1, n), Data(p), batch=p)
    parts = [f.ring_all_reduce_bytes(p, r, n, b) for r in range(p)]
    return {"bytes_sent": spread(total(found, "wire"), parts)}


@case("halving-doubling")
def _(p: int, g: Given) -> Expected:
    core = 1 << p.bit_length() - 1  # ranks that halve; the others fold into these
    n, b = g["elements"], g["itemsize"]
    found = run(stack(1, n), Data(core), batch=core)
    folded = 2 * (p - core) * n * b  # there and back
    sent = (core * total(found, "wire") + folded) / p
    parts = [f.halving_doubling_bytes(p, r, n, b) for r in range(p)]
    return {"bytes_sent": spread(sent, parts)}


@case("recursive-doubling")
def _(p: int, g: Given) -> Expected:
    """A round is an all-reduce of two ranks, who send each other all they have."""
    n, b = g["elements"], g["itemsize"]
    one = total(run(stack(1, n), Data(2), batch=2), "wire")
    core = 1 << p.bit_length() - 1
    sent = one * (core * (core.bit_length() - 1) + 2 * (p - core)) / p
    parts = [f.recursive_doubling_bytes(p, r, n, b) for r in range(p)]
    return {"bytes_sent": spread(sent, parts)}


@case("tree-all-reduce")
def _(p: int, g: Given) -> Expected:
    """The ring's bytes, of which the root sends most and a leaf least."""
    n, b = g["elements"], g["itemsize"]
    wire = total(run(stack(1, n), Data(p), batch=p), "wire")
    parts = [f.tree_all_reduce_bytes(p, r, n, b) for r in range(p)]
    return {"bytes_sent": spread(wire, parts)}


@case("double-binary-tree")
def _(p: int, g: Given) -> Expected:
    """The ring's bytes, more of them inside the trees than at their roots."""
    n, b = g["elements"], g["itemsize"]
    wire = total(run(stack(1, n), Data(p), batch=p), "wire")
    parts = [f.double_binary_tree_bytes(p, r, n, b) for r in range(p)]
    return {"bytes_sent": spread(wire, parts)}


@case("reduce-scatter-all-gather")
def _(p: int, g: Given) -> Expected:
    """As ZeRO-2 uses the two: a gradient's shard, then the weights."""
    n, b = g["elements"], g["itemsize"]
    found = run(stack(1, n), Zero(2, p), batch=p)
    share = n / (p * -(-n // p))  # sharding pads what the exemplar leaves uneven
    means = {
        "held": (found.memory.gradients, f.reduce_scatter_shard),
        "scatter_bytes": (
            total(found, "wire", op="reduce_scatter"),
            f.reduce_scatter_bytes,
        ),
        "gather_bytes": (total(found, "wire", op="all_gather"), f.all_gather_bytes),
    }
    return {
        claim: spread(share * mean, [each(p, r, n, b) for r in range(p)])
        for claim, (mean, each) in means.items()
    }


@case("hierarchical")
def _(p: int, g: Given) -> Expected:
    n, b, c = g["elements"], g["itemsize"], g["node_size"]
    found = run(stack(1, n), Zero(1, p, within=c), batch=p)
    across = [call for call in found.collectives if call.op == "all_reduce"]
    share = n / (c * -(-n // c))  # sharding pads what the exemplar leaves uneven
    between = share * total(found, "wire", op="all_reduce")
    within = share * total(found, "wire") - between
    flat = run(stack(1, n), Data(p), batch=p)
    assert round(p * (within + between)) == round(p * total(flat, "wire"))
    return {
        "nodes": across[0].ranks if across else 1,
        "inside": spread(
            within, [f.hierarchical_inside(p, r, n, b, c) for r in range(p)]
        ),
        "between": spread(
            between, [f.hierarchical_between(p, r, n, b, c) for r in range(p)]
        ),
    }


@case("shared-memory-all-reduce")
def _(p: int, g: Given) -> Expected:
    found = run(stack(1, g["elements"]), Data(p), batch=p)
    return {"mapped": (p + 1) * total(found, "payload")}  # and a row for the result


# All-to-all


def turned(p: int, elements: int) -> Prediction:
    """Ranks that share so many elements, and send them to experts and back."""
    work = Work(layers=1, flops=1.0, routes=1, routed=elements, experts=p)
    model = Model("moe", "transformer", (Layer("moe", work),), experts=p)
    return run(model, Expert(p, capacity=1 / p), batch=p)


@case("all-to-all")
def _(p: int, g: Given) -> Expected:
    rows, columns, b = g["rows"], g["columns"], g["itemsize"]
    found = turned(p, rows * columns)
    # One of four; a rank hands over its rows, of which its own columns stay.
    held = [f.chunk(rows, p, r) * columns * b for r in range(p)]
    handed = spread(total(found, "payload", "Expert") / 4, held)
    stays = [f.chunk(rows, p, r) * f.chunk(columns, p, r) * b for r in range(p)]
    return {"bytes_sent": lambda r: handed(r) - stays[r]}


@case("strategy-search")
def _(p: int, g: Given) -> Expected:
    """The plan that is found: filters twice, then channels, then data."""
    batch, width = g["batch"], g["width"]
    # A tensor axis sums what enters its filters backward, what leaves its channels
    # forward; scattered over samples, the sum is half as much, and half is gathered.
    summed = run(stack(1, 3 * batch * width + width**2), Data(p), batch=p)
    # Channels that follow filters are a tensor axis: nothing is gathered between.
    plan: list[Axis] = [Filter(p), Filter(p), Tensor(p), Data(p)]
    pairs = zip(plan, pairwise(searched_widths(g)), strict=True)
    held = [cut_layer(g, axis, *shape).memory for axis, shape in pairs]
    # The loss keeps the output, by samples.
    held.append(cut_layer(g, Data(p), width, 0).memory)
    return {
        "bytes_sent": total(summed, "wire"),
        "memory.peak.parameters": sum(layer.parameters for layer in held),
        "memory.peak.activations": sum(layer.activations for layer in held),
    }


def cut_layer(g: Given, axis: Axis, inputs: int, outputs: int) -> Prediction:
    """A layer of the plan by itself, cut in its own way."""
    by_columns = isinstance(axis, Tensor)
    work = Work(
        layers=1,
        flops=1.0,
        weights=inputs * outputs,
        narrow=g["width"],
        kept=0 if by_columns else inputs,
        kept_cut=inputs if by_columns else 0,
    )
    layers, p = (Layer("layer", work, filters=g["width"]),), axis.ranks
    model = Model("layer", "cnn", layers, heads=p, kv_heads=p)
    return run(model, axis, batch=g["batch"])


# Messages


@case("halo-exchange")
def _(p: int, g: Given) -> Expected:
    found = run(image_network(g), Spatial(p), batch=g["batch"])
    sides = min(2, p - 1)  # of an inner rank, which is predicted; forward is half
    border = total(found, "wire", op="p2p") / sides / 2
    calls = total(found, "count", op="p2p") / sides / 2
    return {
        "bytes_sent": lambda r: border * ((r > 0) + (r < p - 1)),
        "calls.send.count": lambda r: calls * ((r > 0) + (r < p - 1)),
    }


@case("zero-copy-transfer")
def _(p: int, g: Given) -> Expected:
    found = run(stack(1, g["elements"]), Gossip(p, degree=1), batch=p)
    return {
        "bytes_direct": total(found, "wire"),
        "messages": total(found, "count"),
    }


# Scheduling


@case("wait-free-backprop")
def _(p: int, g: Given) -> Expected:
    matrix = g["width"] ** 2
    bucket = matrix * g["itemsize"]
    found = run(stack(g["layers"], matrix), Data(p), batch=p, bucket=bucket)
    calls = total(found, "count")
    return {
        "calls": g["steps"] * calls,
        "waits": g["steps"] * calls,
        "payload": g["steps"] * total(found, "payload"),
        "early": g["steps"] * (calls - 1),  # the last has nothing to hide behind
    }


@case("tensor-fusion")
def _(p: int, g: Given) -> Expected:
    model = stack(g["units"], g["elements"])
    fused = run(model, Data(p), batch=p, bucket=g["bucket"] * g["itemsize"])
    single = run(model, Data(p), batch=p, bucket=g["elements"] * g["itemsize"])
    return {
        "calls": total(fused, "count"),
        "saved": total(single, "count") - total(fused, "count"),
        "payload": total(fused, "payload"),
        "payload_single": total(single, "payload"),
    }
