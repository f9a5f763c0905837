"""Cases: how replicas agree, and where their state is."""

from exact import Expected, Given, case, run, share, spread, stack, state, total

from atlas.oracle import formulas as f
from atlas.oracle.model import Layer, Model
from atlas.oracle.network import Item, network
from atlas.oracle.prediction import Prediction
from atlas.oracle.records import Work
from atlas.oracle.strategy import (
    Axis,
    Checkpoint,
    Compress,
    Data,
    DiLoCo,
    Elastic,
    Gossip,
    LocalSGD,
    Offload,
    ParameterServer,
    Zero,
)
from atlas.oracle.train import OPTIMIZERS, PRECISIONS
from atlas.oracle.transformer import transformer

WIDTH = 17  # of the layers of most exemplars here


def saved(p: int, found: Prediction, rows: int, micros: int, more: int) -> Expected:
    """Activations: a row's as predicted, `more` of its width, and where all rows lie.

    A rank's rows are a view of all of them, and what autograd saves is counted by its
    storage. What is more are outputs of a loss or of the micro-batch before.
    """
    row = found.memory.activations + more * WIDTH * 8
    whole = rows * WIDTH * 8
    return {
        "memory.peak.activations": lambda r: whole + row * share(p, r, rows, micros)
    }


def held(found: Prediction) -> Expected:
    return {
        "memory.peak.parameters": found.memory.parameters,
        "memory.peak.gradients": found.memory.gradients,
        "memory.peak.optimizer": found.memory.optimizer,
    }


# Sharded and replicated


@case("zero-1")
def _(p: int, g: Given) -> Expected:
    found = run(stack(1, g["n"], kept=3 * WIDTH), Zero(1, p), batch=p)
    return {
        **held(found),
        **saved(p, found, rows=50, micros=3, more=1),
        "volume": g["t"] * total(found, "wire"),
        "state": state(found),
        # and one that adds up the gradient's norm
        "calls": g["t"] * (total(found, "count") + 1),
    }


@case("zero-2")
def _(p: int, g: Given) -> Expected:
    model = stack(g["u"], g["n"], kept=WIDTH)
    found = run(model, Zero(2, p), batch=g["k"] * p, micro_batch=1)
    return {
        **held(found),
        **saved(p, found, rows=50, micros=g["k"], more=0),
        "volume": g["t"] * total(found, "wire"),
        "calls": g["t"] * total(found, "count"),
        "state": state(found),
    }


@case("zero-3")
def _(p: int, g: Given) -> Expected:
    found = run(stack(g["u"], g["n"], kept=WIDTH), Zero(3, p), batch=p)
    return {
        **held(found),
        **saved(p, found, rows=24, micros=1, more=0),
        "volume": g["t"] * total(found, "wire"),
        "calls": g["t"] * total(found, "count"),
        "state": state(found),
        "gathered": found.memory.buffers,
    }


@case("bsp-synchronous-sgd")
def _(p: int, g: Given) -> Expected:
    found = run(stack(1, g["n"]), Data(p), batch=p, bucket=g["c"] * g["b"])
    return {
        "calls": g["t"] * total(found, "count"),
        "payload": g["t"] * total(found, "payload"),
    }


@case("ddp-by-hand")
def _(p: int, g: Given) -> Expected:
    plain = {"optimizer": OPTIMIZERS["sgd"], "bucket": g["c"] * g["b"]}
    found = run(stack(1, g["n"]), Data(p), batch=p, **plain)
    frozen = g["z"] * g["b"]
    letters, fixed = sentence()
    # Once a step the tokens are counted, in 8 bytes.
    return {
        "calls": g["t"] * (total(found, "count") + 1),
        "payload": g["t"] * (total(found, "payload") + 8),
        "state": state(found) + frozen,
        "memory.peak.parameters": found.memory.parameters + frozen,
        "memory.peak.gradients": found.memory.gradients,
        "memory.peak.activations": lambda r: fixed + letters * share(p, r, 50, 3),
    }


def sentence() -> tuple[float, float]:
    """Bytes that the small GPT saves of a sentence, and beside all sentences."""
    from exemplars.workload import CONTEXT, characters

    words = [*characters.model().parameters()][-1].numel()
    model = transformer(
        "gpt",
        layers=2,
        width=16,
        heads=2,
        vocabulary=words,
        tokens=CONTEXT,
        dropout=0,
    )
    found = run(model, Data(1))
    # Korthikanti et al. leave out each norm's mean and deviation; logits are in 64
    # bits here, not in 32; letters and labels are whole numbers.
    more = 5 * 2 * 8 + words * (8 - 4) + 2 * 8
    masks, scalars = 2 * CONTEXT**2, 2 * 8
    return found.memory.activations + CONTEXT * more, masks + scalars


