"""Gradients that replicas exchange in fewer bytes: coarser, sparser, or as factors."""

from collections.abc import Iterator

from atlas.formulas.communication_pattern.exact_encoding import (
    sufficient_factor_payload,
    sufficient_factor_wins,
)
from atlas.formulas.communication_pattern.low_rank_and_sketch import (
    powersgd_calls,
    powersgd_payload,
)
from atlas.formulas.communication_pattern.quantization import (
    one_bit_stripe,
    qsgd_payload,
)
from atlas.formulas.communication_pattern.sparsification import top_k_payload
from atlas.planner import agreement, computing
from atlas.planner.model import Layer
from atlas.planner.prediction import Collective, Finding
from atlas.planner.strategy import Compress
from atlas.planner.traffic import Site, alone, ring, whole

__all__ = ["compressed", "doubts"]


def compressed(site: Site, how: Compress) -> Iterator[Collective]:
    """The exchange; experts and tables have no matrices and go as they are."""
    b = site.mesh.recipe.gradient
    if how.kind == "powersgd":
        yield from _powersgd(site, how.rank, b)
        yield from _plain(site, "alone", alone(site) * b)
    elif how.kind == "factors":
        yield from _factors(site, b)
        yield from _plain(site, "alone", alone(site) * b)
    else:
        yield from _coarse(site, how, b)


def _plain(site: Site, wire: str, n: float) -> Iterator[Collective]:
    """Bytes that are not compressed, among those who agree on them."""
    args = ("all_reduce", "the rest", int(n > 0), n)
    yield from ring(site, "Compress", wire, *args)


def _coarse(site: Site, how: Compress, b: int) -> Iterator[Collective]:
    """Sums of sparse or coarse gradients go by all-gather."""
    for wire, n in (("data", whole(site, 1)), ("alone", alone(site))):
        if how.kind == "one-bit":
            yield from _one_bit(site, wire, round(n), b)
            continue
        p, calls = site.mesh.groups[wire].ranks, 2 * int(n > 0)
        payload = p * _payload(how, round(n), b)
        yield from ring(site, "Compress", wire, "all_gather", how.kind, calls, payload)


def _one_bit(site: Site, wire: str, n: int, b: int) -> Iterator[Collective]:
    """Signs to the owners of the stripes, and signs of the sums to all; two means."""
    p, calls = site.mesh.groups[wire].ranks, int(n > 0)
    stripe = one_bit_stripe(p, n)
    yield from ring(site, "Compress", wire, "all_to_all", "one-bit", calls, p * stripe)
    back = p * (stripe + 4 * b)
    yield from ring(site, "Compress", wire, "all_gather", "one-bit", 3 * calls, back)


def _payload(how: Compress, n: int, b: int) -> int:
    """Bytes that a rank hands over of n gradients of b bytes."""
    if how.kind == "top-k":
        return top_k_payload(max(1, round(how.ratio * n)), b, 1)
    return qsgd_payload(n, b, 1, how.bucket)


def _powersgd(site: Site, rank: int, b: int) -> Iterator[Collective]:
    """Two factors of every matrix; everything else goes as it is."""
    matrices = [layer.matrix for layer in _matrices(site)]
    small = round(whole(site, 1)) - sum(h * w for h, w in matrices)
    n = powersgd_payload(rank, sum(h + w for h, w in matrices), small, b, 1)
    calls = powersgd_calls(len(matrices), 1)
    yield from ring(site, "Compress", "data", "all_reduce", "factors", calls, n)


def _factors(site: Site, b: int) -> Iterator[Collective]:
    """Of every sample u and v, whose product is its gradient; the rest as it is."""
    n, rest = 0.0, whole(site, 1)
    layers = _matrices(site)
    for layer in layers:
        h, w = layer.matrix
        n += sufficient_factor_payload(_samples(site, layer), h, w, b)
        own = agreement.held(layer.work, site.mesh.cut) - h * w
        rest -= h * w + (h if own == h else 0)  # the gradient of a bias: the u, summed
    n *= site.mesh.groups["data"].ranks
    calls = 2 * len(layers)
    yield from ring(site, "Compress", "data", "all_gather", "factors", calls, n)
    yield from _plain(site, "data", rest * b)


def doubts(site: Site, how: Compress) -> tuple[Finding, ...]:
    """Factors of many samples are larger than what they are factors of."""
    layers = _matrices(site) if how.kind == "factors" else []
    p = site.mesh.groups["data"].ranks
    wins = [
        sufficient_factor_wins(p, _samples(site, layer), *layer.matrix)
        for layer in layers
    ]
    if sum(wins) == len(wins):
        return ()
    worse = f"{len(wins) - sum(wins)} of {len(wins)} matrices"
    says = f"for {worse}, the samples' factors take more bytes than an all-reduce"
    return (Finding("bottleneck", "Compress", says),)


def _matrices(site: Site) -> list[Layer]:
    return [layer for layer in site.layers if layer.matrix[0]]


def _samples(site: Site, layer: Layer) -> int:
    """Outer products that a step adds to the matrix: each place of a window is one."""
    h, w = layer.matrix
    places = (layer.work.flops + layer.work.serial) / (2 * h * w)
    samples = computing.samples_of(site.mesh.cut)
    return round(site.mesh.schedule.micros * samples * places)
