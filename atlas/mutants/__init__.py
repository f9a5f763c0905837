"""Would a claim notice? One small mistake at a time, put into the exemplars.

    python -m atlas.mutants                         every mutation, into the study
    python -m atlas.mutants --technique zero-1      of one technique
    python -m atlas.mutants --sample 200 --seed 7   some of all; nothing is written

A technique's YAML holds mutants written by hand: plausible mistakes, each with
the claims it must turn red. Mutations are made by rule: every operator, constant,
comparison, statement and peer of the mechanism is changed in turn, and the claims
are judged against a reference that has not changed. What survives is either
equivalent, and listed with the reason why, or a hole in the claims.

    parts       which statements are the mechanism, and which the truth
    changes     what may be changed at one place
    mutations   all of them for one source, each with a stable id
    trial       one of them, run on 2, 3, 4 ranks and on one
    study       all of them, and the file that keeps the outcome
    equivalent  those that change nothing that is claimed
    score       what the study found, for the pages
"""
