"""Python written as other languages: formulas as LaTeX, the planner as JavaScript."""
