"""One answer to each facet that a run can answer, with its evidence in a sentence."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from atlas.classify.log import Logs, content, entries, trainings
from atlas.classify.shape import Topology, topology
from atlas.classify.staging import in_flight, is_staged, returns
from atlas.classify.versions import ages, answers_postponed

NOTHING = "nothing is updated"
ONE_WAY = "nothing comes back from a stage to the one before it"


@dataclass(frozen=True)
class Answer:
    """A family of a facet, or its default; None where the run cannot tell."""

    family: str | None
    evidence: str
    figures: Mapping[str, float] | None = None


@dataclass(frozen=True)
class Classification:
    """Where a run stands, as far as its logs tell."""

    topology: Topology
    consistency: Answer
    pipelining: Answer
    credit: Answer
    optimizer: Answer


def classify(traces: Sequence[Sequence[Mapping[str, Any]]]) -> Classification:
    """From the trace of every rank; of several trainings, the first."""
    ranks = [entries(trace) for trace in traces]
    logs = trainings(ranks)[0]
    return Classification(
        topology(ranks),
        consistency(logs),
        pipelining(logs),
        credit(logs),
        optimizer(logs),
    )


def consistency(logs: Logs) -> Answer:
    """Which version of the parameters each update was computed from."""
    counts = [len(logs.updates(rank)) for rank in range(logs.size)]
    if not any(counts):
        return Answer(None, NOTHING)
    if is_staged(logs):
        return _of_stages(logs)
    if found := ages(logs):
        return _of_servers(logs, found)
    return _of_copies(logs)


def _of_servers(logs: Logs, found: list[int]) -> Answer:
    figures = {"updates": len(found), "oldest": max(found)}
    if not any(found):
        what = f"all {len(found)} gradients were of the version that they updated"
        return Answer("synchronous", what, figures)
    waits = answers_postponed(logs)
    figures["waits"] = waits
    what = f"gradients were up to {max(found)} updates old"
    if waits:
        more = f"; {waits} times a worker had to wait for the gradients of others"
        return Answer("bounded-staleness", what + more, figures)
    return Answer("asynchronous", what + ", and nobody waited for anybody", figures)


def _of_copies(logs: Logs) -> Answer:
    """Compare the weights with which all ranks compute, bit for bit."""
    if gone := missed(logs):
        return _of_survivors(logs, gone)
    lines = [logs.reads(rank) for rank in range(logs.size)]
    steps = min(map(len, lines)) - 1  # all begin with the same
    if steps < 1:
        return Answer(None, "no rank computed twice with weights of its own")
    same = [len({line[k] for line in lines}) == 1 for k in range(1, steps + 1)]
    figures = {"versions": steps, "equal": sum(same)}
    if all(same):
        what = (
            f"after each of {steps} updates, all ranks computed with the same weights"
        )
        return Answer("synchronous", what, figures)
    if any(same):
        what = f"all ranks had the same weights after {sum(same)} of {steps} updates"
        return Answer("periodic", what, figures)
    met = [_met(logs, rank) for rank in range(logs.size)]
    whole = [others == logs.size - 1 for line in met for others in line[1:]]
    if all(whole):
        what = "ranks hold different parts; all took part in every update"
        return Answer("synchronous", what, figures)
    if any(whole):
        what = (
            f"copies differ; all ranks met before {sum(whole)} of {len(whole)} updates"
        )
        return Answer("periodic", what, figures)
    most = max(others for line in met for others in line)
    what = f"copies differ, and no rank met more than {most} others in a step"
    return Answer("consensus", what, figures)


def missed(logs: Logs) -> int:
    """How many updates others made while a rank that had had weights had none."""
    lines = [[bool(what) for what in line] for line in _made(logs)]
    return sum(
        not line[k]
        for line in lines
        for k in range(line.index(True) if any(line) else len(line), len(line))
        if any(other[k] for other in lines)
    )


def _made(logs: Logs) -> list[list[str]]:
    """What each update made on each rank, as far as all ranks tell of updates."""
    lines = [[e.what for e in log if e.kind == "update"] for log in logs.ranks]
    steps = min(map(len, lines))
    return [line[:steps] for line in lines]


def _of_survivors(logs: Logs, gone: int) -> Answer:
    """Compare what each update made, on the ranks that were there."""
    lines = _made(logs)
    same = [len(set(made) - {""}) < 2 for made in zip(*lines, strict=True)]
    figures = {"versions": len(same), "equal": sum(same), "missed": gone}
    what = f"ranks that came and went missed {gone} updates; "
    if all(same):
        what += f"after each of {len(same)}, the others held the same weights"
        return Answer("synchronous", what, figures)
    what += f"the others held the same weights after {sum(same)} of {len(same)}"
    return Answer("periodic", what, figures)


def _met(logs: Logs, rank: int) -> list[int]:
    """How many others a rank exchanged data with, before each version it read."""
    found, met, before = list[int](), set[int](), ""
    for entry in logs.ranks[rank]:
        if entry.kind in ("send", "recv"):
            met.add(entry.peer)
        elif entry.kind == "collective":
            met |= set(entry.group)
        elif entry.kind == "read" and entry.what not in ("", before):
            found.append(len(met - {rank, -1}))
            met, before = set(), entry.what
    return found


def _of_stages(logs: Logs) -> Answer:
    if not returns(logs):
        return Answer(None, ONE_WAY)
    _, oldest = in_flight(logs)
    if not oldest:
        what = "no stage was updated between a micro-batch's two passes"
        return Answer("synchronous", what, {"oldest": 0})
    what = f"stages were updated up to {oldest} times between a batch's two passes"
    return Answer("bounded-staleness", what, {"oldest": oldest})


def pipelining(logs: Logs) -> Answer:
    """How many micro-batches were between their two passes, and what met them there."""
    if not any(logs.updates(rank) for rank in range(logs.size)):
        return Answer(None, NOTHING)
    if not is_staged(logs):
        return Answer("none", "no two ranks stand one behind the other")
    if not returns(logs):
        return Answer(None, ONE_WAY)
    most, oldest = in_flight(logs)
    figures = {"in_flight": most, "oldest": oldest}
    if most < 2:
        return Answer("none", "one batch at a time is between its two passes", figures)
    what = f"up to {most} micro-batches were between their two passes"
    if oldest:
        return Answer("pipeline-stale", what + " while weights changed", figures)
    return Answer("pipeline-flush", what + ", none while weights changed", figures)


def credit(logs: Logs) -> Answer:
    """Whether anything comes back to a layer from those after it."""
    if not is_staged(logs):
        return Answer(None, "layers are not on ranks of their own")
    if returns(logs):
        return Answer(None, "messages come back; whose loss they carry is not seen")
    return Answer("layer-local", ONE_WAY)


def optimizer(logs: Logs) -> Answer:
    """One model for all, or a copy for each that goes its own way?"""
    owners = [rank for rank in range(logs.size) if logs.updates(rank)]
    if not owners:
        return Answer(None, NOTHING)
    if is_staged(logs):
        return Answer("central", "each stage has the only copy of its layers")
    sent = {
        content(entry.what)
        for log in logs.ranks
        for entry in log
        if entry.kind in ("send", "update")
    }
    apart = [
        rank
        for rank in range(logs.size)
        if any(content(read) not in sent for read in logs.reads(rank)[1:])
    ]
    served = ages(logs)
    if served and apart:
        return Answer("per-worker", "workers computed with weights that no server had")
    if served:
        return Answer("central", "workers computed with the servers' weights alone")
    found = _of_copies(logs)
    where = "central" if found.family == "synchronous" else "per-worker"
    return Answer(where if found.family else None, found.evidence)
