"""Formulas of parameter-distribution/compact-state: bytes, rounds, memory, time."""

from atlas.formulas.ranges import Count, Positive, formula

# Activation checkpointing


@formula
def checkpoint_peak(layers: Count, segments: Positive, activation_bytes: Count) -> int:
    """Most bytes of activations: every segment's input, and one segment's layers.

    Source: Chen et al. 2016 (sublinear memory), section 4.1.
    """
    return activation_bytes * (segments + -(-layers // segments))


@formula
def checkpoint_best(layers: Positive) -> float:
    """Segments that keep the fewest activations, if that is a whole number.

    Source: Chen et al. 2016 (sublinear memory), section 4.1.
    """
    return layers**0.5


@formula
def checkpoint_forwards(layers: Count) -> int:
    """Times that any layer runs forward: each of them twice.

    Source: Chen et al. 2016 (sublinear memory), section 4.1.
    """
    return 2 * layers


@formula
def checkpoint_makespan(layers: Count) -> int:
    """Seconds of a step if a layer takes 1 forward and 2 backward; 3 without it.

    Source: Chen et al. 2016 (sublinear memory), section 4.1: one extra forward.
    """
    return 4 * layers


@formula
def gradient_payload(elements: Count, itemsize: Positive) -> int:
    """Bytes of a gradient that is handed to all-reduce once.

    Source: Li et al. 2020, PyTorch Distributed.
    """
    return elements * itemsize


# Mixed precision


@formula
def mixed_precision_state(elements: Count) -> int:
    """Bytes that a rank keeps: 2 of weight and of gradient, 4 of master, 8 of moments.

    Source: Rajbhandari et al. 2020, section 3.1.
    """
    return 16 * elements


@formula
def mixed_precision_payload(elements: Count, steps: Count) -> int:
    """Bytes of 16-bit gradients that a rank hands over.

    Source: Micikevicius et al. 2018, section 3.
    """
    return 2 * elements * steps


@formula
def mixed_precision_lost() -> int:
    """Elements of a scaled gradient that underflow to zero.

    Source: Micikevicius et al. 2018, section 3.2.
    """
    return 0
