"""`python -m atlas.check` runs every detector on every bug, and keeps the study."""

import sys

from atlas.check.detectors import main

if __name__ == "__main__":
    sys.exit(main())
