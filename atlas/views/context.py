"""All that the pages are made of, read once: taxonomy, records, verdicts."""

import json
import os
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import cache, cached_property
from pathlib import Path
from typing import Any

from atlas import record, taxonomy
from atlas.classify import kept
from atlas.determinism import kept as determinism
from atlas.mutants.score import Score, scores
from atlas.taxonomy import Atlas, Claim, Technique
from atlas.verdict import Verdict, judge

BACKENDS = ("gloo", "dry", "emulated", "nccl")
Json = dict[str, Any]


@dataclass(frozen=True)
class Context:
    """The taxonomy and what was measured, as the pages ask for it."""

    root: Path
    atlas: Atlas
    edit: str = ""  # where files are edited; empty: nowhere known
    _records: dict[tuple[str, str], Json | None] = field(default_factory=dict)
    _verdicts: dict[tuple[str, int], list[Verdict]] = field(default_factory=dict)
    _stale: dict[tuple[str, str], bool] = field(default_factory=dict)

    def record(self, technique: str, backend: str) -> Json | None:
        """The technique's record on that backend, or None."""
        key = (technique, backend)
        if key not in self._records:
            self._records[key] = record.read(self.root, backend, technique)
        return self._records[key]

    def runs(self, technique: str, backend: str) -> list[Json]:
        """The recorded runs, fewest ranks first."""
        found = self.record(technique, backend)
        runs: list[Json] = found["runs"] if found else []
        return sorted(runs, key=lambda r: int(r["p"]))

    def sizes(self, technique: str, backend: str) -> list[int]:
        """The numbers of ranks it was run on."""
        return [int(r["p"]) for r in self.runs(technique, backend)]

    def shown(self, technique: str) -> Json | None:
        """The run whose trace was kept: the one that the page replays."""
        runs = self.runs(technique, "gloo")
        return next((r for r in runs if r.get("shown")), None)

    def card_run(self, technique: str) -> Json | None:
        """The run whose numbers head the page."""
        runs = self.runs(technique, "gloo") or self.runs(technique, "dry")
        return self.shown(technique) or (runs[-1] if runs else None)

    def verdicts(self, technique: Technique, run: Json) -> list[Verdict]:
        """Predicted against measured, claim by claim."""
        key = (technique.id, id(run))
        if key not in self._verdicts:
            self._verdicts[key] = judge(technique, run)
        return self._verdicts[key]

    def stale(self, technique: str, backend: str) -> bool:
        """Was the record made from another source than today's?"""
        key = (technique, backend)
        if key not in self._stale:
            found = self.record(technique, backend)
            home = self.atlas.techniques[technique]
            known = found is not None and self.written(home)
            self._stale[key] = known and record.stale(self.root, home, found or {})
        return self._stale[key]

    def warnings(self) -> list[str]:
        """Stale gloo records and answers: `docs` fails on them, `serve` warns."""
        out = []
        for t in self.atlas.techniques.values():
            if self.stale(t.id, "gloo"):
                file = f"measurements/gloo/{t.id}.json"
                out.append(
                    f"{file}: recorded from an older source than {t.exemplar}: "
                    f"run `atlas record {t.id}`"
                )
            bits = self.determinism.get(t.id)
            if bits and self.written(t) and determinism.stale(self.root, t, bits):
                out.append(
                    f"{determinism.PLACE}/{t.id}.json: of an older source than "
                    f"{t.exemplar}: run `python -m atlas.determinism`"
                )
        return out

    def written(self, technique: Technique) -> bool:
        """Does its exemplar exist?"""
        return (self.root / technique.exemplar).is_file()

    def source(self, technique: Technique) -> str:
        """The exemplar's text; it is read, never imported."""
        return (self.root / technique.exemplar).read_text(encoding="utf-8")

    @cached_property
    def production(self) -> dict[str, Json]:
        """What the same work cost in a production library, where it was run."""
        path = self.root / "measurements" / "studies" / "production.json"
        if not path.is_file():
            return {}
        runs: dict[str, Json] = json.loads(path.read_text(encoding="utf-8"))["runs"]
        return runs

    @cached_property
    def mutation(self) -> dict[str, Score]:
        """How many small mistakes the claims of each technique notice, if tried."""
        return scores(self.root)

    @cached_property
    def placed(self) -> dict[str, Json]:
        """Where its runs place each technique."""
        return kept.read(self.root)

    @cached_property
    def determinism(self) -> dict[str, Json]:
        """Whether each technique gives the same bits, as its runs told."""
        return determinism.read(self.root)

    @cached_property
    def notebooks(self) -> dict[str, str]:
        """The text of every executed notebook, by name."""
        found = sorted((self.root / "measurements" / "notebooks").glob("*.ipynb"))
        return {path.stem: path.read_text(encoding="utf-8") for path in found}

    def of_family(self, axis: str, family: str) -> list[Technique]:
        """Techniques at home in a family, oldest first."""
        found = [
            t
            for t in self.atlas.techniques.values()
            if (t.axis, t.family) == (axis, family)
        ]
        return sorted(found, key=lambda t: (t.since, t.id))


@cache
def latex(formula: Callable[..., int | float]) -> str:
    """The formula's mathematics, written once."""
    from atlas.script.latex import latex

    return latex(formula)


def formula_of(claim: Claim) -> Any:
    """The claim's formula as a function, or None."""
    from atlas.formulas import FORMULAS

    return FORMULAS[claim.formula] if claim.formula else None


def read(root: Path) -> Context:
    """Read everything below the root."""
    return Context(root, taxonomy.load(root), os.environ.get("ATLAS_EDIT_URI", ""))
