"""A combined plan as a schedule: the simulation takes what the programme says, within the budget."""

from dataclasses import dataclass

import pytest

from clustersim.simulator.analysis.memory import curve, peak
from clustersim.simulator.analysis.metrics import breakdown
from clustersim.simulator.schedule.check import check
from clustersim.simulator.schedule.ops import Copy
from clustersim.simulator.simulate import simulate
from clustersim.topologies.uniform_and_tree import uniform
from clustersim.workloads.architectures.timed_models import UnitLayer
from clustersim.workloads.memory.chain import LayerSeconds, stage_chain
from clustersim.workloads.memory.chain_execution import executed_with_copies
from clustersim.workloads.memory.chain_sequence import Kind, observed
from clustersim.workloads.memory.compute import compute
from clustersim.workloads.memory.offload_and_recompute import KARMA, POFO, SWAPPED, combined
from clustersim.workloads.memory.offloaded_activations import offloaded_by
from clustersim.workloads.memory.recompute import recompute_by
from clustersim.workloads.operators.model import Model
from clustersim.workloads.operators.stages import stages_of
from clustersim.workloads.parallelism.pipeline import pipeline_parallel
from clustersim.workloads.pipelines.one_f_one_b import one_f_one_b


@dataclass(frozen=True)
class Kept(UnitLayer):
    """A layer that keeps more than its input."""

    kept: float = 0.0

    def activation_bytes(self, micro_batch_size):
        return self.kept


def model(sizes):
    """Layers of (F s, B s, output B, kept B)."""
    layers = [Kept(f"layer {n}", f, b, 0, out, kept=kept) for n, (f, b, out, kept) in enumerate(sizes)]
    return Model("kept", layers, 0.0, optimizer_seconds=0.0)


EQUAL = model([(1.0, 2.0, 2.0, 10.0)] * 10)
UNEQUAL = model([(1, 2, 4, 8), (2, 5, 1, 12), (1, 1, 6, 9), (3, 6, 2, 14), (1, 2, 2, 4), (2, 3, 1, 11), (1, 3, 3, 7)])


def seconds(what):
    return {
        one.name: LayerSeconds(one.forward_seconds, one.backward_seconds, one.forward_seconds) for one in what.layers
    }


def planned(what, sequences, order, bandwidth):
    schedule = compute(what, order, micro_batch_size=1, stages=stages_of(what, order.stages, "balanced"))
    schedule = recompute_by(schedule, what, sequences, micro_batch_size=1)
    if order.stages > 1:
        schedule = pipeline_parallel(schedule, what, micro_batch_size=1)
    schedule = offloaded_by(schedule, sequences)
    check(schedule)
    return schedule, simulate(schedule, uniform(order.stages, bandwidth, 0.0, 1))


@pytest.mark.parametrize("rules", [POFO, KARMA, SWAPPED], ids=["pofo", "karma", "swapped"])
@pytest.mark.parametrize("what", [EQUAL, UNEQUAL], ids=["equal", "unequal"])
@pytest.mark.parametrize(("bandwidth", "share"), [(1.0, 0.5), (3.0, 0.45), (12.0, 0.5)])
def test_one_micro_batch_takes_the_seconds_and_the_memory_of_the_programme(rules, what, bandwidth, share):
    chain = stage_chain(what.layers, None, 1, seconds(what))
    budget = share * sum(layer.kept for layer in what.layers)
    sequence = combined(chain, budget, bandwidth, rules=rules)
    expected = executed_with_copies(sequence, chain, bandwidth)
    schedule, timeline = planned(what, {0: sequence}, one_f_one_b(1, 1), bandwidth)
    assert timeline.makespan == pytest.approx(expected.seconds)
    assert breakdown(timeline)["copy"] == pytest.approx(expected.waited)
    memory = peak(timeline)
    assert memory.peak.nbytes <= budget
    assert memory.host_bytes <= expected.host_peak
    copies = [op for op in schedule.programs[0].ops if isinstance(op, Copy)]
    assert sum(op.nbytes for op in copies if op.to == "host") == pytest.approx(expected.copied)
    for host in (False, True):
        assert abs(curve(timeline, 0, host=host).total[-1]) < 1e-9
    # the sequence can be read back from the program
    assert str(observed(schedule.programs[0], 0, [layer.name for layer in what.layers])) == str(sequence)


def test_micro_batches_and_stages_share_the_plan():
    """On every stage the peak is within its budget, and nothing stays behind."""
    order, budget, bandwidth = one_f_one_b(2, 6), 60.0, 6.0
    sequences = {}
    for stage, layers in enumerate(stages_of(EQUAL, 2, "balanced")):
        chain = stage_chain(layers, EQUAL.layers[4] if stage else None, 1, seconds(EQUAL))
        sequences[stage] = combined(chain, budget, bandwidth, 2 - stage)
    assert any(one.kind is Kind.OFFLOAD for one in sequences[0])
    schedule, timeline = planned(EQUAL, sequences, order, bandwidth)
    assert sum(isinstance(op, Copy) for op in schedule.programs[0].ops) >= 12
    assert all(nbytes <= budget for nbytes in peak(timeline).stages)
    for rank in range(2):
        for host in (False, True):
            assert abs(curve(timeline, rank, host=host).total[-1]) < 1e-9
