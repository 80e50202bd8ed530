"""Our algorithms as files of MSCCL: read again they are right, send as much, and take as long."""

from pathlib import Path

import pytest

from clustersim.simulator.network.algorithm_files import algorithm_file
from clustersim.simulator.network.algorithm_files.msccl_writer import msccl_xml
from clustersim.simulator.network.library import tuner
from clustersim.simulator.network.step import Group, Step
from clustersim.simulator.reading.errors import SimulatorError
from clustersim.topologies.uniform_and_tree import uniform
from tests.simulator.network.algorithm_files.test_msccl import seconds, written

SERVERS = ((0, 1, 2, 3), (4, 5, 6, 7))
RINGS = (tuple(range(8)), (0, 2, 4, 6, 1, 3, 5, 7))


def again(folder: Path, name: str, kind: str, group: Group) -> tuple[list[Step], list[Step]]:
    """The steps of an algorithm, and those of its file."""
    steps = tuner.steps(name, kind, group, 1e9, 0)
    path = written(folder, msccl_xml(name, kind, group.size, steps))
    return steps, algorithm_file.algorithm(path)(group, 1e9)


@pytest.mark.parametrize(
    ("name", "kind"),
    [
        *((name, kind) for name in ("ring", "direct", "halving_doubling", "hierarchical", "torus") for kind in
          ("all_reduce", "all_gather", "reduce_scatter")),
        ("tree", "all_reduce"),
        ("all_reduced", "reduce_scatter"),
        ("ring_by_halves", "all_gather"),
        ("direct", "all_to_all"),
        ("each_to_each", "all_to_all"),
    ],
)  # fmt: skip
@pytest.mark.parametrize("group", [Group(6, ((0, 1, 2), (3, 4, 5))), Group(8, SERVERS, RINGS, (2, 2))])
def test_read_again_it_is_right_and_sends_as_much(name: str, kind: str, group: Group, tmp_path: Path) -> None:
    """The reader proves it on symbolic chunks."""
    sent = [sum(s.nbytes * len(s.transfers) * s.repeat for s in steps) for steps in again(tmp_path, name, kind, group)]
    assert sent[0] == pytest.approx(sent[1])


@pytest.mark.parametrize("name", ["ring", "halving_doubling"])
@pytest.mark.parametrize("kind", ["all_reduce", "all_gather", "reduce_scatter"])
def test_read_again_it_takes_as_long(name: str, kind: str, tmp_path: Path) -> None:
    cluster, steps = uniform(8, 25e9, 1e-6), tuner.steps(name, kind, Group(8), 1e8, 0)
    path = written(tmp_path, msccl_xml(name, kind, 8, steps))
    own = sum(step.repeat * (1e-6 + step.nbytes / 25e9) for step in steps)
    read = algorithm_file.algorithm(path)(Group(8), 1e8)
    assert sum(step.repeat * (1e-6 + step.nbytes / 25e9) for step in read) == pytest.approx(own)
    if name == "ring":
        assert seconds(cluster, kind, path, 1e8) == pytest.approx(seconds(cluster, kind, "ring", 1e8))


@pytest.mark.parametrize(
    ("name", "kind", "message"),
    [
        ("nvls", "all_reduce", "adds and copies in switches, which MSCCL does not use"),
        ("ring_unchunked", "all_reduce", "forwards what arrives without adding it"),
        ("ring", "broadcast", "broadcast is no collective of MSCCL; there are all_gather, all_reduce"),
    ],
)
def test_what_msccl_cannot_say_is_refused(name: str, kind: str, message: str) -> None:
    with pytest.raises(SimulatorError, match=message):
        msccl_xml(name, kind, 4, tuner.steps(name, kind, Group(4), 1e6, 0))
