"""The symbol of each quantity, from taxonomy/symbols.yaml."""

from functools import cache
from pathlib import Path

import yaml

FILE = Path(__file__).resolve().parents[2] / "taxonomy" / "symbols.yaml"


@cache
def symbols() -> dict[str, str]:
    """Word -> symbol, as LaTeX; the loader of the taxonomy checks the file."""
    found = yaml.safe_load(FILE.read_text(encoding="utf-8"))
    return {q["word"]: q["symbol"] for q in found["quantities"]}
