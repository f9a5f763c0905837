"""Some steps alone, then agreement."""
