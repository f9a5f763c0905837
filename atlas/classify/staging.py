"""Stages one behind the other: what is between its forward and its backward pass."""

from atlas.classify.log import Logs, content


def is_staged(logs: Logs) -> bool:
    """Whether messages go up and down a line of ranks, each with layers of its own."""
    pairs = {
        frozenset((rank, entry.peer))
        for rank, log in enumerate(logs.ranks)
        for entry in log
        if entry.kind == "send"
    }
    updated = [logs.updates(rank) for rank in range(logs.size)]
    line = {frozenset((r, r + 1)) for r in range(logs.size - 1)}
    return pairs == line and logs.size > 1 and all(updated) and not _are_copies(logs)


def _are_copies(logs: Logs) -> bool:
    """Whether ranks send one another their weights: neighbors, not stages."""
    for log in logs.ranks:
        weights = {content(e.what) for e in log if e.kind in ("read", "update")}
        if any(e.kind == "send" and content(e.what) in weights - {""} for e in log):
            return True
    return False


def returns(logs: Logs) -> bool:
    """Whether a stage receives anything from the one after it."""
    return any(
        entry.kind == "recv" and entry.peer == rank + 1
        for rank, log in enumerate(logs.ranks)
        for entry in log
    )


def in_flight(logs: Logs) -> tuple[int, int]:
    """The most micro-batches between their passes, and the most updates meanwhile.

    On a stage, the k-th message to the next one is a micro-batch that goes forward,
    the k-th from it is the same on its way back.
    """
    most = oldest = 0
    for rank in range(logs.size - 1):
        gone: list[int] = []  # updates before each that is on its way
        updates, returned = 0, list[int]()
        for entry in logs.ranks[rank]:
            if entry.kind == "send" and entry.peer == rank + 1:
                gone.append(updates)
                most = max(most, len(gone))
            elif entry.kind == "recv" and entry.peer == rank + 1 and gone:
                returned.append(gone.pop(0))
            elif entry.kind == "update" and entry.what:
                oldest = max([oldest, *(updates - before for before in returned)])
                returned, updates = [], updates + 1
    return most, oldest
