"""What a run did tells where it stands: who sent to whom, and who held what.

    runs = [watched(technique, p) for p in (4, 8)]
    found = classify(runs[-1].ranks)        # from the logs of all ranks
    found.consistency                       # Answer("synchronous", "all 3 updates ...")

Nothing here reads a technique's name: the logs may be those of any script.
"""

from atlas.classify.answers import Answer, Classification, classify
from atlas.classify.holding import Share, shares
from atlas.classify.shape import Topology, topology

__all__ = [
    "Answer",
    "Classification",
    "Share",
    "Topology",
    "classify",
    "shares",
    "topology",
]
