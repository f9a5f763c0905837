"""The command `atlas check`: one screen, JSON, exit codes, one line for bad input."""

import json
import re
from pathlib import Path
from typing import Any

import pytest
from command_line import app
from typer.testing import CliRunner

from atlas.check import picture
from atlas.check.checking import Result
from atlas.check.parts import Kept, Outcome
from atlas.commands import check
from atlas.views.check import explained, part_screen, screen

ROOT = Path(__file__).parents[2]
DIFFERENCE = {
    "step": 1,
    "kind": "weights",
    "tensor": "head.weight",
    "others": 2,
    "error": 0.5,
    "limit": 1e-6,
    "ranks": (0, 2),
    "apart": True,
}


def result(difference: dict[str, Any] | None) -> Result:
    bug = "never-reduced" if difference else None
    says = "nothing is reduced" if difference else None
    return Result("train.py", 4, 3, 8, (), 0.25, difference, bug, says)


def atlas(*arguments: str) -> Any:
    return CliRunner().invoke(app, ["check", *arguments], env={"COLUMNS": "160"})


def test_a_difference_is_one_screen_with_its_page() -> None:
    shown = screen(result(DIFFERENCE), explained(ROOT))
    lines = dict(shown.lines)
    assert shown.verdict.startswith("differs: train.py on 4 ranks")
    assert lines["first"] == "after step 0, weights: head.weight and 2 more"
    assert lines["off by"] == "50.00%; rounding explains 1.0e-06"
    assert lines["on"] == "ranks 0, 2 (the ranks differ from each other too)"
    assert lines["see"] == "bugs/#never-reduced"


def test_what_holds_says_how_far_it_was_off() -> None:
    shown = screen(result(None))
    assert shown.holds
    assert ("largest", "25% of what rounding explains") in shown.lines


def test_a_broken_contract_shows_its_smallest_case() -> None:
    outcomes = (
        Outcome("one element", 1, "holds", sent=0, least=0),
        Outcome("7 elements", 2, "broken", "the sum: element 0 is 1, not 3"),
        Outcome("no element", 2, "refused"),
    )
    shown = part_screen(Kept("m:f", "all-reduce", "the sum", outcomes))
    lines = dict(shown.lines)
    assert not shown.holds
    assert lines["smallest"].startswith("7 elements on 2 ranks: broken, the sum")
    assert lines["refused"].startswith("no element")


def test_json_and_exit_codes_say_the_same(monkeypatch: pytest.MonkeyPatch) -> None:
    for difference, code in ((None, 0), (DIFFERENCE, 1)):
        made = result(difference)
        monkeypatch.setattr(check, "check_script", lambda *_, made=made, **__: made)
        found = atlas("train.py", "--json")
        assert found.exit_code == code
        assert json.loads(found.stdout)["holds"] is made.holds


@pytest.mark.parametrize(
    ("arguments", "line"),
    [
        (["nowhere.py"], "cannot read nowhere.py"),
        (["mymodule:MyDDP"], "mymodule:MyDDP is a part: --contract says"),
        (["train.py", "--one", "'"], "--one ': No closing quotation"),
        (
            ["m:f", "--contract", "all-reduce", "--with", "bucket"],
            "--with bucket: write it as NAME=VALUE",
        ),
    ],
)
def test_wrong_usage_is_one_line(arguments: list[str], line: str) -> None:
    found = atlas(*arguments)
    assert found.exit_code == 2
    assert line in found.stderr
    assert len(found.stderr.strip().splitlines()) == 1


def test_the_picture_of_a_check_is_what_it_prints() -> None:
    """All but the size of a rounding, which is this processor's."""
    here = picture.drawn(picture.said())
    rounding = re.compile(r"(?<=rounding explains )[\d.e-]+")
    kept = picture.PICTURE.read_text(encoding="utf-8")
    assert rounding.sub("", kept) == rounding.sub("", here)
