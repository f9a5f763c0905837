"""The page of one technique, in an order that never changes."""

import difflib
import re
from collections.abc import Iterator, Sequence

from atlas.knowledge import Mutant, Paper, Technique
from atlas.site import address, annotate, evidence, memory, notebooks, replay
from atlas.site.compare import compare_link
from atlas.site.context import Context, Json
from atlas.site.scene import LIMIT, LIMIT_OF_MUTANT, scene
from atlas.site.text import attr, fence, front, listing, md, number, slug

NOT_WRITTEN = "Exemplar not written yet"
# The headings of every technique's page, in order.
SECTIONS = (
    "The run, replayed",
    "How it works",
    "Predicted, then measured",
    "As p grows",
    "The code",
    "Run it",
    "Break it",
    "In production",
    "Who uses it",
    "Papers",
    "API",
)
# The same where the exemplar is still to be written.
UNWRITTEN = (
    "What its run will have to show",
    "In production",
    "Who uses it",
    "Papers",
    "See also",
    "Write it",
)
# How a run is held to a claim of each kind.
HELD = {
    "equal": "bit for bit",
    "close": "to rounding",
    "exact": "exactly the number predicted",
    "bound": "never above the bound",
    "statistical": "within a stated band",
}


def page(ctx: Context, t: Technique) -> str:
    """The whole page as Markdown."""
    titles, bodies = _written(ctx, t) if ctx.written(t) else _unwritten(ctx, t)
    sections = zip(titles, bodies, strict=True)
    text = [head(ctx, t), *(f"## {title}\n\n{body}" for title, body in sections)]
    return "\n\n".join(part.rstrip() for part in text) + "\n"


def _written(ctx: Context, t: Technique) -> tuple[Sequence[str], Sequence[str]]:
    """Headings and bodies of a technique that runs."""
    return SECTIONS, (
        replayed(ctx, t),
        how(ctx, t),
        measured(ctx, t),
        grows(ctx, t),
        code(ctx, t),
        run_it(ctx, t),
        broken(ctx, t),
        production(ctx, t),
        users(ctx, t),
        papers(ctx, t),
        api(ctx, t),
    )


def _unwritten(ctx: Context, t: Technique) -> tuple[Sequence[str], Sequence[str]]:
    """Headings and bodies of a technique that is described and does not run yet."""
    return UNWRITTEN, (
        claims(t),
        production(ctx, t),
        users(ctx, t),
        papers(ctx, t),
        neighbours(ctx, t),
        write_it(ctx, t),
    )


def up(depth: int) -> str:
    """From a page that many folders down to the root of the pages."""
    return "../" * depth


def head(ctx: Context, t: Technique) -> str:
    """Crumb, name, one sentence, badges, when and when not."""
    axis = next(a for a in ctx.atlas.axes if a.id == t.axis)
    family = ctx.atlas.families[f"{t.axis}/{t.family}"]
    crumb = f"[{md(axis.name)}](../index.md) › [{md(family.name)}](index.md)"
    also = [
        f"[{md(ctx.atlas.families[f'{a}/{f}'].name)}](../../{a}/{f}/index.md)"
        for a, f in t.also.items()
    ]
    names = (
        f"Also called {listing(md(n) for n in t.also_called)}. "
        if t.also_called
        else ""
    )
    near = [link(ctx, i) for i in t.see_also]
    more = names + f"Since {t.since}."
    more += f" Also on {listing(also)}." if also else ""
    more += f" See also {listing(near)}." if near and ctx.written(t) else ""
    more += _compared(ctx, t)
    return (
        front(
            t.name,
            description=t.summary,
            hide=["navigation"],
            # the search weighs tags most: other names lead here
            tags=[attr(n) for n in t.also_called],
            search={"boost": 2},
        )
        + f'<p class="crumb" markdown>{crumb}</p>\n\n'
        + f"# {md(t.name)}\n\n"
        + f'<p class="lede" markdown>{md(t.summary)}</p>\n\n'
        + _badges(ctx, t)
        + "\n\n"
        + '<dl class="when">'
        + f"<div><dt>Use it when</dt><dd>{md(t.use_when)}</dd></div>"
        + f"<div><dt>Avoid it when</dt><dd>{md(t.avoid_when)}</dd></div></dl>\n\n"
        + '<dl class="when gives">'
        + f"<div><dt>Gives</dt><dd>{md(t.pros)}</dd></div>"
        + f"<div><dt>Costs</dt><dd>{md(t.cons)}</dd></div></dl>\n\n"
        + f'<p class="quiet" markdown>{more}</p>\n'
    )


