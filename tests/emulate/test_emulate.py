"""The emulated GPU computes what the CPU does, and its NCCL refuses as NCCL does.

A scenario is a function of this file whose name begins with `do_`. It runs on
ranks that a server forks: this file again, started as a program, which activates
the emulation and imports torch first. The tests themselves never import torch.
"""

import json
import os
import signal
import subprocess
import sys
import tempfile
import time
import traceback
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from atlas import emulate
from atlas.emulate import library as building

pytestmark = [
    pytest.mark.emulated,
    pytest.mark.skipif(
        emulate.unavailable() is not None, reason=str(emulate.unavailable())
    ),
]

DEADLINE = 20.0  # seconds for the ranks of one scenario
TIMEOUT = 10.0  # seconds of a process group; scenarios of deadlock choose SHORT
SHORT = 1.0
LINGER = 0.5


# ------------------------------------------------------------------- the server


class Server:
    """Forks the ranks of scenarios, one line of JSON in, one out."""

    def __init__(self) -> None:
        self._process = subprocess.Popen(
            [sys.executable, __file__],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            env={**os.environ, "OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1"},
        )
        self.threads = json.loads(self._answer())

    def run(self, scenario: str, ranks: int = 2, **settings: Any) -> list[Any]:
        """Each rank's value, or {"error": "Type: text"}."""
        assert self._process.stdin
        order = {"scenario": scenario, "ranks": ranks, **settings}
        self._process.stdin.write(json.dumps(order) + "\n")
        self._process.stdin.flush()
        answer: list[Any] = json.loads(self._answer())
        return answer

    def _answer(self) -> str:
        assert self._process.stdout
        line = self._process.stdout.readline()
        assert line, "the server has died"
        return line

    def close(self) -> None:
        self._process.communicate(timeout=10)


@pytest.fixture(scope="module")
def server() -> Iterator[Server]:
    it = Server()
    yield it
    it.close()


def serve() -> None:
    """What this file does as a program."""
    emulate.activate(devices=4)
    import torch
    import torch._dynamo
    import torch.distributed.fsdp  # noqa: F401 - before the ranks are forked

    print(len(os.listdir("/proc/self/task")), flush=True)
    for line in sys.stdin:
        order = json.loads(line)
        with tempfile.TemporaryDirectory() as folder:
            children = [fork(order, rank, folder) for rank in range(order["ranks"])]
            outlast(children)
            answer = [said(folder, rank) for rank in range(order["ranks"])]
        print(json.dumps(answer), flush=True)


def fork(order: dict[str, Any], rank: int, folder: str) -> int:
    child = os.fork()
    if child:
        return child
    try:
        answer = run_rank(order, rank, folder)
    except BaseException as e:
        traceback.print_exc()
        answer = {"error": f"{type(e).__name__}: {e}"}
    Path(folder, f"{rank}.json").write_text(json.dumps(answer))
    linger(order, folder)
    os._exit(0)


def linger(order: dict[str, Any], folder: str) -> None:
    """Leave together: who leaves first would break a peer's last message."""
    end = time.monotonic() + LINGER
    while time.monotonic() < end:
        if len(list(Path(folder).glob("*.json"))) == order["ranks"]:
            return
        time.sleep(0.005)


def run_rank(order: dict[str, Any], rank: int, folder: str) -> Any:
    from datetime import timedelta

    import torch
    import torch.distributed as dist

    torch.set_num_threads(1)
    backend = order.get("backend", "nccl")
    if backend == "nccl" and order.get("set_device", True):
        torch.cuda.set_device(order.get("device", rank))
    if backend != "none":
        dist.init_process_group(
            backend,
            init_method=f"file://{folder}/store",
            rank=rank,
            world_size=order["ranks"],
            timeout=timedelta(seconds=order.get("timeout", TIMEOUT)),
            device_id=torch.device("cuda", rank) if order.get("bind") else None,
        )
        join(dist.distributed_c10d._get_default_store(), rank, order["ranks"])
    return globals()[order["scenario"]](**order.get("given", {}))


def join(store: Any, rank: int, ranks: int) -> None:
    """Wait until all ranks have connected: a fast one may be gone at once."""
    store.set(f"joined {rank}", "yes")
    store.wait([f"joined {r}" for r in range(ranks)])


def outlast(children: list[int]) -> None:
    """Wait for the ranks; those that pass the deadline are killed."""
    end = time.monotonic() + DEADLINE
    while children and time.monotonic() < end:
        children = [c for c in children if os.waitpid(c, os.WNOHANG) == (0, 0)]
        time.sleep(0.01)
    for child in children:
        os.kill(child, signal.SIGKILL)
        os.waitpid(child, 0)


def said(folder: str, rank: int) -> Any:
    path = Path(folder, f"{rank}.json")
    return json.loads(path.read_text()) if path.exists() else {"error": "no answer"}


def errors(answers: list[Any]) -> list[str]:
    """The errors of all ranks; every rank must have one."""
    assert all(isinstance(a, dict) and "error" in a for a in answers), answers
    return [a["error"] for a in answers]


