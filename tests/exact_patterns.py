"""Cases: patterns of communication, as a strategy that has them would use them."""

from collections.abc import Callable
from unittest.mock import patch

from exact import Expected, Given, Most, case, run, spread, stack, total

from atlas.oracle import formulas as f
from atlas.oracle.model import Layer, Model
from atlas.oracle.network import Item, convolution
from atlas.oracle.prediction import Prediction
from atlas.oracle.records import Work
from atlas.oracle.strategy import Data, Expert, Filter, Gossip, Spatial, Tensor, Zero

# All-reduces: the mean of the ranks, whose chunks of a prime number are uneven


@case("ring-all-reduce")
def _(p: int, g: Given) -> Expected:
    found = run(stack(1, g["n"]), Data(p), batch=p)
    parts = [f.ring_all_reduce_bytes(p, r, g["n"], g["b"]) for r in range(p)]
    return {"bytes_sent": spread(total(found, "wire"), parts)}


@case("halving-doubling")
def _(p: int, g: Given) -> Expected:
    core = 1 << p.bit_length() - 1  # ranks that halve; the others fold into these
    found = run(stack(1, g["n"]), Data(core), batch=core)
    folded = 2 * (p - core) * g["n"] * g["b"]  # there and back
    sent = (core * total(found, "wire") + folded) / p
    parts = [f.halving_doubling_bytes(p, r, g["n"], g["b"]) for r in range(p)]
    return {"bytes_sent": spread(sent, parts)}


