"""Pipeline parallelism: stages hand activations forward and gradients backward, point to point.

Each pair of ranks and direction has a stream of its own, so that a send never waits behind a receive. Receives stand in
the sender's order, since NCCL has no tags to tell messages apart, and the consumer hangs on its receive.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

from simulator.errors import ScheduleError
from simulator.kernel import BYTES
from simulator.mesh import Axis
from simulator.order import Action
from simulator.schedule import Collective, Compute, Op, Program, Recv, Schedule, Send
from workloads.layout import ENDS
from workloads.model import Layer, Model


@dataclass(frozen=True, slots=True)
class _Message:
    """The result of *made*, *nbytes*, which *wanted* waits for, from rank *sender* of ``pp`` to *receiver*."""

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


def pipeline_parallel(schedule: Schedule, model: Model, *, micro_batch_size: int) -> Schedule:
    """*schedule* with a Send and a Recv wherever an action needs what another rank of ``pp`` computes.

    To be applied while ``pp`` is the mesh's only axis. *model* has its layers as one rank holds them: under sequence
    parallelism a rank sends its shard of a boundary. Between stages on one rank nothing is sent.
    """
    if list(schedule.mesh.axes) != ["pp"]:
        raise ScheduleError(f"pipeline_parallel wants the axis pp alone, not {', '.join(schedule.mesh.axes)}")
    layers = {layer.name: layer for layer in model.layers}
    messages = list(_messages(schedule.programs, layers, micro_batch_size))
    programs = tuple(_with_messages(program, rank, messages) for rank, program in enumerate(schedule.programs))
    return replace(schedule, programs=programs)


def _messages(programs: Sequence[Program], layers: Mapping[str, Layer], micro_batch_size: int) -> Iterator[_Message]:
    """All that is sent, rank by rank in order of issue."""
    actions = [_actions(program) for program in programs]
    home = {action: rank for rank, row in enumerate(actions) for action in row}
    boundary: dict[int, float] = {}
    for row in actions:
        for action, layer in row.items():
            if action.phase == "F":
                boundary[action.stage] = layers[layer].output_bytes(micro_batch_size)
    for rank, row in enumerate(actions):
        for made in row:
            for wanted in _successors(made):
                if wanted in home and home[wanted] != rank:
                    yield _Message(made, wanted, boundary[min(made.stage, wanted.stage)], rank, home[wanted])


def _successors(made: Action) -> Iterable[Action]:
    """The actions of other stages that need what *made* computes, where they are in the order."""
    if made.phase == "F":
        return [Action("F", made.stage + 1, made.micro_batch)]
    if made.phase in "BI":
        return [Action(phase, made.stage - 1, made.micro_batch) for phase in "BI"]
    return []


def _actions(program: Program) -> dict[Action, str]:
    """The actions of a program in order of issue, each with its last layer."""
    return {op.action: op.layer for op in program.ops if isinstance(op, Compute) and op.action and op.layer}


def _with_messages(program: Program, rank: int, messages: Sequence[_Message]) -> Program:
    sent = {m.made: m for m in messages if m.sender == rank}
    received = {m.wanted: m for m in messages if m.receiver == rank}
    last = {op.action: op.name for op in program.ops if isinstance(op, Compute) and op.action}
    posted = _posted(program, [m for m in messages if m.receiver == rank])

    def change(op: Op) -> Iterator[Op]:
        if isinstance(op, Compute) and op.action in posted:
            yield from (message.recv() for message in posted.pop(op.action))
        if isinstance(op, Compute) and op.action in received:
            op = replace(op, after=(*op.after, received.pop(op.action).recv().name))
        yield op
        if op.action in sent and op.name == last[op.action]:
            yield sent[op.action].send(op.name)

    return program.weave(change)


def _posted(program: Program, received: Sequence[_Message]) -> dict[Action, list[_Message]]:
    """Before which action each receive is posted: in the sender's order, and none later than its own consumer."""
    place = {action: index for index, action in enumerate(_actions(program))}
    actions = list(place)
    posted: dict[Action, list[_Message]] = defaultdict(list)
    for sender in {message.sender for message in received}:
        latest = len(actions)
        for message in reversed([m for m in received if m.sender == sender]):
            latest = min(latest, place[message.wanted])
            posted[actions[latest]].insert(0, message)
    return posted


def tied_embeddings(schedule: Schedule, model: Model, *, gradient_dtype: str | None = None) -> Schedule:
    """The all-reduce that keeps the embedding on the first stage and the tied head on the last one equal.

    Over the axis ``embedding`` of the two ranks of ``pp``, before their optimizer steps (Megatron-LM,
    ``_allreduce_word_embedding_grads``). Nothing where both are on one rank, or are not tied.
    """
    ends = {layer.name for layer in model.layers if layer.kind in ENDS}
    holders = [rank for rank, program in enumerate(schedule.programs) if any(op.layer in ends for op in program.ops)]
    if len(holders) < 2 or not model.tied_parameters:
        return schedule
    nbytes = float(model.tied_parameters * BYTES[gradient_dtype or model.precision])
    mesh = schedule.mesh.extended(0, {"embedding": Axis((tuple(holders),))})
    op = Collective(name="embedding gradients", kind="all_reduce", over="embedding", nbytes=nbytes)
    programs = tuple(
        program.weave(lambda one: (op, one) if one.action and one.action.phase == "O" else (one,))
        if rank in holders
        else program
        for rank, program in enumerate(schedule.programs)
    )
    return replace(schedule, mesh=mesh, programs=programs)
