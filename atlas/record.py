"""One measured run, and the files that keep them: measurements/<backend>/<id>.json.

A record says what was given, what was measured and counted, how long it took,
what each rank did, with which versions, and of which source. It never holds a
prediction: those are computed when it is read, so they cannot go stale.
"""

import hashlib
import importlib
import json
import os
import tempfile
from collections.abc import Callable, Iterable, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

from atlas.knowledge import Mutant, Technique
from atlas.launch import ROOT, LaunchError, launch
from atlas.ranks import HINTS
from atlas.timeline import TimelineError, rounds, virtual
from atlas.verdict import failed, judge

if TYPE_CHECKING:
    from exemplars.runtime import World

MODES = ("gloo", "dry", "emulated", "nccl")
RANKS = (1, 2, 3, 4, 8)
EMULATED_RANKS = (2, 4)
SHOWN = 4
#: Seconds that a run may take. Beside a full test run, 1024 dry ranks needed 60.
DEADLINE = 120.0
#: And one that is meant to hang, which is known by it; it would take a second.
HANG_DEADLINE = 8.0
_MOST_POINTS = 240
_TIMES = ("at", "until")


class RecordError(Exception):
    """A record cannot be made, written or read; one line says why."""


def measure(
    technique: Technique,
    ranks: int,
    *,
    mode: str = "gloo",
    source: str | None = None,
    timeout: float = DEADLINE,
) -> dict[str, Any]:
    """Run the exemplar (or this other source of it) once; what it found."""
    env = {"CUDA_VISIBLE_DEVICES": ""} if mode in ("gloo", "dry") else {}
    outcomes = launch(
        run_exemplar,
        ranks,
        technique.module,
        source,
        timeout=timeout,
        dry=mode == "dry",
        emulate=mode == "emulated",
        env=env,
        needs=_needs(technique, source),
    )
    backends = {o.pop("backend") for o in outcomes}
    if mode == "nccl" and backends != {"nccl"}:
        raise RecordError(f"{technique.id}: ran on {', '.join(backends)}, not on nccl")
    given = outcomes[0]["given"]
    for o in outcomes:
        if o.pop("given") != given:
            raise RecordError(f"{technique.id}: the ranks differ in what was given")
    return {
        "p": ranks,
        "mode": mode,
        "given": given,
        "derived": {} if mode == "dry" else derive([o["events"] for o in outcomes]),
        "times": {"seconds": round(max(o.pop("seconds") for o in outcomes), 6)},
        "ranks": outcomes,
    }


def _needs(technique: Technique, source: str | None) -> list[str]:
    """What every rank will import, as far as the source tells."""
    path = ROOT / technique.exemplar
    text = source or (path.read_text(encoding="utf-8") if path.is_file() else "")
    return [__name__, *(name for word, name in HINTS.items() if word in text)]


def run_exemplar(w: "World", module: str, source: str | None) -> dict[str, Any]:
    """On a rank: the exemplar's main, from its file or from another text of it."""
    if source is None:
        importlib.import_module(module).main(w)
    else:
        namespace: dict[str, Any] = {"__name__": f"{module}__mutant"}
        exec(compile(source, module, "exec"), namespace)  # noqa: S102 - our own text
        namespace["main"](w)
    import torch.distributed as dist

    outcome = {**w.outcome(), "backend": dist.get_backend()}
    return {k: v for k, v in outcome.items() if v is not None}


def derive(traces: Sequence[Sequence[dict[str, Any]]]) -> dict[str, Any]:
    """Figures of the whole run: they need every rank's trace."""
    try:
        counted, worked = rounds(traces), virtual(traces)
    except TimelineError as error:
        return {"error": str(error)}
    return {
        "rounds": _whole(counted.makespan),
        "makespan": _whole(worked.makespan),
        "idle": [_whole(x) for x in worked.idle],
    }


def _whole(x: float) -> float:
    return int(x) if x == int(x) else x


