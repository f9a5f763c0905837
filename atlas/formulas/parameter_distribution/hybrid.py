"""Formulas of parameter-distribution/hybrid: bytes, rounds, memory, time."""

from atlas.formulas.parameter_distribution.intra_layer import cut_held, filter_gathered
from atlas.formulas.parameter_distribution.within_sample import (
    spatial_halo,
    spatial_messages,
)
from atlas.formulas.parts import chunk
from atlas.formulas.ranges import Amount, Count, Positive, Rank, Ranks, formula
from atlas.formulas.sync_strategy.pipeline_flush import (
    pipeline_bytes,
    pipeline_makespan,
)

# A table of groups: samples are cut between groups, layers or rows inside


@formula
def group_ranks(ranks: Ranks) -> int:
    """Ranks of one group: 1, 2, 4 or 8, at least the root of p where that divides p.

    Source: derived: as square a table as halving allows; Kahira et al. 2021 fix it
    to the devices of a node.
    """
    divides = 8 if ranks % 8 == 0 else 4 if ranks % 4 == 0 else 2 - ranks % 2
    suffices = 1 if ranks <= 1 else 2 if ranks <= 4 else 4 if ranks <= 16 else 8
    return min(divides, suffices)


@formula
def group_samples(ranks: Ranks, rank: Rank, batch: Count) -> int:
    """Samples of a rank's group.

    Source: Kahira et al. 2021, table III: data parallelism between groups.
    """
    return chunk(batch, ranks // group_ranks(ranks), rank // group_ranks(ranks))


@formula
def data_filter_gathered(
    ranks: Ranks,
    rank: Rank,
    batch: Count,
    outputs: Count,
    narrow: Positive,
    itemsize: Positive,
) -> int:
    """Bytes that a rank hands to all-gather: its group's samples, its filters' maps.

    Source: Kahira et al. 2021, table III, data and filter, rounded up to whole parts.
    """
    samples = group_samples(ranks, rank, batch)
    return filter_gathered(group_ranks(ranks), samples, outputs, narrow, itemsize)


@formula
def data_filter_summed(
    ranks: Ranks,
    rank: Rank,
    batch: Count,
    inputs: Count,
    norms: Count,
    norm_channels: Count,
    itemsize: Positive,
) -> int:
    """Bytes that a rank hands to all-reduce: its samples' dx inside, norms between.

    Source: Kahira et al. 2021, table III, data and filter; each batch norm of C
    channels adds 2C + 1 sums forward and backward.
    """
    return (
        group_samples(ranks, rank, batch) * inputs + 2 * (2 * norm_channels + norms)
    ) * itemsize


@formula
def data_filter_exchanged(
    ranks: Ranks,
    rank: Rank,
    cut_weights: Count,
    norm_channels: Count,
    narrow: Positive,
    itemsize: Positive,
) -> int:
    """Bytes of gradients that a rank hands over: its filters' and all norms'.

    Source: Kahira et al. 2021, table III, data and filter: a q-th of the weights.
    """
    q = group_ranks(ranks)
    return cut_held(q, rank % q, cut_weights, 2 * norm_channels, narrow, itemsize)


@formula
def data_spatial_halo(
    ranks: Ranks, rank: Rank, batch: Count, halo: Count, itemsize: Positive
) -> int:
    """Bytes that a rank sends to neighbors in its group, for its group's samples.

    Source: derived from Kahira et al. 2021, table III: spatial inside, data between.
    """
    q = group_ranks(ranks)
    samples = group_samples(ranks, rank, batch)
    return spatial_halo(q, rank % q, samples, halo, itemsize)


@formula
def data_spatial_messages(ranks: Ranks, rank: Rank, halos: Count) -> int:
    """Messages that a rank sends to neighbors in its group.

    Source: derived from Kahira et al. 2021, table III: spatial inside, data between.
    """
    return spatial_messages(group_ranks(ranks), rank % group_ranks(ranks), halos)


# Redistribution: from one placement of a matrix on p ranks to another


@formula
def gathered_rows(ranks: Ranks, rows: Count, columns: Count, itemsize: Positive) -> int:
    """Bytes that a rank must send so that all have all rows, or a sum is cut by rows.

    Source: torch.distributed.tensor, DTensor.redistribute: an all-gather. A
    reduce-scatter is its reverse. Parts are as torch.chunk cuts them, and are padded.
    """
    return (ranks - 1) * -(-rows // ranks) * columns * itemsize


@formula
def gathered_columns(
    ranks: Ranks, rows: Count, columns: Count, itemsize: Positive
) -> int:
    """Bytes that a rank must send so that all have all columns, or a sum is cut so.

    Source: torch.distributed.tensor, DTensor.redistribute, as for rows.
    """
    return gathered_rows(ranks, columns, rows, itemsize)


@formula
def summed_terms(
    ranks: Ranks, rows: Count, columns: Count, itemsize: Positive
) -> float:
    """Bytes that a rank must send so that all have the sum of all terms.

    Source: Patarasuk and Yuan 2009: the least of any all-reduce.
    """
    return 2 * (ranks - 1) * rows * columns * itemsize / ranks


@formula
def turned_blocks(ranks: Ranks, rows: Count, columns: Count, itemsize: Positive) -> int:
    """Bytes that a rank must send to have columns instead of rows, or the reverse.

    Source: torch.distributed.tensor, DTensor.redistribute: an all-to-all, here of
    p x p equal blocks.
    """
    return (ranks - 1) * -(-rows // ranks) * -(-columns // ranks) * itemsize


@formula
def turned_twice(ranks: Ranks, rows: Count, columns: Count, itemsize: Positive) -> int:
    """Bytes that a rank must send to have columns instead of rows, and rows again.

    Source: torch.distributed.tensor, DTensor.redistribute: an all-to-all each way.
    """
    return 2 * turned_blocks(ranks, rows, columns, itemsize)


@formula
def turned_by_gathering(
    ranks: Ranks, rows: Count, columns: Count, itemsize: Positive
) -> int:
    """Bytes for the same two ways, if each gathers the whole and drops the rest.

    Source: derived; torch 2.13 does so on a mesh of CPUs (shard_dim_alltoall).
    """
    return ranks * turned_twice(ranks, rows, columns, itemsize)


@formula
def sent_for_free() -> int:
    """Bytes to cut what is whole, and to have terms of it: nothing is sent.

    Source: torch.distributed.tensor, DTensor.redistribute: local chunking. For terms,
    derived: what a rank has is a term.
    """
    return 0


# One weird trick: convolutions are cut by samples, dense layers by neurons


@formula
def one_weird_gathered(
    ranks: Ranks, batch: Count, inputs: Count, itemsize: Positive, steps: Count
) -> int:
    """Bytes that a rank hands to all-gather: its samples' features, its neurons.

    Source: Krizhevsky 2014, first scheme: activations are assembled on every rank.
    """
    return steps * (batch * inputs // ranks) * itemsize


@formula
def one_weird_scattered(
    batch: Count, inputs: Count, itemsize: Positive, steps: Count
) -> int:
    """Bytes that a rank hands to reduce-scatter: gradients of all that it gathered.

    Source: Krizhevsky 2014, first scheme: they go back where they came from.
    """
    return steps * batch * inputs * itemsize


@formula
def one_weird_gradients(whole_weights: Count, itemsize: Positive, steps: Count) -> int:
    """Bytes of gradients that a rank hands to all-reduce: convolutions alone.

    Source: Krizhevsky 2014: data parallelism in the convolutional layers.
    """
    return steps * whole_weights * itemsize


@formula
def one_weird_weights(ranks: Ranks, cut_weights: Count, itemsize: Positive) -> int:
    """Bytes of dense weights that a rank holds.

    Source: Krizhevsky 2014: model parallelism in the fully connected layers.
    """
    return cut_weights // ranks * itemsize


# Mesh layout: what is sent and held when a dimension is split over an axis


@formula
def mesh_layout_refused() -> int:
    """Layouts of three dimensions on two axes that put two of them on one axis.

    Source: derived from Shazeer et al. 2018: of three ways for each dimension, those
    are legal in which no two share an axis: none, one or two dimensions split.
    """
    return 3**3 - (1 + 3 * 2 + 3 * 2)


@formula
def mesh_layout_sent_batch(
    width: Count,
    hidden: Count,
    grid_rows: Positive,
    itemsize: Positive,
) -> int:
    """Bytes that a rank sends on rings when batch is on rows.

    Source: derived from Shazeer et al. 2018: where a product sums over a split
    dimension, an all-reduce along its axis: both weights' gradients.
    """
    return 4 * (grid_rows - 1) * (width * hidden // grid_rows) * itemsize


@formula
def mesh_layout_sent_width(
    batch: Count,
    hidden: Count,
    grid_rows: Positive,
    itemsize: Positive,
) -> int:
    """Bytes that a rank sends on rings when width is on rows.

    Source: derived from Shazeer et al. 2018: where a product sums over a split
    dimension, an all-reduce along its axis: the hidden layer and its gradient.
    """
    return 4 * (grid_rows - 1) * (batch * hidden // grid_rows) * itemsize


@formula
def mesh_layout_sent_hidden(
    batch: Count,
    width: Count,
    grid_rows: Positive,
    itemsize: Positive,
) -> int:
    """Bytes that a rank sends on rings when hidden is on rows.

    Source: derived from Shazeer et al. 2018: where a product sums over a split
    dimension, an all-reduce along its axis: the output, and the gradient of the input.
    """
    return 4 * (grid_rows - 1) * (batch * width // grid_rows) * itemsize


@formula
def mesh_layout_sent_batch_width(
    batch: Count,
    width: Count,
    hidden: Count,
    grid_rows: Positive,
    grid_columns: Positive,
    itemsize: Positive,
) -> int:
    """Bytes that a rank sends on rings when batch is on rows, width on columns.

    Source: derived from Shazeer et al. 2018: along each axis two all-reduces, of
    tensors that are split over the other.
    """
    return (
        4
        * hidden
        * ((grid_rows - 1) * width + (grid_columns - 1) * batch)
        // (grid_rows * grid_columns)
        * itemsize
    )


@formula
def mesh_layout_sent_batch_hidden(
    batch: Count,
    width: Count,
    hidden: Count,
    grid_rows: Positive,
    grid_columns: Positive,
    itemsize: Positive,
) -> int:
    """Bytes that a rank sends on rings when batch is on rows, hidden on columns.

    Source: derived from Shazeer et al. 2018: along each axis two all-reduces, of
    tensors that are split over the other.
    """
    return (
        4
        * width
        * ((grid_rows - 1) * hidden + (grid_columns - 1) * batch)
        // (grid_rows * grid_columns)
        * itemsize
    )


@formula
def mesh_layout_sent_width_hidden(
    batch: Count,
    width: Count,
    hidden: Count,
    grid_rows: Positive,
    grid_columns: Positive,
    itemsize: Positive,
) -> int:
    """Bytes that a rank sends on rings when width is on rows, hidden on columns.

    Source: derived from Shazeer et al. 2018: along each axis two all-reduces, of
    tensors that are split over the other.
    """
    return (
        4
        * batch
        * ((grid_rows - 1) * hidden + (grid_columns - 1) * width)
        // (grid_rows * grid_columns)
        * itemsize
    )


@formula
def mesh_layout_held_batch(
    batch: Count,
    width: Count,
    hidden: Count,
    grid_rows: Positive,
    itemsize: Positive,
) -> int:
    """Bytes of input, weights, hidden layer: batch is on rows.

    Source: Shazeer et al. 2018: a tensor is split if it has the dimension, and
    replicated if not.
    """
    return (
        batch * width // grid_rows + batch * hidden // grid_rows + 2 * width * hidden
    ) * itemsize


@formula
def mesh_layout_held_width(
    batch: Count,
    width: Count,
    hidden: Count,
    grid_rows: Positive,
    itemsize: Positive,
) -> int:
    """Bytes of input, weights, hidden layer: width is on rows.

    Source: Shazeer et al. 2018: a tensor is split if it has the dimension, and
    replicated if not.
    """
    return (
        batch * width // grid_rows + batch * hidden + 2 * (width * hidden // grid_rows)
    ) * itemsize


@formula
def mesh_layout_held_hidden(
    batch: Count,
    width: Count,
    hidden: Count,
    grid_rows: Positive,
    itemsize: Positive,
) -> int:
    """Bytes of input, weights, hidden layer: hidden is on rows.

    Source: Shazeer et al. 2018: a tensor is split if it has the dimension, and
    replicated if not.
    """
    return (
        batch * width + batch * hidden // grid_rows + 2 * (width * hidden // grid_rows)
    ) * itemsize


@formula
def mesh_layout_held_batch_width(
    batch: Count,
    width: Count,
    hidden: Count,
    grid_rows: Positive,
    grid_columns: Positive,
    itemsize: Positive,
) -> int:
    """Bytes of input, weights, hidden layer: batch is on rows, width on columns.

    Source: Shazeer et al. 2018: a tensor is split if it has the dimension, and
    replicated if not.
    """
    return (
        batch * width // (grid_rows * grid_columns)
        + batch * hidden // grid_rows
        + 2 * (width * hidden // grid_columns)
    ) * itemsize


@formula
def mesh_layout_held_batch_hidden(
    batch: Count,
    width: Count,
    hidden: Count,
    grid_rows: Positive,
    grid_columns: Positive,
    itemsize: Positive,
) -> int:
    """Bytes of input, weights, hidden layer: batch is on rows, hidden on columns.

    Source: Shazeer et al. 2018: a tensor is split if it has the dimension, and
    replicated if not.
    """
    return (
        batch * width // grid_rows
        + batch * hidden // (grid_rows * grid_columns)
        + 2 * (width * hidden // grid_columns)
    ) * itemsize


@formula
def mesh_layout_held_width_hidden(
    batch: Count,
    width: Count,
    hidden: Count,
    grid_rows: Positive,
    grid_columns: Positive,
    itemsize: Positive,
) -> int:
    """Bytes of input, weights, hidden layer: width is on rows, hidden on columns.

    Source: Shazeer et al. 2018: a tensor is split if it has the dimension, and
    replicated if not.
    """
    return (
        batch * width // grid_rows
        + batch * hidden // grid_columns
        + 2 * (width * hidden // (grid_rows * grid_columns))
    ) * itemsize


# Strategy search: what one way for all layers moves, and what the search looks at


@formula
def search_single(
    ranks: Ranks,
    elements: Count,
    batch: Count,
    inputs: Count,
    outputs: Count,
    itemsize: Positive,
) -> float:
    """Bytes that a rank sends if every layer is cut alike: by data, or by filters.

    Source: Jia et al. 2018: data and model parallelism are plans among the others.
    By data, the gradients of all weights are all-reduced. By filters, the inputs of
    all layers but the first are gathered and their gradients scattered, and the
    outputs of the last are turned from columns to rows and back. By channels it is
    more.
    """
    filters = batch * (ranks * inputs + outputs) / ranks
    return 2 * (ranks - 1) * min(elements, filters) * itemsize / ranks


@formula
def search_asked(ways: Positive, layers: Positive) -> int:
    """Costs that are asked for: each way after each other way, for every layer.

    Source: Song et al. 2019: dynamic programming by layers; before the first and
    after the last there is no choice.
    """
    return (layers - 1) * ways**2 + 2 * ways


# 3D: replicas of pipelines of tensor-parallel stages


@formula
def three_d_stages(ranks: Ranks, stages: Positive) -> int:
    """Length of the pipeline axis: 1 where p does not divide by the stages.

    Source: Narayanan et al. 2021: the product of the axes is p.
    """
    return stages if ranks % stages == 0 else 1


@formula
def three_d_tensor(ranks: Ranks, stages: Positive, tensor_ranks: Positive) -> int:
    """Length of the tensor axis: 1 where p does not divide by both.

    Source: Narayanan et al. 2021: the product of the axes is p.
    """
    return tensor_ranks if ranks % (stages * tensor_ranks) == 0 else 1


@formula
def three_d_data(ranks: Ranks, stages: Positive, tensor_ranks: Positive) -> int:
    """Length of the data axis: what the other two leave of p.

    Source: Narayanan et al. 2021: the product of the axes is p.
    """
    return (
        ranks
        // three_d_stages(ranks, stages)
        // three_d_tensor(ranks, stages, tensor_ranks)
    )


@formula
def three_d_tensor_first(
    ranks: Ranks, rank: Rank, stages: Positive, tensor_ranks: Positive
) -> int:
    """First rank of the tensor group: its ranks are next to one another.

    Source: Narayanan et al. 2021: tensor parallelism stays inside a node.
    """
    length = three_d_tensor(ranks, stages, tensor_ranks)
    return rank // length * length


@formula
def three_d_data_first(
    ranks: Ranks, rank: Rank, stages: Positive, tensor_ranks: Positive
) -> int:
    """First rank of the data group: its ranks are one pipeline apart.

    Source: Narayanan et al. 2021: replicas are the outermost axis.
    """
    return rank % (ranks // three_d_data(ranks, stages, tensor_ranks))


@formula
def three_d_tensor_calls(microbatches: Positive) -> int:
    """All-reduces of a stage of one perceptron: one each way for a micro-batch.

    Source: Shoeybi et al. 2019, section 3.
    """
    return 2 * microbatches


@formula
def three_d_tensor_bytes(microbatches: Positive, activation_bytes: Count) -> int:
    """Bytes handed to those all-reduces, a whole activation each.

    Source: Shoeybi et al. 2019, section 3.
    """
    return activation_bytes * three_d_tensor_calls(microbatches)


@formula
def three_d_sent(
    ranks: Ranks,
    rank: Rank,
    stages: Positive,
    tensor_ranks: Positive,
    microbatches: Positive,
    activation_bytes: Count,
) -> int:
    """Bytes that a rank sends to the stages beside its own, as in any pipeline.

    Source: Huang et al. 2019 (GPipe), section 2.3.
    """
    length = three_d_stages(ranks, stages)
    stage = rank // three_d_tensor(ranks, stages, tensor_ranks) % length
    return pipeline_bytes(length, stage, microbatches, activation_bytes)


@formula
def three_d_messages(
    ranks: Ranks,
    rank: Rank,
    stages: Positive,
    tensor_ranks: Positive,
    microbatches: Positive,
) -> int:
    """Messages that a rank sends to the stages beside its own.

    Source: Huang et al. 2019 (GPipe), section 2.3.
    """
    return three_d_sent(ranks, rank, stages, tensor_ranks, microbatches, 1)


@formula
def three_d_data_calls() -> int:
    """All-reduces among replicas in a step, when gradients are one vector.

    Source: Narayanan et al. 2021: once a batch, not once a micro-batch.
    """
    return 1


@formula
def three_d_data_bytes(
    ranks: Ranks,
    rank: Rank,
    stages: Positive,
    tensor_ranks: Positive,
    width: Positive,
    hidden: Count,
    itemsize: Positive,
) -> int:
    """Bytes that a rank hands to it: its neurons, a bias, and the loss.

    Source: derived; a neuron has h weights in, a bias, and h weights out.
    """
    length = three_d_tensor(ranks, stages, tensor_ranks)
    neurons = chunk(hidden, length, rank % length)
    return ((2 * width + 1) * neurons + width + 1) * itemsize


@formula
def three_d_makespan(
    ranks: Ranks,
    stages: Positive,
    microbatches: Positive,
    forward: Amount,
    backward: Amount,
) -> float:
    """Seconds of one step: a flush of the stages, however many ranks there are.

    Source: Huang et al. 2019 (GPipe), section 2.3; Narayanan et al. 2021, 2.2.1.
    """
    return pipeline_makespan(
        three_d_stages(ranks, stages), microbatches, forward, backward
    )
