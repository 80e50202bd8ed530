"""Pipeline parallelism: stages hand activations forward and gradients backward, point to point.

Each pair of ranks and direction has a stream of its own, so that a send never waits behind a receive. Receives stand in
the sender's order, since NCCL has no tags to tell messages apart, and the consumer hangs on its receive.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Hashable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace

from simulator.errors import ScheduleError
from simulator.kernel import BYTES
from simulator.mesh import Axis
from simulator.order import PLACEHOLDER, Action
from simulator.program import TemplatedOps
from simulator.schedule import Collective, Compute, Op, Program, Recv, Schedule, Send
from workloads.gradients import actions
from workloads.layout import ENDS
from workloads.model import Layer, Model


@dataclass(frozen=True, slots=True, eq=False)
class _Message:
    """The result of *made*, *nbytes*, which *wanted* waits for, of any micro-batch: from *sender* of ``pp``."""

    made: Action
    wanted: Action
    nbytes: float
    sender: int
    receiver: int

    def send(self, last_op: str) -> Send:
        """The op that follows the last one of the action."""
        return Send(
            name=f"{self.made}.send",
            action=self.made,
            over="pp",
            peer=self.receiver,
            nbytes=self.nbytes,
            stream=f"pp to {self.receiver}",
            after=(last_op,),
        )

    def recv(self) -> Recv:
        """The op that the first one of the wanted action waits for; they meet by the sender's action."""
        return Recv(
            name=f"{self.wanted}.recv",
            action=self.made,
            over="pp",
            peer=self.sender,
            nbytes=self.nbytes,
            stream=f"pp from {self.sender}",
        )


@dataclass(slots=True)
class _Mail:
    """What a rank has to do with messages: by action the one that it sends, and the one that it waits for.

    *received* stands in the order in which its senders send.
    """

    sent: dict[Action, _Message] = field(default_factory=dict)
    received: dict[Action, _Message] = field(default_factory=dict)


def pipeline_parallel(schedule: Schedule, model: Model, *, micro_batch_size: int) -> Schedule:
    """*schedule* with a Send and a Recv wherever an action needs what another rank of ``pp`` computes.

    To be applied while ``pp`` is the mesh's only axis. *model* has its layers as one rank holds them: under sequence
    parallelism a rank sends its shard of a boundary. Between stages on one rank nothing is sent.
    """
    if list(schedule.mesh.axes) != ["pp"]:
        raise ScheduleError(f"pipeline_parallel wants the axis pp alone, not {', '.join(schedule.mesh.axes)}")
    layers = {layer.name: layer for layer in model.layers}
    rows = [list(actions(program, "FBIW")) for program in schedule.programs]
    mail = _mail([[action for _, action in row] for row in rows], _boundaries(schedule, layers, micro_batch_size))
    programs = (_with_messages(*one) for one in zip(schedule.programs, rows, mail, strict=True))
    return replace(schedule, programs=tuple(programs))


def _boundaries(schedule: Schedule, layers: Mapping[str, Layer], micro_batch_size: int) -> dict[int, float]:
    """By stage: the bytes that its last layer hands on."""
    boundary: dict[int, float] = {}
    for program in schedule.programs:
        for op in program.distinct():
            if isinstance(op, Compute) and op.action and op.layer and op.action.phase == "F":
                boundary[op.action.stage] = layers[op.layer].output_bytes(micro_batch_size)
    return boundary


def _mail(rows: Sequence[Sequence[Action]], boundary: Mapping[int, float]) -> list[_Mail]:
    """The messages of each rank."""
    home = {action: rank for rank, row in enumerate(rows) for action in row}
    mail = [_Mail() for _ in rows]
    known: dict[tuple[Action, Action, int, int], _Message] = {}
    for rank, row in enumerate(rows):
        for made in row:
            for wanted in _successors(made):
                receiver = home.get(wanted, rank)
                if receiver != rank:
                    ends = _blank(made), _blank(wanted), rank, receiver
                    if ends not in known:
                        known[ends] = _Message(*ends[:2], boundary[min(made.stage, wanted.stage)], *ends[2:])
                    mail[rank].sent[made] = mail[receiver].received[wanted] = known[ends]
    return mail