# -------------------------------------------------------------- what is refused


def do_refused(call: str) -> None:
    """Evaluate one call that NCCL refuses, on all ranks."""
    import torch
    import torch.distributed as dist

    x = torch.ones(4, 4, device="cuda")
    peer = 1 - dist.get_rank()
    eval(call, {"dist": dist, "torch": torch, "x": x, "peer": peer})  # noqa: S307


REFUSED = {
    "a CPU tensor": (
        "dist.all_reduce(x.cpu())",
        "No backend type associated with device type cpu",
    ),
    "an uncontiguous tensor": ("dist.all_reduce(x.t())", "must be contiguous"),
    "an uncontiguous message": ("dist.isend(x[:, 1], peer)", "must be contiguous"),
    "int16": ("dist.all_reduce(x.short())", "not supported for NCCL"),
    "a message of int16": ("dist.isend(x.short(), peer)", "not supported for NCCL"),
    "BAND": ("dist.all_reduce(x.int(), dist.ReduceOp.BAND)", "ReduceOp.BAND"),
    "BOR": ("dist.reduce(x.int(), 0, dist.ReduceOp.BOR)", "ReduceOp.BOR"),
    "BXOR": (
        "dist.reduce_scatter_single(x[:2].int(), x.int(), dist.ReduceOp.BXOR)",
        "ReduceOp.BXOR",
    ),
    "to receive from anyone": ("dist.recv(x)", "cannot receive from anyone"),
    "tags": ("dist.isend(x, peer, tag=3)", "tag=3"),
    "tags in a batch": (
        "dist.batch_isend_irecv([dist.P2POp(dist.isend, x, peer, tag=3)])",
        "tag=3",
    ),
    "to send to oneself": ("dist.isend(x, 1 - peer)", "its own peer"),
    "a monitored barrier": ("dist.monitored_barrier()", "only implemented for GLOO"),
    "two types in one call": (
        "dist.all_gather_single(torch.ones(8, 4, device='cuda'), x.double())",
        "identical type",
    ),
    "a wrong size": ("dist.all_gather_single(x, x)", "16 given where 32"),
    "a second device": (
        "[dist.all_reduce(t) for t in (x, x.to(f'cuda:{peer + 2}'))]",
        "and now cuda:",
    ),
}


@pytest.mark.parametrize("what", REFUSED)
def test_refuses(server: Server, what: str) -> None:
    call, message = REFUSED[what]
    for error in errors(server.run("do_refused", given={"call": call})):
        assert message in error


def do_all_reduce_on_own_device() -> None:
    import torch
    import torch.distributed as dist

    rank = dist.get_rank()
    dist.all_reduce(torch.ones(2, device=f"cuda:{rank}"))


def test_refuses_a_missing_set_device(server: Server) -> None:
    answers = server.run("do_all_reduce_on_own_device", set_device=False)
    assert "call torch.cuda.set_device(local_rank)" in answers[1]["error"]


def do_barrier() -> None:
    import torch.distributed as dist

    dist.barrier()


def test_refuses_one_device_for_two_ranks(server: Server) -> None:
    answers = server.run("do_barrier", device=0)
    duplicate = [a["error"] for a in answers if a and "Duplicate GPU" in a["error"]]
    assert len(duplicate) == 1  # the other lost its peer
    assert "both on CUDA device 0" in duplicate[0]


def do_disagree(calls: list[str]) -> None:
    import torch
    import torch.distributed as dist

    x = torch.ones(4, device="cuda")
    names = {"dist": dist, "x": x, "torch": torch, "MAX": dist.ReduceOp.MAX}
    work = eval(calls[dist.get_rank()], names)  # noqa: S307
    if work is not None:
        work.wait()


DISAGREE = {
    "operation": (["dist.all_reduce(x)", "dist.broadcast(x, 0)"], "calls broadcast"),
    "size": (["dist.all_reduce(x)", "dist.all_reduce(x[:3])"], "of 3 Float"),
    "type": (["dist.all_reduce(x)", "dist.all_reduce(x.double())"], "of 4 Double"),
    "reduction": (["dist.all_reduce(x)", "dist.all_reduce(x, MAX)"], "(MAX)"),
    "root": (["dist.broadcast(x, 0)", "dist.broadcast(x, 1)"], "with root 1"),
    "splits": (
        [
            "dist.all_to_all_single(x, x, [1, 3], [1, 3])",
            "dist.all_to_all_single(x, x, [2, 2], [2, 2])",
        ],
        "sends 3 elements to rank 1, which expects 2",
    ),
}


@pytest.mark.parametrize("what", DISAGREE)
def test_ranks_that_disagree_are_told(server: Server, what: str) -> None:
    calls, message = DISAGREE[what]
    for error in errors(server.run("do_disagree", given={"calls": calls})):
        assert "the ranks disagree" in error
        assert message in error


@pytest.mark.parametrize("other", ["x[:3]", "x.double()"])
def test_a_message_of_another_size_or_type_is_refused(
    server: Server, other: str
) -> None:
    calls = ["dist.send(x, 1)", f"dist.recv({other}, 0)"]
    answers = server.run("do_disagree", given={"calls": calls})
    assert "the ranks disagree: rank 0 calls send of 4 Float" in answers[1]["error"]


