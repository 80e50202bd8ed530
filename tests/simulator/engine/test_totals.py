"""The totals of a run without spans equal those of the same run with all spans."""

import numpy as np
import pytest

from clustersim.scenarios import Scenario
from clustersim.scenarios.run.running import communicator, variation
from clustersim.simulator.analysis import memory, metrics, network_traffic
from clustersim.simulator.reading.errors import SimulatorError
from clustersim.simulator.simulate import SimulationRun

JITTER = {"simulation.jitter": 0.1}
CASES = [
    ("hello", None, {}),
    ("hello", None, {"training.steps": 3}),
    ("lecture_3d_32gpus", None, {}),
    ("gpt2_xl_zero_zhores", "zero_3", {}),
    ("zhores_vgg16_parameter_server_vs_ring", "one_server", {"training.steps": 2}),
]


def simulation(name, variant, changes, **how):
    scenario = Scenario.load(name, {**JITTER, **changes})
    scenario = scenario.variants[variant] if variant else scenario
    network = communicator(scenario)
    return SimulationRun(scenario.schedule(), network, scenario.software, variation(scenario), engine="compiled", **how)


def without_spans(name, variant, changes):
    one = simulation(name, variant, changes)
    one.__dict__["kept"] = {0}
    return one.run()


@pytest.mark.parametrize(("name", "variant", "changes"), CASES)
def test_totals_equal_those_of_the_spans(name, variant, changes):
    whole, few = simulation(name, variant, changes).run(), without_spans(name, variant, changes)
    assert list(few.columns) == [0]
    assert (few.makespan, few.step_time, few.window) == (whole.makespan, whole.step_time, whole.window)
    assert metrics.breakdown(few) == pytest.approx(metrics.breakdown(whole), abs=1e-12 * whole.makespan)
    mine, theirs = memory.peak(few), memory.peak(whole)
    assert (mine.peak.nbytes, mine.stages, mine.host_bytes) == (theirs.peak.nbytes, theirs.stages, theirs.host_bytes)
    assert {k: v for k, v in mine.peak.by_category.items() if v} == {
        k: v for k, v in theirs.peak.by_category.items() if v
    }
    assert few.link_bytes == pytest.approx(whole.link_bytes)
    assert (few.of(0).end == whole.of(0).end).all()


@pytest.mark.parametrize(("name", "variant", "changes"), CASES)
def test_bins_hold_the_mean_use_of_each_kind_of_link(name, variant, changes):
    whole, few = simulation(name, variant, changes).run(), without_spans(name, variant, changes)
    mine, theirs = network_traffic.over_time(few), network_traffic.over_time(whole)
    assert mine.keys() == theirs.keys()
    for kind, use in mine.items():
        mean = float((use.mean * np.diff(use.edges)).sum()) / whole.makespan
        assert mean == pytest.approx(float(theirs[kind].mean.mean()), rel=1e-9)


def test_the_intervals_of_a_flow_have_a_length_and_carry_its_bytes():
    timeline = simulation("hello", None, {}).run()
    intervals, flows = timeline.link_use
    assert len(intervals.begin)
    assert (intervals.end > intervals.begin).all()
    nbytes = np.bincount(intervals.flow, intervals.rate * (intervals.end - intervals.begin), len(flows.starts) - 1)
    of_link = np.repeat(nbytes, np.diff(flows.starts)) * flows.crossings
    carried = np.bincount(flows.links, of_link, len(timeline.cluster.links))
    assert {link: carried[link] for link in timeline.link_bytes} == pytest.approx(dict(timeline.link_bytes))


def test_the_spans_of_a_rank_that_kept_none_are_refused():
    few = without_spans("hello", None, {})
    with pytest.raises(SimulatorError, match=r"spans of rank 3 were not kept.*--ranks"):
        few.of(3)
