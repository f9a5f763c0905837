"""The numbers of a transformer's parts.

Part of the arithmetic: see `atlas.planner.arithmetic`.
"""

from atlas.planner.records import Block, Work


def attention_weights(b: Block) -> int:
    """Elements of the matrices for queries, keys, values and output.

    Source: Vaswani et al. 2017, section 3.2; fewer keys, values: Ainslie et al. 2023.
    """
    return b.width * b.head * (2 * b.heads + 2 * b.kv)


def perceptron_weights(b: Block) -> int:
    """Elements of the matrices of one perceptron.

    Source: Vaswani et al. 2017, section 3.3; with a gate, Shazeer 2020.
    """
    return (2 + b.gated) * b.width * b.ffn


def block_work(b: Block) -> Work:
    """One layer: attention and a perceptron, or experts, each after a norm.

    Source: Narayanan et al. 2021, appendix, for operations; Korthikanti et al. 2022,
    section 4.1, for what is kept; what is moved is derived, kernel by kernel.
    """
    s = b.tokens
    h = b.width
    q = b.heads * b.head
    kv = b.kv * b.head
    experts = max(1, b.experts)
    perceptron = perceptron_weights(b) + b.bias * (1 + b.gated) * b.ffn
    hidden = b.chosen * s * b.ffn
    kept = 4 * hidden if b.gated == 1 else 2 * hidden
    moved = 3 * hidden if b.gated == 1 else 2 * hidden
    maps = b.heads * s * s
    routed = b.chosen * s * h if b.experts > 0 else 0
    return Work(
        layers=1,
        weights=attention_weights(b)
        + b.bias * (q + 2 * kv)
        + (0 if b.experts > 0 else perceptron),
        shared=2 * b.norm * h
        + b.bias * h
        + (h * b.experts if b.experts > 0 else b.bias * h),
        experts=b.experts * (perceptron + b.bias * h),
        largest=attention_weights(b)
        + b.bias * (q + 2 * kv)
        + (0 if b.experts > 0 else perceptron),
        kernels=4 + (2 + b.gated) * experts,
        flops=2 * s * (attention_weights(b) + b.chosen * perceptron_weights(b)),
        scores=4 * s * s * q,
        moved=10 * s * h,
        moved_cut=moved,
        moved_scores=(2 + 2 * b.dropout) * maps,
        kept=4 * s * h + routed,
        kept_cut=2 * s * q + 2 * s * kv + kept,
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
        queries=2 * s * q,
        pairs=2 * s * kv,
        routes=1 if b.experts > 0 else 0,
        routed=routed,
        seat_flops=2 * s * b.chosen * perceptron_weights(b) if b.experts > 0 else 0,
        seat_kept=routed,
        seat_kept_cut=kept if b.experts > 0 else 0,
        seat_moved=moved if b.experts > 0 else 0,
        seat_working=2 * hidden if b.experts > 0 else 0,
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
        moved_cut=2 * b.tokens * b.vocabulary,
        kept=2 * b.tokens * b.width,
        fixed_cut=4 * b.tokens * b.vocabulary,
        working=b.tokens * b.width,
        working_cut=2 * b.tokens * b.vocabulary,
        passed=b.tokens * b.width,
        entries=1,
        entered=b.tokens * b.width,
    )