# --------------------------------------------------------- order, and its lack


def do_exchange(batched: bool) -> Any:
    """Both ranks send before they receive."""
    import torch
    import torch.distributed as dist

    peer = 1 - dist.get_rank()
    mine = torch.full((3,), float(dist.get_rank()), device="cuda")
    theirs = torch.empty(3, device="cuda")
    start = time.monotonic()
    try:
        if batched:
            ops = [
                dist.P2POp(dist.isend, mine, peer),
                dist.P2POp(dist.irecv, theirs, peer),
            ]
            works = dist.batch_isend_irecv(ops)
        else:
            works = [dist.isend(mine, peer), dist.irecv(theirs, peer)]
        for work in works:
            work.wait()
    except RuntimeError:
        return {"error": "deadline", "after": time.monotonic() - start}
    return theirs.tolist()


def test_unbatched_send_send_deadlocks_until_the_deadline(server: Server) -> None:
    answers = server.run("do_exchange", given={"batched": False}, timeout=SHORT)
    assert errors(answers) == ["deadline", "deadline"]
    assert max(a["after"] for a in answers) > 0.9 * SHORT


def test_the_same_messages_in_one_batch_pass(server: Server) -> None:
    answers = server.run("do_exchange", given={"batched": True})
    assert answers == [[1.0] * 3, [0.0] * 3]


def do_overlap() -> list[float]:
    """A collective in flight does not stop a message between two ranks."""
    import torch
    import torch.distributed as dist

    x = torch.ones(2, device="cuda")
    if dist.get_rank() == 0:
        work = dist.all_reduce(x, async_op=True)
        dist.send(torch.zeros(1, device="cuda"), 1)
        work.wait()
    else:
        dist.recv(torch.ones(1, device="cuda"), 0)
        dist.all_reduce(x)
    return x.tolist()


def test_collectives_are_asynchronous(server: Server) -> None:
    assert server.run("do_overlap") == [[2.0, 2.0]] * 2


def do_synchronize(how: str) -> list[float]:
    """Rank 0 reads a sum that it has not waited for, but synchronized with."""
    import torch
    import torch.distributed as dist

    x = torch.ones(2, device="cuda")
    store = dist.distributed_c10d._get_default_store()
    if dist.get_rank() == 1:
        store.wait(["begun"])
    dist.all_reduce(x, async_op=True)
    store.set("begun", "yes")
    getattr(torch, how).synchronize()
    return x.tolist()


@pytest.mark.parametrize("how", ["cuda", "accelerator"])
def test_synchronize_waits_for_collectives(server: Server, how: str) -> None:
    assert server.run("do_synchronize", given={"how": how}) == [[2.0, 2.0]] * 2


def do_crossing_batches() -> list[float]:
    """Rank 0's batch must serve rank 2 while it still waits for rank 1."""
    import torch
    import torch.distributed as dist

    def batch(*ops: tuple[Any, Any, int]) -> None:
        for work in dist.batch_isend_irecv([dist.P2POp(*op) for op in ops]):
            work.wait()

    out = torch.full((1,), float(dist.get_rank()), device="cuda")
    into = torch.empty(1, device="cuda")
    if dist.get_rank() == 0:
        other = torch.empty(1, device="cuda")
        batch((dist.irecv, into, 1), (dist.irecv, other, 2))
        return [*into.tolist(), *other.tolist()]
    if dist.get_rank() == 1:
        batch((dist.irecv, into, 2))
        batch((dist.isend, out, 0))
    else:
        batch((dist.isend, out, 0))
        batch((dist.isend, out, 1))
    return into.tolist()


def test_all_messages_of_a_batch_progress_at_once(server: Server) -> None:
    answers = server.run("do_crossing_batches", ranks=3)
    assert answers[:2] == [[1.0, 2.0], [2.0]]


def do_lose_the_peer(how: str) -> dict[str, Any]:
    import torch
    import torch.distributed as dist

    x = torch.ones(2, device="cuda")
    dist.all_reduce(x)
    store = dist.distributed_c10d._get_default_store()
    if dist.get_rank() == 1 and how == "dies":
        os.kill(os.getpid(), signal.SIGKILL)
    if dist.get_rank() == 1:
        store.wait(["raised"])
        return {}
    start = time.monotonic()
    with pytest.raises(RuntimeError):
        dist.recv(x, 1)
    store.set("raised", "yes")
    return {"after": time.monotonic() - start}


def test_a_rank_whose_peer_is_dead_raises(server: Server) -> None:
    first, second = server.run("do_lose_the_peer", given={"how": "dies"})
    assert second == {"error": "no answer"}
    assert first["after"] < TIMEOUT / 2


def test_a_rank_whose_peer_is_silent_raises_at_the_timeout(server: Server) -> None:
    given = {"how": "is silent"}
    first, _ = server.run("do_lose_the_peer", given=given, timeout=SHORT)
    assert 0.9 * SHORT < first["after"] < SHORT + 2


