"""The messages of a pipeline: results of actions, and notices by which recomputation starts as late as it can.

Receives stand in the order of their sends, since NCCL has no tags to tell messages apart.

Varuna's scheduler plans so with known durations (Athlur et al. 2022, arXiv:2111.04007). A schedule has no clock. So the
next stage sends a message without bytes while it computes the gradient, when as much of that is left as the
recomputation takes. Only layers of given durations (unit models, profiles) can be planned. Where durations follow from
the GPU, or recomputation takes longer than the next stage's backward pass, it starts as soon as its row reaches it.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import pairwise

import numpy as np

from clustersim.simulator.hardware.kernel import Kernel, measured
from clustersim.simulator.reading.dataclass import dataclass
from clustersim.simulator.schedule.mesh import NOWHERE
from clustersim.simulator.schedule.ops import Collective, Compute, Op, Recv, Send
from clustersim.simulator.schedule.pipeline_order import PLACEHOLDER, Action
from clustersim.simulator.schedule.program import Numbers, Program
from clustersim.simulator.schedule.schedule import Schedule
from clustersim.workloads.data_parallel.gradients import distinct_actions
from clustersim.workloads.memory.compute import PIPELINE


@dataclass(frozen=True, slots=True)
class Parts:
    """The *count* ranks of the axis *over* hold equal results: each sends one part, and the receivers gather them."""

    over: str
    count: int


@dataclass(frozen=True, slots=True, eq=False)
class PipelineMessage:
    """*nbytes*, the result of *made*, which *wanted* waits for; from coordinate *sender* of *over* to *receiver*.

    The actions are of templates: one message object stands for all micro-batches. With *parts*, it is one of them.
    """

    over: str
    made: Action
    wanted: Action
    nbytes: float
    sender: int
    receiver: int
    parts: Parts | None = None

    @property
    def sent_bytes(self) -> float:
        """What one rank sends."""
        return self.nbytes / self.parts.count if self.parts else self.nbytes

    def send(self, last_op: str) -> Send:
        """The op that follows *last_op*, the last one of the action that made the result."""
        return Send(
            name=f"{self.made}.send",
            action=self.made,
            over=self.over,
            peer=self.receiver,
            nbytes=self.sent_bytes,
            stream=f"{self.over} to {self.receiver}",
            after=(last_op,),
        )

    def recv(self) -> Recv:
        """The op that the first op of *wanted* waits for. It has the sender's action, by which the two meet."""
        return Recv(
            name=f"{self.wanted}.recv",
            action=self.made,
            over=self.over,
            peer=self.sender,
            nbytes=self.sent_bytes,
            stream=f"{self.over} from {self.sender}",
        )

    def gathers(self) -> Iterator[Collective]:
        """The ops before the first op of *wanted*: an all-gather of the parts, if the message is one of them."""
        if self.parts:
            yield Collective(
                name=f"{self.wanted}.gather",
                action=self.wanted,
                kind="all_gather",
                over=self.parts.over,
                nbytes=self.nbytes,
                after=(self.recv().name,),
            )


PASSES = "FBIW"
"""The phases that a pipeline order runs on a stage, but for recomputation."""

FORWARD, BACKWARD, INPUT, _ = range(len(PASSES))
"""Their indices. The gradients of weights, the last one, are passed on to no stage."""


@dataclass(frozen=True, slots=True, eq=False)
class ActionColumns:
    """The actions of `PASSES` of a rank in order of issue, an entry each.

    *block*: the number of the block that computes it; *phase*: its index in `PASSES`; *stage*; *micro_batch*.
    """

    block: Numbers
    phase: Numbers
    stage: Numbers
    micro_batch: Numbers

    @classmethod
    def of(cls, program: Program) -> ActionColumns:
        """The actions that *program* computes."""
        ops = program.templated
        templates = [distinct_actions(template, PASSES) for template in ops.templates]
        each = [(PASSES.index(phase), stage, micro_batch) for own in templates for phase, stage, micro_batch in own]
        counts = np.array([len(own) for own in templates], np.int64)
        own = counts[ops.which]
        block = np.repeat(np.arange(len(own)), own)
        places = np.arange(len(block)) + np.repeat((counts.cumsum() - counts)[ops.which] - (own.cumsum() - own), own)
        phase, stage, micro_batch = np.array(each, np.int64).reshape(-1, 3)[places].T
        return cls(block, phase, stage, np.where(micro_batch == PLACEHOLDER, ops.micro_batches[block], micro_batch))


@dataclass(frozen=True, slots=True, eq=False)
class MessagePlan:
    """The messages of a rank: *sent* and *received* have, by its actions, the number of one of *messages* or `NOWHERE`.

    Receives are posted in the order of the sends of a sender, and each at the latest before its consumer: that of
    action ``posted[i]`` before action ``before[i]``, the latter ascending.
    """

    messages: Sequence[PipelineMessage]
    sent: Numbers
    received: Numbers
    posted: Numbers
    before: Numbers


