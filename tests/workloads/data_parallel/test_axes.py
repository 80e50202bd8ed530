"""Tensors that name another axis, such as those of experts, are reduced, sharded and gathered over that axis."""

from collections import Counter
from dataclasses import dataclass, replace

import pytest

from clustersim.simulator.hardware.accelerator import Software
from clustersim.simulator.reading.errors import ScheduleError
from clustersim.simulator.schedule.check import check
from clustersim.simulator.schedule.mesh import Axis
from clustersim.simulator.schedule.ops import Collective
from clustersim.workloads.architectures.timed_models import UnitLayer
from clustersim.workloads.memory.compute import compute
from clustersim.workloads.operators.model import Model
from clustersim.workloads.operators.operator import ParameterTensor
from clustersim.workloads.parallelism.ddp import data_parallel
from clustersim.workloads.parallelism.fsdp import fsdp
from clustersim.workloads.parallelism.zero import zero
from clustersim.workloads.pipelines.one_f_one_b import one_f_one_b

DENSE, EXPERTS = 1000, 6000
"""Parameters of a layer on one rank; those of its experts are on two of the four replicas each."""


@dataclass(frozen=True)
class Mixed(UnitLayer):
    @property
    def tensors(self):
        return ParameterTensor(DENSE), ParameterTensor(EXPERTS, ("edp",))


WHAT = Model("experts", [Mixed(f"layer {i}", 1.0, 2.0) for i in range(2)], sample_bytes=0.0, optimizer_seconds=0.0)


def schedule(micro_batches=2):
    made = compute(WHAT, one_f_one_b(1, micro_batches), micro_batch_size=1, optimizer="adam").replicate("dp", 4)
    return replace(made, mesh=made.mesh.extended(0, {"edp": Axis(((0, 2), (1, 3)))}))


def sent(made):
    """Bytes of the vectors of collectives by kind and axis, but for the norm."""
    check(made)
    found = Counter()
    for op in made.programs[0].ops:
        if isinstance(op, Collective) and op.nbytes > 4:
            found[op.kind, op.over] += op.nbytes
    return found


def test_ddp_has_buckets_for_each_axis():
    for options in ({}, {"overlap": False}, {"bucket": 4e3}):
        expected = {("all_reduce", "dp"): 2 * 4 * DENSE, ("all_reduce", "edp"): 2 * 4 * EXPERTS}
        assert sent(data_parallel(schedule(), WHAT, **options)) == expected


@pytest.mark.parametrize("stage", [0, 1, 2, 3])
@pytest.mark.parametrize("ahead", [False, True])
def test_zero_shards_over_each_axis(stage, ahead):
    made = zero(schedule(), WHAT, stage=stage, software=Software(gather_ahead=ahead))
    reduced, gathered = {0: (1, 0), 1: (1, 1), 2: (2, 1), 3: (2, 4)}[stage]
    kind = "reduce_scatter" if stage else "all_reduce"
    expected = {(kind, "dp"): reduced * 8 * DENSE, (kind, "edp"): reduced * 8 * EXPERTS}
    expected |= {("all_gather", "dp"): gathered * 8 * DENSE, ("all_gather", "edp"): gathered * 8 * EXPERTS}
    # of two micro-batches the last layer's forward and backward pass share no gather
    assert sent(made) == {key: nbytes for key, nbytes in expected.items() if nbytes}
    shards = 2 * (DENSE / 4 + EXPERTS / 2)
    whole = 2 * (DENSE + EXPERTS)
    resident = made.programs[0].resident
    assert resident["optimizer"] == pytest.approx(8 * (shards if stage else whole))
    assert resident["gradients"] == pytest.approx(4 * (shards if stage > 1 else whole))
    assert resident["parameters"] == pytest.approx(4 * (shards if stage > 2 else whole))


def test_fsdp_shards_over_each_axis():
    made = fsdp(schedule(), WHAT, hybrid=2)
    assert sent(made) == {
        ("reduce_scatter", "dp.shard"): 2 * 8 * DENSE,
        ("reduce_scatter", "edp"): 2 * 8 * EXPERTS,
        ("all_reduce", "dp.replica"): 2 * 8 * DENSE / 2,
        ("all_gather", "dp.shard"): 4 * 8 * DENSE,
        ("all_gather", "edp"): 4 * 8 * EXPERTS,
    }


def test_an_axis_that_is_not_there_is_told():
    plain = compute(WHAT, one_f_one_b(1, 1), micro_batch_size=1)
    with pytest.raises(ScheduleError, match="gradients are reduced over edp; the axes are pp, dp"):
        data_parallel(plain, WHAT, 4)
