"""The output of nccl-tests, as text or as JSON (``-J``), read as measurements.

Text and JSON are those of NVIDIA/nccl-tests, src/util.cu (2.18). Text of older versions and of rccl-tests has the same
columns; its header distinguishes it. A time is the out-of-place one, or the in-place one if there is no other.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import field
from math import isfinite
from typing import Any

from clustersim.simulator.reading.dataclass import dataclass
from clustersim.simulator.reading.errors import CalibrationError
from clustersim.simulator.replay.measurements import Measurement

KINDS = {
    "all_reduce": "all_reduce",
    "all_gather": "all_gather",
    "reduce_scatter": "reduce_scatter",
    "broadcast": "broadcast",
    "reduce": "reduce",
    "gather": "gather",
    "scatter": "scatter",
    "alltoall": "all_to_all",
}
"""The collective that a program ``..._perf`` measures."""

_PROGRAM = re.compile(r"\b(\w+?)_perf\b")
_RANK = re.compile(r"#\s+Rank\s+(\d+)\b.*?\bon\s+(\S+)\s+device\s+\d+\s+\[[^\]]*\]\s+(.*\S)")
_LAUNCHER = re.compile(r"^\[[\d,]+\]<std\w+>:\s?")
_VERSION = re.compile(r"NCCL version (\d+\.\d+)|nccl-library=(\d+)")
_THREADS = re.compile(r"# nThreads?:? (\d+) nGpus:? (\d+)")


@dataclass(frozen=True)
class Sweeps:
    """*measurements* of ranks on *hosts* (a name for each rank; empty if unknown), each with a *gpu* of that name.

    *version*: of NCCL, as 2.20; empty if unknown.
    """

    measurements: tuple[Measurement, ...]
    ranks: int
    hosts: tuple[str, ...] = ()
    gpu: str = ""
    version: str = ""

    @property
    def servers(self) -> int:
        """The number of hosts; 1 if unknown."""
        return max(1, len(set(self.hosts)))


def of_text(text: str, name: str) -> Sweeps:
    """Return the sweeps in nccl-tests' *text*.

    *name*: of the file, for errors. Raises `CalibrationError` with the line.
    """
    reader = _TextReader(name)
    for number, line in enumerate(text.splitlines(), start=1):
        reader.take(number, _LAUNCHER.sub("", line))
    return reader.sweeps()


def is_text(text: str) -> bool:
    """Whether *text* has nccl-tests' table."""
    return bool(re.search(r"#\s+size\s+count", text))


def has_rows(text: str) -> bool:
    """Whether *text* has lines such as those of nccl-tests' table: a size, a count, a type, and times."""
    return bool(re.search(r"^\s*\d+\s+\d+\s+[a-z]\w*\s+\S+\s+-?\d+(\s+[\d.]+){3}", text, re.MULTILINE))


@dataclass
class _TextReader:
    """Reads lines one by one. A file may hold several runs."""

    name: str
    kind: str | None = None
    columns: Sequence[str] = ()
    threads: int = 0
    version: str = ""
    hosts: dict[int, str] = field(default_factory=dict)
    gpus: dict[str, None] = field(default_factory=dict)
    measurements: list[Measurement] = field(default_factory=list)

    def take(self, number: int, line: str) -> None:
        """Read line *number*."""
        if program := _PROGRAM.search(line):
            self.kind = program[1]
        if version := _VERSION.search(line):
            self.version = version[1] or _version(int(version[2]))
        if rank := _RANK.match(line):
            self.hosts[int(rank[1])] = rank[2]
            self.gpus[rank[3]] = None
        elif threads := _THREADS.match(line):
            self.threads, self.hosts = int(threads[1]) * int(threads[2]), {}
        elif re.match(r"#\s+size\s+count", line):
            self.columns = line.lstrip("# ").split()
        elif re.match(r"\s*\d", line) and self.columns:
            self._row(number, line.split())

    def _row(self, number: int, cells: Sequence[str]) -> None:
        where = f"{self.name}:{number}"
        if len(cells) < self.columns.index(self._time) + 1:
            raise CalibrationError(f"{where}: has {len(cells)} columns; the header has {len(self.columns)}: cut off?")
        row: dict[str, str] = {}
        for column, cell in zip(self.columns, cells, strict=False):
            row.setdefault(column, cell)  # out-of-place columns precede in-place ones
        places = [place for place, column in enumerate(self.columns) if column == self._time]
        times = [_number(cells[place]) for place in places if place < len(cells)]
        microseconds = next((time for time in times if time), None)
        nbytes = _number(row["size"])
        if nbytes is None:
            raise CalibrationError(f"{where}: size must be bytes, not {cells[0]}")
        if nbytes and microseconds:
            ranks = self._ranks(where)
            kind = _kind(self.kind, row, ranks, where)
            self.measurements.append(Measurement(kind, tuple(range(ranks)), nbytes, microseconds * 1e-6))

    @property
    def _time(self) -> str:
        return "cputime" if "cputime" in self.columns else "time"

    def _ranks(self, where: str) -> int:
        ranks = len(self.hosts) or self.threads
        if ranks < 2:
            raise CalibrationError(
                f"{where}: the lines above do not list two or more ranks (# Rank 0 ... on HOST device 0 [...] GPU)"
            )
        return ranks

    def sweeps(self) -> Sweeps:
        """Return all sweeps read so far."""
        if not self.measurements:
            raise CalibrationError(f"{self.name}: has no row of nccl-tests with a time")
        hosts = tuple(host for _, host in sorted(self.hosts.items()))
        ranks = max(len(one.ranks) for one in self.measurements)
        return Sweeps(tuple(self.measurements), ranks, hosts, next(iter(self.gpus), ""), self.version)


