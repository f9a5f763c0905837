"""Races: strategies on the same samples, compared by loss, virtual time and bytes.

    atlas race bsp-synchronous-sgd downpour local-sgd

What runs is the exemplar's own `train`, on four ranks. A race calls it with a task,
steps, a batch, a rate and a clock, and looks at the weights of each step.
"""

#: Who may take part, known without loading torch.
NAMES = (
    "bsp-synchronous-sgd",
    "stale-synchronous-parallel",
    "backup-workers",
    "large-batch-scaling",
    "downpour",
    "n-softsync",
    "staleness-aware-rate",
    "delay-compensated-asgd",
    "asynchronous-gossip",
    "local-sgd",
    "post-local-sgd",
    "block-momentum",
    "diloco",
    "streaming-diloco",
    "elastic-averaging",
    "elastic-averaging-asynchronous",
    "d-psgd",
    "push-sum",
    "rotating-partners",
    "gpipe",
    "weight-stashing",
    "vertical-sync",
    "weight-prediction",
    "double-buffered-weights",
    "local-parallelism:backprop",
    "local-parallelism:chunked",
    "local-parallelism:greedy",
    "local-parallelism-overlapping",
    "interlocking-backprop",
    "decoupled-greedy-buffer",
    "synthetic-gradients",
)