def source_hash(root: Path, technique: Technique) -> str:
    """Of the exemplar and the workload, without blank and comment-only lines."""
    return hash_of(root, (technique.exemplar, Path("exemplars/workload.py")))


def hash_of(root: Path, paths: Iterable[Path]) -> str:
    """Of what these files do: blank and comment-only lines do not count."""
    digest = hashlib.sha256()
    for path in paths:
        for line in (root / path).read_text().splitlines():
            if line.strip() and not line.lstrip().startswith("#"):
                digest.update(line.rstrip().encode() + b"\n")
    return f"sha256:{digest.hexdigest()}"


def source_of(root: Path, techniques: Iterable[Technique]) -> str:
    """Hash of several exemplars: what a study of them was made from."""
    digest = hashlib.sha256()
    for technique in sorted(techniques, key=lambda t: t.id):
        digest.update(source_hash(root, technique).encode())
    return f"sha256:{digest.hexdigest()}"


def predictor(root: Path) -> str:
    """Hash of the oracle, and of how its predictions are judged by the clock."""
    folders = (root / "atlas" / "oracle", root / "atlas" / "accuracy")
    files = (path for folder in folders for path in sorted(folder.glob("*.py")))
    return hash_of(root, (path.relative_to(root) for path in files))


def path_of(root: Path, backend: str, name: str) -> Path:
    """Where a record lies."""
    return root / "measurements" / backend / f"{name}.json"


def read(root: Path, backend: str, name: str) -> dict[str, Any] | None:
    """The record, or None where nobody has made one."""
    try:
        text = path_of(root, backend, name).read_text()
    except FileNotFoundError:
        return None
    try:
        record = json.loads(text)
    except ValueError as error:
        raise RecordError(f"measurements/{backend}/{name}.json: {error}") from None
    assert isinstance(record, dict)
    return record


def stale(root: Path, technique: Technique, record: dict[str, Any]) -> bool:
    """Whether the exemplar has changed since it was measured."""
    return bool(record["source"] != source_hash(root, technique))


Progress = Callable[[str], None]


def record(
    root: Path,
    technique: Technique,
    mode: str,
    progress: Progress = lambda text: None,
) -> dict[str, Any]:
    """Measure a technique in one mode, at every rank count that mode shows."""
    counts = _counts(technique, mode)
    if not counts:
        raise RecordError(f"{technique.id}: no rank count to record in mode {mode}")
    shown = SHOWN if SHOWN in counts else max(counts)
    runs = []
    for p in counts:
        progress(f"{technique.id} {mode} p = {p}")
        run = measure(technique, p, mode=mode)
        bad = failed(judge(technique, run))
        if bad:
            raise RecordError(
                f"{technique.id} on {p} ranks ({mode}): {', '.join(bad)} failed; "
                "nothing was written"
            )
        runs.append(_tidy(run, shown=p == shown and mode == "gloo"))
    made: dict[str, Any] = {
        "technique": technique.id,
        "backend": mode,
        "recorded": datetime.now(UTC).date().isoformat(),
        "source": source_hash(root, technique),
        "versions": _versions(),
        "runs": runs,
    }
    if mode == "gloo":
        made["mutants"] = [
            _mutant(root, technique, m, shown, progress) for m in technique.mutants
        ]
    return made


def _counts(technique: Technique, mode: str) -> list[int]:
    if mode == "dry":
        return list(technique.dry)
    low, high = technique.min_ranks, technique.max_ranks
    counts: tuple[int, ...] = EMULATED_RANKS if mode == "emulated" else RANKS
    if mode == "nccl":
        counts = tuple(range(1, _gpus() + 1))
    return [p for p in counts if p >= low and (high is None or p <= high)]


def _gpus() -> int:
    return len(list(Path("/proc/driver/nvidia/gpus").glob("*")))


def _mutant(
    root: Path, technique: Technique, mutant: Mutant, p: int, progress: Progress
) -> dict[str, Any]:
    progress(f"{technique.id} mutant {mutant.id}")
    return {"id": mutant.id, "p": p, **try_mutant(root, technique, mutant, p)}


