"""Nobody is more than s clocks ahead."""
