"""Contracts of wrappers and optimizers: p ranks must learn what one process learns."""

import inspect
from collections.abc import Callable, Iterator
from contextlib import nullcontext
from functools import partial
from typing import TYPE_CHECKING, Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.nn import functional as F
from torch.optim import SGD, AdamW

from atlas.check.contracts.base import Broken, Case, Contract, Options, close

if TYPE_CHECKING:
    from exemplars.runtime import World

WORDS, WIDTH, ROWS, STEPS = 11, 6, 2, 3
#: Methods that hand-written wrappers want called between backward and the step.
FINISH = (
    "finish_gradient_synchronization",
    "sync_gradients",
    "average_gradients",
    "reduce_gradients",
    "synchronize",
)

# Modules, in float64 so that roundings are far below any mistake


class Plain(nn.Module):
    """An embedding, a hidden layer and a head, of sizes that no rank count divides."""

    def __init__(self) -> None:
        super().__init__()
        self.embedding = nn.Embedding(WORDS, WIDTH)
        self.hidden = nn.Linear(WIDTH, WIDTH)
        self.head = nn.Linear(WIDTH, WORDS, bias=False)
        self.double()

    def forward(self, x: Tensor) -> Tensor:
        y: Tensor = self.head(torch.tanh(self.hidden(self.embedding(x))))
        return y


class Tied(Plain):
    """The head is the embedding."""

    def __init__(self) -> None:
        super().__init__()
        self.head.weight = self.embedding.weight


class Frozen(Plain):
    """The hidden layer does not learn."""

    def __init__(self) -> None:
        super().__init__()
        self.hidden.requires_grad_(False)


class Mixed(Plain):
    """The hidden layer is in float32."""

    def __init__(self) -> None:
        super().__init__()
        self.hidden.float()

    def forward(self, x: Tensor) -> Tensor:
        y = torch.tanh(self.hidden(self.embedding(x).float())).double()
        out: Tensor = self.head(y)
        return out


Kind = type[nn.Module]
Make = Callable[..., torch.optim.Optimizer]
OPTIMIZERS: dict[str, tuple[Make, dict[str, float]]] = {
    "SGD with momentum": (SGD, {"lr": 0.1, "momentum": 0.9}),
    #: A large eps: a gradient that is zero but for roundings is not blown up.
    "AdamW": (AdamW, {"lr": 0.01, "eps": 1e-3}),
}


def seeded(w: "World", kind: Kind, seed: int = 0) -> nn.Module:
    """The same module on every rank."""
    torch.manual_seed(seed)
    return kind().to(w.device)


def sample(w: "World", step: int, part: int) -> tuple[Tensor, Tensor]:
    """One micro-batch; any process can make any of them."""
    source = torch.Generator().manual_seed(100 * step + part)
    x = torch.randint(WORDS, (ROWS, 4), generator=source).to(w.device)
    return x, x.roll(1, dims=1)


def loss_of(module: Any, x: Tensor, y: Tensor) -> Tensor:
    """The mean over the letters."""
    return F.cross_entropy(module(x).flatten(0, 1), y.flatten())


def one_process(
    w: "World", kind: Kind, optimizer: str, parts: int
) -> dict[str, Tensor]:
    """The weights that one process learns from everybody's samples."""
    module = seeded(w, kind)
    make, options = OPTIMIZERS[optimizer]
    stepping = make(module.parameters(), **options)
    for step in range(STEPS):
        stepping.zero_grad()
        pairs = [sample(w, step, i) for i in range(w.size * parts)]
        x, y = (torch.cat(column) for column in zip(*pairs, strict=True))
        loss_of(module, x, y).backward()
        stepping.step()
    return {n: p.detach() for n, p in module.named_parameters()}


