"""Formulas of communication-pattern/quantization: bytes, rounds, memory, time."""

from atlas.formulas.ranges import Count, Positive, Ranks, formula


@formula
def one_bit_stripe(ranks: Ranks, elements: Count) -> int:
    """Bytes of one stripe's signs: every rank owns as many, in whole bytes.

    Source: derived: n signs on p ranks, eight to a byte.
    """
    return -(-elements // (8 * ranks))


@formula
def one_bit_bytes(
    ranks: Ranks, elements: Count, itemsize: Positive, steps: Count
) -> int:
    """Bytes a rank sends: signs and two means to the owners, and the same to all.

    Source: Seide et al. 2014, with one pair of means per gradient and per stripe.
    """
    way = one_bit_stripe(ranks, elements) + 2 * itemsize
    return steps * 2 * (ranks - 1) * way


@formula
def one_bit_gathered(ranks: Ranks, elements: Count) -> int:
    """Bytes a rank would send in one step to gather all signs on all ranks.

    Source: derived: its n signs go to each of p-1 others.
    """
    return (ranks - 1) * -(-elements // 8)


@formula
def one_bit_calls(steps: Count) -> int:
    """Collectives: an all-to-all of signs, and all-gathers of means, signs and means.

    Source: derived: two messages each way, signs and what they stand for.
    """
    return 4 * steps


@formula
def qsgd_payload(
    elements: Count, itemsize: Positive, steps: Count, bucket: Positive
) -> int:
    """Bytes a rank hands over: one byte per element and one norm per bucket.

    Source: Alistarh et al. 2017, section 3.1, with whole bytes for Elias codes.
    """
    return steps * (elements + itemsize * -(-elements // bucket))


@formula
def paired_gathers(steps: Count) -> int:
    """All-gathers when two are needed per step: the codes, and what decodes them.

    Source: Renggli et al. 2019 (SparCML): what cannot be summed on the way is gathered.
    """
    return 2 * steps


@formula
def qsgd_variance(bucket: Positive, levels: Positive) -> float:
    """Largest expected squared error of a draw, as a share of the squared norm.

    Source: Alistarh et al. 2017, lemma 3.1.
    """
    return min(bucket / levels**2, bucket**0.5 / levels)


# signSGD with majority vote: each rank counts the votes on one stripe


@formula
def sign_vote_bytes(ranks: Ranks, elements: Count, steps: Count) -> int:
    """Bytes a rank sends one way: one bit of every entry that others count.

    Source: Bernstein et al. 2019: one bit to the server, one back; here every rank
    serves a stripe of whole bytes.
    """
    return steps * (ranks - 1) * -(-elements // (8 * ranks))


@formula
def sign_vote_calls(steps: Count) -> int:
    """Collectives: votes to whoever counts them, verdicts to everyone.

    Source: derived: one all-to-all and one all-gather per step.
    """
    return 2 * steps


# Ternary gradients: two bits per element


@formula
def ternary_payload(elements: Count, itemsize: Positive, steps: Count) -> int:
    """Bytes a rank hands over: two bits per element, four to a byte, and a maximum.

    Source: Wen et al. 2017, section 3, with two bits for lg 3.
    """
    return steps * (-(-elements // 4) + itemsize)


@formula
def ternary_calls(steps: Count) -> int:
    """Collectives: the largest entry of all ranks, then the codes.

    Source: Wen et al. 2017, section 3, on the shared scale.
    """
    return 2 * steps


# 1-bit Adam: whole gradients in warm-up, then bits of momentum and one scale


@formula
def one_bit_adam_before(
    ranks: Ranks, elements: Count, itemsize: Positive, warmup: Count
) -> int:
    """Bytes a rank sends in warm-up: a ring all-reduce of the gradient per step.

    Source: Tang et al. 2021, algorithm 1; Patarasuk and Yuan 2009.
    """
    return warmup * 2 * (ranks - 1) * elements * itemsize // ranks


@formula
def one_bit_adam_after(
    ranks: Ranks, elements: Count, itemsize: Positive, steps: Count, warmup: Count
) -> int:
    """Bytes a rank sends after warm-up: signs and a scale to the owners, and to all.

    Source: Tang et al. 2021, algorithm 1, with stripes of whole bytes.
    """
    way = one_bit_stripe(ranks, elements) + itemsize
    return max(0, steps - warmup) * 2 * (ranks - 1) * way


@formula
def one_bit_adam_calls(steps: Count, warmup: Count) -> int:
    """Collectives: one all-reduce per step of warm-up, then those of 1-bit SGD.

    Source: Tang et al. 2021, algorithm 1.
    """
    return min(steps, warmup) + one_bit_calls(max(0, steps - warmup))
