"""A rank dies, killed from outside, while another waits for its message.

Guilty: 2.
"""

import os
import signal

import torch
import torch.distributed as dist

dist.init_process_group("gloo")
rank = dist.get_rank()
part = torch.ones(4)
if rank == 2:
    os.kill(os.getpid(), signal.SIGKILL)  # as the out-of-memory killer does
if rank == 0:
    dist.recv(part, src=2)