def of_json(data: Mapping[str, Any], name: str) -> Sweeps:
    """Return the sweeps in nccl-tests' JSON report. Raises `CalibrationError` with the missing part."""
    config = data.get("config")
    if not isinstance(config, dict):
        raise CalibrationError(f"{name}: has no config; is it nccl-tests' report (-J)?")
    devices = [one for one in config.get("devices", ()) if isinstance(one, dict)]
    ranks = max(len(devices), int(config.get("nthreads", 1)) * int(config.get("ngpus", 1)))
    hosts = tuple(str(one.get("hostname", "")) for one in devices) if len(devices) == ranks else ()
    measurements = tuple(_json_rows(data, ranks, name))
    if not measurements:
        raise CalibrationError(f"{name}: has no result with a time")
    gpu = str(devices[0].get("device_info", "")) if devices else ""
    version = data.get("nccl_version")
    return Sweeps(measurements, ranks, hosts, gpu, _version(version) if isinstance(version, int) else "")


def _json_rows(data: Mapping[str, Any], ranks: int, name: str) -> Iterator[Measurement]:
    arguments = data.get("args")
    program = _PROGRAM.search(str(arguments[0])) if isinstance(arguments, list) and arguments else None
    for number, row in enumerate(data["results"]):
        where = f"{name}: results[{number}]"
        if not isinstance(row, dict):
            raise CalibrationError(f"{where}: must be an object, not {json.dumps(row)[:40]}")
        timed = [row[key] for key in ("out_of_place", "in_place") if isinstance(row.get(key), dict)]
        times = [_number(one.get("time", one.get("cpu_time"))) for one in timed]
        microseconds, nbytes = next((time for time in times if time), None), _number(row.get("size"))
        if nbytes and microseconds:
            if ranks < 2:
                raise CalibrationError(
                    f"{where}: {ranks} rank by config (nthreads x ngpus, or devices); there must be two or more"
                )
            cells = {**row, "algbw": timed[0].get("alg_bw"), "busbw": timed[0].get("bus_bw")}
            kind = _kind(program[1] if program else None, cells, ranks, where)
            yield Measurement(kind, tuple(range(ranks)), nbytes, microseconds * 1e-6)


def _kind(program: str | None, row: Mapping[str, Any], ranks: int, where: str) -> str:
    """The collective: by the program's name, else by root, reduction, and bus bandwidth over algorithm bandwidth."""
    if program is not None:
        if program not in KINDS:
            raise CalibrationError(f"{where}: {program}_perf is unknown; there are {', '.join(KINDS)}")
        return KINDS[program]
    reduces, rooted = row.get("redop") not in ("none", None), str(row.get("root", "-1")).strip() != "-1"
    if rooted:
        return "reduce" if reduces else "broadcast"
    alg, bus = _number(row.get("algbw")), _number(row.get("busbw"))
    if not reduces:
        return "all_gather"
    if not alg or not bus:
        raise CalibrationError(
            f"{where}: the collective is unknown; write the program's name on the first line, e.g. # all_reduce_perf"
        )
    return "all_reduce" if bus / alg > 1.5 * (ranks - 1) / ranks else "reduce_scatter"


def _number(value: Any) -> float | None:
    try:
        number = float(value)
    except (TypeError, ValueError):
        return None
    return number if isfinite(number) and number >= 0 else None


def _version(code: int) -> str:
    """NCCL_VERSION_CODE as 2.20 (src/nccl.h.in: from 2.9 on 10,000 for the major version, before that 1,000).

    >>> _version(22005), _version(2708)
    ('2.20', '2.7')
    """
    major, rest = divmod(code, 10_000) if code >= 10_000 else divmod(code, 1_000)
    return f"{major}.{rest // 100}"
