"""Accounts: what communications sent in all, and what ran them; of those that nobody disturbs also what they take."""

from __future__ import annotations

from collections.abc import Callable, Iterator

from simulator.engine.cast import Communication, Everyone
from simulator.engine.folding import Folding
from simulator.engine.network import Network, Stretch
from simulator.engine.pace import Price
from simulator.matching import Asked, asked
from simulator.mesh import family
from simulator.plan import Plan
from simulator.schedule import Collective, Op, Recv, Schedule, Send
from simulator.timeline import Columns


class Accounts:
    """Of *schedule* as *cast* plays it on *network*.

    *axis_bytes* is what all ranks together sent, by family of axis, *algorithms* by (axis family, kind, bytes) of a
    collective the algorithm and protocol that ran it.
    """

    def __init__(self, schedule: Schedule, cast: Everyone | Folding, network: Network) -> None:
        self.schedule, self.cast, self.network = schedule, cast, network
        self.axis_bytes: dict[str, float] = {}
        self.algorithms: dict[tuple[str, str, float], tuple[str, str]] = {}
        self._undisturbed: dict[int, dict[Asked, Plan]] = {}
        self._over: dict[tuple[int, str], dict[Asked, tuple[Collective, int]]] = {}

    def add(self, name: Communication, op: Op, plan: Plan, times: int) -> None:
        """What *op* asked of the network went on *times* times, as *plan* says."""
        if isinstance(op, Collective | Send | Recv):
            axis = family(op.over)
            sent = times * plan.sent_bytes * self.cast.copies(name)
            self.axis_bytes[axis] = self.axis_bytes.get(axis, 0.0) + sent
            if isinstance(op, Collective):
                self.algorithms[axis, op.kind, op.nbytes] = plan.algorithm, plan.protocol

    def undisturbed(self, rank: int, axis: str, *, speaks: bool) -> dict[Asked, Price]:
        """What the collectives of *rank* over *axis*, which nobody disturbs, take, by what they ask for.

        They are not simulated one by one, and booked with the one rank of their group that *speaks* for all.
        """
        prices = {}
        for what, (op, count) in self._collectives(self.schedule.program_of[rank], axis).items():
            name = self.cast.communication(rank, op)
            plan = self.cast.plan(name, op)
            prices[what] = Price(plan.alone, plan.sms)
            if speaks:
                self._undisturbed.setdefault(rank, {})[what] = plan
                self._book(name, op, plan, count * self.schedule.steps)
        return prices

    def _book(self, name: Communication, op: Op, plan: Plan, times: int) -> None:
        self.add(name, op, plan, times)
        for phase in plan.phases:
            for flow in phase.flows:
                self.network.carried(flow, phase.nbytes * times)

    def _collectives(self, index: int, axis: str) -> dict[Asked, tuple[Collective, int]]:
        """The collectives of a program over *axis*, one of those that ask for the same and how many there are."""
        if (index, axis) not in self._over:
            found = self._over[index, axis] = {}
            for ops, times in self.schedule.programs[index].templates():
                for op in ops:
                    if isinstance(op, Collective) and op.over == axis:
                        found[asked(op)] = op, found.get(asked(op), (op, 0))[1] + times
        return self._over[index, axis]

    def stretches(self, columns: Callable[[int], Columns]) -> Iterator[Stretch]:
        """What collectives that nobody disturbs laid on the links, by the *columns* of a rank."""
        for rank, plans in self._undisturbed.items():
            plan_at = self.schedule.program(rank).per_op(
                lambda op, plans=plans: plans.get(asked(op)) if isinstance(op, Collective) else None  # type: ignore[misc]
            )
            own = columns(rank)
            for op, start in zip(own.op.tolist(), own.begin.tolist(), strict=True):
                plan = plan_at[op]
                for begin, end, phase in plan.moments(start) if plan else ():
                    for flow in phase.flows if end > begin else ():
                        yield Stretch(begin, end, flow, phase.nbytes / (end - begin))
