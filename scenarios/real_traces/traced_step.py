"""One step of a real run, of traces of torch.profiler or of Chakra; files of traces on the command line; and the
dependencies of the work in a trace of torch.profiler, which times tell, for it names none.

- Work follows the work before it on its stream.
- A communication waits for its producers: on each stream of computation the last work that was launched before it and
  had ended when it began.
- Computation waits for a communication, or for another stream, that ended while its own stream was idle, if the stream
  was idle beside it for longer than the time from that end to its own begin. Otherwise the gap is the host's.
- A launch follows the launch before it, and a synchronising call of the host waits for the work that ended within it.

What remains of a gap is kept as a delay.
"""

from __future__ import annotations

import json
import re
from bisect import bisect_left, bisect_right
from collections import defaultdict
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from clustersim.scenarios.real_traces.chakra_file import SUFFIX, chakra_work
from clustersim.scenarios.real_traces.kernels_and_communications import kernel_class, title
from clustersim.scenarios.real_traces.pieces_of_work import LOADING, PHASES, Call, Piece
from clustersim.scenarios.real_traces.rank_trace import RankTrace, RealStep
from clustersim.scenarios.real_traces.run import SUFFIXES, run_of
from clustersim.scenarios.real_traces.work import RankWork, TracedExchange, TracedLaunch, TracedStep, TracedWork
from clustersim.simulator.reading.errors import TraceError
from clustersim.simulator.reading.plain_text import name_fault


def traced_step(paths: Sequence[Path]) -> TracedStep:
    """Return the step of the traces at *paths*, files or folders, all of one kind. Raises `TraceError`.

    Of several recorded steps it is the one with the duration nearest to their mean.
    """
    files = [file for path in paths for file in (sorted(path.glob(f"*{SUFFIX}")) if path.is_dir() else [path])]
    graphs = [file for file in files if file.name.endswith(SUFFIX)]
    if not graphs:
        return _of_profiler(paths)
    if len(graphs) < len(files):
        other = next(file for file in files if file not in graphs)
        raise TraceError(f"{other}: is no Chakra trace ({SUFFIX}), but {graphs[0]} is; give traces of one kind")
    return _of_chakra(graphs)


def _of_profiler(paths: Sequence[Path]) -> TracedStep:
    run = run_of(paths)
    first = run.traces[0]
    counts = [sum(trace.steps[n].seconds for trace in run.traces) for n in range(len(first.steps))]
    seconds = [one / len(run.traces) for one in counts]
    chosen = min(range(len(seconds)), key=lambda n: abs(seconds[n] - run.step_time))
    steps = [trace.steps[chosen] for trace in run.traces]
    lanes = max(lanes_of(trace, step) for trace, step in zip(run.traces, steps, strict=True))
    works = {trace.rank: rank_work(trace, step, lanes) for trace, step in zip(run.traces, steps, strict=True)}
    return TracedStep(works, run.world_size, run.step_time, first.device, str(first.path), run.on_gpu)


def _of_chakra(files: Sequence[Path]) -> TracedStep:
    works: dict[int, RankWork] = {}
    for file in files:
        work = chakra_work(file)
        if work.rank in works:
            raise TraceError(f"{file}: is of rank {work.rank}, and so is another file; give one trace of each rank")
        works[work.rank] = work
    ranks = {one for own in works.values() for w in own.works if w.exchange is not None for one in w.exchange.group}
    return TracedStep(works, 1 + max([*works, *ranks]), 0.0, "", str(files[0]))


BEGIN = 2**20
"""Bytes of a file that are looked at: a trace names its events or its device there."""

KEYS = (b'"traceEvents"', b'"distributedInfo"', b'"deviceProperties"', b'"schemaVersion"')


def is_trace(name: str) -> bool:
    """True if *name* is a file of a trace, or a folder of such files."""
    path = Path(name)
    if path.is_dir():
        inside = [one for one in sorted(path.iterdir()) if one.name.endswith((*SUFFIXES, SUFFIX))]
        return not (path / "scenario.yaml").is_file() and any(is_trace(str(one)) for one in inside[:2])
    if not path.is_file() or not path.name.endswith((*SUFFIXES, SUFFIX)):
        return False
    return path.suffix != ".json" or any(key in _begin(path) for key in KEYS) or _begin(path).lstrip()[:1] == b"["


def _begin(path: Path) -> bytes:
    try:
        with path.open("rb") as file:
            return file.read(BEGIN)
    except OSError:
        return b""


