"""What the taxonomy says of surveys and choices stays text on their pages."""

import dataclasses
import html.parser
from pathlib import Path
from typing import Any

import pytest

from atlas.site import choose, surveys
from atlas.taxonomy import Choose, Survey
from atlas.views.context import Context

ROOT = Path(__file__).resolve().parents[2]
HOSTILE = (
    "<script>alert(1)</script> [x](javascript:alert(1)) *a|b* $y$ {: onclick=z} "
    '" onclick="z <!--/raw-->'
)
EXTENSIONS = ["attr_list", "md_in_html", "tables", "toc", "pymdownx.arithmatex"]


class Elements(html.parser.HTMLParser):
    """Every tag with its attributes."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.found: list[tuple[str, dict[str, str | None]]] = []
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.found.append((tag, dict(attrs)))


def harmless(body: str) -> bool:
    """Is the text shown, and nothing of it markup?"""
    markdown = pytest.importorskip("markdown")
    shown = markdown.markdown(body, extensions=EXTENSIONS)
    for tag, attributes in Elements(shown).found:
        assert tag != "script"
        assert "onclick" not in attributes
        assert not (attributes.get("href") or "").startswith("javascript")
    return "alert" in shown


def said(one: Any, *fields: str) -> Any:
    """The same with hostile words in these fields."""
    return dataclasses.replace(one, **dict.fromkeys(fields, HOSTILE))


def hostile_survey(v: Survey) -> Survey:
    return dataclasses.replace(
        said(v, "name", "read", "about"),
        taxonomy=(HOSTILE,),
        notes=(HOSTILE,),
        terms=tuple(said(term, "term", "says") for term in v.terms),
        results=tuple(said(result, "says") for result in v.results),
        comparisons=tuple(said(c, "says", "here") for c in v.comparisons),
    )


def test_no_text_of_a_survey_becomes_markup(ctx: Context) -> None:
    found = {v.id: hostile_survey(v) for v in ctx.atlas.surveys.values()}
    spoilt = Context(ROOT, dataclasses.replace(ctx.atlas, surveys=found))
    assert harmless(surveys.index(spoilt))
    for v in found.values():
        head, body = surveys.page(spoilt, v, HOSTILE)[4:].split("\n---\n", 1)
        assert "<script" not in head
        assert harmless(body)


def hostile_choose(made: Choose) -> Choose:
    questions = tuple(
        dataclasses.replace(
            said(q, "asks", "why"), answers=tuple(said(a, "says") for a in q.answers)
        )
        for q in made.questions
    )
    leaves = tuple(said(leaf, "says", "why") for leaf in made.leaves)
    return Choose(questions, leaves)


def test_no_text_of_a_question_becomes_markup(ctx: Context) -> None:
    assert ctx.atlas.choose is not None
    spoilt = dataclasses.replace(ctx.atlas, choose=hostile_choose(ctx.atlas.choose))
    assert harmless(choose.choices(Context(ROOT, spoilt)))


def test_without_questions_the_page_says_so(ctx: Context) -> None:
    bare = Context(ROOT, dataclasses.replace(ctx.atlas, choose=None))
    assert choose.choices(bare) == "No question is written yet."
    assert choose.PLACES["longest"](bare) == "no"


def test_without_surveys_the_page_says_so(ctx: Context) -> None:
    bare = Context(ROOT, dataclasses.replace(ctx.atlas, surveys={}))
    assert surveys.index(bare) == "No survey is filed yet."
