"""Contracts of what cuts one computation: a pair of layers, a loss, attention."""

import inspect
from collections.abc import Callable, Iterator
from functools import partial
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.optim import SGD

from atlas.check.contracts.base import Broken, Case, Contract, Options, close

if TYPE_CHECKING:
    from exemplars.runtime import World

WIDTH, ROWS, RATE = 6, 5, 0.1
#: Roundings for a few sums of a few hundred terms, p of them in another order.
LOOSE = 400

# A pair of layers


def pair(inner: int, bias: bool = True) -> nn.Sequential:
    """The pair that is cut, the same on every rank."""
    torch.manual_seed(0)
    first = nn.Linear(WIDTH, inner, bias=bias, dtype=torch.double)
    second = nn.Linear(inner, WIDTH, bias=bias, dtype=torch.double)
    return nn.Sequential(first, nn.GELU(), second)


def column_row(
    w: "World",
    part: Any,
    options: Options,
    *,
    inner: int,
    bias: bool = True,
    frozen: bool = False,
    shape: tuple[int, ...] = (ROWS, WIDTH),
) -> None:
    """Two steps: outputs, gradients of the input, and what the weights became."""
    whole, cut = pair(inner, bias).to(w.device), pair(inner, bias).to(w.device)
    for module in (whole, cut) if frozen else ():
        module[0].requires_grad_(False)
    made = part(cut, **options)
    made = cut if made is None else made
    held = sum(_local(p).numel() for p in made.parameters())
    if w.size > 1 and held >= sum(p.numel() for p in whole.parameters()):
        raise Broken("this rank keeps all of the weights: nothing is cut")
    for step in range(3):
        x, dy = (w.randn(*shape, seed=10 * step + i).to(w.device) for i in (1, 2))
        outputs, slopes = [], []
        for module in (made, whole):
            mine = x.clone().requires_grad_()
            y = module(mine)
            y.backward(dy)
            outputs.append(y.detach())
            slopes.append(mine.grad)
            #: Each parameter is stepped where it lies, however it is cut: the
            #: next step's outputs show whether its gradient was right.
            _descend([p for p in module.parameters() if p.grad is not None])
        close(f"the output of step {step}", outputs[0], outputs[1], LOOSE * w.size)
        if slopes[0] is None:
            raise Broken("the input gets no gradient")
        what = f"the input's gradient in step {step}"
        close(what, slopes[0], _there(slopes[1]), LOOSE * w.size)


def _descend(parameters: list[nn.Parameter]) -> None:
    optimizer = SGD(parameters, lr=RATE)
    optimizer.step()
    optimizer.zero_grad()


def _there(t: Tensor | None) -> Tensor:
    assert t is not None
    return t


def _local(p: Any) -> Tensor:
    return p.to_local() if hasattr(p, "to_local") else p


def _of_pairs() -> Iterator[Case]:
    def most(p: int) -> int:
        """Everyone to everyone, once forward and once backward in each step."""
        return 2 * 3 * p * p * ROWS * WIDTH * 8

    run = partial(column_row, inner=12)
    yield Case("12 units between", run, False, most, None)
    yield Case("no bias", partial(run, bias=False), optional=True)
    yield Case("a batch of sequences", partial(run, shape=(2, 3, WIDTH)))
    yield Case("the first layer frozen", partial(run, frozen=True))
    yield Case("7 units between", partial(column_row, inner=7), optional=True)


# A loss over a cut vocabulary


