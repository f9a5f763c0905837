"""Templates of the pages: atlas/site/templates, filled in by the page modules.

Everything that a template prints is escaped, in HTML and in Markdown alike: text
of the data through `md`, which keeps its `code` and *stress*; what is finished
markup (a drawing, a part made by another template) is marked as such with `safe`.
"""

import json
import re
from functools import cache
from pathlib import Path
from typing import Any

from jinja2 import Environment, FileSystemLoader, StrictUndefined
from markupsafe import Markup

from atlas.site import address, text
from atlas.views.compressors import said_rate

FOLDER = Path(__file__).with_name("templates")


@cache
def environment() -> Environment:
    """The templates and their filters; an unknown name is an error."""
    made = Environment(
        loader=FileSystemLoader(FOLDER),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        keep_trailing_newline=True,
        auto_reload=False,
    )
    made.filters |= {
        "md": lambda value: markup(text.md(value)),
        "number": text.number,
        "amount": text.amount,
        "listing": _listing,
        "slug": text.slug,
        "fence": lambda code, head: markup(text.fence(str(code), head)),
        "raw": lambda made: markup(text.raw(str(made))),
        "url": _url,
        "breakable": _breakable,
        "speed": said_rate,
    }
    made.globals |= {
        "link": address.link,
        "assets": lambda here, *names: markup(address.assets(here, *names)),
    }
    return made


def render(template: str, **values: Any) -> str:
    """The template filled in."""
    return str(environment().get_template(template).render(values))


def macro(template: str, name: str, *values: Any) -> str:
    """One macro of a template, called from Python."""
    module: Any = environment().get_template(template).module
    return str(getattr(module, name)(*values))


def markup(finished: str) -> Markup:
    """What is made already, such as a drawing: a template prints it as it is."""
    return Markup(finished)  # noqa: S704 - the one place; its callers escaped


def script_data(value: object) -> str:
    """Data for a script element, which nothing inside can end."""
    data = json.dumps(value, separators=(",", ":"), ensure_ascii=True)
    return data.replace("<", "\\u003c")


def _listing(items: list[Any], last: str = "and") -> Markup:
    """One, two and three; what is not markup is escaped."""
    kept = [str(Markup.escape(item)) for item in items]
    return markup(text.listing(kept, last))


def _url(address: str) -> Markup:
    """An address that cannot end a Markdown link early."""
    plain = address.replace("(", "%28").replace(")", "%29").replace(" ", "%20")
    return markup(plain)


def _breakable(name: str) -> Markup:
    """A dotted name that a narrow page may break after a dot."""
    parts = re.split(r"(?<=\.)(?=\w)", name)
    return markup("<wbr>".join(text.md(part) for part in parts))
