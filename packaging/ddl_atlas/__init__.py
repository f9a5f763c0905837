"""The tree of the atlas as a checkout has it, kept in one folder of site-packages.

Code finds the taxonomy, the records and the pages beside itself, so a wheel keeps all
of them together here. The packages `atlas` and `exemplars` that Python finds are two
lines each, and lead to the folders of the same names in this one.
"""

from pathlib import Path
from typing import Any


def lead(names: dict[str, Any]) -> None:
    """Make the package with these global names the one that lies here."""
    folder = Path(__file__).parent / names["__name__"]
    source = folder / "__init__.py"
    names["__file__"] = str(source)
    names["__path__"][:] = [str(folder)]
    exec(compile(source.read_text("utf-8"), source, "exec"), names)  # noqa: S102
