"""A decoder-only transformer as layers."""

from collections.abc import Mapping
from typing import Any

from atlas.planner.blocks import block_work, embedding_work, head_work
from atlas.planner.errors import OracleError
from atlas.planner.model import Layer, Model
from atlas.planner.records import Block

__all__ = ["dimensions", "transformer"]


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
    common: int = 0,
    dense: int = 0,
    dense_ffn: int | None = None,
    whole: int = 0,
    slanted: bool = False,
    query_rank: int = 0,
    rank: int = 0,
    turned: int = 0,
    value: int = 0,
    epoch: int | None = None,
    sources: Mapping[str, str] | None = None,
) -> Model:
    """GPT unless told otherwise; Llama is gated, without bias, dropout, positions.

    Of a network of experts the first `dense` layers may have a perceptron instead.
    """
    if head is None and width % heads:
        raise OracleError(
            f"{name}: width {width} for {heads} heads: expected a multiple"
        )
    if kv_heads and heads % kv_heads:
        raise OracleError(
            f"{name}: {heads} heads share {kv_heads} of keys: expected a divisor"
        )
    if dense > layers or (dense > 0 and experts == 0):
        raise OracleError(
            f"{name}: {dense} dense layers of {layers}, {experts} experts: expected "
            "fewer, of a network with experts"
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
        common=common,
        whole=whole,
        slanted=int(slanted),
        query_rank=query_rank,
        rank=rank,
        turned=turned,
        value=value,
    )
    plain = block._replace(
        experts=0, chosen=1, common=0, ffn=dense_ffn or block.ffn, whole=0
    )
    one, other = block_work(block), block_work(plain)
    units = [Layer(f"layer {i}", other if i < dense else one) for i in range(layers)]
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
        dense=dense,
        dense_ffn=plain.ffn if dense else 0,
        uniform=dense == 0,
        tied=vocabulary * width if tied else 0,
        block=block,
        epoch=epoch,
        sources=sources or {},
    )


def dimensions(model: Model) -> dict[str, Any]:
    """What `transformer` was told of a network, its name and data set left out."""
    b = model.block
    if b is None:
        raise OracleError(f"{model.name} is no transformer: it has no such dimensions")
    return {
        "layers": len(model.layers) - 2,
        "width": b.width,
        "heads": b.heads,
        "vocabulary": b.vocabulary,
        "tokens": b.tokens,
        "kv_heads": b.kv,
        "head": b.head,
        "ffn": b.ffn,
        "gated": b.gated,
        "bias": b.bias,
        "dropout": b.dropout,
        "norm": b.norm,
        "positions": b.positions,
        "tied": b.tied,
        "experts": b.experts,
        "chosen": b.chosen,
        "common": b.common,
        "dense": model.dense,
        "dense_ffn": model.dense_ffn,
        "whole": b.whole,
        "slanted": b.slanted,
        "query_rank": b.query_rank,
        "rank": b.rank,
        "turned": b.turned,
        "value": b.value,
    }