def vocabulary_loss(
    w: "World",
    part: Any,
    options: Options,
    *,
    words: int,
    scale: float = 1.0,
    ignored: bool = False,
) -> None:
    """The loss of every token, and the gradient of this rank's logits."""
    tokens = 4
    logits = (scale * w.randn(tokens, words, seed=1)).to(w.device)
    #: The first and the last word, so that the first and the last rank own one.
    target = torch.tensor([0, words - 1, words // 2, words // 3], device=w.device)
    if ignored:
        target[1] = -100
    whole = logits.clone().requires_grad_()
    each = F.cross_entropy(whole, target, reduction="none")
    mine = logits.tensor_split(w.size, dim=-1)[w.rank].clone().requires_grad_()
    made = part(mine, target, **options)
    if not isinstance(made, Tensor):
        raise Broken(f"it returns {type(made).__name__}, not a tensor")
    learned = (target != -100).sum()
    expected = each if made.dim() else each.sum() / learned
    made.sum().backward()
    expected.sum().backward()
    close("the loss", made.detach().flatten(), expected.detach().flatten(), LOOSE)
    if mine.grad is None:
        raise Broken("this rank's logits get no gradient")
    slope = _there(whole.grad).tensor_split(w.size, dim=-1)[w.rank]
    close("the gradient of this rank's logits", mine.grad, slope, LOOSE)


def _of_losses() -> Iterator[Case]:
    def most(p: int) -> int:
        """Ten numbers of a token, from everyone to everyone; not p x 64 logits."""
        return 10 * p * p * 4 * 8

    run = partial(vocabulary_loss, words=48)
    yield Case("48 words", run)
    yield Case("logits of 1000", partial(run, scale=1000.0))
    yield Case("768 words", partial(vocabulary_loss, words=768), False, most, None)
    yield Case("an ignored token", partial(run, ignored=True), optional=True)
    yield Case("13 words", partial(vocabulary_loss, words=13), optional=True)


# Attention over cut sequences

Places = Callable[[int, int], list[Tensor]]


def contiguous(tokens: int, p: int) -> list[Tensor]:
    """One stretch for each rank."""
    return list(torch.arange(tokens).tensor_split(p))


def zigzag(tokens: int, p: int) -> list[Tensor]:
    """One early stretch and one as late."""
    chunks = torch.arange(tokens).tensor_split(2 * p)
    return [torch.cat([chunks[r], chunks[-1 - r]]) for r in range(p)]


def striped(tokens: int, p: int) -> list[Tensor]:
    """Dealt out like cards."""
    return [torch.arange(r, tokens, p) for r in range(p)]


LAYOUTS: dict[str, Places] = {
    "contiguous": contiguous,
    "zigzag": zigzag,
    "striped": striped,
}


def attention(
    w: "World", part: Any, options: Options, *, tokens: int, heads: int = 4
) -> None:
    """Outputs and gradients of this rank's tokens."""
    rest = dict(options)
    places = _layout(rest.pop("layout", "contiguous"))(tokens, w.size)[w.rank]
    causal = bool(int(rest.pop("causal", 1)))
    qkv = w.randn(3, 1, heads, tokens, 4, seed=1).to(w.device)
    dout = w.randn(1, heads, tokens, 4, seed=2).to(w.device)
    whole = qkv.clone().requires_grad_()
    q, k, v = whole
    out = F.scaled_dot_product_attention(q, k, v, is_causal=causal)
    out.backward(dout)
    asked = inspect.signature(part).parameters
    for name in ("causal", "is_causal"):
        rest |= {name: causal} if name in asked else {}
    mine = [t[..., places, :].clone().requires_grad_() for t in qkv]
    made = part(*mine, **rest)
    made.backward(dout[..., places, :])
    close(
        "the output of this rank's tokens",
        made.detach(),
        out.detach()[..., places, :],
        LOOSE * w.size,
    )
    for name, t, of in zip("qkv", mine, _there(whole.grad), strict=True):
        if t.grad is None:
            raise Broken(f"{name} gets no gradient")
        what = f"the gradient of this rank's {name}"
        close(what, t.grad, of[..., places, :], LOOSE * w.size)


def _layout(name: str) -> Places:
    if name not in LAYOUTS:
        raise Broken(f"there is no layout {name}; there are {', '.join(LAYOUTS)}")
    return LAYOUTS[name]


def _of_attention() -> Iterator[Case]:
    def most(p: int) -> int:
        """Five times all keys, values and their gradients to everyone."""
        return 5 * 4 * p * p * 24 * 16 * 8

    yield Case("24 tokens", partial(attention, tokens=24), False, most, None)
    yield Case("48 tokens", partial(attention, tokens=48))
    yield Case("13 tokens", partial(attention, tokens=13), optional=True)


CONTRACTS = (
    Contract(
        "column-row",
        "outputs and gradients are those of the pair of layers on one process",
        "a wrapper of nn.Sequential(Linear, GELU, Linear), or a function that cuts it",
        list(_of_pairs()),
    ),
    Contract(
        "vocabulary-parallel-loss",
        "the cross-entropy of all words, though no rank has all logits",
        "a function of (this rank's logits, targets) that gives a loss per token",
        list(_of_losses()),
    ),
    Contract(
        "attention",
        "each rank's tokens attend to the tokens of all ranks",
        "a function of (q, k, v), each [batch, heads, this rank's tokens, width]",
        list(_of_attention()),
        options=("causal", "layout"),
    ),
)
