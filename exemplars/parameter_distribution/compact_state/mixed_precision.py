"""Mixed precision: 16 bits to compute and to send, 32 bits to remember.

    torchrun --standalone --nproc-per-node 4 -m exemplars.parameter_distribution.compact_state.mixed_precision

Source: Micikevicius et al. 2018, section 3.

Weights, activations and gradients are float16: half the bytes to hold, half
to send. Two things go wrong with that, and each has its cure.

    small updates    w + dw = w when dw is below a 2000th of w: keep master
                     weights in float32, update those, round to compute
    small gradients  below 6e-8 all is zero: multiply the loss by a scale,
                     and divide the gradient by it, in float32

A scale that is a power of two only moves exponents. As long as nothing leaves
the range, every rounding falls as before: the gradient has the same bits for
any such scale, and only what would have been lost is different.

    bytes of a parameter   2 weight + 2 gradient + 4 master + 8 moments = 16
"""

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.nn.utils import parameters_to_vector
from torch.optim import Adam

from exemplars.runtime import World, meter, report, span, world
from exemplars.workload import equal_layers

LAYERS, WIDTH, ROWS, STEPS = 3, 17, 48, 3
SIZE = LAYERS * (WIDTH * WIDTH + WIDTH)  # 918
SMALL = 2.0**-20  # of the loss: gradients as small as late in training
SCALE = 2.0**20
MOMENTS = "exp_avg", "exp_avg_sq"


class Replica:
    """A float16 model, and what a float32 Adam remembers of it."""

    def __init__(self, w: World) -> None:
        self.model = equal_layers(LAYERS, WIDTH).to(w.device).float()
        whole = parameters_to_vector(self.model.parameters()).detach()
        self.master = nn.Parameter(whole.clone())
        self.adam = Adam([self.master])
        self.model.half()
        self.weights, self.slope, start = whole.half(), whole.half() * 0, 0
        for p in self.model.parameters():
            place = slice(start, start := start + p.numel())
            p.data = self.weights[place].view_as(p)
            p.grad = self.slope[place].view_as(p)  # backward adds to it

    def step(self, w: World, rows: Tensor) -> None:
        """One update from the shares of all ranks."""
        with span("half", cost=2):
            (loss_of(self.model, rows) * SCALE).backward()
        every = self.slope.new_empty(w.size, SIZE)
        #: Gathered, and added in float32 by everyone alike: float16 travels,
        #: but no sum is rounded to it. (A ring would add in float16.)
        dist.all_gather_single(every.view(-1), self.slope)
        with span("float", cost=1):
            self.master.grad = every.float().sum(0) / SCALE
            self.adam.step()
            self.weights.copy_(self.master.detach())
        self.slope.zero_()
        self.master.grad = None


def loss_of(model: nn.Module, rows: Tensor) -> Tensor:
    """Computed in float16, summed in float32."""
    y: Tensor = model(rows.half())
    return y.float().square().sum() * SMALL


def slopes(model: nn.Module, rows: Tensor, scale: float) -> Tensor:
    """The float16 gradient with this scale, divided by it in float32."""
    loss = loss_of(model, rows) * scale
    grads = torch.autograd.grad(loss, [*model.parameters()])
    return torch.cat([g.view(-1) for g in grads]).float() / scale


def reference(w: World, shares: list[Tensor]) -> Tensor:
    """One process takes the shares in turn, with float32 Adam by module."""
    master = equal_layers(LAYERS, WIDTH).to(w.device).float()
    adam = Adam(master.parameters())
    for _ in range(STEPS):
        model = equal_layers(LAYERS, WIDTH).to(w.device).half()
        for ours, theirs in zip(model.parameters(), master.parameters()):
            ours.data.copy_(theirs.data)
        every = [slopes(model, rows, SCALE) * SCALE for rows in shares]
        slope, start = torch.stack(every).sum(0) / SCALE, 0
        for p in master.parameters():
            p.grad = slope[start : (start := start + p.numel())].view_as(p)
        adam.step()
    return parameters_to_vector(master.parameters())


def main(w: World) -> None:
    rows = w.randn(ROWS, WIDTH, of_rank=0, dtype=torch.float)
    shares = [*rows.tensor_split(w.size)]
    replica, mine = Replica(w), shares[w.rank]
    first = slopes(replica.model, rows, SCALE)
    w.check("scale", slopes(replica.model, rows, 4 * SCALE), lambda: first, 0)
    state = replica.adam.state
    memory = w.memory(
        weights=lambda: [replica.weights],
        gradients=lambda: [replica.slope],
        master=lambda: [replica.master],
        moments=lambda: [s[m] for s in state.values() for m in MOMENTS],
    )
    with memory, meter() as moved:
        for _ in range(STEPS):
            replica.step(w, mine)
            memory.mark("step")
    # The same shares, the same order of additions: the same bits.
    ours = replica.master.detach()
    w.check("parameters", ours, lambda: reference(w, shares), slack=0)
    w.check_same("same", replica.weights)
    live = memory.live("step")
    kept = sum(live[c] for c in ("weights", "gradients", "master", "moments"))
    lost = int((first == 0).sum())
    given = {"n": SIZE, "t": STEPS}
    report(w, given=given, state=kept, payload=moved.payload, lost=lost)


if __name__ == "__main__":
    with world() as w:
        main(w)
