"""A strategy in the words of a framework: flags of Megatron-LM and torchtitan.

The calculator runs this file too, written as JavaScript by `atlas.script`, so it keeps
to plain statements. What a framework lacks is said, not left out.
"""

from typing import NamedTuple

from atlas.planner.prediction import Prediction
from atlas.planner.stages import units
from atlas.planner.strategy import (
    REPLICAS,
    Context,
    Data,
    Expert,
    Pipeline,
    Tensor,
    Zero,
)

__all__ = ["Flags", "caveats", "launch", "measure", "megatron", "torchtitan"]

#: torchtitan's own training configurations, by the oracle's names of models.
TITAN = {
    "llama3-8b": "llama3_8b",
    "llama3-70b": "llama3_70b",
    "llama3-405b": "llama3_405b",
}
TITAN_SCHEDULES = {
    "1f1b": "1F1B",
    "gpipe": "GPipe",
    "interleaved": "Interleaved1F1B",
}
#: The programs of the atlas that exchange what a product of axes exchanges.
EXEMPLARS = {
    "Data": "parameter_distribution.replicated.ddp_by_hand",
    "Zero": "parameter_distribution.sharded.zero_3",
    "Tensor": "parameter_distribution.intra_layer.tensor_parallel_column_row",
    "Filter": "parameter_distribution.intra_layer.filter",
    "Channel": "parameter_distribution.intra_layer.channel",
    "Spatial": "parameter_distribution.within_sample.spatial",
    "Pipeline": "sync_strategy.pipeline_flush.one_f_one_b",
    "Data Filter": "parameter_distribution.hybrid.data_filter",
    "Data Spatial": "parameter_distribution.hybrid.data_spatial",
    "Embedding": "parameter_distribution.expert_and_embedding.embedding_sharding",
    "Data Embedding": "parameter_distribution.expert_and_embedding.embedding_sharding",
}


class Flags(NamedTuple):
    """Flags of one framework, and what of the strategy it cannot do."""

    flags: tuple[str, ...]
    missing: tuple[str, ...]


def megatron(p: Prediction) -> Flags:
    """The prediction's strategy and training for Megatron-LM's pretrain_gpt.py."""
    b = p.model.block
    if b is None:
        return Flags((), (f"Megatron-LM trains transformers, not {p.model.name}",))
    flags = [
        f"--num-layers {units(p.model)}",
        f"--hidden-size {b.width}",
        f"--num-attention-heads {b.heads}",
        f"--ffn-hidden-size {b.ffn}",
        f"--seq-length {b.tokens}",
        f"--max-position-embeddings {b.tokens}",
        f"--micro-batch-size {p.micro_batch}",
        f"--global-batch-size {p.train.batch}",
    ]
    if b.kv != b.heads:
        flags.append(f"--group-query-attention --num-query-groups {b.kv}")
    if b.head * b.heads != b.width:
        flags.append(f"--kv-channels {b.head}")
    if b.gated == 1:
        flags.append("--swiglu")
    if b.bias == 0:
        flags.append("--disable-bias-linear")
    if b.norm == 1:
        flags.append("--normalization RMSNorm")
    if b.positions == 0:
        flags.append("--position-embedding-type rope")
    if b.tied == 0:
        flags.append("--untie-embeddings-and-output-weights")
    if b.dropout == 0:
        flags.append("--attention-dropout 0 --hidden-dropout 0")
    if b.experts > 0:
        flags.append(f"--num-experts {b.experts} --moe-router-topk {b.chosen}")
    missing: list[str] = []
    _megatron_train(p, flags, missing)
    _megatron_axes(p, flags, missing)
    return Flags(tuple(flags), tuple(missing))


