"""Contracts of collectives: what every rank must end with, and how much may be sent."""

import inspect
from collections.abc import Callable, Iterator
from functools import partial
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from atlas.check.contracts.base import Case, Contract, Options, close

if TYPE_CHECKING:
    from exemplars.runtime import World

Maker = Callable[["World", int], Tensor]

#: name, shape, dtype, whether it may be refused
TENSORS = [
    ("one element", (1,), torch.float32, False),
    ("7 elements", (7,), torch.float32, False),
    ("12 elements", (12,), torch.float64, False),
    ("no element", (0,), torch.float32, True),
    ("a matrix", (3, 4), torch.float32, True),
    ("integers", (12,), torch.int64, True),
    ("bfloat16", (12,), torch.bfloat16, True),
    ("1009 elements", (1009,), torch.float32, False),
]


def filled(w: "World", rank: int, shape: tuple[int, ...], dtype: torch.dtype) -> Tensor:
    """What a rank starts from; any rank can say it of any other."""
    numbers = w.randn(*shape, seed=rank)
    return (numbers * 8).round().to(dtype) if dtype != torch.float64 else numbers


def arity(part: Any) -> list[inspect.Parameter]:
    """What a function must be given, in order."""
    try:
        parameters = inspect.signature(part).parameters.values()
    except ValueError:
        return []
    kinds = (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)
    return [p for p in parameters if p.kind in kinds and p.default is p.empty]


def output_first(parameters: list[inspect.Parameter]) -> bool:
    """Whether it is called like torch's: the output, then the input."""
    return any(word in parameters[0].name for word in ("out", "into", "recv"))


def of_lists(parameters: list[inspect.Parameter]) -> bool:
    """Whether it takes a list with a tensor for each rank."""
    first = parameters[0]
    return "list" in first.name or "list" in str(first.annotation).lower()


def call(part: Any, x: Tensor, out: Tensor, options: Options) -> Tensor:
    """Call it as its arguments ask to be called; the result, wherever it is."""
    parameters = arity(part)
    if len(parameters) < 2:
        made = part(x, **options)
    elif output_first(parameters):
        made = part(out, x, **options)
    else:
        made = part(x, out, **options)
    if isinstance(made, (list, tuple)) and made and isinstance(made[0], Tensor):
        made = torch.cat([t.flatten() for t in made])
    if isinstance(made, Tensor):
        return made
    return out if len(parameters) > 1 else x


# All-reduce and broadcast


def all_reduce(
    w: "World", part: Any, options: Options, *, make: Maker, twisted: bool = False
) -> None:
    """Every rank ends with the sum."""
    x = make(w, w.rank)
    if twisted:
        x = torch.stack([x, x], dim=-1)[..., 0]  # every other number of a larger one
    made = part(x, **options)
    value = made if isinstance(made, Tensor) else x
    total = torch.stack([make(w, r).double() for r in range(w.size)]).sum(0)
    close("the sum", value, total.to(x.dtype), 2 * w.size)


def broadcast(w: "World", part: Any, options: Options, *, make: Maker) -> None:
    """Every rank ends with the root's tensor, whoever the root is."""
    for root in sorted({0, w.size - 1}):
        x = make(w, w.rank)
        made = part(x, root, **options)
        value = made if isinstance(made, Tensor) else x
        close(f"the tensor of root {root}", value, make(w, root), 0)


# Those that cut


def reduce_scatter(
    w: "World", part: Any, options: Options, *, each: int, dtype: torch.dtype
) -> None:
    """Rank r ends with the r-th part of the sum."""
    shape = (each * w.size,)
    x = filled(w, w.rank, shape, dtype)
    value = call(part, x, x.new_empty(each), options)
    total = torch.stack([filled(w, r, shape, dtype).double() for r in range(w.size)])
    expected = total.sum(0).to(dtype).chunk(w.size)[w.rank] if each else x[:0]
    close("this rank's part of the sum", value, expected, 2 * w.size)


def all_gather(
    w: "World", part: Any, options: Options, *, each: int, dtype: torch.dtype
) -> None:
    """Every rank ends with the parts of all, in rank order."""
    x = filled(w, w.rank, (each,), dtype)
    value = call(part, x, x.new_empty(each * w.size), options)
    expected = torch.cat([filled(w, r, (each,), dtype) for r in range(w.size)])
    close("the parts of all ranks", value, expected, 0)


