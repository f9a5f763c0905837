"""How old gradients are: versions of weights, recognized by their bits."""

from atlas.classify.log import Logs, content


def ages(logs: Logs) -> list[int]:
    """The age of every gradient that a server applied, in updates.

    A server's weights after an update are a version. Whoever sends it a gradient had
    received some version before: the gradient is as old as the updates since then.
    """
    return [age for rank in range(logs.size) for age in _at(logs, rank)]


def _at(logs: Logs, server: int) -> list[int]:
    versions = _versions(logs, server)
    found, waiting, version = [], list[int](), 0
    for place, entry in enumerate(logs.ranks[server]):
        if entry.kind == "recv" and (server, place) in logs.origin:
            sender, sent = logs.origin[server, place]
            if _is_copy(logs, sender, sent) or _is_swap(logs, server, place):
                continue
            base = _base(logs, sender, sent, server, versions)
            waiting += [] if base is None else [base]
        elif entry.kind == "update" and entry.what:
            found += [version - base for base in waiting]
            waiting, version = [], version + 1
    return found


def _is_copy(logs: Logs, sender: int, sent: int) -> bool:
    """Whether the sender computed with what it sends: weights, and no gradient."""
    what = content(logs.ranks[sender][sent].what)
    return what in {content(read) for read in logs.reads(sender)}


def _is_swap(logs: Logs, rank: int, place: int) -> bool:
    """Whether a message met another of its shape on the way: two ranks that average.

    A server's answer never does: it is sent when what it answers has come.
    """
    sender, sent = logs.origin[rank, place]
    return any(
        (taker, giver) == (sender, rank)
        and taken > sent
        and given < place
        and _shape(logs, giver, given) == _shape(logs, sender, sent)
        for (taker, taken), (giver, given) in logs.origin.items()
    )


def _shape(logs: Logs, sender: int, sent: int) -> str:
    return logs.ranks[sender][sent].what.partition(":")[0]


def _versions(logs: Logs, server: int) -> dict[str, int]:
    """Digest -> number of updates; what it sends before the first is version 0."""
    first: dict[str, int] = {}
    found: dict[str, int] = {}
    for entry in logs.ranks[server]:
        if entry.kind == "update" and entry.what:
            found[content(entry.what)] = len(found) + 1
        elif entry.kind == "send" and not found:
            first[content(entry.what)] = 0
    sent = {content(e.what) for e in logs.ranks[server] if e.kind == "send"}
    return first | found if sent & found.keys() else {}


def _base(
    logs: Logs, sender: int, sent: int, server: int, versions: dict[str, int]
) -> int | None:
    """The version of the server's weights that the sender last received."""
    for place in range(sent - 1, -1, -1):
        entry = logs.ranks[sender][place]
        if entry.kind == "recv" and entry.peer == server:
            rank, origin = logs.origin.get((sender, place), (server, -1))
            what = logs.ranks[rank][origin].what if origin >= 0 else ""
            if content(what) in versions:
                return versions[content(what)]
    return None


def answers_postponed(logs: Logs) -> int:
    """How often a server took others' gradients between one's gradient and answer."""
    count = 0
    for rank in range(logs.size):
        if not logs.updates(rank):
            continue
        owed: dict[int, bool] = {}  # worker -> whether others came meanwhile
        for entry in logs.ranks[rank]:
            if entry.kind == "recv":
                owed = {worker: True for worker in owed}
                owed[entry.peer] = False
            elif entry.kind == "send":
                count += owed.pop(entry.peer, False)
    return count
