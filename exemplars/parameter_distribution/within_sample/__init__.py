"""The sample itself is split, while the weights stay whole."""
