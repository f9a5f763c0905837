"""Join the group, check, report: what every exemplar shares, and no more.

    if __name__ == "__main__":
        with world() as w:
            main(w)

`world` joins the group that torchrun or Slurm's srun made, or takes part in
one that is there already; the device comes from torch.accelerator and the
backend from the device, so the same file runs on gloo and on NCCL. `w.check` compares with a reference, and remembers; nothing
is raised until `world` ends, so no rank leaves its peers in a collective.

In a dry run one process pretends to be rank r of any number: what is sent is
counted and what arrives means nothing, so references are not even computed.
"""

import contextlib
import hashlib
import inspect
import os
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

from atlas import gathered, launchers
from atlas.clock import Clock, constant, jitter, one_pauses, one_slow
from atlas.held import Held
from atlas.ledger import Category, Ledger
from atlas.meter import Count, Meter, plain, span
from atlas.process import die_with_parent, stacks_on_signal
from atlas.renamed import rename
from atlas.schedule import Action, Schedule, Work
from atlas.timeline import alike

__all__ = [
    "Action", "Clock", "Group", "Held", "Refused", "Schedule", "Work", "World",
    "alike", "constant", "jitter", "join", "meter", "one_pauses", "one_slow",
    "report", "span", "world",
]  # fmt: skip

Tensors = Tensor | Sequence[Tensor]
Group = dist.ProcessGroup | None  # None: all ranks
#: A claim, what is checked for it, and the reference, if it has one.
Watch = Callable[[str, list[Tensor], list[Tensor]], None]
FAR = sys.float_info.max  # an error beyond all bounds; JSON knows no infinity


class ClaimsFailError(AssertionError):
    """Some checks failed, in a group whose processes are not ours to end."""


class Refused(ValueError):
    """What the reader asked for cannot work; the message says what would."""


@dataclass(frozen=True)
class Check:
    """A value against its reference: how far off, and how far it may be."""

    ok: bool
    error: float
    limit: float


@dataclass
class World:
    """This rank, its group, and what it has found out so far."""

    rank: int
    size: int
    device: torch.device
    dry: bool = False
    sizes: dict[str, float] = field(default_factory=dict)
    given: dict[str, float] = field(default_factory=dict)
    measured: dict[str, float] = field(default_factory=dict)
    checks: dict[str, Check] = field(default_factory=dict)
    meters: list[Meter] = field(default_factory=list)
    digest: Callable[[Any], str] | None = (
        None  # names what is sent, if anyone asks
    )
    watch: Watch | None = None  # is told of what is checked, if anyone asks
    ledger: Ledger | None = None
    module: str = ""  # of the exemplar, where `run` has called it
    group: Group = None  # among whom rank and size count

    def require(self, holds: bool, otherwise: str) -> None:
        """Refuse, in one line, what cannot work."""
        if not holds:
            raise Refused(otherwise)

    def randn(
        self,
        *shape: int,
        seed: int | None = None,
        dtype: torch.dtype = torch.double,
    ) -> Tensor:
        """Random numbers of a seed, the same on every rank, run and backend."""
        seed = self.rank if seed is None else seed
        digest = hashlib.sha256(f"{seed} {shape}".encode()).digest()[:8]
        source = torch.Generator().manual_seed(
            int.from_bytes(digest, "big") >> 1
        )
        return torch.randn(shape, generator=source, dtype=dtype).to(
            self.device
        )

    def memory(self, **categories: Category) -> Ledger:
        """A ledger of every live byte by category, to be opened by `with`."""
        self.ledger = Ledger(categories)
        return self.ledger

    def check(
        self,
        claim: str,
        value: Tensors,
        reference: Callable[[], Tensors],
        slack: float,
    ) -> None:
        """Hold a value against its reference; slack 0 means bit for bit.

        Otherwise it may be off by `slack` roundings for each rank: slack * p *
        eps of the dtype, relative to the largest number of the reference.
        """
        if self.dry:
            return
        ours, theirs = _list(value), _list(reference())
        if self.watch is not None:
            self.watch(claim, ours, theirs)
        pairs = zip(ours, theirs, strict=True)
        error = max(_error(a, b, exact=slack == 0) for a, b in pairs)
        limit = 0.0
        if slack:
            limit = slack * self.size * torch.finfo(ours[0].dtype).eps
        self._note(claim, Check(error <= limit, error, limit))

    def check_same(self, claim: str, value: Tensors) -> None:
        """All ranks hold the same bits."""
        if self.dry:
            return
        if self.watch is not None:
            self.watch(claim, _list(value), [])
        digest = hashlib.sha256()
        for t in _list(value):
            digest.update(t.detach().cpu().contiguous().numpy().tobytes())
        words = torch.frombuffer(bytearray(digest.digest()), dtype=torch.long)
        most, least = words.to(self.device), words.to(self.device, copy=True)
        dist.all_reduce(most, dist.ReduceOp.MAX)
        dist.all_reduce(least, dist.ReduceOp.MIN)
        same = torch.equal(most, least)
        self._note(claim, Check(same, 0.0 if same else FAR, 0.0))

    def _note(self, claim: str, check: Check) -> None:
        old = self.checks.get(claim)
        if old is None or old.ok:
            self.checks[claim] = check

    def outcome(self) -> dict[str, Any]:
        """All of it as plain data, for a record."""
        calls: dict[str, Count] = {}
        for m in self.meters:
            for op, count in m.calls.items():
                total = calls.setdefault(op, Count())
                total.count += count.count
                total.payload += count.payload
                total.wire += count.wire
        written = [m.written for m in self.meters]
        return {
            "rank": self.rank,
            "sizes": self.sizes,
            "given": {**self.sizes, **self.given},
            "measured": self.measured,
            "checks": {k: asdict(v) for k, v in self.checks.items()},
            "calls": {
                k: {**asdict(c), "wire": plain(c.wire)}
                for k, c in calls.items()
            },
            "written": None
            if None in written
            else sum(w for w in written if w),
            "flops": sum(m.flops for m in self.meters),
            "memory": None if self.ledger is None else _memory(self.ledger),
            "events": [e.as_dict() for e in _joined(self.meters)],
            "seconds": sum(m.seconds for m in self.meters),
        }


