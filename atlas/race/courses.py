"""What is raced on: a task, how much of it, at what rate, and how fast all are."""

from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from typing import Literal

import torch
from torch import Tensor, nn
from torch.nn.utils import vector_to_parameters

from atlas.clock import Clock, constant, one_slow
from exemplars.workload import Block, Embedding, Task, characters, digits

RANKS = 4
SHARE = 8  # samples of a rank at a step
SLOWDOWN = 3  # of rank 1, where there is a straggler
WIDTH = {"digits": 64, "characters": 16}
Name = Literal["digits", "characters"]


@dataclass(frozen=True)
class Course:
    """One race's ground; frozen and small, so that it travels to the ranks."""

    task: Name
    steps: int  # of all ranks together: steps * RANKS * SHARE samples
    rate: float
    straggler: bool = False
    seed: int = 0
    share: int = SHARE
    looks: int = 12  # at the weights, on the way

    @property
    def batch(self) -> int:
        """Samples that all ranks together take at a step."""
        return RANKS * self.share

    @property
    def samples(self) -> int:
        """What every strategy learns from, whoever takes which."""
        return self.steps * self.batch

    @property
    def seconds(self) -> Clock:
        """A step of a rank's share lasts one virtual second."""
        if self.straggler:
            return one_slow(rank=1, factor=SLOWDOWN)
        return constant(1.0)


def bodies(name: Name) -> list[nn.Module]:
    """Four parts of one network, one after the other."""
    width = WIDTH[name]
    if name == "digits":
        return [nn.Sequential(nn.Linear(width, width), nn.Tanh()) for _ in range(4)]
    embedding = Embedding(_letters(), width)
    return [embedding, Block(width, 2), Block(width, 2), nn.LayerNorm(width)]


def head(name: Name) -> nn.Module:
    """The classifier at the end; local losses have one at every part."""
    return nn.Linear(WIDTH[name], 10 if name == "digits" else _letters())


@cache
def _letters() -> int:
    """How many there are, from the exemplars' own model."""
    embedding = next(m for m in characters.model().modules() if hasattr(m, "letter"))
    assert isinstance(embedding, Embedding)
    return embedding.letter.num_embeddings


def network(name: Name, seed: int) -> nn.Sequential:
    """The whole network: the parts, then the classifier, the same for all."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        return nn.Sequential(*bodies(name), head(name)).double()


def task(course: Course) -> Task:
    """The exemplars' task, with this race's network and this seed's batches."""
    ground = digits if course.task == "digits" else characters

    def batch(step: int, size: int) -> tuple[Tensor, Tensor]:
        return ground.batch(step + 1_000_003 * (course.seed + 1), size)

    model = _maker(course)
    return Task(course.task, model, batch)


def _maker(course: Course) -> Callable[[], nn.Module]:
    return lambda: network(course.task, course.seed)


def evaluate(name: Name, weights: Tensor) -> float:
    """Mean loss on what all are judged by: a draw of 1797 digits or 512 windows."""
    model = network(name, 0)
    vector_to_parameters(weights, model.parameters())
    ground = digits if name == "digits" else characters
    x, y = ground.batch(7, 1797 if name == "digits" else 512)
    with torch.no_grad():
        return ground.loss(model, x, y).item() / y.numel()