def _compared(ctx: Context, t: Technique) -> str:
    """The way to a comparison, with the nearest neighbour to begin with."""
    to = compare_link(ctx, t.id, f"{t.path}.md", *t.see_also[:1], kind="technique")
    return f' <a href="{to}">Compare it with others</a>.'


def _badges(ctx: Context, t: Technique) -> str:
    """What was run where; of what does not run, that alone."""
    if ctx.written(t):
        return evidence.badges(ctx, t)
    return f'<div class="badges">{evidence.badge(NOT_WRITTEN, "warn")}</div>'


def claims(t: Technique) -> str:
    """What the exemplar must prove, before it exists."""
    rows = "\n".join(
        f"| {md(c.says[:1].upper() + c.says[1:])} | {HELD[c.kind]} "
        f"| {'on every rank' if c.per == 'rank' else 'of the whole run'} |"
        for c in t.claims
    )
    return (
        "No program here does this yet. These claims wait for it: the exemplar "
        "counts when its run has shown them all.\n\n"
        f"| claim | held | checked |\n|---|---|---|\n{rows}"
    )


def neighbours(ctx: Context, t: Technique) -> str:
    """The techniques beside it, and whether they run."""
    if not t.see_also:
        return "No neighbouring technique is named yet."
    near = [ctx.atlas.techniques[i] for i in t.see_also]
    return "\n".join(
        f"- {link(ctx, n.id)}: {md(n.summary)}"
        + ("" if ctx.written(n) else f" *({NOT_WRITTEN.lower()})*")
        for n in near
    )


def write_it(ctx: Context, t: Technique) -> str:
    """Where the exemplar belongs, and where the data is."""
    return (
        f"The exemplar's place is `{t.exemplar.as_posix()}`: one file, at most 150 "
        "lines, whose `main` does this with torch.distributed and reports the claims "
        "above. Its formulas go to `atlas/oracle/formulas.py`; "
        f"`pytest -k {t.id}` then runs it on 1 to 8 ranks.\n\n"
        f'<p class="quiet files" markdown>Data: {_file(ctx, t.yaml.as_posix())}</p>'
    )


def link(ctx: Context, technique: str, depth: int = 2) -> str:
    """A link to another technique's page."""
    t = ctx.atlas.techniques[technique]
    return f"[{md(t.name)}]({up(depth)}{t.path}.md)"


def replayed(ctx: Context, t: Technique) -> str:
    """The recorded run, or why there is none."""
    found, run = ctx.record(t.id, "gloo"), ctx.shown(t.id)
    if found is None or run is None:
        return f"No run is recorded yet: `atlas record {t.id}` makes one."
    return _figure(ctx, t, run, "replay", _caption(found, run)) or (
        "The recorded run kept no trace to replay."
    )


def _caption(found: Json, run: Json) -> str:
    torch = found.get("versions", {}).get("torch", "")
    given = ", ".join(f"{k} = {number(v)}" for k, v in run["given"].items())
    text = f"A real run: {run['p']} processes over gloo, recorded {found['recorded']}"
    text += f" with torch {torch}" if torch else ""
    return text + (f"; {given}." if given else ".")


def _figure(
    ctx: Context,
    t: Technique,
    run: Json,
    ident: str,
    caption: str,
    limit: int = LIMIT,
) -> str:
    said = evidence.predicted_bytes(ctx.verdicts(t, run), int(run["p"]))
    drawn = scene(run, said, limit)
    return replay.figure(drawn, ident, caption) if drawn else ""


def how(ctx: Context, t: Technique) -> str:
    """What the exemplar says of itself."""
    return annotate.explanation(ctx.source(t)) or md(t.summary)


def measured(ctx: Context, t: Technique) -> str:
    """Cards, and every rank behind them."""
    run = ctx.card_run(t.id)
    intro = ""
    if run is not None:
        intro = (
            f"The figures are those of the run on {run['p']} ranks; the formulas are "
            "the ones that the tests evaluate.\n\n"
        )
    seen = [evidence.cards(ctx, t), evidence.table(ctx, t)]
    if t.axis == "parameter-distribution":
        assets = address.assets(f"{t.path}.md", "studies.css")
        seen += [assets, *memory.section(run)]
    return intro + "\n\n".join(seen) + "\n"


def grows(ctx: Context, t: Technique) -> str:
    """Curves over the number of ranks."""
    drawn = evidence.curves(ctx, t)
    if drawn:
        return drawn + "\n"
    return "No recorded claim of this technique is a formula in p."


