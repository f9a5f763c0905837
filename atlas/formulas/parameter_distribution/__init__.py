"""Formulas of the axis parameter-distribution, a module for each family."""
