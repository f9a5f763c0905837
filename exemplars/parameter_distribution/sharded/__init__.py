"""Replicas own slices of the state."""
