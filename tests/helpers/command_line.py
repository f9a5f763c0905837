"""The whole command line, made once for all tests that call it."""

from atlas.cli import made

app = made()
