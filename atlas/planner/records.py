"""What the planner's arithmetic takes and gives: records with no behavior.

Each is what a dataclass of the planner comes to when only numbers, truths and members
of enumerations are left, and an object of the same fields in JavaScript. Elements are
of one sample unless a field says otherwise; a sample of a transformer is a sequence.
"""

from enum import StrEnum
from typing import NamedTuple

__all__ = [
    "Block",
    "Bytes",
    "Cut",
    "Exchange",
    "Link",
    "Links",
    "Load",
    "Recipe",
    "Recompute",
    "Replicas",
    "Schedule",
    "ScheduleKind",
    "Speed",
    "Times",
    "Wires",
    "Work",
]


class Recompute(StrEnum):
    """What backward computes again."""

    NONE = "none"
    SELECTIVE = "selective"  # attention's scores
    OPERATIONS = "operations"  # all but every second product, and attention
    FULL = "full"  # every unit


class ScheduleKind(StrEnum):
    """The order in which a pipeline's stages take micro-batches."""

    GPIPE = "gpipe"
    ONE_F_ONE_B = "1f1b"
    INTERLEAVED = "interleaved"
    ZERO_BUBBLE = "zero-bubble"
    STASHING = "stashing"
    LOCAL = "local"


class Work(NamedTuple):
    """What the layers of one stage compute, keep and pass on, for one sample."""

    layers: int = 0  # units: what is gathered, or recomputed, at a time
    weights: int = 0  # parameters that tensor, filter and channel axes cut
    shared: int = 0  # parameters that they leave whole
    experts: int = 0  # parameters that an expert axis cuts, and a tensor axis
    tables: int = 0  # parameters that an embedding axis cuts
    largest: int = 0  # parameters of the largest unit
    kernels: int = 0  # matrix products and convolutions, forward
    flops: float = 0.0  # forward, of those that a cut divides
    serial: float = 0.0  # forward, of those that it does not
    scores: float = 0.0  # forward, of attention's two products
    once: float = 0.0  # of flops, those that are never computed again: the head's
    last: float = 0.0  # of flops, those of each unit's last product
    moved: int = 0  # elements that element-wise work reads and writes, forward
    moved_cut: int = 0  # the same where a tensor axis cuts
    moved_scores: int = 0  # the same of attention's scores
    kept: int = 0  # elements saved for backward on every rank of a tensor axis
    kept_cut: int = 0  # those that it cuts
    noted: int = 0  # elements of what is kept if all but some products is done again
    noted_cut: int = 0  # those that a tensor axis cuts
    kept_scores: int = 0  # those of attention's scores
    fixed: int = 0  # bytes saved whatever the precision: masks of dropout
    fixed_cut: int = 0  # those that a tensor axis cuts: logits in 32 bits
    fixed_scores: int = 0  # those of attention's scores
    eager: int = 0  # bytes saved besides by code that fuses nothing
    eager_cut: int = 0  # elements saved besides, which a tensor axis cuts
    working: int = 0  # elements of gradients that the largest unit has at once
    working_cut: int = 0  # the same where a tensor axis cuts
    inputs: int = 0  # elements that enter the units: what recomputing keeps
    passed: int = 0  # elements that leave the stage
    entries: int = 0  # column cuts: backward sums what entered
    entered: int = 0  # elements at all of them
    exits: int = 0  # row cuts: forward sums what leaves
    left: int = 0  # elements at all of them
    convolutions: int = 0  # layers whose filters can be cut
    narrow: int = 1  # filters of the narrowest of them
    x: int = 0  # elements that enter them
    y: int = 0  # elements that leave them
    channelled: int = 0  # layers whose channels can be cut: not the first
    thin: int = 1  # channels of the narrowest of them
    channel_x: int = 0  # elements that enter them
    channel_y: int = 0  # elements that leave them
    unchannelled: int = 0  # weights that a channel axis leaves whole, biases too
    unchannelled_flops: float = 0.0
    halos: int = 0  # messages to one neighbor, forward and backward
    halo: int = 0  # elements that one neighbor needs, forward and backward
    norms: int = 0  # batch norms
    normed: int = 0  # their channels
    attentions: int = 0
    queries: int = 0  # elements of queries and outputs
    pairs: int = 0  # elements of keys and values
    routes: int = 0  # layers that route tokens to experts
    routed: int = 0  # elements of tokens sent to experts, by capacity
    seat_kernels: int = 0  # of kernels, those of experts
    seat_flops: float = 0.0  # of flops, those at the seats of experts
    seat_kept: int = 0  # of kept, the same
    seat_kept_cut: int = 0  # of kept_cut
    seat_moved: int = 0  # of moved_cut
    seat_working: int = 0  # of working_cut
    lookups: int = 0  # elements read from tables
    indices: int = 0  # rows read from tables


class Block(NamedTuple):
    """The dimensions of a decoder-only transformer."""

    tokens: int  # of a sequence
    width: int
    heads: int
    head: int  # width of a head
    kv: int  # heads of keys and values
    ffn: int  # width of the perceptron
    vocabulary: int
    gated: int = 0  # 1: the perceptron has a third matrix, a gate
    bias: int = 1  # 1: matrices have biases
    dropout: int = 1  # 1: dropout, as in GPT
    norm: int = 2  # vectors of a norm: 2 with a bias, 1 without
    positions: int = 1  # 1: learned, a row for each token
    tied: int = 1  # 1: the head's matrix is the embedding's
    experts: int = 0  # perceptrons of a layer, 0: one, for all tokens
    chosen: int = 1  # experts of a token
    common: int = 0  # width of the perceptron that all tokens pass besides
    whole: int = 0  # other parameters of a layer: more norms, a gate of the common one
    slanted: int = 0  # 1: queries, keys and values alone have biases
    query_rank: int = 0  # of latent attention: width of the latent query, 0: none
    rank: int = 0  # width of the latent keys and values, 0: no latent attention
    turned: int = 0  # part of a head that says where a token is, besides `head`
    value: int = 0  # width of a head's values, 0: as its keys


