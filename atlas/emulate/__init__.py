"""A pretend CUDA device with real values, and an `nccl` as strict as NCCL.

    torchrun --nproc-per-node 2 -m atlas.emulate script.py

runs an ordinary CUDA and NCCL script on a machine without a GPU. Tensors on
cuda:N live in host memory and are computed by CPU kernels; mixing devices is an
error, as on a GPU. The process group named nccl moves bytes by gloo, and refuses
what NCCL refuses (native/nccl.cpp).

What ran here has run *emulated*, not on a GPU. It does not show: speed; the limits
of a GPU's memory; CUDA kernels that are missing or round otherwise; races between
streams, or a wait that was forgotten; deadlocks between several groups. Not there
at all: LSTM and GRU cells (fused on CUDA), sparse tensors, flash attention,
compiled kernels, CUDA graphs, symmetric memory, ReduceOp.PREMUL_SUM. Stricter than
NCCL: a send waits for its receive whatever its size.
"""

import ctypes
import os
import sys

from atlas.emulate.library import EmulationError, build, unavailable

__all__ = ["EmulationError", "activate", "active", "build", "unavailable"]

MOST_DEVICES = 64  # as in device.cpp


def active() -> bool:
    """Whether this process has the emulated GPU."""
    return os.environ.get("ATLAS_EMULATED") == "1"


def activate(devices: int = 16) -> None:
    """Give this process emulated GPUs; to be called before torch is imported.

    Starts no thread and computes nothing, so that a server may call it, import
    what its ranks need, and fork them.
    """
    if not 1 <= devices <= MOST_DEVICES:
        raise EmulationError(
            f"{devices} emulated devices: choose between 1 and {MOST_DEVICES}"
        )
    if "torch" in sys.modules:
        raise EmulationError(
            "torch is imported already: call atlas.emulate.activate() before it"
        )
    library = build()
    os.environ["ATLAS_EMULATED"] = "1"
    os.environ["ATLAS_EMULATED_DEVICES"] = str(devices)
    ctypes.CDLL(str(library))
    from atlas.emulate import cuda, nccl

    cuda.install(devices)
    nccl.install()
