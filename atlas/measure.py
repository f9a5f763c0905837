"""Run an exemplar once, on some ranks, and say what it measured.

    measure(technique, 4, elements=1000)               # with another size
    measure(technique, 4, source=mutated(root, technique, mutant))
    measure(technique, 4, replaced={"pass_right": mine})

What comes back is plain data, as a record keeps it: what was given, what each rank
measured and counted, and figures that need every rank's trace.
"""

import importlib
import inspect
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from atlas.launch import ROOT, LaunchError, launch
from atlas.ranks import HINTS
from atlas.taxonomy import Mutant, Technique
from atlas.timeline import TimelineError, rounds, virtual
from atlas.verdict import failed, judge

if TYPE_CHECKING:
    from exemplars.runtime import World

#: Seconds that a run may take. Beside a full test run, 1024 dry ranks needed 60.
DEADLINE = 120.0
#: And one that is meant to hang, which is known by it; it would take a second.
HANG_DEADLINE = 8.0
#: What an exemplar compares with: never replaced, nor what it calls.
REFERENCES = ("reference", "one_process")

Run = dict[str, Any]


class MeasureError(Exception):
    """A run cannot be made or makes no sense; one line says why."""


def measure(
    technique: Technique,
    ranks: int,
    *,
    mode: str = "gloo",
    source: str | None = None,
    replaced: Mapping[str, Any] | None = None,
    timeout: float = DEADLINE,
    **sizes: Any,
) -> Run:
    """Run the exemplar, or another source of it, with these sizes; what it found.

    `replaced` are functions or classes that stand in for the exemplar's own; its
    reference still sees the originals.
    """
    env = {"CUDA_VISIBLE_DEVICES": ""} if mode in ("gloo", "dry") else {}
    outcomes = launch(
        run_exemplar,
        ranks,
        technique.module,
        source,
        dict(replaced or {}),
        sizes,
        timeout=timeout,
        dry=mode == "dry",
        emulate=mode == "emulated",
        env=env,
        needs=_needs(technique, source),
    )
    backends = {o.pop("backend") for o in outcomes}
    if mode == "nccl" and backends != {"nccl"}:
        raise MeasureError(f"{technique.id}: ran on {', '.join(backends)}, not on nccl")
    given, used = outcomes[0]["given"], outcomes[0]["sizes"]
    for o in outcomes:
        del o["sizes"]
        if o.pop("given") != given:
            raise MeasureError(f"{technique.id}: the ranks differ in what was given")
    return {
        "p": ranks,
        "mode": mode,
        "given": given,
        "sizes": used,
        "derived": {} if mode == "dry" else derive([o["events"] for o in outcomes]),
        "times": {"seconds": round(max(o.pop("seconds") for o in outcomes), 6)},
        "ranks": outcomes,
    }


def _needs(technique: Technique, source: str | None) -> list[str]:
    """What every rank will import, as far as the source tells."""
    path = ROOT / technique.exemplar
    text = source or (path.read_text(encoding="utf-8") if path.is_file() else "")
    return [__name__, *(name for word, name in HINTS.items() if word in text)]


# On a rank


def run_exemplar(
    w: "World",
    module: str,
    source: str | None,
    replaced: Mapping[str, Any],
    sizes: Mapping[str, Any],
) -> dict[str, Any]:
    """The exemplar's main, from its file or from another text of it."""
    import torch.distributed as dist

    from exemplars.runtime import run

    run(w, entry_point(module, source, replaced), **sizes)
    outcome = {**w.outcome(), "backend": dist.get_backend()}
    return {k: v for k, v in outcome.items() if v is not None}


def entry_point(
    module: str, source: str | None, replaced: Mapping[str, Any]
) -> Callable[..., None]:
    """The main to run. Other texts run in a namespace of their own, not the module's.

    A reference that called a replaced function would share its mistakes: it keeps
    the namespace it came with.
    """
    honest = importlib.import_module(module)
    if source is None and not replaced:
        return honest.main
    namespace: dict[str, Any] = {"__name__": f"{module}__changed"}
    text = inspect.getsource(honest) if source is None else source
    exec(compile(text, module, "exec"), namespace)  # noqa: S102 - our own text
    if replaced:
        namespace |= {n: vars(honest)[n] for n in REFERENCES if hasattr(honest, n)}
        namespace |= replaced
    return namespace["main"]


# Of the whole run


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


# Mutants


def mutated(root: Path, technique: Technique, mutant: Mutant) -> str:
    """The exemplar's source with the mutant's one change."""
    text = (root / technique.exemplar).read_text()
    if text.count(mutant.find) != 1:
        raise MeasureError(
            f"{technique.id}, mutant {mutant.id}: its text occurs "
            f"{text.count(mutant.find)} times in {technique.exemplar}, not once"
        )
    return text.replace(mutant.find, mutant.replace)


def deadline(mutant: Mutant | None) -> float:
    """Short only for what is meant to hang: on a busy machine others need longer."""
    return HANG_DEADLINE if mutant and mutant.deadline else DEADLINE


def try_mutant(
    root: Path, technique: Technique, mutant: Mutant, p: int, mode: str = "gloo"
) -> Run:
    """How the mutant ended: which claims failed, or that it never ended."""
    source, limit = mutated(root, technique, mutant), deadline(mutant)
    try:
        run = measure(technique, p, mode=mode, source=source, timeout=limit)
    except LaunchError as error:
        if error.summary.startswith("no end after"):
            return {"ended": "deadline", "failed": []}
        return {"ended": "error", "failed": [], "error": error.summary}
    return {"ended": "claims", "failed": failed(judge(technique, run)), "run": run}
