"""Checks a part against its contract, on ranks, through one door.

check_part("mymodule:MyDDP", "data-parallel")
"""

import importlib
import sys
import traceback
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from atlas.check.checking import CheckError
from atlas.launch import LaunchError, launch

if TYPE_CHECKING:
    from atlas.check.contracts import Case
    from exemplars.runtime import World

#: Seconds that all cases on one number of ranks may take, and one case alone.
DEADLINE, ALONE = 60.0, 10.0
NEEDS = ("atlas.check.contracts", "torch._dynamo")


@dataclass(frozen=True)
class Outcome:
    """How one case ended on one number of ranks."""

    case: str
    ranks: int
    kind: str  # holds, refused, broken, failed or hangs
    says: str = ""
    trace: str = ""
    sent: float = 0  # bytes, by all ranks; of a collective, a rank's share of them
    least: int = 0

    @property
    def ok(self) -> bool:
        """Whether the contract is kept."""
        return self.kind in ("holds", "refused")


@dataclass(frozen=True)
class Kept:
    """What a check of a part found."""

    part: str
    contract: str
    says: str
    outcomes: tuple[Outcome, ...]

    @property
    def holds(self) -> bool:
        """Whether every case is kept."""
        return all(o.ok for o in self.outcomes)

    @property
    def smallest(self) -> Outcome | None:
        """The first case that fails, on the fewest ranks."""
        return next((o for o in self.outcomes if not o.ok), None)


def check_part(
    part: Any,
    contract: str,
    *,
    options: Mapping[str, Any] | None = None,
    ranks: Sequence[int] = (),
    emulate: bool = False,
) -> Kept:
    """Try every case on every number of ranks; the part, or where it is found."""
    given = dict(options or {})
    wanted = (part, contract, given, sys.path[:])
    (about,) = _launched(_describe, 1, wanted, emulate, DEADLINE)
    if isinstance(about, str):
        raise CheckError(about)
    names, counts, says = about
    outcomes: list[Outcome] = []
    for p in ranks or counts:
        outcomes += _on(p, names, wanted, emulate)
    name = part if isinstance(part, str) else getattr(part, "__name__", repr(part))
    return Kept(name, contract, says, tuple(outcomes))


def _launched(fn: Any, ranks: int, wanted: Any, emulate: bool, limit: float) -> Any:
    return launch(
        fn,
        ranks,
        *wanted,
        timeout=limit,
        emulate=emulate,
        needs=NEEDS,
    )


def _on(p: int, names: Sequence[str], wanted: Any, emulate: bool) -> list[Outcome]:
    """All cases in one launch; each in its own, if that one does not end well."""
    try:
        found = _launched(_cases, p, (*wanted, names), emulate, DEADLINE)
        return [_joined([rank[i] for rank in found]) for i in range(len(names))]
    except LaunchError:
        return [_alone(p, name, wanted, emulate) for name in names]


def _alone(p: int, name: str, wanted: Any, emulate: bool) -> Outcome:
    try:
        found = _launched(_cases, p, (*wanted, [name]), emulate, ALONE)
        return _joined([rank[0] for rank in found])
    except LaunchError as error:
        late = error.summary.startswith("no end after")
        return Outcome(name, p, "hangs" if late else "failed", error.summary)


def _joined(ranks: Sequence[Outcome]) -> Outcome:
    """One outcome of the ranks' own; what some refuse and others do is broken."""
    first = ranks[0]
    bad = [o for o in ranks if not o.ok]
    if bad:  # a rank that only stopped with the others has nothing to say
        return next((o for o in bad if o.says), bad[0])
    if len({o.kind for o in ranks}) > 1:
        says = "some ranks refuse it and others do not"
        return Outcome(first.case, first.ranks, "broken", says)
    sent = round(sum(o.sent for o in ranks))
    most = max((o.least for o in ranks), default=0)
    return Outcome(first.case, first.ranks, first.kind, first.says, "", sent, most)


# On a rank


def load(part: Any, path: Sequence[str]) -> Any:
    """The object that `module:name` or `file.py:name` names; LookupError if none."""
    if not isinstance(part, str):
        return part
    where, _, name = part.rpartition(":")
    sys.path[:0] = [p for p in path if p not in sys.path]
    if where.endswith(".py"):
        file = Path(where).resolve()
        if not file.is_file():
            raise LookupError(f"there is no file {where}")
        sys.path.insert(0, str(file.parent))
        module = importlib.import_module(file.stem)
        if module.__file__ != str(file):
            raise LookupError(f"another module is called {file.stem}: rename {where}")
    else:
        try:
            module = importlib.import_module(where)
        except ModuleNotFoundError as error:
            if error.name and where.startswith(error.name):
                raise LookupError(f"there is no module {where}") from None
            raise
    found: Any = module
    for word in name.split("."):
        if not hasattr(found, word):
            known = [n for n in dir(module) if not n.startswith("_")]
            raise LookupError(f"{where} has no {name}; it has {', '.join(known[:12])}")
        found = getattr(found, word)
    return found


def _describe(
    w: "World",
    part: Any,
    contract: str,
    options: Mapping[str, Any],
    path: Sequence[str],
) -> Any:
    """The names of the cases, the numbers of ranks, the promise; or what is wrong."""
    from atlas.check.contracts import CONTRACTS

    if contract not in CONTRACTS:
        return f'there is no contract "{contract}"; there are {", ".join(CONTRACTS)}'
    known = CONTRACTS[contract]
    try:
        found = load(part, path)
    except LookupError as error:
        return str(error.args[0])
    except Exception as error:
        last = traceback.format_exception_only(error)[-1].strip()
        return f"{part} cannot be imported: {last}\n{traceback.format_exc()}"
    if known.called and not callable(found):
        return f"{part} is not callable: {contract} checks {known.fits}"
    return [c.name for c in known.cases], list(known.ranks), known.says


def _cases(
    w: "World",
    part: Any,
    contract: str,
    options: Mapping[str, Any],
    path: Sequence[str],
    names: Sequence[str],
) -> list[Outcome]:
    from atlas.check.contracts import CONTRACTS

    found = load(part, path)
    cases = {c.name: c for c in CONTRACTS[contract].cases}
    return [_tried(w, found, options, cases[name]) for name in names]


def _tried(w: "World", part: Any, options: Mapping[str, Any], case: "Case") -> Outcome:
    import torch
    import torch.distributed as dist

    from atlas.check.contracts import Broken
    from atlas.meter import Meter

    moved, kind, says, trace = Meter(), "holds", "", ""
    try:
        with moved:
            case.run(w, part, options)
    except Broken as error:
        kind, says = "broken", str(error)
    except Exception as error:
        kind = "refused" if case.optional else "failed"
        says = traceback.format_exception_only(error)[-1].strip()
        trace = traceback.format_exc()
    sent = float(moved.wire)
    if case.most is not None:
        #: What all send together: one rank may send more than another.
        total = torch.tensor(sent, device=w.device)
        dist.all_reduce(total)
        if kind == "holds" and total.item() > case.most(w.size):
            kind = "broken"
            says = (
                f"the ranks send {int(total.item())} bytes together, at most "
                f"{case.most(w.size)} are needed"
            )
    least = case.least(w.size) if case.least is not None else 0
    return Outcome(case.name, w.size, kind, says, trace, sent, least)
