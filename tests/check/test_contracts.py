"""Contracts: the exemplars and torch's own parts keep them, wrong parts do not."""

from pathlib import Path
from typing import Any

import pytest

from atlas.check.checking import CheckError
from atlas.check.contracts import CONTRACTS
from atlas.check.parts import check_part
from atlas.commands.check import NAMES

PARTS = str(Path(__file__).parent / "programs" / "parts.py")
RING = "exemplars.communication_pattern.collective"
SHARDED = "exemplars.parameter_distribution.sharded"
REPLICATED = "exemplars.parameter_distribution.replicated"
PIPELINE = "exemplars.sync_strategy.pipeline_flush"
TORCH = "torch.distributed"

RIGHT: list[tuple[str, str, dict[str, Any], bool]] = [
    # contract, part, options, whether it runs with every change
    ("all-reduce", f"{PARTS}:contiguous_all_reduce", {}, True),
    ("all-reduce", f"{RING}.ring_all_reduce:ring_all_reduce", {}, True),
    ("all-reduce", f"{RING}.halving_doubling:all_reduce", {}, False),
    ("all-reduce", f"{RING}.recursive_doubling:all_reduce", {}, False),
    ("all-reduce", f"{RING}.tree_all_reduce:all_reduce", {}, False),
    ("all-reduce", f"{RING}.double_binary_tree:all_reduce", {"pieces": 4}, False),
    ("broadcast", f"{TORCH}:broadcast", {}, True),
    ("reduce-scatter", f"{TORCH}:reduce_scatter_single", {}, True),
    (
        "reduce-scatter",
        f"{RING}.reduce_scatter_all_gather:reduce_scatter",
        {},
        True,
    ),
    ("all-gather", f"{TORCH}:all_gather_single", {}, True),
    ("all-gather", f"{RING}.reduce_scatter_all_gather:all_gather", {}, True),
    ("all-to-all", f"{TORCH}:all_to_all_single", {}, True),
    ("all-to-all", f"{TORCH}:all_to_all", {}, False),
    ("all-to-all", f"{RING}.all_to_all:all_to_all", {}, True),
    ("data-parallel", "torch.nn.parallel:DistributedDataParallel", {}, True),
    ("data-parallel", f"{REPLICATED}.ddp_by_hand:DataParallel", {"bucket": 50}, True),
    ("data-parallel", f"{PARTS}:average_gradients", {}, True),
    ("sharded-optimizer", f"{TORCH}.optim:ZeroRedundancyOptimizer", {}, True),
    ("sharded-optimizer", f"{SHARDED}.zero_1:Zero1", {}, True),
    ("sharded-optimizer", f"{SHARDED}.zero_2:Zero2", {}, False),
    ("fully-sharded", f"{TORCH}.fsdp:fully_shard", {}, True),
    ("fully-sharded", f"{SHARDED}.zero_3:Zero3", {}, True),
    (
        "compressor",
        "exemplars.communication_pattern.quantization.qsgd:QSGD",
        {"bucket": 16, "levels": 15},
        True,
    ),
    ("column-row", f"{PARTS}:SplitPair", {}, True),
    ("column-row", f"{PARTS}:dtensor_pair", {}, True),
    ("vocabulary-parallel-loss", f"{PARTS}:exemplar_loss", {}, True),
    ("attention", f"{PARTS}:ring", {}, True),
    ("attention", f"{PARTS}:zigzag_ring", {"layout": "zigzag"}, False),
    ("attention", f"{PARTS}:gathered", {}, False),
    ("attention", f"{PARTS}:gathered", {"causal": "0"}, False),
    ("pipeline", f"{PARTS}:gpipe_runner", {}, True),
    ("pipeline", f"{PARTS}:Torch1F1B", {}, True),
    ("parameter-server", f"{PARTS}:ShardedServer", {}, True),
    ("parameter-server", f"{PARTS}:CentralServer", {}, False),
    ("checkpoint", f"{PARTS}:ExemplarCheckpoint", {}, True),
    ("checkpoint", f"{PARTS}:TorchCheckpoint", {}, True),
    ("compressor", f"{PARTS}:HalfRing", {}, True),
    ("pipeline-schedule", f"{PIPELINE}.gpipe:gpipe", {}, True),
    ("pipeline-schedule", f"{PIPELINE}.one_f_one_b:one_f_one_b", {}, True),
    ("pipeline-schedule", f"{PARTS}:exact_schedule", {}, True),
    (
        "mixing-matrix",
        "exemplars.communication_pattern.neighbor.gossip_exchange:shares",
        {},
        True,
    ),
    ("mixing-matrix", f"{PARTS}:ring_matrix", {}, True),
]
WRONG: list[tuple[str, str, str, int, str, bool]] = [
    # contract, part, smallest case, its ranks, what is said of it, daily
    ("all-reduce", "all_reduce_drops_the_rest", "one element", 2, "the sum", True),
    ("all-reduce", "all_reduce_first_rank_only", "one element", 2, "the sum", True),
    ("all-reduce", "all_reduce_wasteful", "one element", 2, "bytes together", True),
    ("all-reduce", "all_reduce_hangs_on_one", "one element", 3, "", False),
    (
        "all-gather",
        "gather_in_wrong_order",
        "1 of float32 for each rank",
        2,
        "the parts of all ranks",
        True,
    ),
    ("data-parallel", "sum_gradients", "a plain module", 2, "embedding.weight", True),
    ("data-parallel", "ForgetsTied", "a plain module", 2, "embedding.weight", True),
    (
        "sharded-optimizer",
        "KeepsEverything",
        "a plain module, SGD with momentum",
        2,
        "nothing is sharded",
        True,
    ),
    ("fully-sharded", "ShardsNothing", "a plain module", 2, "nothing is sharded", True),
    ("column-row", "NoSumBackward", "12 units between", 2, "input's gradient", True),
    ("column-row", "BiasEverywhere", "12 units between", 2, "the output", False),
    ("vocabulary-parallel-loss", "own_words_only", "48 words", 2, "the loss", True),
    (
        "vocabulary-parallel-loss",
        "gathers_logits",
        "768 words",
        2,
        "bytes together",
        True,
    ),
    ("attention", "attends_to_its_own", "24 tokens", 2, "rank's k", False),
    ("attention", "keeps_no_gradient", "24 tokens", 2, "this rank's k", True),
    ("attention", "gathers_permuted", "24 tokens", 1, "this rank's k", False),
    ("pipeline", "LastMicrobatchOnly", "4 micro-batches", 1, "layer 0", True),
    ("parameter-server", "LosesGradients", "one round", 2, "pulled weights", True),
    (
        "checkpoint",
        "OnlyFirstRankSaves",
        "tensors",
        2,
        "is not among what is loaded",
        False,
    ),
    ("checkpoint", "PadsTornFiles", "a torn file", 1, "cut in half", True),
    ("compressor", "NoFeedback", "ones", 1, "nothing carries the error", True),
    (
        "pipeline-schedule",
        "deadlocks",
        "2 stages, 2 micro-batches",
        1,
        "deadlock",
        True,
    ),
    (
        "pipeline-schedule",
        "forgets_the_last",
        "1 stages, 1 micro-batches",
        1,
        "stage 0 does B0 0 times, not once",
        True,
    ),
    ("mixing-matrix", "rows_only", "2 ranks", 1, "column 0 of 2 sums to 2", True),
]


