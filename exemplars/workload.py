"""Two small real tasks that training exemplars share; nothing is downloaded.

    digits       1797 handwritten digits of 8 x 8 pixels (scikit-learn's)
    characters   the next letter in Python's own documentation (pydoc_data)

and four small convolutional networks, for those that cut a convolution.

A batch is a function of the step, a model of nothing: every rank that asks
gets the same bits. Losses are sums over samples, so that the losses of shards
add up to the loss of the batch, however unevenly it is cut.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cache
from pydoc_data.topics import topics
from typing import Any, NamedTuple, Protocol, TypeVar, cast

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.optim import Optimizer
from torch.optim.optimizer import register_optimizer_step_post_hook

from exemplars.runtime import World

CONTEXT = 16  # letters a prediction may look at


class Step(NamedTuple):
    """What one step of training did, as this rank saw it."""

    loss: float
    #: What one would keep of this rank: its copy of the model, or its part.
    #: By reference, and empty where another rank holds it.
    weights: Sequence[Tensor] = ()
    #: Updates between reading the weights and applying the gradient.
    age: int = 0


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


class Train(Protocol):
    """How a training exemplar trains: `train(w, task, **sizes)`, step by step."""

    def __call__(
        self, w: World, task: Task, *sizes: Any, **named: Any
    ) -> Iterator[Step]:
        """Train the task's model; yield after every step."""


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


# Four small convolutional networks, whose layers an exemplar may replace

Replace = Callable[[nn.Module], nn.Module]

#: What each network takes: channels and rows by columns; the fourth is 3-D.
SAMPLES = [(3, 35, 6), (3, 35, 6), (3, 35, 6), (4, 35, 4, 4)]
ROWS = 9  # of every network's smallest map; larger ones have 18 and 35
NARROW = 8  # channels of the narrowest layer; all others have a multiple


def whole(layer: nn.Module) -> nn.Module:
    """The layer as it is: nothing is replaced."""
    return layer


def cnns(
    device: torch.device | str, conv: Replace = whole, norm: Replace = whole
) -> list[nn.Module]:
    """All four, with the same weights on every call, in float64.

    Every layer is made whole, so that it draws the same numbers; `conv` and
    `norm` then say what takes its place.
    """
    makers = (
        lambda: plain(nn.Conv2d, 3, conv),  # as VGG
        lambda: resnet((1, 1, 1), conv, norm),
        lambda: resnet((1, 2, 2), conv, norm),
        lambda: plain(nn.Conv3d, 4, conv),  # as CosmoFlow
    )
    return [seeded(make)().to(device) for make in makers]


def plain(kind: type[nn.Module], channels: int, conv: Replace) -> nn.Module:
    """One convolution after the other; strides stand for the poolings."""
    sizes = (channels, 8, 1), (8, 8, 2), (8, 16, 1), (16, 16, 2)
    layers = [(conv(kind(c, f, 3, s, 1)), nn.ReLU()) for c, f, s in sizes]
    return nn.Sequential(*(part for layer in layers for part in layer))


def resnet(blocks: Sequence[int], conv: Replace, norm: Replace) -> nn.Module:
    """Three stages of residual blocks with batch norm."""
    layers: list[nn.Module] = [*convolved(3, 8, 3, 1, conv, norm), nn.ReLU()]
    c = 8
    for count, (f, stride) in zip(blocks, ((8, 1), (16, 2), (24, 2))):
        for i in range(count):
            layers.append(Residual(c, f, 1 if i else stride, conv, norm))
            c = f
    return nn.Sequential(*layers)