def _memory(ledger: Ledger) -> dict[str, Any]:
    return {"peak": ledger.peak, "series": ledger.series}


def _joined(meters: list[Meter]) -> Iterator[Any]:
    """The events of all meters, one after the other."""
    count, time = 0, 0.0
    for m in meters:
        for e in m.events:
            later = e.until + time if e.until else 0.0
            of = e.of + count if e.of >= 0 else -1
            yield replace(e, at=e.at + time, until=later, of=of)
        count, time = count + len(m.events), time + m.seconds


def _list(tensors: Tensors) -> list[Tensor]:
    return [tensors] if isinstance(tensors, Tensor) else list(tensors)


def _error(a: Tensor, b: Tensor, exact: bool) -> float:
    """Largest difference, relative to the largest number of the reference."""
    if a.shape != b.shape:
        return FAR
    if torch.equal(a, b):  # though a zero may have another sign
        same = not exact or torch.equal(a.signbit(), b.signbit())
        return 0.0 if same else FAR
    worst = ((a - b).abs().max() / b.abs().max().clamp_min(1e-300)).item()
    return worst if 0 < worst < FAR else FAR  # or not a number


rename()
_current: list[World] = []


def meter(*, shown: bool = True) -> Meter:
    """Count what is moved inside `with`; a run's trace is what was metered.

    What is not shown is counted apart: it is in neither the trace nor the totals.
    """
    m = Meter(_current[-1].digest if _current else None)
    if _current and shown:
        _current[-1].meters.append(m)
    return m


def report(
    w: World, *, given: Mapping[str, float] | None = None, **measured: float
) -> None:
    """What this rank measured for each claim.

    `given` is what the formulas need beside the arguments of `main`.
    """
    w.given, w.measured = dict(given or {}), measured


def run(w: World, main: Callable[..., None], **sizes: Any) -> None:
    """Call an exemplar's main with these sizes; the others are its defaults."""
    w.sizes = {**defaults(main), **sizes}
    w.module = main.__module__
    main(w, **sizes)


def defaults(main: Callable[..., None]) -> dict[str, Any]:
    """The sizes that a main takes by keyword, with their defaults."""
    parameters = inspect.signature(main).parameters.values()
    return {p.name: p.default for p in parameters if p.kind is p.KEYWORD_ONLY}


@contextlib.contextmanager
def join(
    *,
    rank: int,
    size: int,
    local_rank: int,
    rendezvous: str,
    timeout: float,
    dry: bool = False,
) -> Iterator[World]:
    """Be one rank of a group, and leave it in order."""
    device = _device(local_rank, dry)
    #: With its device named, NCCL makes the communicator now, not in the
    #: middle of the first collective.
    bound = None if device.type == "cpu" else device
    backend = "fake" if dry else dist.get_default_backend_for_device(device)
    torch.set_num_threads(1)
    dist.init_process_group(
        backend,
        init_method=None if dry else rendezvous,
        rank=rank,
        world_size=size,
        timeout=timedelta(seconds=timeout),
        device_id=bound,
    )
    _current.append(World(rank, size, device, dry))
    try:
        yield _current[-1]
        #: Only in good order: after an error, destroying the group would wait
        #: for peers that are stuck in a collective.
        if not dry:
            dist.all_reduce(torch.zeros((), device=device))  # all are done
        dist.destroy_process_group()
    finally:
        _current.pop()


def _device(local_rank: int, dry: bool) -> torch.device:
    found = None if dry else torch.accelerator.current_accelerator(True)
    if found is None:
        return torch.device("cpu")
    count = torch.accelerator.device_count()
    if count == 1 and "SLURM_LOCALID" in os.environ:
        local_rank = 0  # Slurm shows each task its own GPU, and no other
    if local_rank >= count:
        raise Refused(
            f"rank {local_rank} here has no device: there are {count}; "
            f"start at most {count} ranks here, or hide them for gloo "
            "(CUDA_VISIBLE_DEVICES=)"
        )
    torch.accelerator.set_device_index(local_rank)
    return torch.device(found.type, local_rank)


