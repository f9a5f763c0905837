"""A small transformer, whole; and the part of it that one rank has.

A part is made of a whole model. Made of a model whose weights are numbered, it tells
which elements it has: so no second rule says how anything is cut.

    b samples   t tokens of a rank   T tokens   H width   E experts   V vocabulary
"""

from collections.abc import Callable
from functools import partial
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.nn import functional as F

from atlas.compose.mesh import TOKENS, Mesh
from atlas.views.composition import MODEL
from exemplars.parameter_distribution.compact_state.activation_checkpointing import (
    Segment,
)
from exemplars.parameter_distribution.expert_and_embedding import expert_parallel
from exemplars.parameter_distribution.intra_layer import (
    sequence_parallel,
    vocabulary_parallel_cross_entropy,
)
from exemplars.parameter_distribution.intra_layer import (
    tensor_parallel_column_row as tensor_parallel,
)
from exemplars.parameter_distribution.within_sample import ring_attention, ulysses
from exemplars.workload import Block, attention

WIDTH, HEADS, LAYERS = MODEL.width, MODEL.heads, MODEL.layers
TOKENS_WHOLE, VOCABULARY = MODEL.tokens, MODEL.vocabulary
EXPERTS, HIDDEN, CHOICES = MODEL.experts, 12, 2
IGNORED = vocabulary_parallel_cross_entropy.IGNORED

Look = Callable[[Tensor, Tensor, Tensor, int], Tensor]


# One process has all of it


class Mixture(nn.Module):
    """A layer of experts, all at hand: every expert sees every token."""

    def __init__(self) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(WIDTH)
        self.gate = nn.Parameter(torch.randn(WIDTH, EXPERTS))
        self.up = nn.Parameter(torch.randn(EXPERTS, WIDTH, HIDDEN) / 4)
        self.down = nn.Parameter(torch.randn(EXPERTS, HIDDEN, WIDTH) / 4)

    def forward(self, x: Tensor) -> Tensor:
        """Each token's chosen experts, weighted, on top of the token."""
        rows = self.norm(x).flatten(0, -2)
        like = (wide(rows) @ wide(self.gate)).softmax(-1)
        chosen = torch.zeros_like(like).scatter(-1, like.topk(CHOICES).indices, 1.0)
        each = torch.tanh(rows @ self.up) @ self.down
        mixed = ((like * chosen).T[..., None] * each).sum(0)
        return x + mixed.view_as(x).to(x.dtype)


class Whole(nn.Module):
    """The model on one process, in torch's own words."""

    def __init__(self, *, experts: bool, tied: bool) -> None:
        super().__init__()
        self.letters = nn.Embedding(VOCABULARY, WIDTH)
        self.places = nn.Embedding(TOKENS_WHOLE, WIDTH)
        self.layers = nn.ModuleList()
        for i in range(LAYERS):
            self.layers.append(Block(WIDTH, HEADS))
            if experts and i % 2:
                self.layers.append(Mixture())
        self.norm = nn.LayerNorm(WIDTH)
        self.head = nn.Linear(WIDTH, VOCABULARY, bias=False)
        if tied:
            self.head.weight = self.letters.weight

    def forward(self, x: Tensor) -> Tensor:
        """Logits, in at least 32 bits."""
        h = self.letters(x) + self.places(torch.arange(x.shape[-1]))
        for layer in self.layers:
            h = layer(h)
        z: Tensor = self.head(self.norm(h))
        return z.float() if z.dtype == torch.half else z


