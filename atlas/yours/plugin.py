"""A pytest plugin: the fixture `meter` runs a script on ranks and knows what it sent.

def test_a_step_sends_its_gradients_once(meter):
    run = meter("train.py", "--steps", "3", ranks=2)
    assert run.calls("all_reduce") == 3
    run.expect("bytes.json")
"""

import json
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from atlas.yours.report import changes, expectation, report
from atlas.yours.run import run
from atlas.yours.script import Script
from atlas.yours.steps import steps


@dataclass(frozen=True)
class Metered:
    """What a run sent: `report` is what `atlas meter --json` writes."""

    report: dict[str, Any]

    def calls(self, op: str) -> int:
        """How often the busiest rank called this operation."""
        return self._most(op, "calls")

    def payload(self, op: str) -> int:
        """Bytes that the busiest rank handed to this operation."""
        return self._most(op, "payload")

    def _most(self, op: str, figure: str) -> int:
        lists = [row[figure] for row in self.report["rows"] if row["op"] == op]
        return max((sum(each) for each in zip(*lists, strict=True)), default=0)

    def expect(self, file: str | Path) -> None:
        """Fail if a line's calls or bytes changed; the first time, write them down."""
        path = Path(file)
        if not path.exists():
            kept = json.dumps(expectation(self.report), indent=1)
            path.write_text(kept + "\n", encoding="utf-8")
            return
        found = changes(json.loads(path.read_text(encoding="utf-8")), self.report)
        if found:
            pytest.fail("\n".join([f"not as {path} says:", *found]), pytrace=False)


@pytest.fixture
def meter() -> Callable[..., Metered]:
    """meter(script, *arguments, ranks=4, timeout=300) runs it and gives a Metered."""

    def metered(
        script: str | Path, *arguments: str, ranks: int = 4, timeout: float = 300.0
    ) -> Metered:
        given = Script(Path(script), arguments)
        ran = run(given, ranks, watch=[steps], timeout=timeout)
        if ran.verdict is not None:
            lines = [ran.verdict.says, *ran.verdict.where]
            pytest.fail("\n".join(lines), pytrace=False)
        if ran.cause is not None:
            pytest.fail(ran.cause.end.trace or ran.cause.end.line, pytrace=False)
        return Metered(report(ran))

    return metered
