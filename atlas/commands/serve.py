"""`atlas serve`: serve the site on the next free local port."""

import contextlib
import os
import socket
import sys
from importlib.util import find_spec
from pathlib import Path
from typing import Annotated

import typer

from atlas import taxonomy
from atlas.commands.common import Wrong, install

ROOT = Path(__file__).resolve().parents[2]
FIRST, TRIES = 8000, 100
HOST = "127.0.0.1"

PortOption = Annotated[
    int,
    typer.Option(min=1, max=65535, help="The first port to try."),
]


def serve(port: PortOption = FIRST) -> None:
    """Serve the site locally and rebuild it when a file changes.

    Stop it with Ctrl-C; the exit code is then 0.

    Examples:

    \b
    atlas serve
    atlas serve --port 8080
    """
    root = taxonomy.find_root()
    if root != ROOT:
        # The site's configuration names code to run: only our own is trusted.
        raise Wrong(
            f"{root} has another atlas than this command, of {ROOT}: change to that "
            "folder, or run `python3 noxfile.py -s serve` in yours"
        )
    if find_spec("mkdocs") is None:
        raise Wrong(f"building the site needs MkDocs: {install('docs')}")
    free = free_port(port)
    if free != port:
        typer.echo(f"port {port} is taken")
    address = f"http://{HOST}:{free}"
    typer.echo(f"building the site at {address} (stop with Ctrl-C)")
    sys.stdout.flush()
    os.chdir(root)
    # MkDocs takes the place of this process: nothing stands between it and Ctrl-C.
    os.execv(sys.executable, command(free))  # noqa: S606


def command(port: int) -> list[str]:
    """How the site is served."""
    return [sys.executable, "-m", "mkdocs", "serve", "-a", f"{HOST}:{port}"]


def free_port(first: int) -> int:
    """The first port from here on that nobody listens on."""
    last = min(first + TRIES, 65536)
    for port in range(first, last):
        with socket.socket() as probe, contextlib.suppress(OSError):
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            probe.bind((HOST, port))
            return port
    raise Wrong(f"no free port from {first} to {last - 1}: give another --port")