def message_plans(
    over: str, rows: Sequence[ActionColumns], boundary: Mapping[int, float], parts: Parts | None = None
) -> list[MessagePlan]:
    """The messages of each rank along the axis *over*, from the actions of each rank.

    A message goes from the rank that has an action to the rank that has its successor, whatever their stages and
    replicas. *boundary*: bytes that the last layer of each stage passes on, in *parts* if given.
    """
    ends = np.cumsum([0, *(len(row.stage) for row in rows)])
    rank = np.repeat(np.arange(len(rows)), np.diff(ends))
    phase, stage = (np.concatenate([getattr(row, name) for row in rows]) for name in ("phase", "stage"))
    made, wanted = _crossings(rank, phase, stage, np.concatenate([row.micro_batch for row in rows]))
    columns = rank[made], phase[made], stage[made], phase[wanted], stage[wanted], rank[wanted]
    each = list(zip(*(column.tolist() for column in columns), strict=True))
    number = {one: place for place, one in enumerate(dict.fromkeys(each))}
    messages = []
    for sender, *action, then, following, receiver in number:
        templates = _template(*action), _template(then, following)
        nbytes = boundary[min(one.stage for one in templates)]
        messages.append(PipelineMessage(over, *templates, nbytes, sender, receiver, parts))
    sent, received = np.full((2, len(rank)), NOWHERE)
    sent[made] = received[wanted] = [number[one] for one in each]
    posted, before = _posted(rank, made, wanted)
    plans = []
    for first, last in pairwise(ends.tolist()):
        own = slice(*before.searchsorted((first, last)))
        plans.append(
            MessagePlan(messages, sent[first:last], received[first:last], posted[own] - first, before[own] - first)
        )
    return plans


def _template(phase: int, stage: int) -> Action:
    return Action(PASSES[phase], stage, PLACEHOLDER)


def _crossings(rank: Numbers, phase: Numbers, stage: Numbers, micro_batch: Numbers) -> tuple[Numbers, Numbers]:
    """The indices of the actions whose results another rank needs, and of the actions that need them.

    A forward pass is followed by that of the next stage, a gradient of the input by that of the stage before.
    """
    index = np.full((len(PASSES), stage.max() + 3, micro_batch.max() + 1), NOWHERE)
    index[phase, stage + 1, micro_batch] = np.arange(len(rank))
    _, backward, of_input, _ = index[:, stage, micro_batch]
    wanted = np.where(phase == FORWARD, index[FORWARD, stage + 2, micro_batch], np.maximum(backward, of_input))
    passed_on = (phase <= INPUT) & (wanted != NOWHERE) & (rank[wanted] != rank)
    return np.flatnonzero(passed_on), wanted[passed_on]


def _posted(rank: Numbers, made: Numbers, wanted: Numbers) -> tuple[Numbers, Numbers]:
    """The actions *wanted* in the order in which their receives are posted, and the action before which each is.

    *made*: ascending, the action whose result each waits for. Actions are indices in *rank*.
    """
    by_receiver = rank[wanted].argsort(kind="stable")
    wanted, sender = wanted[by_receiver], rank[made[by_receiver]]
    # from the last message of a pair of ranks to its first, each is posted no later than the ones after it
    pair = (rank[wanted] * (rank[-1] + 1) + sender)[::-1]
    below = np.cumsum(np.diff(pair, prepend=pair[:1]) != 0) * len(rank)
    before = (np.minimum.accumulate(wanted[::-1] - below) + below)[::-1]
    order = before.argsort(kind="stable")
    return wanted[order], before[order]


@dataclass(frozen=True, slots=True)
class _RecomputeNotice:
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


def _notice(stage: int, program: Program, following: Program) -> _RecomputeNotice | None:
    """When *following*, the next stage, tells *stage* to recompute; None if that cannot be planned."""
    recomputed, backward = _durations(program, "R", stage), _durations(following, "B", stage + 1)
    if not recomputed or not backward or sum(recomputed.values()) > sum(backward.values()):
        return None
    before = sum(backward.values()) - sum(recomputed.values())
    for layer, seconds in backward.items():
        if before < seconds:
            return _RecomputeNotice(stage + 1, layer, before)
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


def _received(program: Program, notice: _RecomputeNotice) -> Program:
    """*program* with recomputations that wait for *notice*."""
    first = next(op.layer for op in program.distinct() if op.action and op.action.phase == "R")

    def change(op: Op) -> Iterator[Op]:
        if isinstance(op, Compute) and op.action and op.action.phase == "R" and op.layer == first:
            message = notice.recv()
            yield message
            op = replace(op, after=(*op.after, message.name))
        yield op

    return program.map_ops(change)


def _sent(program: Program, notice: _RecomputeNotice) -> Program:
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
