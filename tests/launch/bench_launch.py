"""How long from a launch to every rank's first all-reduce, warm.

python -m tests.launch.bench_launch [RANKS [REPEATS]]
"""

import statistics
import sys
import time

from atlas.launch import launch


def first_all_reduce(w: object) -> float:
    """The moment this rank's first all-reduce ended, on the machine's clock."""
    import torch
    import torch.distributed as dist

    dist.all_reduce(torch.ones(1))
    return time.clock_gettime(time.CLOCK_MONOTONIC)


def seconds(ranks: int) -> float:
    """From the call of launch to the end of the last rank's first all-reduce."""
    start = time.clock_gettime(time.CLOCK_MONOTONIC)
    return max(launch(first_all_reduce, ranks)) - start


def main(ranks: int = 4, repeats: int = 20) -> None:
    """Print the median, and the extremes beside it."""
    launch(first_all_reduce, ranks)  # the first one starts the server
    found = [seconds(ranks) for _ in range(repeats)]
    print(
        f"{ranks} warm ranks, launch to first all-reduce: "
        f"median {statistics.median(found):.3f} s of {repeats} "
        f"({min(found):.3f} to {max(found):.3f})"
    )


if __name__ == "__main__":
    main(*map(int, sys.argv[1:]))
