"""What a technique's records must hold, if the oracle is right: words for the cases.

A case predicts a strategy on a small network of an exemplar's own sizes, as a user
would, and says which counts of the exemplar's record that makes. A figure is every
rank's, a function of the rank, or the largest of all ranks.
"""

from collections.abc import Callable, Sequence
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from typing import Any, NamedTuple

from atlas.formulas.parts import chunk
from atlas.planner.cluster import Cluster, Device, Level, Link
from atlas.planner.mesh import mesh
from atlas.planner.model import Layer, Model
from atlas.planner.network import Item, convolution, network, unchannelled
from atlas.planner.predict import predict
from atlas.planner.prediction import Collective, Prediction
from atlas.planner.records import Work
from atlas.planner.strategy import Axis, Strategy
from atlas.planner.traffic import inside, sites_of
from atlas.planner.train import OPTIMIZERS, PRECISIONS, Train
from atlas.planner.transformer import transformer

ROOT = Path(__file__).resolve().parents[2]
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


class Most(NamedTuple):
    """The fullest rank's figure, where others may have less."""

    figure: float


Given = dict[str, int]
Expected = dict[str, float | Most | Callable[[int], float]]
Case = Callable[[int, Given], Expected]
CASES: dict[str, Case] = {}


def case(name: str) -> Callable[[Case], Case]:
    """Registers what a technique's records must hold."""

    def keep(fn: Case) -> Case:
        assert name not in CASES
        CASES[name] = fn
        return fn

    return keep


def counted(rank: dict[str, Any], claim: str) -> Any:
    """What the meter counted: a measure by its name, or a place in the record."""
    match claim.split("."):
        case ["calls", op, field]:
            return rank["calls"].get(op, {field: 0})[field]
        case ["memory", "peak", kind]:
            return rank["memory"]["peak"][kind]
        case ["flops"]:
            return rank["flops"]
    return rank["measured"][claim]


# Predictions


def stack(units: int, parameters: int, **more: Any) -> Model:
    """Equal units of so many parameters that no axis cuts."""
    work = Work(
        layers=1, shared=parameters, largest=parameters, flops=1.0, kernels=1, **more
    )
    layers = tuple(Layer(f"unit {i}", work) for i in range(units))
    return Model("stack", "cnn", layers, uniform=True)


def run(model: Model, strategy: Strategy | Axis, **train: Any) -> Prediction:
    return predict(model, strategy, CLUSTER, replace(TRAIN, **train))


def total(
    found: Prediction, field: str, axis: str = "", op: str = "", what: str = ""
) -> Any:
    """A field of the prediction's collectives, added up."""
    return sum(
        getattr(c, field)
        for c in found.collectives
        if axis in ("", c.axis) and op in ("", c.op) and what in ("", c.what)
    )


def state(found: Prediction) -> float:
    held = found.memory
    return held.parameters + held.gradients + held.optimizer


def by_stage(found: Prediction) -> list[list[Collective]]:
    """The calls inside each stage, of which a prediction tells the slowest one's."""
    made = mesh(found.model, found.strategy, found.cluster, found.train)
    sites = sites_of(found.model, made, found.cluster)
    return [list(inside(site)) for site in sites]


def spread(predicted: float, parts: Sequence[float]) -> Callable[[int], float]:
    """Each rank's uneven part, when the oracle predicts their mean to the byte."""
    assert round(predicted * len(parts)) == sum(parts), (predicted, sum(parts))
    return parts.__getitem__


def share(p: int, r: int, samples: int, micros: int = 1) -> int:
    """Samples of rank r's largest micro-batch, of a batch that is cut unevenly."""
    return max(chunk(samples, p * micros, r * micros + k) for k in range(micros))


# Networks: their sizes are read from the exemplars' own


def perceptron(*widths: int) -> Model:
    """Linear layers, one after the other."""
    before, *after = widths
    return network("mlp", (before,), [Item(linear=width) for width in after])


def digits_network() -> Model:
    """The perceptron that learns digits."""
    from torch import nn

    from exemplars.workload import digits

    linears = [m for m in digits.model().modules() if isinstance(m, nn.Linear)]
    return perceptron(linears[0].in_features, *(m.out_features for m in linears))


def letters_network() -> Model:
    """The transformer that learns letters."""
    from exemplars.workload import CONTEXT, Block, characters

    parts: list[Any] = [*characters.model().children()]
    blocks = [part for part in parts if isinstance(part, Block)]
    return transformer(
        "gpt",
        layers=len(blocks),
        width=blocks[0].out.in_features,
        heads=blocks[0].heads,
        vocabulary=parts[-1].out_features,
        tokens=CONTEXT,
        dropout=False,
    )


def spilled_widths(g: Given) -> list[int]:
    """Of the inputs of the layers that are spilled, and of the output."""
    import torch

    from exemplars.parameter_distribution.memory_tiers.model_spilling import network
    from exemplars.runtime import World

    alone = World(rank=0, size=1, device=torch.device("cpu"))
    matrices = network(alone, g["layers"], g["width"])
    return [len(matrices[0]), *(matrix.shape[1] for matrix in matrices)]


def searched_widths(g: Given) -> list[int]:
    """Of the layers for which a strategy is searched, wider inside."""
    width = g["width"]
    widths = [width, 2 * width, 4 * width, width, width]
    assert sum(a * b for a, b in pairwise(widths)) == g["elements"]
    return widths


def image_network(g: Given) -> Model:
    """The one convolution that the halo exchange is shown with; it has four filters."""
    image = (g["channels"], g["rows"], g["columns"])
    layer, _ = convolution(image, Item(kernel=g["kernel"]), 4)
    return Model("image", "cnn", (layer,))


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
