"""The ledger: exact bytes by category, from birth to death."""

import gc
from collections.abc import Iterator
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from atlas.ledger import Ledger, ledger

# Linear(256, 1024), GELU, Linear(1024, 256) in float32, AdamW, a batch of 32.
PARAMETERS = 4 * (256 * 1024 + 1024 + 1024 * 256 + 256)
STATE = 2 * PARAMETERS + 4 * 4  # two moments, and one `step` for each tensor
SAVED = 4 * (32 * 256 + 2 * 32 * 1024)  # the input, and GELU's input and output


class Training:
    """The reference model, and one step of it in pieces."""

    def __init__(self) -> None:
        torch.manual_seed(0)
        layers = (nn.Linear(256, 1024), nn.GELU(), nn.Linear(1024, 256))
        self.model = nn.Sequential(*layers)
        self.optimizer = torch.optim.AdamW(self.model.parameters())
        self.x = torch.randn(32, 256)

    def state(self) -> Iterator[Tensor]:
        for state in self.optimizer.state.values():
            yield from (t for t in state.values() if isinstance(t, Tensor))

    def ledger(self) -> Ledger:
        return ledger(
            parameters=self.model.parameters,
            gradients=lambda: (p.grad for p in self.model.parameters()),
            optimizer=self.state,
        )

    def step(self, memory: Ledger) -> None:
        loss = self.model(self.x).sum()
        memory.mark("forward")
        loss.backward()
        memory.mark("backward")
        self.optimizer.step()
        memory.mark("step")


@pytest.fixture
def memory() -> Ledger:
    return measured()


def measured() -> Ledger:
    training = Training()
    gc.collect()
    with training.ledger() as found:
        training.step(found)
    return found


def test_parameters_gradients_and_state_are_exact(memory: Ledger) -> None:
    assert PARAMETERS == 2_102_272
    end = memory.live()
    assert end["parameters"] == PARAMETERS
    assert end["gradients"] == PARAMETERS
    assert end["optimizer"] == STATE == 4_204_560


def test_saved_activations_are_exact_and_gone_after_backward(memory: Ledger) -> None:
    assert memory.live("forward")["activations"] == SAVED == 294_912
    assert memory.live("forward")["gradients"] == 0
    # The input is still held by its owner; what the model saved is not.
    assert memory.live("backward")["activations"] == 4 * 32 * 256
    assert memory.live("backward")["gradients"] == PARAMETERS
    assert memory.live("backward")["optimizer"] == 0


def test_the_peak_of_each_category_is_exact(memory: Ledger) -> None:
    peak = memory.peak
    assert peak["parameters"] == peak["gradients"] == PARAMETERS
    assert peak["activations"] == SAVED
    assert peak["optimizer"] == STATE
    assert peak["total"] == 10_543_124  # and so says torch's MemTracker
    assert peak["total"] == max(sum(step.values()) for step in memory.series)


def test_categories_sum_to_the_live_bytes_at_every_step(memory: Ledger) -> None:
    live = 0
    for (_, change), step in zip(memory._entries, memory.series, strict=True):
        live += change
        assert sum(step.values()) == live
        assert all(v >= 0 for v in step.values())
    assert memory.live()["total"] == live


def test_two_runs_give_the_same_figures(memory: Ledger) -> None:
    again = measured()
    assert again.peak == memory.peak
    assert again.series == memory.series


def test_a_freed_storage_leaves_and_a_view_is_not_counted_again() -> None:
    with ledger() as memory:
        x = torch.empty(100)
        memory.mark("made")
        view = x.view(10, 10)[2:]
        memory.mark("viewed")
        del x
        memory.mark("still held")
        del view
        memory.mark("freed")
    found = [memory.live(m)["total"] for m in ("made", "viewed", "still held", "freed")]
    assert found == [400, 400, 400, 0]


def test_a_storage_reused_after_its_death_is_a_new_one() -> None:
    with ledger() as memory:
        for _ in range(50):
            torch.empty(1000)
    assert memory.live()["total"] == 0
    assert memory.peak["total"] == 4000
    assert len(memory.series) == 100


def test_the_first_category_that_holds_a_storage_names_it() -> None:
    x = torch.empty(10)
    with ledger(first=lambda: [x], second=lambda: [x, None]) as memory:
        pass
    assert memory.live() == {
        "first": 40, "second": 0, "activations": 0, "other": 0, "total": 40,
    }  # fmt: skip


def test_checkpointing_shows_as_fewer_saved_activations() -> None:
    from torch.utils.checkpoint import checkpoint

    def saved(run: Any) -> int:
        training = Training()
        with training.ledger() as memory:
            loss = run(training.model, training.x.requires_grad_()).sum()
            memory.mark("forward")
            del loss
        return memory.live("forward")["activations"]

    assert saved(lambda model, x: model(x)) == SAVED
    whole = saved(lambda model, x: checkpoint(model, x, use_reentrant=False))
    assert whole == 4 * 32 * 256
