"""The ranks in a box, and this rank's groups along any of its axes."""

from collections.abc import Iterable, Mapping

import torch
import torch.distributed as dist

from atlas.views.composition import AXES

#: What the parts of a batch lie on: samples on some, tokens on the others.
SAMPLES = ("data", "shard", "expert")
TOKENS = ("context", "heads")


class Mesh:
    """A box of all ranks; every rank makes every group, in the same order."""

    def __init__(self, lengths: Mapping[str, int]) -> None:
        self.size = {axis: lengths.get(axis, 1) for axis in AXES}
        box = torch.arange(dist.get_world_size()).view(*self.size.values())
        here = (box == dist.get_rank()).nonzero()[0].tolist()
        self.place = dict(zip(AXES, here, strict=True))
        self._box = box
        self._made: dict[tuple[str, ...], dist.ProcessGroup] = {}
        #: A line along each axis, for what goes from one to the next.
        self.group = {axis: self.over([axis]) for axis in self.long}

    @property
    def long(self) -> list[str]:
        """The axes along which there is more than one rank."""
        return [axis for axis, size in self.size.items() if size > 1]

    def over(self, axes: Iterable[str]) -> dist.ProcessGroup:
        """This rank's group over these axes together; along none, itself."""
        asked = set(axes)
        names = tuple(axis for axis in self.long if axis in asked)
        if names not in self._made:
            last = [AXES.index(name) for name in names]
            rest = [i for i in range(len(AXES)) if i not in last]
            count = self._box.numel()
            parts = 1
            for name in names:
                parts *= self.size[name]
            lines = self._box.permute(*rest, *last).reshape(count // parts, parts)
            made, _ = dist.new_subgroups_by_enumeration(lines.tolist())
            self._made[names] = made
        return self._made[names]

    def part(self, axes: Iterable[str]) -> tuple[int, int]:
        """Where this rank stands along these axes together, and how many there are."""
        place, parts = 0, 1
        for axis in axes:
            place = place * self.size[axis] + self.place[axis]
            parts *= self.size[axis]
        return place, parts
