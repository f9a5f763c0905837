"""Formulas of sync-strategy/pipeline-flush: bytes, rounds, memory, time."""

from atlas.formulas.ranges import Amount, Count, Positive, Rank, Ranks, formula

# Pipelines: stage r is rank r


@formula
def one_f_one_b_in_flight(ranks: Ranks, rank: Rank, microbatches: Positive) -> int:
    """Most micro-batches whose activations stage r holds at once.

    Source: Narayanan et al. 2021, section 2.2.1.
    """
    return min(microbatches, ranks - rank)


@formula
def pipeline_bytes(
    ranks: Ranks, rank: Rank, microbatches: Positive, activation_bytes: Count
) -> int:
    """Bytes that stage r sends: activations onward, as many gradients back.

    Source: Huang et al. 2019 (GPipe), section 2.3: only the cut activations travel.
    """
    return (
        0
        if ranks == 1
        else microbatches * activation_bytes
        if rank == 0 or rank == ranks - 1
        else 2 * microbatches * activation_bytes
    )


@formula
def pipeline_makespan(
    ranks: Ranks, microbatches: Positive, forward: Amount, backward: Amount
) -> float:
    """Seconds in which all micro-batches pass p stages forward and backward.

    Source: Huang et al. 2019 (GPipe), section 2.3; Narayanan et al. 2021, 2.2.1.
    """
    return (microbatches + ranks - 1) * (forward + backward)


@formula
def pipeline_idle(ranks: Ranks, forward: Amount, backward: Amount) -> float:
    """Seconds that each stage is idle between two flushes, for any micro-batches.

    Source: Narayanan et al. 2021, section 2.2.1.
    """
    return (ranks - 1) * (forward + backward)


@formula
def pipeline_bubble(ranks: Ranks, microbatches: Positive) -> float:
    """Idle share of all the time (the ratio to the useful time is (p-1)/m).

    Source: Huang et al. 2019 (GPipe), section 2.3.
    """
    return (ranks - 1) / (microbatches + ranks - 1)


# GPipe: its time and its bytes are those of every pipeline with a flush


@formula
def gpipe_in_flight(microbatches: Positive) -> int:
    """Micro-batches whose activations every stage holds when backward begins.

    Source: Huang et al. 2019 (GPipe), section 2.3.
    """
    return microbatches


# Interleaved: v small stages per rank; forward and backward are those of one


