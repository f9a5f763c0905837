"""`python -m atlas.taxonomy` checks the taxonomy; --schema writes its schemas too."""

import sys

from atlas.taxonomy.loader import TaxonomyError, find_root, load
from atlas.taxonomy.schema import write_schemas


def main(arguments: list[str]) -> int:
    """Check the taxonomy; with --schema also write the schemas."""
    if arguments not in ([], ["--schema"]):
        print(f"{' '.join(arguments)}: expected nothing, or --schema", file=sys.stderr)
        return 2
    try:
        root = find_root()
        if arguments:
            write_schemas(root)
        atlas = load(root)
    except TaxonomyError as error:
        print(error, file=sys.stderr)
        return 1
    counts = (len(atlas.techniques), len(atlas.systems), len(atlas.papers))
    print("techniques: {}, systems: {}, papers: {}; no problem".format(*counts))
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
