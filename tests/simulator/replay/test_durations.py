"""The durations of a replay are those of the engine."""

import numpy as np
import pytest

from clustersim.scenarios import Scenario
from clustersim.scenarios.accuracy.validation import modelled
from clustersim.scenarios.run.running import simulated
from clustersim.simulator.schedule.ops import Compute
from tests.simulator.replay.schedules import KINDS, scenario

VARIED = {"jitter": 0.2, "seed": 3, "stragglers": [{"rank": 1, "slowdown": 1.5}]}


STRAGGLER = {"stragglers": [{"rank": 1, "slowdown": 1.5}]}


@pytest.mark.parametrize("kind", ["ddp", "3-D", "tp, sequence parallel", "pipeline interleaved"])
@pytest.mark.parametrize("simulation", [{}, VARIED, STRAGGLER], ids=["even", "varied", "straggler"])
def test_durations_equal_those_of_the_engine(kind, simulation):
    compare(scenario(*KINDS[kind], simulation=simulation))


def test_on_hosts_too():
    compare(Scenario.load("zhores_vgg16_parameter_server_vs_ring").variants["one_server"])


def compare(one):
    schedule = one.schedule()
    seconds = modelled(one, schedule)
    timeline = simulated(one, schedule)
    for rank in range(timeline.world_size):
        own, program = timeline.of(rank), schedule.program(rank)
        computes = program.column(lambda op: isinstance(op, Compute), np.bool_)[own.op]
        expected = np.array(seconds[rank])[own.step * len(program.ops) + own.op]
        assert (own.end - own.begin)[computes] == pytest.approx(expected[computes], abs=1e-12)
