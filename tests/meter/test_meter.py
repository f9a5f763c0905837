"""The meter: every call is counted once, whoever makes it, and nothing is missed."""

import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
import torch.distributed._functional_collectives as functional
from scripts import run
from torch import Tensor, nn
from torch.utils.flop_counter import FlopCounterMode

from atlas.launch import LaunchError, launch
from atlas.meter import Meter, meter, span, wire_bytes
from atlas.meter import counting as metering
from exemplars.runtime import World

N = 12  # elements of float32 that each rank hands over: 48 bytes
BYTES = 4 * N


def empty(count: int = N) -> Tensor:
    return torch.empty(count)


def parts(p: int, of: int = N) -> list[Tensor]:
    return list(empty(of).chunk(p))


#: what is called -> its name, its payload in multiples of 48 bytes, how it is called
COLLECTIVES: dict[str, tuple[str, float, Callable[[Tensor, int, int], object]]] = {
    "all_reduce": ("all_reduce", 1, lambda x, r, p: dist.all_reduce(x)),
    "all_reduce async": (
        "all_reduce", 1, lambda x, r, p: dist.all_reduce(x, async_op=True).wait()),
    "broadcast": ("broadcast", 1, lambda x, r, p: dist.broadcast(x, 0)),
    "reduce": ("reduce", 1, lambda x, r, p: dist.reduce(x, 0)),
    "all_gather": (
        "all_gather", 1, lambda x, r, p: dist.all_gather(parts(p, p * N), x)),
    "all_gather_single": (
        "all_gather", 1, lambda x, r, p: dist.all_gather_single(empty(p * N), x)),
    "reduce_scatter": (
        "reduce_scatter", 1,
        lambda x, r, p: dist.reduce_scatter(empty(N // p), list(x.chunk(p)))),
    "reduce_scatter_single": (
        "reduce_scatter", 1,
        lambda x, r, p: dist.reduce_scatter_single(empty(N // p), x)),
    "all_to_all": (
        "all_to_all", 1, lambda x, r, p: dist.all_to_all(parts(p), list(x.chunk(p)))),
    "all_to_all_single": (
        "all_to_all", 1, lambda x, r, p: dist.all_to_all_single(empty(), x)),
    "barrier": ("barrier", 0, lambda x, r, p: dist.barrier()),
    "monitored_barrier": ("barrier", 0, lambda x, r, p: dist.monitored_barrier()),
    "functional all_reduce": (
        "all_reduce", 1, lambda x, r, p: -functional.all_reduce(x, "sum", world())),
    "functional coalesced all_reduce": (
        "all_reduce", 2, lambda x, r, p: [
            -y for y in functional.all_reduce_coalesced([x, x], "sum", world())][:0]),
    "functional all_gather": (
        "all_gather", 1, lambda x, r, p: -functional.all_gather_single(x, 0, world())),
    "functional reduce_scatter": (
        "reduce_scatter", 1,
        lambda x, r, p: -functional.reduce_scatter_single(x, "sum", 0, world())),
    "functional all_to_all": (
        "all_to_all", 1,
        lambda x, r, p: -functional.all_to_all_single(x, None, None, world())),
    "functional broadcast": (
        "broadcast", 1, lambda x, r, p: -functional.broadcast(x, 0, world())),
    "functional all_gather with a gradient": (
        "all_gather", 1,
        lambda x, r, p: -functional.all_gather_single_autograd(x, 0, world())),
}  # fmt: skip


def world() -> dist.ProcessGroup:
    assert dist.group.WORLD
    return dist.group.WORLD


def each_collective(w: World) -> dict[str, dict[str, Any]]:
    return {k: told(call, w) for k, (_, _, call) in COLLECTIVES.items()}


def told(call: Callable[[Tensor, int, int], object], w: World) -> dict[str, Any]:
    with meter() as moved:
        call(torch.ones(N), w.rank, w.size)
    return figures(moved)


def figures(moved: Meter) -> dict[str, Any]:
    """What a meter found, without its times."""
    events = [(e.kind, e.name, e.label, e.bytes, e.group) for e in moved.events]
    counts = {k: (c.count, c.payload, c.wire) for k, c in moved.calls.items()}
    waits = [e.of for e in moved.events if e.kind == "wait"]
    return {"calls": counts, "events": events, "waits": waits, "sent": moved.bytes_sent}


@pytest.mark.parametrize("p", [2, 3, 4])
def test_every_collective_is_counted_once_and_its_wait_is_seen(p: int) -> None:
    for found in launch(each_collective, p):
        for call, (op, share, _) in COLLECTIVES.items():
            payload = int(share * BYTES)
            want = (1, payload, wire_bytes(op, payload, p))
            assert found[call]["calls"] == {op: want}, call
            event = ("collective", op, "", payload, tuple(range(p)))
            assert found[call]["events"][0] == event, call
            assert set(found[call]["waits"]) == {0}, call


def test_every_collective_is_counted_at_1024_ranks_on_the_fake_group() -> None:
    def some(w: World) -> list[dict[str, Any]]:
        x = torch.ones(1024)
        calls: list[Callable[..., object]] = [
            lambda *_: dist.all_reduce(x),
            lambda *_: dist.all_gather_single(empty(1024 * 1024), x),
            lambda *_: dist.reduce_scatter_single(empty(1), x),
            lambda *_: dist.all_to_all_single(empty(1024), x),
        ]
        return [told(call, w)["calls"] for call in calls]

    ops = ("all_reduce", "all_gather", "reduce_scatter", "all_to_all")
    want = [{op: (1, 4096, wire_bytes(op, 4096, 1024))} for op in ops]
    assert launch(some, 1024, dry=True) == [want] * 3


@pytest.mark.parametrize("p", [1, 2, 5])
def test_wire_bytes_are_those_of_the_optimal_algorithm(p: int) -> None:
    n = 100 * p
    assert wire_bytes("all_reduce", n, p) == 2 * 100 * (p - 1)
    assert wire_bytes("reduce_scatter", n, p) == 100 * (p - 1)
    assert wire_bytes("all_gather", 100, p) == 100 * (p - 1)
    assert wire_bytes("broadcast", n, p) == (n if p > 1 else 0)
    assert wire_bytes("recv", n, p) == wire_bytes("barrier", n, p) == 0
    with pytest.raises(metering.MeterError, match="'levitate'"):
        wire_bytes("levitate", n, p)


def test_gather_and_scatter_count_what_each_rank_hands_over() -> None:
    def root_and_leaf(w: World) -> list[Any]:
        root = w.rank == 0
        into = parts(w.size, N * w.size) if root else None
        gather = told(lambda x, r, p: dist.gather(x, into), w)
        scatter = told(lambda x, r, p: dist.scatter(x, into), w)
        return [gather["calls"]["gather"][:2], scatter["calls"]["scatter"][:2]]

    assert launch(root_and_leaf, 2) == [
        [(1, BYTES), (1, 2 * BYTES)],
        [(1, BYTES), (1, 0)],
    ]


def exchange(how: str, p: int, r: int) -> None:
    """One message to the right and one from the left, in one of three ways."""
    x, y, right, left = torch.ones(N), empty(), (r + 1) % p, (r - 1) % p
    if how == "blocking" and r % 2 == 0:
        dist.send(x, right)
        dist.recv(y, left)
    elif how == "blocking":
        dist.recv(y, left)
        dist.send(x, right)
    elif how == "asynchronous":
        works = [dist.irecv(y, left), dist.isend(x, right)]
        for work in works:
            assert work
            work.wait()
    else:
        pair = [dist.P2POp(dist.isend, x, right), dist.P2POp(dist.irecv, y, left)]
        for work in dist.batch_isend_irecv(pair):
            work.wait()


@pytest.mark.parametrize("how", ["blocking", "asynchronous", "batched"])
def test_messages_are_counted_with_their_peers_and_waits(how: str) -> None:
    def ring(w: World) -> tuple[Any, ...]:
        with meter() as moved:
            exchange(how, w.size, w.rank)
        peers = {e.kind: (e.peer, e.bytes) for e in moved.events if e.kind != "wait"}
        waited = sorted(moved.events[i].kind for i in figures(moved)["waits"])
        return figures(moved)["calls"], dict(moved.sent_to), peers, waited

    for r, (calls, sent_to, peers, waited) in enumerate(launch(ring, 4)):
        assert calls == {"send": (1, BYTES, BYTES), "recv": (1, BYTES, 0)}
        assert sent_to == {(r + 1) % 4: BYTES}
        assert peers == {"send": ((r + 1) % 4, BYTES), "recv": ((r - 1) % 4, BYTES)}
        assert waited == ["recv", "send"]


def test_in_a_subgroup_peers_and_groups_are_global_ranks() -> None:
    def odd_ranks(w: World) -> Any:
        odd = dist.new_group([1, 3])
        if w.rank % 2 == 0:
            return None
        with meter() as moved:
            dist.all_reduce(torch.ones(N), group=odd)
            if w.rank == 1:
                dist.send(torch.ones(N), group=odd, group_dst=1)
            else:
                dist.recv(empty(), group=odd, group_src=0)
        seen = [(e.kind, e.peer, e.group) for e in moved.events if e.kind != "wait"]
        return seen, moved.calls["all_reduce"].wire

    whole = ("collective", -1, (1, 3))
    assert launch(odd_ranks, 4) == [
        None, ([whole, ("send", 3, ())], BYTES),
        None, ([whole, ("recv", 1, ())], BYTES),
    ]  # fmt: skip


@pytest.mark.parametrize("operations", [1, 2])
def test_one_handle_for_a_whole_batch_waits_for_all_of_it(operations: int) -> None:
    """NCCL gives one Work for a batch, and none for its messages."""

    def batch(w: World) -> list[int]:
        class Whole:
            def wait(self) -> None: ...

        def one_handle(ops: list[dist.P2POp]) -> list[Whole]:
            for op in ops:  # hidden from the meter, as a coalesced Work is
                works.append(op.op(op.tensor, op.peer))
            open_meter._works.clear()
            return [Whole()]

        works: list[Any] = []
        metering._batch_isend_irecv = one_handle
        kinds = [dist.isend, dist.irecv] if w.rank == 0 else [dist.irecv, dist.isend]
        ops = [dist.P2POp(k, torch.ones(N), 1 - w.rank) for k in kinds[:operations]]
        with meter() as open_meter:
            [whole] = dist.batch_isend_irecv(ops)
            whole.wait()
        for work in works:
            work.wait()
        return [e.of for e in open_meter.events if e.kind == "wait"]

    assert launch(batch, 2) == [list(range(operations))] * 2


def test_spans_nest_and_label_what_is_sent_inside() -> None:
    def labeled(w: World) -> list[tuple[Any, ...]]:
        with meter() as moved:
            with span("outer", label="a", cost=2):
                dist.all_reduce(empty())
                with span("inner", label=7):
                    dist.all_reduce(empty())
            dist.all_reduce(empty())
        return [(e.kind, e.name, e.label, e.cost, e.of) for e in moved.events]

    def call(label: str) -> tuple[Any, ...]:
        return ("collective", "all_reduce", label, 0, -1)

    [found] = launch(labeled, 1)
    assert [e for e in found if e[0] != "wait"] == [
        ("begin", "outer", "a", 2, -1), call("a"),
        ("begin", "inner", "7", 0, -1), call("7"),
        ("end", "", "", 0, 3), ("end", "", "", 0, 0), call(""),
    ]  # fmt: skip


def test_a_span_left_by_an_exception_is_closed() -> None:
    moved = Meter()
    with moved:
        with pytest.raises(KeyError), span("lost", label="lost"):
            raise KeyError
        with span("next", label="next"):
            pass
    assert [(e.kind, e.of) for e in moved.events] == [
        ("begin", -1), ("end", 0), ("begin", -1), ("end", 2),
    ]  # fmt: skip


def test_nested_meters_each_count_what_they_enclose() -> None:
    def nested(w: World) -> tuple[list[int], list[int]]:
        with meter() as outer:
            dist.all_reduce(empty())
            with meter() as inner:
                exchange("batched", w.size, w.rank)
            dist.all_reduce(empty())
        waits = [len([e for e in m.events if e.kind == "wait"]) for m in (outer, inner)]
        return [outer.count, inner.count, outer.bytes_sent, inner.bytes_sent], waits

    assert launch(nested, 2) == [([2, 0, BYTES, BYTES], [4, 2])] * 2


@pytest.mark.parametrize("operator", ["c10d::allreduce_", "c10d::send"])
def test_an_operation_the_meter_does_not_know_raises(operator: str) -> None:
    def unknown(w: World) -> None:
        del metering.OPERATORS[operator]
        with meter():
            dist.all_reduce(empty())
            dist.isend(empty(), 1 - w.rank)

    with pytest.raises(LaunchError, match=f"MeterError: .* does not know {operator}"):
        launch(unknown, 2)


def test_ddp_is_counted_with_its_reducer() -> None:
    def step(w: World) -> list[Any]:
        model = nn.parallel.DistributedDataParallel(nn.Linear(10, 20))
        x = torch.ones(4, 10)
        meters = [Meter(), Meter(), Meter()]
        for m in meters:
            with m:
                model(x).sum().backward()
        return [figures(m)["calls"] for m in meters]

    size = 4 * (10 * 20 + 20)
    reduced = {"all_reduce": (1, size, wire_bytes("all_reduce", size, 2))}
    # The second step starts by agreeing on the order of the buckets.
    agreed = {"broadcast": (2, 16, 16), **reduced}
    assert launch(step, 2) == [[reduced, agreed, reduced]] * 2


def test_fsdp2_is_counted_gather_by_gather() -> None:
    def step(w: World) -> dict[str, Any]:
        from torch.distributed.device_mesh import init_device_mesh
        from torch.distributed.fsdp import fully_shard

        model = nn.Sequential(nn.Linear(8, 8), nn.Linear(8, 8))
        mesh = init_device_mesh("cpu", (w.size,))
        for layer in model:
            fully_shard(layer, mesh=mesh)
        fully_shard(model, mesh=mesh)
        with meter() as moved:
            model(torch.ones(4, 8)).sum().backward()
        return {k: v[:2] for k, v in figures(moved)["calls"].items()}

    layer = 4 * (8 * 8 + 8)
    for calls in launch(step, 2):
        # forward and backward gather every layer; backward scatters each gradient
        assert calls["all_gather"] == (4, 4 * layer // 2)
        assert calls["reduce_scatter"] == (2, 2 * layer)


def test_collectives_inside_a_dtensors_operation_are_counted() -> None:
    def add(w: World) -> dict[str, Any]:
        from torch.distributed.device_mesh import init_device_mesh
        from torch.distributed.tensor import Partial, Shard, distribute_tensor

        mesh = init_device_mesh("cpu", (w.size,))
        a = distribute_tensor(torch.ones(4, 8), mesh, [Shard(1)])
        b = distribute_tensor(torch.ones(8, 2), mesh, [Shard(0)])
        with meter() as moved:
            c = a @ b  # each rank holds a term of the sum
            assert c.placements == (Partial(),)
            c.relu()  # needs the sum itself
        return {k: v[:2] for k, v in figures(moved)["calls"].items()}

    assert launch(add, 2) == [{"all_reduce": (1, 4 * 4 * 2)}] * 2


@pytest.mark.parametrize("messages", [1, 3])
def test_written_bytes_are_those_sent_and_gloos_headers(messages: int) -> None:
    """gloo on Linux: 96 bytes go with a message, 48 come back from its receiver."""

    def ring(w: World) -> tuple[int | None, int]:
        dist.barrier()  # the connections stand from here on
        exchange("batched", w.size, w.rank)
        dist.barrier()
        with meter() as moved:
            for _ in range(messages):
                exchange("batched", w.size, w.rank)
        return moved.written, moved.bytes_sent

    for written, sent in launch(ring, 4):
        assert sent == messages * BYTES
        assert written == sent + 96 * messages + 48 * messages


def test_gloos_reduce_scatter_writes_twice_what_it_must() -> None:
    def scatter(w: World) -> tuple[int | None, float]:
        x, y = torch.ones(400_000), empty(100_000)
        dist.barrier()
        with meter() as moved:
            dist.reduce_scatter_single(y, x)
        return moved.written, moved.wire

    for written, wire in launch(scatter, 4):
        assert wire == 3 * 400_000
        assert written == pytest.approx(2 * wire, rel=0.01)


def test_gloos_all_reduce_writes_what_it_must() -> None:
    def reduce(w: World) -> tuple[int | None, float]:
        x = torch.ones(400_000)
        dist.barrier()
        with meter() as moved:
            dist.all_reduce(x)
        return moved.written, moved.wire

    for written, wire in launch(reduce, 4):
        assert wire == 2 * 3 * 400_000
        assert written == pytest.approx(wire, rel=0.01)


def test_products_are_counted_there_and_back_as_torch_counts_them() -> None:
    net = nn.Sequential(
        nn.Conv2d(3, 8, 3, stride=2),
        nn.ReLU(),
        nn.Flatten(1, 2),
        nn.Linear(7, 5),
        nn.TransformerEncoderLayer(5, 1, 6, batch_first=True),
    )
    x = torch.randn(2, 3, 16, 16)
    with FlopCounterMode(display=False) as theirs:
        net(x).sum().backward()
    with meter() as outer:
        with meter() as inner:
            y = net(x)
        y.sum().backward()
    assert outer.flops == theirs.get_total_flops()
    assert 0 < inner.flops < outer.flops / 2


def test_products_of_a_dtensor_are_those_of_its_part() -> None:
    def one(w: World) -> int:
        from torch.distributed.device_mesh import init_device_mesh
        from torch.distributed.tensor import Replicate, Shard, distribute_tensor

        made = init_device_mesh("cpu", (w.size,))
        x = distribute_tensor(torch.ones(6, 4), made, [Shard(0)])
        with meter() as moved:
            x @ distribute_tensor(torch.ones(4, 5), made, [Replicate()])
        return moved.flops

    assert launch(one, 2) == [2 * 3 * 4 * 5] * 2


def test_a_closed_meter_counts_nothing_more() -> None:
    def after(w: World) -> tuple[int, int]:
        with meter() as moved:
            dist.all_reduce(empty())
            pending = dist.all_reduce(empty(), async_op=True)
        before = len(moved.events)
        assert pending
        pending.wait()
        dist.all_reduce(empty())
        return moved.count, len(moved.events) - before

    assert launch(after, 2) == [(2, 0)] * 2


def test_a_meter_does_without_the_compiler_and_keeps_it_out(tmp_path: Path) -> None:
    """Its import takes longer than most of what is metered."""
    source = """
        import sys, torch
        from atlas.ledger import Ledger
        from atlas.meter import Meter

        with Meter(), Ledger({}):
            torch.zeros(3).tensor_split(2)
        print("torch._dynamo" in sys.modules)
        squared = torch.compile(lambda x: x @ x + 1, backend="eager")
        for mode in (Meter(), Ledger({})):
            with mode:
                print(squared(torch.ones(2, 2)).sum())
        from torch._dynamo.eval_frame import _debug_get_cache_entry_list as compiled
        print(*map(compiled, (Meter.__torch_dispatch__.__wrapped__, Ledger._see)))
    """
    expected = "False\ntensor(12.)\ntensor(12.)\n[] []\n"
    assert run(tmp_path, source, "-W", "error") == (0, expected, "")


def test_a_collective_of_another_thread_is_counted_with_its_wait() -> None:
    def elsewhere(w: World) -> list[tuple[str, int]]:
        with meter() as moved:
            dist.all_reduce(empty())
            thread = threading.Thread(target=lambda: dist.all_reduce(empty()))
            thread.start()
            thread.join()
        return [(e.kind, e.of) for e in moved.events]

    expected = [("collective", -1), ("wait", 0), ("collective", -1), ("wait", 2)]
    assert launch(elsewhere, 2) == [expected] * 2


def test_the_root_of_a_gather_sends_nothing() -> None:
    def gather(w: World) -> float:
        into = parts(w.size, w.size * N) if w.rank == 1 else None
        with meter() as moved:
            dist.gather(empty(), into, dst=1)
        return moved.wire

    assert launch(gather, 3) == [BYTES, 0, BYTES]


def test_a_call_that_gives_no_handle_was_itself_the_wait() -> None:
    """As NCCL does it, where nothing was asked to be asynchronous."""

    def without_handles(w: World) -> list[tuple[str, int]]:
        metering.handle = lambda out: None
        with meter() as moved:
            dist.all_reduce(empty())
        return [(e.kind, e.of) for e in moved.events]

    assert launch(without_handles, 2) == [[("collective", -1), ("wait", 0)]] * 2
