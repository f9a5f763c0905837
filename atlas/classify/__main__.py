"""`python -m atlas.classify [NAME ...]` classifies exemplars by runs, and keeps it."""

import sys

from atlas.classify.study import main

if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
