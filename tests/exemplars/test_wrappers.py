"""Wrappers train a stranger's module as one process would, whatever it is made of."""

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.optim import SGD, AdamW

from atlas.launch import LaunchError, launch
from exemplars.parameter_distribution.replicated.ddp_by_hand import DataParallel
from exemplars.parameter_distribution.sharded.zero_1 import Zero1
from exemplars.parameter_distribution.sharded.zero_2 import Zero2
from exemplars.parameter_distribution.sharded.zero_3 import Zero3
from exemplars.runtime import World

RANKS, MICROBATCHES, STEPS, ROWS = 3, 3, 3, 2
WORDS, WIDTH = 11, 8

# Modules that a stranger may bring


class Tied(nn.Module):
    """A transformer layer whose head is its embedding, in float64."""

    def __init__(self) -> None:
        super().__init__()
        self.embedding = nn.Embedding(WORDS, WIDTH)
        self.layer = nn.TransformerEncoderLayer(
            WIDTH, 2, 16, dropout=0, batch_first=True
        )
        self.head = nn.Linear(WIDTH, WORDS, bias=False)
        self.head.weight = self.embedding.weight
        self.double()

    def forward(self, x: Tensor) -> Tensor:
        y: Tensor = self.head(self.layer(self.embedding(x)))
        return y


class Frozen(Tied):
    """The same, with a layer that does not learn, and a weight of no child's."""

    def __init__(self) -> None:
        super().__init__()
        for p in self.layer.parameters():
            p.requires_grad_(False)
        self.scale = nn.Parameter(torch.ones(WIDTH, dtype=torch.double))

    def forward(self, x: Tensor) -> Tensor:
        y: Tensor = self.head(self.layer(self.embedding(x)) * self.scale)
        return y


class Rare(Tied):
    """The same, with a weight for one word: many micro-batches do not use it."""

    def __init__(self) -> None:
        super().__init__()
        self.rare = nn.Parameter(torch.ones(WIDTH, dtype=torch.double))

    def forward(self, x: Tensor) -> Tensor:
        y, here = self.layer(self.embedding(x)), (x == 0).unsqueeze(-1)
        if here.any():
            y = torch.where(here, y * self.rare, y)
        out: Tensor = self.head(y)
        return out


class Mixed(nn.Module):
    """Layers in float32 and in float64."""

    def __init__(self) -> None:
        super().__init__()
        self.embedding = nn.Embedding(WORDS, WIDTH)
        self.wide = nn.Sequential(nn.Linear(WIDTH, 5).double(), nn.Tanh())
        self.norm = nn.ModuleDict({"a": nn.LayerNorm(5), "b": nn.LayerNorm(5).double()})
        self.head = nn.Linear(5, WORDS, dtype=torch.double)

    def forward(self, x: Tensor) -> Tensor:
        y = self.wide(self.embedding(x).double())
        y = self.norm["b"](y + self.norm["a"](y.float()))
        out: Tensor = self.head(y)
        return out


MODULES = [Tied, Frozen, Rare, Mixed]
OPTIMIZERS = {
    "SGD with momentum": (SGD, {"lr": 0.1, "momentum": 0.9}),
    #: A large eps: some gradients are zero but for roundings, which Adam would blow up.
    "AdamW": (AdamW, {"lr": 0.01, "weight_decay": 0.1, "eps": 1e-3}),
}

# Adapters: a module and an optimizer to what steps, and what the weights are then

Options = dict[str, Any]
Adapted = tuple[nn.Module, Any, Callable[[], dict[str, Tensor]]]


def named(module: nn.Module) -> Callable[[], dict[str, Tensor]]:
    return lambda: {n: p.detach().clone() for n, p in module.named_parameters()}


def ddp(module: nn.Module, make: Any, options: Options) -> Adapted:
    wrapped = DataParallel(module, bucket=50)
    return wrapped, make(wrapped.parameters(), **options), named(module)


def zero_1(module: nn.Module, make: Any, options: Options) -> Adapted:
    return module, Zero1(module.parameters(), make, **options), named(module)


def zero_2(module: nn.Module, make: Any, options: Options) -> Adapted:
    return module, Zero2(module, make, **options), named(module)


def zero_3(module: nn.Module, make: Any, options: Options) -> Adapted:
    wrapped = Zero3(module)
    return wrapped, make(wrapped.parameters(), **options), wrapped.whole


WRAPPERS = [ddp, zero_1, zero_2, zero_3]

# Training, on one process and on many


def sample(step: int, part: int) -> tuple[Tensor, Tensor]:
    source = torch.Generator().manual_seed(100 * step + part)
    x = torch.randint(WORDS, (ROWS, 4), generator=source)
    return x, x.roll(1, dims=1)


def loss_of(module: nn.Module, parts: list[tuple[Tensor, Tensor]]) -> Tensor:
    x, y = (torch.cat(column) for column in zip(*parts, strict=True))
    return F.cross_entropy(module(x).flatten(0, 1), y.flatten())


def seeded(kind: type[nn.Module]) -> nn.Module:
    torch.manual_seed(0)
    return kind()


