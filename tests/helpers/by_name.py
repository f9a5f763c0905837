"""Every formula as an attribute, wherever it is defined: `f.ring_all_reduce_bytes`."""

from types import SimpleNamespace

from atlas.formulas import FORMULAS

f = SimpleNamespace(**FORMULAS)
