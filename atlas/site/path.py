"""The path: eight pages, each with a guess, a reveal, and a recorded run.

The prose is in docs/path/. What is asked and what is right come from here: an answer is
what a formula of the atlas says for the numbers of the question.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any

from atlas.formulas import FORMULAS
from atlas.site import address
from atlas.site.technique import replayed
from atlas.site.templating import macro
from atlas.site.text import raw
from atlas.views.context import Context

MINUTES = 5  # of a page, as one reads
MB, GB = 10**6, 10**9
#: What the questions are about, written once for the question and for its answer.
TENSOR = 100 * MB
WORKERS = 4
FEW, MANY = 4, 1000
PARAMETERS = 7 * 10**9
REPLICAS = 8
TOKENS = (512, 512, 512, 8)
SHARDS = 64
LAYERS = 32
STAGES, SHARE = 4, 0.1
GPUS, TENSOR_RANKS = 64, 8


@dataclass(frozen=True)
class Stop:
    """A page of the path."""

    slug: str
    name: str
    technique: str
    asks: str
    unit: str
    answer: Callable[[], float]

    @property
    def uri(self) -> str:
        """Its file below docs/."""
        return f"path/{self.slug}.md"


def _formula(name: str, **given: Any) -> float:
    return float(FORMULAS[name](**given))


def _server() -> float:
    """In and out: what a server sends, it has received too."""
    one_way = _formula(
        "push_pull_bytes",
        **{"ranks": WORKERS + 1, "rank": 0, "elements": TENSOR},
        **{"itemsize": 1, "steps": 1},
    )
    return 2 * one_way / MB


def _ring(ranks: int, size: int) -> float:
    return _formula(
        "ring_all_reduce_bytes", ranks=ranks, rank=0, elements=size, itemsize=1
    )


def _microbatches() -> float:
    m = 1
    while _formula("pipeline_bubble", ranks=STAGES, microbatches=m) >= SHARE:
        m += 1
    return m


def _zero() -> float:
    held = _formula(
        "zero_3_state_bytes",
        **{"ranks": SHARDS, "unit_elements": PARAMETERS, "units": 1, "itemsize": 4},
    )
    return held / GB


def _factor() -> float:
    return _formula(
        "mean_of_means_factor",
        **{"ranks": len(TOKENS), "tokens": sum(TOKENS)},
        **{"microbatches": 1, "fewest": min(TOKENS)},
    )


STOPS = (
    Stop(
        "one-sum",
        "One sum, many machines",
        "push-pull",
        f"{WORKERS} workers each send a gradient of {TENSOR // MB} MB to a server, "
        "which sends the sum back to each. How much crosses the server's link, in "
        "and out?",
        "MB",
        _server,
    ),
    Stop(
        "ring",
        "The same sum without a server",
        "ring-all-reduce",
        f"From {FEW} ranks to {MANY}: how many times as much does each rank send?",
        "times",
        lambda: _ring(MANY, MANY * FEW) / _ring(FEW, MANY * FEW),
    ),
    Stop(
        "data-parallel",
        "Train on many: data parallelism",
        "ddp-by-hand",
        f"A model of {PARAMETERS // 10**9} billion parameters, gradients of 2 bytes, "
        f"{REPLICAS} ranks, a ring. How much does each rank send in every step?",
        "GB",
        lambda: _ring(REPLICAS, 2 * PARAMETERS) / GB,
    ),
    Stop(
        "wrong-mean",
        "The bug of every framework",
        "token-weighted-mean",
        f"{len(TOKENS)} micro-batches have {', '.join(map(str, TOKENS[:-1]))} and "
        f"{TOKENS[-1]} tokens. Each takes the mean over its own, and the means are "
        "averaged. By which factor does a token of the smallest count too much?",
        "times",
        _factor,
    ),
    Stop(
        "zero",
        "Hold only your share: ZeRO",
        "zero-3",
        f"{PARAMETERS // 10**9} billion parameters in 32 bits with gradients and "
        f"Adam's two moments, over {SHARDS} ranks in ZeRO stage 3. How much does each "
        "hold?",
        "GB",
        _zero,
    ),
    Stop(
        "tensor",
        "Cut every layer: tensor parallelism",
        "tensor-parallel-column-row",
        f"A transformer of {LAYERS} layers, every one cut over the ranks. How many "
        "all-reduces does one step take, forward and backward?",
        "all-reduces",
        lambda: 2 * _formula("tensor_parallel_calls", layers=LAYERS),
    ),
    Stop(
        "pipeline",
        "Cut between the layers: a pipeline",
        "one-f-one-b",
        f"{STAGES} stages. How many micro-batches does it take until less than "
        f"{SHARE:.0%} of the time is idle?",
        "micro-batches",
        _microbatches,
    ),
    Stop(
        "all-three",
        "All at once, on your machines",
        "three-d",
        f"{GPUS} GPUs, tensor parallelism over {TENSOR_RANKS}, {STAGES} pipeline "
        "stages. How many replicas of the model train side by side?",
        "replicas",
        lambda: GPUS / (TENSOR_RANKS * STAGES),
    ),
)


def rail(here: int, _: Context) -> str:
    """Where one is on the path."""
    stops = [(s.name, address.link(STOPS[here].uri, s.uri)) for s in STOPS]
    return raw(macro("path.html.j2", "rail", stops, here, MINUTES))


def guess(at: int, _: Context) -> str:
    """The question, and a field for a number."""
    stop = STOPS[at]
    return raw(macro("path.html.j2", "guess", stop, stop.answer()))


def answer(at: int, _: Context) -> str:
    """What is right, in words."""
    stop = STOPS[at]
    return f"**{stop.answer():,.4g} {stop.unit}**".replace(",", "\u202f")


def run(at: int, ctx: Context) -> str:
    """The recorded run of the page's technique, and the way to its page."""
    stop = STOPS[at]
    t = ctx.atlas.techniques[stop.technique]
    link = address.link(stop.uri, f"{t.path}.md")
    return replayed(ctx, t) + raw(macro("path.html.j2", "more", t.name, link))


def onward(at: int, _: Context) -> str:
    """The next page."""
    after = STOPS[at + 1]
    return f"[Next: {after.name}]({after.slug}.md){{ .md-button .md-button--primary }}"


def places(at: int) -> Mapping[str, Callable[[Context], object]]:
    """What page number `at` may mark, as `{{ name }}`."""
    here = STOPS[at].uri
    last = at + 1 == len(STOPS)
    return {
        "assets": lambda _: address.assets(here, "path.css", "path.js"),
        "rail": partial(rail, at),
        "guess": partial(guess, at),
        "answer": partial(answer, at),
        "run": partial(run, at),
        **({} if last else {"next": partial(onward, at)}),
    }


PAGES = {stop.uri: places(at) for at, stop in enumerate(STOPS)}


def length(_: Context) -> str:
    """How long it takes, in words."""
    return f"{len(STOPS)} pages, {MINUTES * len(STOPS)} minutes"
