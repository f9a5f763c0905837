"""Keeps what a training script's optimizer steps saw, without changing the script.

torch calls hooks before every optimizer step and every forward, whoever makes them.
From these a recorder keeps, for each step, every named weight, its gradient, what
each backward pass contributed to it, the learning rates, and the samples that came in.
It starts no collective: each rank keeps only its own pieces.

With a seed it also *perturbs*: weights, inputs and layer outputs move by one rounding.
How far the run then drifts is how far an equally correct run may be off.
"""

import contextlib
import hashlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.modules.batchnorm import SyncBatchNorm, _BatchNorm
from torch.nn.modules.module import (
    register_module_forward_hook,
    register_module_forward_pre_hook,
)
from torch.optim.optimizer import (
    register_optimizer_step_post_hook,
    register_optimizer_step_pre_hook,
)

#: Components of a name that only say how a module is wrapped.
WRAPPERS = {"module", "_orig_mod", "_fsdp_wrapped_module", "_checkpoint_wrapped_module"}


class Enough(SystemExit):
    """As many steps as were asked for: the script is left as by sys.exit()."""


@dataclass
class Piece:
    """What one rank holds of a tensor; `shape` is the whole one's, if it says."""

    local: Tensor
    shape: tuple[int, ...] | None = None
    offset: tuple[int, ...] = ()
    partial: bool = False


Pieces = dict[str, Piece]


@dataclass
class Step:
    """What one rank saw at one optimizer step."""

    weights: Pieces
    gradients: Pieces
    contributed: dict[str, Tensor] = field(default_factory=dict)
    last: dict[str, Tensor] = field(default_factory=dict)
    passes: dict[str, int] = field(default_factory=dict)
    buffers: dict[str, Tensor] = field(default_factory=dict)
    samples: list[str] = field(default_factory=list)
    rates: list[float] = field(default_factory=list)
    drew: bool = False


@dataclass
class Capture:
    """All that one rank saw."""

    rank: int
    steps: list[Step] = field(default_factory=list)
    final: Pieces = field(default_factory=dict)
    tied: list[list[str]] = field(default_factory=list)
    frozen: list[str] = field(default_factory=list)
    local_norms: list[str] = field(default_factory=list)
    optimizers: list[str] = field(default_factory=list)


class Recorder:
    """Watches one rank's script from `watching()` on."""

    def __init__(self, rank: int, most: int, seed: int | None = None):
        self.capture, self.most = Capture(rank), most
        self.roots: list[nn.Module] = []
        self.depth = self.stepping = 0
        self.loose: dict[str, Tensor] = {}  # an optimizer's tensors of no module
        self.now = Step({}, {})
        self.noise = None if seed is None else Noise(seed)
        self.hooked: dict[int, Tensor] = {}  # kept alive, so that no id is reused
        self.places: dict[int, str] = {}  # a module's name
        self.first: dict[str, str] = {}  # the first name of each weight

    @contextlib.contextmanager
    def watching(self) -> Iterator[None]:
        """Until the block ends; after the wanted number of steps it ends the script."""
        handles = [
            register_module_forward_pre_hook(self.enter),
            register_module_forward_hook(self.leave, always_call=True),
            register_optimizer_step_pre_hook(self.before_step),
            register_optimizer_step_post_hook(self.after_step),
        ]
        try:
            yield
        finally:
            for handle in handles:
                handle.remove()
        self.capture.final = {n: piece(p) for n, p in self.named().items()}

    # Forward

    def enter(self, module: nn.Module, inputs: tuple[Any, ...]) -> Any:
        """A module begins; the outermost one is the model."""
        self.depth += 1
        if self.depth > 1 or self.stepping:
            return None
        self.meet(module)
        if torch.is_grad_enabled() and module.training:  # not an evaluation
            self.now.buffers = self.now.buffers or self.buffers()
            self.now.samples += samples_of(inputs)
        self.drawn = torch.get_rng_state()
        return self.noise.of_all(inputs) if self.noise else None

    def leave(self, module: nn.Module, inputs: Any, output: Any) -> Any:
        """A module ends."""
        self.depth -= 1
        if self.depth == 0 and not torch.equal(self.drawn, torch.get_rng_state()):
            self.now.drew = True
        if any(True for _ in module.children()):
            return None
        #: Here a sharded layer still holds its whole weights, as plain tensors.
        for name, p in module.named_parameters(self.places.get(id(module), "")):
            self.follow(self.first.get(name, name), p, move=False)
        return self.noise.of(output) if self.noise else None

    def meet(self, module: nn.Module) -> None:
        """Know this model, unless it is part of one that is known."""
        if any(module is m for root in self.roots for m in root.modules()):
            return
        inside = {id(m) for m in module.modules()}
        self.roots = [r for r in self.roots if id(r) not in inside] + [module]
        names = self.names()
        self.first = {n: group[0] for group in names.values() for n in group}
        for root in self.roots:
            for name, m in root.named_modules():
                self.places[id(m)] = clean(name)
        capture = self.capture
        capture.tied = [group for group in names.values() if len(group) > 1]
        capture.frozen = [n for n, p in self.named().items() if not p.requires_grad]
        capture.local_norms = [
            clean(name)
            for root in self.roots
            for name, m in root.named_modules()
            if isinstance(m, _BatchNorm) and not isinstance(m, SyncBatchNorm)
        ]
        for name, p in self.named().items():
            self.follow(name, p)

    def follow(self, name: str, p: Tensor, *, move: bool = True) -> None:
        """Keep what each backward pass contributes to this weight."""
        if id(p) in self.hooked:
            return
        self.hooked[id(p)] = p
        if self.noise and move:
            self.noise.move(p)
        if p.requires_grad and p.is_leaf and not is_dtensor(p):
            p.register_hook(self.contribution(name))

    def contribution(self, name: str) -> Callable[[Tensor], None]:
        def keep(g: Tensor) -> None:
            now, g = self.now, g.detach().to("cpu", copy=True)
            now.passes[name] = now.passes.get(name, 0) + 1
            now.last[name] = g
            before = now.contributed.get(name)
            now.contributed[name] = g if before is None else before + g

        return keep

    # Steps

    def before_step(self, optimizer: Any, args: Any, kwargs: Any) -> None:
        """Keep the weights and gradients that this step starts from."""
        self.stepping += 1
        kinds = {*self.capture.optimizers, type(optimizer).__name__}
        self.capture.optimizers = sorted(kinds)
        if self.stepping > 1:  # an optimizer inside an optimizer
            return
        if len(self.capture.steps) == self.most:
            self.stepping = 0
            raise Enough
        self.adopt(optimizer)
        named = self.named()
        now = self.now
        now.weights = {n: piece(p) for n, p in named.items()}
        now.gradients = {
            n: piece(p.grad) for n, p in named.items() if p.grad is not None
        }
        now.rates = [float(g.get("lr", 0.0)) for g in optimizer.param_groups]
        self.capture.steps.append(now)
        self.now = Step({}, {})

    def after_step(self, optimizer: Any, args: Any, kwargs: Any) -> None:
        """The step is over."""
        self.stepping = max(0, self.stepping - 1)

    def adopt(self, optimizer: Any) -> None:
        """Without a module there are no names: an optimizer's places are the names."""
        if self.roots:
            return
        for g, group in enumerate(optimizer.param_groups):
            for i, p in enumerate(group["params"]):
                self.loose.setdefault(f"group {g} tensor {i}", p)
                if self.noise and id(p) not in self.hooked:
                    self.hooked[id(p)] = p
                    self.noise.move(p)

    # Names

    def names(self) -> dict[int, list[str]]:
        """All names of each weight, by its identity."""
        found: dict[int, list[str]] = {}
        for i, root in enumerate(self.roots):
            prefix = f"model {i + 1}: " if i else ""
            for name, p in root.named_parameters(remove_duplicate=False):
                found.setdefault(id(p), []).append(prefix + clean(name))
        return found

    def named(self) -> dict[str, Tensor]:
        """Every weight once, by its first name."""
        held = {id(p): p for root in self.roots for p in root.parameters()}
        return {n[0]: held[i] for i, n in self.names().items()} | self.loose

    def buffers(self) -> dict[str, Tensor]:
        return {
            clean(name): b.detach().to("cpu", copy=True)
            for root in self.roots
            for name, b in root.named_buffers()
            if not is_dtensor(b)
        }


