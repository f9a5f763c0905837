"""What the oracle is asked about: models, clusters and trainings off a command line."""

import json
import re
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Annotated, Any, TypeVar

import typer

from atlas import taxonomy
from atlas.commands import common
from atlas.commands.common import Wrong
from atlas.planner import presets
from atlas.planner.cluster import Cluster
from atlas.planner.errors import OracleError
from atlas.planner.model import Model
from atlas.planner.records import Recompute
from atlas.planner.train import OPTIMIZERS, PRECISIONS, RECOMPUTE, Train
from atlas.planner.transformer import dimensions, transformer
from atlas.taxonomy.typed import BAD, Reader
from atlas.taxonomy.yamlmarks import Problem, Refused, read_text, read_tree

T = TypeVar("T")
FILES = (".yaml", ".yml", ".json")


# Completion: names of files alone


def _stems(folder: str, incomplete: str) -> list[str]:
    try:
        root = taxonomy.find_root()
    except taxonomy.TaxonomyError:
        return []
    found = sorted((root / "taxonomy" / folder).glob("*.yaml"))
    return [p.stem for p in found if p.stem.startswith(incomplete)]


def complete_model(incomplete: str) -> list[str]:
    """Models that begin like this."""
    return _stems("models", incomplete)


def complete_cluster(incomplete: str) -> list[str]:
    """Clusters that begin like this."""
    return _stems("clusters", incomplete)


def _complete(words: Iterable[str]) -> Callable[[str], list[str]]:
    known = list(words)
    return lambda incomplete: [w for w in known if w.startswith(incomplete)]


ModelOption = Annotated[
    str | None,
    typer.Option(
        help="A preset, a YAML file, or a Hugging Face config.json.",
        metavar="MODEL",
        autocompletion=complete_model,
    ),
]
ClusterOption = Annotated[
    str | None,
    typer.Option(
        help="A preset or a YAML file.",
        metavar="CLUSTER",
        autocompletion=complete_cluster,
    ),
]
BatchOption = Annotated[
    int | None, typer.Option(help="Samples per step; for a transformer, sequences.")
]
MicroOption = Annotated[
    int | None,
    typer.Option("--micro-batch", help="Samples per micro-batch on a replica."),
]
PrecisionOption = Annotated[
    str | None,
    typer.Option(
        help=f"One of {', '.join(PRECISIONS)}; default: mixed if the device has bf16.",
        metavar="NAME",
        autocompletion=_complete(PRECISIONS),
    ),
]
OptimizerOption = Annotated[
    str,
    typer.Option(
        help=f"One of {', '.join(OPTIMIZERS)}.",
        metavar="NAME",
        autocompletion=_complete(OPTIMIZERS),
    ),
]
RecomputeOption = Annotated[
    str | None,
    typer.Option(
        help=f"What the backward pass recomputes: {', '.join(RECOMPUTE)}.",
        metavar="WHAT",
        autocompletion=_complete(RECOMPUTE),
    ),
]
SeqOption = Annotated[
    int | None, typer.Option(help="Tokens per sequence; default: the model's own.")
]
FlashOption = Annotated[
    bool,
    typer.Option(
        "--flash/--no-flash", help="Flash attention: scores are never stored."
    ),
]
EagerOption = Annotated[
    bool, typer.Option("--eager", help="No kernels are fused: more is kept.")
]
TokensOption = Annotated[float | None, typer.Option(help="Training budget in tokens.")]
EpochsOption = Annotated[float | None, typer.Option(help="Training budget in epochs.")]
PriceOption = Annotated[float | None, typer.Option(help="Price per device-hour.")]


# Names to values


def needed(value: T | None, option: str) -> T:
    """What has no default."""
    if value is None:
        raise Wrong(f"{option} is missing: atlas plan --list shows the presets")
    return value


