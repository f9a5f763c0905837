"""The workloads: the same bits everywhere, losses that fall and add up."""

import hashlib
from pathlib import Path

import pytest
import torch
from scripts import run
from torch import Tensor

from exemplars.workload import Task, characters, digits, digits_cnn

TASKS = {"digits": digits, "digits_cnn": digits_cnn, "characters": characters}
each = pytest.mark.parametrize("task", TASKS.values(), ids=TASKS)


def bits(*tensors: Tensor) -> str:
    digest = hashlib.sha256()
    for t in tensors:
        digest.update(t.detach().contiguous().numpy().tobytes())
    return digest.hexdigest()


def all_bits() -> dict[str, list[str]]:
    return {
        name: [bits(*t.model().parameters()), bits(*t.batch(3, 32))]
        for name, t in TASKS.items()
    }


def test_another_process_gets_the_same_bits(tmp_path: Path) -> None:
    source = """
        import torch, test_workload
        torch.manual_seed(123)
        print(test_workload.all_bits())
    """
    here = Path(__file__).resolve().parent
    path = f"{here.parents[1]}:{here}:{here.parent}/helpers"
    code, out, err = run(tmp_path, source, PYTHONPATH=path, PYTHONHASHSEED="77")
    assert (code, out.strip()) == (0, str(all_bits())), err


@each
def test_a_model_leaves_no_trace_on_other_seeds(task: Task) -> None:
    torch.manual_seed(5)
    before = torch.get_rng_state()
    task.model()
    task.batch(0, 4)
    assert torch.equal(before, torch.get_rng_state())


@each
def test_steps_have_batches_of_their_own(task: Task) -> None:
    assert bits(*task.batch(0, 16)) == bits(*task.batch(0, 16))
    assert bits(*task.batch(0, 16)) != bits(*task.batch(1, 16))


@each
def test_the_loss_falls(task: Task) -> None:
    model = task.model()
    optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
    size, losses = 32, []
    for step in range(40):
        x, y = task.batch(step, size)
        loss = task.loss(model, x, y) / y.numel()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    assert sum(losses[-5:]) / 5 < 0.75 * losses[0]


@each
def test_the_losses_and_gradients_of_uneven_shards_add_up(task: Task) -> None:
    model, (x, y) = task.model(), task.batch(0, 11)
    whole = task.loss(model, x, y)
    whole.backward()
    want = [p.grad for p in model.parameters()]
    model.zero_grad()
    shards = zip(x.tensor_split(4), y.tensor_split(4), strict=True)
    losses = [task.loss(model, a, b) for a, b in shards]
    total = torch.stack(losses).sum()
    total.backward()
    torch.testing.assert_close(total, whole, rtol=1e-13, atol=0)
    got = [p.grad for p in model.parameters()]
    torch.testing.assert_close(got, want, rtol=1e-10, atol=1e-12)


@each
def test_an_empty_shard_has_loss_0_and_gradient_0(task: Task) -> None:
    model, (x, y) = task.model(), task.batch(0, 4)
    loss = task.loss(model, x[:0], y[:0])
    assert loss.item() == 0
    loss.backward()
    grads = [p.grad for p in model.parameters()]
    assert all(g is not None and not g.any() for g in grads)


@each
def test_everything_is_in_double_precision(task: Task) -> None:
    assert {p.dtype for p in task.model().parameters()} == {torch.float64}
    x, y = task.batch(0, 4)
    assert task.loss(task.model(), x, y).dtype == torch.float64


def test_characters_are_the_next_ones() -> None:
    x, y = characters.batch(0, 8)
    assert torch.equal(x[:, 1:], y[:, :-1])