@contextlib.contextmanager
def world(timeout: float | None = None) -> Iterator[World]:
    """The group that the launcher made; the process ends with the block."""
    if dist.is_initialized():
        with _attend() as w:
            yield w
        return
    _ask_launcher()
    die_with_parent(os.getppid())
    stacks_on_signal(sys.stderr)
    rank, size = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
    local = int(os.environ.get("LOCAL_RANK", rank))
    if timeout is None:
        timeout = _timeout(size, int(os.environ.get("LOCAL_WORLD_SIZE", size)))
    try:
        with join(
            rank=rank,
            size=size,
            local_rank=local,
            rendezvous="env://",
            timeout=timeout,
        ) as w:
            if rank == 0:
                print(_where(w), flush=True)
            yield w
            _keep(w)
    except Refused as refusal:
        #: All ranks refuse a wrong size; a missing device, only who lacks it.
        if rank == 0 or not dist.is_initialized():
            print(refusal, file=sys.stderr)
        _leave(2)
    _say(w)
    _leave(0 if all(c.ok for c in w.checks.values()) else 1)


def _ask_launcher() -> None:
    """Take a rank from whoever started this process, or say how to start it."""
    try:
        said = launchers.found()
    except launchers.LauncherError as wrong:
        sys.exit(str(wrong))
    if said is None:
        line = "start it with: torchrun --standalone --nproc-per-node 4 -m"
        sys.exit(f"{line} {_main_module()}")
    os.environ.update(said)


def _main_module() -> str:
    spec = sys.modules["__main__"].__spec__
    return spec.name if spec else sys.argv[0]


@contextlib.contextmanager
def _attend() -> Iterator[World]:
    """Take part in a group that someone else made and will end."""
    device = torch.device("cpu")
    found = torch.accelerator.current_accelerator(True)
    if found is not None and f"{found.type}:" in dist.get_backend_config():
        index = torch.accelerator.current_device_index()
        device = torch.device(found.type, index)
    w = World(dist.get_rank(), dist.get_world_size(), device)
    _current.append(w)
    try:
        if w.rank == 0:
            print(_where(w), flush=True)
        yield w
        _keep(w)
        dist.all_reduce(torch.zeros((), device=device))  # all are done
    finally:
        _current.pop()
    _say(w)
    bad = [claim for claim, c in w.checks.items() if not c.ok]
    if bad:
        raise ClaimsFailError(f"rank {w.rank}: {', '.join(bad)} failed")


def _keep(w: World) -> None:
    """Write what all ranks found where the environment asks for it."""
    path = os.environ.get(gathered.VARIABLE)
    if not path:
        return
    started = sys.modules["__main__"]
    if not w.module and hasattr(started, "main"):
        w.sizes, w.module = defaults(started.main), _main_module()
    gathered.keep(path, w.module, w.outcome(), w.device)


def _where(w: World) -> str:
    """On what it runs: a fallback to the CPU should not look like NCCL."""
    here = int(os.environ.get("LOCAL_WORLD_SIZE", w.size))
    ranks = f"{w.size} ranks" if w.size > 1 else "1 rank"
    nodes = f" on {w.size // here} nodes" if w.size > here else ""
    kind, backend = w.device.type, gathered.backend_of(w.device.type)
    if kind == "cuda":
        kind = torch.cuda.get_device_name(w.device)
        backend += " " + ".".join(map(str, torch.cuda.nccl.version()))
    return f"{ranks}{nodes}, {kind}, {backend}, torch {torch.__version__}"


def _timeout(size: int, here: int) -> float:
    """Seconds to find one another; over nodes, torch may load slowly."""
    asked = os.environ.get("ATLAS_TIMEOUT")
    if asked is None:
        return 60.0 if size == here else 600.0
    try:
        seconds = float(asked)
    except ValueError:
        seconds = 0.0
    if not 0 < seconds < 1e6:
        sys.exit(f"ATLAS_TIMEOUT={asked}: give a number of seconds")
    return seconds


def _leave(code: int) -> None:
    """End at once: the interpreter's own end may meet a thread of gloo's.

    On a busy machine about one process in twenty was then aborted by the C++
    runtime (SIGABRT), after all its work was done.
    """
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code)


def _say(w: World) -> None:
    """Rank 0 tells what was measured; a failed check is told by its rank."""
    lines = []
    for claim, c in w.checks.items():
        verdict = "holds" if c.ok else "FAILS"
        if w.rank == 0 or not c.ok:
            off = f"off by {c.error:.2g}, may be {c.limit:.2g}"
            lines.append(
                f"rank {w.rank} of {w.size}: {claim} {verdict} ({off})"
            )
    if w.rank == 0:
        for name, value in w.measured.items():
            lines.append(f"rank 0 of {w.size}: {name} = {value}")
    #: In one piece: the ranks share an output, and lines would mix.
    sys.stdout.write("".join(f"{line}\n" for line in lines))
