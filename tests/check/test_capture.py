"""What is kept of a step, and how shards become whole, without any rank."""

import torch
from torch import nn

from atlas.check.capture import Capture, Noise, Piece, Recorder, Step, clean
from atlas.check.whole import aligned, copies


def train(recorder: Recorder, steps: int) -> nn.Module:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(3, 2), nn.Tanh(), nn.Linear(2, 1))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with recorder.watching():
        for step in range(steps):
            optimizer.zero_grad()
            for part in range(2):
                x = torch.full((2, 3), float(step + part))
                model(x).sum().backward()
            optimizer.step()
    return model


def test_each_step_keeps_weights_gradients_and_contributions() -> None:
    recorder = Recorder(rank=0, most=5)
    model = train(recorder, steps=2)
    first, second = recorder.capture.steps
    assert list(first.weights) == ["0.weight", "0.bias", "2.weight", "2.bias"]
    assert first.passes["2.bias"] == 2
    for name, piece in second.gradients.items():
        torch.testing.assert_close(second.contributed[name], piece.local)
    last = recorder.capture.final["2.bias"].local
    assert torch.equal(last, model.get_parameter("2.bias"))
    assert len(first.samples) == 4
    assert first.rates == [0.1]


def test_noise_moves_each_number_by_one_rounding() -> None:
    x = torch.linspace(1, 2, 1000)
    moved = Noise(1).of(x)
    off = (moved - x).abs() / x
    assert off.min() > 0
    assert off.max() <= 2 * torch.finfo(x.dtype).eps


def test_names_lose_only_what_says_how_a_module_is_wrapped() -> None:
    assert clean("module._orig_mod.layers.0.weight") == "layers.0.weight"


def held(**tensors: torch.Tensor) -> Capture:
    pieces = {name: Piece(t) for name, t in tensors.items()}
    return Capture(0, [Step(pieces, {})])


def test_shards_side_by_side_become_whole() -> None:
    whole = torch.arange(12.0).view(4, 3)
    parts = [{"w": Piece(whole[:1])}, {"w": Piece(whole[1:])}]
    made = copies(parts, [{"w": "w"}] * 2, {"w": (4, 3)})
    assert [c.ranks for c in made["w"]] == [(0, 1)]
    assert torch.equal(made["w"][0].tensor, whole)


def test_flat_shards_lose_their_padding() -> None:
    whole = torch.arange(5.0)
    flat = torch.cat([whole, torch.zeros(1)]).chunk(2)
    made = copies([{"w": Piece(t)} for t in flat], [{"w": "w"}] * 2, {"w": (5,)})
    assert torch.equal(made["w"][0].tensor, whole)


def test_copies_of_half_of_the_ranks_stay_apart() -> None:
    def piece(value: float, offset: int) -> Piece:
        return Piece(torch.full((2,), value), (4,), (offset,))

    ranks = [piece(1, 0), piece(2, 2), piece(3, 0), piece(4, 2)]
    made = copies([{"w": p} for p in ranks], [{"w": "w"}] * 4, {"w": (4,)})
    assert [c.ranks for c in made["w"]] == [(0, 1), (2, 3)]
    assert made["w"][1].tensor.tolist() == [3, 3, 4, 4]


def test_a_wrapper_and_a_stage_keep_their_counterparts() -> None:
    one = held(**{"a.weight": torch.ones(2), "b.weight": torch.arange(2.0)})
    wrapped = held(**{"net.a.weight": torch.zeros(2), "net.b.weight": torch.zeros(2)})
    assert aligned(one, wrapped) == {
        "net.a.weight": "a.weight",
        "net.b.weight": "b.weight",
    }
    stage = held(**{"0.weight": torch.arange(2.0)})
    assert aligned(one, stage) == {"0.weight": "b.weight"}
