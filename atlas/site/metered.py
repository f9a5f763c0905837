"""`python -m atlas.site.metered run.json run.html`: a metered run as one HTML file.

The file holds its style, its script and the replay: it can be sent to somebody.
"""

import json
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from atlas.site import replay
from atlas.site.scene import scene
from atlas.site.templating import markup, render
from atlas.views.metered import rows, summary

ASSETS = Path(__file__).resolve().parents[2] / "docs" / "assets"
DRAWN = ("collective", "send", "recv", "wait")


def page(report: Mapping[str, Any]) -> str:
    """The whole file."""
    run = {
        "p": report["ranks"],
        "ranks": [
            {"rank": r, "events": drawn(events)}
            for r, events in enumerate(report["events"])
        ],
    }
    made = scene(run)
    caption = f"What {report['script']} sent, rank by rank."
    return render(
        "metered.html.j2",
        report=report,
        rows=rows(report),
        summary=summary(report),
        style=markup((ASSETS / "css" / "atlas.css").read_text(encoding="utf-8")),
        script=markup((ASSETS / "js" / "replay.js").read_text(encoding="utf-8")),
        figure=markup(replay.figure(made, "run", caption) if made else ""),
    )


def drawn(events: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """What a replay draws; places of events are those among the drawn."""
    place: dict[int, int] = {}
    kept: list[dict[str, Any]] = []
    for i, event in enumerate(events):
        if event["kind"] in DRAWN:
            place[i] = len(kept)
            kept.append(dict(event))
    for event in kept:
        if "of" in event:
            event["of"] = place[event["of"]]
    return kept


def main(arguments: list[str]) -> int:
    """Read a report with its events, write the page."""
    report = json.loads(Path(arguments[0]).read_text(encoding="utf-8"))
    Path(arguments[1]).write_text(page(report), encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
