"""How many of a technique's mutations its claims notice, as the study found it."""

import json
from dataclasses import dataclass
from pathlib import Path

PLACE = Path("measurements") / "studies" / "mutation"


@dataclass(frozen=True)
class Score:
    """The outcome for one technique; `source` is what it was found with."""

    mutants: int
    killed: int
    equivalent: int
    survived: tuple[str, ...]  # their diffs
    source: str

    @property
    def score(self) -> float:
        """The share that was noticed, of those that could be."""
        return self.killed / max(1, self.mutants - self.equivalent)

    @property
    def line(self) -> str:
        """For a page: 57 of 57 automatic mutants caught (3 more are equivalent)."""
        could = self.mutants - self.equivalent
        said = f"{self.killed} of {could} automatic mutants caught"
        if self.equivalent:
            verb = "is" if self.equivalent == 1 else "are"
            said += f" ({self.equivalent} more {verb} equivalent)"
        return said


def scores(root: Path) -> dict[str, Score]:
    """Technique -> score, of those that were tried; empty before the first study."""
    return {path.stem: _score(path) for path in sorted((root / PLACE).glob("*.json"))}


def _score(path: Path) -> Score:
    kept = json.loads(path.read_text(encoding="utf-8"))
    return Score(
        kept["mutants"],
        kept["killed"],
        kept["equivalent"],
        tuple(f"{s['was']}  ->  {s['now']}" for s in kept["survived"]),
        kept["source"],
    )
