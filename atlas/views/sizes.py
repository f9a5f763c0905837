"""What a formula is given when a page compares: rules in p and in the size n."""

from collections.abc import Mapping
from dataclasses import dataclass
from decimal import ROUND_HALF_UP, Context
from typing import Any

from atlas.formulas import FORMULAS
from atlas.script.source import arguments
from atlas.taxonomy import Claim, Technique

P, N = 8, 10**8  # what a page shows before a slider is moved
LEAST_P, MOST_P = 2, 1024
LEAST_N, MOST_N = 10**3, 10**10


@dataclass(frozen=True)
class Rule:
    """A value that follows the sliders: floor(of * size ** power) + plus."""

    of: float = 1
    power: float = 1
    plus: int = 0
    by: str = "n"

    def at(self, p: int, n: int) -> int:
        """The value for so many ranks and so large a size."""
        size = p if self.by == "p" else n
        return max(1, int(self.of * size**self.power + 1e-9)) + self.plus

    @property
    def says(self) -> str:
        """The rule as a page prints it."""
        root = f"√{self.by}" if self.power == 0.5 else self.by
        share = "" if self.of == 1 else f"{self.of:.3g} "
        if self.of < 1 and abs(1 / self.of - round(1 / self.of)) < 1e-9:
            root, share = f"{root}/{round(1 / self.of)}", ""
        return f"{share}{root}" + (f" + {self.plus}" if self.plus else "")


Value = Rule | int | float

SIZE = Rule()
ROOT = Rule(power=0.5)
CUT = Rule(0.04)  # bytes of an activation at a cut: n/100 elements of 4 bytes
SMALL = Rule(0.001)
# One step, float32, unless said otherwise; an element of n is a parameter.
COMMON: Mapping[str, Value] = {"itemsize": 4, "elements": SIZE, "steps": 1}
_PIPELINE: Mapping[str, Value] = {
    "activation_bytes": CUT,
    "microbatches": 32,
    "forward": 1,
    "backward": 2,
}
_MAPS: Mapping[str, Value] = {
    "batch": 1,
    "inputs": SIZE,
    "outputs": SIZE,
    "narrow": 64,
    "cut_weights": SIZE,
}
_CUT_LAYERS: Mapping[str, Value] = {**_MAPS, "whole_weights": SMALL, "layers": 50}
_NORMS: Mapping[str, Value] = {"norms": 53, "norm_channels": SMALL}
_ROWS: Mapping[str, Value] = {
    **_NORMS,
    "elements": SIZE,
    "halo": Rule(0.01),
    "halos": 64,
}
# technique -> what its formulas are given beyond that; the rest is as recorded.
GIVEN: Mapping[str, Mapping[str, Value]] = {
    "activation-checkpointing": {"activation_bytes": CUT, "layers": 64, "segments": 8},
    "all-to-all": {"rows": ROOT, "columns": ROOT},
    "bsp-synchronous-sgd": {"elements": SIZE, "steps": 1, "bucket": 6_553_600},
    "channel": _CUT_LAYERS,
    "data-filter": {**_MAPS, **_NORMS, "batch": 1024},
    "data-spatial": {**_ROWS, "batch": 1024},
    "ddp-by-hand": {
        "bucket": 6_553_600,
        "last_elements": Rule(0.05),
        "frozen_elements": 0,
    },
    "deep-gradient-compression": {"kept": SMALL, "warmup": 0},
    "diloco": {"elements": SIZE, "period": 100, "steps": 100},
    "downpour": {"elements": SIZE, "duration": 12, "slowdown": 3},
    "elastic-averaging": {"elements": SIZE, "period": 100, "steps": 100},
    "elastic-averaging-asynchronous": {
        "elements": SIZE,
        "duration": 12,
        "period": 2,
        "slowdown": 3,
    },
    "embedding-sharding": {
        "tables": 26,
        "width": 64,
        "table_rows": Rule(1 / 1664),
        "batch": 2048,
    },
    "expert-parallel": {
        "tokens": 4096,
        "choices": 2,
        "seats": 1024,
        "experts_per_rank": 1,
        "width": 4096,
        "scarce_seats": 1024,
    },
    "filter": _CUT_LAYERS,
    "global-top-k": {"kept": Rule(0.01)},
    "gpipe": _PIPELINE,
    "halo-exchange": {"batch": 1, "channels": 1, "columns": SMALL, "kernel": 3},
    "hierarchical": {"node_size": 4},
    "hierarchical-top-k": {"kept": Rule(0.01), "node_size": 4},
    "in-network-aggregation": {"packet": 256, "slots": 128},
    "layer-partition": {
        **_PIPELINE,
        "steps": 32,
        "width": Rule(0.353, 0.5),
        "itemsize": 4,
    },
    "local-parallelism": {**_PIPELINE, "chunks": 2},
    "local-parallelism-overlapping": _PIPELINE,
    "local-sgd": {"elements": SIZE, "period": 100, "steps": 100},
    "model-spilling": {"largest_layer": Rule(0.05), "last_layer": Rule(0.01)},
    "momentum-components": {"chunk_size": 64, "components": 1},
    "one-f-one-b": _PIPELINE,
    "powersgd": {
        "factor_rank": 4,
        "matrices": 50,
        "matrix_sides": Rule(14.14, 0.5),
        "vector_elements": SMALL,
    },
    "random-k": {"kept": Rule(0.01)},
    "ring-attention": {"tokens": SMALL, "width": 4096},
    "sparse-gradients": {"touched": 8192, "table_rows": Rule(1 / 128), "width": 128},
    "spatial": {**_ROWS, "batch": 1, "map_rows": 64},
    "stale-synchronous-parallel": {
        "elements": SIZE,
        "steps": 12,
        "staleness": 3,
        "slowdown": 3,
    },
    "sufficient-factor-broadcast": {
        "features_out": ROOT,
        "features_in": ROOT,
        "local_batch": 32,
    },
    "tensor-fusion": {
        "units": 160,
        "elements": Rule(1 / 160),
        "bucket": 16_777_216,
    },
    "tensor-parallel-column-row": {
        "layers": 24,
        "width": Rule(0.0589, 0.5),
        "batch": 1,
        "tokens": 8192,
        "heads": 64,
    },
    "three-d": {
        "activation_bytes": CUT,
        "microbatches": 32,
        "forward": 1,
        "backward": 2,
        "stages": 2,
        "tensor_ranks": 2,
        "width": Rule(0.5, 0.5),
        "hidden": 64,
        "itemsize": 4,
    },
    "top-k-error-feedback": {"kept": Rule(0.01)},
    "ulysses": {"tokens": SMALL, "heads": 64, "head_width": 64},
    "wait-free-backprop": {"layers": 160, "width": Rule(1 / 160**0.5, 0.5)},
    "weight-stashing": _PIPELINE,
    "zero-2": {"units": 24, "unit_elements": Rule(1 / 24), "microbatches": 1},
    "zero-3": {"units": 24, "unit_elements": Rule(1 / 24)},
    "zero-copy-transfer": {"pickle_header": 161},
}
# What a page compares, in this order.
QUANTITIES = (
    ("memory", "What it holds"),
    ("traffic", "Bytes it sends"),
    ("time", "Time and waiting"),
    ("staleness", "Age and agreement"),
    ("limit", "How far it goes"),
    ("loss", "What it loses"),
    ("calls", "Messages, rounds, calls"),
)