def compare(
    w: "World", weights: dict[str, Tensor], expected: dict[str, Tensor]
) -> None:
    """All weights, by name."""
    coarsest = max((t.dtype for t in expected.values()), key=_eps)
    for name, value in expected.items():
        found = [t for n, t in weights.items() if n == name or n.endswith(f".{name}")]
        if not found:
            raise Broken(f"{name} is not among the weights {', '.join(weights)[:80]}")
        #: Three steps through three layers, and p summands in another order.
        close(name, found[0], value, 1000 * w.size, coarsest)


def _eps(dtype: torch.dtype) -> float:
    return torch.finfo(dtype).eps


# Data parallelism


def data_parallel(
    w: "World",
    part: Any,
    options: Options,
    *,
    kind: Kind,
    parts: int = 1,
    apart: bool = False,
) -> None:
    """Wrap the module, train it, compare."""
    module = seeded(w, kind, w.rank if apart else 0)
    called, finish = wrapped(part, module, options)
    make, given = OPTIMIZERS["SGD with momentum"]
    stepping = make(module.parameters(), **given)
    if parts > 1 and hasattr(called, "microbatches"):
        called.microbatches = parts
    for step in range(STEPS):
        stepping.zero_grad()
        for k in range(parts):
            quiet = hasattr(called, "no_sync") and k < parts - 1
            with called.no_sync() if quiet else nullcontext():
                x, y = sample(w, step, w.rank * parts + k)
                (loss_of(called, x, y) / parts).backward()
        finish()
        stepping.step()
    weights = {n: p.detach() for n, p in module.named_parameters()}
    compare(w, weights, one_process(w, kind, "SGD with momentum", parts))


def wrapped(
    part: Any, module: nn.Module, options: Options
) -> tuple[Any, Callable[[], None]]:
    """A wrapper around the module, or a function that averages after backward."""
    if not inspect.isclass(part) and len(_averages(part)) == 1:
        return module, lambda: part(module, **options)
    called = part(module, **options)
    for name in FINISH:
        if hasattr(called, name):
            return called, getattr(called, name)
    return called if called is not None else module, lambda: None


def _averages(part: Any) -> list[str]:
    """Whether its name says that it is to be called after backward."""
    name = getattr(part, "__name__", "")
    words = ("average", "reduce", "sync", "mean")
    return [name] if any(word in name.lower() for word in words) else []


# Optimizers with sharded state


def sharded_optimizer(
    w: "World", part: Any, options: Options, *, kind: Kind, optimizer: str
) -> None:
    """Train with it, compare; its state must be a share of the whole."""
    module = seeded(w, kind)
    make, given = OPTIMIZERS[optimizer]
    first = next(iter(inspect.signature(part).parameters), "")
    whole = first in ("module", "model")
    stepping = part(module if whole else module.parameters(), make, **given, **options)
    for step in range(STEPS):
        stepping.zero_grad()
        loss_of(module, *sample(w, step, w.rank)).backward()
        for p in module.parameters():
            if p.grad is not None and not whole:
                dist.all_reduce(p.grad)
                p.grad /= w.size
        stepping.step()
    weights = {n: p.detach() for n, p in module.named_parameters()}
    compare(w, weights, one_process(w, kind, optimizer, 1))
    _require_shares(w, stepping, module)


def _require_shares(w: "World", stepping: Any, module: nn.Module) -> None:
    whole = sum(p.numel() for p in module.parameters() if p.requires_grad)
    local = [*vars(stepping).values(), stepping]
    inner = [o for o in local if isinstance(o, torch.optim.Optimizer)]
    held = {
        id(t): t.numel()
        for o in inner
        for state in o.state.values()
        if isinstance(state, dict)
        for t in state.values()
        if isinstance(t, Tensor) and t.dim()
    }
    moments = {
        len([t for t in s.values() if isinstance(t, Tensor) and t.dim()])
        for o in inner
        for s in o.state.values()
        if isinstance(s, dict)
    }
    total = whole * max(moments, default=1)
    if inner and w.size > 1 and sum(held.values()) >= total:
        raise Broken(
            f"this rank keeps all {total} numbers of state: nothing is sharded"
        )


# Sharded weights


