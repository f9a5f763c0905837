"""MkDocs meets the generated pages here."""

import gc
import logging
import os
import re
import sys
from pathlib import Path
from typing import Any

from mkdocs.plugins import event_priority
from mkdocs.structure.files import File

LOG = logging.getLogger("mkdocs.hooks.atlas")
WATCHED = ("taxonomy", "exemplars", "measurements", "atlas", "notebooks")
GLOSSARY = "glossary.md"
# What a page loads only if it has a formula, a replay or a choice of mutants, by what
# such a page contains. KaTeX alone is three tenths of a page's weight.
NEEDED = {
    "arithmatex": re.compile(
        r"<link[^>]*vendor/katex/[^>]*>|<script[^>]*vendor/katex/[^>]*></script>"
    ),
    'class="replay"': re.compile(r"<script[^>]*/replay\.js[^>]*></script>"),
    'class="choices': re.compile(r"<script[^>]*/choices\.js[^>]*></script>"),
}
# The theme's dialog, which it leaves nameless for a screen reader.
SEARCH = '<div class="md-search" data-md-component="search" role="dialog"'
ASIDE = re.compile(r"<!--set aside (\d+)-->")
_now: dict[str, Any] = {}


def on_startup(command: str, dirty: bool) -> None:
    """A build ends before its garbage matters: 20 MB, a tenth of the time."""
    if command == "build":
        gc.disable()


@event_priority(100)  # before the offline plugin reads its own setting
def on_config(config: Any) -> Any:
    """Read everything anew and write the table of contents."""
    if os.environ.get("OFFLINE", "0").lower() not in ("", "0", "false", "no"):
        config.plugins["material/offline"].config.enabled = True
    root = Path(config.config_file_path).parent.resolve()
    pages, context = _fresh(root)
    _now["pages"], _now["context"] = pages, context
    _now["tips"], _now["slim"] = _finishers(context)
    entries: list[Any] = []
    for item in config.nav or []:
        entries += pages.nav(root, context) if item == "@taxonomy" else [item]
    config.nav = entries
    config.watch += [str(root / name) for name in WATCHED if (root / name).exists()]
    return config


def _fresh(root: Path) -> tuple[Any, Any]:
    """The generator and the data as they are on disk now, for `mkdocs serve`."""
    if str(root) not in sys.path:
        sys.path.insert(0, str(root))
    for name in [n for n in sys.modules if n == "atlas" or n.startswith("atlas.")]:
        del sys.modules[name]
    from mkdocs.exceptions import PluginError

    from atlas.site import pages, text
    from atlas.taxonomy import TaxonomyError
    from atlas.verdict import ClaimError
    from atlas.views import context

    _now["raw"], _now["aside"], _now["claim_error"] = text.RAW, {}, ClaimError

    try:
        return pages, context.read(root)
    except TaxonomyError as wrong:
        raise PluginError("the taxonomy has problems:\n" + str(wrong)) from None


def _finishers(context: Any) -> tuple[Any, Any]:
    """What a finished page still goes through."""
    from atlas.site.slim import slim
    from atlas.site.tips import Tips

    return Tips(context.atlas.glossary), slim


def on_files(files: Any, config: Any) -> Any:
    """Add the generated pages; a stale record is a warning, fatal when strict."""
    from mkdocs.exceptions import PluginError

    pages, context = _now["pages"], _now["context"]
    stale = context.warnings()
    if stale and config.strict:  # at once: the pages would take longer than the news
        raise PluginError("\n".join(stale))
    for warning in stale:
        LOG.warning(warning)
    for file in files:
        file.edit_uri = f"docs/{file.src_uri}"
    try:
        rendered = pages.render(context.root, context)
    except _now["claim_error"] as wrong:
        raise PluginError(f"a record does not fit its claims: {wrong}") from None
    for uri, content in rendered.items():
        if hidden := files.get_file_from_path(uri):
            if uri not in pages.WRITTEN:
                raise SystemExit(f"docs/{uri} is hidden by a generated page: rename it")
            files.remove(hidden)
        made = File.generated(config, uri, content=content)
        made.edit_uri = pages.source_of(uri)
        files.append(made)
    return files


def on_page_markdown(markdown: str, page: Any, config: Any, files: Any) -> str:
    """Set finished HTML aside, from Markdown and the search: it is slow to parse."""
    aside: list[str] = []
    _now["aside"][page.file.src_uri] = aside

    def keep(found: Any) -> str:
        aside.append(found[1])
        return f"<!--set aside {len(aside) - 1}-->"

    made: str = _now["raw"].sub(keep, markdown)
    return made


@event_priority(-50)  # after the plugins: what they write is explained too
def on_page_content(html: str, page: Any, config: Any, files: Any) -> str:
    """Explain the words of the glossary where a page first uses them."""
    glossary = files.get_file_from_path(GLOSSARY)
    if glossary is None or page.file.src_uri == GLOSSARY:
        return html
    explained: str = _now["tips"].explain(html, glossary.url_relative_to(page.file))
    return explained


def on_post_build(config: Any) -> None:
    """Our own assets as light as the pages; nothing is left for the collector."""
    from atlas.site.slim import slim_asset

    assets = Path(config.site_dir) / "assets"
    for path in (*assets.glob("css/*.css"), *assets.glob("js/*.js")):
        text = path.read_text(encoding="utf-8")
        path.write_text(slim_asset(text, path.suffix), encoding="utf-8")
    if not gc.isenabled():
        gc.freeze()


def on_post_page(output: str, page: Any, config: Any) -> str:
    """Put finished HTML back, name the search, load only what the page needs."""
    kept = _now["aside"][page.file.src_uri]
    output = ASIDE.sub(lambda m: kept[int(m[1])], output)
    for sign, loads in NEEDED.items():
        output = output if sign in output else loads.sub("", output)
    output = _named(output)
    lighter: str = _now["slim"](output)
    return lighter


def on_post_template(output_content: str, template_name: str, config: Any) -> str:
    """What is not a page, such as the one for an address that leads nowhere."""
    return _named(output_content)


def _named(output: str) -> str:
    return output.replace(SEARCH, f'{SEARCH} aria-label="Search"')
