"""One rank stops early by itself, without telling the others.

Guilty: 1.
"""

import sys

import torch
import torch.distributed as dist

dist.init_process_group("gloo")
rank = dist.get_rank()
loss = torch.ones(1)
for step in range(5):
    if rank == 1 and step == 3:
        sys.exit()  # its own loss is low enough
    dist.all_reduce(loss)
