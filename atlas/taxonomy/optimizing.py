"""Where a system's optimizer runs: read off the techniques it uses, never typed."""

import dataclasses
from collections.abc import Iterable, Mapping

from atlas.taxonomy.kinds import Axis, OptimizerLocation, System, Technique

#: Facets of the sync axis whose families say which model a gradient goes to.
DECIDING = ("consistency", "pipelining")


def place(
    systems: Mapping[str, System],
    techniques: Mapping[str, Technique],
    axes: Iterable[Axis],
) -> dict[str, System]:
    """The systems, each with the place of its optimizer."""
    families = {
        (axis.id, family.id)
        for axis in axes
        for family in axis.families
        if family.facet in DECIDING
    }
    deciding = {id: t for id, t in techniques.items() if (t.axis, t.family) in families}
    return {
        id: dataclasses.replace(s, optimizer_location=_location(s, deciding))
        for id, s in systems.items()
    }


def _location(s: System, deciding: Mapping[str, Technique]) -> OptimizerLocation | None:
    """One place if all its deciding techniques agree, else either; None without any."""
    uses = [use for use in s.uses if use.technique in deciding]
    if not uses:
        return None
    found = {deciding[use.technique].optimizer for use in uses}
    because = tuple(use.technique for use in uses)
    read = all(use.verified for use in uses)
    return OptimizerLocation(
        found.pop() if len(found) == 1 else "either", because, read
    )
