"""A trace file of torch.profiler (Kineto), JSON or gzip: checked events with times in seconds."""

from __future__ import annotations

import gzip
import json
import zlib
from collections.abc import Iterator, Mapping
from contextlib import suppress
from math import isfinite
from pathlib import Path
from typing import Any, NamedTuple

from clustersim.simulator.reading.dataclass import dataclass
from clustersim.simulator.reading.errors import TraceError
from clustersim.simulator.reading.plain_text import printable, written

LARGEST = 2 * 2**30
"""Bytes of JSON of one rank, uncompressed. A trace of a few steps has some 100 MB; Python needs ten times as much."""

CHUNK = 2**24
"""Bytes that are decompressed at a time."""


MICRO = 1e6
"""Microseconds, the unit of the file, in a second."""

LONGEST = 10**18
"""Microseconds, or nanoseconds of a clock: numbers beyond are no times."""


LONGEST_NAME = 2_000
"""Characters of a name that are kept: names of templates of kernels are long."""


class Event(NamedTuple):
    """A complete event: *category* such as ``kernel``, *name*, process and thread, *begin* and *duration* (s)."""

    category: str
    name: str
    process: str
    thread: str
    begin: float
    duration: float
    args: Mapping[str, Any]

    @property
    def end(self) -> float:
        """When it ended, s."""
        return self.begin + self.duration


@dataclass(frozen=True)
class TraceFile:
    """The *events* of the file at *path* in order of time, from its first event on, and its other keys, the *head*.

    *origin*: the time of the first event on the clock of the host, s.
    """

    path: Path
    head: Mapping[str, Any]
    events: tuple[Event, ...]
    origin: float


def read(path: Path) -> TraceFile:
    """Return the trace at *path*. Raises `TraceError` with file and place for what is no trace."""
    data = _json(path, _bytes(path))
    head, events = ({}, data) if isinstance(data, list) else (data, None)
    if not isinstance(head, dict):
        raise TraceError(
            f"{path}: must be an object with traceEvents, as torch.profiler writes it, not {written(data)}"
        )
    if events is None:
        events = head.get("traceEvents")
    if not isinstance(events, list):
        what = "is missing" if events is None else f"must be a list, not {written(events)}"
        raise TraceError(f"{path}: traceEvents {what}; give a trace of torch.profiler's export_chrome_trace")
    checked = sorted(_checked(path, events), key=lambda event: (event.begin, -event.duration))
    if not checked:
        raise TraceError(f"{path}: has no events with a duration; was the profiler active for a step?")
    origin = checked[0].begin
    moved = tuple(
        event._replace(begin=(event.begin - origin) / MICRO, duration=event.duration / MICRO) for event in checked
    )
    base = head.get("baseTimeNanoseconds", 0)
    known = base * 1e-9 if isinstance(base, int) and abs(base) < LONGEST else 0.0
    others = {key: value for key, value in head.items() if key != "traceEvents"}
    return TraceFile(path, others, moved, origin / MICRO + known)


def _bytes(path: Path) -> bytes:
    """Return the content of *path*, decompressed if it is gzip."""
    if path.is_dir():
        raise TraceError(f"{path}: is a directory")
    if path.exists() and not path.is_file():
        raise TraceError(f"{path}: is a device or a pipe; give a file")
    try:
        with path.open("rb") as file:
            packed = file.read(2) == b"\x1f\x8b"
        with gzip.open(path, "rb") if packed else path.open("rb") as opened:
            parts, total = [], 0
            while part := opened.read(CHUNK):
                parts.append(part)
                total += len(part)
                if total > LARGEST:
                    raise TraceError(f"{path}: has more than {LARGEST // 2**30} GiB of JSON; record fewer steps")
    except (EOFError, zlib.error, gzip.BadGzipFile) as error:
        reason = "ends early" if isinstance(error, EOFError) else "is damaged"
        raise TraceError(f"{path}: the gzip file {reason}; copy it again, or record it again") from None
    except (OSError, ValueError) as error:
        raise TraceError(f"{path}: cannot be read: {getattr(error, 'strerror', None) or error}") from None
    return b"".join(parts)


def _json(path: Path, content: bytes) -> Any:
    try:
        # names of kernels may hold control characters, and bytes that are not UTF-8
        return json.loads(content.decode("utf-8-sig", errors="replace"), strict=False)
    except json.JSONDecodeError as error:
        text = error.doc.rstrip()
        ends = error.pos >= len(text) or text[-1] not in "]}"
        reason = "ends early: was the profiler stopped before the file was complete?" if ends else "is not valid JSON"
        raise TraceError(f"{path}:{error.lineno}:{error.colno}: {reason}") from None
    except RecursionError:
        raise TraceError(f"{path}: is not valid JSON: it is nested too deeply") from None
    except ValueError:
        raise TraceError(f"{path}: has a number of thousands of digits") from None


def _checked(path: Path, events: list[Any]) -> Iterator[Event]:
    """Yield the complete events (``"ph": "X"``) among *events*, in µs; the others have no duration."""
    for place, event in enumerate(events):
        if not isinstance(event, dict):
            raise TraceError(f"{path}: traceEvents[{place}] must be an object, not {written(event)}")
        if event.get("ph") != "X" or event.get("cat") == "Trace":
            continue
        args = event.get("args")
        name = event.get("name", "")
        begin, duration = (_micros(path, place, event, key) for key in ("ts", "dur"))
        if duration < 0:
            raise TraceError(f"{path}: traceEvents[{place}].dur must not be negative, and is {written(event['dur'])}")
        yield Event(
            str(event.get("cat", "")).lower(),
            printable_name(name),
            str(event.get("pid")),
            str(event.get("tid")),
            begin,
            duration,
            args if isinstance(args, dict) else {},
        )


def printable_name(name: Any) -> str:
    """Return *name* in one line that is safe on a terminal."""
    return " ".join(printable(str(name)[:LONGEST_NAME]).split())


def _micros(path: Path, place: int, event: Mapping[str, Any], key: str) -> float:
    value = event.get(key, 0 if key == "dur" else None)
    if isinstance(value, str):
        # Chrome's format allows numbers as texts
        with suppress(ValueError):
            value = float(value)
    if isinstance(value, bool) or not isinstance(value, int | float) or not abs(value) < LONGEST or not isfinite(value):
        raise TraceError(f"{path}: traceEvents[{place}].{key} must be a number of microseconds, not {written(value)}")
    return float(value)
