"""A report of Nsight Systems, exported to SQLite, as a trace: kernels, copies, calls that launch them, NVTX ranges.

``nsys export --type sqlite report.nsys-rep`` writes a table for each kind of event, with times in nanoseconds and names
as numbers of StringIds (Nsight Systems, User Guide, "SQLite Schema Reference"). Processes and threads are parts of a
``globalTid``. A report is of one rank; its file is named for it (``rank3.sqlite``), since no table has the rank.

NVTX ranges stand for torch's annotations: those of ``torch.autograd.profiler.emit_nvtx`` are operators with their
shapes, and ranges that a training program names for a step or a phase are taken as such.
"""

from __future__ import annotations

import re
import sqlite3
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

from clustersim.scenarios.real_traces.trace_file import LARGEST, LONGEST, Event, TraceFile, printable_name
from clustersim.simulator.reading.errors import TraceError

MAGIC = b"SQLite format 3\0"
REPORTS = (".nsys-rep", ".qdrep")
"""Reports that are not exported."""

NANO = 1e9
"""Nanoseconds, the unit of the tables, in a second."""

COPIES = {1: "HtoD", 2: "DtoH", 8: "DtoD", 10: "PtoP"}
"""The way of a copy by CUPTI's CUpti_ActivityMemcpyKind."""

RANGES = (59, 60)
"""eventType of NVTX ranges: pushed and popped, or started and ended."""

BITS = 24
"""Bits of a globalTid for the thread, and for the process above them."""

STEP = re.compile(r"^(?:train(?:ing)?[ _]?)?(?:step|iteration|iter|batch)[ _#:=-]*(\d+)$", re.IGNORECASE)
BACKWARD = re.compile(r"^(?:backward|bwd)\b", re.IGNORECASE)
OPTIMIZER = re.compile(r"^(?:optimizer|optim|opt)\b", re.IGNORECASE)
OPERATOR = re.compile(
    r"^(?P<name>[\w:.]+::[\w:. ]+?)(?:, seq = \d+)?(?:, op_id = \d+)?(?:, sizes = (?P<sizes>\[.*\]).*)?$"
)
_RANK = re.compile(r"rank[_.-]?(\d{1,6})", re.IGNORECASE)


def recognises(path: Path) -> bool:
    """Return whether *path* is an SQLite file. Raises `TraceError` for a report that is not exported."""
    if path.name.endswith(REPORTS):
        raise TraceError(f"{path}: is a report of Nsight Systems; export it: nsys export --type sqlite {path.name}")
    if not path.is_file():  # opening a named pipe would wait for who writes to it
        return False
    try:
        with path.open("rb") as file:
            return file.read(len(MAGIC)) == MAGIC
    except OSError:
        return False


def read(path: Path) -> TraceFile:
    """Return the report at *path*. Raises `TraceError` for a file that is damaged or of another program."""
    if path.stat().st_size > LARGEST:
        raise TraceError(f"{path}: has more than {LARGEST // 2**30} GiB; record fewer steps")
    try:
        with closing(sqlite3.connect(f"{path.resolve().as_uri()}?mode=ro", uri=True)) as database:
            return _Report(path, database).trace()
    except sqlite3.Error as error:
        raise TraceError(f"{path}: is no sound SQLite file: {error}") from None


