"""What whole processes of the command line take: wall time and the most memory that they held at once."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from time import perf_counter

ROUNDS = 3

COMMANDS = (
    ("--help",),
    ("check", "hello"),
    ("check", "zhores_resnet50_ddp"),
    ("run", "--json", "hello"),
    ("run", "--json", "zhores_resnet50_ddp"),
    ("run", "--json", "zhores_vgg16_parameter_server_vs_ring"),
)


@dataclass(frozen=True)
class Process:
    """A *command* of clustersim: *seconds* from start to end, *peak_bytes* resident."""

    command: str
    seconds: float
    peak_bytes: float


def processes() -> Iterator[Process]:
    """Each command, the fastest of several."""
    for arguments in COMMANDS:
        yield min((_measured(arguments) for _ in range(ROUNDS)), key=lambda process: process.seconds)


def _measured(arguments: tuple[str, ...]) -> Process:
    command = [str(Path(sys.executable).with_name("clustersim")), *arguments]
    begin = perf_counter()
    child = subprocess.Popen(command, stdout=subprocess.DEVNULL)
    _, status, usage = os.wait4(child.pid, 0)
    seconds = perf_counter() - begin
    child.returncode = os.waitstatus_to_exitcode(status)
    if child.returncode:
        raise SystemExit(f"clustersim {' '.join(arguments)} ended with status {child.returncode}")
    # Linux counts in KiB, macOS in bytes: getrusage(2)
    unit = 1 if sys.platform == "darwin" else 1024
    return Process(" ".join(arguments), seconds, usage.ru_maxrss * unit)