def _megatron_train(p: Prediction, flags: list[str], missing: list[str]) -> None:
    if p.train.precision.arithmetic == "bf16":
        flags.append("--bf16")
    if p.train.precision.name == "mixed":
        missing.append(
            "Megatron-LM accumulates gradients in 32 bits: use the precision "
            "mixed-fp32-gradients"
        )
    if p.train.flash:
        flags.append("--attention-backend flash")
    if p.train.optimizer.name != "adam":
        flags.append("--optimizer sgd")
    if p.train.recompute == "selective":
        flags.append("--recompute-granularity selective")
    if p.train.recompute == "operations":
        missing.append("Megatron-LM has no checkpoints per operation")
    if p.train.recompute == "full":
        flags.append("--recompute-granularity full --recompute-method uniform")
        flags.append("--recompute-num-layers 1")


def _megatron_axes(p: Prediction, flags: list[str], missing: list[str]) -> None:
    for axis in p.strategy.axes:
        if isinstance(axis, Tensor):
            flags.append(f"--tensor-model-parallel-size {axis.ranks}")
            if axis.sequence_parallel:
                flags.append("--sequence-parallel")
        elif isinstance(axis, Pipeline):
            flags.append(f"--pipeline-model-parallel-size {axis.ranks}")
            if axis.schedule == "interleaved":
                flags.append(f"--num-virtual-stages-per-pipeline-rank {axis.chunks}")
            elif axis.schedule != "1f1b":
                missing.append(f"Megatron-LM has no {axis.schedule} schedule")
        elif isinstance(axis, Context):
            flags.append(f"--context-parallel-size {axis.ranks}")
            how = "p2p" if axis.method == "ring" else "a2a"
            flags.append(f"--cp-comm-type {how}")
        elif isinstance(axis, Expert):
            flags.append(f"--expert-model-parallel-size {axis.ranks}")
        elif isinstance(axis, Zero):
            _megatron_zero(axis, flags)
        elif not isinstance(axis, Data):
            missing.append(f"Megatron-LM has no {axis}")
    if _outside(p):
        flags.append("--use-tp-pp-dp-mapping")


def _megatron_zero(zero: Zero, flags: list[str]) -> None:
    if zero.stage > 1:
        how = "optim_grads" if zero.stage == 2 else "optim_grads_params"
        flags.append(f"--use-megatron-fsdp --data-parallel-sharding-strategy {how}")
        flags.append("--no-gradient-accumulation-fusion --ckpt-format fsdp_dtensor")
    flags.append("--use-distributed-optimizer")
    if zero.within:
        copies = zero.ranks // zero.within
        flags.append(f"--num-distributed-optimizer-instances {copies}")


def _outside(p: Prediction) -> bool:
    """Whether replicas stand outside the pipeline, not inside it."""
    seen = False
    for axis in p.strategy.axes:
        if isinstance(axis, Pipeline) and axis.ranks > 1:
            return seen
        if isinstance(axis, REPLICAS) and axis.ranks > 1:
            seen = True
    return False


def torchtitan(p: Prediction) -> Flags:
    """The prediction's strategy and training for torchtitan."""
    if p.model.block is None:
        return Flags((), (f"torchtitan trains transformers, not {p.model.name}",))
    missing: list[str] = []
    flags = [f"--training.seq_len {p.model.tokens}"]
    share = p.micro_batch * p.micro_batches
    if p.strategy.length(Pipeline) > 1:
        flags.append(f"--training.local_batch_size {share}")
        size = "--parallelism.pipeline_parallel_microbatch_size"
        flags.append(f"{size} {p.micro_batch}")
    else:
        flags.append(f"--training.local_batch_size {p.micro_batch}")
    flags.append(f"--training.global_batch_size {p.train.batch}")
    if p.train.recompute == "operations":
        flags.append("--activation_checkpoint.mode selective")
        flags.append("--activation_checkpoint.selective_ac_option op")
    else:
        flags.append(f"--activation_checkpoint.mode {p.train.recompute}")
    if p.model.name not in TITAN:
        missing.append(f"torchtitan has no configuration for {p.model.name}")
    _titan_replicas(p, flags, missing)
    _titan_axes(p, flags, missing)
    return Flags(tuple(flags), tuple(missing))