def data_of(traces: Sequence[str], cluster: str, nodes: int) -> dict[str, Any]:
    """Return the data of the scenario that replays *traces* on *nodes* of *cluster*."""
    stem = Path(traces[0]).resolve().name.partition(".")[0]
    name = f"{stem}-{nodes}x{Path(cluster).stem}"
    return {
        "version": 1,
        "name": "trace" if name_fault(name) else name,
        "cluster": {"preset": cluster, "nodes": nodes},
        "workload": {"trace": list(traces)},
    }


INSTANT = 1e-6
"""Times of a trace are rounded to a microsecond, or finer."""

_LIST = re.compile(r"\[([\d,\s.]*)\]\s*$")


def rank_work(trace: RankTrace, step: RealStep, lanes: int = 1) -> RankWork:
    """Return the work of *step* of *trace*; collectives of a group alternate between *lanes* streams.

    Raises `TraceError` for a communication without its size or its partners.
    """
    pieces = [one for one in trace.pieces if step.begin <= one.begin < step.end and one.part != LOADING]
    return _Inference(trace, step, pieces, lanes).result()


def lanes_of(trace: RankTrace, step: RealStep) -> int:
    """Return how many streams of *trace* hold communications of one group in *step*: threads of gloo, or 1."""
    found: dict[str, set[str]] = defaultdict(set)
    for piece in trace.pieces:
        if piece.call is not None and step.begin <= piece.begin < step.end:
            found[piece.call.group].add(piece.stream)
    return max(map(len, found.values()), default=1)


class _Inference:
    def __init__(self, trace: RankTrace, step: RealStep, pieces: Sequence[Piece], lanes: int) -> None:
        self.trace, self.step, self.pieces, self.lanes = trace, step, pieces, lanes
        self.computing = {piece.stream for piece in pieces if piece.call is None}
        self.on: dict[str, list[int]] = defaultdict(list)
        self._calls: dict[str, int] = defaultdict(int)
        self.launch_number = self._order_of_launches()
        self.launch_times = [pieces[number].launched for number in self.launch_number]

    def result(self) -> RankWork:
        works = tuple(self._work(number, piece) for number, piece in enumerate(self.pieces))
        last = max((piece.end for piece in self.pieces), default=self.step.begin)
        return RankWork(self.trace.rank, works, tuple(self._launches()), max(0.0, self.step.end - last))

    def _order_of_launches(self) -> dict[int, int]:
        """Return the place of each piece that was launched within the step among the launches."""
        known = [n for n, piece in enumerate(self.pieces) if piece.launched >= self.step.begin]
        known.sort(key=lambda number: self.pieces[number].launched)
        return {number: place for place, number in enumerate(known)}

    def _work(self, number: int, piece: Piece) -> TracedWork:
        exchange = _exchange(self.trace, piece) if piece.call is not None else None
        stream = self._stream(piece, exchange)
        streams = {stream, piece.stream} & (self.computing | {stream})
        before = [self.on[one][-1] for one in sorted(streams) if self.on[one]]
        idle = max((self.pieces[one].end for one in before), default=self.step.begin)
        waits = self._producers(piece, streams) if exchange else self._awaited(piece, streams, idle, number)
        after = tuple(dict.fromkeys([*before, *waits]))
        ready = max([idle, *(self.pieces[one].end for one in after)])
        if number in self.launch_number:
            ready = max(ready, piece.launched)
        for one in streams:
            self.on[one].append(number)
        return TracedWork(
            title(piece) if exchange is None else piece.name[:60],
            piece.part,
            stream,
            max(0.0, piece.seconds - piece.wait),
            after,
            max(0.0, piece.begin - ready),
            exchange,
            kernel_class(piece) if piece.part in PHASES else "",
            piece.shape,
            piece.precision,
            self.launch_number.get(number),
        )

    def _stream(self, piece: Piece, exchange: TracedExchange | None) -> str:
        """Return the stream of *piece*: that of a collective has the same name on all ranks."""
        if exchange is None:
            return f"stream {piece.stream}"
        if exchange.is_message:
            return f"{exchange.kind} {exchange.source} {exchange.target}"
        assert piece.call is not None
        turn = self._calls[piece.call.group]
        self._calls[piece.call.group] += 1
        lane = f" {turn % self.lanes}" if self.lanes > 1 else ""
        return f"group {exchange.name or 'of all ranks'}{lane}"

    def _producers(self, piece: Piece, own: set[str]) -> Iterator[int]:
        """Yield the last work of each other stream of computation that may have been a producer for *piece*."""
        for stream in self.computing - own:
            for number in reversed(self.on[stream]):
                other = self.pieces[number]
                later = other.launched > piece.launched  # false if one is not known
                if other.end <= piece.begin + INSTANT and not later:
                    yield number
                    break

    def _awaited(self, piece: Piece, own: set[str], idle: float, number: int) -> Iterator[int]:
        """Yield the work of other streams that ended while the stream of *piece* was idle, which it waited for."""
        for stream, numbers in self.on.items():
            ended = next((n for n in reversed(numbers) if self.pieces[n].end <= piece.begin + INSTANT), None)
            if stream in own or ended is None or self.pieces[ended].end <= idle:
                continue
            other = self.pieces[ended]
            begin = max(idle, other.begin)
            if piece.launched > other.end:
                # the host was not ahead: it waited too, if it launched nothing meanwhile
                begin = max(begin, self._launch_before(number))
            if other.end - begin >= piece.begin - other.end:
                yield ended

    def _launch_before(self, number: int) -> float:
        place = bisect_left(self.launch_times, self.pieces[number].launched)
        return self.launch_times[place - 1] if place else self.step.begin

    def _launches(self) -> Iterator[TracedLaunch]:
        """Yield the launches within the step, in order."""
        ends = sorted((piece.end, number) for number, piece in enumerate(self.pieces))
        calls = sorted(self.trace.synchronised, key=lambda one: one[1])
        call_ends = [end for _, end in calls]
        before = self.step.begin
        for now in self.launch_times:
            awaited = None
            for begin, end in calls[bisect_left(call_ends, before) : bisect_right(call_ends, now)]:
                place = bisect_right(ends, (end + INSTANT, len(ends))) - 1
                awaited = ends[place][1] if place >= 0 and ends[place][0] > begin else awaited
            since = before if awaited is None else max(before, self.pieces[awaited].end)
            yield TracedLaunch(max(0.0, now - since), awaited)
            before = now


