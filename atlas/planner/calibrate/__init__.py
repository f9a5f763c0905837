"""Measures a machine, and says how well a line fits what was measured."""
