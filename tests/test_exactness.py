"""Folded equals unfolded in shipped scenarios: every span of every rank, and charts and files of chosen ranks."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest

from clustersim import topologies
from clustersim.scenarios import Scenario
from clustersim.scenarios.run.running import simulated
from clustersim.simulator.analysis.timeline import Columns, Timeline
from clustersim.simulator.charts.rows import Shown, rows
from clustersim.simulator.engine.pricing import Variation
from clustersim.simulator.hardware.cluster import Cluster
from clustersim.simulator.hardware.kernel import matmul
from clustersim.simulator.network.library.nccl import nccl
from clustersim.simulator.schedule.mesh import Mesh
from clustersim.simulator.schedule.ops import Collective, Compute
from clustersim.simulator.schedule.program import Program
from clustersim.simulator.schedule.schedule import Schedule
from clustersim.simulator.simulate import simulate
from clustersim.simulator.traces import perfetto_and_chrome
from tests.test_conservation import Case, every_case, timelines


def both(name: str, changes: Mapping[str, object]) -> tuple[Timeline, Timeline]:
    """The timeline of a shipped scenario with *changes*, folded and unfolded."""

    def run(fold: bool) -> Timeline:
        scenario = Scenario.load(name, {**changes, "simulation.fold": fold})
        return simulated(scenario, scenario.schedule())

    return run(True), run(False)


def in_order(written: Columns) -> list[npt.NDArray[Any]]:
    order = np.lexsort((written.op, written.step))
    return [column[order] for column in (written.op, written.step, written.ready, written.begin, written.end)]


def assert_exact(times: npt.NDArray[np.float64], expected: npt.NDArray[np.float64]) -> None:
    """Assert equality to a relative 1e-9, or to 1e-12 s near zero."""
    np.testing.assert_allclose(times, expected, rtol=1e-9, atol=1e-12)


def assert_same_spans(folded: Timeline, plain: Timeline) -> None:
    assert len(plain.columns) == plain.world_size == folded.world_size
    for rank in range(plain.world_size):
        a, b = in_order(folded.of(rank)), in_order(plain.of(rank))
        np.testing.assert_array_equal(a[:2], b[:2])
        for times, expected in zip(a[2:], b[2:], strict=True):
            assert_exact(times, expected)


@every_case
def test_every_span_of_every_rank_is_the_same_folded_and_unfolded(case: Case) -> None:
    folded, plain = (timelines(case, fold)[0] for fold in (True, False))
    assert_same_spans(folded, plain)
    assert dict(folded.axis_bytes) == pytest.approx(dict(plain.axis_bytes), rel=1e-9)


REPLICAS = 4
MEGASCALE: dict[str, object] = {
    "cluster.nodes": 8,
    "training.global_batch_size": 4 * REPLICAS,
    "model.num_layers": 4,
    "parallelism.pp": 2,
    "parallelism.virtual_stages": 2,
    "parallelism.dp": REPLICAS,
    "parallelism.tp_overlap": False,
    "model.block": "serial",
    "training.gradient_dtype": "bf16",
    "software": "megatron",
}
"""A small scenario with the structure of MegaScale: TP 8 within a node, two stages, four replicas. Without its overlaps
and its parallel block, so that a wait shows where it begins: no parameters are gathered beside the forward pass."""

STRAGGLER = 21  # of tensor group 2: stage 0 of the third replica


@pytest.mark.exhaustive
def test_a_straggler_slows_its_replica_and_the_others_wait_for_its_gradients() -> None:
    late = {"simulation.stragglers": [{"rank": STRAGGLER, "slowdown": 1.3}]}
    folded, plain = both("megascale_175b_12288a100", MEGASCALE | late)
    assert_same_spans(folded, plain)
    equal, _ = both("megascale_175b_12288a100", MEGASCALE)
    assert folded.step_time > equal.step_time
    assert len(equal.columns) < len(folded.columns) < folded.world_size
    replica, other = STRAGGLER // 8 * 8, STRAGGLER % 8
    # before the first exchange of gradients, its own replica is late and another one is not affected
    assert last_forward(folded, replica) > last_forward(equal, replica) * 1.05
    assert last_forward(folded, other) == pytest.approx(last_forward(equal, other), rel=1e-9)
    # its peer in another replica waits at the exchange of gradients for as long as the step is longer
    longer = folded.step_time - equal.step_time
    assert waited(equal, other, "dp") < 1e-9 < longer < waited(folded, other, "dp")
    # its tensor group has its gradients a little earlier: the straggler copies its own buckets more slowly
    assert waited(folded, other, "tp") < 5e-3 * longer
    # its tensor group waits for the straggler, and the straggler does not wait for the group
    assert waited(folded, STRAGGLER, "tp") < 1e-9 < longer < waited(folded, STRAGGLER - 1, "tp")


def last_forward(timeline: Timeline, rank: int) -> float:
    """When the last forward computation of *rank* ended, s."""
    return max(
        s.end for s in timeline.spans(rank) if isinstance(s.op, Compute) and s.op.action and s.op.action[0] == "F"
    )


def waited(timeline: Timeline, rank: int, axis: str) -> float:
    """The time that *rank* waited for partners on *axis*, s."""
    spans = timeline.spans(rank)
    return sum(s.begin - s.ready for s in spans if isinstance(s.op, Collective) and s.op.over == axis)


CHOSEN = [0, *range(8, 16)]


@pytest.fixture(scope="module")
def megascale() -> tuple[Timeline, Timeline]:
    return both("megascale_175b_12288a100", MEGASCALE)


def test_charts_of_chosen_ranks_are_equal(megascale: tuple[Timeline, Timeline]) -> None:
    shown = [Shown(rank, f"rank {rank}") for rank in CHOSEN]
    mine, theirs = (rows(timeline, shown, (0.0, timeline.makespan)) for timeline in megascale)
    assert [(row.rank, row.stream) for row in mine] == [(row.rank, row.stream) for row in theirs]
    assert {row.rank for row in mine} == set(CHOSEN)
    for row, other in zip(mine, theirs, strict=True):
        assert [(b.paint, b.virtual) for b in row.boxes] == [(b.paint, b.virtual) for b in other.boxes]
        for boxes, expected in zip(row.boxes, other.boxes, strict=True):
            assert_exact(boxes.begin, expected.begin)
            assert_exact(boxes.end, expected.end)


def test_files_of_chosen_ranks_are_equal(megascale: tuple[Timeline, Timeline]) -> None:
    mine, theirs = (json.loads(perfetto_and_chrome.chrome(timeline, CHOSEN))["traceEvents"] for timeline in megascale)
    assert len(mine) == len(theirs)
    for event, expected in zip(mine, theirs, strict=True):
        times = [(one.pop("ts", 0.0), one.pop("dur", 0.0)) for one in (event, expected)]
        assert times[0] == pytest.approx(times[1], rel=1e-9, abs=1e-6)  # microseconds
        assert event.pop("args", {}).keys() == expected.pop("args", {}).keys()
        assert event == expected


NODE = {
    "accelerator": "a100_80gb",
    "accelerators": 4,
    "intra": {"kind": "nvlink3", "shape": "switch"},
    "host": {"kind": "pcie4"},
    "nics": 4,
    "nic": {"kind": "ib_hdr"},
}
NEWER = {**NODE, "accelerator": "h100"}


def cluster(nodes: object, node: object, degraded: Sequence[tuple[str, str, float]] = ()) -> Cluster:
    made = topologies.cluster({"nodes": nodes, "node": node, "fabric": {"kind": "fat_tree"}})
    return made.degraded(degraded)


def step(**axes: int) -> Schedule:
    """Each rank multiplies matrices, sums 100 MB over each of *axes* and multiplies again."""
    mesh = Mesh.regular(axes)
    work = (matmul(4096, 4096, 4096, precision="bf16"),)
    reductions = (Collective(name=f"sum {axis}", kind="all_reduce", over=axis, nbytes=1e8) for axis in axes)
    ops = (Compute(name="before", kernels=work), *reductions, Compute(name="after", kernels=work))
    return Schedule(mesh, (Program("all", ops),), (0,) * mesh.world_size)


def classes(schedule: Schedule, cluster: Cluster, variation: Variation | None = None) -> list[list[int]]:
    """The classes of ranks, ascending. Asserts that each span equals that of the unfolded run."""
    folded, plain = (
        simulate(schedule, cluster, transport=nccl(), variation=variation, fold=fold) for fold in (True, False)
    )
    assert_same_spans(folded, plain)
    return [ranks.tolist() for ranks in folded.classes.values()]


TP_DP = {"tp": 4, "dp": 4}
"""Four nodes, a tensor group in each."""


def test_two_generations_of_gpus_make_two_classes() -> None:
    machine = cluster([2, 2], [NODE, NEWER])
    assert classes(step(**TP_DP), machine) == [[*range(8)], [*range(8, 16)]]


def test_a_slow_nic_makes_classes_of_the_groups_that_use_it() -> None:
    machine = cluster(4, NODE, [("nic 1", "leaf 0", 0.25)])
    slow = [1, 5, 9, 13]
    assert classes(step(**TP_DP), machine) == [[rank for rank in range(16) if rank not in slow], slow]
    # if one group uses all NICs, all of its ranks are equally slow
    assert classes(step(dp=16), machine) == [[*range(16)]]


def test_a_last_node_with_fewer_gpus_is_a_class_of_its_own() -> None:
    machine = cluster([3, 1], [NODE, {**NODE, "accelerators": 2, "nics": 2}])
    assert classes(step(tp=2, dp=7), machine) == [[*range(12)], [12, 13]]


def test_a_straggler_its_partners_and_the_others_are_three_kinds_of_classes() -> None:
    late = Variation(stragglers={5: 1.5})
    tensor, data = [4, 6, 7], [1, 9, 13]
    rest = [rank for rank in range(16) if rank not in (*tensor, *data, 5)]
    assert classes(step(**TP_DP), cluster(4, NODE), late) == sorted([rest, tensor, data, [5]])
