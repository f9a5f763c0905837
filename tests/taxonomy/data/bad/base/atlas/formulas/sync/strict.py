"""Formulas that the claims of these files may name."""

from atlas.formulas.ranges import Ranks, formula


@formula
def first_bytes(ranks: Ranks) -> int:
    """Twice the ranks."""
    return 2 * ranks
