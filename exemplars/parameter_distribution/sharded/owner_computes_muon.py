"""Owner-computes Muon: each matrix goes to one rank, which orthogonalizes it.

    torchrun --standalone --nproc-per-node 4 -m exemplars.parameter_distribution.sharded.owner_computes_muon

Adam's update of a weight needs that weight's gradient, so shards can be cut
anywhere. Muon's needs the whole matrix: it replaces the gradient U S V^T by
U V^T, nearly, so that all directions move equally far. Newton-Schulz does it
by products alone. On X / |X|, five times,

    A = X X^T     X <- a X + (b A + c A A) X

turns every singular value s into a s + b s^3 + c s^5, near 1 at the end. Rows
of a matrix have other singular values: a shard cannot do it alone.

    momentum          every rank, of its rows of all matrices
    all-to-all        rows of all matrices -> all rows of this rank's own
    orthogonalize     every rank, its own matrices
    all-to-all        and the updates go back to their rows
    weights           every rank, of its rows

Every matrix is computed once and not p times. A rank hands over its shard and
the updates it made, 1/p of the model each: much less than an all-gather.

    M matrices, m of them mine   R rows, r of them mine   C columns

Source: Liu et al. 2025, section 2.3; VeOmni, pull request 973 (owners).
"""

from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import DTensor, Shard, distribute_tensor
from torch.optim import Muon

from exemplars.runtime import World, meter, report, span, world

#: Chosen for speed, not for precision: what they make of a singular value is
#: somewhere around 1, which is enough.
A, B, C = 3.4445, -4.7750, 2.0315


class Owned:
    """Muon over row shards: sharded momentum, one owner for each matrix."""

    def __init__(
        self, weights_MrC: Tensor, rows: int, momentum: float
    ) -> None:
        self.weights, self.momentum = weights_MrC, momentum
        self.average = torch.zeros_like(weights_MrC)
        p = dist.get_world_size()
        #: Both cuts are known to all, so no sizes are sent.
        self.rows = lengths(rows, p)
        self.matrices = lengths(len(weights_MrC), p)

    def step(self, gradient_MrC: Tensor, rate: float) -> None:
        """One update of this rank's rows of all matrices."""
        #: Element by element, so the shards can do it.
        self.average.lerp_(gradient_MrC, 1 - self.momentum)
        update_MrC = gradient_MrC.lerp(self.average, self.momentum)
        own_mRC = self.to_owners(update_MrC)
        with span("orthogonalize", cost=len(own_mRC)):
            own_mRC = orthogonal(own_mRC)
        self.weights.sub_(self.to_shards(own_mRC), alpha=rate)

    def to_owners(self, x_MrC: Tensor) -> Tensor:
        """My rows of all matrices -> all rows of my matrices."""
        m = self.matrices[dist.get_rank()]
        sent = x_MrC.split(self.matrices)
        shapes = [(m, r, x_MrC.shape[2]) for r in self.rows]
        return torch.cat(exchange([*sent], shapes), dim=1)

    def to_shards(self, x_mRC: Tensor) -> Tensor:
        """All rows of my matrices -> my rows of all matrices."""
        r = self.rows[dist.get_rank()]
        sent = x_mRC.split(self.rows, dim=1)
        shapes = [(m, r, x_mRC.shape[2]) for m in self.matrices]
        return torch.cat(exchange([*sent], shapes))


def lengths(size: int, p: int) -> list[int]:
    """The lengths of p parts, as even as possible."""
    return [len(part) for part in torch.arange(size).tensor_split(p)]


def exchange(sent: list[Tensor], shapes: list[Any]) -> list[Tensor]:
    """Part q goes to rank q; what arrives, in these shapes."""
    sizes = [torch.Size(shape).numel() for shape in shapes]
    flat = torch.cat([part.flatten() for part in sent])
    arrived = flat.new_empty(sum(sizes))
    #: Every matrix at once. Production does it in groups of p matrices, and
    #: orthogonalizes one group while the next one travels.
    own = [part.numel() for part in sent]
    dist.all_to_all_single(arrived, flat, sizes, own)
    return [t.view(s) for t, s in zip(arrived.split(sizes), shapes)]


