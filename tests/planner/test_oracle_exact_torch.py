"""The oracle against torch: parameters, operations and saved activations, with ==."""

from dataclasses import replace
from typing import Any

from exact import TRAIN, four_networks

from atlas.planner import holding
from atlas.planner.network import Item, convolution
from atlas.planner.records import Cut, Work
from atlas.planner.train import PRECISIONS
from atlas.planner.transformer import transformer


def saved_bytes(module: Any, x: Any) -> int:
    """Bytes that autograd keeps for backward, each storage once, without parameters."""
    import torch

    own = {p.untyped_storage().data_ptr() for p in module.parameters()}
    kept: dict[int, tuple[Any, int]] = {}

    def pack(t: Any) -> Any:
        storage = t.untyped_storage()
        if storage.data_ptr() not in own:
            kept[storage.data_ptr()] = (t, storage.nbytes())
        return t

    with torch.autograd.graph.saved_tensors_hooks(pack, lambda t: t):
        module(x)
    return sum(size for _, size in kept.values())


def gpt_block(width: int, heads: int) -> Any:
    """A GPT's layer in plain torch, with its three dropouts."""
    import torch
    from torch import nn
    from torch.nn import functional as F

    def dropout(x: Any) -> Any:
        """With a mask of bytes, as on a GPU; a CPU would keep numbers."""
        return torch.native_dropout(x, 0.1, True)[0]

    class Block(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.norm1, self.norm2 = nn.LayerNorm(width), nn.LayerNorm(width)
            self.qkv = nn.Linear(width, 3 * width)
            self.out = nn.Linear(width, width)
            self.up = nn.Linear(width, 4 * width)
            self.down = nn.Linear(4 * width, width)

        def forward(self, x: Any) -> Any:
            q, k, v = (
                t.unflatten(-1, (heads, -1)).transpose(1, 2)
                for t in self.qkv(self.norm1(x)).chunk(3, dim=-1)
            )
            scores = (q @ k.transpose(-1, -2)) / (width // heads) ** 0.5
            weights = dropout(scores.softmax(-1))
            y = self.out((weights @ v).transpose(1, 2).flatten(2))
            x = x + dropout(y)
            y = self.down(F.gelu(self.up(self.norm2(x))))
            return x + dropout(y)

    return Block()


BATCH, TOKENS, WIDTH, HEADS = 3, 32, 48, 4


def layer_of_gpt() -> Work:
    made = transformer(
        "gpt", layers=1, width=WIDTH, heads=HEADS, vocabulary=2, tokens=TOKENS
    )
    return made.layers[1].work


def test_a_layer_saves_the_activations_that_torch_saves() -> None:
    import torch

    x = torch.randn(BATCH, TOKENS, WIDTH, requires_grad=True)
    recipe = replace(TRAIN, precision=PRECISIONS["fp32"]).recipe()
    predicted = holding.kept_bytes(layer_of_gpt(), Cut(micro=BATCH), recipe)
    # Korthikanti et al. leave out each norm's mean and deviation of a token.
    vectors = 2 * 2 * BATCH * TOKENS * 4
    assert saved_bytes(gpt_block(WIDTH, HEADS), x) == predicted + vectors


def counted_flops(module: Any, x: Any) -> int:
    from torch.utils.flop_counter import FlopCounterMode

    with FlopCounterMode(display=False) as counter:
        module(x)
    return counter.get_total_flops()


def test_a_layer_has_the_operations_and_parameters_that_torch_counts() -> None:
    import torch

    block, work = gpt_block(WIDTH, HEADS), layer_of_gpt()
    counted = counted_flops(block, torch.randn(BATCH, TOKENS, WIDTH))
    assert counted == BATCH * (work.flops + work.scores)
    held = sum(p.numel() for p in block.parameters())
    assert held == work.weights + work.shared


def test_convolutions_have_the_operations_and_parameters_that_torch_counts() -> None:
    import torch

    from exemplars.workload import SAMPLES, cnns

    model, counted, held = four_networks(), 0, 0
    for net, sample in zip(cnns("cpu"), SAMPLES, strict=True):
        counted += counted_flops(net, torch.zeros(1, *sample, dtype=torch.double))
        held += sum(p.numel() for p in net.parameters())
    assert counted == model.flops
    assert held == model.parameters


def test_a_convolution_saves_the_activations_that_torch_saves() -> None:
    import torch
    from torch import nn

    items = [Item(kernel=3, norm=True, bias=False), Item(kernel=3, stride=2)]
    net = nn.Sequential(
        nn.Conv2d(3, 8, 3, padding=1, bias=False),
        nn.BatchNorm2d(8, track_running_stats=False),
        nn.ReLU(),
        nn.Conv2d(8, 16, 3, stride=2, padding=1),
        nn.ReLU(),
    )
    first, shape = convolution((3, 9, 12), items[0], 8)
    second, _ = convolution(shape, items[1], 16)
    x = torch.randn(BATCH, 3, 9, 12, requires_grad=True)
    kept = first.work.kept + second.work.kept
    # The last map is the next layer's to keep; a norm has a mean and a deviation.
    more = BATCH * second.work.y + 2 * 8
    assert saved_bytes(net, x) == 4 * (BATCH * kept + more)


def test_a_residual_block_and_a_pool_save_the_activations_that_torch_saves() -> None:
    import torch
    from torch import nn

    from atlas.planner.network import network

    def convolved(c: int, f: int, k: int, stride: int) -> Any:
        norm = nn.BatchNorm2d(f, track_running_stats=False)
        return nn.Sequential(nn.Conv2d(c, f, k, stride, k // 2, bias=False), norm)

    class Block(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.body = nn.Sequential(
                convolved(8, 4, 1, 1),
                nn.ReLU(),
                convolved(4, 4, 3, 2),
                nn.ReLU(),
                convolved(4, 16, 1, 1),
            )
            self.short = convolved(8, 16, 1, 2)

        def forward(self, x: Any) -> Any:
            return torch.relu(self.body(x) + self.short(x))

    items = [
        Item(conv=8, kernel=3),
        Item(bottleneck=4, stride=2),
        Item(pool="average", kernel=2, stride=2),
    ]
    model = network("block", (3, 12, 8), items)
    first = nn.Sequential(nn.Conv2d(3, 8, 3, padding=1), nn.ReLU())
    net = nn.Sequential(first, Block(), nn.AvgPool2d(2))
    x = torch.randn(BATCH, 3, 12, 8, requires_grad=True)
    kept = sum(layer.work.kept for layer in model.layers)
    vectors = 2 * (4 + 4 + 16 + 16)  # mean and deviation of each norm's channels
    assert saved_bytes(net, x) == 4 * (BATCH * kept + vectors)
    held = sum(p.numel() for p in net.parameters())
    assert model.parameters == held


def test_code_that_fuses_nothing_saves_what_torch_saves_of_a_gate_and_a_norm() -> None:
    import torch
    from torch.nn import functional as F

    class Gate(torch.nn.Module):
        """The perceptron of Llama, as Transformers writes it."""

        def __init__(self, width: int, hidden: int) -> None:
            super().__init__()
            parts = [torch.nn.Linear(width, hidden, bias=False) for _ in range(2)]
            self.gate, self.up = parts
            self.down = torch.nn.Linear(hidden, width, bias=False)
            self.scale = torch.nn.Parameter(torch.ones(width))

        def forward(self, x: Any) -> Any:
            x32 = x.to(torch.float32)
            x32 = x32 * torch.rsqrt(x32.pow(2).mean(-1, keepdim=True) + 1e-6)
            y = self.scale * x32.to(x.dtype)
            return x + self.down(F.silu(self.gate(y)) * self.up(y))

    tokens, width, hidden = BATCH * TOKENS, WIDTH, 3 * WIDTH
    with torch.device("meta"):
        module = Gate(width, hidden).to(torch.bfloat16)
        x = torch.randn(tokens, width, dtype=torch.bfloat16, requires_grad=True)
    kept: dict[int, Any] = {}
    own = {p.untyped_storage()._cdata for p in module.parameters()}

    def pack(t: Any) -> Any:
        storage = t.untyped_storage()
        if storage._cdata not in own:
            kept[storage._cdata] = storage
        return t

    with torch.autograd.graph.saved_tensors_hooks(pack, lambda t: t):
        module(x)
    saved = sum(storage.nbytes() for storage in kept.values())
    work = (
        transformer(
            "llama",
            **{"layers": 1, "width": width, "heads": HEADS, "vocabulary": 2},
            **{
                "tokens": TOKENS,
                "ffn": hidden,
                "gated": True,
                "norm": 1,
                "bias": False,
            },
        )
        .layers[1]
        .work
    )
    recipe = replace(TRAIN, precision=PRECISIONS["mixed"], flash=True).recipe()
    fused, eager = (
        holding.kept_bytes(work, Cut(micro=BATCH), recipe._replace(eager=e))
        for e in (False, True)
    )
    # Of both norms' surplus one is here; so are its input, the perceptron's, and the
    # two factors and the product that a fused gate keeps.
    other = 4 * tokens * width
    here = 2 * 2 * tokens * width + 3 * 2 * tokens * hidden
    each = 4 * tokens  # a norm's own number for each token, left out as above
    assert saved - each == here + (eager - fused) - other
