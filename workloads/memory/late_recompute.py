"""Recomputation that starts as late as it can: it ends when the gradient is due.

Varuna's scheduler plans so with known durations (Athlur et al. 2022, arXiv:2111.04007). A schedule has no clock. So the
next stage sends a message without bytes while it computes the gradient, when as much of that is left as the
recomputation takes. Only layers of given durations (unit models, profiles) can be planned. Where durations follow from
the GPU, or recomputation takes longer than the next stage's backward pass, it starts as soon as its row reaches it.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace

from simulator.kernel import Kernel, measured
from simulator.schedule import Compute, Op, Program, Recv, Schedule, Send
from simulator.schedule.order import PLACEHOLDER, Action
from workloads.compute import PIPELINE


@dataclass(frozen=True, slots=True)
class _Notice:
    """After *seconds* of the backward pass of *layer*, stage *sender* tells stage *sender* - 1 to recompute."""

    sender: int
    layer: str
    seconds: float

    @property
    def _wanted(self) -> Action:
        return Action("R", self.sender - 1, PLACEHOLDER)

    def send(self, after: str) -> Send:
        """The message, after the op of that name."""
        return Send(
            name=f"{self._wanted}.due.send",
            action=self._wanted,
            over=PIPELINE,
            peer=self.sender - 1,
            nbytes=0.0,
            stream=f"{PIPELINE} due to {self.sender - 1}",
            after=(after,),
        )

    def recv(self) -> Recv:
        """The message at its receiver."""
        return Recv(
            name=f"{self._wanted}.due.recv",
            action=self._wanted,
            over=PIPELINE,
            peer=self.sender,
            nbytes=0.0,
            stream=f"{PIPELINE} due from {self.sender}",
        )


def late_recompute(schedule: Schedule) -> Schedule:
    """*schedule*, with one stage in each program, whose recomputation waits until the gradient is due."""
    programs = list(schedule.programs)
    for stage in range(len(programs) - 1):
        notice = _notice(stage, programs[stage], programs[stage + 1])
        if notice is not None:
            programs[stage] = _received(programs[stage], notice)
            programs[stage + 1] = _sent(programs[stage + 1], notice)
    return replace(schedule, programs=tuple(programs))


def _notice(stage: int, program: Program, following: Program) -> _Notice | None:
    """When *following*, the next stage, tells *stage* to recompute; None if that cannot be planned."""
    recomputed, backward = _durations(program, "R", stage), _durations(following, "B", stage + 1)
    if not recomputed or not backward or sum(recomputed.values()) > sum(backward.values()):
        return None
    before = sum(backward.values()) - sum(recomputed.values())
    for layer, seconds in backward.items():
        if before < seconds:
            return _Notice(stage + 1, layer, before)
        before -= seconds
    return None


def _durations(program: Program, phase: str, stage: int) -> dict[str, float]:
    """The given seconds of each layer of *stage* in *phase*, in order; empty if not all are given."""
    seconds: dict[str, float] = {}
    for op in program.distinct():
        if isinstance(op, Compute) and op.layer and op.action and op.action[:2] == (phase, stage):
            if any(kernel.seconds is None for kernel in op.kernels):
                return {}
            seconds[op.layer] = sum(kernel.seconds or 0.0 for kernel in op.kernels)
    return seconds


def _received(program: Program, notice: _Notice) -> Program:
    """*program* with recomputations that wait for *notice*."""
    first = next(op.layer for op in program.distinct() if op.action and op.action.phase == "R")

    def change(op: Op) -> Iterator[Op]:
        if isinstance(op, Compute) and op.action and op.action.phase == "R" and op.layer == first:
            message = notice.recv()
            yield message
            op = replace(op, after=(*op.after, message.name))
        yield op

    return program.map_ops(change)


def _sent(program: Program, notice: _Notice) -> Program:
    """*program* with *notice* sent in its backward passes."""

    def change(op: Op) -> Iterator[Op]:
        if not (isinstance(op, Compute) and op.action and op.action.phase == "B" and op.layer == notice.layer):
            yield op
            return
        early, late = _divided(op.kernels, notice.seconds)
        head = replace(op, name=f"{op.name}.due", kernels=early, frees={})
        yield head
        yield notice.send(head.name)
        yield replace(op, kernels=late, after=(), allocates={})

    return program.map_ops(change)


def _divided(kernels: tuple[Kernel, ...], seconds: float) -> tuple[tuple[Kernel, ...], tuple[Kernel, ...]]:
    """*kernels* of given durations in the first *seconds*, and after them."""
    early: list[Kernel] = []
    for number, kernel in enumerate(kernels):
        own = kernel.seconds or 0.0
        if seconds < own:
            share = seconds / own
            parts = [measured(part * own, part * kernel.flops) for part in (share, 1 - share)]
            return (*early, *parts[: seconds > 0]), (parts[1], *kernels[number + 1 :])
        early.append(kernel)
        seconds -= own
    return tuple(early), ()
