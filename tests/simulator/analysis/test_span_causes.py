"""Causes against a search through all predecessors, written down op by op."""

from collections.abc import Iterator

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from clustersim.simulator.analysis.intervals import ONE_INSTANT
from clustersim.simulator.analysis.span_causes import Causes, SpanPlace
from clustersim.simulator.analysis.timeline import NO_COMMUNICATION, Columns, Timeline
from clustersim.simulator.engine.pricing import Variation
from clustersim.simulator.hardware.kernel import measured
from clustersim.simulator.reading.errors import SimulatorError
from clustersim.simulator.schedule.mesh import Mesh
from clustersim.simulator.schedule.ops import Compute, Recv, Send
from clustersim.simulator.schedule.program import Program
from clustersim.simulator.schedule.schedule import Schedule
from clustersim.simulator.simulate import simulate
from clustersim.topologies.uniform_and_tree import uniform
from tests.simulator.analysis.random_schedules import ENGINES, run, schedules
from tests.simulator.engine.folding.test_folding import FABRICS, cluster_of
from tests.simulator.engine.folding.test_folding import schedules as contended

Key = tuple[int, int, int]
"""Rank, step and op."""


class Search:
    """All spans of an unfolded timeline by key, and what comes before each."""

    def __init__(self, timeline: Timeline) -> None:
        self.schedule = timeline.schedule
        self.instant = ONE_INSTANT * timeline.makespan
        self.ready: dict[Key, float] = {}
        self.begin: dict[Key, float] = {}
        self.end: dict[Key, float] = {}
        self.members: dict[int, list[Key]] = {}
        for rank in range(timeline.world_size):
            own = timeline.of(rank)
            for op, step, ready, begin, end, number in zip(*(column.tolist() for column in own), strict=True):
                self.ready[rank, step, op], self.begin[rank, step, op], self.end[rank, step, op] = ready, begin, end
                if number != NO_COMMUNICATION:
                    self.members.setdefault(number, []).append((rank, step, op))

    def before(self, key: Key) -> Iterator[Key]:
        """On its own rank, first on its stream, then in order of `after`."""
        rank, step, op = key
        ops = self.schedule.program(rank).ops
        same = [i for i in range(len(ops)) if ops[i].stream == ops[op].stream]
        place = same.index(op)
        if place or step:
            last = rank, step - (place == 0), same[place - 1]
            yield self.sender(last) if self.end[last] > self.ready[key] + self.instant else last
        names = [one.name for one in ops]
        for name in ops[op].after:
            if ops[names.index(name)].stream != ops[op].stream:
                yield rank, step, names.index(name)

    def sender(self, key: Key) -> Key:
        """The send of the receive *key*, whose bytes are on their way."""
        (found,) = (other for party in self.members.values() if key in party for other in party if other != key)
        assert isinstance(self.schedule.program(key[0]).ops[key[2]], Recv)
        assert isinstance(self.schedule.program(found[0]).ops[found[2]], Send)
        return found

    def is_buffered(self, key: Key) -> bool:
        op = self.schedule.program(key[0]).ops[key[2]]
        return isinstance(op, Send) and op.buffered

    def candidates(self, key: Key) -> Iterator[Key]:
        party = next((party for party in self.members.values() if key in party), [key])
        partners = sorted(other for other in party if other != key)
        delivered = any(map(self.is_buffered, partners)) and self.end[key] > self.begin[key]
        if not delivered:
            yield from self.before(key)
        if not self.is_buffered(key):
            for other in partners:
                yield from self.before(other)

    def served(self, key: Key) -> Key | None:
        """The span that left the server as *key* came to it."""
        ops = {other: self.schedule.program(other[0]).ops[other[2]] for other in self.end}
        here = ops[key]
        assert isinstance(here, Compute)
        leaving = [
            other
            for other, op in ops.items()
            if isinstance(op, Compute) and op.server == here.server and self.begin[other] < self.end[other]
        ]
        (found,) = (other for other in leaving if abs(self.end[other] - self.begin[key]) <= self.instant)
        return found

    def cause(self, key: Key) -> Key | None:
        found = list(self.candidates(key))
        latest = max((self.end[other] for other in found), default=0.0)
        op = self.schedule.program(key[0]).ops[key[2]]
        if isinstance(op, Compute) and op.server and self.begin[key] > latest + self.instant:
            return self.served(key)
        return next((other for other in found if self.end[other] >= latest - self.instant), None)


