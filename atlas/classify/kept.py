"""What runs told of each technique: measurements/studies/classification.json."""

import json
from pathlib import Path
from typing import Any

PLACE = Path("measurements") / "studies" / "classification.json"

Found = dict[str, Any]


def read(root: Path) -> dict[str, Found]:
    """By technique, as kept."""
    path = root / PLACE
    if not path.is_file():
        return {}
    kept: dict[str, Found] = json.loads(path.read_text(encoding="utf-8"))["techniques"]
    return kept