# ------------------------------------------------------------ what callers see


def do_watch() -> dict[str, Any]:
    """The operators that the dispatcher sees, and the waits that a class sees."""
    import torch
    import torch.distributed as dist
    from torch.utils._python_dispatch import TorchDispatchMode

    seen: list[tuple[str, int]] = []
    waits: list[bool] = []

    class Watch(TorchDispatchMode):
        def __torch_dispatch__(
            self, func: Any, types: Any, args: Any = (), kwargs: Any = None
        ) -> Any:
            if func.namespace == "c10d":
                size = args[0][0].numel() if func._schema.name != "c10d::barrier" else 0
                seen.append((func._schema.name.removeprefix("c10d::"), size))
            return func(*args, **(kwargs or {}))

    original = dist.Work.wait

    def counting(self: Any, *args: Any) -> Any:
        waits.append(True)
        return original(self, *args)

    dist.Work.wait = counting  # type: ignore[assignment]
    rank = dist.get_rank()
    x, y = torch.ones(3, device="cuda"), torch.ones(3, device="cuda")
    with Watch():
        work = dist.all_reduce(x, async_op=True)
        work.wait()
        ops = [
            dist.P2POp(dist.isend, x, 1 - rank),
            dist.P2POp(dist.irecv, y, 1 - rank),
        ]
        batch = dist.batch_isend_irecv(ops)
        batch[0].wait()
        dist.send(x, 1) if rank == 0 else dist.recv(y, 0)
        dist.barrier()
    future = work.get_future()
    return {
        "seen": seen,
        "waits": len(waits),
        "is a Work": isinstance(work, dist.Work) and isinstance(batch[0], dist.Work),
        "handles of the batch": len(batch),
        "completed": work.is_completed() and future.done(),
        "value": future.value()[0].data_ptr() == x.data_ptr(),
    }


def test_every_call_passes_the_dispatcher_and_every_wait_the_class(
    server: Server,
) -> None:
    for rank, answer in enumerate(server.run("do_watch")):
        single = "send" if rank == 0 else "recv_"
        names = ["allreduce_", "send", "recv_", single]
        assert answer == {
            "seen": [*([name, 3] for name in names), ["barrier", 0]],
            "waits": 4,
            "is a Work": True,
            "handles of the batch": 1,
            "completed": True,
            "value": True,
        }


def do_collectives() -> dict[str, bool]:
    """Each collective on nccl against the same on gloo."""
    import torch
    import torch.distributed as dist

    rank, size = dist.get_rank(), dist.get_world_size()
    gloo = dist.new_group(backend="gloo")

    def all_forms(group: Any, device: str) -> dict[str, Any]:
        def ramp(n: int) -> Any:
            return torch.arange(n, dtype=torch.float64, device=device) + 10 * rank

        def empty(*shape: int) -> Any:
            return torch.empty(*shape, dtype=torch.float64, device=device)

        out = {}
        for op in ("SUM", "AVG", "PRODUCT", "MIN", "MAX"):
            out[op] = ramp(5)
            dist.all_reduce(out[op], getattr(dist.ReduceOp, op), group=group)
        out["broadcast"] = ramp(4)
        dist.broadcast(out["broadcast"], 1, group=group)
        out["reduce"] = ramp(4)
        dist.reduce(out["reduce"], 1, group=group)
        if rank != 1:
            del out["reduce"]  # only the root's is defined
        out["all_gather"] = [empty(3) for _ in range(size)]
        dist.all_gather(out["all_gather"], ramp(3), group=group)
        out["all_gather_single"] = empty(3 * size)
        dist.all_gather_single(out["all_gather_single"], ramp(3), group=group)
        out["reduce_scatter"] = empty(2)
        parts = list(ramp(2 * size).chunk(size))
        dist.reduce_scatter(out["reduce_scatter"], parts, group=group)
        out["reduce_scatter_single"] = empty(2)
        dist.reduce_scatter_single(
            out["reduce_scatter_single"], ramp(2 * size), group=group
        )
        out["gather"] = [empty(2) for _ in range(size)] if rank == 0 else []
        dist.gather(ramp(2), out["gather"] or None, 0, group=group)
        out["scatter"] = empty(2)
        dist.scatter(out["scatter"], parts if rank == 0 else None, 0, group=group)
        out["all_to_all_single"] = empty(3)
        splits = [[1, 2], [2, 1]][rank]
        dist.all_to_all_single(
            out["all_to_all_single"], ramp(3), splits, splits, group=group
        )
        out["objects"] = [None] * size
        dist.all_gather_object(out["objects"], {"rank": rank}, group=group)
        dist.barrier(group=group)
        return out

    nccl, plain = all_forms(None, "cuda"), all_forms(gloo, "cpu")

    def same(a: Any, b: Any) -> bool:
        if isinstance(a, list):
            return len(a) == len(b) and all(map(same, a, b))
        if isinstance(a, torch.Tensor):
            return bool(a.is_cuda and torch.equal(a.cpu(), b))
        return bool(a == b)

    return {name: same(value, plain[name]) for name, value in nccl.items()}