def whole(*, experts: bool, tied: bool, half: bool) -> Whole:
    """The same weights on every call; of 16 bits, so that rounding loses nothing."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        model = Whole(experts=experts, tied=tied).half()
    return model if half else model.double()


def numbered(model: Whole) -> Whole:
    """The weights replaced by numbers, all different: where each lies in the whole."""
    first = 0
    model = model.double()
    for p in model.parameters():
        count = torch.arange(first, first + p.numel(), dtype=torch.double)
        p.data, first = count.view(p.shape), first + p.numel()
    return model


# A rank has some


class Letters(nn.Module):
    """Tokens as vectors; all rows of the table, or those of this rank."""

    def __init__(self, table: Tensor, group: dist.ProcessGroup | None) -> None:
        super().__init__()
        self.group, self.first = group, 0
        self.weight, self.first = rows(table, group)

    def forward(self, x: Tensor) -> Tensor:
        """A row for each token."""
        if self.group is None:
            return F.embedding(x, self.weight)
        here = (x >= self.first) & (x < self.first + len(self.weight))
        own = F.embedding((x - self.first).where(here, 0), self.weight)
        found: Tensor = tensor_parallel.Leave.apply(own * here[..., None], self.group)
        return found


class Places(nn.Module):
    """The vectors of the places where this rank's tokens stand."""

    def __init__(self, table: Tensor, at: Tensor) -> None:
        super().__init__()
        self.weight, self.at = nn.Parameter(table.data.clone()), at

    def forward(self, x: Tensor) -> Tensor:
        """Added to what the tokens are."""
        return x + F.embedding(self.at, self.weight)


class Experts(nn.Module):
    """This rank's experts, or its columns of them."""

    def __init__(self, all_: Mixture, group: Any, tensor: Any) -> None:
        super().__init__()
        self.group, self.tensor = group, tensor
        r, p = dist.get_rank(group), dist.get_world_size(group)
        t, q = dist.get_rank(tensor), dist.get_world_size(tensor)
        self.norm, self.gate = all_.norm, all_.gate
        up, down = (w.data.tensor_split(p)[r] for w in (all_.up, all_.down))
        self.up = nn.Parameter(up.tensor_split(q, 2)[t].clone())
        self.down = nn.Parameter(down.tensor_split(q, 1)[t].clone())

    def forward(self, x: Tensor) -> Tensor:
        """There and back; a seat for every token, so that none is dropped."""
        rows = self.norm(x).flatten(0, -2)
        #: In 32 bits at least: a token near a tie would go to another expert.
        scored = wide(rows), wide(self.gate)
        weight, expert = expert_parallel.choose(*scored, CHOICES)
        seats = len(rows)
        seat = expert_parallel.take_seats(expert, EXPERTS, seats)
        there = expert_parallel.dispatch(rows, seat, EXPERTS, seats, self.group)
        there = tensor_parallel.Enter.apply(there, self.tensor)
        done = torch.tanh(there @ self.up) @ self.down
        done = tensor_parallel.Leave.apply(done, self.tensor)
        each = expert_parallel.combine(done, seat, weight, seats, self.group)
        return x + each.view(CHOICES, *rows.shape).sum(0).view_as(x).to(x.dtype)


class Head(nn.Module):
    """Logits and loss per token; with a group, of this rank's rows."""

    def __init__(
        self,
        table: Tensor,
        group: dist.ProcessGroup | None,
        sequence: dist.ProcessGroup | None,
    ) -> None:
        super().__init__()
        self.group, self.sequence, self.size = group, sequence, len(table)
        self.weight, self.first = rows(table, group)

    def forward(self, x: Tensor, y: Tensor) -> Tensor:
        """Of this rank's tokens, or, cut by vocabulary, of all tokens."""
        if self.sequence is not None:
            y = y.mT
            if self.group is None:
                y = piece(y, self.sequence)
        if self.group is None:
            return F.cross_entropy(
                wide(x @ self.weight.mT).flatten(0, 1),
                y.flatten(),
                reduction="none",
                ignore_index=IGNORED,
            )
        enter = (
            tensor_parallel.Enter if self.sequence is None else sequence_parallel.Enter
        )
        z = wide(enter.apply(x, self.group) @ self.weight.mT).flatten(0, 1)
        loss: Tensor = vocabulary_parallel_cross_entropy.Loss.apply(
            z, y.flatten(), self, 0.0
        )
        return loss


def wide(z: Tensor) -> Tensor:
    """Losses are computed in at least 32 bits."""
    return z.float() if z.dtype == torch.half else z


def rows(table: Tensor, group: Any) -> tuple[nn.Parameter, int]:
    """This rank's rows of a table, and the first of them; without a group, all."""
    if group is None:
        return nn.Parameter(table.data.clone()), 0
    every = torch.arange(len(table)).tensor_split(dist.get_world_size(group))
    mine = every[dist.get_rank(group)]
    return nn.Parameter(table.data[mine]), int(mine[0])


def piece(x_T: Tensor, group: Any) -> Tensor:
    """This rank's tokens, where tokens come first."""
    return x_T.chunk(dist.get_world_size(group))[dist.get_rank(group)]