def sampled(rows: list[Any]) -> list[Any]:
    return [
        pytest.param(
            *row[:-1],
            marks=[] if row[-1] else [pytest.mark.nightly],
            id=f"{row[0]}-{row[1].rpartition(':')[2]}",
        )
        for row in rows
    ]


@pytest.mark.parametrize(("contract", "part", "options"), sampled(RIGHT))
def test_a_right_part_keeps_its_contract(
    contract: str, part: str, options: dict[str, Any]
) -> None:
    found = check_part(part, contract, options=options)
    assert found.holds, found.smallest
    held = [o for o in found.outcomes if o.kind == "holds"]
    assert len(held) > len(found.outcomes) / 2  # it did not refuse its way through


@pytest.mark.parametrize(("contract", "part", "case", "ranks", "says"), sampled(WRONG))
def test_a_wrong_part_shows_its_smallest_case(
    contract: str, part: str, case: str, ranks: int, says: str
) -> None:
    found = check_part(f"{PARTS}:{part}", contract, ranks=range(1, ranks + 1))
    assert not found.holds
    assert found.smallest
    assert (found.smallest.case, found.smallest.ranks) == (case, ranks)
    assert says in found.smallest.says


def test_gloo_sums_a_tensor_with_gaps_wrongly_and_the_contract_says_so() -> None:
    """It reads as many numbers as there are from where the tensor begins."""
    found = check_part(f"{TORCH}:all_reduce", "all-reduce", ranks=[2])
    assert [o.case for o in found.outcomes if not o.ok] == ["not contiguous"]


@pytest.mark.parametrize(
    ("part", "contract", "says"),
    [
        ("no_such_module:f", "all-reduce", "there is no module no_such_module"),
        ("nowhere.py:f", "all-reduce", "there is no file nowhere.py"),
        (f"{PARTS}:nothing", "all-reduce", "has no nothing"),
        (f"{PARTS}:nothing", "all-produce", 'there is no contract "all-produce"'),
        ("torch:__version__", "all-reduce", "is not callable"),
    ],
)
def test_what_cannot_be_checked_is_one_line(
    part: str, contract: str, says: str
) -> None:
    with pytest.raises(CheckError) as caught:
        check_part(part, contract)
    assert says in str(caught.value).splitlines()[0]


def test_the_command_completes_every_contract() -> None:
    assert set(NAMES) == set(CONTRACTS)
