"""What a formula is given when a page compares: rules in p and in the size n."""

import re
from collections.abc import Mapping
from dataclasses import dataclass
from decimal import ROUND_HALF_UP, Context
from typing import Any

from atlas.knowledge import Claim, Technique
from atlas.oracle import FORMULAS
from atlas.oracle.emit import arguments

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
COMMON: Mapping[str, Value] = {"b": 4, "n": SIZE, "t": 1}
_PIPELINE: Mapping[str, Value] = {"a": CUT, "m": 32, "f": 1, "b": 2}
_MAPS: Mapping[str, Value] = {"x": SIZE, "y": SIZE, "c": 64}
_CUT_LAYERS: Mapping[str, Value] = {**_MAPS, "z": SMALL, "l": 50}
_NORMS: Mapping[str, Value] = {"u": 53, "v": SMALL}
_IN_LAYERS: Mapping[str, Value] = {"u": 160, "n": Rule(1 / 160)}
# technique -> what its formulas are given beyond that; the rest is as recorded.
GIVEN: Mapping[str, Mapping[str, Value]] = {
    "activation-checkpointing": {"a": CUT, "l": 64, "s": 8},
    "all-to-all": {"n": ROOT, "m": ROOT},
    "bsp-synchronous-sgd": {"c": 6_553_600},
    "channel": _CUT_LAYERS,
    "data-filter": {**_MAPS, **_NORMS, "q": 4, "s": 1024},
    "data-spatial": {**_NORMS, "a": Rule(0.01), "h": 64, "q": 4, "s": 1024},
    "ddp-by-hand": {"c": 6_553_600, "e": Rule(0.05), "z": 0},
    "diloco": {"h": 100, "t": 100},
    "elastic-averaging": {"h": 100, "t": 100},
    "local-sgd": {"h": 100, "t": 100},
    "downpour": {"t": 12, "k": 3},
    "elastic-averaging-asynchronous": {"t": 12, "h": 2, "k": 3},
    "stale-synchronous-parallel": {"t": 12, "s": 3, "k": 3},
    "embedding-sharding": {"l": 26, "h": 64, "rows": Rule(1 / 1664), "s": 2048},
    "expert-parallel": {"n": 4096, "k": 2, "c": 1024, "e": 1, "h": 4096, "s": 1024},
    "filter": _CUT_LAYERS,
    "gpipe": _PIPELINE,
    "one-f-one-b": _PIPELINE,
    "weight-stashing": _PIPELINE,
    "local-parallelism": {**_PIPELINE, "c": 2},
    "local-parallelism-overlapping": _PIPELINE,
    "layer-partition": {**_PIPELINE, "c": 6, "h": Rule(0.144, 0.5), "e": 4},
    "halo-exchange": {"a": SMALL, "h": 4096, "k": 3},
    "hierarchical": {"c": 4},
    "model-spilling": {"m": Rule(0.05), "z": Rule(0.01)},
    "powersgd": {"k": 4, "l": 50, "s": Rule(14.14, 0.5), "v": SMALL},
    "ring-attention": {"n": SMALL, "h": 4096},
    "ulysses": {"n": SMALL, "heads": 64, "h": 64},
    "spatial": {**_NORMS, "a": Rule(0.01), "h": 64},
    "sufficient-factor-broadcast": {"m": ROOT, "n": ROOT, "k": 32},
    "tensor-fusion": {**_IN_LAYERS, "c": 16_777_216},
    "wait-free-backprop": _IN_LAYERS,
    "tensor-parallel-column-row": {
        "l": 24,
        "h": Rule(0.0589, 0.5),
        "tokens": 8192,
        "heads": 64,
    },
    "three-d": {
        **_PIPELINE,
        "d": Rule(1 / 4, by="p"),
        "q": 2,
        "k": 2,
        "h": Rule(0.5, 0.5),
        "u": 64,
        "e": 4,
    },
    "top-k-error-feedback": {"k": Rule(0.01)},
    "zero-2": {"u": 24, "n": Rule(1 / 24), "k": 1},
    "zero-3": {"u": 24, "n": Rule(1 / 24)},
    "zero-copy-transfer": {"s": Rule(4, plus=161)},
}
# What a page compares, in this order, and how a claim's words tell which it is.
QUANTITIES = (
    ("memory", "What it holds"),
    ("bytes", "Bytes it sends"),
    ("time", "Time and waiting"),
    ("age", "Age and agreement"),
    ("limit", "How far it goes"),
    ("loss", "What it loses"),
    ("calls", "Messages, rounds, calls"),
)
_KINDS = (
    (
        "memory",
        r"bytes.*(keeps|holds|held|alive| in (fast|slow) mem|shared mem|optimizer)",
    ),
    ("memory", r"bytes of parameters|bytes of tables|held at once|held it|versions of"),
    ("limit", r"^1 where"),
    ("bytes", r"bytes"),
    ("time", r"virtual seconds|run forward"),
    ("age", r"\bage\b|between a batch|clock|half as far|distance|missed"),
    ("limit", r"ranks that share|ranks in all|fewest activations"),
    ("loss", r"squared error|underflow|dropped"),
)


def kind(claim: Claim) -> str:
    """Which of the quantities a claim counts."""
    words = claim.says.lower()
    return next((k for k, rule in _KINDS if re.search(rule, words)), "calls")


def unit(claim: Claim) -> str:
    """B for bytes, s for virtual seconds, else nothing."""
    words = claim.says.lower()
    if words.startswith("virtual seconds"):
        return "s"
    return "B" if re.match(r"(most )?bytes", words) else ""


def given(
    technique: Technique, claim: Claim, recorded: Mapping[str, Any]
) -> list[tuple[str, Value]]:
    """The formula's arguments in order, each with its rule; KeyError: not known."""
    assert claim.formula is not None
    names = arguments(FORMULAS[claim.formula])
    own = {**recorded, **COMMON, **GIVEN.get(technique.id, {})}
    return [(a, Rule(by=a) if a in ("p", "r") else own[a]) for a in names]


def values(claim: Claim, rules: list[tuple[str, Value]], p: int, n: int) -> list[float]:
    """The formula on the first, the second and the last rank, where it differs."""
    assert claim.formula is not None
    out = []
    for r in sorted({0, min(1, p - 1), p - 1}):
        known = {"p": p, "r": r}
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
