"""Notebooks: read as percent format, run in ranks, kept byte for byte, never stale."""

import json
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from atlas import notebooks
from atlas.notebooks import NotebookError, as_text, normalized
from atlas.verdict import Verdict

ROOT = Path(__file__).resolve().parents[2]
NAMES = notebooks.names(ROOT)
TWO_RANKS = """\
# %% [markdown]
# # Two ranks

# %%
from atlas.launch import launch

def double(w, x):
    return w.rank, 2 * x

# %%
launch(double, 2, 21)
"""
FAILS_IN_THE_SECOND = """\
# %%
x = 1

# %% [markdown]
# Not counted: Jupyter numbers code.

# %%
x / 0

# %%
print("never reached")
"""

Tree = Callable[..., Path]


@pytest.fixture
def tree(tmp_path: Path) -> Tree:
    """A root with these notebooks, and one exemplar."""

    def make(**sources: str) -> Path:
        for folder in ("notebooks", "exemplars/axis/family", "taxonomy"):
            (tmp_path / folder).mkdir(parents=True)
        (tmp_path / "taxonomy/axes.yaml").write_text("")
        (tmp_path / "exemplars/workload.py").write_text("x = 1\n")
        (tmp_path / "exemplars/axis/family/one.py").write_text("y = 2\n")
        for name, text in sources.items():
            (tmp_path / f"notebooks/{name}.py").write_text(text)
        return tmp_path

    return make


def kept(name: str) -> dict[str, Any]:
    text = (ROOT / notebooks.KEPT / f"{name}.ipynb").read_text(encoding="utf-8")
    return dict(json.loads(text))


# --- what is committed


def test_there_is_a_tour() -> None:
    assert "00-tour" in NAMES


@pytest.mark.parametrize("name", NAMES)
def test_a_notebook_is_percent_format_with_a_title_and_a_kernel(name: str) -> None:
    import jupytext

    path = ROOT / notebooks.SOURCES / f"{name}.py"
    notebook = jupytext.read(path)
    assert (
        notebook.metadata["jupytext"]["text_representation"]["format_name"] == "percent"
    )
    assert notebook.metadata["kernelspec"]["name"] == "python3"
    assert notebook.cells[0].source.startswith(f"# {notebook.metadata['title']}\n")
    # Nothing is lost on the way there and back.
    assert jupytext.writes(notebook, fmt="py:percent").count("\n# %%") == len(
        notebook.cells
    )


def test_no_ipynb_lies_beside_the_sources() -> None:
    assert not list((ROOT / notebooks.SOURCES).rglob("*.ipynb"))


@pytest.mark.parametrize("name", NAMES)
def test_what_is_kept_is_of_these_sources(name: str) -> None:
    assert not notebooks.stale(ROOT, name), f"run: python -m atlas.notebooks {name}"


def test_nothing_is_kept_without_a_source() -> None:
    assert notebooks.orphans(ROOT) == []


@pytest.mark.parametrize("name", NAMES)
def test_what_is_kept_is_valid_and_already_normal(name: str) -> None:
    import nbformat

    path = ROOT / notebooks.KEPT / f"{name}.ipynb"
    nbformat.validate(json.loads(path.read_text(encoding="utf-8")))
    found = kept(name)
    again = normalized(found, found["metadata"]["atlas"]["source"])
    assert as_text(again) == path.read_text(encoding="utf-8")


@pytest.mark.parametrize("name", NAMES)
def test_every_code_cell_was_executed_in_order(name: str) -> None:
    cells = [c for c in kept(name)["cells"] if c["cell_type"] == "code"]
    assert [c["execution_count"] for c in cells] == list(range(1, len(cells) + 1))


@pytest.mark.parametrize("name", NAMES)
def test_figures_are_drawings_without_a_background(name: str) -> None:
    data = [
        o.get("data", {}) for c in kept(name)["cells"] for o in c.get("outputs", ())
    ]
    drawings = ["".join(d["image/svg+xml"]) for d in data if "image/svg+xml" in d]
    assert drawings
    assert not any("image/png" in d for d in data)
    for drawing in drawings:
        assert "<dc:date>" not in drawing
        assert "fill: #ffffff" not in drawing.partition('id="axes_1"')[0]


# --- staleness


def test_an_exemplar_it_does_not_name_leaves_a_notebook_fresh(tree: Tree) -> None:
    root = tree(a="# %% [markdown]\n# Text\n")
    before = notebooks.source_hash(root, "a")
    (root / "exemplars/axis/family/one.py").write_text("y = 3\n")
    assert notebooks.source_hash(root, "a") == before


def test_prose_and_exemplars_make_a_notebook_stale(tree: Tree) -> None:
    root = tree(a="# %% [markdown]\n# Text on one\n")
    before = notebooks.source_hash(root, "a")
    (root / "exemplars/axis/family/one.py").write_text("# why\n\ny = 2\n")
    assert notebooks.source_hash(root, "a") == before
    (root / "exemplars/axis/family/one.py").write_text("y = 3\n")
    changed = notebooks.source_hash(root, "a")
    (root / "notebooks/a.py").write_text("# %% [markdown]\n# Other text on one\n")
    assert len({before, changed, notebooks.source_hash(root, "a")}) == 3


def test_a_notebook_never_executed_is_stale(tree: Tree) -> None:
    assert notebooks.stale(tree(a="x = 1\n"), "a")


