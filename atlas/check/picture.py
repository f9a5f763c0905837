"""A picture of a real check: the terminal's text as an SVG whose lines appear in turn.

    python -m atlas.check.picture     # writes docs/assets/img/check.svg

The script is DistributedDataParallel with a bug from the wild, one line of it changed.
A test runs the same command and holds the picture against what it prints.
"""

import html
import os
import subprocess
import sys
import tempfile
from pathlib import Path

from atlas.taxonomy import load

ROOT = Path(__file__).resolve().parents[2]
PICTURE = ROOT / "docs" / "assets" / "img" / "check.svg"
BUG = "accumulation-not-divided"
COMMAND = (
    *("atlas", "check", "train.py", "--ranks", "4"),
    *("--one", "--batch 24", "--many", "--batch 6 --parts 2"),
)
COLUMNS = 80
LINE, MARGIN, LETTER = 20, 18, 8.4  # points: of a line, around the text, of a letter
TYPED, PAUSE, EACH = 1.6, 0.9, 0.35  # seconds: typing, waiting, from line to line
STYLE = """
text { font: 14px ui-monospace, SFMono-Regular, Menlo, Consolas, monospace; }
text { fill: #dfe5ec; white-space: pre; }
.said { opacity: 0; animation: show .01s linear forwards; }
.typed { clip-path: inset(0 100% 0 0); }
.typed { animation: type TYPEDs steps(LETTERS) .4s forwards; }
.bad { fill: #ff9a90; } .key { fill: #a3aebc; }
@keyframes show { to { opacity: 1; } }
@keyframes type { to { clip-path: inset(0 0 0 0); } }
@media (prefers-reduced-motion: reduce) {
  .said, .typed { animation: none; opacity: 1; clip-path: none; }
}
"""


def script(root: Path = ROOT) -> str:
    """The program with the bug put in."""
    bug = load(root).bugs[BUG]
    program = root / "atlas" / "check" / "programs" / f"{bug.program}.py"
    return program.read_text(encoding="utf-8").replace(bug.find, bug.replace)


def said() -> list[str]:
    """What the command prints, line by line."""
    with tempfile.TemporaryDirectory() as folder:
        Path(folder, "train.py").write_text(script(), encoding="utf-8")
        env = {**os.environ, "COLUMNS": str(COLUMNS), "NO_COLOR": "1"}
        env["PYTHONPATH"] = os.pathsep.join(
            [str(ROOT), *filter(None, [env.get("PYTHONPATH")])]
        )
        command = [sys.executable, "-m", *COMMAND]
        done = subprocess.run(
            command, cwd=folder, env=env, capture_output=True, text=True, check=False
        )
    if done.returncode != 1:  # 0: it holds; anything else: it did not run
        raise RuntimeError(f"{shown()} ended with {done.returncode}: {done.stderr}")
    return [line.rstrip() for line in done.stdout.splitlines()]


def shown() -> str:
    """The command as a reader types it."""
    return " ".join(f'"{word}"' if " " in word else word for word in COMMAND)


def drawn(lines: list[str]) -> str:
    """The picture: the command is typed, then its answer appears."""
    command = f"$ {shown()}"
    width = round(2 * MARGIN + LETTER * max(map(len, [command, *lines])))
    height = 2 * MARGIN + LINE * (len(lines) + 1)
    rows = [_row(0, command, "typed", 0.0)]
    for i, line in enumerate(lines):
        kind = "said bad" if i == 0 else "said"
        rows.append(_row(i + 1, line, kind, TYPED + PAUSE + EACH * i))
    label = html.escape("\n".join([command, *lines]), quote=True)
    style = STYLE.replace("TYPED", f"{TYPED:.1f}")
    style = style.replace("LETTERS", str(len(command)))
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" '
        f'width="{width}" height="{height}" role="img">'
        f"<title>{label}</title><style>{style}</style>"
        f'<rect width="{width}" height="{height}" rx="10" fill="#14181f"/>'
        f"{''.join(rows)}</svg>\n"
    )


def _row(i: int, line: str, kind: str, after: float) -> str:
    """A line of text; the word before two spaces is a name, and quiet."""
    name, gap, rest = line.partition("  ")
    text = html.escape(line)
    if kind == "said" and gap and name:
        text = f'<tspan class="key">{html.escape(name)}</tspan>'
        text += html.escape(gap + rest)
    delay = f' style="animation-delay:{after:.2f}s"' if after else ""
    y = MARGIN + LINE * i + 14
    return (
        f'<text class="{kind}" x="{MARGIN}" y="{y}" xml:space="preserve"{delay}>'
        f"{text}</text>"
    )


def main() -> int:
    """Run the check and write the picture."""
    PICTURE.write_text(drawn(said()), encoding="utf-8")
    print(f"{PICTURE.relative_to(ROOT)}: written")
    return 0


if __name__ == "__main__":
    sys.exit(main())
