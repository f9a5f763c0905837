"""A prediction in sentences."""

from atlas.planner.findings import NAMES
from atlas.planner.prediction import Prediction
from atlas.planner.units import count, seconds, size

__all__ = ["explain"]


def explain(p: Prediction) -> str:
    """What is predicted, where the time goes, what fits, what holds it back."""
    return "\n".join([*_time(p), *_memory(p), *_traffic(p), *_rest(p)])


def _time(p: Prediction) -> list[str]:
    head = (
        f"A step of {p.model.name} ({count(p.model.parameters)} parameters) with "
        f"{p.strategy} on {p.strategy.ranks} devices of {p.cluster.name}, batch size "
        f"{p.train.batch}, takes {seconds(p.seconds)}"
    )
    if p.low < p.high:
        head += f" ({seconds(p.low)} to {seconds(p.high)}, {p.cluster.band.of})"
    parts = sorted(p.times._asdict().items(), key=lambda item: -item[1])
    shown = [
        f"{NAMES[name]} {t / p.seconds:.0%}"
        for name, t in parts
        if t > 0.005 * p.seconds
    ]
    many = "micro-batch" if p.micro_batches == 1 else "micro-batches"
    micro = f"{p.micro_batches} {many} of {p.micro_batch}"
    return [f"{head}: {', '.join(shown)}.", f"Each replica runs {micro} per step."]


def _memory(p: Prediction) -> list[str]:
    parts = [f"{name} {size(n)}" for name, n in p.memory._asdict().items() if n]
    verdict = "fits tightly" if p.verdict == "tight" else p.verdict
    return [
        f"The fullest rank holds {size(sum(p.memory))} ({', '.join(parts)}), "
        f"which {verdict} in {size(p.capacity)}."
    ]


def _traffic(p: Prediction) -> list[str]:
    return [
        f"{c.axis}: {count(c.count)} {c.op} of {c.what} among {c.ranks} ranks "
        f"({c.level}), {size(c.wire)} sent, {seconds(c.seconds)}."
        for c in p.collectives
    ]


def _rest(p: Prediction) -> list[str]:
    says = [f"{finding.says[0].upper()}{finding.says[1:]}." for finding in p.findings]
    return [*says, f"The largest share of the time goes to {NAMES[p.binds]}."]