def test_a_damaged_file_is_named(tree: Tree) -> None:
    root = tree(a="x = 1\n")
    (root / notebooks.KEPT).mkdir(parents=True)
    (root / notebooks.KEPT / "a.ipynb").write_text("{}")
    with pytest.raises(NotebookError, match=r"notebooks/a\.ipynb: not a kept notebook"):
        notebooks.stale(root, "a")


def test_hashes_need_neither_torch_nor_jupyter() -> None:
    banned = ["torch", "jupytext", "nbconvert", "nbclient", "IPython", "matplotlib"]
    program = (
        "import sys\n"
        f"sys.modules.update(dict.fromkeys({banned}))\n"
        "from pathlib import Path\n"
        "from atlas import notebooks\n"
        "print(notebooks.stale(Path(), notebooks.names(Path())[0]))\n"
    )
    command = [sys.executable, "-c", program]
    done = subprocess.run(
        command, cwd=ROOT, capture_output=True, text=True, check=False
    )
    assert done.stdout in ("True\n", "False\n"), done.stderr


# --- execution


def test_a_function_of_a_cell_reaches_the_ranks(
    tree: Tree, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    root = tree(two=TWO_RANKS)
    monkeypatch.chdir(root)
    assert notebooks.main(["two"]) == 0
    assert capsys.readouterr().out.startswith("two ... 2 cells, ")
    text = (root / notebooks.KEPT / "two.ipynb").read_text()
    assert "[(0, 42), (1, 42)]" in text
    assert not notebooks.stale(root, "two")


def test_a_failing_cell_is_told_by_its_number_and_nothing_is_written(
    tree: Tree, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    root = tree(bad=FAILS_IN_THE_SECOND)
    monkeypatch.chdir(root)
    assert notebooks.main(["bad"]) == 1
    first = capsys.readouterr().err.splitlines()[0]
    expected = "cell 2 (x / 0): ZeroDivisionError: division by zero"
    assert first == f"notebooks/bad.py: {expected}"
    assert not (root / notebooks.KEPT).exists()


def test_check_fails_on_stale_outputs_and_writes_nothing(
    tree: Tree, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    root = tree(a="# %%\nx = 1\n")
    monkeypatch.chdir(root)
    assert notebooks.main(["--check"]) == 1
    assert "run: python -m atlas.notebooks a" in capsys.readouterr().err
    assert not (root / notebooks.KEPT).exists()


def test_an_unknown_name_gives_the_nearest(
    tree: Tree, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tree(tour="x = 1\n"))
    assert notebooks.main(["tuor"]) == 1
    assert capsys.readouterr().err == "no notebook 'tuor'; there is tour\n"


# --- what is kept of an execution


def executed(**output: Any) -> dict[str, Any]:
    """A notebook of one cell with these outputs, as a kernel leaves it."""
    cell = {
        "cell_type": "code",
        "id": "3f9c",
        "metadata": {"execution": {"iopub.execute_input": "2026-01-01T00:00:00Z"}},
        "execution_count": 1,
        "source": "f()",
        **output,
    }
    info = {"name": "python", "version": "3.12.1"}
    return {"cells": [cell], "metadata": {"language_info": info}}


def test_when_and_where_are_not_kept() -> None:
    svg = "<svg><metadata><dc:date>2026</dc:date></metadata> \n</svg>"
    data = {"image/svg+xml": svg, "text/plain": "<Figure size 1x1>"}
    outputs = [{"output_type": "display_data", "data": data, "metadata": {"x": 1}}]
    text = as_text(normalized(executed(outputs=outputs), "sha256:0"))
    for gone in ("2026", "3f9c", "3.12.1", "Figure"):
        assert gone not in text
    assert "<svg>" in text


def test_a_stream_is_one_however_it_was_flushed() -> None:
    parts = [
        {"output_type": "stream", "name": "stdout", "text": "a\n"},
        {"output_type": "stream", "name": "stderr", "text": "/some/path: warning\n"},
        {"output_type": "stream", "name": "stdout", "text": "b\n"},
    ]
    found = normalized(executed(outputs=parts), "sha256:0")["cells"][0]["outputs"]
    assert found == [
        {"output_type": "stream", "name": "stdout", "text": ["a\n", "b\n"]}
    ]


def test_normalizing_twice_changes_nothing() -> None:
    data = {"text/plain": "1\n2", "application/json": {"k": [1]}}
    outputs = [
        {"output_type": "stream", "name": "stdout", "text": "a\nb"},
        {"output_type": "display_data", "data": data, "metadata": {}},
    ]
    once = normalized(executed(outputs=outputs), "sha256:0")
    assert as_text(normalized(once, "sha256:0")) == as_text(once)


# --- for the cells


def test_ranks_that_found_the_same_share_a_line_of_the_table() -> None:
    verdicts = [
        Verdict("bytes", "", "exact", 0, 1000, 1000, True),
        Verdict("bytes", "", "exact", 1, 1000, 1000, True),
        Verdict("bytes", "", "exact", 2, 1000, 2000, False),
        Verdict("sum", "", "close", 0, None, 2e-16, True, "at most 9e-16"),
        Verdict("rounds", "", "exact", None, 6, None, None, "a dry run"),
    ]
    lines = str(notebooks.table(verdicts).data).splitlines()[2:]
    cells = [[c.strip() for c in line.strip("|").split("|")] for line in lines]
    assert [c[:4] for c in cells] == [
        ["bytes", "0, 1", "1,000", "1,000"],
        ["bytes", "2", "1,000", "2,000"],
        ["sum", "0", "at most 9e-16", "off by 2e-16"],
        ["rounds", "all", "6", "a dry run"],
    ]
    assert ["fails" in c[4] for c in cells] == [False, True, False, False]
