"""The verdicts of a run as a table, and the one line that sums them up."""

from typing import TYPE_CHECKING, Any

from atlas.verdict import Verdict, failed

if TYPE_CHECKING:
    from rich.table import Table
    from rich.text import Text

LABELS = {
    "gloo": "gloo",
    "dry": "dry: values mean nothing",
    "emulated": "emulated",
    "nccl": "nccl",
}
STYLES = {"holds": "green", "FAILS": "bold red", "not judged": "dim"}


def table(verdicts: list[Verdict], all_ranks: bool) -> "Table":
    """One line a claim; or one a rank, where asked."""
    from rich import box
    from rich.table import Table

    made = Table(box=box.SIMPLE_HEAD, pad_edge=False, padding=(0, 1))
    made.add_column("claim", style="cyan", no_wrap=True)
    if all_ranks:
        made.add_column("rank", justify="right")
    made.add_column("predicted", justify="right")
    made.add_column("measured", justify="right")
    made.add_column("verdict")
    for group in _groups(verdicts, all_ranks):
        v = group[0]
        rank = ["run" if v.rank is None else str(v.rank)] if all_ranks else []
        made.add_row(v.claim, *rank, predicted(group), measured(group), verdict(group))
    return made


def _groups(verdicts: list[Verdict], all_ranks: bool) -> list[list[Verdict]]:
    if all_ranks:
        return [[v] for v in verdicts]
    groups: dict[str, list[Verdict]] = {}
    for v in verdicts:
        groups.setdefault(v.claim, []).append(v)
    return list(groups.values())


def predicted(group: list[Verdict]) -> str:
    """What the formula says, or how close it has to be."""
    v = group[0]
    match v.kind:
        case "equal":
            return "equal"
        case "close" | "statistical":
            return v.note if v.measured is not None else v.kind
        case "bound":
            return f"at most {_range([v.predicted for v in group])}"
    return _range([v.predicted for v in group])


def measured(group: list[Verdict]) -> str:
    """What the ranks found; of checks, the worst."""
    values = [v.measured for v in group if v.measured is not None]
    if not values:
        return "-"
    if group[0].kind in ("equal", "close"):
        worst = max(values)
        return "equal" if worst == 0 else f"off by {worst:.2g}"
    return _range(values)


def verdict(group: list[Verdict]) -> "Text":
    """Whether the claim holds; where not, on which ranks or why."""
    from rich.text import Text

    bad = [v for v in group if v.ok is False]
    word = "FAILS" if bad else "holds"
    if all(v.ok is None for v in group):
        word = "not judged"
    why = ""
    if bad and len(bad) < len(group):
        some = ", ".join(str(v.rank) for v in bad[:8])
        why = f" on rank {some}{' ...' if len(bad) > 8 else ''}"
    reasons = [v for v in bad or group if v.measured is None and v.note]
    if reasons:
        why += f": {reasons[0].note}"
    return Text(word, STYLES[word]).append(why, "default")


def _range(values: list[Any]) -> str:
    known = [v for v in values if v is not None]
    if not known:
        return "-"
    low, high = min(known), max(known)
    return number(low) if low == high else f"{number(low)} to {number(high)}"


def number(value: float) -> str:
    """Integers whole, with their thousands apart."""
    return f"{value:,}" if isinstance(value, int) else f"{value:,.6g}"


def ranks_of(p: int) -> str:
    """How many ranks, in words."""
    return "1 rank" if p == 1 else f"{p:,} ranks"


def conclusion(found: dict[str, Any], verdicts: list[Verdict]) -> str:
    """The one line to remember."""
    bad = failed(verdicts)
    claims = list(dict.fromkeys(v.claim for v in verdicts))
    judged = {v.claim for v in verdicts if v.ok is not None}
    where = f"{ranks_of(found['p'])} ({LABELS[found['mode']]})"
    if found["mode"] == "dry":
        some = ", ".join(str(rank["rank"]) for rank in found["ranks"])
        where = f"ranks {some} of {found['p']:,} ({LABELS['dry']})"
    if bad:
        fail = "fails" if len(bad) == 1 else "fail"
        line = f"{len(bad)} of {len(claims)} claims {fail} on {where}: {', '.join(bad)}"
    elif len(judged) < len(claims):
        hold = "1 claim holds" if len(judged) == 1 else f"{len(judged)} claims hold"
        line = f"{hold} on {where}, {len(claims) - len(judged)} not judged"
    else:
        line = f"all {len(claims)} claims hold on {where}"
    return f"{line}; {found['times']['seconds']:.3g} s"
