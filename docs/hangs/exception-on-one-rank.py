"""One rank meets bad data and raises; the others wait for it, or lose it.

Guilty: 1.
"""

import torch
import torch.distributed as dist

dist.init_process_group("gloo")
rank = dist.get_rank()
gradient = torch.ones(4)
for step in range(3):
    if rank == 1 and step == 2:
        raise ValueError("cannot decode image 4711")
    dist.all_reduce(gradient)
