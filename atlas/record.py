"""Measured runs, kept: the files measurements/<backend>/<id>.json.

A record says what was given, what was measured and counted, how long it took,
what each rank did, with which versions, and of which source. It never holds a
prediction: those are computed when it is read, so they cannot go stale.
"""

import hashlib
import json
import os
import re
import tempfile
from collections.abc import Callable, Iterable
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from atlas.measure import measure, try_mutant
from atlas.taxonomy import Mutant, Technique
from atlas.verdict import failed, judge

MODES = ("gloo", "dry", "emulated", "nccl")
RANKS = (1, 2, 3, 4, 8)
EMULATED_RANKS = (2, 4)
SHOWN = 4
_MOST_POINTS = 240
_TIMES = ("at", "until")


class RecordError(Exception):
    """A record cannot be made, written or read; one line says why."""


def source_hash(root: Path, technique: Technique) -> str:
    """Of the exemplar, those it stands on, its tools and the workload; no comments.

    The runtime is left out: every exemplar imports it, and it shapes no claim of one.
    """
    axes = sorted((root / "exemplars").glob("*/*"))
    names = [id_.replace("-", "_") + ".py" for id_ in technique.stands_on]
    found = [f / name for name in names for f in axes if (f / name).is_file()]
    below = [path.relative_to(root) for path in found]
    own = (technique.exemplar, *below)
    return hash_of(root, (*own, *_tools(root, own), Path("exemplars/workload.py")))


def _tools(root: Path, paths: Iterable[Path]) -> list[Path]:
    """Modules that these exemplars import, of those that only some need."""
    text = "".join((root / path).read_text() for path in paths)
    names = set(re.findall(r"^from exemplars\.(\w+) import ", text, re.M))
    names -= {"runtime", "workload"}
    found = [Path("exemplars", f"{name}.py") for name in sorted(names)]
    return [path for path in found if (root / path).is_file()]


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
    planner = root / "atlas" / "planner"
    folders = (planner, planner / "accuracy")
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
    """Whether the exemplar has changed since, or a mutant was added or taken away."""
    tried = {m["id"] for m in record["mutants"]} if "mutants" in record else None
    other = tried is not None and tried != {m.id for m in technique.mutants}
    return other or bool(record["source"] != source_hash(root, technique))


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
        "versions": versions(),
        "runs": runs,
    }
    if mode == "gloo":
        made["mutants"] = [
            _mutant(root, technique, m, shown, progress) for m in technique.mutants
        ]
    return made


def add(
    root: Path, technique: Technique, run: dict[str, Any], made: dict[str, Any]
) -> Path:
    """A run on NCCL that some launcher made, beside those on other numbers of ranks."""
    old = read(root, "nccl", technique.id)
    if old is not None and stale(root, technique, old):
        old = None
    runs = [r for r in (old["runs"] if old else []) if r["p"] != run["p"]]
    runs = sorted([*runs, _tidy(run, shown=False)], key=lambda r: int(r["p"]))
    versions = {**made["versions"], "torch": made["versions"]["torch"].split("+")[0]}
    return write(
        root,
        {
            "technique": technique.id,
            "backend": "nccl",
            "recorded": datetime.now(UTC).date().isoformat(),
            "source": source_hash(root, technique),
            "versions": versions,
            "runs": runs,
        },
    )


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
    tried = try_mutant(root, technique, mutant, p)
    if "run" in tried:
        tried["run"] = _tidy(tried["run"], shown=True)
    return {"id": mutant.id, "p": p, **tried}


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


def versions() -> dict[str, str]:
    """Of what a run here stands on, asked without importing torch."""
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
