"""The page of bugs, found by symptom."""

from atlas.site.templating import markup, render
from atlas.site.text import front
from atlas.views import bugs
from atlas.views.context import Context

HERE = "bugs.md"


def page(ctx: Context) -> str:
    """Bugs by symptom, then the mutants of all exemplars."""
    about = "Mistakes of distributed training by symptom, each with a program."
    made = render(
        "bugs.md.j2",
        here=HERE,
        front=markup(front("Bugs by symptom", description=about)),
        symptoms=bugs.by_symptom(ctx.atlas),
        mutants=bugs.mutants(ctx.atlas),
        tally=bugs.tally(ctx.atlas),
        noticed=f"{100 * bugs.NOTICED:g}",
    )
    return made.strip() + "\n"
