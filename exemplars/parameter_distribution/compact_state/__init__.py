"""State is recomputed instead of kept, or kept in fewer bits."""
