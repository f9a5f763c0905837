"""Zigzag is the layout of torch's context parallelism, where torch has one."""

import pytest
import torch
from torch.distributed.tensor.experimental._context_parallel import _load_balancer

from exemplars.parameter_distribution.within_sample import zigzag_ring_attention as ours


@pytest.mark.parametrize("p", [1, 2, 3, 4, 8])
def test_zigzag_gives_each_rank_the_tokens_that_torch_gives_it(p: int) -> None:
    tokens = torch.arange(2 * p * 5)
    torchs = _load_balancer._HeadTailLoadBalancer(len(tokens), p, "cpu")
    order = torchs._generate_indices()
    assert order is not None
    held = ours.zigzag([tokens], p)
    assert torch.equal(torch.cat(held), order[0].long())


@pytest.mark.parametrize("layout", ours.LAYOUTS, ids=lambda layout: layout.__name__)
@pytest.mark.parametrize("p", [1, 2, 3, 5])
def test_every_token_of_every_document_has_one_rank(
    layout: ours.Layout, p: int
) -> None:
    documents = list(torch.arange(31).tensor_split([1, 12, 12]))
    held = layout(documents, p)
    assert len(held) == p
    assert torch.cat(held).sort().values.tolist() == list(range(31))
