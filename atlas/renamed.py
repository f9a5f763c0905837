"""The names that torch 2.13 gave to collectives, on an older torch too."""

import torch.distributed as dist

#: New name -> what torch called it until 2.12; the arguments are the same.
RENAMED = {
    "all_gather_single": "all_gather_into_tensor",
    "reduce_scatter_single": "reduce_scatter_tensor",
}


def rename() -> None:
    """Let an exemplar call the new names, whatever the torch."""
    for new, old in RENAMED.items():
        if not hasattr(dist, new):
            setattr(dist, new, getattr(dist, old))
