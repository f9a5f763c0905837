"""Formulas of parameter-distribution/intra-layer: bytes, rounds, memory, time."""

from atlas.formulas.parts import chunk
from atlas.formulas.ranges import Count, Positive, Rank, Ranks, formula

# Tensor parallelism, a column split then a row split


@formula
def tensor_parallel_calls(layers: Count) -> int:
    """All-reduces each way through the layers: one for attention, one for the MLP.

    Source: Shoeybi et al. 2019, section 3.
    """
    return 2 * layers


@formula
def tensor_parallel_payload(
    layers: Count, batch: Count, tokens: Count, width: Positive, itemsize: Positive
) -> int:
    """Bytes handed to all-reduce, forward and backward, by all layers.

    Source: Shoeybi et al. 2019, section 3.
    """
    return 4 * layers * batch * tokens * width * itemsize


@formula
def tensor_parallel_held(
    ranks: Ranks,
    rank: Rank,
    layers: Count,
    heads: Positive,
    width: Positive,
    itemsize: Positive,
) -> int:
    """Bytes of parameters that a rank holds: its heads, its neurons, whole norms.

    Source: Shoeybi et al. 2019, section 3. A head has h/a rows of h weights and a
    bias in queries, keys and values, and as many columns of the output; a neuron h
    weights and a bias in, h out; whole are two norms and two biases.
    """
    attention = chunk(heads, ranks, rank) * (width // heads) * (4 * width + 3)
    perceptron = chunk(4 * width, ranks, rank) * (2 * width + 1)
    return layers * (attention + perceptron + 6 * width) * itemsize


# Filters or channels cut: every layer has a multiple of the narrowest's channels


@formula
def cut_calls(layers: Count) -> int:
    """Collectives each way through the convolutions: one for every layer.

    Source: Kahira et al. 2021, table III.
    """
    return layers


@formula
def filter_gathered(
    ranks: Ranks, batch: Count, outputs: Count, narrow: Positive, itemsize: Positive
) -> int:
    """Bytes that a rank hands to all-gather: its part of the outputs, and padding.

    Source: Kahira et al. 2021, table III: a p-th of each map, here rounded up.
    """
    return chunk(narrow, ranks, 0) * (batch * outputs // narrow) * itemsize


@formula
def filter_summed(batch: Count, inputs: Count, itemsize: Positive) -> int:
    """Bytes that a rank hands to all-reduce: the gradients of all inputs.

    Source: Kahira et al. 2021, table III.
    """
    return batch * inputs * itemsize


@formula
def channel_summed(batch: Count, outputs: Count, itemsize: Positive) -> int:
    """Bytes that a rank hands to all-reduce: its terms of all outputs.

    Source: Kahira et al. 2021, table III.
    """
    return batch * outputs * itemsize


@formula
def channel_gathered(
    ranks: Ranks, batch: Count, inputs: Count, narrow: Positive, itemsize: Positive
) -> int:
    """Bytes that a rank hands to all-gather: its part of dx, and padding.

    Source: Kahira et al. 2021, table III: a p-th of each map, here rounded up.
    """
    return chunk(narrow, ranks, 0) * (batch * inputs // narrow) * itemsize


@formula
def cut_held(
    ranks: Ranks,
    rank: Rank,
    cut_weights: Count,
    whole_weights: Count,
    narrow: Positive,
    itemsize: Positive,
) -> int:
    """Bytes of parameters that a rank holds: its part of those cut, all others.

    Source: Kahira et al. 2021, table III: a p-th of the weights, in whole parts.
    """
    return (
        chunk(narrow, ranks, rank) * (cut_weights // narrow) + whole_weights
    ) * itemsize


# Cross-entropy of logits that are cut by vocabulary


@formula
def vocabulary_loss_calls() -> int:
    """All-reduces of the loss: the largest logits, then all sums at once.

    Source: derived; Megatron Core sends the sums one by one, in three calls.
    """
    return 2


@formula
def vocabulary_loss_payload(tokens: Count, itemsize: Positive) -> int:
    """Bytes handed to all-reduce for the loss: a maximum and two sums per token.

    Source: Shoeybi et al. 2019, section 3: scalars instead of logits.
    """
    return 3 * tokens * itemsize


@formula
def smoothed_loss_payload(tokens: Count, itemsize: Positive) -> int:
    """The same with label smoothing, which needs the sum of all logits as well.

    Source: derived; Megatron-LM, issue 737, is what happens without it.
    """
    return 4 * tokens * itemsize


@formula
def vocabulary_backward_payload(
    tokens: Count, width: Positive, itemsize: Positive
) -> int:
    """Bytes handed to all-reduce in backward: the gradient of the layer's input.

    Source: Shoeybi et al. 2019, section 3: the operator f.
    """
    return tokens * width * itemsize


@formula
def vocabulary_held(
    ranks: Ranks, rank: Rank, vocabulary: Count, width: Positive, itemsize: Positive
) -> int:
    """Bytes of the last matrix on a rank: a row for each of its tokens.

    Source: Shoeybi et al. 2019, section 3, in parts that differ by one row.
    """
    return chunk(vocabulary, ranks, rank) * width * itemsize


@formula
def vocabulary_activations(
    ranks: Ranks, rank: Rank, vocabulary: Count, tokens: Count, itemsize: Positive
) -> int:
    """Bytes kept for backward: one number for each logit of the rank.

    Source: derived: the logits' gradients replace them.
    """
    return chunk(vocabulary, ranks, rank) * tokens * itemsize


# Random numbers by their place in the whole tensor


@formula
def random_state_calls() -> int:
    """Collectives by which the ranks agree on random numbers: none.

    Source: Salmon et al. 2011: a number is a function of its place.
    """
    return 0


@formula
def random_state_held(
    ranks: Ranks,
    rank: Rank,
    tensor_ranks: Positive,
    hidden: Count,
    width: Positive,
    itemsize: Positive,
) -> int:
    """Bytes of parameters on a rank: two weights per neuron and input, and a bias.

    Source: Shoeybi et al. 2019, section 3: neurons are cut along the tensor axis, and
    copied along the other.
    """
    neurons = chunk(hidden, tensor_ranks, rank % tensor_ranks)
    return (2 * neurons * width + width) * itemsize


# Sequence parallelism: T/p tokens between the blocks


@formula
def sequence_parallel_volume(
    ranks: Ranks,
    layers: Count,
    batch: Count,
    tokens: Count,
    width: Positive,
    itemsize: Positive,
) -> int:
    """Bytes that a rank sends when the collectives are rings: those of all-reduces.

    Source: Korthikanti et al. 2022, section 4.2.2: four pairs of a reduce-scatter and
    an all-gather per layer, in place of four all-reduces; p divides the tokens.
    """
    return 8 * layers * (ranks - 1) * (tokens // ranks) * batch * width * itemsize


@formula
def sequence_parallel_own_volume(
    ranks: Ranks,
    layers: Count,
    batch: Count,
    tokens: Count,
    width: Positive,
    itemsize: Positive,
) -> int:
    """The same, with what enters a block gathered once more in backward.

    Source: Korthikanti et al. 2022, section 4.2.2: an extra all-gather, two per layer.
    """
    return 10 * layers * (ranks - 1) * (tokens // ranks) * batch * width * itemsize


@formula
def sequence_parallel_summed(layers: Count, width: Positive, itemsize: Positive) -> int:
    """Bytes handed to all-reduce: gradients of two norms and two biases per layer.

    Source: derived; Korthikanti et al. 2022 do not mention them.
    """
    return 6 * layers * width * itemsize


@formula
def block_inside(
    ranks: Ranks,
    rank: Rank,
    layers: Count,
    batch: Count,
    tokens: Count,
    width: Positive,
    heads: Positive,
    itemsize: Positive,
) -> int:
    """Bytes kept inside attention and perceptron: of this rank's heads and neurons.

    Source: Korthikanti et al. 2022, section 4.1, without its dropout masks: queries,
    keys, values and the output of attention, the neurons before and after the GELU,
    one number for each pair of tokens and head, and here one byte for the causal mask.
    """
    own_heads = chunk(heads, ranks, rank)
    numbers = 4 * own_heads * (width // heads) + 2 * chunk(4 * width, ranks, rank)
    pairs = own_heads * tokens * tokens
    kept = batch * (tokens * numbers + pairs) * itemsize
    return layers * (kept + tokens * tokens)


@formula
def tensor_parallel_activations(
    ranks: Ranks,
    rank: Rank,
    layers: Count,
    batch: Count,
    tokens: Count,
    width: Positive,
    heads: Positive,
    itemsize: Positive,
) -> int:
    """Bytes kept for backward: input and output of two norms are whole on every rank.

    Source: Korthikanti et al. 2022, equation 2: the 10 of 10 + 24/t, less two masks.
    """
    inside = block_inside(ranks, rank, layers, batch, tokens, width, heads, itemsize)
    return inside + layers * batch * tokens * (4 * width + 4) * itemsize


@formula
def sequence_parallel_activations(
    ranks: Ranks,
    rank: Rank,
    layers: Count,
    batch: Count,
    tokens: Count,
    width: Positive,
    heads: Positive,
    itemsize: Positive,
) -> int:
    """Bytes kept for backward, where the gathered inputs of both blocks are kept.

    Source: derived from Korthikanti et al. 2022, section 4.2.2.
    """
    inside = block_inside(ranks, rank, layers, batch, tokens, width, heads, itemsize)
    between = tokens // ranks * (2 * width + 4) + tokens * 2 * width
    return inside + layers * batch * between * itemsize


@formula
def sequence_parallel_own_activations(
    ranks: Ranks,
    rank: Rank,
    layers: Count,
    batch: Count,
    tokens: Count,
    width: Positive,
    heads: Positive,
    itemsize: Positive,
) -> int:
    """Bytes kept for backward, where a rank keeps its own tokens of the inputs.

    Source: Korthikanti et al. 2022, equation 4: all of it a t-th, less the masks.
    """
    inside = block_inside(ranks, rank, layers, batch, tokens, width, heads, itemsize)
    return inside + layers * batch * tokens // ranks * (4 * width + 4) * itemsize


# Two-dimensional tensor parallelism: two layers, every matrix in blocks over a grid


@formula
def grid_calls(panels: Positive) -> int:
    """Collectives of two layers: a pair for each panel forward, two pairs backward.

    Source: Xu et al. 2021 (Optimus), section 3: SUMMA's three kinds of products.
    """
    return 12 * panels


@formula
def grid_payload(
    tokens: Count,
    width: Positive,
    hidden: Count,
    grid_rows: Positive,
    grid_columns: Positive,
    itemsize: Positive,
) -> int:
    """Bytes handed to broadcast and reduce: a/R and b/C, three times for each layer.

    Source: derived from Xu et al. 2021 (Optimus), section 3: forward both factors, and
    backward both factors and both gradients; in all 3 a/R + 3 b/C.
    """
    inputs = tokens * (width + hidden) // grid_rows
    weights = 2 * width * hidden // grid_columns
    return 3 * (inputs + weights) * itemsize


@formula
def grid_held(ranks: Ranks, width: Positive, hidden: Count, itemsize: Positive) -> int:
    """Bytes of both layers' weights on a rank: a block of each.

    Source: Xu et al. 2021 (Optimus), section 3.
    """
    return 2 * width * hidden // ranks * itemsize


@formula
def grid_activations(
    ranks: Ranks, tokens: Count, hidden: Count, itemsize: Positive
) -> int:
    """Bytes kept for backward: blocks of the neurons, before and after the GELU.

    Source: Xu et al. 2021 (Optimus), section 3: activations are partitioned too.
    """
    return 2 * tokens * hidden // ranks * itemsize
