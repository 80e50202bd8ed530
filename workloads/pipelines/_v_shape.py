"""Orders with stages in a V: rank r of p holds stage r on the way down and stage 2p - 1 - r on the way up.

A row of such an order is a list of passes: a phase and a leg of the V (0 down, 1 up), as in ``F0``. Each pass takes the
next micro-batch of its kind.
"""

from __future__ import annotations

from collections import Counter

from simulator.schedule.order import Action


class Row:
    """The row of *rank* of *stages*, built pass by pass."""

    def __init__(self, rank: int, stages: int) -> None:
        self.legs = (rank, 2 * stages - 1 - rank)
        self.actions: list[Action] = []
        self.overlapped: list[Action] = []
        self._inputs: Counter[tuple[str, int]] = Counter()
        self._pending: list[Action] = []

    def run(self, times: int, *passes: str) -> None:
        """Append *passes*, *times* times.

        ``F1`` is a forward on the way up. ``F0+B1`` is a forward and a backward together. ``W`` is the weights' half of
        the oldest I without one; ``W0`` is that of one leg.
        """
        for _ in range(times):
            for one in passes:
                if one.startswith("W"):
                    self._weights(self.legs if one == "W" else (self.legs[int(one[1])],))
                    continue
                together = [self._next(single[0], int(single[1])) for single in one.split("+")]
                self.actions += together
                self.overlapped += together[:-1]

    def _next(self, phase: str, leg: int) -> Action:
        counted = ("F" if phase == "F" else "backward", leg)
        action = Action(phase, self.legs[leg], self._inputs[counted])
        self._inputs[counted] += 1
        if phase == "I":
            self._pending.append(action._replace(phase="W"))
        return action

    def _weights(self, stages: tuple[int, ...]) -> None:
        weights = next(action for action in self._pending if action.stage in stages)
        self._pending.remove(weights)
        self.actions.append(weights)
