"""A pipeline as data: who does what, in which order.

    schedule = generate("zb-h1", ranks=4, microbatches=8)
    problems(schedule)                    # [] if it is legal and cannot deadlock
    cost(schedule, {"F": 1, "B": 1, "W": 1}, message=0).makespan
    peaks(schedule)                       # activations that each rank holds at most

A schedule gives every rank the list of its work. Execution, drawing, bubble and
memory all come from that one list, so they cannot disagree.
"""

from atlas.schedule.actions import Action, Schedule, Work, needs, of_stages
from atlas.schedule.checker import (
    Post,
    Program,
    plain_programs,
    problems,
    programs,
    stuck,
)
from atlas.schedule.costs import Cost, Placed, cost, in_flight, peaks, simulate
from atlas.schedule.named import GENERATORS, Generator, generate
from atlas.schedule.torch_order import (
    from_csv,
    from_torch,
    to_csv,
    to_torch,
)

__all__ = [
    "GENERATORS",
    "Action",
    "Cost",
    "Generator",
    "Placed",
    "Post",
    "Program",
    "Schedule",
    "Work",
    "cost",
    "from_csv",
    "from_torch",
    "generate",
    "in_flight",
    "needs",
    "of_stages",
    "peaks",
    "plain_programs",
    "problems",
    "programs",
    "simulate",
    "stuck",
    "to_csv",
    "to_torch",
]