def fully_sharded(w: "World", part: Any, options: Options, *, kind: Kind) -> None:
    """Shard the module, train it, gather it, compare."""
    module = seeded(w, kind)
    whole = sum(p.numel() for p in module.parameters())
    called = part(module, **options)
    called = module if called is None else called
    held = sum(_local(p).numel() for p in called.parameters())
    if w.size > 1 and held >= whole:
        raise Broken(f"this rank keeps all {whole} weights: nothing is sharded")
    make, given = OPTIMIZERS["AdamW"]
    stepping = make(called.parameters(), **given)
    for step in range(STEPS):
        stepping.zero_grad()
        loss_of(called, *sample(w, step, w.rank)).backward()
        stepping.step()
    compare(w, gathered(called), one_process(w, kind, "AdamW", 1))


def _local(p: Any) -> Tensor:
    return p.to_local() if hasattr(p, "to_local") else p


def gathered(called: Any) -> dict[str, Tensor]:
    """The whole weights: by `whole()`, of DTensors, or from the state dict."""
    if hasattr(called, "whole"):
        return dict(called.whole())
    named = called.state_dict() if not _dtensors(called) else _whole_dtensors(called)
    return {n: t for n, t in named.items() if isinstance(t, Tensor)}


def _dtensors(called: nn.Module) -> bool:
    return any(hasattr(p, "full_tensor") for p in called.parameters())


def _whole_dtensors(called: nn.Module) -> dict[str, Tensor]:
    return {
        n: p.full_tensor().detach() if hasattr(p, "full_tensor") else p.detach()
        for n, p in called.named_parameters()
    }


# The cases


def _gradient_least(p: int) -> int:
    learned = sum(q.numel() for q in Plain().parameters()) * 8
    return 2 * (p - 1) * learned * STEPS


def _gradient_most(p: int) -> int:
    """Everyone to everyone, and the weights of rank 0 at the start."""
    learned = sum(q.numel() for q in Plain().parameters()) * 8
    return p * p * learned * (STEPS + 1) + 4096 * p


def _of_data_parallel() -> Iterator[Case]:
    plain = partial(data_parallel, kind=Plain)
    yield Case("a plain module", plain, False, _gradient_most, _gradient_least)
    yield Case("a tied weight", partial(data_parallel, kind=Tied))
    yield Case("a frozen layer", partial(data_parallel, kind=Frozen))
    yield Case("3 micro-batches", partial(data_parallel, kind=Plain, parts=3))
    yield Case("two dtypes", partial(data_parallel, kind=Mixed), optional=True)


def _of_sharded_optimizer() -> Iterator[Case]:
    for optimizer in OPTIMIZERS:
        run = partial(sharded_optimizer, optimizer=optimizer)
        yield Case(f"a plain module, {optimizer}", partial(run, kind=Plain))
    yield Case("a tied weight", partial(run, kind=Tied))
    yield Case("a frozen layer", partial(run, kind=Frozen))
    yield Case("two dtypes", partial(run, kind=Mixed), optional=True)


def _of_fully_sharded() -> Iterator[Case]:
    yield Case("a plain module", partial(fully_sharded, kind=Plain))
    yield Case("a tied weight", partial(fully_sharded, kind=Tied))
    yield Case("a frozen layer", partial(fully_sharded, kind=Frozen))
    yield Case("two dtypes", partial(fully_sharded, kind=Mixed), optional=True)


CONTRACTS = (
    Contract(
        "data-parallel",
        "p ranks learn from their samples what one process learns from all of them",
        "a wrapper of a module, or a function that averages a module's gradients",
        list(_of_data_parallel()),
    ),
    Contract(
        "sharded-optimizer",
        "the weights are those of the whole optimizer, and its state is shared out",
        "a class of (parameters or module, optimizer class, options)",
        list(_of_sharded_optimizer()),
    ),
    Contract(
        "fully-sharded",
        "the weights are those of one process, and no rank keeps all of them",
        "a wrapper of a module, or a function that shards it in place",
        list(_of_fully_sharded()),
    ),
)
