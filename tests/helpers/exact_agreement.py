"""Cases: how replicas agree, and where their state is."""

from by_name import f
from exact import (
    Expected,
    Given,
    case,
    digits_network,
    letters_network,
    run,
    share,
    spilled_widths,
    spread,
    stack,
    state,
    total,
)

from atlas.planner.model import Layer, Model
from atlas.planner.network import Item, network
from atlas.planner.prediction import Prediction
from atlas.planner.records import Work
from atlas.planner.strategy import (
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
from atlas.planner.train import OPTIMIZERS, PRECISIONS


def kept(p: int, g: Given, whole: float, row: float, fixed: float) -> Expected:
    """Activations: a batch, what a rank saves of each of its rows, and a little more.

    A rank's rows are a view of all of them, and what autograd saves is counted by its
    storage; so are their labels. The next batch is there before the last has gone.
    """
    batches, micros = min(2, g["steps"]), g.get("microbatches", 1)
    return {
        "memory.peak.activations": lambda r: max(
            whole + row * share(p, r, g["batch"], micros) + fixed, batches * whole
        )
    }


def rows_kept(p: int, g: Given, found: Prediction) -> Expected:
    """Of a row as predicted, and its scores; the loss keeps the labels' weight."""
    row = found.memory.activations + g["width"] * 8
    return kept(p, g, whole=g["batch"] * (g["width"] + 1) * 8, row=row, fixed=8)


def held(found: Prediction) -> Expected:
    return {
        "memory.peak.parameters": found.memory.parameters,
        "memory.peak.gradients": found.memory.gradients,
        "memory.peak.optimizer": found.memory.optimizer,
    }


# Sharded and replicated


@case("zero-1")
def _(p: int, g: Given) -> Expected:
    model = stack(1, g["elements"], kept=g["layers"] * g["width"])
    found = run(model, Zero(1, p), batch=p)
    padding = found.memory.gradients - g["elements"] * g["itemsize"]
    return {
        **held(found),
        # Gradients are packed for the exchange only, and padded then.
        "memory.peak.gradients": found.memory.gradients - padding,
        **rows_kept(p, g, found),
        "volume": g["steps"] * total(found, "wire"),
        "state": state(found) - padding,
        "calls": g["steps"] * total(found, "count"),
    }


@case("zero-2")
def _(p: int, g: Given) -> Expected:
    model = stack(g["units"], g["unit_elements"], kept=g["width"])
    found = run(model, Zero(2, p), batch=g["microbatches"] * p, micro_batch=1)
    whole = g["unit_elements"] * g["itemsize"]  # of the unit that is scattered
    return {
        **held(found),
        # While a unit is packed into one vector, it is there twice.
        "memory.peak.parameters": found.memory.parameters + whole,
        "memory.peak.gradients": found.memory.gradients + whole,
        "gradients": found.memory.gradients + whole,
        **rows_kept(p, g, found),
        "volume": g["steps"] * total(found, "wire"),
        "calls": g["steps"] * total(found, "count"),
        "state": state(found),
    }


@case("zero-3")
def _(p: int, g: Given) -> Expected:
    model = stack(g["units"], g["unit_elements"], kept=g["width"])
    found = run(model, Zero(3, p), batch=p)
    whole = g["unit_elements"] * g["itemsize"]  # of the unit that is scattered
    return {
        **held(found),
        "memory.peak.gradients": found.memory.gradients + whole,
        "gradients": found.memory.gradients + whole,
        **rows_kept(p, g, found),
        "volume": g["steps"] * total(found, "wire"),
        "calls": g["steps"] * total(found, "count"),
        "state": state(found),
        "gathered": found.memory.buffers,
    }


@case("bsp-synchronous-sgd")
def _(p: int, g: Given) -> Expected:
    bucket = g["bucket"] * g["itemsize"]
    found = run(stack(1, g["elements"]), Data(p), batch=p, bucket=bucket)
    return {
        "calls": g["steps"] * total(found, "count"),
        "payload": g["steps"] * total(found, "payload"),
    }


@case("gradient-accumulation")
def _(p: int, g: Given) -> Expected:
    model, micros = digits_network(), g["microbatches"]
    plain = {"optimizer": OPTIMIZERS["sgd"], "bucket": g["bucket"] * g["itemsize"]}
    found = run(model, Data(p), batch=p * micros, micro_batch=1, **plain)
    # A sample's pixels lie with all of them; the loss keeps its scores, and a weight.
    pixels, scores = model.layers[0].work.inputs * 8, model.layers[-1].work.passed * 8
    each = found.memory.activations - pixels + scores
    activations = [each * parts(p, r, g["batch"], micros) + 8 for r in range(p)]
    return {
        "calls": g["steps"] * total(found, "count"),
        "payload": g["steps"] * total(found, "payload"),
        "activations": activations.__getitem__,
        "memory.peak.activations": activations.__getitem__,
        "memory.peak.parameters": found.memory.parameters,
    }


def parts(p: int, r: int, batch: int, micros: int) -> int:
    """Samples of a rank's largest micro-batch, when its share is cut again."""
    return f.chunk(f.chunk(batch, p, r), micros, 0)


@case("ddp-by-hand")
def _(p: int, g: Given) -> Expected:
    plain = {"optimizer": OPTIMIZERS["sgd"], "bucket": g["bucket"] * g["itemsize"]}
    found = run(stack(1, g["elements"]), Data(p), batch=p, **plain)
    frozen = g["frozen_elements"] * g["itemsize"]
    return {
        "calls": g["steps"] * total(found, "count"),
        "payload": g["steps"] * total(found, "payload"),
        "state": state(found) + frozen,
        "memory.peak.parameters": found.memory.parameters + frozen,
        "memory.peak.gradients": found.memory.gradients,
        **sentences_kept(p, g),
    }


def sentences_kept(p: int, g: Given) -> Expected:
    """Activations of the small GPT, whose letters and labels are whole numbers."""
    model = letters_network()
    block = model.block
    assert block is not None
    found, layers = run(model, Data(1)), len(model.layers) - 2
    # Korthikanti et al. leave out each norm's mean and deviation, and masks; logits
    # are in 64 bits here, not in 32. The loss keeps the labels' weight.
    norms = (2 * layers + 1) * 2 * 8
    sentence = found.memory.activations
    sentence += block.tokens * (norms + block.vocabulary * (8 - 4))
    masks = layers * block.tokens**2
    whole = g["batch"] * block.tokens * 2 * 8
    return kept(p, g, whole=whole, row=sentence, fixed=masks + 8)


@case("mixed-precision")
def _(p: int, g: Given) -> Expected:
    layers = g["layers"]
    model = stack(layers, g["elements"] // layers, kept=g["width"])
    found = run(model, Data(p), batch=p, precision=PRECISIONS["mixed"])
    # The output, and its logarithms in 32 bits. Rows are copied when they are rounded;
    # labels are a view of all labels, and their weight has 32 bits too.
    row = found.memory.activations + g["width"] * (2 + 4)
    return {
        "state": state(found),
        "payload": g["steps"] * total(found, "payload"),
        "memory.peak.weights": found.memory.parameters,
        "memory.peak.gradients": found.memory.gradients,
        "memory.peak.optimizer": found.memory.optimizer,
        **kept(p, g, whole=g["batch"] * 8, row=row, fixed=4),
    }


# In the host's memory


@case("cpu-offload-optimizer")
def _(p: int, g: Given) -> Expected:
    model = stack(1, g["elements"], kept=g["layers"] * g["width"])
    plain = run(model, Zero(1, p), batch=p)
    found = run(model, Zero(1, p) * Offload(), batch=p)
    up = total(found, "wire", "Offload", what="weights up")
    return {
        **rows_kept(p, g, found),
        "down": g["steps"] * total(found, "wire", "Offload", what="gradients down"),
        "up": g["steps"] * up,
        "volume": g["steps"] * total(found, "wire", "Zero"),
        # Gradients are packed for the exchange only, and padded then.
        "fast": found.memory.parameters + g["elements"] * g["itemsize"],
        "slow": plain.memory.optimizer + up,  # with a copy of the weights it steps
    }


@case("model-spilling")
def _(p: int, g: Given) -> Expected:
    first, *after = spilled_widths(g)
    model = network("mlp", (first,), [Item(linear=n, bias=False) for n in after])
    assert model.parameters == g["elements"]
    found = run(model, Data(p) * Offload("layers") * Checkpoint(), batch=p)
    whole = run(model, Data(p) * Checkpoint(), batch=p)
    fast = state(found) + found.memory.buffers - whole.memory.buffers
    rows, inputs = g["batch"], first * g["itemsize"]  # of which all lie in one place
    # What follows the one layer that is computed again; the last has no relu to keep.
    again = max(layer.work.passed for layer in model.layers[:-1]) * g["itemsize"]
    row = found.memory.activations - inputs + again
    return {
        "up": total(found, "wire", "Offload", what="weights up"),
        "down": total(found, "wire", "Offload", what="gradients down"),
        "fast": fast,
        "weights": fast / 2,  # the rest is their gradient
        "payload": total(found, "payload", "Data"),
        "memory.peak.activations": lambda r: inputs * rows + row * share(p, r, rows),
    }


@case("activation-checkpointing")
def _(p: int, g: Given) -> Expected:
    found = checkpointed(p, g, g["segments"])
    again = (found.executed - found.flops) / (found.flops / 3)
    # Every number of segments is tried; the ledger that is recorded is the last one's.
    finest = checkpointed(p, g, g["layers"])
    return {
        "peak": found.memory.activations + found.memory.buffers,
        "payload": total(found, "payload"),
        "forwards": g["layers"] * (1 + again),
        "memory.peak.activations": finest.memory.activations + finest.memory.buffers,
        "memory.peak.parameters": found.memory.parameters,
        "memory.peak.gradients": found.memory.gradients,
    }


def checkpointed(p: int, g: Given, segments: int) -> Prediction:
    width = g["activation_bytes"] // g["itemsize"]
    each = g["layers"] // segments * width
    model = stack(segments, g["elements"] // segments, kept=each, inputs=width)
    return run(model, Data(p) * Checkpoint(), batch=p)


# Now and then


def periodic(p: int, g: Given, axis: Axis) -> Expected:
    found = run(stack(1, g["elements"]), axis, batch=p)
    # and a meeting at the end
    steps = g["period"] * f.periodic_rounds(g["steps"], g["period"])
    return {
        "calls": steps * total(found, "count"),
        "payload": steps * total(found, "payload"),
    }


@case("local-sgd")
def _(p: int, g: Given) -> Expected:
    return periodic(p, g, LocalSGD(p, every=g["period"]))


@case("elastic-averaging")
def _(p: int, g: Given) -> Expected:
    return periodic(p, g, Elastic(p, every=g["period"]))


@case("diloco")
def _(p: int, g: Given) -> Expected:
    model, every = stack(1, g["elements"]), g["period"]
    outer = run(model, DiLoCo(p, every=every), batch=p)
    inner = run(model, LocalSGD(p, every=every), batch=p)
    expected = periodic(p, g, DiLoCo(p, every=every))
    return {**expected, "outer_state": state(outer) - state(inner)}


# With a server: rank 0, which answers all the others


def served(p: int, elements: int, axis: Axis, times: list[int]) -> Expected:
    """Each worker meets the server so many times; of each rank what it sends."""
    found = run(stack(1, elements), axis, batch=axis.ranks)
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
    expected = served(p, g["elements"], ParameterServer(p - 1), [g["steps"]] * (p - 1))
    return {**expected, "bytes_received": expected["calls.recv.payload"]}


@case("backup-workers")
def _(p: int, g: Given) -> Expected:
    sizes = g["steps"], g["backups"], g["slowdown"]
    times = [f.backup_gradients(p, q, *sizes) for q in range(1, p)]
    return served(p, g["elements"], ParameterServer(p - 1), times)


@case("stale-synchronous-parallel")
def _(p: int, g: Given) -> Expected:
    axis = ParameterServer(p - 1, mode="bounded", staleness=g["staleness"])
    return served(p, g["elements"], axis, [g["steps"]] * (p - 1))


@case("downpour")
def _(p: int, g: Given) -> Expected:
    times = [g["duration"] // g["slowdown"], *[g["duration"]] * (p - 2)]
    return served(p, g["elements"], ParameterServer(p - 1, mode="async"), times)


@case("elastic-averaging-asynchronous")
def _(p: int, g: Given) -> Expected:
    duration, period = g["duration"], g["period"]
    slow = duration // (period * g["slowdown"])
    times = [slow, *[duration // period] * (p - 2)]
    axis = Elastic(p - 1, every=g["period"], mode="async")
    return served(p, g["elements"], axis, times)


@case("sharded-parameter-server")
def _(p: int, g: Given) -> Expected:
    model = digits_network()
    assert model.parameters == g["elements"]
    found = run(model, Data(p), batch=p)  # as many bytes as an all-reduce
    sent = g["steps"] * total(found, "wire")
    # A row's pixels and its label lie with all of them; the loss keeps its scores.
    pixels, scores = model.layers[0].work.inputs * 8, model.layers[-1].work.passed * 8
    parts = [
        f.sharded_server_bytes(p, r, g["elements"], g["itemsize"], g["steps"])
        for r in range(p)
    ]
    return {
        "bytes_sent": spread(sent, parts),
        "bytes_received": spread(sent, parts),
        "memory.peak.parameters": found.memory.parameters,
        **kept(
            p,
            g,
            whole=g["batch"] * (pixels + 8),
            row=found.memory.activations - pixels + scores,
            fixed=8,
        ),
    }


# With neighbors


@case("d-psgd")
def _(p: int, g: Given) -> Expected:
    found = run(stack(1, g["elements"]), Gossip(p), batch=p)
    return {
        "bytes_sent": g["steps"] * total(found, "wire"),
        "calls.send.count": g["steps"] * total(found, "count"),
    }


@case("gossip-exchange")
def _(p: int, g: Given) -> Expected:
    found = run(stack(1, g["elements"]), Gossip(p, degree=1), batch=p)
    steps = f.gossip_messages(p, g["sweeps"])
    return {
        "bytes_sent": steps * total(found, "wire"),
        "messages": steps * total(found, "count"),
    }


# Compressed


def compressed(p: int, g: Given, how: Compress, n: int) -> Expected:
    found = run(stack(1, n), Data(p) * how, batch=p)
    return {
        "payload": g["steps"] * total(found, "payload"),
        "calls": g["steps"] * total(found, "count"),
    }


@case("top-k-error-feedback")
def _(p: int, g: Given) -> Expected:
    return compressed(p, g, Compress("top-k", ratio=0.01), 100 * g["kept"])


@case("qsgd")
def _(p: int, g: Given) -> Expected:
    return compressed(p, g, Compress("qsgd", bucket=g["bucket"]), g["elements"])


@case("one-bit-sgd")
def _(p: int, g: Given) -> Expected:
    found = run(stack(1, g["elements"]), Data(p) * Compress("one-bit"), batch=p)
    return {
        "sent": g["steps"] * total(found, "wire"),
        "calls": g["steps"] * total(found, "count"),
    }


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
    strategy = Data(p) * Compress("powersgd", rank=g["factor_rank"])
    found = run(model, strategy, batch=p)
    return {
        "payload": g["steps"] * total(found, "payload"),
        "calls": g["steps"] * total(found, "count"),
    }


@case("sufficient-factor-broadcast")
def _(p: int, g: Given) -> Expected:
    inputs, outputs = g["features_in"], g["features_out"]
    model = network("linear", (inputs,), [Item(linear=outputs)])  # and its bias
    factors = run(model, Data(p) * Compress("factors"), batch=g["local_batch"] * p)
    matrix = run(stack(1, outputs * inputs), Data(p), batch=p)
    return {
        "payload": total(factors, "payload"),
        "wins": int(total(factors, "wire") < total(matrix, "wire")),
        "calls.all_gather.count": total(factors, "count", op="all_gather"),
        "calls.all_gather.wire": total(factors, "wire", op="all_gather"),
    }
