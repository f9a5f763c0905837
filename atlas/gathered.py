"""What all ranks found, brought to rank 0 and kept in one file: under any launcher.

    ATLAS_RECORD=run.json torchrun --nnodes 2 ... -m exemplars...
    atlas judge run.json

The file says on which hosts and over which links the ranks ran.
"""

import hashlib
import json
import os
import socket
import sys
import tempfile
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist

from atlas.launchers import FORMAT, VARIABLE

__all__ = ["VARIABLE", "backend_of", "gather", "keep", "place"]


def place(device: torch.device, backend: str) -> dict[str, Any]:
    """Where this rank runs: its host, its device, the link it talks over."""
    found: dict[str, Any] = {"host": socket.gethostname(), "device": device.type}
    if device.type == "cuda":
        found["device"] = torch.cuda.get_device_name(device)
    chosen = "NCCL_SOCKET_IFNAME" if "nccl" in backend else "GLOO_SOCKET_IFNAME"
    if name := os.environ.get(chosen):
        found["interface"] = name
        if speed := _speed(name):
            found["mbit_per_s"] = speed
    return found


def _speed(interface: str) -> int | None:
    """What the kernel knows of a link; nothing of a loopback or most virtual ones."""
    try:
        speed = int(Path("/sys/class/net", interface, "speed").read_text())
    except (OSError, ValueError):
        return None
    return speed if speed > 0 else None


def backend_of(device: str) -> str:
    """What carries this kind of tensor; torch's own name may be "undefined".

    So it is where nobody named a backend, and each device has its own.
    """
    pairs = (pair.split(":") for pair in dist.get_backend_config().split(","))
    return dict(pairs).get(device, str(dist.get_backend()))


def gather(value: Any, device: torch.device) -> list[Any] | None:
    """The plain data of every rank, on rank 0; None on the others.

    As bytes in tensors, so that nothing is unpickled and NCCL can carry it.
    """
    text = torch.frombuffer(bytearray(json.dumps(value).encode()), dtype=torch.uint8)
    size = dist.get_world_size()
    lengths = [torch.zeros(1, dtype=torch.long, device=device) for _ in range(size)]
    dist.all_gather(lengths, torch.tensor([len(text)], device=device))
    most = max(int(n) for n in lengths)
    padded = torch.zeros(most, dtype=torch.uint8, device=device)
    padded[: len(text)] = text
    if dist.get_rank():
        dist.gather(padded, dst=0)
        return None
    every = [torch.empty_like(padded) for _ in range(size)]
    dist.gather(padded, every, dst=0)
    cut = (t[: int(n)].cpu() for t, n in zip(every, lengths, strict=True))
    return [json.loads(t.numpy().tobytes()) for t in cut]


def keep(path: str, module: str, outcome: dict[str, Any], device: torch.device) -> None:
    """Rank 0 writes what all found; what goes wrong with the file is one line."""
    backend = backend_of(device.type)
    every = gather({**outcome, "place": place(device, backend)}, device)
    if every is None:
        return
    made = {
        "format": FORMAT,
        "module": module,
        "backend": backend,
        "versions": _versions(device),
        "exemplar": _digest(module),
        "ranks": every,
    }
    try:
        _write(Path(path), json.dumps(made, indent=1) + "\n")
    except OSError as error:
        print(f"{VARIABLE}={path}: {error.strerror}", file=sys.stderr, flush=True)


def _versions(device: torch.device) -> dict[str, str]:
    found = {"python": sys.version.split()[0], "torch": torch.__version__}
    if device.type == "cuda":
        found["cuda"] = str(torch.version.cuda)
        found["nccl"] = ".".join(map(str, torch.cuda.nccl.version()))
    return found


def _digest(module: str) -> str:
    """Of the file that ran: what is read later may be another."""
    of = "__main__" if module not in sys.modules else module
    file = getattr(sys.modules[of], "__file__", None)
    return hashlib.sha256(Path(file).read_bytes()).hexdigest() if file else ""


def _write(path: Path, text: str) -> None:
    handle, name = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.")
    try:
        with os.fdopen(handle, "w") as file:
            file.write(text)
        os.replace(name, path)
    except BaseException:
        Path(name).unlink(missing_ok=True)
        raise
