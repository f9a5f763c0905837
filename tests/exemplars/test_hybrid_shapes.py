"""Hybrids refuse the numbers of ranks that no table of groups can have."""

import pytest

from atlas import record
from atlas.launch import LaunchError
from atlas.taxonomy import load


@pytest.mark.parametrize("name", ["data-filter", "data-spatial"])
@pytest.mark.parametrize("ranks", [22, 80])
def test_more_groups_than_samples_are_refused(name: str, ranks: int) -> None:
    with pytest.raises(LaunchError) as refusal:
        record.measure(load().techniques[name], ranks, mode="dry")
    assert refusal.value.refused
    assert f"{ranks} ranks" in refusal.value.summary
