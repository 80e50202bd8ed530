"""Runs small schedules on both engines, asserts that they agree, and returns the outcome by name of op."""

import numpy as np
import pytest

from clustersim.simulator.engine.compiled import execution
from clustersim.simulator.engine.folding.folding import Folding
from clustersim.simulator.engine.pricing import Pricing, Variation
from clustersim.simulator.engine.reference import simulation as reference
from clustersim.simulator.engine.setup import Setup, Unfolded
from clustersim.simulator.hardware.kernel import measured
from clustersim.simulator.network.library.communicator import Communicator
from clustersim.simulator.network.library.ideal import ideal
from clustersim.simulator.network.plan import Flow
from clustersim.simulator.schedule.check import check
from clustersim.simulator.schedule.matching import request_of
from clustersim.simulator.schedule.mesh import Mesh
from clustersim.simulator.schedule.ops import Compute
from clustersim.simulator.schedule.program import Program
from clustersim.simulator.schedule.schedule import Schedule
from clustersim.simulator.simulate import packed
from clustersim.topologies.uniform_and_tree import uniform

GB = 1e9
"""The bytes that a port of `crossbar` carries per second."""


def crossbar(gpus, hosts=0):
    """A crossbar with ports of 1 GB/s and no latency."""
    return uniform(gpus=gpus, hosts=hosts, bandwidth=GB, latency=0.0)


def work(name, seconds, **fields):
    return Compute(name=name, kernels=(measured(seconds),), **fields)


def each(*programs, steps=1):
    """A schedule of one rank for each of *programs*, given as ops, on one axis."""
    ranks = tuple(range(len(programs)))
    made = tuple(Program(f"rank {rank}", tuple(ops)) for rank, ops in zip(ranks, programs, strict=True))
    return Schedule(Mesh.regular({"dp": len(programs)}), made, ranks, steps)


def setup(
    schedule, cluster=None, *, fold=False, variation=None, transport=None, fidelity="flow", placement=None, **more
):
    """The setup of *schedule*, checked, on *cluster* (a crossbar unless given)."""
    check(schedule)
    cluster = cluster or crossbar(schedule.mesh.world_size)
    devices = tuple(placement or packed(schedule, cluster))
    communicator = Communicator(cluster, devices, transport or ideal(), fidelity)
    variation = variation or Variation()
    pricing = Pricing(schedule, cluster, devices, None, variation)
    classes = Unfolded(schedule, communicator)
    if fold:
        hosts = {rank: pricing.host(rank) for rank in range(schedule.mesh.world_size)}
        computing = {rank: host for rank, host in hosts.items() if host is not None}
        classes = Folding(schedule, communicator, variation, computing)
    return Setup(schedule, classes, pricing, **more)


def run(made, watch=None):
    """The outcome of the reference engine for the setup *made*; that of the compiled engine is the same."""
    outcome, other = reference.run(made, watch), execution.run(made)
    makespan = max((own.end.max(initial=0.0) for own in outcome.columns.values()), default=0.0)
    for rank, own in outcome.columns.items():
        for name in ("op", "step", "ready", "begin", "end"):
            mine, theirs = getattr(own, name), getattr(other.columns[rank], name)
            assert mine == pytest.approx(theirs, rel=0, abs=1e-9 * np.nan_to_num(makespan), nan_ok=True), (rank, name)
    assert _together(outcome) == _together(other)
    mine, theirs = (
        [(str(o.name), str(request_of(o.op)), o.times) for o in one.communications] for one in (outcome, other)
    )
    assert sorted(mine) == sorted(theirs)
    assert {_unordered(one) for one in outcome.waiting} == {_unordered(one) for one in other.waiting}
    carried, too = (dict(zip(one.flows, one.flow_bytes.tolist(), strict=True)) for one in (outcome, other))
    assert carried == pytest.approx({flow: too[flow] for flow in carried})
    return outcome


def _unordered(waiting):
    return waiting._replace(arrived=frozenset(waiting.arrived))


def _together(outcome):
    """The sets of spans with a common communication, each span as (rank, index)."""
    found = {}
    for rank, own in outcome.columns.items():
        for place in np.flatnonzero((own.communication >= 0) & ~np.isnan(own.end)).tolist():
            found.setdefault(int(own.communication[place]), set()).add((rank, place))
    return {frozenset(members) for members in found.values()}


def spans(made, outcome=None):
    """By (rank, name of the op, step): when the op was ready, began and ended, s; all ranks of the setup *made*."""
    outcome = outcome or run(made)
    assert outcome.waiting == ()
    found = {}
    for rank, representative in enumerate(made.classes.representative):
        ops, own = made.schedule.program(rank).ops, outcome.columns[representative]
        rows = zip(*(column.tolist() for column in own[:5]), strict=True)
        found |= {(rank, ops[op].name, step): times for op, step, *times in rows}
    return found


def ends(made):
    """By (rank, name): when the op of the first step ended, s."""
    return {(rank, name): times[2] for (rank, name, step), times in spans(made).items() if step == 0}


def port(cluster, gpu, bound=float("inf")):
    """A flow out of the port of *gpu*, at most at *bound* bytes/s."""
    link = np.array([cluster.number(f"gpu {gpu}", "switch 0")])
    return Flow(link, np.ones(1), link, np.ones(1), min(GB, bound), bound)
