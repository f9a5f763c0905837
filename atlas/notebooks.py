"""Executes the notebooks and keeps their outputs: measurements/notebooks/NAME.ipynb.

    python -m atlas.notebooks                 all of notebooks/*.py
    python -m atlas.notebooks 00-tour         this one
    python -m atlas.notebooks --check         execute, write nothing; fail if stale

A notebook is a .py file in jupytext's percent format. What is kept of a run is
what it showed, and nothing of when and where: a second run gives the same bytes,
but for what a cell times.
The site makes its page from the kept file and executes nothing. `figures` and
`table` are for the cells.
"""

import argparse
import difflib
import hashlib
import json
import re
import sys
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from atlas.record import RecordError, write_text
from atlas.svg import lighter
from atlas.taxonomy import TaxonomyError, find_root
from atlas.verdict import Verdict

if TYPE_CHECKING:
    from IPython.display import Markdown
    from jupyter_client.manager import AsyncKernelManager

SOURCES, KEPT = Path("notebooks"), Path("measurements", "notebooks")
#: Seconds that one cell may take.
DEADLINE = 120
#: A kernel that is ended in mid-cell would log a traceback of its own.
KERNEL = ("-m", "ipykernel_launcher", "-f", "{connection_file}", "--log-level=50")
#: An error that is no distance: other bits, another shape, not a number.
FAR = sys.float_info.max
#: An output in one of these forms needs no plain text beside it.
RICH = ("image/svg+xml", "text/markdown", "text/html", "text/latex")
#: Of a cell's metadata: what the source says of it (an exercise, a solution that
#: Jupyter shows folded), and not when it ran.
MARKS = ("tags", "jupyter")
METADATA = re.compile(r"\s*<metadata>.*?</metadata>", re.DOTALL)
ANSI = re.compile(r"\x1b\[[0-9;]*m")
#: Between the two schemes of the site: as legible on white as on near-black.
GREY = "#7b838f"
COLOURS = ["#4f6edb", "#c05a2a", "#1f8f7d", "#9a5fce"]
STYLE: dict[str, Any] = {
    "figure.facecolor": "none",
    "axes.facecolor": "none",
    "savefig.facecolor": "none",
    "figure.figsize": (7.6, 2.9),
    "figure.constrained_layout.use": True,
    "font.size": 10,
    "axes.titlesize": 10,
    "axes.titlelocation": "left",
    "axes.spines.top": False,
    "axes.spines.right": False,
    "legend.frameon": False,
    "lines.linewidth": 1.8,
    "svg.fonttype": "none",  # text stays text, in the reader's own font
    "svg.hashsalt": "atlas",  # ids of a figure's parts are the same on every run
    "text.color": GREY,
    "axes.labelcolor": GREY,
    "axes.edgecolor": GREY,
    "xtick.color": GREY,
    "ytick.color": GREY,
    "axes.prop_cycle": f"cycler('color', {COLOURS})",
}


class NotebookError(Exception):
    """A notebook failed, or what is kept of it is old; the first line says which."""

    def __init__(self, summary: str, details: str = "") -> None:
        super().__init__(f"{summary}\n{details}".rstrip())
        self.summary = summary


# What is there, and whether it is fresh


def names(root: Path) -> list[str]:
    """All notebooks."""
    return sorted(p.stem for p in (root / SOURCES).glob("*.py"))


def source_hash(root: Path, name: str) -> str:
    """Of the notebook, whole; of the exemplars it names and the workload, the code.

    A notebook's comments are the text of its page, so they count.
    """
    digest = hashlib.sha256()
    notebook = _lines(root / SOURCES / f"{name}.py")
    for line in notebook:
        digest.update(line.encode() + b"\n")
    text = "\n".join(notebook)
    exemplars = sorted((root / "exemplars").glob("*/*/*.py"))
    named = [p for p in exemplars if p.stem.replace("_", "-") in text]
    for path in [*named, root / "exemplars" / "workload.py"]:
        for line in _lines(path):
            if line and not line.lstrip().startswith("#"):
                digest.update(line.encode() + b"\n")
    return f"sha256:{digest.hexdigest()}"


def _lines(path: Path) -> list[str]:
    return [line.rstrip() for line in path.read_text(encoding="utf-8").splitlines()]


def stale(root: Path, name: str) -> bool:
    """Whether the sources have changed since the outputs were kept, or none were."""
    path = root / KEPT / f"{name}.ipynb"
    try:
        kept = json.loads(path.read_text(encoding="utf-8"))
        return bool(kept["metadata"]["atlas"]["source"] != source_hash(root, name))
    except FileNotFoundError:
        return True
    except (ValueError, KeyError, TypeError):
        raise NotebookError(
            f"{KEPT / path.name}: not a kept notebook; {_again(name)}"
        ) from None


