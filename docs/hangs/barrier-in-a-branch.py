"""A barrier in a branch that depends on the rank's own data.

Guilty: 2.
"""

import torch
import torch.distributed as dist

dist.init_process_group("gloo")
rank = dist.get_rank()
loss = torch.tensor([float(rank)])
if loss.item() > 1:
    dist.barrier()  # before saving a checkpoint, say
dist.all_reduce(loss)
