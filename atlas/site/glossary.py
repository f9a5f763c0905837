"""The glossary as a page: each word, what it means, where it leads, where it is met."""

from collections import defaultdict
from itertools import groupby

from atlas.knowledge import Word
from atlas.site import address
from atlas.site.context import Context
from atlas.site.text import attr, front, listing, md, slug
from atlas.site.tips import Tips, anchor

HERE = "glossary.md"
SHOWN = 4  # of the pages that use a word

Met = dict[str, list[tuple[str, str]]]  # word -> (address, name) of pages


def page(ctx: Context) -> str:
    """All words by letter, with the letters on top."""
    words = ctx.atlas.glossary
    tips, met = Tips(words, common=True), _met(ctx)
    letters = [(k, list(v)) for k, v in groupby(words, key=_letter)]
    parts = [
        front("Glossary", description="The words of the field, and those of the atlas.")
        + address.assets(HERE, "terms.css"),
        "# Glossary",
        f"{len(words)} words of the field and of this atlas, in our own definitions. "
        "On every other page a word is explained where it first stands: point at it, "
        "reach it by keyboard, or follow it here.",
        _letters([letter for letter, _ in letters]),
    ]
    for letter, some in letters:
        parts.append(f"## {letter} {{ #letter-{slug(letter)} }}")
        parts.append("\n".join(_word(ctx, w, tips, met) for w in some))
    if not words:
        parts.append("No word is explained yet.")
    return "\n\n".join(parts) + "\n"


def _letter(word: Word) -> str:
    first = word.term[0].upper()
    return first if first.isalpha() else "0-9"


def _letters(found: list[str]) -> str:
    links = "".join(f'<a href="#letter-{slug(k)}">{attr(k)}</a>' for k in found)
    return f'<nav class="letters" aria-label="Letters">{links}</nav>'


def _word(ctx: Context, word: Word, tips: Tips, met: Met) -> str:
    says = tips.linked(md(word.says), word)
    rows = []
    if word.aliases:
        rows.append(f"<div>Also: {listing(md(a) for a in word.aliases)}.</div>")
    leads = [entry(ctx, HERE, name) for name in word.see]
    leads += [_paper(ctx, key) for key in word.papers]
    if leads:
        rows.append(f"<div>See {listing(leads)}.</div>")
    led = {address.link(HERE, home(ctx, name)[0]) for name in word.see}
    rows += _used(met.get(word.term, []), led)
    return (
        f'<section class="word"><h3 id="{anchor(word.term)}">{md(word.term)}</h3>'
        f"<p>{says}</p>{''.join(rows)}</section>"
    )


def _paper(ctx: Context, key: str) -> str:
    p = ctx.atlas.papers[key]
    to = address.link(HERE, f"papers.md#{slug(key)}")
    return f'<a href="{to}">{md(p.authors[0].split()[-1])} {p.year}</a>'


def _used(pages: list[tuple[str, str]], led: set[str]) -> list[str]:
    """Pages that use the word, but for those it leads to anyway."""
    others = [(to, name) for to, name in pages if to not in led]
    if not others:
        return []
    shown = [f'<a href="{to}">{md(name)}</a>' for to, name in others[:SHOWN]]
    more = len(others) - len(shown)
    if more:
        shown.append(f"{more} more")
    return [f"<div>Met on {listing(shown)}.</div>"]


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
    return f'<a href="{address.link(here, to)}">{md(text)}</a>'


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
        to = address.link(HERE, uri)
        text = " \n ".join(x for x in said if x)
        for term in dict.fromkeys(w.term for _, w in tips.find(text)):
            out[term].append((to, name))
    return out
