"""What MkDocs does page by page, done ahead of it on the other cores."""

import copy
import re
from collections.abc import Mapping
from concurrent.futures import Future
from dataclasses import dataclass
from functools import partial
from typing import Any

from material.plugins.search.plugin import (  # type: ignore[import-untyped]
    SearchIndex,
)
from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files
from mkdocs.structure.pages import Page
from mkdocs.structure.toc import TableOfContents

from atlas.site import crew
from atlas.site.crew import Crew, Jobs

# mkdocstrings fills these places, and remembers them: not for another process.
REMEMBERED = re.compile(r"^::: ", re.M)
# Only here may tags go without a trace: elsewhere the search joins blanks, tag by tag.
PROGRAM = re.compile(r"<pre>.*?</pre>", re.S)
COLOUR = re.compile(r'<span(?: class="[^"]*")?>|</span>')


@dataclass(frozen=True)
class Converted:
    """What a page's Markdown came to; other files by address, not by object."""

    title: str | None
    content: str | None
    toc: TableOfContents
    anchors: set[str] | None
    links: dict[str, dict[str, str]] | None

    def fill(self, page: Page, _: MkDocsConfig, files: Files) -> None:
        """Give all that to the page, as its own `render` would have done."""
        page.title, page.content, page.toc = self.title, self.content, self.toc
        page.present_anchor_ids = self.anchors
        if self.links is not None:
            page.links_to_anchors = {
                files.src_uris[uri]: anchors for uri, anchors in self.links.items()
            }


def convert(file: File, config: MkDocsConfig, files: Files) -> Converted:
    """Everything that MkDocs does up to a page's HTML."""
    page = file.page or Page(None, file, config)
    page.read_source(config)
    page.markdown = config.plugins.on_page_markdown(
        page.markdown or "", page=page, config=config, files=files
    )
    page.render(config, files)
    links = None
    if page.links_to_anchors is not None:
        links = {to.src_uri: of for to, of in page.links_to_anchors.items()}
    return Converted(page.title, page.content, page.toc, page.present_anchor_ids, links)


class Conversion:
    """All pages' Markdown, converted while MkDocs gets to them."""

    def __init__(self, files: Files, config: MkDocsConfig) -> None:
        jobs: Jobs[Converted] = {}
        here: list[File] = []
        for file in files.documentation_pages():
            if REMEMBERED.search(file.content_string):
                here.append(file)
            else:
                jobs[file.src_uri] = partial(convert, file, config, files)
        alone = not crew.helpers()
        self._crew = Crew(jobs)
        self._here: dict[str, Future[Converted]] = {}
        # These come last: left till then, the helpers would have nothing to do.
        for file in [] if alone else here:
            made = self._here[file.src_uri] = _attempt(file, config, files)
            if made.exception() is not None:
                break  # as the build will, when it gets there

    def prepare(self, page: Page) -> None:
        """Let the page take what is ready, or raise what came of it."""
        uri = page.file.src_uri
        here = self._here.get(uri)
        done = self._crew.take(uri) if here is None else here.result()
        if done is not None:
            page.render = partial(done.fill, page)  # type: ignore[method-assign]

    def close(self) -> None:
        """Let the helpers go."""
        self._crew.close()


def _attempt(file: File, config: MkDocsConfig, files: Files) -> Future[Converted]:
    """Convert it now, and keep an error until MkDocs gets to the page."""
    made: Future[Converted] = Future()
    try:
        made.set_result(convert(file, config, files))
    except Exception as error:
        made.set_exception(error)
    return made


class Index(SearchIndex):  # type: ignore[misc]  # the theme has no types
    """The theme's search index, its entries made while the pages are written."""

    def __init__(self, files: Files, config: Mapping[str, Any]) -> None:
        super().__init__(**config)
        pages = [file.page for file in files.documentation_pages() if file.page]
        self._crew = Crew({p.file.src_uri: partial(self.made, p) for p in pages})

    def made(self, page: Page) -> list[Any]:
        """A page's entries, without the colours of programs: they are half its tags."""
        plain = copy.copy(page)
        plain.content = PROGRAM.sub(lambda m: COLOUR.sub("", m[0]), page.content or "")
        index = SearchIndex(**self.config)
        index.add_entry_from_context(plain)
        entries: list[Any] = index.entries
        return entries

    def add_entry_from_context(self, page: Page) -> None:
        """The entries of the next page."""
        made = self._crew.take(page.file.src_uri)
        self.entries += self.made(page) if made is None else made

    def close(self) -> None:
        """Let the helpers go."""
        self._crew.close()
