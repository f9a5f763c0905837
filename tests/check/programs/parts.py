"""Parts for the contracts: right ones in shapes of strangers, and wrong ones."""

from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
from torch import Tensor, nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.nn.functional import all_gather
from torch.distributed.pipelining import PipelineStage, Schedule1F1B
from torch.distributed.tensor.parallel import (
    ColwiseParallel,
    RowwiseParallel,
    parallelize_module,
)
from torch.nn import functional as F

from exemplars.parameter_distribution.durable_state import (
    resharded_checkpoint as resharded,
)
from exemplars.parameter_distribution.inter_layer.layer_partition import Part
from exemplars.parameter_distribution.intra_layer import (
    tensor_parallel_column_row as tensor_parallel,
)
from exemplars.parameter_distribution.intra_layer import (
    vocabulary_parallel_cross_entropy as vocabulary,
)
from exemplars.parameter_distribution.parameter_server import (
    sharded_parameter_server as servers,
)
from exemplars.parameter_distribution.within_sample.ring_attention import (
    RingAttention,
    zigzag,
)
from exemplars.sync_strategy.pipeline_flush.gpipe import run_batch

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


class SplitPair(nn.Module):
    """The exemplar's two cuts and its two ends."""

    def __init__(self, whole: nn.Sequential) -> None:
        super().__init__()
        r, p = dist.get_rank(), dist.get_world_size()
        mine = torch.arange(whole[0].out_features).tensor_split(p)[r]
        self.up = tensor_parallel.outputs(whole[0], mine)
        self.down = tensor_parallel.inputs(whole[2], mine)
        self.bias = whole[2].bias

    def forward(self, x: Tensor) -> Tensor:
        hidden = F.gelu(self.up(tensor_parallel.Enter.apply(x)))
        y: Tensor = tensor_parallel.Leave.apply(self.down(hidden)) + self.bias
        return y


def dtensor_pair(pair: nn.Sequential) -> nn.Module:
    mesh = init_device_mesh(
        next(pair.parameters()).device.type, (dist.get_world_size(),)
    )
    return parallelize_module(
        pair, mesh, {"0": ColwiseParallel(), "2": RowwiseParallel()}
    )


def counts(t: Tensor, dim: int) -> list[int]:
    """How long this dimension is on every rank."""
    mine = torch.tensor([t.shape[dim]], device=t.device)
    every = [torch.empty_like(mine) for _ in range(dist.get_world_size())]
    dist.all_gather(every, mine)
    return [int(n) for n in every]


def exemplar_loss(logits: Tensor, target: Tensor) -> Tensor:
    sizes = counts(logits, -1)
    first = sum(sizes[: dist.get_rank()])
    head = SimpleNamespace(first=first, size=sum(sizes), group=None)
    made: Tensor = vocabulary.Loss.apply(logits, target, head, 0.0)
    return made


