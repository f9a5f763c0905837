"""For cells of a notebook: the reader's own function, held against what it must do.

    hold(my_all_reduce, "all-reduce")                     # a part, and its contract
    check(train, one={"batch": 32}, many={"batch": 8})    # p ranks, and one process

The same checks as `atlas check`, which takes files.
"""

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from html import escape
from typing import Any

from atlas.check.checking import STEPS, check_script, folder
from atlas.check.parts import check_part
from atlas.taxonomy import find_root
from atlas.views.check import Screen, explained, part_screen, screen

SCRIPT = """\
import json, sys
import cloudpickle
import torch.distributed as dist

with open({function!r}, "rb") as file:
    train = cloudpickle.load(file)
dist.init_process_group()
train(**json.loads(sys.argv[1]))
dist.destroy_process_group()
"""


@dataclass(frozen=True)
class Shown:
    """An answer of one screen, as a notebook shows it."""

    screen: Screen

    @property
    def holds(self) -> bool:
        """Whether nothing is wrong."""
        return self.screen.holds

    def _repr_markdown_(self) -> str:
        word, kind = ("holds", "badge") if self.holds else ("broken", "badge bad")
        head = f'<span class="{kind}">**{word}**</span> {escape(self.screen.verdict)}'
        rows = [f"| {label} | {_cell(text)} |" for label, text in self.screen.lines]
        return "\n".join([head, "", "| | |", "|---|---|", *rows])


def _cell(text: str) -> str:
    """One line of a table; a trace ends with what matters."""
    return escape(text.strip().splitlines()[-1] if text.strip() else "", quote=False)


def hold(
    part: Any, contract: str, *, ranks: Sequence[int] = (), **options: Any
) -> Shown:
    """Hold a function or a class of a cell against a contract."""
    return Shown(part_screen(check_part(part, contract, options=options, ranks=ranks)))


def check(
    train: Callable[..., Any],
    *,
    one: Mapping[str, Any],
    many: Mapping[str, Any],
    ranks: int = 4,
    steps: int = STEPS,
) -> Shown:
    """Does `train(**many)` on the ranks do what `train(**one)` does on one process?"""
    import cloudpickle

    with folder() as place:
        function, script = place / "function", place / f"{train.__name__}.py"
        function.write_bytes(cloudpickle.dumps(train))
        script.write_text(SCRIPT.format(function=str(function)))
        found = check_script(
            script,
            ranks=ranks,
            one=[json.dumps(dict(one))],
            many=[json.dumps(dict(many))],
            steps=steps,
        )
    return Shown(screen(found, explained(find_root())))
