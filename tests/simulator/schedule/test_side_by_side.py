"""Schedules side by side: ranks and axes of several jobs, steps written out, servers and starts of each job."""

from typing import Any

import numpy as np
import pytest

from clustersim.simulator.hardware.kernel import memory_bound
from clustersim.simulator.reading.errors import ScheduleError
from clustersim.simulator.schedule.mesh import Mesh
from clustersim.simulator.schedule.ops import Collective, Compute, Delay
from clustersim.simulator.schedule.pipeline_order import PLACEHOLDER_TEXT
from clustersim.simulator.schedule.program import OpBlock, Program, TemplatedOps
from clustersim.simulator.schedule.schedule import Part, Schedule, repeated, side_by_side


def job(ranks: int, server: str | None = None, **fields: Any) -> Schedule:
    work = Compute(name=f"F{PLACEHOLDER_TEXT}", kernels=(memory_bound(1.0),), server=server)
    reduce = Collective(name="sum", kind="all_reduce", over="dp", nbytes=8.0, stream="dp", after=("F0", "F1"))
    ops = TemplatedOps([*(OpBlock((work,), number) for number in (0, 1)), OpBlock((reduce,))])
    return Schedule(Mesh.regular({"dp": ranks}), (Program("rank", ops),), (0,) * ranks, **fields)


def test_steps_are_written_out_with_names_of_their_own() -> None:
    program = repeated(job(2).programs[0], 2)
    assert [op.name for op in program.ops] == ["0:F0", "0:F1", "0:sum", "1:F0", "1:F1", "1:sum"]
    assert [op.after for op in program.ops if isinstance(op, Collective)] == [("0:F0", "0:F1"), ("1:F0", "1:F1")]


def test_every_stream_waits_for_the_start() -> None:
    ops = repeated(job(2).programs[0], 1, start=0.5).ops
    delays = [op for op in ops if isinstance(op, Delay)]
    assert list(ops[:2]) == delays
    assert {op.stream for op in delays} == {"compute", "dp"}
    assert {op.seconds for op in delays} == {0.5}


def test_ranks_are_numbered_on_and_axes_hold_the_groups_of_all() -> None:
    both = side_by_side([Part(job(2), 1), Part(job(3), 2)])
    assert both.schedule.mesh.world_size == 5
    assert tuple(both.schedule.mesh.axes["dp"].groups) == ((0, 1), (2, 3, 4))
    assert both.schedule.program_of == (0, 0, 1, 1, 1)
    assert both.ranks(1) == range(2, 5)
    assert both.step_of(1, 2, np.arange(6)).tolist() == [0, 0, 0, 1, 1, 1]


def test_like_jobs_share_programs_unless_times_or_starts_differ() -> None:
    def programs(*parts: Part) -> int:
        return len(side_by_side(parts).schedule.programs)

    one = job(2)
    assert programs(Part(one, 2, alike="a"), Part(one, 2, alike="a")) == 1
    assert programs(Part(one, 2, alike="a"), Part(one, 2)) == 2
    assert programs(Part(one, 2, alike="a"), Part(one, 3, alike="a")) == 2
    assert programs(Part(one, 2, 0.1, alike="a"), Part(one, 2, alike="a")) == 2


def test_servers_are_those_of_the_job() -> None:
    served = job(2, server="nic")
    both = side_by_side([Part(served, 1, alike="a"), Part(served, 1, alike="a")]).schedule
    assert {op.at_server for _, op in both.ops()} - {None} == {"0.nic", "1.nic"}


def test_asynchronous_schedules_are_refused() -> None:
    with pytest.raises(ScheduleError, match="cannot be repeated beside other jobs"):
        side_by_side([Part(job(2, batches=3, filling=1), 2)])
