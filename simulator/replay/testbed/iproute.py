"""Network namespaces of one run bear the name of the process that made them, so those of a dead one are found later.

Namespaces, links and shapers are made by iproute2's ``ip`` and ``tc``, many lines in one call.
"""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterable, Sequence
from contextlib import suppress
from pathlib import Path

from simulator.errors import ClusterError

PREFIX = "clustersim-"
"""Of every namespace; then the process's number and when it started, by which a later one of equal number differs."""


def why_not() -> str | None:
    """Why this machine cannot have a testbed, in a few words; None if it can."""
    if not sys.platform.startswith("linux"):
        return "it needs Linux's network namespaces"
    missing = [tool for tool in ("ip", "tc") if shutil.which(tool) is None]
    if missing:
        return f"it needs iproute2, and there is no {' and no '.join(missing)} here; install the package iproute2"
    if os.geteuid() != 0:
        return "it needs root, to make network namespaces; run the command with sudo"
    return _tried(f"{owner()}-trial")


def _tried(name: str) -> str | None:
    """What keeps a namespace of that *name* from having a token bucket; None if it can be had."""
    try:
        iproute("ip", [f"netns add {name}"])
        iproute("tc", ["qdisc add dev lo root tbf rate 1mbit burst 2000 limit 2000"], name)
    except ClusterError as error:
        return f"it needs network namespaces and token buckets, and {error}"
    finally:
        iproute("ip", [f"netns del {name}"], tolerant=True)
    return None


def iproute(tool: str, lines: Iterable[str], namespace: str | None = None, *, tolerant: bool = False) -> None:
    """Have ``ip`` or ``tc`` carry out *lines* in *namespace*, in order.

    Raises `ClusterError` with the line that failed and why; where *tolerant*, what fails is passed over.
    """
    command = [tool, *(["-n", namespace] if namespace else []), *(["-force"] if tolerant else []), "-batch", "-"]
    listed = list(lines)
    done = subprocess.run(command, input="\n".join(listed), capture_output=True, text=True, check=False)
    if done.returncode and not tolerant:
        said = [line for line in done.stderr.splitlines() if not line.startswith("Command failed")]
        numbers = [line.rpartition(":")[2] for line in done.stderr.splitlines() if line.startswith("Command failed")]
        number = int(numbers[0]) if numbers and numbers[0].isdigit() else 1
        failed = listed[min(number, len(listed)) - 1]
        raise ClusterError(f"`{tool} {failed}` fails: {' '.join(said) or 'it does not say why'}")


def setting(namespace: str, settings: Sequence[tuple[str, str]]) -> None:
    """Set the kernel parameters ``net.*`` of *namespace*, a name and a value each; what the kernel has not is left."""
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
    """What the names of the namespaces of *process* (None: this one) begin with."""
    number = os.getpid() if process is None else process
    return f"{PREFIX}{number}-{_started(number)}"


def _started(process: int) -> str:
    """When *process* started, in ticks since boot (proc(5), /proc/pid/stat, field 22); empty if it is gone."""
    try:
        text = Path(f"/proc/{process}/stat").read_text(encoding="utf-8", errors="replace")
    except OSError:
        return ""
    return text.rpartition(")")[2].split()[19]


def leftovers() -> list[str]:
    """The namespaces of runs the process of which lives no more."""
    return [name for name in listed(PREFIX) if not _alive(name)]


def listed(prefix: str) -> list[str]:
    """The namespaces there are, by name, that begin so."""
    done = subprocess.run(["ip", "netns", "list"], capture_output=True, text=True, check=False)
    names = [line.split()[0] for line in done.stdout.splitlines() if line.strip()]
    return [name for name in names if name.startswith(prefix)]


def _alive(name: str) -> bool:
    number = name.removeprefix(PREFIX).partition("-")[0]
    return number.isdigit() and name.startswith(owner(int(number)) + "-")


def remove(names: Sequence[str]) -> None:
    """Kill what still runs in the namespaces *names*, then delete them with all that is in them."""
    for name in names:
        done = subprocess.run(["ip", "netns", "pids", name], capture_output=True, text=True, check=False)
        for process in map(int, done.stdout.split()):
            with suppress(ProcessLookupError):
                os.kill(process, signal.SIGKILL)
    iproute("ip", [f"netns del {name}" for name in names], tolerant=True)
