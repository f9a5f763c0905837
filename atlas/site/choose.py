"""Choose: a few questions that lead to a technique, one at a time or all at once."""

from collections.abc import Iterator

from atlas.site import address
from atlas.site.overview import proven
from atlas.site.text import attr, front, listing, md, raw
from atlas.taxonomy import Choose, Leaf, Question
from atlas.views.context import Context

HERE = "choose.md"


def page(ctx: Context) -> str:
    """The whole view; without a script, every question and every leaf in turn."""
    made = ctx.atlas.choose
    parts = [
        front(
            "Choose",
            description="A few questions about your model and machines.",
            hide=["navigation", "toc"],
        ),
        "# Choose a technique",
    ]
    if made is None or not made.questions:
        return "\n\n".join([*parts, "No question is written yet."]) + "\n"
    parts += [
        f'<p class="lede">{spelled(len(made.questions)).capitalize()} questions about '
        f"your model and your machines, at most {spelled(longest(made))} of them on "
        "any way. Each way ends in a technique, the reason, its source, and a plan to "
        "work out.</p>",
        address.assets(HERE, "views.css", "choose.js"),
        '<div class="choose" id="choose">',
        '<nav class="trail" aria-label="Your answers" hidden></nav>'
        + "".join(_question(made, q) for q in made.questions)
        + "".join(_leaf(ctx, leaf) for leaf in made.leaves),
        "</div>",
        raw(
            '<details class="ranks tree" open><summary>The whole tree</summary>'
            f"{_tree(made, made.questions[0], '')}</details>"
        ),
        "The questions follow the conclusions of "
        "[Nichols and others](papers.md#nichols2021survey) and the limits in "
        "[ParaDL](papers.md#kahira2021oracle); the words and the order are ours.",
    ]
    return "\n\n".join(parts) + "\n"


def spelled(n: int) -> str:
    """A small number as a word."""
    words = ("no", "one", "two", "three", "four", "five", "six", "seven", "eight")
    return words[n] if n < len(words) else str(n)


def longest(made: Choose) -> int:
    """The most questions that anybody has to answer."""
    asked: dict[str, int] = {}
    for q in reversed(made.questions):  # answers lead only to later ones
        asked[q.id] = 1 + max(asked.get(a.to, 0) for a in q.answers)
    return asked[made.questions[0].id]


def _target(made: Choose, to: str) -> str:
    """The id on the page of a question or a leaf."""
    kind = "question" if any(q.id == to for q in made.questions) else "leaf"
    return f"{kind}-{to}"


def _question(made: Choose, q: Question) -> str:
    answers = "".join(
        f'<li><a class="answer" href="#{_target(made, a.to)}" data-answer="{a.id}" '
        f'data-to="{_target(made, a.to)}">{md(a.says)}</a></li>'
        for a in q.answers
    )
    return (
        f'<section class="ask" id="question-{q.id}" tabindex="-1"><h2>{md(q.asks)}</h2>'
        f"<ul>{answers}</ul><p>{md(q.why)}</p></section>"
    )


def _leaf(ctx: Context, leaf: Leaf) -> str:
    techniques = "".join(_technique(ctx, i) for i in leaf.techniques)
    return (
        f'<section class="ask leaf" id="leaf-{leaf.id}" tabindex="-1">'
        f"<h2>{md(leaf.says)}</h2><p>{md(leaf.why)}</p>"
        f"<h3>Techniques</h3><ul>{techniques}</ul>"
        "<h3>A plan to try</h3><pre><code>"
        f"{attr(leaf.plan.command)}</code></pre>"
        f"<h3>Sources</h3><ul>{''.join(_sources(ctx, leaf))}</ul></section>"
    )


def _technique(ctx: Context, ident: str) -> str:
    t = ctx.atlas.techniques[ident]
    to = address.link(HERE, f"{t.path}.md")
    return f'<li><a href="{to}">{md(t.name)}</a>: {md(t.summary)} {proven(ctx, t)}</li>'


def _sources(ctx: Context, leaf: Leaf) -> Iterator[str]:
    for source in leaf.sources:
        paper = ctx.atlas.papers.get(source)
        if paper is None:
            yield f'<li><a href="{attr(source)}">{attr(source)}</a></li>'
            continue
        to = address.link(HERE, f"papers.md#{source}")
        who = listing(a.split()[-1] for a in paper.authors[:2])
        more = " and others" if len(paper.authors) > 2 else ""
        who = paper.authors[0].split()[-1] if more else who
        yield (
            f'<li><a href="{to}">{md(who)}{more} ({paper.year})</a>: '
            f"{md(paper.title)}</li>"
        )


def _tree(made: Choose, q: Question, way: str) -> str:
    """The questions below one, nested, with the way that leads to each."""
    questions = {q.id: q for q in made.questions}
    leaves = {leaf.id: leaf for leaf in made.leaves}
    rows = []
    for a in q.answers:
        path = f"{way}.{a.id}".lstrip(".")
        link = f'href="#{_target(made, a.to)}" data-way="{path}"'
        if a.to in questions:
            inside = _tree(made, questions[a.to], path)
        else:
            inside = f" → <a {link}>{md(leaves[a.to].says)}</a>"
        rows.append(f"<li>{md(a.says)}{inside}</li>")
    here = f'<a href="#question-{q.id}" data-way="{way}">{md(q.asks)}</a>'
    return f"<p>{here}</p><ul>{''.join(rows)}</ul>"
