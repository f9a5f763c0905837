"""From journals to the events that a timeline, a replay and the classification read."""

from collections.abc import Sequence
from typing import Any

Line = dict[str, Any]


def events(journals: Sequence[Sequence[Line]]) -> list[list[Line]]:
    """Every rank's events, in its order; times in seconds since the first of all."""
    ops = [x["at"] for lines in journals for x in lines if x["k"] == "op"]
    zero = min(ops, default=0.0)
    return [_of_rank(lines, zero) for lines in journals]


def _of_rank(lines: Sequence[Line], zero: float) -> list[Line]:
    groups = {x["group"]: x["ranks"] for x in lines if x["k"] == "members"}
    found: list[Line] = []
    place: dict[int, int] = {}  # operation -> its event
    waits: dict[int, float] = {}
    for x in lines:
        at = round(x["at"] - zero, 6)
        match x["k"]:
            case "op":
                place[x["i"]] = len(found)
                found.append(_operation(x, at, groups))
            case "wait":
                waits[x["i"]] = at
            case "done" if x["i"] in place:
                found[place[x["i"]]]["until"] = at
            case "waited" if x["i"] in place:
                of = place[x["i"]]
                found[of]["until"] = at
                begin = waits.pop(x["i"], found[of]["at"])
                found.append({"kind": "wait", "at": begin, "until": at, "of": of})
            case "step":
                found.append({"kind": "update", "at": at, "what": x["what"]})
            case "read":
                found.append({"kind": "read", "at": at, "what": x["what"]})
    return found


def _operation(x: Line, at: float, groups: dict[str, list[int]]) -> Line:
    told = {"at": at, "until": at, "name": x["op"], "bytes": x["bytes"]}
    if "turn" in x:
        return {"kind": "collective", "group": groups[x["group"]], **told}
    return {"kind": x["op"], "peer": x["peer"], "what": x.get("what", ""), **told}
