"""Choose: a few questions that lead to a technique, one at a time or all at once."""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass

from markupsafe import Markup

from atlas.site import address
from atlas.site.overview import proven
from atlas.site.templating import markup, render
from atlas.site.text import listing, slug
from atlas.taxonomy import Answer, Choose, Leaf, Question, Technique
from atlas.views.context import Context

HERE = "choose.md"
NOTHING = Choose((), ())


def choices(ctx: Context) -> str:
    """The questions, the leaves and the tree; a script shows one at a time."""
    made = ctx.atlas.choose or NOTHING
    return render(
        "choose.html.j2",
        here=HERE,
        questions=[_asked(made, q) for q in made.questions],
        leaves=[_advice(ctx, leaf) for leaf in made.leaves],
        tree=_branch(made, made.questions[0], "") if made.questions else None,
    )


def spelled(n: int) -> str:
    """A small number as a word."""
    words = ("no", "one", "two", "three", "four", "five", "six", "seven", "eight")
    return words[n] if n < len(words) else str(n)


def longest(made: Choose) -> int:
    """The most questions that anybody has to answer."""
    asked: dict[str, int] = {}
    for q in reversed(made.questions):  # answers lead only to later ones
        asked[q.id] = 1 + max(asked.get(a.to, 0) for a in q.answers)
    return asked[made.questions[0].id] if made.questions else 0


@dataclass(frozen=True)
class Asked:
    """A question, and its answers with the id of what each leads to on the page."""

    question: Question
    answers: list[tuple[Answer, str]]


def _asked(made: Choose, q: Question) -> Asked:
    return Asked(q, [(a, _target(made, a.to)) for a in q.answers])


def _target(made: Choose, to: str) -> str:
    kind = "question" if any(q.id == to for q in made.questions) else "leaf"
    return f"{kind}-{to}"


@dataclass(frozen=True)
class Cited:
    """A source: where it is, what it is called, and a paper's title."""

    to: str
    name: str
    title: str = ""


@dataclass(frozen=True)
class Advice:
    """A leaf, its techniques with the rungs they climbed, and its sources."""

    leaf: Leaf
    techniques: list[tuple[Technique, Markup]]
    sources: list[Cited]


def _advice(ctx: Context, leaf: Leaf) -> Advice:
    named = [ctx.atlas.techniques[ident] for ident in leaf.techniques]
    techniques = [(t, markup(proven(ctx, t))) for t in named]
    return Advice(leaf, techniques, list(_sources(ctx, leaf)))


def _sources(ctx: Context, leaf: Leaf) -> Iterator[Cited]:
    for source in leaf.sources:
        paper = ctx.atlas.papers.get(source)
        if paper is None:
            yield Cited(source, source)
            continue
        names = [author.split()[-1] for author in paper.authors]
        who = f"{names[0]} and others" if len(names) > 2 else listing(names)
        to = address.link(HERE, f"papers.md#{slug(source)}")
        yield Cited(to, f"{who} ({paper.year})", paper.title)


@dataclass(frozen=True)
class Way:
    """An answer in the tree: below it stands a question, or it ends in a leaf."""

    answer: Answer
    path: str
    below: "Branch | None" = None
    leaf: Leaf | None = None


@dataclass(frozen=True)
class Branch:
    """A question in the tree, and the answers that lead to it, such as `a.b`."""

    question: Question
    path: str
    ways: list[Way]


def _branch(made: Choose, q: Question, path: str) -> Branch:
    return Branch(q, path, [_way(made, a, f"{path}.{a.id}") for a in q.answers])


def _way(made: Choose, answer: Answer, path: str) -> Way:
    path = path.lstrip(".")
    questions = {q.id: q for q in made.questions}
    if answer.to in questions:
        return Way(answer, path, below=_branch(made, questions[answer.to], path))
    leaf = next(leaf for leaf in made.leaves if leaf.id == answer.to)
    return Way(answer, path, leaf=leaf)


def _number_of_questions(ctx: Context) -> str:
    made = ctx.atlas.choose or NOTHING
    return spelled(len(made.questions)).capitalize()


# What docs/choose.md may mark, as `{{ name }}`.
PLACES: Mapping[str, Callable[[Context], object]] = {
    "assets": lambda ctx: address.assets(HERE, "views.css", "choose.js"),
    "questions": _number_of_questions,
    "longest": lambda ctx: spelled(longest(ctx.atlas.choose or NOTHING)),
    "choices": choices,
}