class Net(nn.Module):
    """This rank's part of the model: some layers, of each some heads, and so on."""

    def __init__(self, model: Whole, has: set[str], mesh: Mesh) -> None:
        super().__init__()
        alone, line = mesh.over([]), mesh.over(["tensor"])
        self.sequence = line if "sequence" in has else None
        vocabulary = line if "vocabulary" in has else None
        self.tensor = line if has & {"tensor", "sequence"} else alone
        self.dtype = model.head.weight.dtype
        stage, stages = mesh.part(["stage"])
        self.first, self.last = stage == 0, stage == stages - 1
        self.at = held(has, mesh)[mesh.part(TOKENS)[0]]
        if self.sequence is not None:
            self.at = piece(self.at, self.sequence)
        each = len(model.layers) // stages
        layers = [
            self.layer(layer, has, mesh)
            for layer in model.layers[stage * each : (stage + 1) * each]
        ]
        self.parts = nn.ModuleList()
        if self.first:
            table = vocabulary if "tied" in has else None
            letters = Letters(model.letters.weight, table)
            at = self.at if self.sequence is None else self.at[:, None]
            self.parts += [letters, Places(model.places.weight, at)]
        self.parts += layers
        self.ends = self.first != self.last and "tied" in has
        if self.last:
            head = Head(model.head.weight, vocabulary, self.sequence)
            self.parts += [model.norm, head]
            if "tied" in has and self.first:
                head.weight = letters.weight
        self.segments: dict[int, list[nn.Parameter]] = {}
        if "checkpointing" in has:
            for i, part in enumerate(self.parts):
                if isinstance(part, tensor_parallel.SplitBlock | Experts):
                    self.segments[i] = [*part.parameters()]

    def layer(self, of: nn.Module, has: set[str], mesh: Mesh) -> nn.Module:
        """A rank's part of one layer."""
        if isinstance(of, Mixture):
            #: Cut by columns along the tensor axis, unless each rank there has tokens
            #: of its own: then experts are copies.
            columns = self.tensor if self.sequence is None else mesh.over([])
            return Experts(of, mesh.over(["expert"]), columns)
        assert isinstance(of, Block)
        made = tensor_parallel.SplitBlock(of, self.tensor)
        if self.sequence is not None:
            keep = partial(sequence_parallel.keep_whole, group=self.tensor)
            made = sequence_parallel.SequenceBlock(of, keep, self.tensor)
        made.attend = looking(has, mesh)
        return made

    def forward(self, x: Tensor, y: Tensor) -> Tensor:
        """What goes to the next stage; on the last one, the loss of each token."""
        if self.first and self.sequence is not None:
            x = piece(x.mT, self.sequence)
        for i, part in enumerate(self.parts):
            if isinstance(part, Head):
                x = part(x, y)
            elif i in self.segments:
                x = Segment.apply(x, nn.Sequential(part), i, *self.segments[i])
            else:
                x = part(x)
        return x

    @property
    def tied(self) -> nn.Parameter | None:
        """The weight of which another stage has a copy."""
        #: Looked up, not kept: as a second name of a weight it would be a second weight
        #: to whatever lists the parameters of every module.
        end = self.parts[0 if self.first else -1]
        return end.weight if self.ends and isinstance(end, Letters | Head) else None

    def between(self, samples: int) -> tuple[int, ...]:
        """The shape of what goes from stage to stage."""
        own = len(self.at)
        return (samples, own, WIDTH) if self.sequence is None else (own, samples, WIDTH)

    def kinds(self) -> "Kinds":
        """Which parameters are cut how."""
        cut = set[nn.Parameter]()
        experts = set[nn.Parameter]()
        several = self.tensor.size() > 1
        for part in self.parts:
            if several and isinstance(part, tensor_parallel.SplitBlock):
                split = (part.qkv, part.out, part.up, part.down)
                cut |= {p for linear in split for p in linear.parameters()}
            if isinstance(part, Experts):
                experts |= {part.up, part.down}
            if isinstance(part, Letters | Head) and part.group is not None:
                cut.add(part.weight)
        if several and self.sequence is None:
            cut |= experts
        return Kinds(cut, experts)