def code(ctx: Context, t: Technique) -> str:
    """The program itself."""
    return annotate.code_block(ctx.source(t), t.exemplar.as_posix())


def default_ranks(t: Technique) -> int:
    """Four, where the technique allows it."""
    return max(t.min_ranks, min(4, t.max_ranks or 4))


def run_it(ctx: Context, t: Technique) -> str:
    """Commands to copy."""
    p = default_ranks(t)
    torchrun = f"torchrun --standalone --nproc-per-node {p} -m {t.module}"
    parts = [
        "Predicted, measured and verdict as a table:",
        fence(f"atlas run {t.id} --ranks {p}", "{ .sh }"),
        "The same file under plain torchrun; with GPUs it uses NCCL:",
        fence(torchrun, "{ .sh }"),
    ]
    if t.dry:
        parts += [
            f"One rank of {max(t.dry)}, counted without the others:",
            fence(f"atlas run {t.id} --dry {max(t.dry)}", "{ .sh }"),
        ]
    parts += [
        "On a pretend GPU that refuses what NCCL refuses:",
        fence(f"atlas run {t.id} --ranks {p} --emulate-gpu", "{ .sh }"),
    ]
    parts += _notebooks(ctx, t)
    return "\n".join(parts)


def _notebooks(ctx: Context, t: Technique) -> Iterator[str]:
    for stem, text in ctx.notebooks.items():
        if t.id in text or t.module in text:
            name = md(notebooks.title(ctx.root, stem))
            yield f"\nIn a notebook: [{name}](../../notebooks/{stem}.md)."


def broken(ctx: Context, t: Technique) -> str:
    """Each mutant: what it does, its diff, its run, and the claim that catches it."""
    if not t.mutants:
        return "No mutants are written for this technique yet."
    record = ctx.record(t.id, "gloo") or {}
    seen = {m["id"]: m for m in record.get("mutants", ())}
    parts = [
        "Plausible mistakes, one at a time. Each was put into the program and run; "
        "the claims must notice.\n\n"
        '<div class="choices" data-label="Mutant" markdown>'
    ]
    parts += [_mutant(ctx, t, m, seen.get(m.id)) for m in t.mutants]
    return "\n\n".join([*parts, "</div>"])


def _mutant(ctx: Context, t: Technique, m: Mutant, seen: Json | None) -> str:
    parts = [
        f'<section class="choice" markdown>\n\n### {md(_spoken(m.id))} '
        f"{{ #mutant-{slug(m.id)} }}",
        md(m.says),
    ]
    parts.append(fence(diff(ctx.source(t), m, t.exemplar.name), "{ .diff }"))
    parts.append(_caught(t, m, seen))
    if seen and seen.get("run"):
        ident = f"replay-{slug(m.id)}"
        caption = f"The run with this mistake, on {seen['p']} ranks."
        drawn = _figure(ctx, t, seen["run"], ident, caption, LIMIT_OF_MUTANT)
        parts.append(drawn)
    if m.seen_in:
        parts.append(f"Seen in: [{md(m.seen_in.what)}]({_url(m.seen_in.source)}).")
    return "\n\n".join([p for p in parts if p] + ["</section>"])


def _spoken(ident: str) -> str:
    """A mutant's id as a heading."""
    return ident.replace("-", " ").capitalize()


def _caught(t: Technique, m: Mutant, seen: Json | None) -> str:
    names = {c.id: c.says for c in t.claims}
    if seen is None:
        want = "the deadline" if m.deadline else listing(names[f] for f in m.fails)
        return f"Not recorded yet. It must be caught by: {md(want)}."
    if seen["ended"] == "deadline":
        return evidence.badge("it never ends: stopped at the deadline", "bad")
    if seen["ended"] == "error":
        said = str(seen.get("error", "")).strip().partition("\n")[0]
        return evidence.badge("it stops with an error", "bad") + f" {md(said)}"
    red = [evidence.badge(f"✗ {names.get(f, f)}", "bad") for f in seen["failed"]]
    if not red:
        return evidence.badge("not caught", "warn")
    return f'<p class="badges">Claims that turn red: {"".join(red)}</p>'


def diff(source: str, m: Mutant, name: str) -> str:
    """The mutant as a unified diff of the exemplar."""
    before = _without_notes(source)
    after = _without_notes(source.replace(m.find, m.replace))
    lines = list(difflib.unified_diff(before, after, name, name, n=2, lineterm=""))
    return "\n".join(lines[2:]) or "The text to replace is not in the exemplar."