def test_collectives_give_what_gloo_gives(server: Server) -> None:
    for answer in server.run("do_collectives"):
        assert len(answer) >= 14
        assert all(answer.values()), answer


def do_beyond_gloo() -> list[Any]:
    import torch
    import torch.distributed as dist

    rank, size = dist.get_rank(), dist.get_world_size()
    mine = torch.full((rank + 1,), float(rank), device="cuda")
    uneven = [torch.empty(r + 1, device="cuda") for r in range(size)]
    dist.all_gather(uneven, mine)
    rows = torch.empty(size, 2, device="cuda")
    dist.all_gather_single(rows, torch.full((2,), float(rank), device="cuda"))
    lists = [torch.empty(rank + 1, device="cuda") for _ in range(size)]
    dist.all_to_all(lists, [torch.full((r + 1,), rank + 0.5).cuda() for r in range(2)])
    return [[t.tolist() for t in uneven], rows.tolist(), [t.tolist() for t in lists]]


@pytest.mark.parametrize("bind", [False, True])
def test_allows_what_nccl_has_and_gloo_has_not(server: Server, bind: bool) -> None:
    for rank, answer in enumerate(server.run("do_beyond_gloo", bind=bind)):
        rows = [[0.0, 0.0], [1.0, 1.0]]
        lists = [[0.5] * (rank + 1), [1.5] * (rank + 1)]
        assert answer == [[[0.0], [1.0, 1.0]], rows, lists]


# ----------------------------------------------------------------------- values


