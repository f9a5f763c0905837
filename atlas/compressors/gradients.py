"""The gradients that go through every compressor: of two tasks, in float32, recorded.

One process trains each task by plain SGD and keeps what four ranks would have computed
at a few points of the training. All of it is seeded, so it is recomputed and never
stored. `played` turns a recording into a task: whatever the weights are, the gradient
is the recorded one.
"""

from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from typing import Literal

import torch
from torch import Tensor, nn
from torch.nn.utils import parameters_to_vector, vector_to_parameters

from exemplars.workload import Task, characters, digits, gpt

Name = Literal["digits", "characters"]
TASKS: tuple[Name, ...] = ("digits", "characters")
RANKS = 4
SHARE = 8  # samples of a rank in a step
RATE = 0.1  # of the training that is recorded
POINTS = (0, 50)  # steps of training before a recording begins
STEPS = 16  # that a recording has
#: The tasks of the exemplars, with wider networks: a message has to outweigh a call.
HIDDEN, WIDTH, HEADS, LAYERS = 256, 64, 4, 2


def perceptron() -> nn.Module:
    """Two hidden layers, for digits."""
    return nn.Sequential(
        nn.Linear(64, HIDDEN),
        nn.Tanh(),
        nn.Linear(HIDDEN, HIDDEN),
        nn.Tanh(),
        nn.Linear(HIDDEN, 10),
    )


def network(name: Name, seed: int = 0) -> nn.Module:
    """The network of a task; the same weights for the same seed."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        made = perceptron() if name == "digits" else gpt(WIDTH, HEADS, LAYERS)
        return made.float()


@cache
def shapes(name: Name) -> tuple[torch.Size, ...]:
    """Of the parameters, in order."""
    return tuple(p.shape for p in network(name).parameters())


def elements(name: Name) -> int:
    """Entries of a gradient."""
    return sum(shape.numel() for shape in shapes(name))


def task(name: Name, seed: int = 0) -> Task:
    """The exemplars' task with this network, in float32; other seeds, other batches."""
    ground = digits if name == "digits" else characters

    def batch(step: int, size: int) -> tuple[Tensor, Tensor]:
        x, y = ground.batch(step + 1_000_003 * (seed + 1), size)
        return (x.float() if x.is_floating_point() else x), y

    return Task(name, lambda: network(name, seed), batch)


def evaluate(name: Name, weights: Tensor) -> float:
    """Mean loss on samples drawn apart: 1797 digits or 512 windows of text."""
    ground, model = task(name), network(name)
    vector_to_parameters(weights, model.parameters())
    x, y = ground.batch(-1, 1797 if name == "digits" else 512)
    with torch.no_grad():
        return ground.loss(model, x, y).item() / y.numel()


@cache
def recorded(name: Name) -> dict[int, Tensor]:
    """By point of training: (steps, ranks, elements), from there step after step."""
    ground = task(name)
    model = ground.model()
    weights = parameters_to_vector(model.parameters()).detach()
    every = []
    for step in range(POINTS[-1] + STEPS):
        numbers = range(step * RANKS, (step + 1) * RANKS)
        rows = torch.stack([slope(ground, model, number) for number in numbers])
        every.append(rows)
        weights = weights - RATE * rows.mean(0)
        vector_to_parameters(weights, model.parameters())
    return {point: torch.stack(every[point : point + STEPS]) for point in POINTS}


def slope(ground: Task, model: nn.Module, number: int) -> Tensor:
    """The gradient of one batch's mean loss, as one vector."""
    weights = list(model.parameters())
    x, y = ground.batch(number, SHARE)
    loss = ground.loss(model, x, y) / y.numel()
    return parameters_to_vector(torch.autograd.grad(loss, weights))


@dataclass(frozen=True)
class Played(Task):
    """A task whose batch is a gradient, and whose loss is linear in the weights."""

    def loss(self, model: nn.Module, x: Tensor, y: Tensor) -> Tensor:
        """Its gradient is x, wherever the weights are."""
        return parameters_to_vector(model.parameters()) @ x


def played(name: Name, gradient: Callable[[int], Tensor]) -> Played:
    """The n-th batch has the gradient `gradient(n)`; all weights begin at 0."""

    def model() -> nn.Module:
        made = network(name)
        for p in made.parameters():
            nn.init.zeros_(p)
        return made

    return Played(name, model, lambda number, size: (gradient(number), torch.zeros(1)))
