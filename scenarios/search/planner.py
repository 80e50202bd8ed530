"""The planner: candidates of a method, their bounds, the estimates of the promising ones, simulations of the best.

Candidates are estimated in order of their lower bounds, until no bound is below the estimates of the best so many. So
the best by estimate are the same as if all were estimated. A bound costs less the lower it is: that of all kernels,
shared equally by the pipeline ranks, is found for all, those of the rank with most kernels, and of whole layers with
their exchanges, for those that come to the front.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import closing
from dataclasses import field
from functools import cached_property, partial
from heapq import heapify, heappop, heappush
from math import inf
from pathlib import Path
from typing import Any, Protocol

from clustersim.scenarios.alternatives.candidate import MEMORY, Candidate
from clustersim.scenarios.alternatives.space import DEGREES, Space
from clustersim.scenarios.run.execution import execute
from clustersim.scenarios.run.processes import Failure
from clustersim.scenarios.scenario import Scenario
from clustersim.scenarios.search import candidate_evaluation
from clustersim.scenarios.search.candidate_evaluation import LEVELS, Bound, Journal, Priced, Task, chunks
from clustersim.scenarios.specification.plan import ALL, AUTO, METHODS
from clustersim.simulator.reading.dataclass import dataclass
from clustersim.simulator.reading.errors import ScenarioError
from clustersim.simulator.reading.lookup import attribute_of

BOUNDED_AT_ONCE, ESTIMATED_AT_ONCE = 500, 1
"""Candidates of a job. They do not depend on the number of processes, so that every number gives the same answer."""

REFINED_AT_ONCE = 8
"""Candidates of which better bounds are found at once."""

ROUND = 4
"""Candidates that are estimated before the bounds of the others are looked at again: few, since an estimate takes a
thousand times as long as a bound, and still one for each of some processes."""

MOST_SIMULATED, MARGIN = 20, 0.015
"""Candidates that are simulated at most if their number is not given, and how far above the best simulation an estimate
of one of them may be: in 40 random jobs (tests/benchmarks/plan_random_jobs.py) the best was estimated at most 1.2 %
above its simulation."""


ONE_REPLICA = {"parallelism.dp": 1}
"""Divides every batch: candidates have replicas of their own."""


def loaded(name: str, settings: list[str] | None = None) -> Scenario:
    """Return the scenario at a path, or the shipped one of that name, to plan for.

    If only its own number of replicas is wrong, it has one; a plan that varies degrees finds others. Raises
    `ScenarioError`.
    """
    try:
        return Scenario.load(name, options=settings)
    except ScenarioError as error:
        try:
            found = Scenario.load(name, ONE_REPLICA, settings)
        except ScenarioError:
            raise error from None
        search = found.specification.plan.search
        if found.variants or (search and not set(DEGREES) & set(search)):
            raise
        return found


class Watch(Protocol):
    """What a planner reports to; `scenarios.commands.terminal.Progress` shows it."""

    def begin(self, title: str, parts: int = 0) -> None:
        """A part of the work begins, in *parts*."""

    def advance(self) -> None:
        """One of them is done."""

    def expect(self, left: int) -> None:
        """So many parts are *left*, as it seems now."""


class Unwatched:
    """Nobody looks on."""

    def begin(self, title: str, parts: int = 0) -> None:
        """Nothing is shown."""

    def advance(self) -> None:
        """Nothing is shown."""

    def expect(self, left: int) -> None:
        """Nothing is shown."""


@dataclass(frozen=True)
class Judged:
    """A simulated *candidate*: its *estimate* (s) and the *result* of its simulation, with the objective's *value*."""

    candidate: Candidate
    estimate: float
    result: Mapping[str, Any]
    value: float

    @property
    def seconds(self) -> float:
        """The simulated step time, s."""
        return float(self.result["step_time_s"])


