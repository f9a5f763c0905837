"""Fewer entries are sent."""
