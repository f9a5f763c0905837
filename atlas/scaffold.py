"""Begins a technique: its data file and an exemplar, honest, small, and passing.

What is written is an all-reduce with its claims, formulas and a mutant: every
part is there and works, to be replaced one by one. The sentences that only
the author can write begin with "Say here".

A technique that the taxonomy knows, but that has no exemplar yet, keeps its data
file; only its claims become comments, to be brought back as they are proven.
"""

import datetime
import re
from pathlib import Path

from atlas import knowledge
from atlas.kinds import IS_KEBAB
from atlas.knowledge import Atlas, Technique

#: How a sentence begins that is still to be written.
UNWRITTEN = "Say here"

DATA = """\
# yaml-language-server: $schema=../../../schema/technique.schema.json
name: {name}
summary: Say here in one sentence what {name} does.
since: {year}
papers: []
use_when: Say here when it is the right choice.
avoid_when: Say here when it is not.
pros: Say here what it gives.
cons: Say here what it costs.
"""

CLAIMS = """\
claims:
  - {id: sum, says: the sum that one process computes, kind: close}
  - {id: calls, says: all-reduce calls, kind: exact, formula: bucketed_calls}
  - {id: payload, says: bytes handed over, kind: exact, formula: bucketed_payload}
mutants:
  - id: largest-not-sum
    says: the largest number is taken instead of the sum
    find: dist.all_reduce(x)
    replace: dist.all_reduce(x, dist.ReduceOp.MAX)
    fails: [sum]
"""

EXEMPLAR = '''\
"""{name}: say here in one sentence what it shows.

    torchrun --standalone --nproc-per-node 4 -m {module}

Source: say here which paper, and which section of it.

Say here how it works: the equation or the table, and the one insight.
"""

import torch
import torch.distributed as dist
from torch import Tensor

from exemplars.runtime import World, meter, report, world

SIZE = 100_003  # prime: no number of ranks divides it


def exchange(x: Tensor) -> None:
    """Sum x over all ranks, in place."""
    dist.all_reduce(x)


def reference(w: World) -> Tensor:
    """The same sum on one process."""
    parts = [w.randn(SIZE, of_rank=r) for r in range(w.size)]
    return torch.stack(parts).sum(0)


def main(w: World) -> None:
    x = w.randn(SIZE)
    with meter() as moved:
        exchange(x)
    # Added in another order than on one process: each addition may round.
    w.check("sum", x, lambda: reference(w), slack=1)
    report(
        w,
        given={{"n": SIZE, "b": 8, "c": SIZE, "t": 1}},
        calls=moved.calls["all_reduce"].count,
        payload=moved.calls["all_reduce"].payload,
    )


if __name__ == "__main__":
    with world() as w:
        main(w)
'''


class ScaffoldError(Exception):
    """The technique cannot be begun; one line says why."""


def create(
    atlas: Atlas, axis: str, family: str, name: str
) -> tuple[Technique, list[Path]]:
    """Write the files; the technique as it now loads, and what was written."""
    home = f"{axis}/{family}"
    path = f"{home}/{name}"
    _refuse(atlas, name, path)
    snake = Path("exemplars", path.replace("-", "_") + ".py")
    words = {
        "name": name.replace("-", " ").capitalize(),
        "module": ".".join(snake.with_suffix("").parts),
        "year": datetime.date.today().year,
    }
    data = Path("taxonomy", "techniques", f"{path}.yaml")
    known = _read(atlas.root / data) if name in atlas.techniques else None
    texts = {
        snake.parent.parent / "__init__.py": f'"""{_question(atlas, axis)}"""\n',
        snake.parent / "__init__.py": f'"""{atlas.families[home].summary}"""\n',
        snake: EXEMPLAR.format(**words),
        data: DATA.format(**words) + CLAIMS if known is None else _planned(known),
    }
    files = _write(atlas.root, texts, {} if known is None else {data: known})
    return knowledge.load(atlas.root).techniques[name], files


def _question(atlas: Atlas, axis: str) -> str:
    return next(a.question for a in atlas.axes if a.id == axis)


def _refuse(atlas: Atlas, name: str, path: str) -> None:
    if not IS_KEBAB.holds(name):
        raise ScaffoldError(f'"{name}": expected {IS_KEBAB.expected}')
    there = atlas.techniques.get(name)
    if there is not None and (
        there.path != path or (atlas.root / there.exemplar).is_file()
    ):
        raise ScaffoldError(f"{name} is there already: {there.yaml}")
    if name in atlas.systems:
        raise ScaffoldError(f"{name} is a system's name: {atlas.systems[name].yaml}")


def _planned(text: str) -> str:
    """The data file with its claims as comments, and others that hold at once."""
    block = re.search(r"^claims:\n(?:[ #-].*\n)*", text, re.M)
    if block is None:
        return text + CLAIMS
    planned = [f"# {line}\n" for line in block[0].splitlines()]
    comments = ["# Planned, to be proven one by one:\n", *planned]
    return text[: block.start()] + "".join(comments) + CLAIMS + text[block.end() :]


def _read(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8")
    except OSError as error:
        raise ScaffoldError(f"{path.name}: {error.strerror}") from None


def _write(root: Path, texts: dict[Path, str], before: dict[Path, str]) -> list[Path]:
    """All of them or none; a package's __init__.py only where there is none.

    Of files that were there, `before` has the text, which comes back if one fails.
    """
    new = {
        path: text
        for path, text in texts.items()
        if path.name != "__init__.py" or not (root / path).exists()
    }
    done: list[Path] = []
    try:
        for path, text in new.items():
            (root / path).parent.mkdir(parents=True, exist_ok=True)
            with open(
                root / path, "w" if path in before else "x", encoding="utf-8"
            ) as file:
                done.append(path)
                file.write(text)
    except OSError as error:
        for made in done:
            if made in before:
                (root / made).write_text(before[made], encoding="utf-8")
            else:
                (root / made).unlink(missing_ok=True)
        raise ScaffoldError(f"{path}: {error.strerror}; nothing was written") from None
    return done
