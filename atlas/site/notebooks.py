"""Notebooks as pages: what was executed and kept, and the files to download."""

import json
import re
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Any

from atlas.site.text import front, md
from atlas.views.context import Context

KEPT = Path("measurements", "notebooks")
FORMULA = re.compile(r"\$\$(?P<apart>.+?)\$\$|\$(?P<inside>[^$\n]+)\$", re.S)
CODE = re.compile(r"(^(`{3,}).*?^\2[^\n]*$)", re.S | re.M)

# Outputs become plain blocks; the fence is longer than what a run may print.
TEMPLATE = """{% extends 'markdown/index.md.j2' %}
{% block stream %}
`````` { .text .output }
{{ output.text | strip_ansi | trim }}
``````
{% endblock stream %}
{% block data_text scoped %}
`````` { .text .output }
{{ output.data['text/plain'] | trim }}
``````
{% endblock data_text %}
{% block data_html scoped %}
<div class="nb-html">{{ output.data['text/html'] }}</div>
{% endblock data_html %}
"""


def names(root: Path) -> list[str]:
    """The executed notebooks."""
    return sorted(p.stem for p in (root / KEPT).glob("*.ipynb"))


def pages(root: Path) -> Iterator[tuple[str, str | bytes]]:
    """(address, content) of every notebook: page, pictures, downloads."""
    found = names(root)
    for name in found:
        yield from _notebook(root, name)
    if found:
        rows = [f"- [{md(title(root, n))}]({n}.md)" for n in found]
        head = front("Notebooks") + "# Notebooks\n\n"
        yield "notebooks/index.md", head + "\n".join(rows) + "\n"


def listed(ctx: Context) -> str:
    """The notebooks as a list, for a page beside them."""
    found = names(ctx.root)
    return "\n".join(f"- [{md(title(ctx.root, n))}](notebooks/{n}.md)" for n in found)


def title(root: Path, name: str) -> str:
    """The notebook's first heading."""
    kept = json.loads((root / KEPT / f"{name}.ipynb").read_text(encoding="utf-8"))
    for cell in kept["cells"]:
        for line in "".join(cell["source"]).splitlines():
            if line.startswith("# "):
                return line[2:].strip()
    return name


def drawn(markdown: str) -> str:
    """With its few formulas as MathML, which browsers draw without a script."""
    parts = CODE.split(markdown)  # text, code, its fence, text, ...
    return "".join(
        FORMULA.sub(_formula, part) if i % 3 == 0 else part
        for i, part in enumerate(parts)
        if i % 3 != 2
    )


def _formula(found: re.Match[str]) -> str:
    from latex2mathml.converter import convert

    if apart := found["apart"]:
        made = convert(apart.strip(), display="block")
        return f'<div class="formula">{made}</div>'
    return str(convert(found["inside"]))


@cache  # it compiles its templates when it is first used
def _exporter() -> Any:
    from nbconvert import MarkdownExporter

    untyped: Any = MarkdownExporter
    return untyped(raw_template=TEMPLATE)


def _notebook(root: Path, name: str) -> Iterator[tuple[str, str | bytes]]:
    import nbformat

    path = root / KEPT / f"{name}.ipynb"
    library: Any = nbformat  # it has no types
    nb = library.read(path, as_version=4)
    body, resources = _exporter().from_notebook_node(
        nb, {"output_files_dir": f"{name}-files", "unique_key": name}
    )
    links = [f"[.ipynb]({name}.ipynb)"]
    source = root / "notebooks" / f"{name}.py"
    if source.is_file():
        links.append(f"[.py]({name}.py)")
        yield f"notebooks/{name}.py", source.read_bytes()
    bar = f'<p class="quiet" markdown>Download: {" · ".join(links)}</p>\n\n'
    lines = drawn(body).strip().splitlines()
    at = next((i for i, x in enumerate(lines) if x.startswith("# ")), -1)
    lines.insert(at + 1, "\n" + bar)
    head = front(title(root, name), hide=["navigation"])
    yield f"notebooks/{name}.md", head + "\n".join(lines) + "\n"
    yield f"notebooks/{name}.ipynb", path.read_bytes()
    for file, data in sorted(resources.get("outputs", {}).items()):
        yield f"notebooks/{file}", data
