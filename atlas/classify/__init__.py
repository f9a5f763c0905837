"""What a run did tells where it stands: who sent to whom, and who held what.

    ranks = watched(technique, 8)                     # or the traces of any script
    found = classify([rank["events"] for rank in ranks])
    found.consistency         # Answer("synchronous", "after each of 3 updates, ...")

Nothing here reads a technique's name.
"""

from atlas.classify.answers import Answer, Classification, classify
from atlas.classify.holding import share
from atlas.classify.shape import Topology, topology

__all__ = ["Answer", "Classification", "Topology", "classify", "share", "topology"]
