"""The messages of a pipeline: results of actions, and notices by which recomputation starts as late as it can.

Receives stand in the order of their sends, since NCCL has no tags to tell messages apart.

Varuna's scheduler plans so with known durations (Athlur et al. 2022, arXiv:2111.04007). A schedule has no clock. So the
next stage sends a message without bytes while it computes the gradient, when as much of that is left as the
recomputation takes. Only layers of given durations (unit models, profiles) can be planned. Where durations follow from
the GPU, or recomputation takes longer than the next stage's backward pass, it starts as soon as its row reaches it.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace

from clustersim.simulator.hardware.kernel import Kernel, measured
from clustersim.simulator.schedule.ops import Collective, Compute, Op, Recv, Send
from clustersim.simulator.schedule.pipeline_order import PLACEHOLDER, Action
from clustersim.simulator.schedule.program import Program
from clustersim.simulator.schedule.schedule import Schedule
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


@dataclass(slots=True)
class MessagePlan:
    """The messages of one rank: *sent* by the action that makes them, *received* by the action that waits for them.

    *received* is in the order in which the senders send.
    """

    sent: dict[Action, PipelineMessage] = field(default_factory=dict)
    received: dict[Action, PipelineMessage] = field(default_factory=dict)

    def posted(self, row: Sequence[Action]) -> dict[Action, list[Action]]:
        """For each action of *row*, the actions whose receives are posted before it.

        They are posted in the order of the sends, and each at the latest before its consumer.
        """
        place = {action: index for index, action in enumerate(row)}
        latest: dict[int, int] = {}
        posted: dict[Action, list[Action]] = defaultdict(list)
        for wanted, message in reversed(list(self.received.items())):
            index = latest[message.sender] = min(latest.get(message.sender, len(row)), place[wanted])
            posted[row[index]].append(wanted)
        return {action: wanted[::-1] for action, wanted in posted.items()}


def message_plans(
    over: str, rows: Sequence[Sequence[Action]], boundary: Mapping[int, float], parts: Parts | None = None
) -> list[MessagePlan]:
    """The messages of each rank along the axis *over*, from the actions of each rank.

    A message goes from the rank that has an action to the rank that has its successor, whatever their stages and
    replicas. *boundary*: bytes that the last layer of each stage passes on, in *parts* if given.
    """
    home = {action: rank for rank, row in enumerate(rows) for action in row}
    plans = [MessagePlan() for _ in rows]
    known: dict[tuple[Action, Action, int, int], PipelineMessage] = {}
    for rank, row in enumerate(rows):
        for made in row:
            for wanted in successors(made):
                receiver = home.get(wanted, rank)
                if receiver == rank:
                    continue
                ends = _template(made), _template(wanted), rank, receiver
                if ends not in known:
                    nbytes = boundary[min(made.stage, wanted.stage)]
                    known[ends] = PipelineMessage(over, *ends[:2], nbytes, *ends[2:], parts)
                plans[rank].sent[made] = plans[receiver].received[wanted] = known[ends]
    return plans


def _template(action: Action) -> Action:
    return Action(action.phase, action.stage, PLACEHOLDER)


def successors(made: Action) -> Iterable[Action]:
    """The actions of other stages that need the result of *made*, if the order has them."""
    if made.phase == "F":
        return [Action("F", made.stage + 1, made.micro_batch)]
    if made.phase in "BI":
        return [Action(phase, made.stage - 1, made.micro_batch) for phase in "BI"]
    return []


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
