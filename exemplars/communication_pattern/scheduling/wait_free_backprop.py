"""Wait-free backpropagation: a layer's gradient leaves while others are made.

    torchrun --standalone --nproc-per-node 4 -m exemplars.communication_pattern.scheduling.wait_free_backprop

Backward computes the last layer's gradient first, and nothing that follows
changes it: it may travel while earlier layers are still being computed.

    compute    | layer 3 | layer 2 | layer 1 | layer 0 |
    network              | 3 . . . | 2 . . . | 1 . . . | 0 . . . |  step

A hook on each weight, called when its gradient is complete, starts an
all-reduce and does not wait for it. Waiting comes once, before the step.
Only the last transfer has nothing left to hide behind: of L all-reduces,
L - 1 are under way before backward ends. Bytes and bits are the same as if
everything were sent afterwards.

All ranks must start them in the same order, or one rank's layer 2 would be
added to another's layer 3. Backward's own order is the same everywhere.

Source: Zhang et al. 2017 (Poseidon).
"""

from collections.abc import Callable
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn

from exemplars.runtime import World, meter, report, span, world


class WaitFree:
    """Sums a module's gradients over all ranks while backward runs."""

    def __init__(self, module: nn.Module) -> None:
        self.works: dict[Tensor, dist.Work] = {}
        #: Each weight once, even if layers share it, and no frozen one.
        for weight in module.parameters():
            if weight.requires_grad:
                weight.register_post_accumulate_grad_hook(self.start)

    def start(self, weight: Tensor) -> None:
        """A gradient is complete: let it go, and go on."""
        if weight in self.works:
            raise ValueError(
                "backward ran twice before wait(): its sum is off"
            )
        #: Not waited for: backward goes on with the layer below. Until
        #: wait(), nobody may read or change this gradient.
        self.works[weight] = dist.all_reduce(weight.grad, async_op=True)

    def wait(self) -> None:
        """All gradients are those of the whole batch."""
        with span("wait"):
            #: In the order of their start, which is that of their end too.
            for work in self.works.values():
                work.wait()
        self.works.clear()


def wait_free(module: nn.Module) -> Callable[[Tensor], None]:
    """A backward pass that sums gradients while it computes them."""
    overlap = WaitFree(module)

    def backward(loss: Tensor) -> None:
        loss.backward()
        #: The only wait, just before the optimizer needs the gradients.
        overlap.wait()

    return backward


def afterwards(module: nn.Module) -> Callable[[Tensor], None]:
    """The same with all communication after the last gradient."""

    def backward(loss: Tensor) -> None:
        loss.backward()
        for weight in module.parameters():
            if weight.requires_grad:
                dist.all_reduce(weight.grad)

    return backward


class Layer(nn.Module):
    """tanh(x W)."""

    def __init__(self, weight: Tensor, number: int) -> None:
        super().__init__()
        self.weight, self.number = nn.Parameter(weight), number

    def forward(self, x: Tensor) -> Tensor:
        """(rows, width) to the same."""
        y: Tensor = TanhProduct.apply(x, self.weight, self.number)
        return y


class TanhProduct(torch.autograd.Function):
    """Forward and backward of a layer, written out to be named in a trace."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor, number: int) -> Tensor:
        y = torch.tanh(x @ weight)
        ctx.save_for_backward(x, weight, y)
        ctx.number = number
        return y

    @staticmethod
    def backward(ctx: Any, dy: Tensor) -> tuple[Tensor | None, ...]:
        x, weight, y = ctx.saved_tensors
        with span("backward", label=f"layer {ctx.number}", cost=2):
            dz = dy * (1 - y.square())
            #: Nobody asks for the gradient of the data.
            dx = dz @ weight.T if ctx.needs_input_grad[0] else None
            return dx, x.T @ dz, None


def network(matrices: Tensor) -> nn.Module:
    """A copy of each matrix, as a layer; then a slope that does not learn."""
    layers = (Layer(m.clone(), i) for i, m in enumerate(matrices))
    #: Frozen, as layers are in fine-tuning: it gets no gradient, no hook.
    slope = nn.PReLU(init=0.25).to(matrices).requires_grad_(False)
    return nn.Sequential(*layers, slope)


def waits(events: list[Any]) -> int:
    return sum(e.kind == "wait" for e in events)


def trained(
    w: World,
    model: nn.Module,
    data: list[Tensor],
    rate: float,
    backward: Callable[[Tensor], None],
) -> list[Tensor]:
    """SGD, each rank on its share of each batch; the weights it ends with."""
    sgd = torch.optim.SGD(model.parameters(), lr=rate)
    for rows in data:
        share = rows.tensor_split(w.size)[w.rank]
        sgd.zero_grad()
        #: Divided by all rows: the ranks' gradients add up to the mean's.
        backward(model(share).square().sum() / len(rows))
        sgd.step()
    return list(model.parameters())


def reference(start: Tensor, data: list[Tensor], rate: float) -> list[Tensor]:
    """One process, whole batches, autograd's own derivatives."""
    slope = start.new_tensor([0.25])
    weights = [m.clone().requires_grad_() for m in start]
    sgd = torch.optim.SGD(weights, lr=rate)
    for x in data:
        rows = len(x)
        for m in weights:
            x = torch.tanh(x @ m)
        sgd.zero_grad()
        (nn.functional.prelu(x, slope).square().sum() / rows).backward()
        sgd.step()
    return [*weights, slope]


def main(
    w: World,
    *,
    layers: int = 6,
    width: int = 64,
    batch: int = 50,
    steps: int = 2,
    rate: float = 0.5,
) -> None:
    data = [w.randn(batch, width, seed=step) for step in range(steps)]
    start = w.randn(layers, width, width, seed=0) / width**0.5
    model, plain = network(start), network(start)
    moved = meter()
    #: From outside: whenever the first layer's gradient, the last one, is
    #: complete, how many all-reduces have begun and not been waited for?
    under_way: list[int] = []
    last = next(model.parameters())
    last.register_post_accumulate_grad_hook(
        lambda _: under_way.append(moved.count - waits(moved.events))
    )
    with moved:
        weights = trained(w, model, data, rate, wait_free(model))
    late = trained(w, plain, data, rate, afterwards(plain))
    # Another order of additions, through layers and steps.
    w.check("weights", weights, lambda: reference(start, data, rate), slack=32)
    w.check("afterwards", weights, lambda: late, slack=0)
    w.check_same("same", weights)
    waited = waits(moved.events)
    counts = {"calls": moved.count, "payload": moved.payload}
    given = {"itemsize": start.element_size()}
    report(w, given=given, early=sum(under_way), waits=waited, **counts)


if __name__ == "__main__":
    with world() as w:
        main(w)
