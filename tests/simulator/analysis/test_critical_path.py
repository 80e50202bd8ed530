"""The critical path: what is on it in closed form, how long it is, and that folding does not change it."""

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from clustersim.simulator.analysis.critical_path import CriticalPath, critical_path
from clustersim.simulator.analysis.intervals import ONE_INSTANT
from clustersim.simulator.engine.pricing import Variation
from clustersim.simulator.hardware.cluster import Cluster
from clustersim.simulator.hardware.kernel import measured
from clustersim.simulator.schedule.mesh import Mesh
from clustersim.simulator.schedule.ops import Collective, Compute, Recv, Send
from clustersim.simulator.schedule.pipeline_order import Action
from clustersim.simulator.schedule.program import Program
from clustersim.simulator.schedule.schedule import Schedule
from clustersim.simulator.simulate import simulate
from clustersim.topologies.uniform_and_tree import uniform
from tests.simulator.analysis.random_schedules import ENGINES, run, schedules
from tests.simulator.conftest import pipeline
from tests.simulator.engine.folding.test_folding import FABRICS, JITTER, cluster_of, trained
from tests.simulator.engine.folding.test_folding import schedules as contended

UNHURRIED: dict[str, Any] = {"deadline": None, "suppress_health_check": [HealthCheck.too_slow]}


def ideal(gpus: int, **fields: Any) -> Cluster:
    return uniform(gpus=gpus, hosts=0, **{"bandwidth": 1e9, "latency": 0.0} | fields)


def named(path: CriticalPath) -> list[tuple[int, str]]:
    """(rank, op) of the spans that take time."""
    rows = zip(path.rank.tolist(), path.op.tolist(), path.seconds.tolist(), strict=True)
    return [(rank, path.timeline.schedule.program(rank).ops[op].name) for rank, op, seconds in rows if seconds]


def assert_whole(path: CriticalPath) -> None:
    """The path leads from the start to the end without a gap."""
    assert (path.end >= path.begin).all()
    assert (path.begin[1:] == path.end[:-1]).all()
    assert path.seconds.sum() == pytest.approx(path.timeline.makespan, rel=1e-9)
    assert sum(path.by_kind().values()) == pytest.approx(path.timeline.step_time, rel=1e-9)
    for rank, step, op, end in zip(*(x.tolist() for x in (path.rank, path.step, path.op, path.end)), strict=True):
        own = path.timeline.of(rank)
        (row,) = np.flatnonzero((own.op == op) & (own.step == step))
        assert own.end[row] == pytest.approx(end, rel=0, abs=ONE_INSTANT * path.timeline.makespan)


@pytest.mark.parametrize(("stages", "micro_batches"), [(2, 1), (3, 4), (4, 7)])
def test_of_gpipe_it_goes_down_the_pipeline_and_back(stages: int, micro_batches: int) -> None:
    """Forward 0.1 s, backward 0.2 s, a message of 10 MB at 1 GB/s 0.01 s: m + p - 1 of each, and 2 (p - 1) messages."""
    path = critical_path(simulate(pipeline(stages, micro_batches), ideal(stages)))
    assert_whole(path)
    boxes = micro_batches + stages - 1
    expected = {"compute": 0.3 * boxes, "pp": 0.01 * 2 * (stages - 1)}
    assert {kind: s for kind, s in path.by_kind().items() if s} == pytest.approx(expected)
    forward = [(rank, name) for rank, name in named(path) if name.startswith("F")]
    assert forward[:1] + forward[-1:] == [(0, "F0"), (stages - 1, f"F{micro_batches - 1}")]
    assert named(path)[-1] == (0, "B0")
    assert {rank for rank, _ in named(path)} == set(range(stages))


def data_parallel(ranks: int, seconds: float = 1.0, nbytes: float = 1e9) -> Schedule:
    """Two layers, the gradients of the second reduced beside the backward pass of the first."""
    ops = (
        Compute(name="F", layer="first", kernels=(measured(seconds),)),
        Compute(name="B second", layer="second", kernels=(measured(2 * seconds),)),
        Collective(name="reduce", kind="all_reduce", over="dp", nbytes=nbytes, stream="dp", after=("B second",)),
        Compute(name="B first", layer="first", kernels=(measured(2 * seconds),)),
        Compute(name="O", action=Action("O", 0), kernels=(measured(0.5),), after=("reduce",)),
    )
    return Schedule(Mesh.regular({"dp": ranks}), (Program("all", ops),), (0,) * ranks)


def test_communication_that_computation_hides_is_not_on_it() -> None:
    path = critical_path(simulate(data_parallel(4), ideal(4)))
    assert named(path) == [(0, "F"), (0, "B second"), (0, "B first"), (0, "O")]
    assert path.by_layer() == pytest.approx({"first": 3.0, "second": 2.0, "": 0.5})


def test_communication_that_nothing_hides_is_on_it() -> None:
    timeline = simulate(data_parallel(4, nbytes=4e9), ideal(4), algorithms={"all_reduce": "ring"})
    path = critical_path(timeline)
    assert named(path) == [(0, "F"), (0, "B second"), (0, "reduce"), (0, "O")]
    assert path.by_kind()["dp"] == pytest.approx(2 * 3 / 4 * 4)


@pytest.mark.parametrize("fold", [True, False])
def test_a_straggler_is_on_it(fold: bool) -> None:
    timeline = simulate(data_parallel(8, nbytes=8e9), ideal(8), variation=Variation(stragglers={5: 1.5}), fold=fold)
    path = critical_path(timeline)
    assert_whole(path)
    assert {rank for rank, name in named(path) if name != "O" and name != "reduce"} == {5}
    assert path.by_rank()[5] >= 4.5


