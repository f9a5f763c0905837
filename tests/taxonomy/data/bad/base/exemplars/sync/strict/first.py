"""Stands for an exemplar: a written one needs a formula for every exact claim."""