def ring(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    tokens = sum(counts(q, -2))
    held = list(torch.arange(tokens).tensor_split(dist.get_world_size()))
    made: Tensor = RingAttention.apply(q[0], k[0], v[0], held)
    return made[None]


def zigzag_ring(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    held = zigzag(sum(counts(q, -2)), dist.get_world_size())
    made: Tensor = RingAttention.apply(q[0], k[0], v[0], held)
    return made[None]


def gathered(q: Tensor, k: Tensor, v: Tensor, is_causal: bool = True) -> Tensor:
    """Keys and values of all ranks, gathered so that gradients find their way back."""
    sizes = counts(q, -2)
    if len(set(sizes)) > 1:
        raise ValueError("ranks hold different numbers of tokens")
    keys, values = (_gathered(t) for t in (k, v))
    at = torch.arange(sizes[0], device=q.device) + sizes[0] * dist.get_rank()
    past = at[:, None] >= torch.arange(sum(sizes), device=q.device)
    mask = past if is_causal else torch.ones_like(past)
    return F.scaled_dot_product_attention(q, keys, values, attn_mask=mask)


def _gathered(t: Tensor) -> Tensor:
    """Along dimension 0, where gradients arrive in the order of their dimensions."""
    parts = all_gather(t.movedim(-2, 0).contiguous())
    return torch.cat(parts).movedim(0, -2)


def gpipe_runner(layers: nn.Sequential, microbatches: int, loss: Any) -> Any:
    device = next(layers.parameters()).device
    w: Any = SimpleNamespace(
        rank=dist.get_rank(), size=dist.get_world_size(), device=device
    )
    task: Any = SimpleNamespace(
        model=lambda: layers, loss=lambda m, x, y: loss(m(x), y, reduction="sum")
    )
    stage = Part(w, task)

    def step(x: Tensor, y: Tensor) -> None:
        parts = zip(x.chunk(microbatches), y.chunk(microbatches), strict=True)
        run_batch(w, stage, [*parts], {"F": 1, "B": 2})

    return step


class Torch1F1B:
    def __init__(self, layers: nn.Sequential, microbatches: int, loss: Any) -> None:
        self.rank, self.ranks = dist.get_rank(), dist.get_world_size()
        device = next(layers.parameters()).device
        stage = PipelineStage(layers[self.rank], self.rank, self.ranks, device)
        self.schedule = Schedule1F1B(stage, microbatches, loss_fn=loss)

    def step(self, x: Tensor, y: Tensor) -> None:
        given = (x,) if self.rank == 0 else ()
        last = {"target": y} if self.rank == self.ranks - 1 else {}
        self.schedule.step(*given, **last)


class ShardedServer:
    """Every rank serves a part of the weights."""

    def __init__(self, weights: Tensor, rate: float) -> None:
        self.weights, self.rate = weights, rate

    def push(self, gradient: Tensor) -> None:
        total = servers.push(gradient)
        mine = self.weights.tensor_split(dist.get_world_size())[dist.get_rank()]
        mine.sub_(total, alpha=self.rate)

    def pull(self) -> Tensor:
        servers.pull(self.weights)
        return self.weights


class CentralServer:
    """Rank 0 takes gradients from whoever comes, until all have said goodbye."""

    def __init__(self, weights: Tensor, rate: float) -> None:
        self.weights, self.rate = weights, rate

    def serve(self) -> None:
        left = dist.get_world_size() - 1
        came = self.weights.new_empty(len(self.weights) + 1)
        while left:
            dist.recv(came)
            left -= int(came[-1])
            self.weights.sub_(came[:-1], alpha=self.rate)

    def push(self, gradient: Tensor) -> None:
        dist.send(torch.cat([gradient, gradient.new_zeros(1)]), 0)

    def close(self) -> None:
        nothing = self.weights.new_zeros(len(self.weights))
        dist.send(torch.cat([nothing, nothing.new_ones(1)]), 0)


class ExemplarCheckpoint:
    """The exemplar's files, one folder for each rank."""

    GRID = (1, 1, 1)

    @classmethod
    def save(cls, state: dict[str, Tensor], folder: Path) -> None:
        folder.mkdir(exist_ok=True)
        mine = folder / str(dist.get_rank())
        resharded.save(mine, state, 0, cls.GRID, 0)

    @classmethod
    def load(cls, state: dict[str, Tensor], folder: Path) -> dict[str, Tensor]:
        rows = resharded.held(state, 0, cls.GRID, 0)
        return resharded.load(folder / str(dist.get_rank()), state, rows)[0]


class TorchCheckpoint:
    @staticmethod
    def save(state: dict[str, Tensor], folder: Path) -> None:
        dcp.save(state, checkpoint_id=str(folder))

    @staticmethod
    def load(state: dict[str, Tensor], folder: Path) -> None:
        dcp.load(state, checkpoint_id=str(folder))


# Wrong, each in one way


class NoSumBackward(SplitPair):
    """The outputs are right; the input's gradient is this rank's term alone."""

    def forward(self, x: Tensor) -> Tensor:
        hidden = F.gelu(self.up(x))
        y: Tensor = tensor_parallel.Leave.apply(self.down(hidden)) + self.bias
        return y


class BiasEverywhere(SplitPair):
    """The bias is inside the sum, and counts once for each rank."""

    def forward(self, x: Tensor) -> Tensor:
        hidden = F.gelu(self.up(tensor_parallel.Enter.apply(x)))
        y: Tensor = tensor_parallel.Leave.apply(self.down(hidden) + self.bias)
        return y


def own_words_only(logits: Tensor, target: Tensor) -> Tensor:
    """A softmax over the words of this rank."""
    first = sum(counts(logits, -1)[: dist.get_rank()])
    mine = (target >= first) & (target < first + logits.shape[-1])
    each = (
        F.cross_entropy(logits, (target - first).where(mine, 0), reduction="none")
        * mine
    )
    return Sum.apply(each)  # type: ignore[no-any-return]


def gathers_logits(logits: Tensor, target: Tensor) -> Tensor:
    whole = torch.cat(all_gather(logits.contiguous()), dim=-1)
    #: Every rank's loss reaches every logit, so the gradients come p times.
    each = F.cross_entropy(whole, target, reduction="none")
    return each / dist.get_world_size() + each.detach() * (
        1 - 1 / dist.get_world_size()
    )


def attends_to_its_own(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    return F.scaled_dot_product_attention(q, k, v, is_causal=True)


def keeps_no_gradient(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    """Keys and values arrive without a way back for gradients."""
    p, r, t = dist.get_world_size(), dist.get_rank(), q.shape[-2]
    every = []
    for x in (k, v):
        came = [torch.empty_like(x) for _ in range(p)]
        dist.all_gather(came, x.detach().contiguous())
        came[r] = x
        every.append(torch.cat(came, dim=-2))
    past = torch.arange(t)[:, None] + t * r >= torch.arange(t * p)
    return F.scaled_dot_product_attention(q, *every, attn_mask=past.to(q.device))


def gathers_permuted(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    """On gloo, torch's gather mixes up a gradient whose dimensions lie permuted."""
    keys, values = (torch.cat(all_gather(t.contiguous()), dim=-2) for t in (k, v))
    at = torch.arange(q.shape[-2]) + q.shape[-2] * dist.get_rank()
    past = at[:, None] >= torch.arange(keys.shape[-2])
    return F.scaled_dot_product_attention(q, keys, values, attn_mask=past.to(q.device))


class LastMicrobatchOnly(Torch1F1B):
    def step(self, x: Tensor, y: Tensor) -> None:
        super().step(x, y)
        for p in self.schedule._stage.submod.parameters():
            p.grad = p.grad / self.schedule._n_microbatches


class LosesGradients(ShardedServer):
    """The largest of the gradients wins."""

    def push(self, gradient: Tensor) -> None:
        dist.all_reduce(gradient, dist.ReduceOp.MAX)
        self.weights.sub_(gradient, alpha=self.rate)

    def pull(self) -> Tensor:
        return self.weights


class OnlyFirstRankSaves:
    """What the other ranks have of their own is lost."""

    @staticmethod
    def save(state: dict[str, Tensor], folder: Path) -> None:
        folder.mkdir(exist_ok=True)
        if dist.get_rank() == 0:
            torch.save(state, folder / "state")

    @staticmethod
    def load(state: dict[str, Tensor], folder: Path) -> Any:
        return torch.load(folder / "state", weights_only=True)


class PadsTornFiles:
    """What is missing at the end of a file is taken to be zeros."""

    @staticmethod
    def save(state: dict[str, Tensor], folder: Path) -> None:
        folder.mkdir(exist_ok=True)
        whole = torch.cat([t.flatten().double().cpu() for t in state.values()])
        (folder / str(dist.get_rank())).write_bytes(whole.numpy().tobytes())

    @staticmethod
    def load(state: dict[str, Tensor], folder: Path) -> dict[str, Tensor]:
        data = (folder / str(dist.get_rank())).read_bytes()
        room = torch.zeros(sum(t.numel() for t in state.values()), dtype=torch.double)
        whole = bytearray(data[: len(data) // 8 * 8])
        found = torch.frombuffer(whole, dtype=torch.double)
        room[: len(found)] = found
        parts = room.split([t.numel() for t in state.values()])
        pairs = zip(state.items(), parts, strict=True)
        return {n: part.view(t.shape).to(t) for (n, t), part in pairs}


class Sum(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        x = x.clone()
        dist.all_reduce(x)
        return x

    @staticmethod
    def backward(ctx: Any, dx: Tensor) -> Tensor:
        return dx


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
