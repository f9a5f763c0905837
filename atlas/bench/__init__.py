"""Each exemplar beside the production code that does the same, in one run.

    python -m atlas.bench                        # all of them, and the study is kept
    python -m atlas.bench --only zero-3 --no-write

One file a technique says what is compared (`ring`, `bsp`, `zero`, `tensor`,
`pipeline`, `top_k`); `pair` checks, times and meters a pair on the ranks;
`study` launches them and keeps the figures in measurements/studies/.
"""
