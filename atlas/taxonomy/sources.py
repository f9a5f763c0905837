"""What may bear witness: primary links to a statement, papers to a year."""

from collections.abc import Iterable, Iterator, Mapping
from urllib.parse import urlsplit

from atlas.taxonomy.kinds import Paper, System, Technique

#: Hosts that tell what others wrote: notes, news, summaries, mirrors, indexes.
SECONDARY = (
    "9235.net",
    "alphaxiv.org",
    "anandj.in",
    "besthub.dev",
    "csdn.net",
    "deepai.org",
    "docslib.org",
    "emergentmind.com",
    "gitbook.io",
    "kshiteej.in",
    "medium.com",
    "paperswithcode.com",
    "patents.google.com",
    "researchgate.net",
    "scite.ai",
    "semanticscholar.org",
    "shamra-academia.com",
    "stackoverflow.com",
    "syncedreview.com",
    "themoonlight.io",
    "towardsdatascience.com",
    "wikipedia.org",
    "zhihu.com",
)


def secondary(source: str) -> str | None:
    """The host of a link that is second-hand; None for a paper or a primary link."""
    host = urlsplit(source).hostname or ""
    named = any(host == known or host.endswith("." + known) for known in SECONDARY)
    return host if named else None


def appearances(
    technique: Technique, systems: Iterable[System], papers: Mapping[str, Paper]
) -> Iterator[tuple[int, str]]:
    """(year, what), for all that shows the technique in deep learning.

    A system that is still developed may have learned it later than it was made: it
    bears witness by the paper that says so, one that is finished by its own year.
    """
    for key in technique.papers:
        if key in papers:  # else the loader has said so
            yield papers[key].first_year, key
    for system in systems:
        for use in system.uses:
            if use.technique != technique.id or not use.verified:
                continue
            if system.status == "research":
                yield system.year, system.id
            if use.source is not None and use.source in papers:
                yield papers[use.source].first_year, use.source