def one_process(kind: type[nn.Module], make: Any, options: Options) -> Any:
    module = seeded(kind)
    optimizer = make(module.parameters(), **options)
    for step in range(STEPS):
        optimizer.zero_grad()
        parts = [sample(step, i) for i in range(RANKS * MICROBATCHES)]
        loss_of(module, parts).backward()
        optimizer.step()
    return named(module)()


def on_ranks(
    w: World, kind: type[nn.Module], adapter: Any, make: Any, options: Options
) -> Any:
    module, optimizer, weights = adapter(seeded(kind), make, options)
    if isinstance(module, DataParallel):
        module.microbatches = MICROBATCHES
    for step in range(STEPS):
        optimizer.zero_grad()
        for k in range(MICROBATCHES):
            parts = [sample(step, w.rank * MICROBATCHES + k)]
            (loss_of(module, parts) / MICROBATCHES).backward()
        optimizer.step()
    return weights()


#: DataParallel refuses two dtypes; the layers of Zero2 leave as they complete, so all
#: ranks must use the same ones.
REFUSED = [(ddp, Mixed), (zero_2, Rare)]
PAIRS = [(a, k) for a in WRAPPERS for k in MODULES if (a, k) not in REFUSED]


@pytest.mark.parametrize("optimizer", OPTIMIZERS)
@pytest.mark.parametrize(("adapter", "kind"), PAIRS)
def test_a_wrapped_module_learns_what_one_process_learns(
    kind: type[nn.Module], adapter: Any, optimizer: str
) -> None:
    make, options = OPTIMIZERS[optimizer]
    expected = one_process(kind, make, options)
    coarse = any(weight.dtype == torch.float for weight in expected.values())
    close = 1e-6 if coarse else 1e-12
    for found in launch(on_ranks, RANKS, kind, adapter, make, options):
        assert found.keys() == expected.keys()
        for name, weight in found.items():
            assert weight.dtype == expected[name].dtype
            torch.testing.assert_close(
                weight, expected[name], rtol=close, atol=close, msg=name
            )


# Habits of strangers


def accumulates_while_syncing(w: World) -> Any:
    module = DataParallel(seeded(Tied), bucket=50)
    for part in range(2):
        loss_of(module, [sample(0, 2 * w.rank + part)]).backward()
    return {n: p.grad for n, p in module.module.named_parameters()}


def test_data_parallel_gradients_add_up_without_no_sync() -> None:
    whole = seeded(Tied)
    for part in range(2):
        loss_of(whole, [sample(0, 2 * r + part) for r in range(RANKS)]).backward()
    for found in launch(accumulates_while_syncing, RANKS):
        for name, p in whole.named_parameters():
            torch.testing.assert_close(found[name], p.grad)


def forward_only(w: World, adapter: Any) -> Any:
    module, optimizer, weights = adapter(seeded(Tied), SGD, {"lr": 0.1})
    with torch.no_grad():
        module(sample(0, w.rank)[0])
    module(sample(0, w.rank)[0])  # with a graph, and without backward
    optimizer.zero_grad()
    loss_of(module, [sample(0, w.rank)]).backward()
    optimizer.step()
    return weights()


@pytest.mark.parametrize("adapter", WRAPPERS)
def test_a_forward_without_backward_disturbs_nothing(adapter: Any) -> None:
    module = seeded(Tied)
    sgd = SGD(module.parameters(), lr=0.1)
    loss_of(module, [sample(0, r) for r in range(RANKS)]).backward()
    sgd.step()
    expected = named(module)()
    for found in launch(forward_only, RANKS, adapter):
        for name, weight in found.items():
            torch.testing.assert_close(weight, expected[name])


def starts_apart(w: World) -> Any:
    torch.manual_seed(w.rank)
    module = nn.Sequential(nn.Linear(3, 3), nn.BatchNorm1d(3))
    DataParallel(module, bucket=10)
    return [t.clone() for t in module.state_dict().values()]


def test_data_parallel_replicas_start_from_rank_0() -> None:
    first, *others = launch(starts_apart, RANKS)
    for other in others:
        for ours, theirs in zip(first, other, strict=True):
            assert torch.equal(ours, theirs)


def of_two_dtypes(w: World) -> None:
    DataParallel(seeded(Mixed), bucket=50)


def test_data_parallel_refuses_two_dtypes_in_one_line() -> None:
    with pytest.raises(LaunchError, match="must have one dtype"):
        launch(of_two_dtypes, 2)


def wrapped_twice(w: World) -> None:
    DataParallel(DataParallel(seeded(Tied), bucket=50), bucket=50)


def test_wrapping_twice_is_refused_in_one_line() -> None:
    with pytest.raises(LaunchError, match="in a DataParallel already"):
        launch(wrapped_twice, 2)


def parameters_of(w: World) -> tuple[list[str], int, bool]:
    module = Zero3(seeded(Tied))
    module.eval()
    names = [n for n, _ in module.named_parameters()]
    return names, sum(p.numel() for p in module.parameters()), module.module.training


def test_a_zero_3_module_has_its_shards_as_parameters() -> None:
    elements = sum(p.numel() for p in seeded(Tied).parameters())
    for names, count, training in launch(parameters_of, RANKS):
        assert all(name.startswith("shards.") for name in names)
        assert elements <= RANKS * count < elements + RANKS * len(names)
        assert not training
