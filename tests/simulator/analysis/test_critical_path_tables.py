"""What is printed of a critical path."""

import re
from dataclasses import replace

import pytest

from clustersim.simulator.analysis.critical_path import critical_path, slack
from clustersim.simulator.analysis.critical_path_tables import lines, tables
from clustersim.simulator.analysis.timeline import Timeline
from clustersim.simulator.engine.pricing import Variation
from clustersim.simulator.schedule.mesh import Mesh
from clustersim.simulator.schedule.program import Program
from clustersim.simulator.schedule.schedule import Schedule
from clustersim.simulator.simulate import simulate
from clustersim.topologies.uniform_and_tree import uniform
from tests.simulator.analysis.test_critical_path import data_parallel
from tests.simulator.conftest import pipeline


def printed(timeline: Timeline) -> str:
    return tables(critical_path(timeline), slack(timeline))


def exposed(steps: int = 1) -> Timeline:
    """1 s forward, 2 s backward, 6 s of reduction beside the backward pass of the first layer, 0.5 s of optimizer."""
    schedule = replace(data_parallel(4, nbytes=4e9), steps=steps)
    cluster = uniform(gpus=4, hosts=0, bandwidth=1e9, latency=0.0)
    return simulate(schedule, cluster, algorithms={"all_reduce": "ring"})


def test_three_lines_say_what_it_is_made_of_where_and_what_would_help() -> None:
    assert lines(critical_path(exposed())) == [
        "critical path: dp 63.2%, compute 31.6%, optimizer 5.3%",
        "  mostly on rank 0 (all) 100.0%; second 21.1%, first 10.5%",
        "  would gain at most: free dp communication 6 s (63.2%), GPUs twice as fast 1.75 s (18.4%)",
    ]


def test_lines_name_a_straggler() -> None:
    cluster = uniform(gpus=4, hosts=0, bandwidth=1e9, latency=0.0)
    line = simulate(data_parallel(4), cluster, variation=Variation(stragglers={2: 2.0}))
    assert "mostly on rank 2 (all) 100.0%" in lines(critical_path(line))[1]


def test_tables_of_a_pipeline() -> None:
    text = printed(simulate(pipeline(2, 2), uniform(gpus=2, hosts=0, bandwidth=1e9, latency=0.0)))
    assert (
        text
        == """\
920 ms; 8 spans on 2 of 2 ranks

by kind    time   share  spans without slack
compute  900 ms   97.8%          100.0% of 8
pp        20 ms    2.2%          100.0% of 8
all      920 ms  100.0%         100.0% of 16

by layer    time   share
no layer  920 ms  100.0%

by rank             time  share
rank 0 (stage 0)  510 ms  55.4%
rank 1 (stage 1)  410 ms  44.6%

longest stretches    time  rank  from     to  mostly
           at 0 s  100 ms  0     F0       F0  compute 100%
        at 100 ms  410 ms  1     recv F0  B1  compute 98%
        at 510 ms  410 ms  0     recv B1  B0  compute 98%

longest ops    time  rank  op       layer  kind
        1 x  200 ms  0     B0              compute
        1 x  200 ms  0     B1              compute
        1 x  200 ms  1     B1              compute
        1 x  100 ms  0     F0              compute
        1 x  100 ms  1     F0              compute
        1 x  100 ms  1     F1              compute
        1 x   10 ms  0     recv B1         pp
        1 x   10 ms  1     recv F0         pp"""
    )


def test_tables_count_a_step_of_several_and_spans_of_all_ranks() -> None:
    text = printed(exposed(steps=3))
    assert text.startswith("9.5 s, the mean of 2 steps; 12 spans on 1 of 4 ranks")
    assert re.search(r"dp +6 s +63\.2% +100\.0% of 12", text)
    # the backward pass of the first layer has slack, on four ranks in three steps
    assert re.search(r"compute +3 s +31\.6% +66\.7% of 36", text)
    assert re.search(r"3 x +18 s +0 +reduce +dp", text)


def test_of_a_timeline_that_takes_no_time_nothing_is_said() -> None:
    schedule = Schedule(Mesh.regular({"dp": 2}), (Program("all", ()),), (0, 0))
    line = simulate(schedule, uniform(gpus=2, hosts=0, bandwidth=1e9, latency=0.0))
    assert lines(critical_path(line)) == []
    assert printed(line) == "no critical path: the timeline takes no time"


@pytest.mark.parametrize("ranks", [12, 40])
def test_of_many_ranks_the_first_ten_are_listed(ranks: int) -> None:
    text = printed(simulate(pipeline(ranks, 1), uniform(gpus=ranks, hosts=0, bandwidth=1e9, latency=0.0)))
    assert f"{ranks - 10} others" in text
