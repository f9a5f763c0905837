"""The state of the exemplar passes through torch's own distributed checkpoint."""

from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist

from atlas.launch import launch
from exemplars.parameter_distribution.durable_state.resharded_checkpoint import (
    Trainer,
    held,
    load,
    save,
)
from exemplars.runtime import World

LAYERS, WIDTH = 4, 8  # which 4 ranks divide: DTensor cuts the rest as torch.chunk does


def through_both(w: World, folder: str) -> dict[str, bool]:
    """Ours saves for tensor parallelism, theirs reloads it by stages, ours writes that.

    The files differ, the names and the meaning of the pieces do not.
    """
    from torch.distributed.checkpoint import state_dict_loader, state_dict_saver
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.tensor import DTensor, Replicate, Shard

    top, columns, stages = Path(folder), (1, w.size, 1), (1, 1, w.size)
    trainer = Trainer(w, LAYERS, WIDTH)
    trainer.run(range(2))
    state = trainer.state()
    save(top / "ours", state, LAYERS, columns, w.rank)
    dist.barrier()
    mine, _ = load(top / "ours", state, held(state, LAYERS, columns, w.rank))
    mesh = init_device_mesh("cpu", (w.size,))

    def placed(name: str, part: torch.Tensor) -> DTensor:
        cut = Shard(0) if name[0].isdigit() else Replicate()
        return DTensor.from_local(part, mesh, [cut])

    theirs: dict[str, Any] = {name: placed(name, part) for name, part in mine.items()}
    state_dict_saver.save(theirs, checkpoint_id=top / "theirs")
    wanted = held(state, LAYERS, stages, w.rank)
    loaded: dict[str, Any] = {name: torch.zeros_like(state[name]) for name in wanted}
    state_dict_loader.load(loaded, checkpoint_id=top / "theirs")
    save(top / "again", loaded, LAYERS, stages, w.rank)
    dist.barrier()
    whole, _ = load(top / "again", state, held(state, LAYERS, (1, 1, 1), 0))
    return {name: torch.equal(whole[name], state[name]) for name in state}


@pytest.mark.nightly
@pytest.mark.parametrize("ranks", [1, 2, 4])
def test_it_says_the_same_as_torch_distributed_checkpoint(
    ranks: int, tmp_path: Path
) -> None:
    for equal in launch(through_both, ranks, str(tmp_path)):
        assert len(equal) == 4 * LAYERS + 1
        assert all(equal.values()), equal