class _Report:
    """The tables of the file at *path*."""

    def __init__(self, path: Path, database: sqlite3.Connection) -> None:
        self.path, self.database = path, database
        self.tables = {name for (name,) in database.execute("SELECT name FROM sqlite_master WHERE type = 'table'")}
        self.strings = {row["id"]: row["value"] for row in self._rows("StringIds", "id", "value")}

    def trace(self) -> TraceFile:
        """All events, in order of time from the first one on."""
        if "StringIds" not in self.tables:
            raise TraceError(f"{self.path}: has no table StringIds; give an export of Nsight Systems")
        kernels = [*self._kernels(), *self._copies()]
        calls = list(self._calls())
        self._one_process(calls)
        events = [*kernels, *calls, *self._ranges(calls)]
        if not events:
            raise TraceError(f"{self.path}: has no CUDA events or NVTX ranges; record with nsys profile -t cuda,nvtx")
        events.sort(key=lambda event: (event.begin, -event.duration))
        origin = events[0].begin
        moved = tuple(event._replace(begin=event.begin - origin) for event in events)
        started = [row["utcEpochNs"] for row in self._rows("TARGET_INFO_SESSION_START_TIME", "utcEpochNs")]
        clock = started[0] / NANO if started and isinstance(started[0], int) else 0.0
        return TraceFile(self.path, self._head(), moved, origin + clock)

    def _head(self) -> dict[str, Any]:
        devices = [{"name": str(row["name"])} for row in self._rows("TARGET_INFO_GPU", "name")]
        named = _RANK.search(self.path.name)
        if named is None:
            return {"deviceProperties": devices}
        ranks = {int(found[1]) for one in self.path.parent.iterdir() if (found := _RANK.search(one.name))}
        return {"deviceProperties": devices, "distributedInfo": {"rank": int(named[1]), "world_size": max(ranks) + 1}}

    def _kernels(self) -> Iterator[Event]:
        columns = "start", "end", "deviceId", "streamId", "correlationId", "demangledName"
        for row in self._rows("CUPTI_ACTIVITY_KIND_KERNEL", *columns):
            yield self._on_gpu("kernel", self._text(row["demangledName"]), row)

    def _copies(self) -> Iterator[Event]:
        columns = "start", "end", "deviceId", "streamId", "correlationId"
        for row in self._rows("CUPTI_ACTIVITY_KIND_MEMCPY", *columns, "copyKind"):
            yield self._on_gpu("gpu_memcpy", f"Memcpy {COPIES.get(row['copyKind'], 'of another kind')}", row)
        for row in self._rows("CUPTI_ACTIVITY_KIND_MEMSET", *columns):
            yield self._on_gpu("gpu_memset", "Memset", row)

    def _on_gpu(self, category: str, name: str, row: sqlite3.Row) -> Event:
        args = {"device": row["deviceId"], "stream": row["streamId"], "correlation": row["correlationId"]}
        begin, duration = self._times(row)
        return Event(category, name, str(row["deviceId"]), str(row["streamId"]), begin, duration, args)

    def _calls(self) -> Iterator[Event]:
        """Calls of CUDA on the host."""
        for row in self._rows("CUPTI_ACTIVITY_KIND_RUNTIME", "start", "end", "globalTid", "correlationId", "nameId"):
            begin, duration = self._times(row)
            place = _process_and_thread(row["globalTid"])
            name, args = self._text(row["nameId"]), {"correlation": row["correlationId"]}
            yield Event("cuda_runtime", name, *place, begin, duration, args)

    def _ranges(self, calls: list[Event]) -> Iterator[Event]:
        """NVTX ranges on threads of the host; that of a backward pass also on autograd's thread, which launches it."""
        threads = sorted({(call.process, call.thread) for call in calls})
        for row in self._rows("NVTX_EVENTS", "start", "end", "eventType", "text", "textId", "globalTid"):
            if row["eventType"] not in RANGES or row["end"] is None:
                continue
            begin, duration = self._times(row)
            text = printable_name(row["text"]) if row["text"] is not None else self._text(row["textId"])
            name, args = _named(text)
            own = _process_and_thread(row["globalTid"])
            yield Event("user_annotation", name, *own, begin, duration, args)
            if BACKWARD.match(text):
                for process, thread in threads:
                    if process == own[0] and thread != own[1]:
                        yield Event("user_annotation", name, process, thread, begin, duration, args)

    def _one_process(self, calls: list[Event]) -> None:
        """Raise `TraceError` if the report is of several processes."""
        processes = {call.process for call in calls if call.name.startswith("cudaLaunch")}
        if len(processes) > 1:
            how = "nsys profile -o rank%q{RANK} for each rank, below torchrun"
            raise TraceError(f"{self.path}: has kernels of {len(processes)} processes; record one a report: {how}")

    def _times(self, row: sqlite3.Row) -> tuple[float, float]:
        """Begin and duration, s."""
        begin, end = row["start"], row["end"]
        if not (isinstance(begin, int) and isinstance(end, int) and 0 <= begin <= end < LONGEST):
            raise TraceError(f"{self.path}: an event begins at {begin} and ends at {end}; both must be nanoseconds")
        return begin / NANO, (end - begin) / NANO

    def _text(self, number: Any) -> str:
        return printable_name(self.strings.get(number, ""))

    def _rows(self, table: str, *columns: str) -> Iterator[sqlite3.Row]:
        """The *columns* of *table*, nothing if the report lacks it. Raises `TraceError` for a missing column."""
        if table not in self.tables:
            return
        cursor = self.database.cursor()
        cursor.row_factory = sqlite3.Row
        there = {row["name"] for row in cursor.execute(f'PRAGMA table_info("{table}")')}
        if lacking := [column for column in columns if column not in there]:
            raise TraceError(f"{self.path}: table {table} has no column {', '.join(lacking)}")
        names = ", ".join(f'"{column}"' for column in columns)
        yield from cursor.execute(f'SELECT {names} FROM "{table}"')


def _process_and_thread(number: Any) -> tuple[str, str]:
    known = number if isinstance(number, int) else 0
    return str(known >> BITS & (1 << BITS) - 1), str(known & (1 << BITS) - 1)


def _named(text: str) -> tuple[str, dict[str, Any]]:
    """The name of a range as torch.profiler has it, and its shapes.

    >>> _named("iteration 12"), _named("aten::mm, seq = 3, op_id = 7, sizes = [[2, 3], [3, 4]]")
    (('ProfilerStep#12', {}), ('aten::mm', {'Input Dims': [[2, 3], [3, 4]]}))
    """
    if step := STEP.match(text):
        return f"ProfilerStep#{step[1][:12]}", {}
    if OPTIMIZER.match(text):
        return f"Optimizer.step#{text}", {}
    if BACKWARD.match(text):
        return f"torch::autograd::{text}", {}
    if found := OPERATOR.match(text):
        return found["name"], {"Input Dims": dims} if (dims := _sizes(found["sizes"])) else {}
    return text, {}


def _sizes(text: str | None) -> list[Any]:
    """The list of lists of numbers in *text*; empty if it is none."""
    if not text or not re.fullmatch(r"[\[\]\d, ]*", text) or text.count("[") > 100:
        return []
    groups = re.findall(r"\[([\d, ]*)\]", text)
    return [[int(one) for one in group.split(",") if one.strip().isdigit()] for group in groups]
