"""V-Half and V-Min: one micro-batch's path through a V, repeated every six slots.

The network has two stages per rank. Stage r is on rank r on the way down and stage
2p-1-r on the way up, so rank 0 has both ends. A block says in which slot each rank does
F and B of its two stages for micro-batch 0; micro-batch i is 6i slots later. The longer
a micro-batch stays between F and W on a rank, the more of them the rank holds: slow on
the way down and fast on the way up holds half of what 1F1B holds, fast everywhere a
third. Two of six slots stay free in each block, and weight gradients take them.

The blocks are exact. Before and after the steady phase they leave idle slots, into
which work is then moved by a greedy search, where what it needs is done and no more is
held at once than before. The search is a heuristic, as it is in the authors' code: the
peak is a theorem, and the bubble is what was found.

Source: Qi et al. 2024, section 3 and appendix; the offsets and the idea of moving
are those of zbv_greedy.py in sail-sg/zero-bubble-pipeline-parallelism.
"""

from collections.abc import Container

from atlas.schedule.actions import Work, needs

PERIOD = 6  # slots of a micro-batch on a rank: F, B and W of two stages

#: What a rank does in which slot.
Slots = dict[int, Work]


def offsets(kind: str, rank: int, ranks: int) -> tuple[int, int, int, int]:
    """Slots of F down, F up, B up (whose stage comes first) and B down."""
    p, r = ranks, rank
    if kind == "v-min":
        gap = 0 if p % 3 else 2  # else two passes would share a slot
        return r, 2 * p - 1 - r, 2 * p + gap + r, 4 * p + gap - 1 - r
    gap = 0 if p % 2 else 3
    return 2 * r, 3 * p - 2 - r, 3 * p + gap - 1 + 2 * r, 6 * p + gap - 2 - r


def v_shape(kind: str, ranks: int, microbatches: int) -> list[list[Work]]:
    """What each rank does, in order."""
    grid = [filled(block(kind, r, ranks, microbatches)) for r in range(ranks)]
    most = max(held(slots) for slots in grid)
    grid = moved(grid, most, (0, 2))
    #: Once more, with weight gradients out of the way of what others wait for.
    bare = [{t: w for t, w in slots.items() if w.kind != "W"} for slots in grid]
    grid = [filled(slots) for slots in moved(bare, most, (2,))]
    return [[slots[t] for t in sorted(slots)] for slots in grid]


def block(kind: str, rank: int, ranks: int, microbatches: int) -> Slots:
    """Every micro-batch's block on one rank, without weight gradients."""
    down, up = rank, 2 * ranks - 1 - rank
    passes = zip("FFBB", (down, up, up, down), offsets(kind, rank, ranks), strict=True)
    return {
        slot + PERIOD * i: Work(pass_, i, stage)
        for pass_, stage, slot in passes
        for i in range(microbatches)
    }


def filled(slots: Slots) -> Slots:
    """Each weight gradient in the first free slot after its turn."""
    found, due, t = dict(slots), list[Work](), 0
    last = max(slots)
    while t <= last or due:
        if t in slots:
            due += [slots[t]._replace(kind="W")] if slots[t].kind == "B" else []
        elif due:
            found[t] = due.pop(0)
        t += 1
    return found


def held(slots: Slots) -> int:
    """Most activations at once."""
    now = most = 0
    for t in sorted(slots):
        now += {"F": 1, "B": 0, "W": -1}[slots[t].kind]
        most = max(most, now)
    return most


def moved(grid: list[Slots], most: int, phases: Container[int]) -> list[Slots]:
    """Work of these phases in the first free slot that will do.

    Phase 0 ends with the first backward at stage 0, phase 1 with the last forward.
    """
    grid = [dict(slots) for slots in grid]
    at = {w: (t, r) for r, slots in enumerate(grid) for t, w in slots.items()}
    stages = 2 * len(grid)
    begin = at[Work("B", 0, 0)][0]
    stop = max(t for w, (t, _) in at.items() if w.kind == "F" and w.stage == 0)
    for work, (t, r) in sorted(at.items(), key=lambda item: (item[1], item[0])):
        if (0 if t < begin else 1 if t < stop else 2) not in phases:
            continue
        before = needs(work, stages)
        if work.micro:  # micro-batches keep their order
            before.append(work._replace(micro=work.micro - 1))
        earliest = 1 + max((at[n][0] for n in before), default=-1)
        for slot in range(earliest, t):
            if slot in grid[r]:
                continue
            tried = {u: w for u, w in grid[r].items() if u != t} | {slot: work}
            complete = any(w.kind == "W" for w in tried.values())
            if held(tried if complete else filled(tried)) <= most:
                grid[r], at[work] = tried, (slot, r)
                break
    return grid
