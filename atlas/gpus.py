"""How many GPUs the processes started here may use, asked without torch.

Asking CUDA itself would initialize it, and a process that has done so may not be
forked. So the driver's device files are counted, and CUDA_VISIBLE_DEVICES is read as
CUDA reads it.
"""

import os
import re
from pathlib import Path

__all__ = ["visible_gpus"]

#: In Windows Subsystem for Linux this one file stands for all GPUs.
WINDOWS = "dxg"


def visible_gpus(devices: Path = Path("/dev")) -> int:
    """The number of GPUs that CUDA_VISIBLE_DEVICES leaves of those that are here."""
    #: In a container with GPUs 4 to 7 there is no nvidia0.
    present = sum(bool(re.fullmatch(r"nvidia\d+", p.name)) for p in devices.iterdir())
    if not present and (devices / WINDOWS).exists():
        present = 1
    chosen = os.environ.get("CUDA_VISIBLE_DEVICES")
    return present if chosen is None else min(present, _named(chosen))


def _named(chosen: str) -> int:
    """Entries up to the first that names no GPU, which ends the list for CUDA."""
    count = 0
    for name in chosen.split(","):
        if not re.fullmatch(r"\d+|(GPU|MIG)-\S+", name.strip()):
            break
        count += 1
    return count
