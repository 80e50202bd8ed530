"""Kineto traces of one step, written event by event."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

Kernel = tuple[str, int, float, float, dict[str, Any]]
"""Name, stream, begin and duration (ms), arguments."""


def all_reduce(begin: float, duration: float, nbytes: int, ranks: int, **args: Any) -> Kernel:
    known = {
        "Collective name": "allreduce",
        "In msg nelems": nbytes,
        "Out msg nelems": nbytes,
        "dtype": "Byte",
        "Group size": ranks,
        "Process Group Name": "dp",
        "Process Group Ranks": str(list(range(ranks))),
    }
    return "ncclDevKernel_AllReduce_Sum_u8_RING_LL()", 20, begin, duration, known | args


def kernel(name: str, begin: float, duration: float, stream: int = 7) -> Kernel:
    return name, stream, begin, duration, {}


def events(kernels: Sequence[Kernel], launches: Sequence[float]) -> list[dict[str, Any]]:
    """The events of one step; kernel n is launched at *launches*[n] (ms)."""
    found = []
    for number, ((name, stream, begin, duration, args), at) in enumerate(zip(kernels, launches, strict=True)):
        where = {"pid": 0, "tid": stream}
        own = {"ph": "X", "cat": "kernel", "name": name, **where, "ts": begin * 1e3, "dur": duration * 1e3}
        found.append({**own, "args": {**args, "stream": stream, "correlation": number + 1}})
        call = {"ph": "X", "cat": "cuda_runtime", "name": "cudaLaunchKernel", "pid": 9, "tid": 1}
        found.append({**call, "ts": at * 1e3, "dur": 1, "args": {"correlation": number + 1}})
    step = {"ph": "X", "cat": "user_annotation", "name": "ProfilerStep#1", "pid": 9, "tid": 1}
    return [*found, {**step, "ts": -1e3, "dur": 1e3, "args": {}}]


def written(folder: Path, ranks: int, several: dict[int, list[dict[str, Any]]], device: str = "") -> Path:
    """The folder with a trace for each rank of *several*, of a run of *ranks*."""
    folder.mkdir(exist_ok=True)
    for rank, own in several.items():
        head: dict[str, Any] = {"distributedInfo": {"backend": "nccl", "rank": rank, "world_size": ranks}}
        if device:
            head["deviceProperties"] = [{"name": device}]
        (folder / f"rank{rank}.json").write_text(json.dumps({**head, "traceEvents": own}))
    return folder
