"""Parts for the contracts: right ones in shapes of strangers, and wrong ones."""

from collections.abc import Iterator
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn

# Right


def exact_schedule(stage: int, stages: int, microbatches: int) -> list[str]:
    return [f"F{i}" for i in range(microbatches)] + [
        f"B{i}" for i in range(microbatches)
    ]


def contiguous_all_reduce(x: Tensor) -> Tensor:
    whole = x.contiguous()
    dist.all_reduce(whole)
    return whole


def ring_matrix(p: int) -> list[list[float]]:
    rows = [[0.0] * p for _ in range(p)]
    for r in range(p):
        for other, share in ((r - 1, 0.25), (r, 0.5), (r + 1, 0.25)):
            rows[r][other % p] += share
    return rows


def average_gradients(model: nn.Module) -> None:
    for w in model.parameters():
        if w.grad is not None:
            dist.all_reduce(w.grad)
            w.grad /= dist.get_world_size()


class HalfRing:
    """Drops half of the entries, and carries them."""

    def __init__(self) -> None:
        self.left: Tensor | None = None

    def compress(self, x: Tensor) -> Tensor:
        wanted = x if self.left is None else x + self.left
        keep = wanted.abs() >= wanted.abs().median()
        self.left = wanted * ~keep
        return wanted * keep

    def decompress(self, sent: Tensor) -> Tensor:
        return sent


# Wrong, each in one way


def all_reduce_drops_the_rest(x: Tensor) -> None:
    p = dist.get_world_size()
    dist.all_reduce(x[: len(x) // p * p])


def all_reduce_first_rank_only(x: Tensor) -> None:
    dist.reduce(x, 0)


def all_reduce_wasteful(x: Tensor) -> Tensor:
    for _ in range(4 * dist.get_world_size()):
        made = x.clone()
        dist.all_reduce(made)
    return made


def all_reduce_hangs_on_one(x: Tensor) -> None:
    if dist.get_rank() == 0 and dist.get_world_size() == 3:
        return
    dist.all_reduce(x)


def gather_in_wrong_order(x: Tensor) -> Tensor:
    parts = [torch.empty_like(x) for _ in range(dist.get_world_size())]
    dist.all_gather(parts, x)
    return torch.cat(parts[::-1])


def sum_gradients(model: nn.Module) -> None:
    for w in model.parameters():
        if w.grad is not None:
            dist.all_reduce(w.grad)


class ForgetsTied(nn.Module):
    """Averages by hooks that fire once per use of a weight."""

    def __init__(self, module: nn.Module):
        super().__init__()
        self.module = module
        seen: set[int] = set()
        for name, w in module.named_parameters(remove_duplicate=False):
            if id(w) in seen:
                continue
            seen.add(id(w))
            if w.requires_grad and "embedding" not in name:
                w.register_post_accumulate_grad_hook(self.average)

    @staticmethod
    def average(w: Tensor) -> None:
        dist.all_reduce(w.grad)
        w.grad /= dist.get_world_size()

    def forward(self, *given: Any) -> Any:
        return self.module(*given)


class KeepsEverything:
    """A "sharded" optimizer that shards nothing."""

    def __init__(self, parameters: Iterator[nn.Parameter], make: Any, **options: Any):
        self.inner = make(list(parameters), **options)

    def zero_grad(self) -> None:
        self.inner.zero_grad()

    def step(self) -> None:
        self.inner.step()


class ShardsNothing(nn.Module):
    def __init__(self, module: nn.Module):
        super().__init__()
        self.module = module

    def forward(self, *given: Any) -> Any:
        return self.module(*given)


class NoFeedback:
    """Drops half of the entries for ever."""

    def compress(self, x: Tensor) -> Tensor:
        return x * (x.abs() >= x.abs().median() * 1.01)

    def decompress(self, sent: Tensor) -> Tensor:
        return sent


def deadlocks(stage: int, stages: int, microbatches: int) -> list[str]:
    order = range(microbatches)
    forward = order if stage % 2 == 0 else reversed(order)
    back = order if stage % 2 == 0 else reversed(order)
    mixed = []
    for f, b in zip(forward, back, strict=True):
        mixed += [f"F{f}", f"B{b}"]
    return mixed


def forgets_the_last(stage: int, stages: int, microbatches: int) -> list[str]:
    return exact_schedule(stage, stages, microbatches)[:-1]


def rows_only(p: int) -> list[list[float]]:
    return [[1.0] + [0.0] * (p - 1) for _ in range(p)]
