"""Two small real tasks that training exemplars share; nothing is downloaded.

    digits       1797 handwritten digits of 8 x 8 pixels (scikit-learn's)
    characters   the next letter in Python's own documentation (pydoc_data)

A batch is a function of the step, a model of nothing: every rank that asks
gets the same bits. Losses are sums over samples, so that the losses of shards
add up to the loss of the batch, however unevenly it is cut.
"""

from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from pydoc_data.topics import topics
from typing import NamedTuple, TypeVar

import torch
from torch import Tensor, nn
from torch.nn import functional as F

CONTEXT = 16  # letters a prediction may look at


class Step(NamedTuple):
    """What one step of training did."""

    samples: int
    loss: float


@dataclass(frozen=True)
class Task:
    """A model and the batches it learns from."""

    name: str
    model: Callable[[], nn.Module]
    batch: Callable[[int, int], tuple[Tensor, Tensor]]

    def loss(self, model: nn.Module, x: Tensor, y: Tensor) -> Tensor:
        """Cross-entropy summed over samples, 0 for an empty shard."""
        return F.cross_entropy(
            model(x).flatten(0, -2), y.flatten(), reduction="sum"
        )


def mlp() -> nn.Module:
    """A perceptron with one hidden layer, for digits."""
    return nn.Sequential(nn.Linear(64, 32), nn.Tanh(), nn.Linear(32, 10))


def cnn() -> nn.Module:
    """Two convolutions, for digits."""
    return nn.Sequential(
        nn.Unflatten(1, (1, 8, 8)),
        nn.Conv2d(1, 8, 3, padding=1),
        nn.ReLU(),
        nn.Conv2d(8, 16, 3, stride=2, padding=1),
        nn.ReLU(),
        nn.Flatten(),
        nn.Linear(256, 10),
    )


class Block(nn.Module):
    """One transformer layer: attention and a perceptron, with residuals."""

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.norm1, self.norm2 = nn.LayerNorm(width), nn.LayerNorm(width)
        self.qkv = nn.Linear(width, 3 * width)
        self.out = nn.Linear(width, width)
        self.up, self.down = (
            nn.Linear(width, 4 * width),
            nn.Linear(4 * width, width),
        )

    def forward(self, x: Tensor) -> Tensor:
        """(batch, tokens, width) to the same."""
        q, k, v = self.qkv(self.norm1(x)).chunk(3, dim=-1)
        x = x + self.out(attention(q, k, v, self.heads))
        return x + self.down(F.gelu(self.up(self.norm2(x))))


def attention(q: Tensor, k: Tensor, v: Tensor, heads: int) -> Tensor:
    """Causal attention over (batch, tokens, width), heads side by side."""
    q, k, v = (t.unflatten(-1, (heads, -1)).transpose(1, 2) for t in (q, k, v))
    scores = q @ k.transpose(-1, -2) / q.shape[-1] ** 0.5
    future = torch.ones(
        scores.shape[-2:], dtype=torch.bool, device=q.device
    ).triu(1)
    weights = scores.masked_fill(future, float("-inf")).softmax(-1)
    return (weights @ v).transpose(1, 2).flatten(2)


class Embedding(nn.Module):
    """Letters and their places, as vectors."""

    def __init__(self, letters: int, width: int) -> None:
        super().__init__()
        self.letter = nn.Embedding(letters, width)
        self.place = nn.Embedding(CONTEXT, width)

    def forward(self, x: Tensor) -> Tensor:
        """(batch, tokens) to (batch, tokens, width)."""
        return self.letter(x) + self.place(
            torch.arange(x.shape[1], device=x.device)
        )


def gpt(width: int = 16, heads: int = 2, layers: int = 2) -> nn.Module:
    """A small decoder-only transformer over letters."""
    letters = len(_text()[1])
    blocks = [Block(width, heads) for _ in range(layers)]
    return nn.Sequential(
        Embedding(letters, width),
        *blocks,
        nn.LayerNorm(width),
        nn.Linear(width, letters),
    )


Made = TypeVar("Made", bound=nn.Module)


def seeded(make: Callable[[], Made]) -> Callable[[], Made]:
    """The same weights on every call, in float64; other seeds are left alone."""

    def made() -> Made:
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(0)
            return make().double()

    return made


def equal_layers(count: int, width: int) -> nn.Sequential:
    """A stack of equal layers, each a matrix and a tanh; for random rows."""

    def made() -> nn.Sequential:
        pairs = [(nn.Linear(width, width), nn.Tanh()) for _ in range(count)]
        return nn.Sequential(*(nn.Sequential(*pair) for pair in pairs))

    return seeded(made)()


@cache
def _digits() -> tuple[Tensor, Tensor]:
    from sklearn.datasets import load_digits

    data = load_digits()
    return torch.from_numpy(data.data / 16.0), torch.from_numpy(
        data.target
    ).long()


@cache
def _text() -> tuple[Tensor, str]:
    text = "\n".join(topics[key] for key in sorted(topics))[:50_000]
    letters = "".join(sorted(set(text)))
    place = {c: i for i, c in enumerate(letters)}
    return torch.tensor([place[c] for c in text]), letters


def _picks(step: int, count: int, most: int) -> Tensor:
    source = torch.Generator().manual_seed(step)
    return torch.randint(most, (count,), generator=source)


def _digits_batch(step: int, size: int) -> tuple[Tensor, Tensor]:
    images, labels = _digits()
    rows = _picks(step, size, len(images))
    return images[rows], labels[rows]


def _characters_batch(step: int, size: int) -> tuple[Tensor, Tensor]:
    text, _ = _text()
    starts = _picks(step, size, len(text) - CONTEXT)
    window = starts[:, None] + torch.arange(CONTEXT + 1)
    return text[window[:, :-1]], text[window[:, 1:]]


digits = Task("digits", seeded(mlp), _digits_batch)
digits_cnn = Task("digits, convolutional", seeded(cnn), _digits_batch)
characters = Task("characters", seeded(gpt), _characters_batch)
