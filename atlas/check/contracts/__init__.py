"""The contracts, by name."""

from atlas.check.contracts import collectives, tables, training
from atlas.check.contracts.base import Broken, Case, Contract

CONTRACTS: dict[str, Contract] = {
    c.id: c for c in (*collectives.CONTRACTS, *training.CONTRACTS, *tables.CONTRACTS)
}

__all__ = ["CONTRACTS", "Broken", "Case", "Contract"]
