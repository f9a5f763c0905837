"""Formulas of the axis sync-strategy, a module for each family."""