def assert_found(timeline: Timeline) -> None:
    search, causes = Search(timeline), Causes(timeline)
    for rank, step, op in search.end:
        own = causes.spans(rank)
        cause = causes.cause(SpanPlace(rank, int(own.index(step, op))))
        key = None
        if cause is not None:
            there = causes.spans(cause.rank)
            key = cause.rank, int(there.step[cause.span]), int(there.op[cause.span])
            if not own.delivery[own.index(step, op)]:
                assert search.end[key] == pytest.approx(search.begin[rank, step, op], abs=search.instant)
        elif not list(search.before((rank, step, op))):
            assert search.begin[rank, step, op] <= search.instant
            continue
        assert key == search.cause((rank, step, op))


@settings(deadline=None, max_examples=60, suppress_health_check=[HealthCheck.too_slow])
@given(schedules(), ENGINES)
def test_each_span_has_the_cause_that_a_search_finds(schedule: Schedule, engine: str) -> None:
    assert_found(run(schedule, engine))


@settings(deadline=None, max_examples=15, suppress_health_check=[HealthCheck.too_slow])
@given(contended(16), st.sampled_from([0.0, 0.1]), st.sampled_from(FABRICS), ENGINES)
def test_causes_with_contention_and_jitter(schedule: Schedule, jitter: float, fabric: object, engine: str) -> None:
    assert_found(
        simulate(schedule, cluster_of(fabric, 1), variation=Variation(jitter=jitter), fold=False, engine=engine)
    )


def two_at_a_server(priority: int) -> Timeline:
    """Rank 0 is served first, rank 1 then, or before it if it has a higher priority."""

    def program(rank: int) -> Program:
        work = Compute(name="work", kernels=(measured(1.0),))
        served = Compute(name="store", kernels=(measured(2.0 + rank),), server="disk", priority=priority * (1 - rank))
        return Program(f"rank {rank}", (work, served))

    schedule = Schedule(Mesh.regular({"dp": 2}), (program(0), program(1)), (0, 1))
    return simulate(schedule, uniform(gpus=2, hosts=1, bandwidth=1e9, latency=0.0))


@pytest.mark.parametrize(("priority", "first"), [(0, 0), (1, 1)])
def test_what_waits_for_a_server_is_caused_by_what_leaves_it(priority: int, first: int) -> None:
    timeline = two_at_a_server(priority)
    causes = Causes(timeline)
    assert causes.cause(SpanPlace(1 - first, 1)) == SpanPlace(first, 1)
    assert causes.cause(SpanPlace(first, 1)) == SpanPlace(first, 0)
    assert causes.cause(SpanPlace(first, 0)) is None


def test_a_timeline_that_was_measured_has_no_causes() -> None:
    op = Compute(name="work", kernels=(measured(1.0),))
    schedule = Schedule(Mesh.regular({"dp": 1}), (Program("all", (op,)),), (0,))
    late = Timeline.unfolded(schedule, [Columns.of([(0, 0, 0.5, 0.5, 1.5)])])
    with pytest.raises(
        SimulatorError, match=r"nothing ends at 0\.5 s, when work of rank 0 begins; causes are known of"
    ):
        Causes(late).cause(SpanPlace(0, 0))


def test_a_timeline_of_some_ranks_is_refused() -> None:
    timeline = two_at_a_server(0)
    some = Timeline(timeline.schedule, None, {0: timeline.of(0)}, timeline.representative)
    with pytest.raises(SimulatorError, match="the spans of all ranks, but of rank 1 the timeline has 0 of 2"):
        Causes(some)