@formula
def interleaved_in_flight(
    ranks: Ranks, rank: Rank, microbatches: Positive, stages_per_rank: Positive
) -> int:
    """Most activations of small stages that rank r holds at once.

    Source: Narayanan et al. 2021, section 2.2.2; Megatron-LM, schedules.py.
    """
    rounds = max(1, microbatches // ranks)
    return min(
        stages_per_rank * microbatches,
        (stages_per_rank - 1) * (microbatches // rounds) + 2 * (ranks - 1 - rank) + 1,
    )


@formula
def interleaved_bytes(
    ranks: Ranks,
    rank: Rank,
    microbatches: Positive,
    stages_per_rank: Positive,
    activation_bytes: Count,
) -> int:
    """Bytes that rank r sends: each micro-batch crosses v p - 1 cuts, there and back.

    Source: Narayanan et al. 2021, section 2.2.2: v times the communication.
    """
    ends = (1 if rank == 0 else 0) + (1 if rank == ranks - 1 else 0)
    return (
        0
        if ranks == 1
        else microbatches * activation_bytes * (2 * stages_per_rank - ends)
    )


@formula
def interleaved_makespan(
    ranks: Ranks,
    microbatches: Positive,
    stages_per_rank: Positive,
    forward: Amount,
    backward: Amount,
) -> float:
    """Seconds of all micro-batches, at least p, through v p small stages and back.

    Source: Narayanan et al. 2021, section 2.2.2.
    """
    return (stages_per_rank * microbatches + ranks - 1) * (forward + backward)


# Zero bubble: a backward in two parts, of which the second waits. From p micro-batches
# on and with W the shortest, a stage of ZB-H1 idles (p-1)(F+B-W) seconds; if the three
# are equal, and from 2p-1 micro-batches on, so does one of ZB-H2 until the flush.


@formula
def zero_bubble_in_flight(ranks: Ranks, microbatches: Positive, depth: Positive) -> int:
    """Micro-batches that every stage holds: p in ZB-H1, 2p-1 in ZB-H2.

    Source: Qi et al. 2024, sections 2.1 and 2.2.
    """
    return min(microbatches, depth * (ranks - 1) + 1)


@formula
def zero_bubble_idle(
    ranks: Ranks,
    microbatches: Positive,
    forward: Amount,
    input_gradient: Amount,
    weight_gradient: Amount,
) -> float:
    """Seconds that each stage of ZB-H1 is idle between two flushes.

    Source: Qi et al. 2024, section 2.3, table 2; few micro-batches by simulation.
    """
    filled = min(microbatches, ranks) - 1
    each = min(forward, input_gradient, weight_gradient)
    return (ranks - 1) * (forward + input_gradient) - filled * each


@formula
def zero_bubble_makespan(
    ranks: Ranks,
    microbatches: Positive,
    forward: Amount,
    input_gradient: Amount,
    weight_gradient: Amount,
) -> float:
    """Seconds of all micro-batches: a stage's own work, and what it idles.

    Source: Qi et al. 2024, section 2.3.
    """
    return microbatches * (
        forward + input_gradient + weight_gradient
    ) + zero_bubble_idle(ranks, microbatches, forward, input_gradient, weight_gradient)


# A V: two stages per rank, one on the way down and one on the way up; V-Min and V-Half
# in their blocks as they are, without the search that fills their ends; ZB-V whole


@formula
def v_shape_in_flight(ranks: Ranks, slope: Positive) -> int:
    """Most activations of half stages on a rank: V-Min at slope 1, V-Half 2, ZB-V 4.

    Source: Qi et al. 2024 (controllable memory), the authors' table: (p+4) // 3,
    (p+2) // 2 and p micro-batches.
    """
    return (
        2 * ((ranks + 4) // 3)
        if slope == 1
        else 2 * ((ranks + 2) // 2)
        if slope == 2
        else 2 * ranks
    )


@formula
def v_shape_bytes(
    ranks: Ranks, rank: Rank, microbatches: Positive, activation_bytes: Count
) -> int:
    """Bytes that rank r sends: on the way down and up, forward and back.

    Source: Qi et al. 2024 (controllable memory), section 3; the turn needs no message.
    """
    ways = (1 if rank > 0 else 0) + (1 if rank < ranks - 1 else 0)
    return 2 * microbatches * activation_bytes * ways


@formula
def v_shape_idle(ranks: Ranks, slope: Positive) -> int:
    """Slots that a rank idles, if F, B and W take one each, for m from 2p-1 on.

    Source: by simulation, for up to 10 ranks; at slopes 1 and 2 also for m from p on.
    """
    return (
        ranks - 1
        if slope == 4 or ranks == 1
        else 4 * ranks - (3 if ranks % 3 == 0 else 5)
        if slope == 1
        else (7 * ranks - 4) // 2
        if ranks % 2 == 0
        else (7 * ranks - 7) // 2
    )


# Message-driven scheduling: no fixed order, a limit on what is on the way


@formula
def message_driven_in_flight(limit: Positive) -> int:
    """Micro-batches whose activations any stage holds at once, at most.

    Source: derived from Singh and Bhatele 2022 (AxoNN): the first stage lets no
    more in.
    """
    return limit


# Token-level pipeline: slices of a sequence in the place of micro-batches


@formula
def token_pipeline_in_flight(slices: Positive) -> int:
    """Slices that every stage holds when backward begins: the whole sequence.

    Source: derived from Li et al. 2021 (TeraPipe): a slice is read by all later ones.
    """
    return slices


@formula
def token_pipeline_bytes(
    ranks: Ranks,
    rank: Rank,
    batch: Count,
    tokens: Count,
    width: Count,
    itemsize: Positive,
) -> int:
    """Bytes that stage r sends: every token once onward, and its gradient once back.

    Source: derived from Li et al. 2021 (TeraPipe): keys and values do not travel.
    """
    return (
        0
        if ranks == 1
        else batch * tokens * width * itemsize
        if rank == 0 or rank == ranks - 1
        else 2 * batch * tokens * width * itemsize
    )


@formula
def token_pipeline_makespan(
    ranks: Ranks, slices: Positive, forward: Amount, backward: Amount
) -> float:
    """Seconds in which slices of equal cost pass p stages forward and backward.

    Source: derived from Li et al. 2021 (TeraPipe); as with micro-batches.
    """
    return (slices + ranks - 1) * (forward + backward)


# Two directions: half of the micro-batches go down the ranks and half go up


@formula
def bidirectional_in_flight(ranks: Ranks, rank: Rank, microbatches: Positive) -> int:
    """Most activations that rank r holds at once, of an even number of micro-batches.

    Source: Li and Hoefler 2021, section 3.1: from p/2 + 1 at the ends to p in the
    middle; few micro-batches and an odd p by simulation.
    """
    each_way = min((ranks + 1) // 2, microbatches // 2)
    near = min(rank, ranks - 1 - rank)
    return min(2 * each_way, each_way + 1 + near)


@formula
def bidirectional_bytes(
    ranks: Ranks,
    rank: Rank,
    microbatches: Positive,
    activation_bytes: Count,
    width: Count,
    itemsize: Positive,
) -> int:
    """Bytes that rank r sends: at its cuts as in one direction, and its gradients once.

    Source: Li and Hoefler 2021, sections 3.1 and 3.2; the middle of an odd number has
    no twin.
    """
    cuts = (1 if rank > 0 else 0) + (1 if rank < ranks - 1 else 0)
    gradients = 0 if 2 * rank == ranks - 1 else 2 * (width * width + width) * itemsize
    return microbatches * activation_bytes * cuts + gradients


@formula
def bidirectional_weights(
    ranks: Ranks, rank: Rank, width: Count, itemsize: Positive
) -> int:
    """Bytes of weights that rank r holds: of two stages, which coincide in the middle.

    Source: Li and Hoefler 2021, section 3.1: a stage of each direction.
    """
    stages = 1 if 2 * rank == ranks - 1 else 2
    return stages * (width * width + width) * itemsize


@formula
def bidirectional_idle(ranks: Ranks, microbatches: Positive) -> int:
    """Slots that each rank idles, one per pass: p-2 if p is even and divides m.

    Source: Li and Hoefler 2021, section 3.1; a last block that is not full, and an odd
    p, by simulation.
    """
    last = (microbatches // 2 - 1) % ((ranks + 1) // 2) + 1
    full = 1 if 2 * last == ranks + 1 else 0
    return 2 * ranks - 2 - 2 * last + (ranks % 2) * (1 + full)


# DualPipe: every stage on two ranks, or a V with every stage on one; in all there are
# 2p / copies stages, and every rank has two


@formula
def dualpipe_in_flight(ranks: Ranks, copies: Positive) -> int:
    """Most activations of stages that a rank holds at once: one more than stages.

    Source: deepseek-ai/DualPipe, README, table "Pipeline Bubbles and Memory Usage
    Comparison": PP+1.
    """
    return 2 * ranks // copies + 1


@formula
def dualpipe_idle(ranks: Ranks, copies: Positive) -> int:
    """Slots that each rank idles, if F, B and W take one each, one after another.

    Source: by simulation, for up to 12 ranks and any legal micro-batches.
    """
    return ranks // copies - 1


@formula
def dualpipe_published_idle(
    ranks: Ranks,
    copies: Positive,
    pair: Amount,
    backward: Amount,
    weight_gradient: Amount,
) -> float:
    """Seconds that the ranks idle which idle most, if a pair is one piece of work.

    Source: deepseek-ai/DualPipe, README, the same table: (PP/2-1)(F&B + B - 3W).
    """
    return (ranks // copies - 1) * (pair + backward - 3 * weight_gradient)


@formula
def dualpipe_bytes(
    ranks: Ranks,
    rank: Rank,
    microbatches: Positive,
    copies: Positive,
    activation_bytes: Count,
    width: Count,
    itemsize: Positive,
) -> int:
    """Bytes that rank r sends: at its cuts, and its gradients if they have a copy.

    Source: derived: in a V each micro-batch crosses a cut twice as often.
    """
    cuts = (1 if rank > 0 else 0) + (1 if rank < ranks - 1 else 0)
    gradients = 0 if copies == 1 else 2 * (width * width + width) * itemsize
    return 2 * microbatches // copies * activation_bytes * cuts + gradients


@formula
def dualpipe_weights(width: Count, itemsize: Positive) -> int:
    """Bytes of weights that a rank holds: of two stages.

    Source: deepseek-ai/DualPipe, README, the same table: parameters 2x.
    """
    return 2 * (width * width + width) * itemsize
