"""A layer's weights are split."""