def _blank(action: Action) -> Action:
    return Action(action.phase, action.stage, PLACEHOLDER)


def _successors(made: Action) -> Iterable[Action]:
    """The actions of other stages that need what *made* computes, where they are in the order."""
    if made.phase == "F":
        return [Action("F", made.stage + 1, made.micro_batch)]
    if made.phase in "BI":
        return [Action(phase, made.stage - 1, made.micro_batch) for phase in "BI"]
    return []


def _with_messages(program: Program, row: Sequence[tuple[int, Action]], mail: _Mail) -> Program:
    """*program*, whose actions by number of their blocks are *row*."""
    ops = program.templated
    of: dict[int, list[Action]] = defaultdict(list)
    for number, action in row:
        of[number].append(action)
    posted = _posted([action for _, action in row], mail.received)
    templates: dict[Hashable, tuple[Op, ...]] = {}
    blocks: list[tuple[Hashable, int | None]] = []
    for number, (template, stamp) in enumerate(zip(ops.which.tolist(), ops.micro_batches.tolist(), strict=True)):
        own = of[number]
        for wanted in (wanted for action in own for wanted in posted.get(action, ())):
            message = mail.received[wanted]
            if (message,) not in templates:
                templates[message,] = (message.recv(),)
            blocks.append(((message,), wanted.micro_batch))
        incoming = [mail.received[action] for action in own if action in mail.received]
        outgoing = [mail.sent[action] for action in own if action in mail.sent]
        key: Hashable = (template, *incoming, None, *outgoing)
        if key not in templates:
            templates[key] = tuple(_joined(ops.templates[template], incoming, outgoing))
        blocks.append((key, stamp))
    return program.with_templated_ops(TemplatedOps.from_names(templates, blocks))


def _joined(ops: Sequence[Op], incoming: Sequence[_Message], outgoing: Sequence[_Message]) -> Iterator[Op]:
    """*ops* whose first of an action waits for what is *incoming*, each *outgoing* message behind the last."""
    awaited = {message.wanted: message.recv().name for message in incoming}
    sent = {message.made: message for message in outgoing}
    last = {op.action: op.name for op in ops if isinstance(op, Compute)}
    for op in ops:
        if isinstance(op, Compute) and op.action in awaited:
            yield replace(op, after=(*op.after, awaited.pop(op.action)))
        else:
            yield op
        if op.action in sent and op.name == last[op.action]:
            yield sent[op.action].send(op.name)


def _posted(row: Sequence[Action], received: Mapping[Action, _Message]) -> dict[Action, list[Action]]:
    """Before which action the receive of each is posted: in the sender's order, and none later than its consumer."""
    place = {action: index for index, action in enumerate(row)}
    latest: dict[int, int] = {}
    posted: dict[Action, list[Action]] = defaultdict(list)
    for wanted, message in reversed(list(received.items())):
        at = latest[message.sender] = min(latest.get(message.sender, len(row)), place[wanted])
        posted[row[at]].append(wanted)
    return {action: wanted[::-1] for action, wanted in posted.items()}


def tied_embeddings(schedule: Schedule, model: Model, *, gradient_dtype: str | None = None) -> Schedule:
    """The all-reduce that keeps the embedding on the first stage and the tied head on the last one equal.

    Over the axis ``embedding`` of the two ranks of ``pp``, before their optimizer steps (Megatron-LM,
    ``_allreduce_word_embedding_grads``). Nothing where both are on one rank, or are not tied.
    """
    ends = {layer.name for layer in model.layers if layer.kind in ENDS}
    holders = [
        rank for rank, program in enumerate(schedule.programs) if any(op.layer in ends for op in program.distinct())
    ]
    if len(holders) < 2 or not model.tied_parameters:
        return schedule
    nbytes = float(model.tied_parameters * BYTES[gradient_dtype or model.precision])
    mesh = schedule.mesh.extended(0, {"embedding": Axis((tuple(holders),))})
    op = Collective(name="embedding gradients", kind="all_reduce", over="embedding", nbytes=nbytes)
    programs = tuple(
        program.map_ops(lambda one: (op, one) if one.action and one.action.phase == "O" else (one,))
        if rank in holders
        else program
        for rank, program in enumerate(schedule.programs)
    )
    return replace(schedule, mesh=mesh, programs=programs)
