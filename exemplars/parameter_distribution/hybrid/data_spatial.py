"""Data and spatial parallelism: rows are cut in a group, samples between.

    torchrun --standalone --nproc-per-node 4 -m exemplars.parameter_distribution.hybrid.data_spatial

Arrange the ranks in a table, as data and filter parallelism does. A row is a
group (a node), which takes some of the samples; each of its ranks takes some
rows of each sample. Halos travel along a row of the table.

    samples 1    rank 0, upper rows    rank 1, lower rows
    samples 2    rank 2, upper rows    rank 3, lower rows

Both cuts leave the weights whole, so one all-reduce over all ranks adds up the
gradients of rows and of samples alike. Only the halo has to know about groups:
everything else is spatial parallelism, unchanged.

Source: Kahira et al. 2021 (ParaDL).
"""

from functools import partial

import torch.distributed as dist
from torch import Tensor, nn

from exemplars.parameter_distribution.hybrid.data_filter import (
    grid,
    own_samples,
)
from exemplars.parameter_distribution.within_sample import spatial
from exemplars.runtime import World, meter, report, world
from exemplars.workload import Norm, Pass, cnns, images, passes, row_sizes

Group = dist.ProcessGroup


def networks(w: World, inside: Group) -> list[nn.Module]:
    """Halos inside the group; norms over the rows and samples of all ranks."""
    #: The first rank of a group has nobody above it, though rank - 1 exists:
    #: that one has the last rows of other samples.
    swap = partial(spatial.swap, group=inside)
    #: Every rank has pixels that nobody else has, so the sums of a norm are
    #: added over all ranks, not over a row or a column.
    return cnns(
        w.device,
        conv=lambda whole: spatial.Spatial(whole, swap),
        norm=lambda whole: Norm(whole, spatial.Sum.apply),
    )


def own_part(x: Tensor, inside: Group, between: Group) -> Tensor:
    """Of this group's samples, this rank's rows."""
    #: Samples first: they are whole, and rows are cut from what remains.
    samples = own_samples(x, between)
    return spatial.own_rows(samples, inside.rank(), inside.size())


def reference(w: World, samples: list[Tensor], size: int) -> Pass:
    """One process; of it, this group's samples and this rank's rows."""
    group, place = divmod(w.rank, size)
    found = spatial.reference(w, samples, place, size)

    def own(t: Tensor) -> Tensor:
        return t.tensor_split(w.size // size)[group]

    activations = [own(t) for t in found.activations]
    return found._replace(
        activations=activations, dx=[own(t) for t in found.dx]
    )


def main(w: World, *, batch: int = 9) -> None:
    #: An odd number: with 2, 4 or 8 groups, some have one sample more.
    inside, between = grid(w, batch)
    #: Weights are whole on all ranks: there is nothing to cut.
    nets = networks(w, inside)
    samples = images(w, batch)
    learned = [t for net in nets for t in net.parameters()]
    grads: list[Tensor] = []
    memory = w.memory(parameters=lambda: learned, gradients=lambda: grads)
    with memory, meter() as moved:
        found = passes(nets, [own_part(x, inside, between) for x in samples])
        grads.extend(found.dw + found.dn)
        #: A sum, not a mean: parts of one sample add up to it. And over all
        #: ranks at once, since all of them hold all weights.
        spatial.agree(grads)
    serial = None if w.dry else reference(w, samples, inside.size())
    for claim, value in found._asdict().items():
        # Sums in another order, through up to 13 layers and their norms.
        w.check(claim, value, partial(getattr, serial, claim), slack=128)
    report(
        w,
        given={**row_sizes(), "itemsize": 8},
        group=inside.size(),
        halo=moved.bytes_sent,
        messages=moved.calls["send"].count,
        sums=moved.count,
        summed=moved.payload,
    )


if __name__ == "__main__":
    with world() as w:
        main(w)