def orphans(root: Path) -> list[str]:
    """Kept outputs whose notebook is gone."""
    kept = {p.stem for p in (root / KEPT).glob("*.ipynb")}
    return sorted(kept - set(names(root)))


def _again(name: str) -> str:
    return f"run: python -m atlas.notebooks {name}"


# Execution


def execute(root: Path, name: str) -> dict[str, Any]:
    """Run every cell in a fresh kernel of this interpreter; the normalized notebook."""
    import jupytext
    from nbclient import exceptions as failures
    from nbconvert.preprocessors import ExecutePreprocessor

    source = source_hash(root, name)
    notebook = jupytext.read(root / SOURCES / f"{name}.py")
    at = [0]
    client = ExecutePreprocessor(
        timeout=DEADLINE,
        kernel_manager_class=_kernel_of_this_python(),
        on_cell_start=lambda cell, cell_index: at.__setitem__(0, cell_index),
    )
    try:
        client.preprocess(notebook, {"metadata": {"path": str(root)}})
    except failures.CellExecutionError as error:
        what = f"{error.ename}: {error.evalue}".splitlines()[0]
        raise _failure(name, notebook, at[0], what, error.traceback) from None
    except failures.CellTimeoutError:
        what = f"no end after {DEADLINE} s"
        raise _failure(name, notebook, at[0], what) from None
    except failures.DeadKernelError:
        raise _failure(name, notebook, at[0], "its kernel died") from None
    except RuntimeError as error:  # before the first cell
        raise NotebookError(f"{SOURCES / name}.py: no kernel: {error}") from None
    _pass_on_complaints(name, notebook)
    return normalized(notebook, source)


def _kernel_of_this_python() -> type["AsyncKernelManager"]:
    """Not whichever kernel the machine calls python3, and nobody else can listen."""
    from jupyter_client.kernelspec import KernelSpec
    from jupyter_client.manager import AsyncKernelManager

    class Ours(AsyncKernelManager):
        transport = "ipc"
        kernel_spec = KernelSpec(
            argv=[sys.executable, *KERNEL], display_name="Python 3", language="python"
        )

    return Ours


def _failure(
    name: str, notebook: Any, index: int, what: str, trace: str = ""
) -> NotebookError:
    """Named by the number that Jupyter shows beside the cell, and its first line."""
    cells = notebook.cells[: index + 1]
    number = sum(c.cell_type == "code" for c in cells)
    first = next(iter(cells[-1].source.splitlines()), "")
    where = f"{SOURCES / name}.py: cell {number} ({first})"
    return NotebookError(f"{where}: {ANSI.sub('', what)}", ANSI.sub("", trace))


def _pass_on_complaints(name: str, notebook: Any) -> None:
    """What cells wrote to stderr is for whoever runs them, not for the page."""
    for number, cell in enumerate(_code(notebook), start=1):
        for output in cell["outputs"]:
            if output.get("name") == "stderr":
                text = _joined(output["text"]).rstrip()
                print(f"{name}, cell {number}, stderr: {text}", file=sys.stderr)


def _code(notebook: Mapping[str, Any]) -> Iterator[dict[str, Any]]:
    return (c for c in notebook["cells"] if c["cell_type"] == "code")


# What is kept


def normalized(notebook: Mapping[str, Any], source: str) -> dict[str, Any]:
    """What was shown, without when, where, and what changes from run to run."""
    metadata = notebook["metadata"]
    kept = {k: metadata[k] for k in ("kernelspec", "title") if k in metadata}
    kept["language_info"] = {"file_extension": ".py", "name": "python"}
    kept["atlas"] = {"source": source}
    return {
        "cells": [_cell(i, c) for i, c in enumerate(notebook["cells"], start=1)],
        "metadata": kept,
        "nbformat": 4,
        "nbformat_minor": 5,
    }


def _cell(number: int, cell: Mapping[str, Any]) -> dict[str, Any]:
    kept: dict[str, Any] = {
        "cell_type": cell["cell_type"],
        "id": f"cell-{number:02}",
        "metadata": {k: v for k, v in cell["metadata"].items() if k in MARKS},
        "source": _split(cell["source"]),
    }
    if cell["cell_type"] == "code":
        kept["execution_count"] = cell["execution_count"]
        kept["outputs"] = [_output(o) for o in _coalesced(cell["outputs"])]
    return kept