def all_to_all(
    w: "World", part: Any, options: Options, *, each: int, dtype: torch.dtype
) -> None:
    """Block q of rank r ends as block r of rank q."""
    x = filled(w, w.rank, (each * w.size,), dtype)
    out = torch.empty_like(x)
    parameters = arity(part)
    if parameters and of_lists(parameters):
        blocks, into = list(x.tensor_split(w.size)), list(out.tensor_split(w.size))
        lists = (into, blocks) if output_first(parameters) else (blocks, into)
        part(*lists, **options)
        value = out
    else:
        value = call(part, x, out, options)
    blocks = [filled(w, r, (each * w.size,), dtype) for r in range(w.size)]
    mine = [b.tensor_split(w.size)[w.rank] for b in blocks]
    close("the blocks for this rank", value, torch.cat(mine), 0)


# The cases


def _whole(run: Any, least: Any, most: Any) -> Iterator[Case]:
    for name, shape, dtype, optional in TENSORS:
        size = torch.empty(shape, dtype=dtype).nbytes
        make = partial(_make, shape=shape, dtype=dtype)
        yield Case(
            name,
            partial(run, make=make),
            optional,
            partial(most, size) if size else None,
            partial(least, size),
        )


def _make(
    w: "World", rank: int, *, shape: tuple[int, ...], dtype: torch.dtype
) -> Tensor:
    return filled(w, rank, shape, dtype)


def _cut(run: Any, least: Any, most: Any) -> Iterator[Case]:
    for each, dtype, optional in (
        (1, torch.float32, False),
        (5, torch.float64, False),
        (0, torch.float32, True),
        (5, torch.int64, True),
        (337, torch.float32, False),
    ):
        size = each * torch.empty((), dtype=dtype).element_size()
        word = str(dtype).removeprefix("torch.")
        yield Case(
            f"{each} of {word} for each rank",
            partial(run, each=each, dtype=dtype),
            optional,
            partial(most, size) if size else None,
            partial(least, size),
        )


def _with_gaps() -> Case:
    """A tensor with gaps may be refused, not be summed wrongly."""
    make = partial(_make, shape=(12,), dtype=torch.float64)
    return Case("not contiguous", partial(all_reduce, make=make, twisted=True), True)


def _sum_least(size: int, p: int) -> int:
    return 2 * (p - 1) * size


def _everyone_to_everyone(size: int, p: int) -> int:
    return p * (p - 1) * size


def _parts_most(size: int, p: int) -> int:
    return 2 * p * p * (p - 1) * size  # as if by an all-reduce of everything


_sums = list(_whole(all_reduce, _sum_least, _everyone_to_everyone))
ALL_REDUCE = Contract(
    "all-reduce",
    "every rank ends with the sum over all ranks",
    "a function of a tensor, in place or returning the sum",
    [*_sums, _with_gaps()],
)
BROADCAST = Contract(
    "broadcast",
    "every rank ends with the root's tensor",
    "a function of a tensor and the root's rank, in place or returning the tensor",
    list(_whole(broadcast, lambda n, p: (p - 1) * n, lambda n, p: 2 * p * p * n)),
)
REDUCE_SCATTER = Contract(
    "reduce-scatter",
    "rank r ends with the r-th part of the sum over all ranks",
    "a function of a tensor that returns the part, or of (output, input)",
    list(_cut(reduce_scatter, _everyone_to_everyone, _parts_most)),
)
ALL_GATHER = Contract(
    "all-gather",
    "every rank ends with the parts of all ranks, in rank order",
    "a function of a part that returns the whole, or of two tensors",
    list(_cut(all_gather, _everyone_to_everyone, _parts_most)),
)
ALL_TO_ALL = Contract(
    "all-to-all",
    "block q of rank r ends as block r of rank q",
    "a function of a tensor, of two tensors, or of two lists of a tensor per rank",
    list(_cut(all_to_all, _everyone_to_everyone, _parts_most)),
)
CONTRACTS = (ALL_REDUCE, BROADCAST, REDUCE_SCATTER, ALL_GATHER, ALL_TO_ALL)
