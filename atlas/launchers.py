"""Which rank a process is, as torchrun says it, whoever started the process.

torchrun sets RANK, WORLD_SIZE and where the ranks meet. Slurm's `srun` says the same in
words of its own: they are translated, so that `srun python -m exemplars...` needs no
torchrun in between.
"""

import os
import re
from collections.abc import Mapping

__all__ = ["FORMAT", "VARIABLE", "LauncherError", "found", "hosts", "tasks"]

#: The variable that names where a run is kept, and the form of what is kept there.
VARIABLE, FORMAT = "ATLAS_RECORD", 1
#: Above the ports that services have, below those that the kernel gives away itself.
PORTS = range(20_000, 32_000)


class LauncherError(ValueError):
    """What the launcher said makes no sense; one line says which variable."""


def found(said: Mapping[str, str] = os.environ) -> dict[str, str] | None:
    """The variables of torchrun for this process; None if nobody started it as a rank.

    A batch script itself has Slurm's variables too, but belongs to no step: it is not
    a rank, even if it could be taken for the first one.
    """
    if "RANK" in said:
        return {}
    if "SLURM_PROCID" in said and "SLURM_STEP_ID" in said:
        return slurm(said)
    return None


def slurm(said: Mapping[str, str]) -> dict[str, str]:
    """What torchrun would have set, in a step that `srun` started."""
    try:
        size = int(said.get("SLURM_STEP_NUM_TASKS") or said["SLURM_NTASKS"])
        job, step = int(said["SLURM_JOB_ID"]), int(said["SLURM_STEP_ID"])
        node = int(said["SLURM_NODEID"])
        nodes = said.get("SLURM_STEP_NODELIST") or said["SLURM_JOB_NODELIST"]
        counts = said.get("SLURM_STEP_TASKS_PER_NODE") or said["SLURM_TASKS_PER_NODE"]
        made = {
            "RANK": said["SLURM_PROCID"],
            "WORLD_SIZE": str(size),
            "LOCAL_RANK": said["SLURM_LOCALID"],
            "LOCAL_WORLD_SIZE": str(tasks(counts)[node]),
            "GROUP_RANK": str(node),
            "MASTER_ADDR": hosts(nodes)[0],
            # Two jobs, or two steps, may share their first node.
            "MASTER_PORT": str(PORTS[(31 * job + step) % len(PORTS)]),
        }
    except KeyError as missing:
        raise LauncherError(f"Slurm has set no {missing.args[0]}") from None
    except (ValueError, IndexError) as wrong:
        raise LauncherError(f"Slurm's variables make no sense: {wrong}") from None
    return {**made, **{k: said[k] for k in ("MASTER_ADDR", "MASTER_PORT") if k in said}}


def hosts(nodes: str) -> list[str]:
    """The names in Slurm's shorthand: n[01-03,7],login -> n01, n02, n03, n7, login."""
    names = []
    for part in re.findall(r"(?:[^,\[\]]|\[[^\]]*\])+", nodes):
        head, bracket, rest = part.partition("[")
        if not bracket:
            names.append(part)
            continue
        inside, _, tail = rest.partition("]")
        for span in inside.split(","):
            first, _, last = span.partition("-")
            for number in range(int(first), int(last or first) + 1):
                name = f"{head}{number:0{len(first)}d}"
                names += hosts(f"{name}{tail}") if "[" in tail else [f"{name}{tail}"]
    return names


def tasks(counts: str) -> list[int]:
    """Tasks on each node, in Slurm's shorthand: 4(x2),3 -> 4, 4, 3."""
    every = []
    for part in counts.split(","):
        match = re.fullmatch(r"(\d+)(?:\(x(\d+)\))?", part)
        if match is None:
            raise ValueError(f'"{counts}" are no numbers of tasks')
        every += [int(match[1])] * int(match[2] or 1)
    return every
