"""Words of the glossary explained where a page first uses them.

A word becomes a link to its entry whose title is the definition: it works without
script, by keyboard and by touch. Only prose is read: text of paragraphs, list items
and definitions, never headings, code, links, tables, figures or formulas.
"""

import re
from collections.abc import Callable, Iterable, Iterator
from functools import cached_property

from atlas.site.text import attr, slug
from atlas.taxonomy import Word

# Markup in which no word is explained, whole; then any other tag.
_KEPT = (
    "a|abbr|autoref|button|code|figure|h[1-6]|label|math|pre|script|select|style"
    "|summary|svg|table|textarea"
)
_MARKUP = re.compile(
    rf"(<!--.*?-->|<({_KEPT})\b[^>]*>.*?</\2>"
    r'|<(span|div) class="arithmatex">.*?</\3>|<[^>]*>)',
    re.DOTALL,
)
_OPENS = re.compile(r'<(?:p(?: class="lede")?|li|dd)(?: [^>]*)?>')
_CLOSES = ("</p>", "</li>", "</dd>")
_NOT_PROSE = re.compile(r'<p class="(?!lede")')
NOTHING = "(?!)"  # a pattern that nothing matches
_GAP = r"(?:[-\s]|&#45;)"  # Markdown keeps a hyphen of the data as an entity


def anchor(term: str) -> str:
    """The address of a word on the page of the glossary."""
    return slug(term) or "word"


def names(word: Word) -> tuple[str, ...]:
    """The word and its aliases."""
    return (word.term, *word.aliases)


def _exactly(name: str) -> bool:
    """An abbreviation counts only as it is written: AMP, not amp."""
    return sum(c.isupper() for c in name) > 1


def _pattern(name: str) -> str:
    parts = [re.escape(part) for part in re.split(r"[-\s]", name)]
    text = _GAP.join(parts).replace("'", "(?:'|&#39;|’)")
    return text + ("" if name.endswith("s") else "(?:e?s)?")


def _grouped(found: Iterable[str]) -> str:
    """The names as one pattern, longest first, grouped by their first letter."""
    by_letter: dict[str, list[str]] = {}
    for name in sorted(found, key=lambda n: (-len(n), n)):
        by_letter.setdefault(re.escape(name[0]), []).append(_pattern(name[1:]))
    return "|".join(f"{k}(?:{'|'.join(v)})" for k, v in sorted(by_letter.items()))


class Tips:
    """The words of a glossary, ready to be found in pages."""

    def __init__(self, words: Iterable[Word], *, common: bool = False) -> None:
        """`common`: also those words that are too common for a tip."""
        self.words = [w for w in words if common or w.tip]
        self.index = {_key(n): w for w in self.words for n in names(w)}

    @cached_property
    def pattern(self) -> re.Pattern[str]:
        """One expression for all names; abbreviations only in their own case."""
        known = [n for w in self.words for n in names(w)]
        exact = _grouped(n for n in known if _exactly(n))
        loose = _grouped(n.lower() for n in known if not _exactly(n))
        before, after = r"(?<![\w&#/.-])(?<!&#45;)", r"(?![\w/-]|&#45;)"
        return re.compile(
            f"{before}(?:(?:{exact or NOTHING})|(?i:{loose or NOTHING})){after}"
        )

    def find(self, text: str) -> Iterator[tuple[re.Match[str], Word]]:
        """Every place of the text in which a word stands."""
        if not self.words:
            return
        for match in self.pattern.finditer(text):
            word = self.of(match[0])
            if word is not None:
                yield match, word

    def of(self, found: str) -> Word | None:
        """The word that a piece of text is, in the singular or the plural."""
        key = _key(found)
        singular = (key, key.removesuffix("s"), key.removesuffix("es"))
        return next((self.index[k] for k in singular if k in self.index), None)

    def explain(self, html: str, glossary: str) -> str:
        """The page with each word's first place in its prose explained.

        `glossary` is the address of the glossary from this page.
        """
        seen: set[str] = set()
        out: list[str] = []
        depth, at = 0, 0
        skip = False
        for match in _MARKUP.finditer(html):
            text = html[at : match.start()]
            prose = depth > 0 and not skip and text.strip()
            out.append(self._explained(text, glossary, seen) if prose else text)
            tag = match[0]
            out.append(tag)
            at = match.end()
            if _NOT_PROSE.match(tag):
                skip = True
            elif tag == "</p>" and skip:
                skip = False
            elif _OPENS.fullmatch(tag):
                depth += 1
            elif tag in _CLOSES:
                depth = max(0, depth - 1)
        return "".join([*out, html[at:]])

    def linked(self, text: str, word: Word) -> str:
        """A definition in which other words lead to their own, on the same page."""
        return self._marked(text, {word.term}, lambda w: f'href="#{anchor(w.term)}"')

    def _explained(self, text: str, glossary: str, seen: set[str]) -> str:
        return self._marked(
            text,
            seen,
            lambda w: (
                f'class="term" href="{glossary}#{anchor(w.term)}" '
                f'title="{attr(w.says)}"'
            ),
        )

    def _marked(
        self, text: str, seen: set[str], attributes: Callable[[Word], str]
    ) -> str:
        """The text with each word's first place made a link."""
        out: list[str] = []
        at = 0
        for match, word in self.find(text):
            if word.term in seen:
                continue
            seen.add(word.term)
            out.append(text[at : match.start()])
            out.append(f"<a {attributes(word)}>{match[0]}</a>")
            at = match.end()
        return "".join([*out, text[at:]])


def _key(name: str) -> str:
    plain = re.sub(_GAP, " ", name).replace("&#39;", "'").replace("’", "'")
    return plain if _exactly(plain) else plain.casefold()