def orthogonal(x: Tensor) -> Tensor:
    """Five steps of Newton-Schulz on each of these matrices."""
    #: One norm for each: what is left of a matrix's scale is divided out.
    x = x / x.norm(dim=(1, 2), keepdim=True)
    for _ in range(5):
        #: The smaller of the two Gram matrices: there are no more rows than
        #: columns here. Otherwise the matrix would be transposed first.
        gram = x @ x.mT
        x = A * x + (B * gram + C * gram @ gram) @ x
    return x


def reference(
    start: Tensor, gradients: list[Tensor], rate: float, momentum: float
) -> Tensor:
    """One process, whole matrices, and singular values instead of products."""
    weights, average = start.cpu(), torch.zeros_like(start.cpu())
    for gradient in gradients:
        average = momentum * average + (1 - momentum) * gradient.cpu()
        mixed = (1 - momentum) * gradient.cpu() + momentum * average
        left, values, right = torch.linalg.svd(mixed, full_matrices=False)
        values = values / values.square().sum(1, keepdim=True).sqrt()
        for _ in range(5):
            values = A * values + B * values**3 + C * values**5
        weights = weights - rate * (left * values[:, None]) @ right
    return weights.to(start.device)


def by_torch(
    start: Tensor, gradients: list[Tensor], rate: float, momentum: float
) -> tuple[Tensor, float]:
    """torch's Muon on the same shards, as DTensors; numbers that it sends."""
    mesh = init_device_mesh(start.device.type, (dist.get_world_size(),))

    def cut(x: Tensor) -> DTensor:
        return distribute_tensor(x, mesh, [Shard(0)], src_data_rank=None)

    weights: list[Any] = [nn.Parameter(cut(x)) for x in start]
    muon = Muon(weights, lr=rate, momentum=momentum, weight_decay=0)
    with meter(shown=False) as moved:
        for gradient in gradients:
            for weight, g in zip(weights, gradient):
                weight.grad = cut(g)
            muon.step()
    whole = torch.stack([t.detach().full_tensor() for t in weights])
    #: It computes, and sends, numbers of 16 bits.
    return whole, moved.wire / 2


def main(
    w: World,
    *,
    matrices: int = 12,
    rows: int = 24,
    columns: int = 32,
    steps: int = 2,
    rate: float = 0.1,
    momentum: float = 0.9,
) -> None:
    most = min(matrices, rows)
    w.require(w.size <= most, f"{w.size} ranks: use at most {most}")
    w.require(rows <= columns, f"{rows} x {columns}: more rows than columns")
    mine = torch.arange(rows).tensor_split(w.size)[w.rank]
    shape = (matrices, rows, columns)
    gradients = [w.randn(*shape, seed=step) for step in range(steps)]
    # From zero: then the weights are the sum of the updates.
    start = torch.zeros_like(gradients[0])
    owned = Owned(start[:, mine], rows, momentum)
    memory = w.memory(optimizer=lambda: [owned.average])
    with memory, meter() as moved:
        for gradient in gradients:
            owned.step(gradient[:, mine], rate)
    truth = reference(start, gradients, rate, momentum)[:, mine]
    # Five steps can make an error 485 times as large.
    w.check("parameters", owned.weights, lambda: truth, slack=512)
    theirs, numbers = by_torch(start, gradients, rate, momentum)
    ours, others = (x.bfloat16() for x in (owned.weights, theirs[:, mine]))
    w.check("torch", ours, lambda: others, slack=8)
    state = memory.live()["optimizer"]
    sent = {"calls": moved.count, "sent": moved.payload, "torch_sent": numbers}
    report(w, given={"itemsize": 8}, flops=moved.flops, state=state, **sent)


if __name__ == "__main__":
    with world() as w:
        main(w)
