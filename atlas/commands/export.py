"""`atlas export`: the taxonomy, its schema, BibTeX or llms.txt, to a file or a pipe."""

import os
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Annotated, Any

import typer

from atlas import export as exports
from atlas import taxonomy
from atlas.commands import common
from atlas.commands.common import Wrong

MAKERS: dict[str, Callable[[Any], str]] = {
    "taxonomy": lambda atlas: exports.text(exports.taxonomy(atlas)),
    "schema": lambda _: exports.text(exports.schema()),
    "bibtex": exports.bibtex,
    "llms": exports.llms,
}


def complete_what(incomplete: str) -> list[str]:
    """What can be written."""
    return [name for name in MAKERS if name.startswith(incomplete)]


WhatOption = Annotated[
    str,
    typer.Option(
        help=f"One of {', '.join(MAKERS)}.",
        metavar="WHAT",
        autocompletion=complete_what,
    ),
]
FileOption = Annotated[
    Path | None,
    typer.Option(
        "-o",
        "--output",
        help="Write to this file instead of standard output.",
        metavar="FILE",
    ),
]


def export(what: WhatOption = "taxonomy", output: FileOption = None) -> None:
    """Export the atlas for other programs: JSON, JSON Schema, BibTeX or llms.txt.

    The site serves the same files: taxonomy.json, taxonomy.schema.json, papers.bib and
    llms.txt.

    Examples:

    \b
    atlas export -o taxonomy.json
    atlas export --what schema -o taxonomy.schema.json
    atlas export --what bibtex -o papers.bib
    atlas export --what llms
    """
    if what not in MAKERS:
        otherwise = f"there are {', '.join(MAKERS)}"
        raise common.unknown("export", what, MAKERS, otherwise)
    made = MAKERS[what](taxonomy.load())
    if output is None:
        sys.stdout.write(made)
        return
    write(output, made)
    typer.echo(f"wrote {output}")


def write(path: Path, made: str) -> None:
    """The file whole, or not at all; through what is no file, as a shell would."""
    if path.is_dir():
        raise Wrong(f"{path} is a folder: give a file name")
    path = path.resolve()  # what a link points to is replaced, not the link
    if path.exists() and not path.is_file():
        return _write_through(path, made)
    try:
        handle, partial = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.")
    except OSError as error:
        raise Wrong(f"{path} cannot be written: {error.strerror}") from None
    try:
        with open(handle, "w", encoding="utf-8") as file:
            file.write(made)
        os.chmod(partial, 0o666 & ~_umask())
        Path(partial).replace(path)
    except OSError as error:
        Path(partial).unlink(missing_ok=True)
        raise Wrong(f"{path} cannot be written: {error.strerror}") from None


def _write_through(path: Path, made: str) -> None:
    """To a device or a pipe, which no file may take the place of."""
    try:
        with path.open("w", encoding="utf-8") as file:
            file.write(made)
    except OSError as error:
        raise Wrong(f"{path} cannot be written: {error.strerror}") from None


def _umask() -> int:
    """What new files of this process may not have."""
    now = os.umask(0)
    os.umask(now)
    return now