@pytest.mark.parametrize("fold", [True, False])
def test_a_slow_link_is_on_it(fold: bool) -> None:
    """Four pairs of ranks send as much at a time; the link of one is a quarter as fast."""
    send: dict[str, Any] = {"over": "pp", "nbytes": 1e9, "action": Action("F", 0, 0)}
    first = Program("first", (Compute(name="F", kernels=(measured(1.0),)), Send(name="send", peer=1, **send)))
    last = Program("last", (Recv(name="recv", peer=0, **send), Compute(name="F", kernels=(measured(1.0),))))
    schedule = Schedule(Mesh.regular({"dp": 4, "pp": 2}), (first, last), (0,) * 4 + (1,) * 4)
    cluster = ideal(8)
    port = next(link for link in cluster.route("gpu 2", "gpu 6"))
    slow = cluster.degraded([(*cluster.ends[port], 0.25)])
    path = critical_path(simulate(schedule, slow, fold=fold))
    assert_whole(path)
    assert named(path) == [(2, "F"), (6, "recv"), (6, "F")]
    assert path.by_kind()["pp"] == pytest.approx(4.0)


def test_a_late_receive_of_a_buffered_send_leaves_the_path_to_the_bytes() -> None:
    send: dict[str, Any] = {"over": "pp", "nbytes": 4e9, "action": Action("F", 0, 0)}
    sender = (Compute(name="F", kernels=(measured(1.0),)), Send(name="send", peer=1, buffered=True, **send))
    receiver = (Compute(name="else", kernels=(measured(3.0),)), Recv(name="recv", peer=0, **send))
    schedule = Schedule(Mesh.regular({"pp": 2}), (Program("a", sender), Program("b", receiver)), (0, 1))
    path = critical_path(simulate(schedule, ideal(2)))
    assert_whole(path)
    assert named(path) == [(0, "F"), (1, "recv")]
    assert path.by_kind()["pp"] == pytest.approx(4.0)


@pytest.mark.parametrize("engine", ["simpy", "compiled"])
def test_ops_of_no_length_at_a_server_are_passed(engine: str) -> None:
    """Each is chosen when an instant is over, so the last begins some instants late, and the path goes through some."""

    def served(name: str, seconds: float) -> Compute:
        return Compute(name=name, kernels=(measured(seconds),), server="store")

    work = Compute(name="work", kernels=(measured(1.0),))
    ops = (work, served("a", 0.0), served("b", 0.0), replace(work, name="rest"), served("c", 0.5))
    schedule = Schedule(Mesh.regular({"dp": 4}), (Program("all", ops),), (0,) * 4)
    path = critical_path(simulate(schedule, ideal(4), engine=engine))
    assert_whole(path)
    assert path.seconds.sum() == pytest.approx(1.0 + 1.0 + 4 * 0.5)


def test_over_several_steps_it_counts_a_step_of_those_measured() -> None:
    timeline = simulate(replace(data_parallel(2), steps=3), ideal(2))
    path = critical_path(timeline)
    assert_whole(path)
    assert path.seconds.sum() == pytest.approx(3 * 5.5)
    assert path.by_kind()["compute"] == pytest.approx(5.0)
    assert path.by_rank() == pytest.approx({0: 5.5})


def test_of_a_schedule_without_ops_it_is_empty() -> None:
    timeline = simulate(Schedule(Mesh.regular({"dp": 2}), (Program("all", ()),), (0, 0)), ideal(2))
    path = critical_path(timeline)
    assert len(path.op) == 0
    assert sum(path.by_kind().values()) == 0.0


@settings(max_examples=60, **UNHURRIED)
@given(schedules(), ENGINES)
def test_it_leads_from_the_start_to_the_end(schedule: Schedule, engine: str) -> None:
    assert_whole(critical_path(run(schedule, engine)))


def assert_folded_equals_unfolded(schedule: Schedule, cluster: Cluster, **how: Any) -> None:
    paths = [critical_path(simulate(schedule, cluster, fold=fold, **how)) for fold in (True, False)]
    for path in paths:
        assert_whole(path)
    folded, plain = paths
    close = 1e-9 * plain.timeline.makespan
    assert folded.by_kind() == pytest.approx(plain.by_kind(), rel=0, abs=close)
    assert folded.by_rank() == pytest.approx(plain.by_rank(), rel=0, abs=close)
    assert folded.by_layer() == pytest.approx(plain.by_layer(), rel=0, abs=close)


@settings(max_examples=25, **UNHURRIED)
@given(contended(16), st.sampled_from(FABRICS), st.dictionaries(st.integers(0, 15), st.just(1.5), max_size=2))
def test_folded_equals_unfolded(schedule: Schedule, fabric: object, late: dict[int, float]) -> None:
    variation = Variation(stragglers=late)
    assert_folded_equals_unfolded(schedule, cluster_of(fabric, 4), variation=variation, fidelity="alpha_beta")


@settings(max_examples=15, **UNHURRIED)
@given(trained(), st.data())
def test_folded_equals_unfolded_of_a_transformer(schedule: Schedule, data: st.DataObject) -> None:
    late = data.draw(st.dictionaries(st.integers(0, schedule.mesh.world_size - 1), st.just(1.1), max_size=1))
    variation = Variation(jitter=data.draw(JITTER), stragglers=late)
    assert_folded_equals_unfolded(schedule, cluster_of({"kind": "switch"}, 4), variation=variation)
