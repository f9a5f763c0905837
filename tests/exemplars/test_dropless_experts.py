"""The experts' loop of products is torch's grouped product, where torch has one."""

import pytest
import torch
from torch.nn import functional as F

from exemplars.parameter_distribution.expert_and_embedding import (
    dropless_experts as ours,
)


@pytest.mark.parametrize("sizes", [[2, 3, 1], [0, 0, 6], [0, 6, 0]])
def test_grouped_products_are_those_of_torch(sizes: list[int]) -> None:
    rows = torch.randn(6, 8)
    up, down = torch.randn(3, 8, 16), torch.randn(3, 16, 8)
    ends = torch.tensor(sizes, dtype=torch.int32).cumsum(0, dtype=torch.int32)
    hidden = torch.tanh(F.grouped_mm(rows, up, offs=ends))
    torchs = F.grouped_mm(hidden, down, offs=ends)
    torch.testing.assert_close(ours.grouped(rows, sizes, up, down), torchs)