def mutated(root: Path, technique: Technique, mutant: Mutant) -> str:
    """The exemplar's source with the mutant's one change."""
    text = (root / technique.exemplar).read_text()
    if text.count(mutant.find) != 1:
        raise RecordError(
            f"{technique.id}, mutant {mutant.id}: its text occurs "
            f"{text.count(mutant.find)} times in {technique.exemplar}, not once"
        )
    return text.replace(mutant.find, mutant.replace)


def deadline(mutant: Mutant | None) -> float:
    """Short only for what is meant to hang: on a busy machine others need longer."""
    return HANG_DEADLINE if mutant and mutant.deadline else DEADLINE


def try_mutant(
    root: Path, technique: Technique, mutant: Mutant, p: int, mode: str = "gloo"
) -> dict[str, Any]:
    """How the mutant ended: which claims failed, or that it never ended."""
    source, limit = mutated(root, technique, mutant), deadline(mutant)
    try:
        run = measure(technique, p, mode=mode, source=source, timeout=limit)
    except LaunchError as error:
        if error.summary.startswith("no end after"):
            return {"ended": "deadline", "failed": []}
        return {"ended": "error", "failed": [], "error": error.summary}
    return {
        "ended": "claims",
        "failed": failed(judge(technique, run)),
        "run": _tidy(run, shown=True),
    }


def _tidy(run: dict[str, Any], *, shown: bool) -> dict[str, Any]:
    """Keep the trace where it is shown; times to the microsecond."""
    for rank in run["ranks"]:
        events = rank.pop("events")
        memory = rank.pop("memory", None)
        if shown:
            rank["events"] = [_rounded(e) for e in events]
        if memory is not None:
            rank["memory"] = {"peak": memory["peak"]}
            if shown:
                rank["memory"]["series"] = _columns(memory["series"])
    if shown:
        run["shown"] = True
    return run


def _rounded(event: dict[str, Any]) -> dict[str, Any]:
    return {k: round(v, 6) if k in _TIMES else v for k, v in event.items()}


def _columns(series: list[dict[str, int]]) -> dict[str, list[int]]:
    """By category, thinned for the page; the peak's own moment is always kept."""
    if not series:
        return {}
    totals = [sum(s.values()) for s in series]
    step = max(1, len(series) // _MOST_POINTS)
    kept = sorted({*range(0, len(series), step), totals.index(max(totals))})
    return {name: [series[i][name] for i in kept] for name in series[0]}


def _versions() -> dict[str, str]:
    import platform
    from importlib.metadata import version

    return {
        "python": platform.python_version(),
        "torch": version("torch").split("+")[0],
    }


def write(root: Path, made: dict[str, Any]) -> Path:
    """Write a record whole or not at all."""
    target = path_of(root, made["backend"], made["technique"])
    text = json.dumps(made, indent=1, sort_keys=True) + "\n"
    write_text(target, compact(text))
    return target


def compact(text: str) -> str:
    """One event a line: readable as a diff, and half the size."""
    import re

    flat = re.compile(r"\{\s+(\"[^{}\[\]]*?)\s+\}")
    text = flat.sub(lambda m: "{" + re.sub(r"\n\s+", " ", m[1]) + "}", text)
    lists = re.compile(r"\[\s+([-\d.,\s]*?)\s+\]")
    return lists.sub(lambda m: "[" + re.sub(r"\s*\n\s*", " ", m[1]) + "]", text)


def write_text(target: Path, text: str) -> None:
    """Through a temporary file beside it, renamed when complete."""
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
        handle, name = tempfile.mkstemp(dir=target.parent, prefix=f".{target.name}.")
        try:
            with os.fdopen(handle, "w") as file:
                file.write(text)
            os.chmod(name, 0o644)
            os.replace(name, target)
        except BaseException:
            Path(name).unlink(missing_ok=True)
            raise
    except OSError as error:
        raise RecordError(
            f"{target.parent}: {error.strerror}; nothing was written"
        ) from None
