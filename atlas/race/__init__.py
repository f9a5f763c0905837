"""Races: strategies on the same samples, compared by loss, virtual time and bytes.

    atlas race bsp-synchronous-sgd downpour local-sgd

What runs is the exemplar, on four ranks. Its constants are its settings: a race
sets them (batch, rate, steps, clock, task) and looks at the weights on the way.
"""

#: Who may take part, known without loading torch.
NAMES = (
    "bsp-synchronous-sgd",
    "stale-synchronous-parallel",
    "downpour",
    "local-sgd",
    "diloco",
    "elastic-averaging",
    "elastic-averaging-asynchronous",
    "d-psgd",
    "weight-stashing",
    "local-parallelism:backprop",
    "local-parallelism:chunked",
    "local-parallelism:greedy",
)
