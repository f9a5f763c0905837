"""Does a technique give the same bits: on every rank, in every run, for every p?

    python -m atlas.determinism                       # whatever is not up to date
    python -m atlas.determinism --technique zero-3

Runs answer, on gloo: every value that a claim checks is named by a digest of its bits.
"""