def convolved(
    c: int, f: int, k: int, stride: int, conv: Replace, norm: Replace
) -> nn.Sequential:
    """A convolution, and the norm that makes a bias pointless."""
    whole_conv = nn.Conv2d(c, f, k, stride, k // 2, bias=False)
    whole_norm = nn.BatchNorm2d(f, track_running_stats=False)
    return nn.Sequential(conv(whole_conv), norm(whole_norm))


class Residual(nn.Module):
    """Two convolutions beside a shortcut."""

    def __init__(
        self, c: int, f: int, stride: int, conv: Replace, norm: Replace
    ) -> None:
        super().__init__()
        self.first = convolved(c, f, 3, stride, conv, norm)
        self.second = convolved(f, f, 3, 1, conv, norm)
        self.short: nn.Module = nn.Identity()
        if (c, stride) != (f, 1):
            self.short = convolved(c, f, 1, stride, conv, norm)
        self.middle, self.end = nn.ReLU(), nn.ReLU()

    def forward(self, x: Tensor) -> Tensor:
        """(batch, c, rows, columns) to (batch, f, fewer, fewer)."""
        y = self.second(self.middle(self.first(x)))
        return cast(Tensor, self.end(y + self.short(x)))


class Norm(nn.Module):
    """Batch norm of a part of a batch, by the mean and variance of all of it.

    `total` adds up what every part has to tell: by channel its sum and its sum
    of squares, and its count.
    """

    def __init__(
        self, whole: nn.Module, total: Callable[[Tensor], Tensor]
    ) -> None:
        super().__init__()
        assert isinstance(whole, nn.BatchNorm2d)
        self.whole, self.total = whole, total

    def forward(self, x: Tensor) -> Tensor:
        """(batch, channels, rows, columns) to the same."""
        over, count = (0, 2, 3), x.new_full((1,), x[:, 0].numel())
        told = torch.cat([x.sum(over), x.square().sum(over), count])
        total, squares, count = self.total(told).split(x.shape[1])
        mean, square = total / count, squares / count
        variance = square - mean.square()
        scale = self.whole.weight * (variance + self.whole.eps).rsqrt()
        shift = self.whole.bias - mean * scale
        return x * scale[:, None, None] + shift[:, None, None]


class Pass(NamedTuple):
    """What a pass forward and backward through all four computed."""

    activations: list[Tensor]
    dx: list[Tensor]
    dw: list[Tensor]  # of the convolutions
    dn: list[Tensor]  # of the norms


def images(w: World, batch: int) -> list[Tensor]:
    """Samples for each of the four, the same on every rank."""
    return [w.randn(batch, *shape, seed=0) for shape in SAMPLES]


def passes(nets: Sequence[nn.Module], samples: Sequence[Tensor]) -> Pass:
    """Of the sum of squares; parts of a batch or of a sample add up."""
    found = Pass([], [], [], [])

    def see(_: nn.Module, x: tuple[Tensor], y: Tensor) -> None:
        found.activations.append(y.detach())

    for net, x in zip(nets, samples):
        relus = [m for m in net.modules() if isinstance(m, nn.ReLU)]
        hooks = [m.register_forward_hook(see) for m in relus]
        x = x.detach().requires_grad_()
        net(x).square().sum().backward()
        for hook in hooks:
            hook.remove()
        norms = [m for m in net.modules() if isinstance(m, nn.BatchNorm2d)]
        of_norms = {id(p) for norm in norms for p in norm.parameters()}
        for p in net.parameters():
            (found.dn if id(p) in of_norms else found.dw).append(_grad(p))
        found.dx.append(_grad(x))
    return found


def _grad(t: Tensor) -> Tensor:
    assert t.grad is not None
    return t.grad


class Shapes(NamedTuple):
    """A convolution, and the shapes it takes and makes of one sample."""

    conv: nn.Conv2d | nn.Conv3d
    x: torch.Size
    y: torch.Size


def convs() -> list[Shapes]:
    """Of all four networks, whole; nothing is computed."""
    found: list[Shapes] = []

    def see(conv: Any, x: tuple[Tensor], y: Tensor) -> None:
        found.append(Shapes(conv, x[0].shape[1:], y.shape[1:]))

    for net, sample in zip(cnns("meta"), SAMPLES):
        for m in net.modules():
            if isinstance(m, nn.Conv2d | nn.Conv3d):
                m.register_forward_hook(see)
        net(torch.empty(2, *sample, device="meta", dtype=torch.double))
    return found


def cut_sizes(layers: Sequence[Shapes]) -> dict[str, int]:
    """What these convolutions add up to for one sample, in formulas' words."""
    return {
        "narrow": NARROW,
        "inputs": sum(layer.x.numel() for layer in layers),
        "outputs": sum(layer.y.numel() for layer in layers),
    }


def norm_sizes() -> dict[str, int]:
    """The batch norms of all four networks, and their channels."""
    modules = [m for net in cnns("meta") for m in net.modules()]
    norms = [m for m in modules if isinstance(m, nn.BatchNorm2d)]
    channels = sum(norm.num_features for norm in norms)
    return {"norms": len(norms), "norm_channels": channels}


def row_sizes() -> dict[str, int]:
    """What a cut by rows moves: halos of one sample, and what is summed."""
    halo = halos = 0
    for conv, x, _ in convs():
        overlap = max(0, conv.kernel_size[0] - conv.stride[0])
        halo += overlap * x.numel() // x[1]
        halos += min(
            2, overlap
        )  # one message up, and one down if there are two
    sizes = {"elements": cnn_parameters(), "halo": halo, "halos": halos}
    return {**sizes, **norm_sizes()}


def cnn_parameters() -> int:
    """The parameters of all four networks."""
    return sum(t.numel() for net in cnns("meta") for t in net.parameters())


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


def tied_gpt() -> nn.Module:
    """The embedding is the head's matrix too; the places are frozen."""
    model = gpt()
    letters = model.get_parameter("0.letter.weight")
    model.get_submodule("4").register_parameter("weight", letters)
    model.get_parameter("0.place.weight").requires_grad_(False)
    return model


tied_characters = Task("characters, tied", seeded(tied_gpt), _characters_batch)


def random_rows(w: World, layers: int, width: int) -> Task:
    """Classify random rows: a task whose model may have any size."""

    def batch(step: int, size: int) -> tuple[Tensor, Tensor]:
        labels = torch.arange(size) % width
        return w.randn(size, width, seed=step), labels

    return Task("random rows", lambda: equal_layers(layers, width), batch)


def weights_of(w: World, task: Task) -> tuple[list[nn.Parameter], Task]:
    """A model's weights, to be watched, and a task that trains this model."""
    model = task.model().to(w.device)
    return [*model.parameters()], replace(task, model=lambda: model)


class Optimizers:
    """Those that step within `with`: what they update, and what they keep."""

    def __init__(self) -> None:
        self.seen: set[Optimizer] = set()

    def __enter__(self) -> None:
        self.hook = register_optimizer_step_post_hook(
            lambda optimizer, *_: self.seen.add(optimizer)
        )

    def __exit__(self, *_: object) -> None:
        self.hook.remove()

    def weights(self) -> list[Tensor]:
        """What they update, as they were given it."""
        groups = [group for o in self.seen for group in o.param_groups]
        return [weight for group in groups for weight in group["params"]]

    def state(self) -> list[Tensor | None]:
        """All of it: what they update, its gradients, and moments."""
        return [*self.weights(), *self.gradients(), *self.moments()]

    def gradients(self) -> list[Tensor | None]:
        """Of what they update."""
        return [weight.grad for weight in self.weights()]

    def moments(self) -> list[Tensor]:
        """What they remember of each element; a step counter is of none."""
        states = [state for o in self.seen for state in o.state.values()]
        return [t for state in states for t in state.values() if t.dim() > 0]
