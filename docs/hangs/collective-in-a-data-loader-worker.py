"""A collective in the process of a data loader's worker, which has no group.

Guilty: 0, 1, 2.
"""

import torch
import torch.distributed as dist
from torch.utils.data import DataLoader, Dataset


class Numbers(Dataset):
    def __len__(self):
        return 4

    def __getitem__(self, i):
        x = torch.tensor([float(i)])
        dist.all_reduce(x)  # in a fork of this rank
        return x


dist.init_process_group("gloo")
for batch in DataLoader(Numbers(), num_workers=1):
    dist.all_reduce(batch)