@case("mixed-precision")
def _(p: int, g: Given) -> Expected:
    model = stack(3, g["n"] // 3, kept=WIDTH)
    found = run(model, Data(p), batch=p, precision=PRECISIONS["mixed"])
    row = found.memory.activations + WIDTH * (2 + 4)  # the output, and in 32 bits
    return {
        "state": state(found),
        "payload": g["t"] * total(found, "payload"),
        "memory.peak.weights": found.memory.parameters,
        "memory.peak.gradients": found.memory.gradients,
        "memory.peak.activations": lambda r: row * share(p, r, 48),
    }


# In the host's memory


@case("cpu-offload-optimizer")
def _(p: int, g: Given) -> Expected:
    model = stack(1, g["n"], kept=3 * WIDTH)
    plain = run(model, Zero(1, p), batch=p)
    found = run(model, Zero(1, p) * Offload(), batch=p)
    up = total(found, "wire", "Offload", what="weights up")
    return {
        **saved(p, found, rows=50, micros=1, more=1),
        "down": g["t"] * total(found, "wire", "Offload", what="gradients down"),
        "up": g["t"] * up,
        "volume": g["t"] * total(found, "wire", "Zero"),
        "fast": state(found) + found.memory.buffers,
        "slow": plain.memory.optimizer + up,  # with a copy of the weights it steps
    }


@case("model-spilling")
def _(p: int, g: Given) -> Expected:
    from exemplars.parameter_distribution.memory_tiers import model_spilling as own

    first, *after = own.WIDTHS
    model = network("mlp", (first,), [Item(linear=n, bias=False) for n in after])
    assert model.parameters == g["n"]
    found = run(model, Data(p) * Offload("layers") * Checkpoint(), batch=p)
    whole = run(model, Data(p) * Checkpoint(), batch=p)
    fast = state(found) + found.memory.buffers - whole.memory.buffers
    rows, inputs = own.ROWS, first * g["b"]  # of which all lie in one place
    between = found.memory.activations - inputs
    return {
        "up": total(found, "wire", "Offload", what="weights up"),
        "down": total(found, "wire", "Offload", what="gradients down"),
        "fast": fast,
        "weights": fast / 2,  # the rest is their gradient
        "payload": total(found, "payload", "Data"),
        "memory.peak.slow": whole.memory.parameters,
        "memory.peak.activations": lambda r: (
            inputs * rows + between * share(p, r, rows)
        ),
    }


@case("activation-checkpointing")
def _(p: int, g: Given) -> Expected:
    layers, width = g["l"] // g["s"], g["a"] // g["b"]
    model = stack(g["s"], g["n"] // g["s"], kept=layers * width, inputs=width)
    found = run(model, Data(p) * Checkpoint(), batch=p)
    again = (found.executed - found.flops) / (found.flops / 3)
    return {
        "peak": found.memory.activations + found.memory.buffers,
        "payload": total(found, "payload"),
        "forwards": g["l"] * (1 + again),
        "memory.peak.activations": found.memory.activations + found.memory.buffers,
        "memory.peak.parameters": found.memory.parameters,
        "memory.peak.gradients": found.memory.gradients,
    }


# Now and then


def periodic(p: int, g: Given, axis: Axis) -> Expected:
    found = run(stack(1, g["n"]), axis, batch=p)
    steps = g["h"] * f.periodic_rounds(g["t"], g["h"])  # and a meeting at the end
    return {
        "calls": steps * total(found, "count"),
        "payload": steps * total(found, "payload"),
    }


@case("local-sgd")
def _(p: int, g: Given) -> Expected:
    return periodic(p, g, LocalSGD(p, every=g["h"]))


@case("elastic-averaging")
def _(p: int, g: Given) -> Expected:
    return periodic(p, g, Elastic(p, every=g["h"]))


@case("diloco")
def _(p: int, g: Given) -> Expected:
    outer = run(stack(1, g["n"]), DiLoCo(p, every=g["h"]), batch=p)
    inner = run(stack(1, g["n"]), LocalSGD(p, every=g["h"]), batch=p)
    expected = periodic(p, g, DiLoCo(p, every=g["h"]))
    return {**expected, "outer_state": state(outer) - state(inner)}


# With a server: rank 0, which answers all the others


def served(p: int, g: Given, axis: Axis, times: list[int]) -> Expected:
    """Each worker meets the server so many times; of each rank what it sends."""
    found = run(stack(1, g["n"]), axis, batch=axis.ranks)
    every = axis.every if isinstance(axis, Elastic) else 1
    pushed = every * total(found, "wire")
    pulled = every * total(found, "payload") - pushed
    assert every * total(found, "count") == 2  # there and back
    sent = [sum(times) * pulled, *(n * pushed for n in times)]
    got = [sum(times) * pushed, *(n * pulled for n in times)]
    return {
        "bytes_sent": sent.__getitem__,
        "calls.send.count": [sum(times), *times].__getitem__,
        "calls.recv.payload": got.__getitem__,
    }


@case("push-pull")
def _(p: int, g: Given) -> Expected:
    expected = served(p, g, ParameterServer(p - 1), [g["t"]] * (p - 1))
    return {**expected, "bytes_received": expected["calls.recv.payload"]}


@case("stale-synchronous-parallel")
def _(p: int, g: Given) -> Expected:
    axis = ParameterServer(p - 1, mode="bounded", staleness=g["s"])
    return served(p, g, axis, [g["t"]] * (p - 1))


@case("downpour")
def _(p: int, g: Given) -> Expected:
    times = [g["t"] // g["k"], *[g["t"]] * (p - 2)]  # worker 1 is k times slower
    return served(p, g, ParameterServer(p - 1, mode="async"), times)


@case("elastic-averaging-asynchronous")
def _(p: int, g: Given) -> Expected:
    meetings = g["t"] // g["h"]
    times = [meetings // g["k"], *[meetings] * (p - 2)]
    axis = Elastic(p - 1, every=g["h"], mode="async")
    expected = served(p, g, axis, times)
    # The springs' own meetings, without gradients, are in the record's calls too.
    return {"bytes_sent": expected["bytes_sent"]}


@case("sharded-parameter-server")
def _(p: int, g: Given) -> Expected:
    model = network("digits", (64,), [Item(linear=32), Item(linear=10)])
    assert model.parameters == g["n"]
    found = run(model, Data(p), batch=p)  # as many bytes as an all-reduce
    sent = g["t"] * total(found, "wire")
    row = found.memory.activations + (10 + 1) * 8  # the scores of digits, the label
    parts = [f.sharded_server_bytes(p, r, g["n"], g["b"], g["t"]) for r in range(p)]
    return {
        "bytes_sent": spread(sent, parts),
        "bytes_received": spread(sent, parts),
        "memory.peak.parameters": found.memory.parameters,
        "memory.peak.activations": lambda r: 8 + row * share(p, r, 50),
    }


# With neighbours


@case("d-psgd")
def _(p: int, g: Given) -> Expected:
    found = run(stack(1, g["n"]), Gossip(p), batch=p)
    return {
        "bytes_sent": g["t"] * total(found, "wire"),
        "calls.send.count": g["t"] * total(found, "count"),
    }


@case("gossip-exchange")
def _(p: int, g: Given) -> Expected:
    found = run(stack(1, g["n"]), Gossip(p, degree=1), batch=p)
    steps = f.gossip_messages(p, g["t"])
    return {
        "bytes_sent": steps * total(found, "wire"),
        "messages": steps * total(found, "count"),
    }


# Compressed


def compressed(p: int, g: Given, how: Compress, n: int) -> Expected:
    found = run(stack(1, n), Data(p) * how, batch=p)
    return {
        "payload": g["t"] * total(found, "payload"),
        "calls": g["t"] * total(found, "count"),
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

    layers = [
        Layer(
            str(tuple(t.shape)),
            Work(layers=1, shared=t.numel(), flops=1.0),
            matrix=(t.shape[0], t.shape[1]) if t.dim() == 2 else (0, 0),
        )
        for t in characters.model().parameters()
    ]
    model = Model("characters", "cnn", tuple(layers))
    found = run(model, Data(p) * Compress("powersgd", rank=g["k"]), batch=p)
    return {
        "payload": g["t"] * total(found, "payload"),
        "calls": g["t"] * total(found, "count"),
    }


@case("sufficient-factor-broadcast")
def _(p: int, g: Given) -> Expected:
    model = network("linear", (g["n"],), [Item(linear=g["m"])])  # and its bias
    factors = run(model, Data(p) * Compress("factors"), batch=g["k"] * p)
    matrix = run(stack(1, g["m"] * g["n"]), Data(p), batch=p)
    return {
        "payload": total(factors, "payload"),
        "wins": int(total(factors, "wire") < total(matrix, "wire")),
        "calls.all_gather.count": total(factors, "count", op="all_gather"),
        "calls.all_gather.wire": total(factors, "wire", op="all_gather"),
    }
