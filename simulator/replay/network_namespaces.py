"""Network namespaces by iproute2: separate network stacks on one machine, which a process enters by name. A
namespace's name contains the process that made it, so leftovers can be identified.

Namespaces, links and shapers are made by ``ip`` and ``tc``, many lines in one call.
"""

from __future__ import annotations

import ctypes
import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterable, Sequence
from contextlib import suppress
from pathlib import Path

from clustersim.simulator.reading.errors import ClusterError

PREFIX = "clustersim-"
"""Prefix of every namespace. Then follow the process id and its start time, which distinguishes reused ids."""

NAMED = Path("/run/netns")
"""Directory of the handles made by ``ip netns add`` (ip-netns(8))."""

CLONE_NEWNET = 0x40000000
"""Of setns(2): the handle is a network namespace's."""


def unavailable_reason() -> str | None:
    """Return why this machine cannot have a testbed, in a few words; None if it can."""
    if not sys.platform.startswith("linux"):
        return "it needs Linux's network namespaces"
    missing = [tool for tool in ("ip", "tc") if shutil.which(tool) is None]
    if missing:
        return f"it needs iproute2, and there is no {' and no '.join(missing)} here; install the package iproute2"
    if os.geteuid() != 0:
        return "it needs root, to make network namespaces; run the command with sudo"
    return _trial_error(f"{owner()}-trial")


def _trial_error(name: str) -> str | None:
    """Why a namespace *name* cannot have a token bucket; None if it can."""
    try:
        iproute("ip", [f"netns add {name}"])
        iproute("tc", ["qdisc add dev lo root tbf rate 1mbit burst 2000 limit 2000"], name)
    except ClusterError as error:
        return f"it needs network namespaces and token buckets, and {error}"
    finally:
        iproute("ip", [f"netns del {name}"], tolerant=True)
    return None


def iproute(tool: str, lines: Iterable[str], namespace: str | None = None, *, tolerant: bool = False) -> None:
    """Execute *lines* with ``ip`` or ``tc`` in *namespace*, in order.

    Raises `ClusterError` with the failed line and the reason. With *tolerant* failures are ignored.
    """
    command = [tool, *(["-n", namespace] if namespace else []), *(["-force"] if tolerant else []), "-batch", "-"]
    listed = list(lines)
    done = subprocess.run(command, input="\n".join(listed), capture_output=True, text=True, check=False)
    if done.returncode and not tolerant:
        messages = [line for line in done.stderr.splitlines() if not line.startswith("Command failed")]
        numbers = [line.rpartition(":")[2] for line in done.stderr.splitlines() if line.startswith("Command failed")]
        number = int(numbers[0]) if numbers and numbers[0].isdigit() else 1
        failed = listed[min(number, len(listed)) - 1]
        raise ClusterError(f"`{tool} {failed}` fails: {' '.join(messages) or 'without a message'}")


def set_parameters(namespace: str, settings: Sequence[tuple[str, str]]) -> None:
    """Set the kernel parameters ``net.*`` of *namespace*, (name, value) each.

    Parameters that the kernel lacks are skipped.
    """
    script = "\n".join(
        f"[ ! -e {path} ] || echo '{value}' > {path}" for name, value in settings for path in [_path(name)]
    )
    command = ["ip", "netns", "exec", namespace, "sh", "-c", script]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        raise ClusterError(f"the kernel parameters of a namespace cannot be set: {done.stderr.strip()}")


def _path(name: str) -> str:
    return "/proc/sys/" + name.replace(".", "/")


def owner(process: int | None = None) -> str:
    """Return the prefix of the namespaces of *process* (None: this one)."""
    number = os.getpid() if process is None else process
    return f"{PREFIX}{number}-{_started(number)}"


def _started(process: int) -> str:
    """Start time of *process*, in ticks since boot (proc(5), /proc/pid/stat, field 22); empty if it has ended."""
    try:
        text = Path(f"/proc/{process}/stat").read_text(encoding="utf-8", errors="replace")
    except OSError:
        return ""
    return text.rpartition(")")[2].split()[19]


def leftovers() -> list[str]:
    """Return the namespaces of runs whose process has ended."""
    return [name for name in listed(PREFIX) if not _alive(name)]


def listed(prefix: str) -> list[str]:
    """Return the existing namespaces with that prefix."""
    done = subprocess.run(["ip", "netns", "list"], capture_output=True, text=True, check=False)
    names = [line.split()[0] for line in done.stdout.splitlines() if line.strip()]
    return [name for name in names if name.startswith(prefix)]


def _alive(name: str) -> bool:
    number = name.removeprefix(PREFIX).partition("-")[0]
    return number.isdigit() and name.startswith(owner(int(number)) + "-")


def remove(names: Sequence[str]) -> None:
    """Kill all processes in the namespaces *names*, then delete the namespaces with everything in them."""
    for name in names:
        done = subprocess.run(["ip", "netns", "pids", name], capture_output=True, text=True, check=False)
        for process in map(int, done.stdout.split()):
            with suppress(ProcessLookupError):
                os.kill(process, signal.SIGKILL)
    iproute("ip", [f"netns del {name}" for name in names], tolerant=True)


def enter(name: str) -> None:
    """Move this thread, and all threads that it will start, into the namespace *name*. Raises `OSError`; needs root."""
    handle = os.open(NAMED / name, os.O_RDONLY | os.O_CLOEXEC)
    try:
        _setns(handle)
    finally:
        os.close(handle)


def _setns(handle: int) -> None:
    if ctypes.CDLL(None, use_errno=True).setns(handle, CLONE_NEWNET):
        number = ctypes.get_errno()
        raise OSError(number, f"cannot enter the network namespace: {os.strerror(number)}")
