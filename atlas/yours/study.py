"""`python -m atlas.yours.study`: runs the twelve hangs and keeps their verdicts.

docs/hangs has the programs; measurements/studies/hangs.json has what was said of them,
and the page "Why does it hang?" shows both.
"""

import hashlib
import json
import sys
from dataclasses import asdict
from pathlib import Path
from typing import Any

from atlas.taxonomy import find_root
from atlas.yours.run import run
from atlas.yours.script import Script

PROGRAMS = Path("docs") / "hangs"
KEPT = Path("measurements") / "studies" / "hangs.json"
RANKS, TIMEOUT = 3, 5.0


def programs(root: Path) -> list[Path]:
    """The twelve, by name."""
    return sorted((root / PROGRAMS).glob("*.py"))


def source(path: Path) -> str:
    """What tells whether a verdict is of this program."""
    return hashlib.sha256(path.read_bytes()).hexdigest()[:16]


def judged(path: Path) -> dict[str, Any]:
    """The verdict on one program, as plain data."""
    path = path.resolve()
    ran = run(Script(path, folder=str(path.parent)), RANKS, timeout=TIMEOUT)
    if ran.verdict is None:
        raise SystemExit(f"{path.name}: no verdict")
    return {"source": source(path), "ranks": RANKS, **asdict(ran.verdict)}


def read(root: Path) -> dict[str, Any]:
    """What is kept, by program."""
    found = json.loads((root / KEPT).read_text(encoding="utf-8"))
    assert isinstance(found, dict)
    return found


def main() -> int:
    """Run all, and keep it."""
    root = find_root()
    found = {path.stem: judged(path) for path in programs(root)}
    text = json.dumps(found, indent=1, sort_keys=True) + "\n"
    (root / KEPT).write_text(text, encoding="utf-8")
    print(f"kept in {KEPT}: {len(found)} verdicts")
    return 0


if __name__ == "__main__":
    sys.exit(main())