def do_train(model: str, dtype: str, optimizer: str) -> dict[str, float | bool]:
    """Three steps on cuda and on the cpu: the largest relative difference."""
    import torch
    import torch.nn.functional as F
    from torch import nn
    from torch.nn.attention import SDPBackend, sdpa_kernel

    class Attention(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.norm, self.qkv = nn.LayerNorm(8), nn.Linear(8, 24)
            self.out = nn.Linear(8, 10)

        def forward(self, x: Any) -> Any:
            q, k, v = self.qkv(self.norm(x)).view(16, 6, 3, 2, 4).permute(2, 0, 3, 1, 4)
            y = F.scaled_dot_product_attention(q, k, v, is_causal=True)
            return self.out(y.transpose(1, 2).reshape(16, 6, 8)).mean(1)

    def mlp() -> nn.Module:
        return nn.Sequential(nn.Linear(12, 32), nn.ReLU(), nn.Linear(32, 10))

    def cnn() -> nn.Module:
        depthwise = nn.Conv2d(8, 8, 3, groups=8)
        features = nn.Sequential(nn.Conv2d(1, 8, 3), nn.BatchNorm2d(8), nn.ReLU())
        rest = (nn.MaxPool2d(2), depthwise, nn.GELU(), nn.Flatten(), nn.Linear(8, 10))
        return nn.Sequential(features, *rest)

    make, shape = {
        "mlp": (mlp, (12,)),
        "cnn": (cnn, (1, 8, 8)),
        "attention": (Attention, (6, 8)),
    }[model]

    def train(device: str) -> list[Any]:
        torch.manual_seed(0)
        net = make().to(device, getattr(torch, dtype))
        x = torch.randn(16, *shape, dtype=getattr(torch, dtype)).to(device)
        y = torch.randint(0, 10, (16,)).to(device)
        steps = getattr(torch.optim, optimizer)(net.parameters(), lr=0.01)
        for _ in range(3):
            steps.zero_grad()
            with sdpa_kernel(SDPBackend.MATH):
                F.cross_entropy(net(x), y).backward()
            steps.step()
        return [p.detach().cpu() for p in net.parameters()]

    pairs = list(zip(train("cuda"), train("cpu"), strict=True))
    return {
        "equal": all(torch.equal(a, b) for a, b in pairs),
        "error": max(((a - b).norm() / b.norm()).item() for a, b in pairs),
    }


@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("optimizer", ["SGD", "Adam"])
@pytest.mark.parametrize("model", ["mlp", "cnn"])
def test_training_on_cuda_gives_the_bits_of_the_cpu(
    server: Server, model: str, dtype: str, optimizer: str
) -> None:
    given = {"model": model, "dtype": dtype, "optimizer": optimizer}
    (answer,) = server.run("do_train", ranks=1, backend="none", given=given)
    assert answer == {"equal": True, "error": 0.0}


def test_attention_on_cuda_equals_the_cpu(server: Server) -> None:
    # SGD: the key's bias has no gradient but rounding, and Adam would scale it up.
    given = {"model": "attention", "dtype": "float32", "optimizer": "SGD"}
    (answer,) = server.run("do_train", ranks=1, backend="none", given=given)
    assert answer["error"] < 1e-6


def do_operators() -> dict[str, bool]:
    """Operators on cuda against the cpu, and what they must keep of a tensor."""
    import torch
    import torch.nn.functional as F

    torch.manual_seed(0)
    x, i = torch.randn(6, 4), torch.tensor([5, 0, 0])

    def results(x: Any, i: Any) -> dict[str, Any]:
        net = torch.nn.Linear(4, 4, device=x.device, dtype=x.dtype)
        weights = {"weight": x[:4].clone(), "bias": x[4].clone()}
        out = torch.empty(0, device=x.device)
        return {
            "embedding": F.embedding(i, x),
            "topk": x.topk(2).indices,
            "index_add_": x.clone().index_add_(0, i, x[:3]),
            "scatter_": x.clone().scatter_(0, i[:, None].expand(3, 4), x[:3]),
            "index": x[i],
            "index_put_": x.clone().index_put_((i.cpu(),), x[0]),  # cpu indices too
            "tensor_split": x.flatten().tensor_split(5)[2],
            "as_strided": x.as_strided((3, 2), (4, 1), 1),
            "view_as_complex": torch.view_as_real(
                torch.view_as_complex(x.view(6, 2, 2))
            ),
            "functional_call": torch.func.functional_call(net, weights, x),
            "float64": (x.double() @ x.double().t()).inverse().float(),
            "out=": torch.mul(x, 2, out=out),
            "foreach": torch._foreach_add([x, x[0]], 1)[1],
            "conv1d": F.conv1d(x[None], x[:, :1, None].repeat(1, 6, 2)),
            "sort": x.sort(dim=0).values,
            "cumsum": x.cumsum(0),
            "cat": torch.cat([x, x]),
            "autocast off": F.softmax(x, -1).log().mean(0),
        }

    on_cuda, on_cpu = results(x.cuda(), i.cuda()), results(x, i)
    same = {
        name: value.is_cuda and torch.equal(value.cpu(), on_cpu[name])
        for name, value in on_cuda.items()
    }
    y = x.cuda()
    same["item"] = y.sum().item() == x.sum().item() and y.tolist() == x.tolist()
    same["equal"] = torch.equal(y, y.clone()) and not torch.equal(y, y + 1)
    return same


def test_operators_on_cuda_give_the_bits_of_the_cpu(server: Server) -> None:
    (answer,) = server.run("do_operators", ranks=1, backend="none")
    assert len(answer) == 20
    assert all(answer.values()), answer


def do_storage() -> dict[str, Any]:
    """What a meter of memory relies on."""
    import gc
    import weakref

    import torch

    freed: list[str] = []
    saved: list[Any] = []

    def keep(tensor: Any) -> Any:
        saved.append(tensor)
        return tensor

    base = torch.cuda.memory_allocated()
    x = torch.ones(1000, device="cuda")
    storage = x.untyped_storage()
    weakref.finalize(storage, freed.append, "x")
    facts = {
        "bytes": torch.cuda.memory_allocated() - base,
        "address": storage.data_ptr() == x.data_ptr(),
        "view": x[1:].untyped_storage()._cdata == storage._cdata,
        "of a result": (x * 2).untyped_storage().nbytes(),
        "peak": torch.cuda.max_memory_allocated() - base,
        "bytes after": torch.cuda.memory_allocated() - base,
    }
    del storage
    gc.collect()
    facts["freed while in use"] = list(freed)
    w = torch.ones(1000, device="cuda", requires_grad=True)
    with torch.autograd.graph.saved_tensors_hooks(keep, lambda tensor: tensor):
        (w * x).sum().backward()
    facts["saved"] = sorted(str(t.device) for t in saved)
    del x, saved[:]
    gc.collect()
    facts["freed"] = list(freed)
    w.untyped_storage().resize_(0)
    facts["resized"] = w.untyped_storage().nbytes()
    return facts


def test_storages_are_counted_and_freed(server: Server) -> None:
    (answer,) = server.run("do_storage", ranks=1)
    assert answer == {
        "bytes": 4000,
        "address": True,
        "view": True,
        "of a result": 4000,
        "peak": 8000,
        "bytes after": 4000,
        "freed while in use": [],
        "saved": ["cuda:0"],
        "freed": ["x"],
        "resized": 0,
    }


def do_mix_devices() -> list[str]:
    import torch

    x, y = torch.ones(2, device="cuda:0"), torch.ones(2, device="cuda:1")
    calls = (
        lambda: x + y,
        lambda: x + torch.ones(2),
        lambda: torch.cat([x, torch.ones(2)]),
        lambda: torch.nn.functional.linear(x, torch.ones(2, 2)),
        lambda: torch.randn(2, device="cuda", generator=torch.Generator()),
        x.numpy,
        lambda: torch.ones(2, device="cuda:4"),
    )
    said = []
    for call in calls:
        with pytest.raises((RuntimeError, TypeError)) as caught:
            call()
        said.append(str(caught.value))
    return said


def test_devices_do_not_mix(server: Server) -> None:
    (said,) = server.run("do_mix_devices", ranks=1)
    assert all("on the same device" in text for text in said[:4])
    assert "Expected a 'cuda' device type for generator" in said[4]
    assert "can't convert cuda:0" in said[5]
    assert "invalid device ordinal" in said[6]


def do_look() -> dict[str, Any]:
    import torch
    import torch.distributed as dist

    before = torch.accelerator.current_device_index()
    torch.accelerator.set_device_index(2)
    generator = torch.Generator(device="cuda").manual_seed(7)
    drawn = torch.randn(3, device="cuda", generator=generator).cpu()
    torch.manual_seed(7)
    torch.randn(5)  # the CPU's generator is another
    return {
        "accelerator": str(torch.accelerator.current_accelerator()),
        "available": torch.cuda.is_available() and torch.accelerator.is_available(),
        "count": [torch.cuda.device_count(), torch.accelerator.device_count()],
        "backend": dist.get_default_backend_for_device("cuda"),
        "name": dist.get_backend(),
        "before": before,
        "chosen": [
            torch.cuda.current_device(),
            torch.empty(1, device="cuda").get_device(),
        ],
        "seeded": torch.equal(torch.randn(3, device="cuda").cpu(), drawn),
        "environment": os.environ["ATLAS_EMULATED"],
    }


def test_torch_sees_devices_and_nccl(server: Server) -> None:
    assert server.threads == 1  # forking is safe
    for rank, answer in enumerate(server.run("do_look")):
        assert answer == {
            "accelerator": "cuda",
            "available": True,
            "count": [4, 4],
            "backend": "nccl",
            "name": "nccl",
            "before": rank,
            "chosen": [2, 2],
            "seeded": True,
            "environment": "1",
        }


# ------------------------------------------------------- the layers above c10d


def do_data_parallel(device: str, wrap: str) -> list[list[float]]:
    """One step of DDP, FSDP2 or a gather written by hand; the parameters after."""
    import torch
    import torch.distributed as dist
    import torch.nn.functional as F
    from torch import nn
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.fsdp import fully_shard
    from torch.nn.parallel import DistributedDataParallel

    class Gather(torch.autograd.Function):
        """The whole of a weight that is cut in rows; backward sums and cuts."""

        @staticmethod
        def forward(ctx: Any, shard: Any) -> Any:
            whole = shard.new_empty(shard.shape[0] * dist.get_world_size(), 12)
            dist.all_gather_single(whole, shard)
            return whole

        @staticmethod
        def backward(ctx: Any, grad: Any) -> Any:
            shard = grad.new_empty(grad.shape[0] // dist.get_world_size(), 12)
            dist.reduce_scatter_single(shard, grad.contiguous())
            return shard

    class Sharded(nn.Module):
        def __init__(self, whole: Any) -> None:
            super().__init__()
            cut = whole.chunk(dist.get_world_size())[dist.get_rank()]
            self.shard = nn.Parameter(cut.clone())

        def forward(self, x: Any) -> Any:
            return F.linear(x, Gather.apply(self.shard))

    torch.manual_seed(0)
    layers = [nn.Linear(12, 32), nn.Linear(32, 10)]
    net: nn.Module = nn.Sequential(layers[0], nn.ReLU(), layers[1]).to(device)
    if wrap == "ddp":
        net = DistributedDataParallel(net, bucket_cap_mb=0.001)
    elif wrap == "fsdp":
        mesh = init_device_mesh(device, (dist.get_world_size(),))
        fully_shard(layers[0], mesh=mesh)
        fully_shard(net, mesh=mesh)
    else:
        net = Sharded(layers[0].weight.detach()).to(device)
    torch.manual_seed(1 + dist.get_rank())
    x, y = torch.randn(8, 12).to(device), torch.randint(0, 10, (8,)).to(device)
    optimizer = torch.optim.Adam(net.parameters())
    F.cross_entropy(net(x), y).backward()
    optimizer.step()
    whole = [p.full_tensor() if wrap == "fsdp" else p for p in net.parameters()]
    return [p.detach().flatten().tolist() for p in whole]


@pytest.mark.parametrize("wrap", ["ddp", "fsdp", "by hand"])
def test_data_parallelism_gives_the_bits_of_gloo(server: Server, wrap: str) -> None:
    run = "do_data_parallel"
    ours = server.run(run, given={"device": "cuda", "wrap": wrap})
    gloo = server.run(run, backend="gloo", given={"device": "cpu", "wrap": wrap})
    assert "error" not in ours[0]
    assert ours == gloo


# ------------------------------------------------------------ starting, building

SCRIPT = """
import os, sys, torch, torch.distributed as dist
rank = int(os.environ["LOCAL_RANK"])
torch.cuda.set_device(rank)
dist.init_process_group("nccl")
x = torch.full((2,), rank + 1.0, device="cuda")
dist.all_reduce(x)
sys.stdout.write(f"rank {rank} on {x.device} has {x.tolist()} {sys.argv[1:]}\\n")
left_behind = dist.irecv(x, 1 - rank)  # nobody sends: must not keep us from leaving
"""


@pytest.mark.parametrize(
    ("end", "code", "said"),
    [
        ("", 0, ""),
        ("sys.exit(3)", 3, ""),
        ("sys.exit('enough')", 1, "enough"),
        ("raise KeyError('lost')", 1, "KeyError: 'lost'"),
    ],
)
def test_a_script_ends_as_python_would_end_it(
    tmp_path: Path, end: str, code: int, said: str
) -> None:
    script = tmp_path / "script.py"
    source = "import atexit, sys, threading\natexit.register(print, 'bye')\n"
    source += "threading.Timer(0.2, print, ['late']).start()\n"
    script.write_text(source + end)
    command = [sys.executable, "-m", "atlas.emulate", str(script)]
    done = subprocess.run(
        command, capture_output=True, text=True, timeout=60, check=False
    )
    assert (done.returncode, done.stdout) == (code, "late\nbye\n"), done.stderr
    assert said in done.stderr


@pytest.mark.torchrun
def test_torchrun_runs_an_ordinary_cuda_script_and_leaves(tmp_path: Path) -> None:
    script = tmp_path / "script.py"
    script.write_text(SCRIPT)
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone"]
    command += ["--nproc-per-node", "2", "-m", "atlas.emulate", str(script), "-x"]
    done = subprocess.run(
        command, capture_output=True, text=True, timeout=60, check=False
    )
    assert done.returncode == 0, done.stderr
    for rank in range(2):
        expected = f"rank {rank} on cuda:{rank} has [3.0, 3.0] ['-x']"
        assert expected in done.stdout


def python(code: str, **env: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-c", code],
        capture_output=True,
        text=True,
        timeout=60,
        env={**os.environ, **env},
        check=False,
    )


def test_a_missing_script_is_named() -> None:
    done = subprocess.run(
        [sys.executable, "-m", "atlas.emulate", "no/such.py"],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert done.returncode == 1
    assert "there is no file no/such.py" in done.stderr


def test_activation_after_torch_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "torch", object())
    with pytest.raises(emulate.EmulationError, match="torch is imported already"):
        emulate.activate()


def test_a_wrong_count_of_devices_is_refused() -> None:
    with pytest.raises(emulate.EmulationError, match="0 emulated devices: choose"):
        emulate.activate(devices=0)


def test_neither_the_package_nor_its_reasons_import_torch() -> None:
    code = (
        "import sys, atlas.emulate as e; print(e.unavailable(), 'torch' in sys.modules)"
    )
    assert python(code).stdout == "None False\n"


def test_no_compiler_is_a_reason(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CXX", "no-such-compiler -O3")
    assert "no-such-compiler is not on the PATH" in str(emulate.unavailable())
    with pytest.raises(emulate.EmulationError, match="no C\\+\\+ compiler"):
        emulate.build()


def test_another_system_is_a_reason(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "platform", "darwin")
    assert "needs Linux, and this is darwin" in str(emulate.unavailable())


def test_a_cuda_build_of_torch_is_a_reason(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    text = "__version__ = '2.13.0+cu128'\ncuda: Optional[str] = '12.8'\n"
    (tmp_path / "version.py").write_text(text)
    monkeypatch.setattr(building, "_torch", lambda: tmp_path)
    assert "built for CUDA" in str(emulate.unavailable())


def fake_compiler(folder: Path, body: str) -> str:
    """A compiler that logs each run, and does `body` with $out as its target."""
    path = folder / "c++"
    path.write_text(
        f'#!/bin/sh\n[ "$1" = --version ] && exit\necho run >> {folder}/log\n'
        f'while [ "$1" != -o ]; do shift; done; out=$2\n{body}\n'
    )
    path.chmod(0o755)
    return str(path)


def test_two_processes_build_once(tmp_path: Path) -> None:
    compiler = fake_compiler(tmp_path, 'sleep 0.2; echo made > "$out"')
    env = {**os.environ, "CXX": compiler, "XDG_CACHE_HOME": str(tmp_path)}
    code = "from atlas.emulate import build; print(build())"
    command = [sys.executable, "-c", code]
    both = [
        subprocess.Popen(command, env=env, stdout=subprocess.PIPE, text=True)
        for _ in range(2)
    ]
    paths = {process.communicate(timeout=30)[0].strip() for process in both}
    assert len(paths) == 1
    assert Path(paths.pop()).read_text() == "made\n"
    assert (tmp_path / "log").read_text() == "run\n" * (len(building.SOURCES) + 1)
    left = sorted(p.suffix for p in (tmp_path / "ddl-atlas").iterdir())
    assert left == [".lock", ".so"]


def test_a_failing_compiler_is_quoted(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    body = "seq 100; echo 'fatal error: no header' >&2; exit 1"
    monkeypatch.setenv("CXX", fake_compiler(tmp_path, body))
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    with pytest.raises(emulate.EmulationError) as caught:
        emulate.build()
    lines = str(caught.value).splitlines()
    assert "could not build the emulated GPU" in lines[0]
    assert lines[-1] == "fatal error: no header"
    assert len(lines) == building.LAST_LINES + 1
    assert not list((tmp_path / "ddl-atlas").glob("*.so"))


def test_a_cache_that_cannot_be_written_is_named(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    (tmp_path / "ddl-atlas").write_text("a file where a folder should be")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    with pytest.raises(emulate.EmulationError, match="name another folder in XDG"):
        emulate.build()


if __name__ == "__main__":
    serve()
