"""The bibliography: each entry's own BibTeX, and its authors in a line."""

from atlas.taxonomy import Paper, bibtex

BIB = "taxonomy/papers.bib"


def entries(text: str) -> dict[str, str]:
    """Key -> the entry's own lines, without comments."""
    lines = [x for x in text.splitlines() if not x.lstrip().startswith("%")]
    bare = "\n".join(lines)
    found, _ = bibtex.parse(bare, BIB)
    starts = [entry.mark.line - 1 for entry in found] + [len(lines)]
    return {
        entry.key: "\n".join(lines[start:end]).strip()
        for entry, start, end in zip(found, starts, starts[1:], strict=False)
    }


def authors(p: Paper, most: int = 3) -> str:
    """The authors, the first ones if there are many."""
    if len(p.authors) <= most:
        return ", ".join(p.authors)
    return f"{p.authors[0]} and {len(p.authors) - 1} others"


def first_authors(p: Paper) -> str:
    """One author, two, or the first and others."""
    if len(p.authors) == 2:
        return " and ".join(p.authors)
    first = p.authors[0] if p.authors else ""
    return first if len(p.authors) == 1 else f"{first} and others"
