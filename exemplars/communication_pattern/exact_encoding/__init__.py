"""The message is smaller, and the receiver rebuilds exactly what was meant."""
