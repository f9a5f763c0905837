"""What a reader may call a thing, and what in the atlas is called so."""

import difflib
import functools
import re
import shlex
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Literal

from atlas import taxonomy
from atlas.commands import common
from atlas.commands.common import Wrong
from atlas.taxonomy import Atlas, Technique

Kind = Literal["technique", "system", "survey", "paper", "term"]
KINDS: tuple[Kind, ...] = ("technique", "system", "survey", "paper", "term")


@dataclass(frozen=True)
class Thing:
    """Something that `atlas show` can show."""

    kind: Kind
    id: str
    name: str
    summary: str
    called: tuple[str, ...] = ()

    @property
    def command(self) -> str:
        """What shows it and nothing else."""
        kind = " --kind term" if self.kind == "term" else ""
        return f"atlas show {shell(self.id)}{kind}"

    def plain(self) -> dict[str, str]:
        """As JSON."""
        short = {"kind": self.kind, "id": self.id, "name": self.name}
        return {**short, "summary": self.summary, "command": self.command}


def shell(words: str) -> str:
    """Words as a shell takes them; plain ones need no quotes."""
    return words if re.fullmatch(r"[\w ./+-]+", words) else shlex.quote(words)


@dataclass(frozen=True)
class Match:
    """What a word was found to mean, and what else is called so."""

    best: tuple[Thing, ...]
    others: tuple[Thing, ...]
    exact: bool


def things(atlas: Atlas) -> Iterator[Thing]:
    """Everything that has a name."""
    for t in atlas.techniques.values():
        yield Thing("technique", t.id, t.name, t.summary, t.also_called)
    for s in atlas.systems.values():
        yield Thing("system", s.id, s.name, s.summary, s.also_called)
    for v in atlas.surveys.values():
        yield Thing("survey", v.id, v.name, v.about or "", ())
    for p in atlas.papers.values():
        yield Thing("paper", p.key, p.title, f"{p.authors[0]}, {p.year}", ())
    for w in atlas.glossary:
        yield Thing("term", w.term, w.term, w.says, w.aliases)


@functools.cache
def folded(name: str) -> str:
    """A name without case, and with all that stands between words alike."""
    return re.sub(r"[\s_-]+", " ", name).strip().casefold()


def find(atlas: Atlas, word: str, kinds: tuple[Kind, ...] = KINDS) -> Match:
    """What the word means: an id before a name or an alias, a thing before a term."""
    same = folded(word)
    called = [
        one
        for one in things(atlas)
        if one.kind in kinds
        and same in {folded(name) for name in (one.id, one.name, *one.called)}
    ]
    real = [one for one in called if one.kind != "term"]
    exact = [one for one in real if one.id == word.strip().casefold()]
    best = exact or real or called
    others = [one for one in called if one not in best]
    return Match(tuple(best), tuple(others), bool(exact))


def only(atlas: Atlas, word: str, kinds: tuple[Kind, ...]) -> Thing:
    """The one thing of these kinds that is called so."""
    match = find(atlas, word, kinds)
    if len(match.best) > 1:
        ids = " or ".join(f"{found.id} ({found.kind})" for found in match.best)
        raise Wrong(f'"{word}" is ambiguous: {ids}')
    if not match.best:
        raise missing(atlas, word, kinds)
    (found,) = match.best
    if not match.exact and found.id != word:
        note(f'"{word}" is {found.id}')
    return found


def technique(atlas: Atlas, word: str) -> Technique:
    """The technique that is called so."""
    return atlas.techniques[only(atlas, word, ("technique",)).id]


def missing(atlas: Atlas, word: str, kinds: tuple[Kind, ...]) -> Wrong:
    """One line: nothing is called so, and what was probably meant."""
    for axis in atlas.axes:
        if word == axis.id:
            return Wrong(f"{word} is an axis: atlas list --axis {word}")
        if word in {family.id for family in axis.families}:
            return Wrong(f"{word} is a family: atlas list --family {word}")
    kind = " or ".join(kinds) if len(kinds) < len(KINDS) else "technique or system"
    known = [one for one in things(atlas) if one.kind in kinds]
    spelled = {folded(n): n for one in known for n in (*one.called, one.name, one.id)}
    close = difflib.get_close_matches(folded(word)[:80], spelled, cutoff=0.8)
    if close:
        hint = f"did you mean {' or '.join(spelled[name] for name in close)}?"
        return Wrong(f'there is no {kind} "{word}": {hint}')
    ids = [one.id for one in known if one.kind in ("technique", "system")]
    otherwise = "atlas list shows the techniques"
    if kinds == ("system",):
        otherwise = "atlas list --systems shows the systems"
    return common.unknown(kind, word, ids, otherwise)


def note(line: str) -> None:
    """A remark that is not part of the answer."""
    import typer

    typer.secho(line, err=True, fg=typer.colors.BRIGHT_BLACK)


# Completion: reads names of files and heads of lines, and parses none

_HEADS = {"papers.bib": r"(?m)^@\w+\{(\w+),", "glossary.yaml": r"(?m)^  - term: (\S+)$"}


def complete(incomplete: str) -> list[str]:
    """Techniques, systems, surveys, papers and words that begin like this."""
    found = common.complete_any(incomplete)
    try:
        folder = taxonomy.find_root() / "taxonomy"
    except taxonomy.TaxonomyError:
        return found
    more = [path.stem for path in sorted(folder.glob("surveys/*.yaml"))]
    for file, head in _HEADS.items():
        if (folder / file).is_file():
            more += re.findall(head, (folder / file).read_text(encoding="utf-8"))
    return list(dict.fromkeys([*found, *(n for n in more if n.startswith(incomplete))]))