@case("hierarchical")
def _(p: int, g: Given) -> Expected:
    n, b, c = g["n"], g["b"], g["c"]
    found = run(stack(1, n), Zero(1, p, within=c), batch=p)
    share = n / (c * -(-n // c))  # sharding pads what the exemplar leaves uneven
    between = share * total(found, "wire", op="all_reduce")
    within = share * total(found, "wire") - between
    flat = run(stack(1, n), Data(p), batch=p)
    assert round(p * (within + between)) == round(p * total(flat, "wire"))
    return {
        "inside": spread(
            within, [f.hierarchical_inside(p, r, n, b, c) for r in range(p)]
        ),
        "between": spread(
            between, [f.hierarchical_between(p, r, n, b, c) for r in range(p)]
        ),
    }


@case("shared-memory-all-reduce")
def _(p: int, g: Given) -> Expected:
    found = run(stack(1, g["n"]), Data(p), batch=p)
    return {"mapped": (p + 1) * total(found, "payload")}  # and a row for the result


# All-to-all


def turned(p: int, elements: int) -> Prediction:
    """Ranks that share so many elements, and send them to experts and back."""
    work = Work(layers=1, flops=1.0, routes=1, routed=elements, experts=p)
    model = Model("moe", "transformer", (Layer("moe", work),), experts=p)
    return run(model, Expert(p, capacity=1 / p), batch=p)


@case("all-to-all")
def _(p: int, g: Given) -> Expected:
    found = turned(p, g["n"] * g["m"])
    # One of four; a rank hands over its rows, of which its own columns stay.
    rows = [f.chunk(g["n"], p, r) * g["m"] * g["b"] for r in range(p)]
    handed = spread(total(found, "payload", "Expert") / 4, rows)
    stays = [f.chunk(g["n"], p, r) * f.chunk(g["m"], p, r) * g["b"] for r in range(p)]
    return {"bytes_sent": lambda r: handed(r) - stays[r]}


@case("strategy-search")
def _(p: int, g: Given) -> Expected:
    """The plan that is found sums s elements and turns t; it holds n cut, z whole."""
    b, c = g["b"], g["c"]
    share = [f.chunk(c, p, r) for r in range(p)]  # parts, of c, that a rank has
    reduced = run(stack(1, g["s"]), Data(p), batch=p)
    alone = [b * g["s"] * (c + h * (p - 2)) // c for h in share]
    summed = spread(total(reduced, "wire"), alone)
    handed = spread(
        total(turned(p, g["t"]), "payload", "Expert") / 4,
        [b * g["t"] * h // c for h in share],
    )
    work = Work(layers=1, weights=g["n"], shared=g["z"], narrow=c, flops=1.0)
    model = Model("plan", "cnn", (Layer("plan", work, filters=c),))
    cut = run(model, Filter(min(p, c)))  # beyond c ranks, some have no part
    sent = [summed(r) + handed(r) * (c - share[r]) // c for r in range(p)]
    kept = [entered(p, way, width, share) for way, width in planned(p)]
    return {
        "bytes_sent": sent.__getitem__,
        "total": sum(sent),
        "held": Most(cut.memory.parameters),
        "memory.peak.parameters": Most(cut.memory.parameters),
        "memory.peak.gradients": Most(cut.memory.gradients),
        "memory.peak.activations": lambda r: sum(layer(r) for layer in kept),
    }


def planned(p: int) -> list[tuple[str, int]]:
    """The best way for each layer, as the exemplar finds it, and what it takes."""
    from exemplars.parameter_distribution.hybrid import strategy_search as own

    with patch.object(own.dist, "get_world_size", return_value=p):
        _, plan = own.search(own.CHOICE, lambda *at: own.traffic(*at)[0])
    return list(zip(plan, own.WIDTHS, strict=True))[:-1]  # the last is the loss


def entered(p: int, way: str, width: int, parts: list[int]) -> Callable[[int], float]:
    """Bytes of what enters a layer that each rank keeps, the layer cut in this way."""
    from exemplars.parameter_distribution.hybrid.strategy_search import BATCH, PARTS

    # Channels that follow filters are a tensor axis: nothing is gathered between.
    axis = {"data": Data(p), "filter": Filter(min(p, PARTS)), "channel": Tensor(p)}[way]
    field = "kept_cut" if way == "channel" else "kept"
    work = Work(layers=1, flops=1.0, narrow=PARTS, **{field: width})
    layers = (Layer("layer", work, filters=PARTS),)
    model = Model("layer", "cnn", layers, heads=p, kv_heads=p)
    if way == "data":  # ranks have more samples than one, and not alike
        one = run(model, axis, batch=p).memory.activations
        return lambda r: one * (BATCH * parts[r] // PARTS)
    found = run(model, axis, batch=BATCH).memory.activations
    if way == "filter":
        return lambda r: found
    return spread(found, [8 * BATCH * width * part // PARTS for part in parts])


# Messages


@case("halo-exchange")
def _(p: int, g: Given) -> Expected:
    from exemplars.communication_pattern.neighbour.halo_exchange import (
        CHANNELS,
        COLUMNS,
        IMAGES,
    )

    image = (CHANNELS, g["h"], COLUMNS)
    layer, _ = convolution(image, Item(kernel=g["k"]), 4)
    found = run(Model("image", "cnn", (layer,)), Spatial(p), batch=IMAGES)
    sides = min(2, p - 1)  # of an inner rank, which is predicted; forward is half
    border = total(found, "wire", op="p2p") / sides / 2
    calls = total(found, "count", op="p2p") / sides / 2
    return {
        "bytes_sent": lambda r: border * ((r > 0) + (r < p - 1)),
        "calls.send.count": lambda r: calls * ((r > 0) + (r < p - 1)),
    }


@case("zero-copy-transfer")
def _(p: int, g: Given) -> Expected:
    found = run(stack(1, g["n"]), Gossip(p, degree=1), batch=p)
    return {
        "bytes_direct": total(found, "wire"),
        "messages": total(found, "count"),
    }


# Scheduling


@case("wait-free-backprop")
def _(p: int, g: Given) -> Expected:
    found = run(stack(g["u"], g["n"]), Data(p), batch=p, bucket=g["n"] * g["b"])
    return {
        "calls": total(found, "count"),
        "payload": total(found, "payload"),
        "early": total(found, "count") - 1,  # the last has nothing to hide behind
    }


@case("tensor-fusion")
def _(p: int, g: Given) -> Expected:
    model = stack(g["u"], g["n"])
    fused = run(model, Data(p), batch=p, bucket=g["c"] * g["b"])
    single = run(model, Data(p), batch=p, bucket=g["n"] * g["b"])
    return {
        "calls": total(fused, "count"),
        "saved": total(single, "count") - total(fused, "count"),
        "payload": total(fused, "payload"),
        "payload_single": total(single, "payload"),
    }
