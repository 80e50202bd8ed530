"""What whole processes take: wall time, time of the processor, and the most memory that they held at once."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from time import perf_counter

CLUSTERSIM = (str(Path(sys.executable).with_name("clustersim")),)
CROSSING = (sys.executable, "-m", "tests.benchmarks.crossing")

LONGEST = 1800.0
"""Whatever takes longer is ended, s; jitter on all of 12,288 ranks takes half of it."""


@dataclass(frozen=True)
class Usage:
    """*seconds* from start to end, *processor* those that it computed, user's and system's; *peak_bytes* resident."""

    seconds: float
    processor: float
    peak_bytes: float


def measured(command: Sequence[str], rounds: int = 1) -> Usage | None:
    """*command* as a process of its own, the fastest of *rounds*; None if it failed or took too long."""
    usages = [_once(command) for _ in range(rounds)]
    return min((u for u in usages if u), key=lambda usage: usage.processor, default=None)


def _once(command: Sequence[str]) -> Usage | None:
    begin = perf_counter()
    child = subprocess.Popen(["timeout", str(LONGEST), *command], stdout=subprocess.DEVNULL)
    _, status, usage = os.wait4(child.pid, 0)
    seconds = perf_counter() - begin
    child.returncode = os.waitstatus_to_exitcode(status)
    if child.returncode:
        return None
    # Linux counts in KiB, macOS in bytes: getrusage(2)
    unit = 1 if sys.platform == "darwin" else 1024
    return Usage(seconds, usage.ru_utime + usage.ru_stime, usage.ru_maxrss * unit)