class Frontier:
    """Candidates in order of their lower bounds, of which *least* are those of *candidates*.

    *better*: each returns better bounds, never lower ones than those before; they are asked for as candidates come to
    the front, some at once.
    """

    def __init__(
        self,
        candidates: Sequence[Candidate],
        least: Sequence[float],
        *better: Callable[[Sequence[Candidate]], Sequence[float]],
    ) -> None:
        self._candidates, self._better = candidates, better
        # (bound, level, number); of equal bounds the one of the lowest level comes first: its best one may be higher
        self._heap = [(bound, 0, number) for number, bound in enumerate(least)]
        heapify(self._heap)

    def least(self) -> float:
        """Return the least bound; infinite if nothing is left."""
        self._refine()
        return self._heap[0][0] if self._heap else inf

    def take(self, count: int, most: float = inf) -> list[Candidate]:
        """Return *count* candidates with the least bounds, fewer if no more are up to *most*, and remove them."""
        found: list[Candidate] = []
        while len(found) < count and self._heap and self.least() <= most:
            found.append(self._candidates[heappop(self._heap)[2]])
        return found

    def count(self, most: float) -> int:
        """Return how many are left with a bound of at *most* so much."""
        return sum(entry[0] <= most for entry in self._heap)

    def _refine(self) -> None:
        """Find better bounds until the least one is of the last level."""
        while self._heap and (level := self._heap[0][1]) < len(self._better):
            some: list[int] = []
            while self._heap and self._heap[0][1] == level and len(some) < REFINED_AT_ONCE:
                some.append(heappop(self._heap)[2])
            for number, bound in zip(some, self._better[level]([self._candidates[one] for one in some]), strict=True):
                heappush(self._heap, (bound, level + 1, number))


