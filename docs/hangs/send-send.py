"""Two ranks send to each other before either receives.

Guilty: 0, 1.
"""

import torch
import torch.distributed as dist

dist.init_process_group("gloo")
rank = dist.get_rank()
mine, theirs = torch.ones(1000), torch.empty(1000)
if rank < 2:
    dist.send(mine, dst=1 - rank)
    dist.recv(theirs, src=1 - rank)
