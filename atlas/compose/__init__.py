"""Pairs of techniques on one small transformer, each compared with one process.

    python -m atlas.compose                       # what is missing, a few minutes
    python -m atlas.compose zero-3 zero-bubble    # one pair, nothing is kept

`atlas.views.composition` is the table. `mesh` is the box of ranks, `model` the
transformer and this rank's part of it, `exchange` what becomes of gradients, `step` one
training step of a rank, `truth` the same step on one process, `study` what is kept.
Mechanisms are those of the exemplars; here they are only put together.
"""
