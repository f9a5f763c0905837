"""`atlas new AXIS/FAMILY/NAME`: start a technique with files that already pass."""

from typing import Annotated

import typer

from atlas import scaffold, taxonomy
from atlas.commands import common
from atlas.commands.common import Wrong

Place = Annotated[
    str,
    typer.Argument(
        help="The family it belongs to, and its name.",
        metavar="AXIS/FAMILY/NAME",
        autocompletion=common.complete_place,
    ),
]

STEPS = """
1. See what it does now:          atlas run {id} --ranks 4
2. Describe the technique in      {yaml}
3. Predict each number in         {formulas}
4. Implement the mechanism in     {exemplar}
5. Break it, then record it:      atlas run {id} --mutant {mutant}
                                  atlas record {id}
CONTRIBUTING.md explains each step."""


def new(place: Place) -> None:
    """Start a technique: create its data and an exemplar that already runs and passes.

    If the technique has data but no exemplar yet, its data stay; its claims become
    comments that you prove one by one.

    Examples:

    \b
    atlas new communication-pattern/collective/my-all-reduce
    """
    atlas = taxonomy.load(common.writable_root("atlas new"))
    try:
        technique, files = scaffold.create(atlas, *_parts(atlas, place))
    except scaffold.ScaffoldError as error:
        raise Wrong(str(error)) from None
    for file in files:
        typer.echo(f"wrote {file}")
    typer.echo(
        STEPS.format(
            id=technique.id,
            yaml=technique.yaml,
            formulas=technique.formulas,
            exemplar=technique.exemplar,
            mutant=technique.mutants[0].id,
        )
    )


def _parts(atlas: taxonomy.Atlas, place: str) -> tuple[str, str, str]:
    parts = place.split("/")
    if len(parts) != 3:
        raise Wrong(f'"{place}": expected AXIS/FAMILY/NAME, like {_example(atlas)}')
    axis, family, name = parts
    axes = {a.id: a for a in atlas.axes}
    if axis not in axes:
        raise common.unknown("axis", axis, axes, f"there are {', '.join(axes)}")
    if f"{axis}/{family}" not in atlas.families:
        raise _no_family(atlas, axis, family)
    return axis, family, name


def _no_family(atlas: taxonomy.Atlas, axis: str, family: str) -> Wrong:
    elsewhere = [f.path for f in atlas.families.values() if f.id == family]
    if elsewhere:
        return Wrong(f'there is no family "{axis}/{family}": it is {elsewhere[0]}')
    here = [f.id for f in atlas.families.values() if f.axis == axis]
    otherwise = f"there are {', '.join(here)}"
    return common.unknown(f"family of {axis}", family, here, otherwise)


def _example(atlas: taxonomy.Atlas) -> str:
    return f"{next(iter(atlas.families))}/my-technique"