def kind(claim: Claim) -> str:
    """Which of the quantities a claim counts."""
    return claim.of or "calls"


def unit(claim: Claim) -> str:
    """B for bytes, s for virtual seconds, else nothing."""
    return {"bytes": "B", "seconds": "s"}.get(claim.unit or "", "")


def most(technique: Technique) -> int | None:
    """The most ranks at the sizes assumed here, where they set the limit."""
    if GIVEN.get(technique.id) is _CUT_LAYERS:
        return int(str(_CUT_LAYERS["narrow"]))
    return technique.max_ranks


#: What a page's script calls them.
_WHICH = {"ranks": "p", "rank": "r"}


def given(
    technique: Technique, claim: Claim, recorded: Mapping[str, Any]
) -> list[tuple[str, Value]]:
    """The formula's arguments in order, each with its rule; KeyError: not known."""
    assert claim.formula is not None
    names = arguments(FORMULAS[claim.formula])
    own = {**recorded, **COMMON, **GIVEN.get(technique.id, {})}
    return [(a, Rule(by=_WHICH[a]) if a in _WHICH else own[a]) for a in names]


def values(claim: Claim, rules: list[tuple[str, Value]], p: int, n: int) -> list[float]:
    """The formula on the first, the second and the last rank, where it differs."""
    assert claim.formula is not None
    out = []
    for r in sorted({0, min(1, p - 1), p - 1}):
        known = {"ranks": p, "rank": r}
        args = [
            known.get(a, v.at(p, n) if isinstance(v, Rule) else v) for a, v in rules
        ]
        out.append(float(FORMULAS[claim.formula](*args)))
    return out


_THREE = Context(prec=3, rounding=ROUND_HALF_UP)
_SCALES = ((1e15, "P"), (1e12, "T"), (1e9, "G"), (1e6, "M"), (1e3, "k"))


def brief(value: float, unit: str = "") -> str:
    """Three digits and a scale: 700 MB, 14, 1.75 M."""
    scale, letter = next(((s, x) for s, x in _SCALES if abs(value) >= s), (1.0, ""))
    if unit != "B" and abs(value) < 1e5 and value == int(value):
        return f"{int(value)} {unit}".rstrip()
    digits = float(_THREE.create_decimal_from_float(value / scale))
    return f"{digits:g} {letter}{unit}".rstrip()


def spread(found: list[float], unit: str) -> str:
    """One figure, or the least and the most."""
    low, high = brief(min(found), unit), brief(max(found), unit)
    return low if low == high else f"{low} to {high}"
