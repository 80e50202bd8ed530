"""Layouts make the mesh that copying all ranks along each axis makes; stages may have layouts of their own."""

from itertools import permutations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from clustersim.simulator.reading.errors import ScheduleError
from clustersim.workloads.architectures.timed_models import unit_model
from clustersim.workloads.composition import PARALLELISMS, RANK_ORDER, layouts, numbered_along, on_layouts
from clustersim.workloads.memory.compute import compute
from clustersim.workloads.parallelism.context import Context
from clustersim.workloads.parallelism.data import Data
from clustersim.workloads.parallelism.domain import Domain
from clustersim.workloads.parallelism.expert import Expert
from clustersim.workloads.parallelism.pipeline import Pipeline
from clustersim.workloads.parallelism.tensor import Tensor
from clustersim.workloads.pipelines.one_f_one_b import one_f_one_b

DEGREES = st.integers(1, 4)


def parts(tp, pp, dp):
    return [Tensor(tp=tp), Pipeline(pp=pp), Data(dp=dp)]


def computed(pp, micro_batches=1, replicas=None):
    what = unit_model(pp, 1.0, 2.0)
    stages = [[layer] for layer in what.layers]
    order = one_f_one_b(pp, micro_batches)
    return compute(what, order, micro_batch_size=1, stages=stages, replicas=replicas)


@settings(deadline=None)
@given(DEGREES, DEGREES, DEGREES, st.sampled_from(list(permutations(RANK_ORDER))))
def test_ranks_are_numbered_as_if_copied_and_arranged(tp, pp, dp, rank_order):
    schedule = computed(pp)
    laid_out = on_layouts(schedule, layouts(parts(tp, pp, dp), tp * pp * dp, rank_order), parts(tp, pp, dp))
    copied = schedule.replicate("tp", tp).replicate("dp", dp).arranged(*rank_order)
    assert laid_out.program_of == copied.program_of
    for axis in RANK_ORDER:
        assert sorted(laid_out.mesh.axes[axis].groups) == sorted(copied.mesh.axes[axis].groups)


@given(DEGREES, DEGREES, st.integers(1, 99))
def test_replicas_take_the_gpus_that_are_left(tp, pp, gpus):
    (layout,) = layouts(parts(tp, pp, "auto"), gpus, RANK_ORDER)
    assert layout.degrees["dp"] == max(1, gpus // (tp * pp))


@settings(deadline=None)
@given(st.integers(1, 3), st.lists(st.integers(1, 4), min_size=1, max_size=4))
def test_stages_with_unequal_replicas(tp, replicas):
    pp = len(replicas)
    several = layouts(parts(tp, pp, replicas), 99, RANK_ORDER)
    schedule = on_layouts(computed(pp, 12, replicas), several, parts(tp, pp, replicas))
    mesh = schedule.mesh
    assert mesh.world_size == tp * sum(replicas)
    # the ranks of a stage follow one another, the group of tensor parallelism fastest
    place = {}
    for stage, count in enumerate(replicas):
        for replica in range(count):
            for share in range(tp):
                place[len(place)] = stage, replica, share
    for rank, (stage, replica, share) in place.items():
        assert set(mesh.axes["tp"].groups[mesh.axes["tp"].place(rank)[0]]) == {
            other for other, at in place.items() if at[:2] == (stage, replica)
        }
        assert set(mesh.axes["dp"].groups[mesh.axes["dp"].place(rank)[0]]) == {
            other for other, at in place.items() if (at[0], at[2]) == (stage, share)
        }
        assert set(mesh.axes["pp"].groups[mesh.axes["pp"].place(rank)[0]]) == {
            other for other, at in place.items() if at[2] == share
        }
        ops = [op for op in schedule.program(rank).ops if op.action.phase == "F"]
        assert [op.action.micro_batch for op in ops] == list(range(replica, 12, replicas[stage]))
        assert {op.action.stage for op in ops} == {stage}


def test_replicas_of_stages_that_do_not_fit_are_told():
    with pytest.raises(ScheduleError, match="lists the replicas of 2 pipeline ranks, but pp is 3"):
        layouts(parts(1, 3, [2, 1]), 9, RANK_ORDER)
    with pytest.raises(ScheduleError, match="replicas by pipeline rank need a rank_order that ends with pp"):
        layouts(parts(1, 2, [2, 1]), 9, ("pp", "dp", "tp"))
    with pytest.raises(ScheduleError, match="the 5 replicas of pipeline rank 0 do not divide 12 micro-batches"):
        computed(2, 12, [5, 1])


def test_the_default_rank_order_names_every_axis():
    assert numbered_along(parts(1, 1, 1)) == list(RANK_ORDER)
    every = [*parts(1, 1, 1), Context(cp=2)]
    assert {part.axis for part in every} == {cls.axis for cls in PARALLELISMS} - {Expert.axis, Domain.axis}
    # Megatron-LM's order (initialize_model_parallel, order = "tp-cp-ep-dp-pp")
    assert numbered_along(every) == ["tp", "cp", "dp", "pp"]
