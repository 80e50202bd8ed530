"""Execution plans of MSCCL++ as collectives: a JSON file with the operations of every thread block of every GPU.

A thread block puts chunks into buffers of other GPUs, or gets them, without a receive; signals and waits over channels
order this, barriers and semaphores the thread blocks of a GPU. Packets carry flags, and a reader waits for them. Where
switches add and copy (multimem), one operation is for all GPUs of a channel. A port channel has a proxy of its own,
which executes puts after the thread block has gone on.

The plan is executed on symbolic chunks, which proves it: waits that nobody ends, signals that nobody awaits, accesses
that no signal orders, and chunks that are wrong at the end are faults, named with chunk and rank. A put costs no wait,
so what a thread block sends between two waits is one round of the simulation; a signal without data is a round too.
Relaxed signals order like others.

MSCCL++: Shah et al., "MSCCL++: Rethinking GPU Communication Abstractions for Cutting-Edge AI Applications",
arXiv:2504.09014.
"""

from __future__ import annotations

from collections import defaultdict, deque
from collections.abc import Iterator, Sequence
from math import ceil, lcm

from clustersim.simulator.network.algorithm_files.chunks import ChunkTraffic, Value, Vectors
from clustersim.simulator.network.algorithm_files.mscclpp_file import ChunkSpan, PlanFile, PlanOperation, read
from clustersim.simulator.network.algorithm_files.ordered_memory import AccessFault, Agent, Moment, OrderedMemory
from clustersim.simulator.reading.errors import SimulatorError

MOST_ITERATIONS = 8
"""Iterations of a pipeline that are simulated at most, as many as the chunks of a chain (`ring.CHUNKS`)."""

SUMS = "re", "res", "rre", "rres", "repkt", "recpkt", "respkt", "recspkt", "glres"
"""Operations that add all their sources and write the sum to all their targets; others move them one by one."""

SWITCHED = "glres", "gstore", "gstorepkt"
"""Operations by switches."""

PACKETS_IN = {"upkt": 0, "rppkt": 0, "gstorepkt": 0, "repkt": 1, "recpkt": 1, "respkt": 1, "recspkt": 1}
"""PlanOperation -> the first of its sources that is in packets, and all after it."""

PACKETS_OUT = {"cpkt": 0, "ppkt": 0, "rppkt": 0, "gstorepkt": 0, "recpkt": 1, "respkt": 1, "recspkt": 1}
"""The same of its targets."""

Channel = tuple[int, str, int]
"""A channel at one of its ends: rank, type, number."""

Move = tuple[list[tuple[ChunkSpan, bool]], list[tuple[ChunkSpan, bool]]]
"""Sources that are added, and targets; each with whether it is in packets."""


class MscclppPlan:
    """The plan of the file at *path*, which is proved when it is made.

    Raises `SimulatorError` with the operation, the chunk and the rank of a fault.
    """

    def __init__(self, path: str) -> None:
        self.path, self.file = path, read(path)
        self.kind, self.ranks = self.file.kind, len(self.file.gpus)
        every = [one for gpu in self.file.gpus for block in gpu.blocks for op in block for one in (op, *op.body)]
        self.switched = any(one.name in SWITCHED for one in every)
        self.groups = lcm(*(one.share[1] for one in every))
        self.pipelines = [one for one in every if one.body]
        self._traffic: dict[int, ChunkTraffic] = {}
        self._with(2 if self.pipelines else 1)

    @property
    def thread_blocks(self) -> int:
        """The thread blocks of one GPU, at most."""
        return max(len(gpu.blocks) for gpu in self.file.gpus)

    def traffic(self, nbytes: float) -> ChunkTraffic:
        """Return the messages for *nbytes* of the full vector: pipelines have iterations by size."""
        vectors = Vectors(self.kind, self.file.in_place, self.ranks, self.file.inputs)
        chunk = nbytes / vectors.parts
        wanted = max((ceil(one.chunks * chunk / one.unit) for one in self.pipelines), default=1)
        return self._with(min(MOST_ITERATIONS, wanted))

    def _with(self, iterations: int) -> ChunkTraffic:
        if iterations not in self._traffic:
            self._traffic[iterations] = _PlanExecution(self.path, self.file, self.groups, iterations).run()
        return self._traffic[iterations]


