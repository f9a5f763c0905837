"""A decoder-only transformer as layers."""

from collections.abc import Mapping

from atlas.planner.blocks import block_work, embedding_work, head_work
from atlas.planner.errors import OracleError
from atlas.planner.model import Layer, Model
from atlas.planner.records import Block

__all__ = ["transformer"]


def transformer(
    name: str,
    *,
    layers: int,
    width: int,
    heads: int,
    vocabulary: int,
    tokens: int,
    kv_heads: int | None = None,
    head: int | None = None,
    ffn: int | None = None,
    gated: bool = False,
    bias: bool = True,
    dropout: bool = True,
    norm: int = 2,
    positions: bool = True,
    tied: bool = True,
    experts: int = 0,
    chosen: int = 1,
    epoch: int | None = None,
    sources: Mapping[str, str] | None = None,
) -> Model:
    """GPT unless told otherwise; Llama is gated, without bias, dropout, positions."""
    if head is None and width % heads:
        raise OracleError(
            f"{name}: width {width} for {heads} heads: expected a multiple"
        )
    if kv_heads and heads % kv_heads:
        raise OracleError(
            f"{name}: {heads} heads share {kv_heads} of keys: expected a divisor"
        )
    block = Block(
        tokens=tokens,
        width=width,
        heads=heads,
        head=head or width // heads,
        kv=kv_heads or heads,
        ffn=ffn or 4 * width,
        vocabulary=vocabulary,
        gated=int(gated),
        bias=int(bias),
        dropout=int(dropout),
        norm=norm,
        positions=int(positions),
        tied=int(tied),
        experts=experts,
        chosen=chosen,
    )
    one = block_work(block)
    units = [Layer(f"layer {i}", one) for i in range(layers)]
    first = Layer("embedding", embedding_work(block), glued=True)
    last = Layer("head", head_work(block, 0), glued=True)
    return Model(
        name,
        "transformer",
        (first, *units, last),
        tokens=tokens,
        heads=heads,
        kv_heads=kv_heads or heads,
        experts=experts,
        uniform=True,
        tied=vocabulary * width if tied else 0,
        block=block,
        epoch=epoch,
        sources=sources or {},
    )
