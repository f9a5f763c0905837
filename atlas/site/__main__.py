"""Write the pages of the site to a folder: `python -m atlas.site OUT`."""

import sys
from pathlib import Path

from atlas.site import pages
from atlas.taxonomy import TaxonomyError, find_root
from atlas.verdict import ClaimError


def write(root: Path, out: Path) -> int:
    """Hand-written and generated pages, side by side; how many files."""
    made = pages.render(root)
    docs = root / "docs"
    for path in sorted(docs.rglob("*")):
        uri = path.relative_to(docs).as_posix()
        if path.is_file() and not uri.startswith(".") and uri not in made:
            made[uri] = path.read_bytes()
    for uri, content in sorted(made.items()):
        target = out / uri
        target.parent.mkdir(parents=True, exist_ok=True)
        data = content.encode() if isinstance(content, str) else content
        target.write_bytes(data)
    return len(made)


def main(arguments: list[str]) -> int:
    """The command line: one folder."""
    if len(arguments) != 1 or arguments[0].startswith("-"):
        print("usage: python -m atlas.site OUT", file=sys.stderr)
        return 2
    try:
        count = write(find_root(), Path(arguments[0]))
    except (TaxonomyError, ClaimError, OSError) as problem:
        print(f"atlas.site: {problem}", file=sys.stderr)
        return 1
    print(f"{count} files in {arguments[0]}")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
