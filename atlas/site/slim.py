"""Pages and assets without what nobody sees: indentation, marks of plain code."""

import re

_KEPT = re.compile(
    r"(<pre\b.*?</pre>|<script\b.*?</script>|<style\b.*?</style>"
    r"|<textarea\b.*?</textarea>)",
    re.DOTALL,
)
_BREAK = re.compile(r"[ \t]*\n\s*")
# Names, constants and blanks have the color of the code around them: see the test.
PLAIN = ("n", "kc", "w")
_MARK = re.compile(rf'<span class="(?:{"|".join(PLAIN)})">([^<]*)</span>')


def slim(html: str) -> str:
    """The same page; a break and the blanks round it are one break outside code."""
    parts = _KEPT.split(html)
    parts[::2] = [_BREAK.sub("\n", part) for part in parts[::2]]
    parts[1::2] = [
        _MARK.sub(r"\1", part) if part.startswith("<pre") else part
        for part in parts[1::2]
    ]
    return "".join(parts)


_SCRIPT = re.compile(r"^[ \t]*(//.*\n)?", re.MULTILINE)
_SHEET = re.compile(r"/\*.*?\*/", re.DOTALL)


def slim_asset(text: str, suffix: str) -> str:
    """A script or a style sheet of ours, without indentation and comments."""
    if suffix == ".js":
        return _SCRIPT.sub("", text)
    return _BREAK.sub("\n", _SHEET.sub("", text))
