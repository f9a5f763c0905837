"""The contracts, by name."""

from atlas.check.contracts import collectives, cuts, moves, tables, training
from atlas.check.contracts.base import Broken, Case, Contract

CONTRACTS: dict[str, Contract] = {
    contract.id: contract
    for module in (collectives, training, cuts, moves, tables)
    for contract in module.CONTRACTS
}

__all__ = ["CONTRACTS", "Broken", "Case", "Contract"]