def _titan_replicas(p: Prediction, flags: list[str], missing: list[str]) -> None:
    zero = p.strategy.find(Zero)
    experts = p.strategy.length(Expert)
    replicate = p.strategy.length(Data)
    shard = experts
    if zero is not None:
        shard = zero.shard * experts
        replicate = zero.ranks // zero.shard
        if zero.stage == 1:
            missing.append("torchtitan always shards weights: use Zero(2) or Zero(3)")
        if zero.stage == 2:
            flags.append("--parallelism.fsdp_reshard_after_forward never")
    flags.append(f"--parallelism.data_parallel_replicate_degree {replicate}")
    flags.append(f"--parallelism.data_parallel_shard_degree {shard}")
    if experts > 1:
        flags.append(f"--parallelism.expert_parallel_degree {experts}")
    if _outside(p):
        missing.append("torchtitan places the pipeline outside the replicas")


def _titan_axes(p: Prediction, flags: list[str], missing: list[str]) -> None:
    for axis in p.strategy.axes:
        if isinstance(axis, Tensor):
            flags.append(f"--parallelism.tensor_parallel_degree {axis.ranks}")
            if not axis.sequence_parallel and axis.ranks > 1:
                missing.append("torchtitan's tensor axis is always sequence parallel")
        elif isinstance(axis, Pipeline):
            flags.append(f"--parallelism.pipeline_parallel_degree {axis.ranks}")
            if axis.schedule in TITAN_SCHEDULES:
                name = TITAN_SCHEDULES[axis.schedule]
                flags.append(f"--parallelism.pipeline_parallel_schedule {name}")
            else:
                missing.append(f"torchtitan has no {axis.schedule} with one chunk")
        elif isinstance(axis, Context):
            flags.append(f"--parallelism.context_parallel_degree {axis.ranks}")
            if axis.method != "ring":
                missing.append(f"torchtitan has no {axis}")
        elif not isinstance(axis, Data | Zero | Expert):
            missing.append(f"torchtitan has no {axis}")


def launch(p: Prediction) -> str:
    """How torchrun starts so many ranks on this cluster."""
    node = p.cluster.levels[0].size
    ranks = p.strategy.ranks
    if ranks <= node:
        return f"torchrun --standalone --nproc-per-node {ranks}"
    return (
        f"torchrun --nnodes {-(-ranks // node)} --nproc-per-node {node} "
        "--rdzv-backend c10d --rdzv-endpoint $HEAD:29500"
    )


def measure(p: Prediction) -> str:
    """The command that would measure the prediction, or the nearest there is."""
    start = launch(p)
    if p.model.block is not None:
        ours, theirs = megatron(p), torchtitan(p)
        if not theirs.missing:
            name = TITAN[p.model.name]
            folder = "torchtitan/models/llama3/train_configs"
            head = f"{start} -m torchtitan.train --job.config_file {folder}/{name}.toml"
            return " ".join([head, *theirs.flags])
        words = p.model.block.vocabulary
        data = f"--mock-data --tokenizer-type NullTokenizer --vocab-size {words}"
        head = f"{start} pretrain_gpt.py {data} --train-iters 20 --log-throughput"
        return " ".join([head, *ours.flags])
    kinds = [type(axis).__name__ for axis in p.strategy.axes if axis.ranks > 1]
    kinds.sort()
    name = " ".join(kinds)
    if name in EXEMPLARS:
        return f"{start} -m exemplars.{EXEMPLARS[name]}"
    return f"{start} train.py"


def caveats(p: Prediction) -> tuple[str, ...]:
    """What the command does not measure as predicted."""
    if p.model.block is None:
        if "exemplars." in measure(p):
            return ("the same communication, on the exemplar's own small network",)
        return (
            "no framework known to us has this combination: write your own train.py",
        )
    theirs = torchtitan(p)
    return () if not theirs.missing else megatron(p).missing
