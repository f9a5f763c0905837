"""The systems are all there, answer every axis, and cite what can be followed."""

import re
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest
import yaml

from atlas.taxonomy import Atlas, load

ROOT = Path(__file__).resolve().parents[2]
FEWEST = 110

#: Every system that the five surveys name or lead to, and its file here where the
#: file has another name: a technique has the name already, or the paper had none.
SURVEYED = """
    ad-psgd alpa axonn bigdl bmuf caffe2-gloo caffeonspark capuchin chainermn chimera
    cntk-1bit=cntk cots-hpc d-psgd=d-psgd-system dapple deepspark distbelief dlrm
    dryden-channel-filter easgd firecaffe flexflow fsdp=pytorch-fsdp geeps gems gosgd
    gossipgrad gpipe=gpipe-system gs-sgd gshard gspmd gtopk hogwild=hogwild-system
    horovod hotline hydra hydrozoa hypar intel-sync-sgd
    interlocking-backprop=interlocking-backprop-system karma l2l lbann
    local-parallelism=laskin-local malt megatron-lm memflow mesh-tensorflow mpca-sgd
    mxnet optcnn paradl parameter-server-li=parameter-server petuum-ssp=petuum-bosen
    pipedream pipedream-2bw poseidon project-adam pytorch-ddp rdma-tensor rudra sgp
    singa sketched-sgd sparknet spectrain speedo srifty superneurons swapadvisor
    tencent-topk tensorflow tensorflowonspark terapipe tflms theano-mpi tofu
    torchgpipe varuna vdnn zero-deepspeed=zero zero-infinity zero-offload
"""


def surveyed() -> dict[str, str]:
    """The surveys' name of each system, and the id of its file."""
    pairs = (word.partition("=") for word in SURVEYED.split())
    return {name: id or name for name, _, id in pairs}


@pytest.fixture(scope="module")
def atlas() -> Atlas:
    """The taxonomy as it stands."""
    return load(ROOT)


def sources_in(value: object) -> Iterator[object]:
    """Every source written anywhere in a file."""
    if isinstance(value, dict):
        if "source" in value:
            yield value["source"]
        value = list(value.values())
    if isinstance(value, list):
        for part in value:
            yield from sources_in(part)


def test_there_are_as_many_systems_as_promised(atlas: Atlas) -> None:
    assert len(atlas.systems) >= FEWEST


def test_every_system_of_the_surveys_has_its_row(atlas: Atlas) -> None:
    rows = surveyed()
    assert len(rows) == 82
    assert len(set(rows.values())) == len(rows)
    assert {name: id for name, id in rows.items() if id not in atlas.systems} == {}


def test_a_source_that_is_no_papers_key_is_a_link() -> None:
    # read without the loader, which would refuse the file before this could look
    for file in sorted((ROOT / "taxonomy" / "systems").glob("*.yaml")):
        cited = list(sources_in(yaml.safe_load(file.read_text(encoding="utf-8"))))
        assert cited, f"{file.name} cites nothing"
        for source in cited:
            good = re.fullmatch(r"https?://\S+|[a-z]+[0-9]{4}[a-z0-9]+", str(source))
            assert good, f"{file.name}: {source}"


def test_no_system_is_named_like_a_technique(atlas: Atlas) -> None:
    assert not atlas.systems.keys() & atlas.techniques.keys()


def test_no_relation_is_told_twice(atlas: Atlas) -> None:
    told: Counter[tuple[str, ...]] = Counter()
    for system in atlas.systems.values():
        for relation in system.relations:
            pair = (system.id, relation.system)
            # a comparison is the same from either side
            sides = sorted(pair) if relation.kind == "compares-with" else pair
            told[relation.kind, *sides] += 1
    assert [what for what, times in told.items() if times > 1] == []
