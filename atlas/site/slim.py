"""Pages without the indentation that the theme's templates leave in them."""

import re

_KEPT = re.compile(
    r"(<pre\b.*?</pre>|<script\b.*?</script>|<style\b.*?</style>"
    r"|<textarea\b.*?</textarea>)",
    re.DOTALL,
)
_BREAK = re.compile(r"[ \t]*\n\s*")


def slim(html: str) -> str:
    """The same page; a break and the blanks round it are one break outside code."""
    parts = _KEPT.split(html)
    parts[::2] = [_BREAK.sub("\n", part) for part in parts[::2]]
    return "".join(parts)
