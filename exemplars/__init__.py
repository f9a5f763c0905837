"""One technique a file, each a program that proves its own claims."""