def model_of(name: str, seq: int | None = None) -> Model:
    """A preset's name, a YAML file or a config.json as a model."""
    if name.endswith(FILES):
        made = _from_file(name, seq)
    else:
        made = presets.model(_resolved(name, presets.models(), "model"))
    return with_tokens(made, seq) if seq is not None else made


def cluster_of(name: str) -> Cluster:
    """A preset's name or a YAML file as a cluster."""
    if not name.endswith(FILES):
        return presets.cluster(_resolved(name, presets.clusters(), "cluster"))
    made, reader = _read(Path(name), presets.ClusterFile)
    if made is not BAD:
        presets.check_levels(made, reader)
    _raise(reader.problems)
    return presets.built_cluster(made, Path(name).stem)


def _resolved(name: str, known: list[str], kind: str) -> str:
    """The preset; its parts may stand in another order, as in v100-abci."""
    if name in known:
        return name
    same = [k for k in known if _parts(k) == _parts(name)]
    if len(same) == 1:
        return same[0]
    raise common.unknown(kind, name, known, f"there are {', '.join(known)}")


def _parts(name: str) -> list[str]:
    return sorted(re.findall(r"[a-z]+|\d+", name.casefold()))


def _from_file(name: str, seq: int | None) -> Model:
    path = Path(name)
    if path.suffix == ".json":
        from atlas.planner.huggingface import hugging_face

        stem = path.parent.name if path.stem == "config" else path.stem
        return hugging_face(_json(path), stem or path.stem, seq)
    made, reader = _read(path, presets.ModelFile)
    built = presets.built_model(made, path.stem, reader) if made is not BAD else None
    _raise(reader.problems)
    assert built is not None
    return built


def _json(path: Path) -> dict[str, Any]:
    try:
        found = json.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise Wrong(f"{path}: {error.strerror}") from None
    except ValueError:
        raise Wrong(f"{path}: not JSON: expected a Hugging Face config.json") from None
    if not isinstance(found, dict):
        raise Wrong(f"{path}: expected a JSON object, as in a config.json")
    return found


def _read(path: Path, kind: type) -> tuple[Any, Reader]:
    try:
        node, problems = read_tree(read_text(path, str(path)), str(path))
    except Refused as refused:
        raise Wrong(str(refused.problem)) from None
    reader = Reader(str(path), problems)
    return reader.record(node, kind), reader


def _raise(problems: Iterable[Problem]) -> None:
    if found := sorted(set(problems)):
        raise taxonomy.TaxonomyError([str(problem) for problem in found])


def with_tokens(model: Model, tokens: int) -> Model:
    """The same transformer for sequences of another length."""
    if model.block is None:
        raise OracleError(f"--seq {tokens}: {model.name} has no sequences")
    if tokens < 1:
        raise OracleError(f"--seq {tokens}: expected 1 or more")
    given = {**dimensions(model), "tokens": tokens}
    return transformer(model.name, **given, epoch=model.epoch, sources=model.sources)


def train_of(
    batch: int,
    cluster: Cluster,
    *,
    micro_batch: int | None = None,
    precision: str | None = None,
    optimizer: str = "adam",
    recompute: str = "none",
    flash: bool = True,
    eager: bool = False,
) -> Train:
    """A training; names are looked up, and the nearest is said."""
    if precision is None:
        precision = "mixed" if "bf16" in cluster.device.flops else "fp32"
    for word, known, kind in (
        (precision, PRECISIONS, "precision"),
        (optimizer, OPTIMIZERS, "optimizer"),
        (recompute, dict.fromkeys(RECOMPUTE), "recompute"),
    ):
        if word not in known:
            raise common.unknown(kind, word, known, f"there are {', '.join(known)}")
    return Train(
        batch,
        micro_batch=micro_batch,
        precision=PRECISIONS[precision],
        optimizer=OPTIMIZERS[optimizer],
        recompute=Recompute(recompute),
        flash=flash,
        eager=eager,
    )
