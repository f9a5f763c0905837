"""The numbers of a transformer's parts.

Part of the arithmetic: see `atlas.planner.arithmetic`.
"""

from atlas.planner.records import Block, Work


def value_width(b: Block) -> int:
    """Width of a head's values.

    Source: arithmetic: that of its keys unless they differ.
    """
    return b.value if b.value > 0 else b.head


def attention_weights(b: Block) -> int:
    """Elements of the matrices for queries, keys, values and output.

    Source: Vaswani et al. 2017, section 3.2; fewer keys, values: Ainslie et al. 2023;
    latent: DeepSeek-AI 2024 (DeepSeek-V2), section 2.1.
    """
    made = b.heads * (b.head + b.turned)
    latent = (
        b.width * b.query_rank + b.query_rank * made
        if b.query_rank > 0
        else b.width * made
    )
    return (
        b.width * b.head * (2 * b.heads + 2 * b.kv)
        if b.rank == 0
        else latent
        + b.width * (b.rank + b.turned)
        + b.rank * b.heads * (b.head + value_width(b))
        + b.heads * value_width(b) * b.width
    )


def common_weights(b: Block) -> int:
    """Elements of the matrices of the perceptron that all tokens pass.

    Source: DeepSeek-AI 2024 (DeepSeekMoE), section 3.2.
    """
    return (2 + b.gated) * b.width * b.common


def perceptron_weights(b: Block) -> int:
    """Elements of the matrices of one perceptron.

    Source: Vaswani et al. 2017, section 3.3; with a gate, Shazeer 2020.
    """
    return (2 + b.gated) * b.width * b.ffn


def block_work(b: Block) -> Work:
    """One layer: attention and a perceptron, or experts, each after a norm.

    Source: Narayanan et al. 2021, appendix, for operations; Korthikanti et al. 2022,
    section 4.1, for what is kept; what is moved is derived, kernel by kernel. A fused
    gate keeps its two inputs and its product (Shazeer 2020); code that fuses nothing
    keeps the gate's other factor too, and of a norm without bias a 32-bit copy and the
    normalized one, 4 bytes more than its input.
    """
    s = b.tokens
    h = b.width
    q = b.heads * (b.head + b.turned)
    kv = b.kv * (b.head + b.turned)
    v = b.kv * value_width(b)
    out = b.heads * value_width(b)
    slants = max(b.bias, b.slanted)
    latents = b.query_rank + b.rank + b.turned if b.rank > 0 else 0
    experts = max(1, b.experts)
    perceptron = perceptron_weights(b) + b.bias * (1 + b.gated) * b.ffn
    hidden = s * (b.chosen * b.ffn + b.common)
    kept = 3 * hidden if b.gated == 1 else 2 * hidden
    moved = 3 * hidden if b.gated == 1 else 2 * hidden
    seats = (3 if b.gated == 1 else 2) * b.chosen * s * b.ffn
    maps = b.heads * s * s
    routed = b.chosen * s * h if b.experts > 0 else 0
    return Work(
        layers=1,
        weights=attention_weights(b)
        + common_weights(b)
        + slants * (q + kv + v)
        + (0 if b.experts > 0 else perceptron),
        shared=2 * b.norm * h
        + b.whole
        + (b.query_rank + b.rank if b.rank > 0 else 0)
        + b.bias * h
        + (h * b.experts if b.experts > 0 else b.bias * h),
        experts=b.experts * (perceptron + b.bias * h),
        largest=attention_weights(b)
        + common_weights(b)
        + slants * (q + kv + v)
        + (0 if b.experts > 0 else perceptron),
        kernels=4
        + (2 if b.rank > 0 else 0)
        + (2 + b.gated) * experts
        + (2 + b.gated if b.common > 0 else 0),
        flops=2
        * s
        * (attention_weights(b) + common_weights(b) + b.chosen * perceptron_weights(b)),
        scores=2 * s * s * (q + out),
        last=2 * s * (b.chosen * b.ffn + b.common) * h,
        moved=10 * s * h + 2 * s * latents,
        moved_cut=moved,
        moved_scores=(2 + 2 * b.dropout) * maps,
        kept=4 * s * h + routed + s * latents,
        kept_cut=s * (q + out) + s * (kv + v) + kept,
        eager=8 * s * h if b.norm == 1 else 0,
        eager_cut=b.gated * hidden,
        noted=2 * s * h + routed + s * latents,
        noted_cut=s * out + (s * (q + kv + v) + (1 + b.gated) * hidden) // 2,
        kept_scores=(1 + b.dropout) * maps,
        fixed=2 * b.dropout * s * h,
        fixed_scores=b.dropout * maps,
        working=2 * s * h,
        working_cut=2 * hidden,
        inputs=s * h,
        passed=s * h,
        entries=2,
        entered=2 * s * h,
        exits=2,
        left=2 * s * h,
        attentions=1,
        queries=s * (q + out),
        pairs=s * (kv + v),
        routes=1 if b.experts > 0 else 0,
        routed=routed,
        seat_kernels=(2 + b.gated) * b.experts,
        seat_flops=2 * s * b.chosen * perceptron_weights(b) if b.experts > 0 else 0,
        seat_kept=routed,
        seat_kept_cut=seats if b.experts > 0 else 0,
        seat_moved=seats if b.experts > 0 else 0,
        seat_working=2 * b.chosen * s * b.ffn if b.experts > 0 else 0,
    )


def embedding_work(b: Block) -> Work:
    """Words and places as vectors; the rows are cut, and what they give is summed.

    Source: Shoeybi et al. 2019, section 3; Korthikanti et al. 2022, section 4.3.
    """
    return Work(
        weights=b.vocabulary * b.width,
        shared=b.positions * b.tokens * b.width,
        moved=2 * b.tokens * b.width,
        fixed=b.dropout * b.tokens * b.width,
        passed=b.tokens * b.width,
        exits=1,
        left=b.tokens * b.width,
    )


def head_work(b: Block, copied: int) -> Work:
    """The last norm, the words' scores, the loss; `copied`: a tied matrix held twice.

    What it passes is the gradient that goes back.

    Source: Korthikanti et al. 2022, section 4.3: logits are kept in 32 bits.
    """
    words = b.vocabulary * b.width
    return Work(
        weights=words * (copied if b.tied == 1 else 1),
        shared=b.norm * b.width,
        kernels=1,
        flops=2 * b.tokens * words,
        once=2 * b.tokens * words,
        moved=2 * b.tokens * b.width,
        moved_cut=5 * b.tokens * b.vocabulary,
        kept=2 * b.tokens * b.width,
        fixed_cut=4 * b.tokens * b.vocabulary,
        eager_cut=2 * b.tokens * b.vocabulary,
        working=b.tokens * b.width,
        working_cut=2 * b.tokens * b.vocabulary,
        passed=b.tokens * b.width,
        entries=1,
        entered=b.tokens * b.width,
    )
