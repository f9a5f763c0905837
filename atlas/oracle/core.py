"""The oracle's arithmetic: plain functions of numbers and records of numbers.

The planner scores with these, `predict` names what they give, and
`atlas.oracle.emit` writes them as JavaScript for the calculator: one source. They
are therefore written in the little Python that emit reads, and check nothing:
who calls them has checked.

    placing      where a group's ranks are
    rings        seconds of a collective
    computing    what a rank computes of a micro-batch
    layerwise    what ranks tell one another inside layers
    agreement    what replicas hold, and how they agree
    pipelining   bubbles, what is in flight, the step
    holding      bytes at the peak
"""

from atlas.oracle.agreement import (
    alone_shard,
    buckets,
    exchange,
    exposed,
    held,
    held_alone,
    optimizer_seconds,
    padded,
    server_seconds,
    servers_needed,
)
from atlas.oracle.computing import (
    cut_part,
    divided,
    forward_flops,
    largest_part,
    moved_bytes,
    product_seconds,
    recomputed_flops,
    samples_of,
    score_flops,
    scores_moved,
    whole_flops,
)
from atlas.oracle.holding import (
    activation_bytes,
    border_bytes,
    input_bytes,
    kept_bytes,
    memory,
    state_bytes,
    unit_bytes,
)
from atlas.oracle.layerwise import (
    context_seconds,
    cut_backward_seconds,
    cut_forward_seconds,
    embedding_seconds,
    expert_seconds,
    halo_seconds,
    hidden_behind,
    load,
    message_seconds,
)
from atlas.oracle.pipelining import (
    backward_busy,
    bubble_seconds,
    busy,
    forward_busy,
    in_flight,
    stash,
    times,
)
from atlas.oracle.rings import gather_seconds, reduce_seconds, send_seconds

__all__ = [
    "activation_bytes",
    "alone_shard",
    "backward_busy",
    "border_bytes",
    "bubble_seconds",
    "buckets",
    "busy",
    "context_seconds",
    "cut_backward_seconds",
    "cut_forward_seconds",
    "cut_part",
    "divided",
    "embedding_seconds",
    "exchange",
    "expert_seconds",
    "exposed",
    "forward_busy",
    "forward_flops",
    "gather_seconds",
    "halo_seconds",
    "held",
    "held_alone",
    "hidden_behind",
    "in_flight",
    "input_bytes",
    "kept_bytes",
    "largest_part",
    "load",
    "memory",
    "message_seconds",
    "moved_bytes",
    "optimizer_seconds",
    "padded",
    "product_seconds",
    "recomputed_flops",
    "reduce_seconds",
    "samples_of",
    "score_flops",
    "scores_moved",
    "send_seconds",
    "server_seconds",
    "servers_needed",
    "stash",
    "state_bytes",
    "times",
    "unit_bytes",
    "whole_flops",
]
