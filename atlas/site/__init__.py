"""The site's pages, made from the taxonomy, the records and the exemplars' text.

No MkDocs and no torch here: `render` is a pure function from the files below a
root to pages, `hooks.py` feeds them to MkDocs, `python -m atlas.site OUT` writes
them to a folder.
"""

from atlas.site.pages import fill, nav, render, source_of

__all__ = ["fill", "nav", "render", "source_of"]
