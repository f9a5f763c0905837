"""Two collectives, which one rank calls in the other order.

Guilty: 2.
"""

import torch
import torch.distributed as dist

dist.init_process_group("gloo")
rank = dist.get_rank()
weights, loss = torch.ones(8), torch.ones(1)
if rank == 2:
    dist.broadcast(weights, src=0)
    dist.all_reduce(loss)
else:
    dist.all_reduce(loss)
    dist.broadcast(weights, src=0)