class Kinds:
    """Parameters cut along the tensor axis, and those of experts."""

    def __init__(self, cut: set[nn.Parameter], experts: set[nn.Parameter]) -> None:
        self.cut, self.experts = cut, experts


# How tokens meet


def held(has: set[str], mesh: Mesh) -> list[Tensor]:
    """The tokens of every rank along both axes of tokens."""
    rings, parts = mesh.size["context"], mesh.size["heads"]
    if "ring" in has or "gathered" in has:
        outer = ring_attention.zigzag(TOKENS_WHOLE, rings)
    else:
        outer = [*torch.arange(TOKENS_WHOLE).tensor_split(rings)]
    return [inner for own in outer for inner in own.tensor_split(parts)]


def looking(has: set[str], mesh: Mesh) -> Look:
    """How the queries of a rank come to see the keys of others."""
    rings, lines = mesh.over(["context"]), mesh.over(["heads"])
    if not has & {"ring", "gathered", "ulysses"}:
        return attention
    if "ulysses" in has and not has & {"ring", "gathered"}:
        return by_heads(held(has, mesh), rings, attention)
    every = held(has, mesh)
    parts = mesh.size["heads"]
    #: Of each ring's rank, the tokens of all that share its place in the ring.
    owned = [torch.cat(every[i : i + parts]) for i in range(0, len(every), parts)]
    look = by_ring(owned, rings) if "ring" in has else by_gather(owned, rings)
    if "ulysses" not in has:
        return look
    place = mesh.place["context"]
    return by_heads(every[place * parts : (place + 1) * parts], lines, look)


def by_ring(owned: list[Tensor], group: Any) -> Look:
    """Keys and values go round."""

    def look(q: Tensor, k: Tensor, v: Tensor, heads: int) -> Tensor:
        b = len(q)
        split = (
            x.unflatten(-1, (heads, -1)).transpose(1, 2).flatten(0, 1)
            for x in (q, k, v)
        )
        out = ring_attention.RingAttention.apply(*split, owned, group)
        return out.unflatten(0, (b, heads)).transpose(1, 2).flatten(2)

    return look


def by_gather(owned: list[Tensor], group: Any) -> Look:
    """All ranks' keys and values are fetched at once, and summed back."""
    order = torch.cat(owned)

    def look(q: Tensor, k: Tensor, v: Tensor, heads: int) -> Tensor:
        mine = owned[dist.get_rank(group)]
        kv = torch.cat([k, v], -1).transpose(0, 1)
        every: Tensor = sequence_parallel.Enter.apply(kv, group)
        keys, values = every.transpose(0, 1).chunk(2, dim=-1)
        q, keys, values = (
            x.unflatten(-1, (heads, -1)).transpose(1, 2) for x in (q, keys, values)
        )
        future = mine[:, None] < order
        scores = q @ keys.mT / q.shape[-1] ** 0.5
        weights = scores.masked_fill(future, float("-inf")).softmax(-1)
        return (weights @ values).transpose(1, 2).flatten(2)

    return look


def by_heads(owned: list[Tensor], group: Any, inner: Look) -> Look:
    """Tokens for heads and back; in between, any attention over these tokens."""

    def look(q: Tensor, k: Tensor, v: Tensor, heads: int) -> Tensor:
        b, d = len(q), q.shape[-1] // heads
        by = [len(t) for t in owned], [len(h) for h in split(heads, group)]
        x = torch.stack([q, k, v], 2).unflatten(-1, (heads, d))
        x_tHC = x.permute(1, 3, 0, 2, 4).flatten(2)
        x_ThC = ulysses.ToHeads.apply(x_tHC, by, group)
        mine = x_ThC.shape[1]
        parts = x_ThC.unflatten(2, (b, 3, d)).permute(3, 2, 0, 1, 4)
        q, k, v = parts.flatten(3)
        done = inner(q, k, v, mine)
        out = done.unflatten(-1, (mine, d)).permute(1, 2, 0, 3).flatten(2)
        home = ulysses.ToTokens.apply(out, by, group)
        back: Tensor = home.unflatten(2, (b, d)).permute(2, 0, 1, 3).flatten(2)
        return back

    return look


def split(heads: int, group: Any) -> tuple[Tensor, ...]:
    """The heads of every rank."""
    return torch.arange(heads).tensor_split(dist.get_world_size(group))