def clean(name: str) -> str:
    """The name without what only says how a module is wrapped."""
    return ".".join(part for part in name.split(".") if part not in WRAPPERS)


def is_dtensor(t: Any) -> bool:
    """Whether it knows its own placement; asks no import of who has none."""
    return hasattr(t, "placements") and hasattr(t, "to_local")


def piece(t: Tensor) -> Piece:
    """What this rank holds of it, copied."""
    if not is_dtensor(t):
        return Piece(t.detach().to("cpu", copy=True))
    from torch.distributed.tensor._utils import compute_local_shape_and_global_offset

    local: Tensor = t.detach().to_local()  # type: ignore[attr-defined]
    mesh, placements = t.device_mesh, t.placements  # type: ignore[attr-defined]
    _, offset = compute_local_shape_and_global_offset(t.shape, mesh, placements)
    partial = any(p.is_partial() for p in placements)
    whole = tuple(t.shape)
    return Piece(local.to("cpu", copy=True), whole, tuple(offset), partial)


def samples_of(inputs: Any) -> list[str]:
    """A digest of each row of the first tensor that comes in."""
    first = next((x for x in inputs if isinstance(x, Tensor)), None)
    if first is None or first.dim() == 0 or is_dtensor(first):
        return []
    rows = first.detach().cpu().contiguous().flatten(1) if first.dim() > 1 else first
    return [_digest(row) for row in rows]


def _digest(row: Tensor) -> str:
    data = row.detach().cpu().contiguous().view(-1).view(torch.uint8).numpy().tobytes()
    return hashlib.sha256(data).hexdigest()[:16]


class Noise:
    """Moves numbers by one rounding, up or down by lot, the same on every run."""

    def __init__(self, seed: int):
        self.source = torch.Generator().manual_seed(seed)

    def factor(self, t: Tensor) -> Tensor:
        sign = torch.randint(0, 2, t.shape, generator=self.source) * 2 - 1
        return (1 + sign * torch.finfo(t.dtype).eps).to(t.dtype).to(t.device)

    def of(self, x: Any) -> Any:
        """The moved tensor; what has no roundings is left as it is."""
        if isinstance(x, Tensor) and x.is_floating_point() and not is_dtensor(x):
            return x * self.factor(x)
        return x

    def of_all(self, inputs: tuple[Any, ...]) -> tuple[Any, ...]:
        return tuple(self.of(x) for x in inputs)

    def move(self, p: Tensor) -> None:
        """In place, before it is first used."""
        with torch.no_grad():
            local = p.to_local() if is_dtensor(p) else p  # type: ignore[attr-defined]
            if local.is_floating_point():
                local.mul_(self.factor(local))
