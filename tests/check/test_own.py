"""Functions of a cell: held against a contract, and against one process."""

import torch
import torch.distributed as dist
from torch import Tensor, nn

from atlas.own import check, hold


def halves(x: Tensor) -> None:
    if not x.is_contiguous():
        raise ValueError("the tensor has gaps")
    for part in x.flatten().tensor_split(2):
        dist.all_reduce(part)


def drops(x: Tensor) -> None:
    dist.all_reduce(x[: len(x) // 2 * 2])


def train(batch: int, share: float = 1.0) -> None:
    rank, ranks = dist.get_rank(), dist.get_world_size()
    torch.manual_seed(0)
    model = nn.Linear(3, 1).double()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for _ in range(3):
        x = torch.randn(8, 3, dtype=torch.double)[rank * batch : (rank + 1) * batch]
        optimizer.zero_grad()
        model(x).square().mean().backward()
        for weight in model.parameters():
            assert weight.grad is not None
            dist.all_reduce(weight.grad)
            weight.grad *= share / ranks
        optimizer.step()


def test_a_function_of_a_cell_is_held_against_a_contract() -> None:
    right, wrong = (hold(f, "all-reduce", ranks=[1, 2]) for f in (halves, drops))
    assert right.holds
    assert "halves keeps all-reduce" in right._repr_markdown_()
    assert not wrong.holds
    assert "one element on 2 ranks" in wrong._repr_markdown_()


def test_what_was_sent_is_at_least_the_least() -> None:
    """1009 elements on three ranks: a rank sends no whole number of bytes."""
    lines = dict(hold(halves, "all-reduce", ranks=[3]).screen.lines)
    assert lines["sent"].startswith("16,144 bytes by all ranks in 1009 elements")


def test_a_loop_of_a_cell_is_compared_with_one_process() -> None:
    right = check(train, ranks=2, one={"batch": 8}, many={"batch": 4})
    wrong = check(train, ranks=2, one={"batch": 8}, many={"batch": 4, "share": 2.0})
    assert right.holds
    assert not wrong.holds
    assert "| diagnosis | " in wrong._repr_markdown_()
