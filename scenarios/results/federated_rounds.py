"""The rounds of federated learning: how long each takes, what it moves, and how long clients wait for the slowest."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import pairwise
from statistics import fmean
from typing import Any

from clustersim.simulator.analysis.metrics import percentiles
from clustersim.simulator.analysis.timeline import Timeline, op_names
from clustersim.simulator.reading.plain_text import figure, indented
from clustersim.simulator.reading.units import show
from clustersim.simulator.schedule.ops import Recv, Send
from clustersim.simulator.schedule.program import Program
from clustersim.workloads.parallelism.methods.federated import SERVER, arrival_name, update_name


@dataclass(frozen=True)
class FederatedRounds:
    """By round: its *seconds*, the seconds that each of its clients waits for the slowest, the bytes that it moves."""

    seconds: tuple[float, ...]
    waiting: tuple[tuple[float, ...], ...]
    nbytes: tuple[float, ...]

    @property
    def mean_waiting(self) -> float:
        """Seconds that a client waits for the slowest of its round, the mean over all rounds."""
        return fmean(seconds for own in self.waiting for seconds in own)

    def summary(self) -> dict[str, Any]:
        """Return the numbers by the keys of a result."""
        found = {
            "rounds": len(self.seconds),
            "clients_of_a_round": len(self.waiting[0]),
            "round_s": fmean(self.seconds),
            "bytes_of_a_round": fmean(self.nbytes),
            "waiting_s": self.mean_waiting,
        }
        several = len(self.seconds) > 1
        return found | ({"round_percentiles_s": percentiles(self.seconds)} if several else {})

    def report(self) -> str:
        """Return the lines of a report."""
        mean, clients = fmean(self.seconds), len(self.waiting[0])
        several = f" (mean of {len(self.seconds)} rounds)" if len(self.seconds) > 1 else ""
        lines = [f"a round takes {show(mean, 'time')}{several} and moves {show(fmean(self.nbytes), 'size', 3)}"]
        if len(self.seconds) > 1:
            told = ", ".join(f"{name} {show(value, 'time')}" for name, value in percentiles(self.seconds).items())
            lines.append(f"rounds: {told}")
        share = self.mean_waiting / mean if mean else 0.0
        waits = f"{show(self.mean_waiting, 'time')} for the slowest, {share:.0%} of the round"
        lines.append(f"each of its {figure(clients)} clients waits {waits}")
        return "\n".join(["federated rounds", *map(indented, lines)])


def federated_rounds(timeline: Timeline) -> FederatedRounds:
    """Return the rounds of *timeline*, whose schedule has the server of federated learning."""
    schedule = timeline.schedule
    rank = next(one for one in range(timeline.world_size) if schedule.program(one).role == SERVER)
    program, own = schedule.program(rank), timeline.of(rank)
    names = op_names(program)
    end_of = {names[op]: end for op, end in zip(own.op.tolist(), own.end.tolist(), strict=True)}
    peers = _peers_by_round(program)
    ends = [end_of[update_name(number)] for number in range(len(peers))]
    arrivals = [[end_of[arrival_name(number, peer)] for peer in own] for number, own in enumerate(peers)]
    return FederatedRounds(
        tuple(end - begin for begin, end in pairwise([0.0, *ends])),
        tuple(tuple(max(own) - end for end in own) for own in arrivals),
        _bytes_by_round(program, peers),
    )


def _peers_by_round(program: Program) -> list[list[int]]:
    """The coordinates of the clients of each round of the server's *program*."""
    found: dict[int, list[int]] = {}
    for op in program.ops:
        if isinstance(op, Recv):
            found.setdefault(int(op.name.split(".")[0]), []).append(op.peer)
    return [found[number] for number in sorted(found)]


def _bytes_by_round(program: Program, peers: list[list[int]]) -> tuple[float, ...]:
    """What the server sends and receives in each round."""
    moved = [op.nbytes for op in program.ops if isinstance(op, Send | Recv)]
    return tuple(2 * len(own) * moved[0] for own in peers)
