"""`atlas check SCRIPT`: a right script holds, a planted mistake is found and named."""

import functools
import tempfile
from pathlib import Path
from typing import Any

import pytest

from atlas.check import checking
from atlas.check.checking import CheckError, Order, Result, check_script
from atlas.check.compare import MARGIN

PROGRAMS = Path(__file__).parent / "programs"
RANKS = 3
FOLDERS: list[tempfile.TemporaryDirectory[str]] = []


@pytest.fixture(scope="module", autouse=True)
def _references_are_kept_for_the_module() -> Any:
    yield
    reference.cache_clear()
    while FOLDERS:
        FOLDERS.pop().cleanup()


@functools.cache
def reference(program: str, arguments: tuple[str, ...]) -> Path:
    """One process and its perturbed runs, which many mistakes are compared with."""
    FOLDERS.append(tempfile.TemporaryDirectory(prefix="kept-"))
    place = Path(FOLDERS[-1].name)
    checking.reference(Order(PROGRAMS / program, arguments), place)
    return place


def found(way: str, bug: str, given: str = "", same: bool = False) -> Result:
    """The check of a program; `same`: one process has the same peculiarity."""
    program = "replicas.py" if way in ("ddp", "hand") else "sharded.py"
    common = ("--way", way, *given.split())
    one = reference(program, (*common, "--bug", bug) if same else common)
    batch = 24 if way == "tensor" else 8
    many = (*common, "--bug", bug, "--batch", str(batch))
    with checking.folder() as place:
        checking.captured(Order(PROGRAMS / program, many), place, RANKS)
        return checking.compared(one, place, program)


# Right programs

RIGHT = [
    ("ddp", ""),
    ("ddp", "--accumulate 2 --optimizer AdamW"),
    ("hand", "--accumulate 2"),
    ("hand", "--optimizer AdamW"),
    ("fsdp2", "--accumulate 2 --optimizer AdamW"),
    ("fsdp2", "--clip 0.1"),
    ("tensor", ""),
    ("tensor", "--optimizer AdamW"),
]


@pytest.mark.parametrize(("way", "given"), RIGHT)
def test_a_right_program_holds_far_below_the_margin(way: str, given: str) -> None:
    result = found(way, "", given)
    assert result.holds, result
    assert result.steps == checking.STEPS
    assert not result.unmatched
    # Below 3 yardsticks of the 8 that are allowed: no false alarm is near.
    assert result.share < 3 / MARGIN


# One mistake each

MISTAKES = [
    # way, planted, given, the diagnosis, whether it runs with every change
    ("ddp", "summed", "", "summed-not-averaged", True),
    ("ddp", "summed", "--optimizer AdamW", "summed-not-averaged", True),
    ("ddp", "averaged-twice", "", "averaged-twice", True),
    ("ddp", "never", "", "never-reduced", True),
    ("ddp", "never", "--accumulate 2", "never-reduced", False),
    ("ddp", "lost", "--accumulate 2", "only-last-microbatch-reduced", True),
    ("ddp", "undivided", "--accumulate 2", "accumulation-not-divided", True),
    ("ddp", "seeds", "", "different-initial-weights", True),
    ("ddp", "buffers", "", "buffers-differ", True),
    ("ddp", "frozen-late", "", "parameter-left-out", True),
    ("ddp", "stale", "", "stale-copy", True),
    ("ddp", "same-samples", "", "same-samples-on-every-rank", True),
    ("ddp", "rate", "", "learning-rate-differs", True),
    ("hand", "summed", "", "summed-not-averaged", True),
    ("hand", "summed", "--optimizer AdamW", "summed-not-averaged", False),
    ("hand", "averaged-twice", "", "averaged-twice", False),
    ("hand", "never", "", "never-reduced", True),
    ("hand", "last", "--accumulate 2", "only-last-microbatch-reduced", True),
    ("hand", "lost", "--accumulate 2", "only-last-microbatch-reduced", False),
    ("hand", "undivided", "--accumulate 2", "accumulation-not-divided", False),
    ("hand", "seeds", "", "different-initial-weights", True),
    ("hand", "buffers", "", "buffers-differ", False),
    ("hand", "left-out", "", "parameter-left-out", True),
    ("hand", "padding", "", "padding-dropped", True),
    ("hand", "stale", "", "stale-copy", False),
    ("hand", "same-samples", "", "same-samples-on-every-rank", False),
    ("hand", "rate", "", "learning-rate-differs", False),
    ("fsdp2", "summed", "--optimizer AdamW", "summed-not-averaged", True),
    ("fsdp2", "averaged-twice", "", "averaged-twice", False),
    ("fsdp2", "never", "", "gradient-missing", True),
    ("fsdp2", "lost", "--accumulate 2", "only-last-microbatch-reduced", True),
    ("fsdp2", "undivided", "--accumulate 2", "accumulation-not-divided", False),
    ("fsdp2", "seeds", "", "different-initial-weights", True),
    ("fsdp2", "stale", "", "stale-copy", True),
    ("fsdp2", "same-samples", "", "same-samples-on-every-rank", False),
    ("fsdp2", "norm-own", "--clip 0.1", "norm-of-own-shard", True),
    ("tensor", "averaged-twice", "", "averaged-twice", False),
    ("tensor", "summed", "", "summed-not-averaged", False),
    ("tensor", "seeds", "", "different-initial-weights", False),
    ("tensor", "stale", "", "stale-copy", True),
    ("tensor", "norm-own", "--clip 0.1", "norm-of-own-shard", False),
    ("tensor", "norm-twice", "--clip 0.1", "norm-counts-shards-wrongly", True),
]
#: Peculiarities that one process has too.
SAME = [
    ("ddp", "tokens", "unequal-tokens-averaged", True),
    ("hand", "tokens", "unequal-tokens-averaged", False),
    ("fsdp2", "tokens", "unequal-tokens-averaged", True),
    ("ddp", "norm", "local-batch-norm", True),
    ("ddp", "dropout", "random-layers", True),
]


