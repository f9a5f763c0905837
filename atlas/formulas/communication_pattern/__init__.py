"""Formulas of the axis communication-pattern, a module for each family."""
