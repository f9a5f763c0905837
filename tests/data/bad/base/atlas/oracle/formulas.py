"""Formulas that the claims of these files may name."""


def first_bytes(p: int) -> int:
    """Twice the ranks."""
    return 2 * p