def nightly(rows: list[Any]) -> list[Any]:
    return [
        pytest.param(*row[:-1], marks=[] if row[-1] else [pytest.mark.nightly])
        for row in rows
    ]


@pytest.mark.parametrize(("way", "bug", "given", "diagnosis"), nightly(MISTAKES))
def test_a_planted_mistake_is_named(
    way: str, bug: str, given: str, diagnosis: str
) -> None:
    result = found(way, bug, given)
    assert not result.holds
    assert result.bug == diagnosis, result
    # The mildest mistake is far from what rounding explains.
    assert result.difference
    assert result.difference["error"] > 1000 * result.difference["limit"]


@pytest.mark.parametrize(("way", "bug", "diagnosis"), nightly(SAME))
def test_what_depends_on_the_number_of_ranks_is_named(
    way: str, bug: str, diagnosis: str
) -> None:
    result = found(way, bug, same=True)
    assert result.bug == diagnosis, result


# Bad input

JOIN = "import torch, torch.distributed as dist\ndist.init_process_group()\n"
TRAIN = """
model = torch.nn.Linear(3, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
model(torch.ones(2, 3)).sum().backward()
optimizer.step()
"""
BAD = {
    "never steps": (JOIN, "before an optimizer of torch.optim made a step"),
    "no import": ("import no_such_module\n", "No module named 'no_such_module'"),
    "own error": (JOIN + "raise ValueError('mine')\n", "ValueError: mine"),
    "exit code": (JOIN + "raise SystemExit(3)\n", "exit code 3"),
    "not python": ("x = = 1\n", "train.py:1 is not Python"),
    "for GPUs": ("import torch\ntorch.ones(1).cuda()\n", "train.py needs a GPU"),
    "spawns": (
        "import torch.multiprocessing as mp\nmp.spawn(print, nprocs=2)\n",
        "starts its own processes",
    ),
    "hangs": ("import time\ntime.sleep(600)\n", "no end after 2 s"),
    "unseeded": (
        JOIN + "torch.seed()\n" + TRAIN,
        "two runs on one process differ by",
    ),
}


@pytest.mark.parametrize("case", BAD)
def test_bad_input_is_one_clear_line(tmp_path: Path, case: str) -> None:
    source, says = BAD[case]
    path = tmp_path / "train.py"
    path.write_text(source)
    limit = 2.0 if case == "hangs" else 60.0
    with pytest.raises(CheckError) as caught:
        check_script(path, ranks=2, timeout=limit)
    first = str(caught.value).splitlines()[0]
    assert says in first


def test_a_missing_script_is_one_line() -> None:
    with pytest.raises(CheckError, match=r"cannot read nowhere\.py"):
        check_script(Path("nowhere.py"), ranks=2)


def test_an_error_of_the_scripts_own_keeps_its_traceback(tmp_path: Path) -> None:
    path = tmp_path / "train.py"
    path.write_text(JOIN + "def deep():\n    raise ValueError('mine')\ndeep()\n")
    with pytest.raises(CheckError) as caught:
        check_script(path, ranks=2)
    lines = str(caught.value).splitlines()
    assert "ValueError: mine" in lines[0]
    assert lines[1].startswith("Traceback")
    assert "in deep" in str(caught.value)
    assert "atlas/check" not in str(caught.value)
