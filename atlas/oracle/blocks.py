"""The numbers of a transformer's parts, and of parts joined, in the core's Python."""

from atlas.oracle.records import Block, Work


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


def repeated(w: Work, n: int) -> Work:
    """So many of the same, one after the other.

    Source: arithmetic.
    """
    return Work(
        layers=n * w.layers,
        weights=n * w.weights,
        shared=n * w.shared,
        experts=n * w.experts,
        tables=n * w.tables,
        largest=w.largest,
        kernels=n * w.kernels,
        flops=n * w.flops,
        serial=n * w.serial,
        scores=n * w.scores,
        once=n * w.once,
        moved=n * w.moved,
        moved_cut=n * w.moved_cut,
        moved_scores=n * w.moved_scores,
        kept=n * w.kept,
        kept_cut=n * w.kept_cut,
        kept_scores=n * w.kept_scores,
        fixed=n * w.fixed,
        fixed_cut=n * w.fixed_cut,
        fixed_scores=n * w.fixed_scores,
        working=w.working,
        working_cut=w.working_cut,
        inputs=n * w.inputs,
        passed=w.passed,
        entries=n * w.entries,
        entered=n * w.entered,
        exits=n * w.exits,
        left=n * w.left,
        convolutions=n * w.convolutions,
        narrow=w.narrow,
        x=n * w.x,
        y=n * w.y,
        channelled=n * w.channelled,
        thin=w.thin,
        channel_x=n * w.channel_x,
        channel_y=n * w.channel_y,
        unchannelled=n * w.unchannelled,
        unchannelled_flops=n * w.unchannelled_flops,
        halos=n * w.halos,
        halo=n * w.halo,
        norms=n * w.norms,
        normed=n * w.normed,
        attentions=n * w.attentions,
        queries=n * w.queries,
        pairs=n * w.pairs,
        routes=n * w.routes,
        routed=n * w.routed,
        seat_flops=n * w.seat_flops,
        seat_kept=n * w.seat_kept,
        seat_kept_cut=n * w.seat_kept_cut,
        seat_moved=n * w.seat_moved,
        seat_working=w.seat_working,
        lookups=n * w.lookups,
        indices=n * w.indices,
    )


def narrowest(some: int, a: int, more: int, b: int) -> int:
    """The smaller of two widths, of which one may be of no layers at all.

    Source: arithmetic.
    """
    return b if some == 0 else a if more == 0 else min(a, b)


def joined(a: Work, b: Work) -> Work:
    """One part and the part after it.

    Source: arithmetic.
    """
    return Work(
        layers=a.layers + b.layers,
        weights=a.weights + b.weights,
        shared=a.shared + b.shared,
        experts=a.experts + b.experts,
        tables=a.tables + b.tables,
        largest=max(a.largest, b.largest),
        kernels=a.kernels + b.kernels,
        flops=a.flops + b.flops,
        serial=a.serial + b.serial,
        scores=a.scores + b.scores,
        once=a.once + b.once,
        moved=a.moved + b.moved,
        moved_cut=a.moved_cut + b.moved_cut,
        moved_scores=a.moved_scores + b.moved_scores,
        kept=a.kept + b.kept,
        kept_cut=a.kept_cut + b.kept_cut,
        kept_scores=a.kept_scores + b.kept_scores,
        fixed=a.fixed + b.fixed,
        fixed_cut=a.fixed_cut + b.fixed_cut,
        fixed_scores=a.fixed_scores + b.fixed_scores,
        working=max(a.working, b.working),
        working_cut=max(a.working_cut, b.working_cut),
        inputs=a.inputs + b.inputs,
        passed=b.passed,
        entries=a.entries + b.entries,
        entered=a.entered + b.entered,
        exits=a.exits + b.exits,
        left=a.left + b.left,
        convolutions=a.convolutions + b.convolutions,
        narrow=narrowest(a.convolutions, a.narrow, b.convolutions, b.narrow),
        x=a.x + b.x,
        y=a.y + b.y,
        channelled=a.channelled + b.channelled,
        thin=narrowest(a.channelled, a.thin, b.channelled, b.thin),
        channel_x=a.channel_x + b.channel_x,
        channel_y=a.channel_y + b.channel_y,
        unchannelled=a.unchannelled + b.unchannelled,
        unchannelled_flops=a.unchannelled_flops + b.unchannelled_flops,
        halos=a.halos + b.halos,
        halo=a.halo + b.halo,
        norms=a.norms + b.norms,
        normed=a.normed + b.normed,
        attentions=a.attentions + b.attentions,
        queries=a.queries + b.queries,
        pairs=a.pairs + b.pairs,
        routes=a.routes + b.routes,
        routed=a.routed + b.routed,
        seat_flops=a.seat_flops + b.seat_flops,
        seat_kept=a.seat_kept + b.seat_kept,
        seat_kept_cut=a.seat_kept_cut + b.seat_kept_cut,
        seat_moved=a.seat_moved + b.seat_moved,
        seat_working=max(a.seat_working, b.seat_working),
        lookups=a.lookups + b.lookups,
        indices=a.indices + b.indices,
    )


def stage_work(b: Block, blocks: int, first: int, last: int) -> Work:
    """A stage of so many layers, with the embedding if first, the head if last.

    Source: Narayanan et al. 2021: a stage has an equal number of layers.
    """
    middle = repeated(block_work(b), blocks)
    begun = joined(embedding_work(b), middle)
    front = middle if first == 0 else begun
    return front if last == 0 else joined(front, head_work(b, 1 - first))
