"""`atlas judge FILE`: hold a run that some launcher made against its claims."""

import hashlib
import json as encoding
from collections import Counter
from pathlib import Path
from typing import Annotated, Any

import typer

from atlas import record as records
from atlas import taxonomy
from atlas.commands import common
from atlas.commands.common import Json, Wrong
from atlas.commands.run import plain, show
from atlas.launchers import FORMAT, VARIABLE
from atlas.measure import derive
from atlas.taxonomy import Atlas, Technique
from atlas.verdict import failed
from atlas.verdict import judge as judged

File = Annotated[
    Path, typer.Argument(help=f"What {VARIABLE}=FILE made a run write.", metavar="FILE")
]
KeepOption = Annotated[
    bool, typer.Option("--keep", help="Save a run on NCCL in measurements/nccl/.")
]
AllRanksOption = Annotated[
    bool,
    typer.Option("--all-ranks", help="One line per rank instead of one per claim."),
]


def judge(
    file: File, keep: KeepOption = False, all_ranks: AllRanksOption = False,
    json: Json = False,
) -> None:  # fmt: skip
    """Judge a run that torchrun, Slurm, TorchX or Ray made, on one node or many.

    The exit code is 1 if a claim fails.

    Examples:

    \b
    ATLAS_RECORD=run.json srun -N 2 -n 8 python -m exemplars.A.B.C
    atlas judge run.json
    atlas judge run.json --keep
    """
    root = common.writable_root("atlas judge --keep") if keep else taxonomy.find_root()
    atlas, made = taxonomy.load(root), _read(file)
    technique = _technique(atlas, made, file)
    run = _run(made, file)
    verdicts = judged(technique, run)
    if json:
        value = plain(technique, None, run, verdicts)
        common.print_json({**value, "places": [r["place"] for r in made["ranks"]]})
    else:
        show(technique, None, run, verdicts, all_ranks)
        typer.echo(_where(made))
    if failed(verdicts):
        raise typer.Exit(1)
    if keep:
        typer.echo(f"wrote {_keep(atlas, technique, made, run)}")


def _read(file: Path) -> dict[str, Any]:
    try:
        made = encoding.loads(file.read_text(encoding="utf-8"))
    except OSError as error:
        raise Wrong(f"cannot read {file}: {error.strerror}") from None
    except ValueError:
        raise Wrong(f"{file} is not JSON") from None
    if (
        not isinstance(made, dict)
        or made.get("format") != FORMAT
        or "module" not in made
    ):
        raise Wrong(
            f"{file} was not written by {VARIABLE} of this version of the atlas"
        )
    return made


def _technique(atlas: Atlas, made: dict[str, Any], file: Path) -> Technique:
    for technique in atlas.techniques.values():
        if technique.module == made["module"]:
            return technique
    raise Wrong(f"{file} is a run of {made['module']}, which is no exemplar")


def _run(made: dict[str, Any], file: Path) -> dict[str, Any]:
    """As `atlas run` has it."""
    ranks = sorted(made["ranks"], key=lambda r: int(r["rank"]))
    given = ranks[0]["given"]
    if any(rank["given"] != given for rank in ranks):
        raise Wrong(f"{file}: the ranks differ in what was given", 1)
    return {
        "p": len(ranks),
        "mode": "nccl" if "nccl" in made["backend"] else "gloo",
        "given": given,
        "sizes": ranks[0]["sizes"],
        "derived": derive([r["events"] for r in ranks]),
        "times": {"seconds": round(max(r["seconds"] for r in ranks), 6)},
        "ranks": [{k: v for k, v in r.items() if v is not None} for r in ranks],
    }


def _where(made: dict[str, Any]) -> str:
    """On which hosts, over which links."""
    counts = Counter(r["place"]["host"] for r in made["ranks"])
    hosts = ", ".join(f"{host} ({n})" for host, n in counts.items())
    links = sorted(
        {
            f"{p['interface']} {p['mbit_per_s']} Mbit/s" if "mbit_per_s" in p
            else p["interface"]
            for p in (r["place"] for r in made["ranks"])
            if "interface" in p
        }
    )  # fmt: skip
    over = f", over {', '.join(links)}" if links else ""
    devices = ", ".join(sorted({r["place"]["device"] for r in made["ranks"]}))
    return f"ranks on {hosts}{over}; {devices}; torch {made['versions']['torch']}"


def _keep(
    atlas: Atlas, technique: Technique, made: dict[str, Any], run: dict[str, Any]
) -> Path:
    """Into the record on NCCL, beside the runs on other numbers of ranks."""
    if run["mode"] != "nccl":
        raise Wrong(f"a run on {run['mode']} is not kept: atlas record makes those")
    text = (atlas.root / technique.exemplar).read_bytes()
    if hashlib.sha256(text).hexdigest() != made["exemplar"]:
        raise Wrong(f"{technique.exemplar} has changed since this run: run it again")
    return records.add(atlas.root, technique, run, made).relative_to(atlas.root)