def _without_notes(source: str) -> list[str]:
    return [x for x in source.splitlines() if not x.lstrip().startswith("#:")]


def _url(address: str) -> str:
    """An address that cannot end a Markdown link early."""
    return address.replace("(", "%28").replace(")", "%29").replace(" ", "%20")


def production(ctx: Context, t: Technique) -> str:
    """The setting that does this in earnest, its cost, and what we cannot show."""
    parts = []
    if t.production:
        parts.append(
            "| library | setting | version | source |\n|---|---|---|---|\n"
            + "\n".join(
                f"| {_breakable(p.name)} | <code>{md(p.setting)}</code> "
                f"| {md(p.version)} | [documentation]({_url(p.source)}) |"
                for p in t.production
            )
        )
    else:
        parts.append("No production setting is recorded for this technique yet.")
    if cost := ctx.production.get(t.id):
        parts.append(_beside(cost))
    if t.not_shown:
        parts.append(f"**What this run cannot show.** {md(t.not_shown)}")
    return "\n\n".join(parts)


def _breakable(name: str) -> str:
    """A dotted name that a narrow page may break after a dot."""
    return "<wbr>".join(md(part) for part in re.split(r"(?<=\.)(?=\w)", name))


def _beside(cost: Json) -> str:
    rows = [("", "this exemplar", md(cost["production"]))]
    if cost.get("ours_bytes") is not None:
        ours, theirs = cost["ours_bytes"], cost.get("theirs_bytes")
        rows.append(("metered bytes", number(ours), number(theirs)))
    if cost.get("ours_seconds") is not None:
        ours = f"{cost['ours_seconds'] * 1e3:.3g} ms"
        theirs = f"{cost['theirs_seconds'] * 1e3:.3g} ms"
        rows.append(("time", ours, theirs))
    ratio = f"; ratio {cost['ratio']:.2f}" if cost.get("ratio") else ""
    note = f" {md(cost['note'])}" if cost.get("note") else ""
    body = "\n".join(f"| {' | '.join(row)} |" for row in rows[1:])
    return (
        f"Side by side, in one run on {cost['p']} ranks{ratio}.{note}\n\n"
        f"| {' | '.join(rows[0])} |\n|---|---|---|\n{body}"
    )


def users(ctx: Context, t: Technique) -> str:
    """Systems that use it, oldest first."""
    found = ctx.atlas.users(t.id)
    if not found:
        return "No system in the atlas is recorded as using it yet."
    return "\n".join(
        f"- [{md(s.name)}](../../systems/{s.id}.md), {s.year}: {md(s.summary)}"
        for s in found
    )


def cite(p: Paper) -> str:
    """Authors, year, title, venue."""
    who = p.authors[0] if p.authors else ""
    who = who if len(p.authors) == 1 else f"{who} and others"
    if len(p.authors) == 2:
        who = " and ".join(p.authors)
    title = f"[{md(p.title)}]({_url(p.link)})" if p.link else md(p.title)
    venue = f" {md(p.venue)}." if p.venue else ""
    return f"{md(who)} ({p.year}). {title}.{venue}"


def papers(ctx: Context, t: Technique) -> str:
    """What it rests on, and how the surveys file it."""
    lines = [
        f"- {cite(ctx.atlas.papers[k])} [What rests on it](../../papers.md#{slug(k)})"
        for k in t.papers
    ]
    if not lines:
        lines = ["No paper is recorded for this technique yet."]
    if t.surveys:
        lines.append("\nIn the surveys:\n")
        for key, term in t.surveys.items():
            survey = ctx.atlas.surveys.get(key)
            name = md(survey.name if survey else key)
            lines.append(f"- [{name}](../../surveys/{key}.md): {md(term)}")
    return "\n".join(lines)


def api(ctx: Context, t: Technique) -> str:
    """The exemplar's functions, and where its files are."""
    parts = [annotate.reference(ctx.source(t))]
    data, program = _file(ctx, t.yaml.as_posix()), _file(ctx, t.exemplar.as_posix())
    parts.append(
        f'<p class="quiet files" markdown>Data: {data} · Program: {program}</p>'
    )
    return "\n\n".join(parts)


def _file(ctx: Context, path: str) -> str:
    if not ctx.edit:
        return f"`{path}`"
    return f"[edit {md(path)}]({ctx.edit.rstrip('/')}/{path})"