@dataclass
class Planner:
    """Plans for *scenario* by its section ``plan``, in *processes*, or *on* a cluster.

    *folder*: where the journal is.
    """

    scenario: Scenario
    processes: int = 1
    on: str = ""
    folder: Path | None = None
    watch: Watch = field(default_factory=Unwatched)

    def __post_init__(self) -> None:
        self.plan = self.scenario.specification.plan
        self.space = Space(self.scenario)
        self.space.check()
        if fault := candidate_evaluation.objective_fault(self.scenario, self.plan):
            raise self.scenario.document.error(("plan", "objective"), fault)
        self.source = candidate_evaluation.packed(self.scenario)
        self.journal = Journal(self.folder, self.source)
        cluster = self.scenario.cluster()
        capacity = min(gpu.memory_bytes for gpu in cluster.count(cluster.gpus))
        self.within = capacity * (1.0 - self.plan.memory_margin)
        self.bounds: dict[str, Bound] = {}
        self._least_seconds = [dict[str, float]() for _ in LEVELS]

    @cached_property
    def candidates(self) -> list[Candidate]:
        """The candidates of the method, each once."""
        method = attribute_of(METHODS, self.plan.method, "candidates")
        if method is None:
            raise ScenarioError(f"plan.method {self.plan.method} has no function candidates(space)")
        found = {candidate.key: candidate for candidate in method(self.space)}
        if not found:
            raise ScenarioError("there is nothing to plan: no candidate")
        return list(found.values())

    # The three stages; each does what the journal does not have.

    def bound(self, candidates: Sequence[Candidate]) -> None:
        """Find the lower bounds of *candidates*."""
        new = [candidate for candidate in candidates if candidate.key not in self.bounds]
        for some, found in self._run(candidate_evaluation.bounds, new, BOUNDED_AT_ONCE):
            self.bounds |= {one.key: bound for one, bound in zip(some, found, strict=True)}

    def least_seconds(self, candidates: Sequence[Candidate], level: int = 0) -> list[float]:
        """Return the lower bounds of the step times of *candidates* that no rule rejects, those of *level*."""
        if not level:
            return [self.bounds[one.key].seconds for one in candidates]
        known = self._least_seconds[level]
        new = [candidate for candidate in candidates if candidate.key not in known]
        for some, found in self._run(candidate_evaluation.times, new, BOUNDED_AT_ONCE, level=level):
            known |= {one.key: seconds for one, seconds in zip(some, found, strict=True)}
        return [known[one.key] for one in candidates]

    def maybe_faster(self, candidates: Sequence[Candidate], seconds: float, most: int) -> list[Candidate]:
        """Return those of *candidates*, *most* of them, in order, whose bounds are below *seconds*."""
        found: list[Candidate] = []
        left = list(candidates)
        while left and len(found) < most:
            some, left = left[:REFINED_AT_ONCE], left[REFINED_AT_ONCE:]
            for level in range(len(LEVELS)):
                some = [
                    one for one, least in zip(some, self.least_seconds(some, level), strict=True) if least < seconds
                ]
            found += some
        return found[:most]

    def estimate(self, candidates: Sequence[Candidate], within: float | None = None) -> None:
        """Estimate *candidates*, the time of those that need at most *within* bytes."""
        limit = self.within if within is None else within
        new = [one for one in candidates if self._must_estimate(one, limit)]
        for some, found in self._run(candidate_evaluation.estimates, new, ESTIMATED_AT_ONCE, limit):
            for candidate, priced in zip(some, found, strict=True):
                self.journal.estimate(candidate, priced)

    def _must_estimate(self, candidate: Candidate, limit: float) -> bool:
        known = self.journal.estimated.get(candidate.key)
        return known is None or (known.seconds is None and not known.kind and known.nbytes <= limit)

    def simulate(self, candidates: Sequence[Candidate]) -> list[Judged]:
        """Return *candidates* simulated, in their order."""
        new = [one for one in candidates if one.key not in self.journal.simulated]
        for some, found in self._run(candidate_evaluation.simulations, new, 1):
            self.journal.simulation(some[0], found[0])
        tokens = self.scenario.specification.training.tokens or 0.0  # type: ignore[union-attr]
        judged = []
        for one in candidates:
            result = self.journal.simulated[one.key]
            estimated = self.journal.estimated[one.key].seconds if one.key in self.journal.estimated else None
            judged.append(Judged(one, inf if estimated is None else estimated, result, self._value(result, tokens)))
        return judged

    def _value(self, result: Mapping[str, Any], tokens: float) -> float:
        return candidate_evaluation.value(self.plan.objective, result, tokens)

    def _run(
        self,
        function: Callable[[Task], Sequence[Any]],
        candidates: Sequence[Candidate],
        size: int,
        within: float = inf,
        level: int = 0,
    ) -> Iterable[tuple[Sequence[Candidate], Sequence[Any]]]:
        """Yield some of *candidates* with what *function* returns for them, as jobs end."""
        parts = chunks([one.values for one in candidates], size)
        jobs = [(function, Task(self.source, values, within, level)) for values in parts]
        with closing(execute(jobs, min(self.processes, len(jobs)), self.on)) as outcomes:
            for index, found in outcomes:
                if isinstance(found, Failure):
                    raise ScenarioError(f"a candidate failed: {found.message}")
                yield candidates[index * size : (index + 1) * size], found
                self.watch.advance()

    # The search.

    def best(self) -> list[Judged]:
        """Return the best candidates, simulated, the best first.

        One that needs more memory in the simulation than there is makes room for the next one by estimate.
        """
        self.watch.begin(f"checking {len(self.candidates):,} candidates", -(-len(self.candidates) // BOUNDED_AT_ONCE))
        self.bound(self.candidates)
        given = {ALL: len(self.open), AUTO: min(self.plan.top, MOST_SIMULATED)}
        named = given.get(str(self.plan.simulate))
        wanted = max(1, int(self.plan.simulate) if named is None else named)
        tried = wanted
        while True:
            chosen = self.best_by_estimate(tried)
            judged = self._fitting(chosen)
            if len(judged) >= wanted or len(chosen) < tried:
                break
            tried += wanted - len(judged)
        if self.plan.simulate == AUTO and judged:
            limit = min(map(self._simulated, judged)) * (1 + MARGIN)
            judged += self._fitting(self.best_by_estimate(tried + MOST_SIMULATED - wanted, below=limit)[tried:])
        return sorted(judged, key=lambda one: one.value)

    def _fitting(self, candidates: Sequence[Candidate]) -> list[Judged]:
        """Return those of *candidates* that fit, simulated."""
        self.watch.begin(f"simulating the best {len(candidates)}", len(candidates))
        return [one for one in self.simulate(candidates) if one.result["need_bytes"] <= self.within]

    def _simulated(self, judged: Judged) -> float:
        """Return what `_estimated` estimates."""
        return float(judged.result["need_bytes"]) if self.plan.objective == "memory" else judged.seconds

    @property
    def open(self) -> list[Candidate]:
        """The candidates that neither a rule nor the bound of memory rejects."""
        found = [one for one in self.candidates if not self.bounds[one.key].kind]
        return [one for one in found if self.bounds[one.key].nbytes <= self.within]

    def frontier(self, candidates: Sequence[Candidate]) -> Frontier:
        """Return open *candidates* by the lower bounds of the objective."""
        if self.plan.objective == "memory":
            return Frontier(candidates, [self.bounds[one.key].nbytes for one in candidates])
        return self.by_seconds(candidates)

    def by_seconds(self, candidates: Sequence[Candidate]) -> Frontier:
        """Return *candidates* that no rule rejects by the lower bounds of their step times."""
        better = [partial(self.least_seconds, level=level) for level in range(1, len(LEVELS))]
        return Frontier(candidates, self.least_seconds(candidates), *better)

    def _estimated(self, priced: Priced) -> float:
        assert priced.seconds is not None
        return priced.nbytes if self.plan.objective == "memory" else priced.seconds

    def fitting(self, tried: int | None = None) -> Candidate | None:
        """Return a candidate that fits, the fastest of some that need little; None if none does of those *tried*.

        They are tried in the order of their bounds of memory, by default all.
        """
        self.bound(self.candidates)
        left = sorted(self.open, key=lambda one: self.bounds[one.key].nbytes)[:tried]
        while left:
            some, left = left[:ROUND], left[ROUND:]
            self.estimate(some)
            timed = [(seconds, one) for one in some if (seconds := self.estimated_seconds(one)) is not None]
            if timed:
                return min(timed, key=lambda pair: pair[0])[1]
        return None

    def estimated_seconds(self, candidate: Candidate) -> float | None:
        """Return the estimated step time of *candidate*; None without an estimate."""
        priced = self.journal.estimated.get(candidate.key)
        return priced.seconds if priced else None

    def fastest(self, among: Sequence[Candidate], enough: float = inf) -> Candidate | None:
        """Return the best by estimate of those *among* the open candidates; None if there is none that fits.

        It is the best of all, or of *enough* with the lowest bounds and what has been estimated before.
        """
        return next(iter(self.best_by_estimate(1, among, enough=enough)), None)

    def best_by_estimate(
        self,
        wanted: int,
        among: Sequence[Candidate] | None = None,
        *,
        below: float = inf,
        enough: float = inf,
    ) -> list[Candidate]:
        """Return so many candidates, the best by estimate; fewer if there are no more with an estimate up to *below*.

        *among*: open candidates, by default all. Those that have been estimated before set the limit for the others.
        As soon as so many fit, no more than *enough* are estimated, those with the lowest bounds.
        """
        whole = among is None
        if among is None:
            among = self.open
            self.watch.begin(f"estimating the best of {len(among):,} candidates")
        number = {one.key: place for place, one in enumerate(among)}
        fitting = list[tuple[float, int, Candidate]]()

        def add(some: Iterable[Candidate]) -> None:
            """Add those of *some* that fit, by estimate and, of equal ones, in the order of *among*."""
            for one in some:
                priced = self.journal.estimated[one.key]
                if priced.seconds is not None and not self.kind(one) and self._estimated(priced) <= below:
                    fitting.append((self._estimated(priced), number[one.key], one))

        add(one for one in among if one.key in self.journal.estimated)
        left = self.frontier([one for one in among if one.key not in self.journal.estimated])
        estimated = 0
        while len(fitting) < wanted or estimated < enough:
            worst = sorted(fitting)[wanted - 1][0] if len(fitting) >= wanted else below
            some = left.take(ROUND, worst)
            if not some:
                break
            if whole:
                self.watch.expect(-(-(len(some) + left.count(worst)) // ESTIMATED_AT_ONCE))
            self.estimate(some)
            estimated += len(some)
            add(some)
        return [one for _, _, one in sorted(fitting)[:wanted]]

    def rejected(self) -> dict[str, list[Candidate]]:
        """Return the rejected candidates by kind."""
        found: dict[str, list[Candidate]] = {}
        for one in self.candidates:
            if kind := self.kind(one):
                found.setdefault(kind, []).append(one)
        return found

    def kind(self, candidate: Candidate) -> str:
        """Return why *candidate* is rejected; empty if it is not."""
        bound, priced = self.bounds[candidate.key], self.journal.estimated.get(candidate.key)
        if bound.kind:
            return bound.kind
        if bound.nbytes > self.within:
            return MEMORY
        if priced is None:
            return ""
        return priced.kind or (MEMORY if priced.nbytes > self.within else "")
