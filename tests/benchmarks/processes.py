"""Wall time, CPU time and peak memory of whole processes."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from time import perf_counter

ROOT = Path(__file__).parents[2]

ENTRY = "from clustersim.scenarios.commands.command_line import main; main()"
ENTRY_BEFORE = "from scenarios.command import main; main()"
"""The same where the four packages still lie at the top, as at `claims.BEFORE`."""

CLUSTERSIM = (sys.executable, "-c", ENTRY)
CROSSING = (sys.executable, "-m", "tests.benchmarks.crossing")

BYTECODE = TemporaryDirectory()
"""The folder of compiled modules, so that they are compiled once, as for a user, and no checkout is written."""

LONGEST = 1800.0
"""Seconds after which a process is killed."""


@dataclass(frozen=True)
class Usage:
    """Wall time *seconds*, CPU time *processor* (user and system, s), peak resident memory *peak_bytes*."""

    seconds: float
    processor: float
    peak_bytes: float


def measured(command: Sequence[str], root: Path = ROOT) -> Usage | None:
    """The usage of *command* as a process with the code at *root*; None if it failed or took too long."""
    if not (root / "clustersim" / "scenarios").is_dir():
        # an installed clustersim would be found instead, and the new code measured as the code before
        command = [ENTRY_BEFORE if part == ENTRY else part for part in command]
    kept = {name: value for name, value in os.environ.items() if name != "PYTHONDONTWRITEBYTECODE"}
    with TemporaryDirectory() as folder:
        begin = perf_counter()
        child = subprocess.Popen(
            ["timeout", str(LONGEST), *command],
            cwd=folder,
            env={**kept, "PYTHONPATH": str(root), "PYTHONPYCACHEPREFIX": BYTECODE.name},
            stdout=subprocess.DEVNULL,
        )
        _, status, usage = os.wait4(child.pid, 0)
        seconds = perf_counter() - begin
    child.returncode = os.waitstatus_to_exitcode(status)
    if child.returncode:
        return None
    # Linux counts in KiB, macOS in bytes: getrusage(2)
    unit = 1 if sys.platform == "darwin" else 1024
    return Usage(seconds, usage.ru_utime + usage.ru_stime, usage.ru_maxrss * unit)


@contextmanager
def checked_out(revision: str) -> Iterator[Path]:
    """The folder with the code of *revision*: a temporary worktree; if *revision* is a folder, that folder."""
    if Path(revision).is_dir():
        yield Path(revision).resolve()
        return
    with TemporaryDirectory() as folder:
        tree = Path(folder) / "tree"
        git = ("git", "-C", str(ROOT), "worktree")
        subprocess.run([*git, "add", "--quiet", "--detach", tree, revision], check=True)
        try:
            yield tree
        finally:
            subprocess.run([*git, "remove", "--force", tree], check=True)
