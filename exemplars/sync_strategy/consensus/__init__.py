"""Approximate agreement, by partial averages."""
