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

from atlas import taxonomy
from atlas.taxonomy import Atlas, Technique
from atlas.taxonomy.kinds import IS_KEBAB

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
  - {{id: sum, says: the sum that one process computes, kind: close}}
  - id: calls
    says: all-reduce calls
    kind: exact
    unit: calls
    of: calls
    formula: {snake}_calls
  - id: payload
    says: bytes handed to all-reduce
    kind: exact
    unit: bytes
    of: traffic
    formula: {snake}_payload
mutants:
  - id: largest-not-sum
    says: The largest number is taken instead of the sum.
    find: dist.all_reduce(x)
    replace: dist.all_reduce(x, dist.ReduceOp.MAX)
    fails: [sum]
  - id: summed-twice
    says: The exchange happens twice, and the second result is thrown away.
    find: "    dist.all_reduce(x)\\n"
    replace: "    dist.all_reduce(x)\\n    dist.all_reduce(x.clone())\\n"
    fails: [calls, payload]
"""

FORMULAS = '''\

@formula
def {snake}_calls() -> int:
    """All-reduces of one exchange: say here why.

    Source: say here which paper, and which section of it.
    """
    return 1


@formula
def {snake}_payload(elements: Count, itemsize: Positive) -> int:
    """Bytes that a rank hands to all-reduce: say here why.

    Source: say here which paper, and which section of it.
    """
    return elements * itemsize
'''
RANGES = "from atlas.formulas.ranges import "

EXEMPLAR = '''\
"""{name}: say here in one sentence what it shows.

    torchrun --standalone --nproc-per-node 4 -m {module}

Say here how it works: the idea first, then the equation or the drawing, and
the one insight.

Source: say here which paper, and which section of it.
"""

import torch
import torch.distributed as dist
from torch import Tensor

from exemplars.runtime import World, meter, report, world


def exchange(x: Tensor) -> None:
    """Sum x over all ranks, in place."""
    #: Say here why it is done like this.
    #:
    #: Comments with a colon, like this one, stand beside the code on the
    #: page. An exemplar has six to ten, where a student would stop.
    dist.all_reduce(x)


def reference(w: World, elements: int) -> Tensor:
    """The same sum on one process."""
    #: Say here how the truth is computed without the mechanism.
    parts = [w.randn(elements, seed=r) for r in range(w.size)]
    return torch.stack(parts).sum(0)


def main(w: World, *, elements: int = 100_003) -> None:
    #: Say here what the sizes are: 100,003 is a prime, so nothing divides it.
    x = w.randn(elements, seed=w.rank)
    #: Say here what is metered.
    with meter() as moved:
        exchange(x)
    #: Say here why it may differ: each addition, in another order, may round.
    w.check("sum", x, lambda: reference(w, elements), slack=1)
    #: Say here what is reported.
    report(
        w,
        given={{"itemsize": x.element_size()}},
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
        "snake": snake.stem,
        "module": ".".join(snake.with_suffix("").parts),
        "year": datetime.date.today().year,
    }
    data = Path("taxonomy", "techniques", f"{path}.yaml")
    claims = CLAIMS.format(**words)
    formulas = Path("atlas", "formulas", f"{home.replace('-', '_')}.py")
    there = [data] if name in atlas.techniques else []
    there += [formulas] if (atlas.root / formulas).is_file() else []
    before = {file: _read(atlas.root / file) for file in there}
    texts = {
        snake.parent.parent / "__init__.py": f'"""{_question(atlas, axis)}"""\n',
        snake.parent / "__init__.py": f'"""{atlas.families[home].summary}"""\n',
        formulas.parent / "__init__.py": f'"""Formulas of the axis {axis}."""\n',
        snake: EXEMPLAR.format(**words),
        formulas: _with_formulas(
            before.get(formulas, f'"""Formulas of {home}."""\n\n{RANGES}formula\n\n'),
            FORMULAS.format(**words),
        ),
        data: _planned(before[data], claims)
        if data in before
        else DATA.format(**words) + claims,
    }
    files = _write(atlas.root, texts, before)
    return taxonomy.load(atlas.root).techniques[name], files


def _with_formulas(text: str, new: str) -> str:
    """A family's file with more formulas, and the ranges that they need."""
    line = re.search(rf"^{RANGES}(\(.*?\)|[^(\n]*)", text, re.M | re.S)
    if line is None:
        raise ScaffoldError(f"no line begins with {RANGES!r} in the family's formulas")
    names = {*re.findall(r"\w+", line[1]), "Count", "Positive", "formula"}
    imported = f"{RANGES}{', '.join(sorted(names))}"
    return f"{text[: line.start()]}{imported}{text[line.end() :]}{new}"


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


def _planned(text: str, claims: str) -> str:
    """The data file with its claims as comments, and others that hold at once."""
    block = re.search(r"^claims:\n(?:[ #-].*\n)*", text, re.M)
    if block is None:
        return text + claims
    planned = [f"# {line}\n" for line in block[0].splitlines()]
    comments = ["# Planned, to be proven one by one:\n", *planned]
    return text[: block.start()] + "".join(comments) + claims + text[block.end() :]


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