def _exchange(trace: RankTrace, piece: Piece) -> TracedExchange:
    call = piece.call
    assert call is not None
    name, group = _group(trace, call)
    source = target = -1
    if call.kind in ("send", "recv"):
        if len(group) != 2 or trace.rank not in group:
            raise TraceError(
                f"{trace.path}: {piece.name[:60]} at {piece.begin:.6f} s names no partner, and its group has "
                f"{len(group)} ranks; messages are replayed in groups of two ranks, or from Chakra, which has partners"
            )
        peer = group[1 - group.index(trace.rank)]
        source, target = (trace.rank, peer) if call.kind == "send" else (peer, trace.rank)
    elif call.kind in ("other", "send_recv"):
        raise TraceError(f"{trace.path}: {piece.name[:60]} at {piece.begin:.6f} s does not say which collective it is")
    return TracedExchange(call.kind, call.nbytes, group, name, source, target)


def _group(trace: RankTrace, call: Call) -> tuple[str, tuple[int, ...]]:
    """Return name and ranks of the group of *call*: all ranks if the trace does not list them."""
    listed = _LIST.search(call.group)
    name = call.group[: listed.start()].strip() if listed else call.group
    ranks = _ranks(listed.group(1), call.ranks) if listed else ()
    if ranks:
        return name, ranks
    if call.kind not in ("send", "recv") and call.ranks not in (trace.world_size, 1):
        raise TraceError(
            f"{trace.path}: a {call.kind} of {call.ranks} of {trace.world_size} ranks does not say which ranks; record "
            "it with a torch that writes Process Group Ranks (2.3 or later)"
        )
    return name, tuple(range(trace.world_size))


def _ranks(text: str, size: int) -> tuple[int, ...]:
    """Return the ranks of a list such as ``0, 1, 2``; torch cuts long ones, ``0, 8, ..., 56``.

    >>> _ranks("0, 1, 2", 3), _ranks("0, 8, ...", 4)
    ((0, 1, 2), (0, 8, 16, 24))
    """
    parts = [part.strip() for part in text.split(",")]
    numbers = [int(part) for part in parts if part.isdigit()]
    if "..." in parts and len(numbers) > 1:
        return tuple(range(numbers[0], numbers[0] + size * (numbers[1] - numbers[0]), numbers[1] - numbers[0]))
    return tuple(json.loads(f"[{text}]")) if numbers else ()
