"""`python -m atlas` is `atlas`."""

from atlas.cli import main

main()
