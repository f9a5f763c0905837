"""Puts the stand-in of nccl.cpp where torch.distributed looks for NCCL."""

from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist
from torch._C._distributed_c10d import Backend
from torch.distributed import distributed_c10d as c10d


class NcclOptions:
    """The options of ProcessGroupNCCL; only the timeout means anything here."""

    def __init__(self, is_high_priority_stream: bool = False) -> None:
        self.is_high_priority_stream = is_high_priority_stream
        self.config: Any = None
        self._timeout = timedelta(minutes=10)
        self.global_ranks_in_group: list[int] = []
        self.group_name = ""


class _IsOurs(type):
    """Instances are C++ backends: they are known by their name."""

    def __instancecheck__(cls, instance: object) -> bool:
        return isinstance(instance, Backend) and instance.name() == "nccl"


class ProcessGroupNCCL(metaclass=_IsOurs):
    """Makes the stand-in over a gloo group of the same ranks."""

    Options = NcclOptions

    def __new__(
        cls, store: c10d.Store, rank: int, size: int, options: NcclOptions
    ) -> Any:
        gloo = dist.ProcessGroup(store, rank, size)
        backend = c10d.ProcessGroupGloo(
            c10d.PrefixStore("gloo/", store), rank, size, timeout=options._timeout
        )
        gloo._register_backend(
            torch.device("cpu"), dist.ProcessGroup.BackendType.GLOO, backend
        )
        holder = dist.ProcessGroup(store, rank, size)
        torch.ops.atlas_emulate.attach_nccl(
            holder.boxed(), gloo.boxed(), options._timeout // timedelta(milliseconds=1)
        )
        return holder._get_backend(torch.device("cuda"))


def install() -> None:
    """Make `nccl` a backend that torch.distributed finds."""
    names = {
        "_NCCL_AVAILABLE": True,
        "default_pg_nccl_timeout": timedelta(minutes=10),
        "ProcessGroupNCCL": ProcessGroupNCCL,
    }
    for name, value in names.items():
        setattr(c10d, name, value)
    setattr(dist, "ProcessGroupNCCL", ProcessGroupNCCL)  # noqa: B010 - not declared