def _coalesced(outputs: Iterable[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """One stream where the kernel happened to send several; stderr left out."""
    kept: list[dict[str, Any]] = []
    for output in outputs:
        if output.get("name") == "stderr":
            continue
        if output["output_type"] == "stream" and kept and "text" in kept[-1]:
            kept[-1]["text"] += _joined(output["text"])
        elif output["output_type"] == "stream":
            kept.append({**output, "text": _joined(output["text"])})
        else:
            kept.append(dict(output))
    return kept


def _output(output: dict[str, Any]) -> dict[str, Any]:
    if output["output_type"] == "stream":
        return {**output, "text": _split(output["text"])}
    data = output["data"]
    if any(kind in data for kind in RICH):
        data = {kind: value for kind, value in data.items() if kind != "text/plain"}
    data = {kind: _datum(kind, value) for kind, value in data.items()}
    return {**output, "data": data, "metadata": {}}


def _datum(kind: str, value: Any) -> Any:
    if kind == "image/svg+xml":
        text = lighter(METADATA.sub("", _joined(value)))
        return _split("\n".join(line.rstrip() for line in text.splitlines()) + "\n")
    return _split(value) if kind.startswith("text/") else value


def _joined(text: str | Sequence[str]) -> str:
    return text if isinstance(text, str) else "".join(text)


def _split(text: str | Sequence[str]) -> list[str]:
    return _joined(text).splitlines(keepends=True)


def as_text(notebook: Mapping[str, Any]) -> str:
    """The file's text: one line of source, output or drawing a line."""
    return json.dumps(notebook, indent=1, sort_keys=True, ensure_ascii=False) + "\n"


# For the cells


def figures() -> None:
    """Draw as SVG, calm, on no background: for light and dark pages alike."""
    import matplotlib.pyplot as plt
    from matplotlib_inline.backend_inline import set_matplotlib_formats

    set_matplotlib_formats("svg")
    plt.style.use(STYLE)


def table(verdicts: Iterable[Verdict]) -> "Markdown":
    """Predicted, measured and verdict; ranks that found the same share a line."""
    from IPython.display import Markdown

    ranks: dict[tuple[str, str, str, str], list[str]] = {}
    for v in verdicts:
        line = (v.claim, _predicted(v), _measured(v), _VERDICTS[v.ok])
        ranks.setdefault(line, []).append("all" if v.rank is None else str(v.rank))
    rows = [
        f"| {claim} | {', '.join(who)} | {predicted} | {measured} | {verdict} |"
        for (claim, predicted, measured, verdict), who in ranks.items()
    ]
    head = ["| claim | ranks | predicted | measured | verdict |", "|--|--|--:|--:|--|"]
    return Markdown("\n".join([*head, *rows]))


_VERDICTS = {
    True: '<span class="badge">holds</span>',
    False: '<span class="badge bad">**fails**</span>',
    None: '<span class="badge warn">not judged</span>',
}


def _predicted(v: Verdict) -> str:
    if v.predicted is not None:
        return f"at most {v.predicted:,}" if v.kind == "bound" else f"{v.predicted:,}"
    return "equal" if v.kind == "equal" else v.note


def _measured(v: Verdict) -> str:
    if v.measured is None:
        return v.note
    if v.kind in ("equal", "close"):
        if v.measured >= FAR:
            return "not equal"
        return f"off by {v.measured:.1g}" if v.measured else "equal"
    return f"{v.measured:,}"


# The command


def main(arguments: Sequence[str] | None = None) -> int:
    """Execute the notebooks that are named, or all; the exit code."""
    head, _, usage = (__doc__ or "").partition("\n\n")
    parser = argparse.ArgumentParser(
        prog="python -m atlas.notebooks",
        description=head,
        epilog=usage,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("names", nargs="*", metavar="NAME", help="else all of them")
    parser.add_argument(
        "--check", action="store_true", help="write nothing; fail if old"
    )
    asked = parser.parse_args(arguments)
    try:
        root = find_root()
        for name in _chosen(root, asked.names):
            _keep(root, name, check=asked.check)
    except (NotebookError, RecordError, TaxonomyError) as error:
        print(error, file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        return 130
    return 0


def _chosen(root: Path, asked: list[str]) -> list[str]:
    known = names(root)
    if not asked:
        for name in orphans(root):
            raise NotebookError(
                f"{KEPT / name}.ipynb: there is no {SOURCES / name}.py; remove it"
            )
        return known
    for name in asked:
        if name not in known:
            near = difflib.get_close_matches(name, known, cutoff=0.3) or known
            raise NotebookError(f"no notebook {name!r}; there is {', '.join(near)}")
    return asked


def _keep(root: Path, name: str, *, check: bool) -> None:
    if check and stale(root, name):
        raise NotebookError(
            f"{name}: its sources have changed since it was executed; {_again(name)}"
        )
    print(f"{name} ... ", end="", flush=True)
    began = time.monotonic()
    try:
        done = execute(root, name)
    except BaseException:
        print("failed", flush=True)
        raise
    if not check:
        write_text(root / KEPT / f"{name}.ipynb", as_text(done))
    cells = sum(1 for _ in _code(done))
    print(f"{cells} cells, {time.monotonic() - began:.1f} s")


if __name__ == "__main__":
    sys.exit(main())
