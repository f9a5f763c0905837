"""JSON Schema of every kind of file, for editors: taxonomy/schema/*.json."""

import json
from pathlib import Path
from typing import Any

from atlas.taxonomy.kinds import (
    TAXONOMY,
    Axes,
    Bug,
    Choose,
    Crosswalk,
    Glossary,
    Survey,
    Symbols,
    System,
    Technique,
)
from atlas.taxonomy.tables import FILES
from atlas.taxonomy.typed import schema


def json_schema() -> dict[str, dict[str, Any]]:
    """JSON Schema of each kind of file, for editors: kind -> schema."""
    kinds = {"axes": Axes, "choose": Choose, "glossary": Glossary, "survey": Survey}
    kinds |= {"crosswalk": Crosswalk, "symbols": Symbols}
    kinds |= {"bug": Bug, "system": System, "technique": Technique}
    kinds |= {f"{id}-tables": made for id, made in FILES.items()}
    dialect = {"$schema": "https://json-schema.org/draft/2020-12/schema"}
    return {
        kind: {**dialect, "title": f"The atlas: {kind}", **schema(made)}
        for kind, made in kinds.items()
    }


def schema_text(made: dict[str, Any]) -> str:
    """A schema as it is committed."""
    return json.dumps(made, indent=2, ensure_ascii=False) + "\n"


def write_schemas(root: Path) -> None:
    """Write taxonomy/schema/*.schema.json, each whole or not at all."""
    for kind, made in json_schema().items():
        path = root / TAXONOMY / "schema" / f"{kind}.schema.json"
        path.parent.mkdir(exist_ok=True)
        partial = path.with_suffix(".part")
        partial.write_text(schema_text(made), encoding="utf-8")
        partial.replace(path)
