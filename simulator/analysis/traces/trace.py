"""Traces of a timeline for trace viewers, in Perfetto's own format or in Chrome's JSON.

Each rank is a process with a track for each stream. Arrows run from each send to its receive, and along the critical
path where it changes streams.
"""

from __future__ import annotations

import gzip
import json
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

from simulator.analysis.files import suffix_of
from simulator.analysis.rows import chosen
from simulator.analysis.traces.perfetto import perfetto
from simulator.analysis.traces.slices import Slices, Track, op_texts, process_name, slices, tracks
from simulator.files import written
from simulator.schedule import Program
from simulator.timeline import Timeline

MOST_SPANS = 1_000_000
"""Spans that a viewer in a browser can still show; as JSON about 200 MB."""


def write(timeline: Timeline, path: Path | str, ranks: Sequence[int] | None = None) -> None:
    """Write *timeline*, or its *ranks* alone, to *path*: ``.pftrace`` Perfetto, ``.json`` or ``.json.gz`` Chrome.

    Without *ranks*, the trace has one rank of each class of equal ranks if all have more than `MOST_SPANS` spans, or
    if the spans of some were not kept. The same timeline gives the same bytes. Raises `SimulatorError` for another
    suffix, for an unknown rank, and if the file cannot be written.
    """
    path = Path(path)
    form = FORMS[suffix_of(path, FORMS)]
    if ranks is None:
        kept = [first for first in timeline.classes if first in timeline.columns]
        all_kept = sum(len(timeline.classes[first]) for first in kept) == timeline.world_size
        ranks = None if all_kept and timeline.ops <= MOST_SPANS else kept
    content = form(timeline, chosen(timeline, ranks, most=timeline.world_size))
    with written(path) as beside:
        beside.write_bytes(content)


def chrome(timeline: Timeline, ranks: Sequence[int]) -> bytes:
    """Return the timeline in Chrome's trace event format, JSON object form; times in µs."""
    text = ",\n".join(_chrome_events(timeline, ranks))
    return f'{{"displayTimeUnit":"ms","traceEvents":[\n{text}\n]}}\n'.encode()


def _chrome_events(timeline: Timeline, ranks: Sequence[int]) -> Iterator[str]:
    for rank in ranks:
        yield _named("process_name", rank, 0, name=process_name(timeline, rank))
        yield _named("process_sort_index", rank, 0, sort_index=rank)
        for track in tracks(timeline, rank):
            yield _named("thread_name", rank, track.number + 1, name=track.stream)
            yield _named("thread_sort_index", rank, track.number + 1, sort_index=track.number)
    known: dict[int, list[tuple[str, str, str]]] = {}
    for track, content in slices(timeline, ranks):
        number = timeline.schedule.program_of[track.rank]
        if number not in known:
            known[number] = _chrome_texts(timeline.schedule.programs[number])
        yield from _chrome_slices(track, content, known[number], timeline.schedule.steps > 1)


def _named(what: str, rank: int, thread: int, **args: str | int) -> str:
    return _json({"ph": "M", "name": what, "pid": rank, "tid": thread, "args": args})


def _json(value: object) -> str:
    return json.dumps(value, separators=(",", ":"))


def _chrome_texts(program: Program) -> list[tuple[str, str, str]]:
    """Return for each op its quoted name, name and category as members of an event, and its arguments as members."""
    texts = op_texts(program)
    return [
        (
            _json(name),
            f'"name":{_json(name)},"cat":"{kind}"',
            "".join(f",{_json(k)}:{_json(v)}" for k, v in args.items()),
        )
        for name, kind, args in zip(*texts, strict=True)
    ]


def _chrome_slices(track: Track, content: Slices, texts: Sequence[tuple[str, str, str]], steps: bool) -> Iterator[str]:
    place = f'"pid":{track.rank},"tid":{track.number + 1}'
    message, path = (f'"name":"{name}","cat":"{name}",{place}' for name in ("message", "critical path"))
    micro = ((column * 1e6).tolist() for column in content[2:6])
    arrows = (column.tolist() for column in content[6:])
    rows = zip(content.op.tolist(), content.step.tolist(), *micro, *arrows, strict=True)
    for op, step, ready, waits, begin, end, sends, receives, leaves, enters, critical in rows:
        name, named, args = texts[op]
        if begin > waits:
            yield (
                f'{{"ph":"X","name":"wait","cat":"wait",{place},"ts":{waits!r},"dur":{begin - waits!r},'
                f'"args":{{"for":{name}}}}}'
            )
        details = (f',"step":{step}' if steps else "") + (',"critical_path":true' if critical else "")
        yield (
            f'{{"ph":"X",{named},{place},"ts":{begin!r},"dur":{end - begin!r},'
            f'"args":{{"waited_us":{begin - ready!r}{args}{details}}}}}'
        )
        # an arrow belongs to the slice around its time stamp; therefore its ends are well inside their slices
        if sends:
            yield f'{{"ph":"s",{message},"id":{sends},"ts":{0.75 * begin + 0.25 * end!r}}}'
        if receives:
            yield f'{{"ph":"f","bp":"e",{message},"id":{receives},"ts":{0.25 * begin + 0.75 * end!r}}}'
        if leaves:
            yield f'{{"ph":"s",{path},"id":{leaves},"ts":{0.1 * begin + 0.9 * end!r}}}'
        if enters:
            yield f'{{"ph":"f","bp":"e",{path},"id":{enters},"ts":{0.9 * begin + 0.1 * end!r}}}'


def _compressed(timeline: Timeline, ranks: Sequence[int]) -> bytes:
    return gzip.compress(chrome(timeline, ranks), mtime=0)


FORMS: dict[str, Callable[[Timeline, Sequence[int]], bytes]] = {
    ".pftrace": perfetto,
    ".json": chrome,
    ".json.gz": _compressed,
}
"""The forms of a trace by the suffix of its file."""