class _RunningBlock:
    """A thread block: its *agent*, and its operations, each with its iteration."""

    def __init__(self, agent: Agent, operations: Sequence[PlanOperation], iterations: int) -> None:
        self.agent, self.done = agent, 0
        self.operations = [
            (inner, turn, iterations if one.body else 1)
            for one in operations
            for turn in range(iterations if one.body else 1)
            for inner in (one.body or (one,))
        ]
        self.barrier = -1
        """The generation of the barrier that it waits at; -1: none."""


class _PlanExecution:
    """Executes the plan *file* with pipelines of *iterations*, by thread blocks in groups of *groups* or a divisor."""

    def __init__(self, path: str, file: PlanFile, groups: int, iterations: int) -> None:
        self.path, self.file, self.finer = path, file, groups * iterations
        vectors = Vectors(file.kind, file.in_place, len(file.gpus), file.inputs * self.finer)
        self.memory, self.traffic = OrderedMemory(vectors, self.finer), ChunkTraffic(vectors.parts)
        owners = [(rank, block) for rank, gpu in enumerate(file.gpus) for block in gpu.blocks]
        ports = [(rank, number) for rank, gpu in enumerate(file.gpus) for number in range(len(gpu.peers["port"]))]
        count = len(owners) + len(ports)
        self.blocks = [
            _RunningBlock(Agent(number, count, rank), block, iterations) for number, (rank, block) in enumerate(owners)
        ]
        self.proxies = {port: Agent(number, count, port[0]) for number, port in enumerate(ports, len(owners))}
        self.signals: defaultdict[Channel, deque[Moment]] = defaultdict(deque)
        self.semaphores = {
            (rank, number): deque([Moment([0] * count, 0, 0)] * first)
            for rank, gpu in enumerate(file.gpus)
            for number, first in enumerate(gpu.semaphores)
        }
        self.arrived: defaultdict[tuple[int, int], list[list[_RunningBlock]]] = defaultdict(list)

    def run(self) -> ChunkTraffic:
        """Return all messages. Raises `SimulatorError` for the first fault."""
        moved = True
        while moved:
            moved = False
            for block in self.blocks:
                while block.done < len(block.operations) and self._execute(block):
                    block.done += 1
                    moved = True
        self._check_all_ended()
        for (rank, kind, number), left in self.signals.items():
            if left:
                peer = self.file.gpus[rank].peers[kind][number]
                raise self._fault(
                    f"{len(left)} signals of rank {peer} to rank {rank} over {kind} channel {number} are not awaited"
                )
        ends = [[0] * len(self.blocks[0].agent.clock) for _ in self.file.gpus] if self.blocks else []
        for block in self.blocks:
            ends[block.agent.rank] = list(map(max, ends[block.agent.rank], block.agent.clock))
        if fault := self.memory.fault_at_end(ends):
            raise self._fault(fault)
        return self.traffic

    def _fault(self, message: str) -> SimulatorError:
        return SimulatorError(f"{self.path}: {message}")

    def _execute(self, block: _RunningBlock) -> bool:
        """Execute the next operation of *block* if it waits for nothing; return whether it did."""
        one, turn, turns = block.operations[block.done]
        agent = block.agent
        match one.name:
            case "nop":
                return True
            case "barrier":
                return self._barrier(block, one)
            case "sem_acquire":
                return self._acquire(agent, one)
            case "wait" | "rlxwait":
                return self._wait(agent, one)
        agent.begin(one.where)
        if one.name == "sem_release":
            for number in one.semaphores:
                self.semaphores[agent.rank, number].append(agent.moment())
        elif one.name in ("signal", "rlxsignal"):
            for kind, number in one.channels:
                self._signal(agent, kind, number)
        elif one.name == "flush":
            for kind, number in one.channels:
                if kind == "port":
                    agent.after(self.proxies[agent.rank, number].moment())
        else:
            return self._moves(agent, one, turn, turns)
        return True

    def _barrier(self, block: _RunningBlock, one: PlanOperation) -> bool:
        number, wanted = one.barrier
        rounds = self.arrived[block.agent.rank, number]
        if block.barrier < 0:
            if not rounds or len(rounds[-1]) == wanted:
                rounds.append([])
            rounds[-1].append(block)
            block.barrier = len(rounds) - 1
        together = rounds[block.barrier]
        if len(together) < wanted:
            return False
        moments = [other.agent.moment() for other in together if other.barrier == block.barrier]
        if len(moments) == wanted:
            for other in together:
                for moment in moments:
                    other.agent.after(moment)
        block.barrier = -1
        return True

    def _acquire(self, agent: Agent, one: PlanOperation) -> bool:
        held = [self.semaphores[agent.rank, number] for number in one.semaphores]
        if not all(held):
            return False
        for semaphore in held:
            agent.after(semaphore.popleft())
        return True

    def _wait(self, agent: Agent, one: PlanOperation) -> bool:
        ways = [self.signals[agent.rank, kind, number] for kind, number in one.channels]
        if not all(ways):
            return False
        for way in ways:
            agent.after(way.popleft())
        return True

    def _signal(self, agent: Agent, kind: str, number: int) -> None:
        """Signal over channel *number* of *kind*, after what the agent, or the proxy of a port, has sent."""
        peer = self.file.gpus[agent.rank].peers[kind][number]
        other = self._other_end((agent.rank, kind, number))
        if other is None:
            raise self._fault(f"{agent.where}: signals rank {peer}, which has no {kind} channel back")
        if kind == "port":
            agent = self._proxy(agent, number)
        agent.sent = max(agent.sent, agent.round + 1)
        self.traffic.add(agent.sent, agent.rank, peer, 0)
        self.signals[other].append(Moment(list(agent.clock), agent.sent, agent.sent))

    def _proxy(self, agent: Agent, number: int) -> Agent:
        """The proxy of port channel *number*, after what *agent* has asked of it."""
        proxy = self.proxies[agent.rank, number]
        proxy.after(Moment(agent.clock, agent.round, proxy.sent))
        proxy.begin(agent.where)
        return proxy

    def _other_end(self, channel: Channel) -> Channel | None:
        """The other end of *channel*: the n-th from a to b belongs to the n-th from b to a."""
        rank, kind, number = channel
        peers = self.file.gpus[rank].peers[kind]
        nth = peers[:number].count(peers[number])
        back = [place for place, peer in enumerate(self.file.gpus[peers[number]].peers[kind]) if peer == rank]
        return (peers[number], kind, back[nth]) if nth < len(back) else None

    def _moves(self, agent: Agent, one: PlanOperation, turn: int, turns: int) -> bool:
        """Move the chunks of *one*; return False if it waits for packets."""
        moves = list(_moves(one))
        packets = [span for sources, _ in moves for span, packed in sources if packed]
        for span in packets:
            for rank, place in self._cells(span, one, turn, turns):
                moment = self.memory.packet(rank, place)
                if moment is None:
                    return False
                agent.after(moment)
        by_port = one.channels if one.name in ("put", "pws", "pwsf", "ppkt", "rppkt") else ()
        for number, move in enumerate(moves):
            port = by_port[number % len(by_port)][1] if by_port and by_port[0][0] == "port" else -1
            mover = self._proxy(agent, port) if port >= 0 else agent
            try:
                self._move(mover, one, move, turn, turns)
            except AccessFault as fault:
                raise self._fault(f"{one.where}: rank {agent.rank} {fault}") from None
            if one.name in ("pws", "pwsf"):
                self._signal(agent, "port", port)
            if one.name == "pwsf":
                agent.after(self.proxies[agent.rank, port].moment())
        return True

    def _cells(self, span: ChunkSpan, one: PlanOperation, turn: int, turns: int) -> list[tuple[int, tuple[str, int]]]:
        """The cells of *span* that the thread block has a share of in this turn: rank after rank."""
        number, count = one.share
        each = span.size * self.finer // count // turns
        first = span.first * self.finer + (number * turns + turn) * each
        return [(rank, (span.buffer, place)) for rank in span.ranks for place in range(first, first + each)]

    def _move(self, agent: Agent, one: PlanOperation, move: Move, turn: int, turns: int) -> None:
        sources, targets = move
        if len({span.size for span, _ in (*sources, *targets)}) > 1:
            raise AccessFault("moves chunks between spans of different sizes")
        each = sources[0][0].size * self.finer // one.share[1] // turns
        values: list[Value | None] = [None] * each
        senders = [rank for span, _ in sources for rank in span.ranks if rank != agent.rank]
        for span, _ in sources:
            for number, (rank, where) in enumerate(self._cells(span, one, turn, turns)):
                values[number % each] = _sum(values[number % each], self.memory.read(agent, rank, where))
        if one.name in SWITCHED:
            group = targets[0][0].ranks
            self.traffic.add_switched(agent.round + 1, agent.rank, group, each, adds=one.name == "glres")
            agent.sent = max(agent.sent, agent.round + 1)
        elif senders:
            for sender in senders:
                self.traffic.add(agent.round + 1, sender, agent.rank, each)
            agent.round += 1
        self._write(agent, one, targets, values, turn, turns)

    def _write(
        self,
        agent: Agent,
        one: PlanOperation,
        targets: Sequence[tuple[ChunkSpan, bool]],
        values: Sequence[Value | None],
        turn: int,
        turns: int,
    ) -> None:
        receivers = [rank for span, _ in targets for rank in span.ranks if rank != agent.rank]
        if receivers and one.name not in SWITCHED:
            for receiver in receivers:
                self.traffic.add(agent.round + 1, agent.rank, receiver, len(values))
            agent.sent = max(agent.sent, agent.round + 1)
        for span, packed in targets:
            for number, (rank, where) in enumerate(self._cells(span, one, turn, turns)):
                value = values[number % len(values)]
                assert value is not None
                arrives = agent.round + (rank != agent.rank)
                packet = Moment(list(agent.clock), arrives, arrives) if packed else None
                self.memory.write(agent, rank, where, value, packet)

    def _check_all_ended(self) -> None:
        """Raise `SimulatorError` for an operation that waits for ever: if there is one, for what no other will do."""
        stuck = [block for block in self.blocks if block.done < len(block.operations)]
        if not stuck:
            return
        coming = {
            self._other_end((block.agent.rank, *channel))
            for block in stuck
            for one, _, _ in block.operations[block.done :]
            if one.name in ("signal", "rlxsignal", "pws", "pwsf")
            for channel in one.channels
        }
        missing = [(block, channel) for block in stuck for channel in self._awaited(block) if channel not in coming]
        block, _ = missing[0] if missing else (stuck[0], None)
        raise self._fault(self._deadlock(block, coming))

    def _awaited(self, block: _RunningBlock) -> list[Channel]:
        one = block.operations[block.done][0]
        if one.name not in ("wait", "rlxwait"):
            return []
        awaited = [(block.agent.rank, kind, number) for kind, number in one.channels]
        return [channel for channel in awaited if not self.signals[channel]]

    def _deadlock(self, block: _RunningBlock, coming: set[Channel | None]) -> str:
        one, turn, turns = block.operations[block.done]
        rank = block.agent.rank
        if awaited := sorted(self._awaited(block), key=lambda channel: channel in coming):
            _, kind, number = awaited[0]
            what = f"a signal of rank {self.file.gpus[rank].peers[kind][number]} over {kind} channel {number}"
        elif one.name == "barrier":
            what = f"barrier {one.barrier[0]} of {one.barrier[1]} thread blocks"
        elif one.name == "sem_acquire":
            what = f"semaphore {', '.join(map(str, one.semaphores))}"
        else:
            packets = (span for sources, _ in _moves(one) for span, packed in sources if packed)
            cells = (cell for span in packets for cell in self._cells(span, one, turn, turns))
            missing = next(place for there, place in cells if self.memory.packet(there, place) is None)
            what = f"chunk {self.memory.name(missing)} in packets, which nobody sends"
        following = (other for other, _, _ in block.operations[block.done :] if other.targets)
        target = next((span for other in following for span in other.targets), None)
        rest = f"; chunk {target.buffer}[{target.first}] of rank {target.ranks[0]} waits with it" if target else ""
        return f"{one.where}: deadlock: rank {rank} waits for {what}, for ever{rest}"


def _moves(one: PlanOperation) -> Iterator[Move]:
    """The moves of *one*: all sources to all targets for a sum, one source to all targets, or one to one."""
    packed_in, packed_out = PACKETS_IN.get(one.name, 99), PACKETS_OUT.get(one.name, 99)
    sources = [(span, place >= packed_in) for place, span in enumerate(one.sources)]
    targets = [(span, place >= packed_out) for place, span in enumerate(one.targets)]
    if one.name in SUMS:
        yield sources, targets
    elif len(sources) == 1:
        for target in targets:
            yield sources, [target]
    else:
        for source, target in zip(sources, targets, strict=True):
            yield [source], [target]


def _sum(value: Value | None, other: Value) -> Value:
    if value is None:
        return other
    if value.part != other.part:
        raise AccessFault(f"adds chunk {other.part} to chunk {value.part}")
    return Value(value.part, value.held + other.held)