class Recipe(NamedTuple):
    """How training is done, in bytes of one element."""

    weight: int = 2
    gradient: int = 2
    activation: int = 2
    state: int = 12  # of the optimizer, master weights included
    stepped: int = 28  # read and written by the optimizer's step
    recompute: Recompute = Recompute.NONE  # what backward computes again
    eager: bool = False  # no kernels are fused
    lean: bool = False  # the loss is computed on scores in 16 bits, in place
    stops: bool = False  # recomputing a unit stops before its last product
    flash: bool = False  # attention never stores its scores
    contention: float = 0.0  # of a hidden exchange's seconds, added to computing
    overlap: bool = True  # exchanges hide behind computation
    woven: bool = False  # exchanges inside layers hide too, piece by piece
    bucket: int = 0  # bytes of a gradient bucket; 0: all in one


class Cut(NamedTuple):
    """How one micro-batch is divided among the ranks that share it."""

    micro: int = 1  # samples of a micro-batch
    tensor: int = 1
    sequence: bool = False  # the tensor axis cuts tokens between its layers
    filter: int = 1
    channel: int = 1
    spatial: int = 1
    rows: int = 0  # of the smallest map: the spatial axis cuts between them; 0: evenly
    context: int = 1
    ring: bool = True  # the context axis passes keys and values on, or transposes
    expert: int = 1
    capacity: float = 1.0  # seats of an expert over its fair share
    embedding: int = 1


class Schedule(NamedTuple):
    """The pipeline."""

    stages: int = 1
    micros: int = 1  # micro-batches of a step
    chunks: int = 1  # stages that a rank has, interleaved
    kind: ScheduleKind = ScheduleKind.ONE_F_ONE_B  # the order of micro-batches


class Replicas(NamedTuple):
    """The data axis."""

    ranks: int = 1  # that agree on the gradient of what all of them hold
    alone: int = 1  # that agree on an expert's or a table's gradient
    stage: int = 0  # of ZeRO; 0: plain data parallelism
    shard: int = 1  # ranks that share one copy of the state


class Link(NamedTuple):
    """Seconds of a collective: launch + rounds * alpha + bytes sent * beta."""

    alpha: float = 0.0
    beta: float = 0.0
    launch: float = 0.0


class Links(NamedTuple):
    """What each collective costs a group."""

    all_reduce: Link = Link()
    all_gather: Link = Link()
    reduce_scatter: Link = Link()
    all_to_all: Link = Link()
    p2p: Link = Link()


class Wires(NamedTuple):
    """The links that each axis uses, as its place in the cluster decides."""

    cut: Links = Links()  # tensor, filter, channel or spatial axis
    context: Links = Links()
    expert: Links = Links()  # or embedding
    pipeline: Links = Links()
    data: Links = Links()  # all that agree on a gradient
    shard: Links = Links()  # inside one copy of a sharded state
    copies: Links = Links()  # between copies of a sharded state
    alone: Links = Links()  # data, without the expert or embedding axis


class Speed(NamedTuple):
    """The device."""

    peak: float = 1.0  # flops a second, in this precision
    top: float = 1.0  # share of the peak that a very large product reaches
    half: float = 0.0  # flops of a product that reaches half of that
    bandwidth: float = 1.0  # bytes a second, of its memory
    attention: float = 0.0  # flops a second of flash attention, 0: as products
    overhead: float = 0.0  # seconds of a kernel that does nothing
    host: float = 0.0  # seconds of the host for a product and what goes with it
    step: float = 0.0  # seconds of a step that does nothing
    timed: bool = False  # the rate was timed with element-wise work in it


class Load(NamedTuple):
    """Seconds of one micro-batch on one rank: computing, and waiting inside layers."""

    forward: float = 0.0  # products
    backward: float = 0.0
    weights: float = 0.0  # of backward, the gradients of weights
    forward_moved: float = 0.0  # element-wise
    backward_moved: float = 0.0
    forward_host: float = 0.0  # waiting for the host to launch what is short
    backward_host: float = 0.0
    cut_forward: float = 0.0  # tensor, filter, channel or spatial axis
    cut_backward: float = 0.0
    context_forward: float = 0.0  # what does not hide behind attention
    context_backward: float = 0.0
    expert_forward: float = 0.0
    expert_backward: float = 0.0
    message: float = 0.0  # one way between two stages


class Exchange(NamedTuple):
    """Seconds in which replicas agree, before any of it is hidden."""

    forward: float = 0.0  # in every micro-batch
    backward: float = 0.0
    reduce: float = 0.0  # once a step, from the last backward on
    gather: float = 0.0  # once a step, up to the first forward
    pieces: int = 1  # messages that it goes in, one after the other


class Times(NamedTuple):
    """Seconds of one step, by what they are spent on; they add up to the step."""

    compute: float = 0.0
    memory: float = 0.0  # element-wise work: the memory's bandwidth binds
    bubble: float = 0.0
    cut: float = 0.0
    context: float = 0.0
    expert: float = 0.0
    pipeline: float = 0.0
    data: float = 0.0
    optimizer: float = 0.0
    overhead: float = 0.0


class Bytes(NamedTuple):
    """Bytes of one rank, by what they hold; they add up to the peak."""

    parameters: float = 0.0
    gradients: float = 0.0
    optimizer: float = 0.0
    activations: float = 0.0
    buffers: float = 0.0
