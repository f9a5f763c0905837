"""Every rank must create every group, in one order; one rank creates them in another.

Guilty: 1.
"""

import torch
import torch.distributed as dist

dist.init_process_group("gloo")
rank = dist.get_rank()
pairs = [[0, 1], [1, 2]]
if rank == 1:
    pairs.reverse()
for pair in pairs:
    group = dist.new_group(pair)
    if rank in pair:
        dist.all_reduce(torch.ones(1), group=group)
