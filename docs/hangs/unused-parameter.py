"""A parameter that one rank does not use: DDP waits for its gradient for ever.

Guilty: 1.
"""

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel


class TwoHeads(nn.Module):
    def __init__(self):
        super().__init__()
        self.body, self.a, self.b = nn.Linear(4, 4), nn.Linear(4, 1), nn.Linear(4, 1)

    def forward(self, x, both):
        h = self.body(x)
        return self.a(h) + (self.b(h) if both else 0)


dist.init_process_group("gloo")
rank = dist.get_rank()
model = DistributedDataParallel(TwoHeads())
for _ in range(2):
    model(torch.ones(2, 4), both=rank != 1).sum().backward()
