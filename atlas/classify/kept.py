"""What runs told of each technique: measurements/studies/classification/NAME.json."""

import json
from pathlib import Path
from typing import Any

PLACE = Path("measurements") / "studies" / "classification"

Found = dict[str, Any]


def read(root: Path) -> dict[str, Found]:
    """By technique, as kept."""
    files = sorted((root / PLACE).glob("*.json"))
    return {path.stem: json.loads(path.read_text(encoding="utf-8")) for path in files}
