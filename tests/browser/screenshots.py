"""`nox -s screenshots`: the most important views, light, dark and on a phone.

    python3 noxfile.py -s screenshots                     # the twenty
    python3 noxfile.py -s screenshots -- map/ compare/    # these

For people to look at, not for a test to compare: PNG files in .nox/screenshots/.
"""

import argparse
import sys
import tempfile
from pathlib import Path
from typing import Any

from conftest import NAMES, ROOT, Build, _Quiet, served

OUT = ROOT / ".nox" / "screenshots"
#: The views by which a reader judges the atlas.
VIEWS = (
    "",
    "path/one-sum/",
    "map/",
    "sync-strategy/",
    "parameter-distribution/sharded/",
    "communication-pattern/collective/ring-all-reduce/",
    "sync-strategy/pipeline-flush/one-f-one-b/",
    "parameter-distribution/sharded/zero-3/",
    "parameter-distribution/intra-layer/tensor-parallel-column-row/",
    "compare/",
    "choose/",
    "calculator/",
    "accuracy/",
    "bubble/",
    "bugs/",
    "systems/",
    "timeline/",
    "collectives/",
    "compressors/",
    "composition/",
    "run/",
)
KINDS: dict[str, dict[str, Any]] = {
    "light": {"viewport": {"width": 1440, "height": 1000}, "color_scheme": "light"},
    "dark": {"viewport": {"width": 1440, "height": 1000}, "color_scheme": "dark"},
    "phone": {"viewport": {"width": 390, "height": 844}, "device_scale_factor": 2},
}


def main() -> None:
    """Build the site, or take a built one, and photograph its pages."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("views", nargs="*", help="addresses below the site's root")
    parser.add_argument("--site", type=Path, help="a built site")
    parser.add_argument("--out", type=Path, default=OUT)
    parser.add_argument("--kind", action="append", choices=KINDS)
    parser.add_argument("--whole", action="store_true", help="the whole page's height")
    asked = parser.parse_args()
    asked.out.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory() as folder:
        site = asked.site or Build(Path(folder) / "site").ready
        for address in served(site, _Quiet):
            photograph(asked, address)


def photograph(asked: argparse.Namespace, address: str) -> None:
    """Every view in every kind."""
    import os
    import shutil

    from playwright.sync_api import sync_playwright

    path = os.environ.get("CHROMIUM") or next(filter(None, map(shutil.which, NAMES)))
    with sync_playwright() as driver:
        browser = driver.chromium.launch(executable_path=path, args=["--no-sandbox"])
        for kind in asked.kind or KINDS:
            page = browser.new_context(**KINDS[kind]).new_page()
            for view in asked.views or VIEWS:
                page.goto(address + view, wait_until="load")
                name = view.strip("/").replace("/", "-") or "home"
                file = asked.out / f"{name}.{kind}.png"
                page.screenshot(path=file, full_page=asked.whole)
                print(file, flush=True)
        browser.close()


if __name__ == "__main__":
    sys.exit(main())
