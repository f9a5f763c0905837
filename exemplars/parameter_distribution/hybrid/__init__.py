"""Several ways of distributing at once, on one grid of ranks."""
