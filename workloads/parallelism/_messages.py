"""The messages of a pipeline: which rank sends the result of an action to which rank, and when the receiver posts it.

Receives stand in the order of their sends, since NCCL has no tags to tell messages apart.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from simulator.schedule import Collective, Recv, Send
from simulator.schedule.order import PLACEHOLDER, Action


@dataclass(frozen=True, slots=True)
class Parts:
    """The *count* ranks of the axis *over* hold equal results: each sends one part, and the receivers gather them."""

    over: str
    count: int


@dataclass(frozen=True, slots=True, eq=False)
class Message:
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

    sent: dict[Action, Message] = field(default_factory=dict)
    received: dict[Action, Message] = field(default_factory=dict)

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
    known: dict[tuple[Action, Action, int, int], Message] = {}
    for rank, row in enumerate(rows):
        for made in row:
            for wanted in successors(made):
                receiver = home.get(wanted, rank)
                if receiver == rank:
                    continue
                ends = _template(made), _template(wanted), rank, receiver
                if ends not in known:
                    nbytes = boundary[min(made.stage, wanted.stage)]
                    known[ends] = Message(over, *ends[:2], nbytes, *ends[2:], parts)
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
