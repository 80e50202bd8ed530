"""Files of traces on the command line, and the scenario that replays them."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from clustersim.scenarios.real_traces.run import SUFFIXES
from clustersim.scenarios.trace_workload.chakra_file import SUFFIX
from clustersim.simulator.reading.plain_text import name_fault

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
