"""The glossary as a page: each word, what it means, where it leads, where it is met."""

from collections import defaultdict
from dataclasses import dataclass
from itertools import groupby

from markupsafe import Markup

from atlas.site import address
from atlas.site.templating import macro, markup, render
from atlas.site.text import front, md, slug
from atlas.site.tips import Tips, anchor
from atlas.taxonomy import Word
from atlas.views.context import Context

HERE = "glossary.md"
SHOWN = 4  # of the pages that use a word

Met = dict[str, list[tuple[str, str]]]  # word -> (file, name) of pages


@dataclass(frozen=True)
class Entry:
    """A word as the page has it; what is marked up is finished."""

    term: str
    anchor: str
    says: Markup
    aliases: list[Markup]
    leads: list[Markup]
    used: list[Markup]


def page(ctx: Context) -> str:
    """All words by letter, with the letters on top."""
    words = ctx.atlas.glossary
    tips, met = Tips(words, common=True), _met(ctx)
    letters = [
        (letter, [_entry(ctx, w, tips, met) for w in some])
        for letter, some in groupby(words, key=_letter)
    ]
    about = "The words of the field, and those of the atlas."
    made = render(
        "glossary.md.j2",
        here=HERE,
        front=markup(front("Glossary", description=about)),
        count=len(words),
        letters=letters,
    )
    return made.strip() + "\n"


def _letter(word: Word) -> str:
    first = word.term[0].upper()
    return first if first.isalpha() else "0-9"


def _entry(ctx: Context, word: Word, tips: Tips, met: Met) -> Entry:
    leads = [markup(entry(ctx, HERE, name)) for name in word.see]
    leads += [markup(_paper(ctx, key)) for key in word.papers]
    led = {address.link(HERE, home(ctx, name)[0]) for name in word.see}
    return Entry(
        word.term,
        anchor(word.term),
        markup(tips.linked(md(word.says), word)),
        [markup(md(alias)) for alias in word.aliases],
        leads,
        _used(met.get(word.term, []), led),
    )


def _paper(ctx: Context, key: str) -> str:
    p = ctx.atlas.papers[key]
    name = f"{p.authors[0].split()[-1]} {p.year}"
    return macro("marks.html.j2", "a", HERE, f"papers.md#{slug(key)}", name)


def _used(pages: list[tuple[str, str]], led: set[str]) -> list[Markup]:
    """Pages that use the word, but for those it leads to anyway."""
    others = [(uri, name) for uri, name in pages if address.link(HERE, uri) not in led]
    shown = [
        markup(macro("marks.html.j2", "a", HERE, uri, name))
        for uri, name in others[:SHOWN]
    ]
    more = len(others) - len(shown)
    return [*shown, markup(f"{more} more")] if more else shown


def home(ctx: Context, name: str) -> tuple[str, str]:
    """The page and the name of a technique, a system or a family."""
    atlas = ctx.atlas
    if name in atlas.techniques:
        return f"{atlas.techniques[name].path}.md", atlas.techniques[name].name
    if name in atlas.systems:
        return f"systems/{name}.md", atlas.systems[name].name
    return f"{name}/index.md", atlas.families[name].name


def entry(ctx: Context, here: str, name: str) -> str:
    """A link to a technique, a system or a family."""
    to, text = home(ctx, name)
    return macro("marks.html.j2", "a", here, to, text)


def _met(ctx: Context) -> Met:
    """Which techniques and systems use a word in the text of their data."""
    tips = Tips(ctx.atlas.glossary)
    out: Met = defaultdict(list)
    texts: list[tuple[str, str, tuple[str | None, ...]]] = []
    for t in sorted(ctx.atlas.techniques.values(), key=lambda t: t.path):
        more = (t.use_when, t.avoid_when, t.pros, t.cons)
        texts.append((f"{t.path}.md", t.name, (t.summary, *more)))
    for s in ctx.atlas.systems.values():
        texts.append((f"systems/{s.id}.md", s.name, (s.summary,)))
    for uri, name, said in texts:
        text = " \n ".join(x for x in said if x)
        for term in dict.fromkeys(w.term for _, w in tips.find(text)):
            out[term].append((uri, name))
    return out
