"""The walk of a communication through the code: the functions that it passes on its way from YAML to a span.

A scenario is run whose only communication is of one kind. A function *handles* the communication if one of its
variables is, at any line, one of its forms: the bucket, exchange or message that it is made from, its op, its plan with
phases and flows, its pending rendezvous, its transfer, or its span. Collections of these are not followed: a function
that hands on a whole program does not count. The functions that were being called when the first form was made come
before these: they lead from the scenario to it. All are listed in order of time. The engine is the reference engine.
"""

from __future__ import annotations

import sys
import tempfile
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from types import FrameType
from typing import Any, NamedTuple

from clustersim.scenarios.scenario import Scenario
from clustersim.simulator.analysis.timeline import Span
from clustersim.simulator.engine.reference.network import Transfer
from clustersim.simulator.engine.reference.simulation import Pending
from clustersim.simulator.network.plan import Flow, Phase, TransferPlan
from clustersim.simulator.schedule.ops import Collective, Op, Recv, Send
from clustersim.workloads.data_parallel.buckets import Bucket
from clustersim.workloads.operators.operator import Exchange
from clustersim.workloads.parallelism._pipeline_messages import PipelineMessage
from tests.structure.imports import PACKAGES, ROOT

SCENARIO = """
version: 1
cluster: {{preset: uniform, gpus: 2, bandwidth: 10 GB/s, latency: 5 us, accelerator: v100_32gb}}
model: {{kind: transformer, num_layers: 2, hidden_size: 64, num_attention_heads: 4, seq_length: 32, vocab_size: 64,
  tie_embeddings: false}}
training: {{global_batch_size: 2, micro_batch_size: 1, precision: fp32, optimizer: sgd}}
parallelism: {{{parallelism}}}
network: {{transport: ideal}}
"""

ENGINE_FORMS = (TransferPlan, Phase, Flow, Pending, Transfer)
"""What the network and the engine make of an op. They do not name it, so all that there are count."""


class Count(NamedTuple):
    """Of a walk: its *files*, its *functions*, and how often it *returns* to a file that it has left."""

    files: int
    functions: int
    returns: int | None = None

    def __str__(self) -> str:
        returns = "" if self.returns is None else f", {self.returns} returns"
        return f"{self.files} files, {self.functions} functions{returns}"


class Stop(NamedTuple):
    """A *function* of the module *file* that handles the communication."""

    file: str
    function: str


@dataclass(frozen=True)
class Walk:
    """*title* of a communication over *axis* in a scenario with that *parallelism*; *forms* it has before its op.

    *before*: the same count of the code at revision e5d7695, before engines and folders were made anew. *by_hand*: what
    a reviewer counted in that code by reading it. The rule of that count is not known, so compare *before* only.
    """

    title: str
    parallelism: str
    axis: str
    forms: tuple[type, ...]
    before: Count
    by_hand: Count | None = None

    def stops(self) -> list[Stop]:
        """The functions that handle it, in order."""
        with tempfile.TemporaryDirectory() as folder:
            path = Path(folder) / "walk.yaml"
            path.write_text(SCENARIO.format(parallelism=self.parallelism))
            return traced(lambda: _spans(path), self.handles)

    def handles(self, value: object) -> bool:
        """True if *value* is one of the forms of the communication."""
        op = value.op if isinstance(value, Span) else value
        if isinstance(op, Op):
            return isinstance(op, Collective | Send | Recv) and op.over == self.axis and op.name != "broadcast"
        return isinstance(value, (*self.forms, *ENGINE_FORMS))


WALKS = (
    Walk(
        "a gradient bucket of DDP",
        "dp: 2, data: {method: ddp, bucket: 1 GB}",
        "dp",
        (Bucket,),
        Count(28, 91, 19),
        Count(17, 46, 7),
    ),
    Walk(
        "an activation between two stages", "pp: 2, dp: 1", "pp", (PipelineMessage,), Count(27, 91, 15), Count(20, 57)
    ),
    Walk("an all-reduce of tensor parallelism", "tp: 2, dp: 1", "tp", (Exchange,), Count(28, 86, 15)),
)


def _spans(path: Path) -> list[Span]:
    """Run the scenario at *path* and read the spans of rank 0."""
    result = Scenario.load(path).run()
    return list(result.timeline.spans(0))


def traced(run: Callable[[], Any], handles: Callable[[object], bool]) -> list[Stop]:
    """The project's functions that handle it while *run* executes, after those that lead to the first of them."""
    roots = tuple(f"{ROOT / package}/" for package in PACKAGES)
    found: dict[Stop, None] = {}

    def watch(frame: FrameType, event: str, value: object) -> Any:
        stop = _stop(frame)
        if stop in found:
            return None
        if any(map(handles, frame.f_locals.values())) or (event == "return" and handles(value)):
            if not found:
                found.update(dict.fromkeys(map(_stop, _callers(frame, roots))))
            found[stop] = None
            return None
        return watch

    def enter(frame: FrameType, event: str, value: object) -> Any:
        return watch(frame, event, value) if _file(frame).startswith(roots) else None

    previous = sys.gettrace()
    sys.settrace(enter)
    try:
        run()
    finally:
        sys.settrace(previous)
    return list(found)


def _callers(frame: FrameType, roots: tuple[str, ...]) -> list[FrameType]:
    """The frames of the project that wait for *frame*, outermost first."""
    callers = []
    caller = frame.f_back
    while caller is not None:
        if _file(caller).startswith(roots):
            callers.append(caller)
        caller = caller.f_back
    return callers[::-1]


def _file(frame: FrameType) -> str:
    """The file of *frame*; `clustersim` leads to the packages by links."""
    return frame.f_code.co_filename.replace(f"{ROOT}/clustersim/", f"{ROOT}/")


def _stop(frame: FrameType) -> Stop:
    """The function of *frame*; a comprehension or a lambda belongs to the function around it."""
    parts = frame.f_code.co_qualname.split(".")
    named = [part for part in parts if not part.startswith("<")]
    return Stop(Path(_file(frame)).relative_to(ROOT).as_posix(), ".".join(named))


def count(stops: list[Stop]) -> Count:
    """The numbers of a walk."""
    files = [stop.file for stop in stops]
    changes = [file for file, last in zip(files, ["", *files], strict=False) if file != last]
    distinct = len(set(files))
    return Count(distinct, len(stops), len(changes) - distinct)


STAGES = {
    "scenario": ("scenarios/",),
    "pass": ("workloads/",),
    "check": ("simulator/schedule/",),
    "timeline": ("simulator/simulate.py", "simulator/analysis/timeline.py"),
    "interpret": ("simulator/engine/reference/",),
    "lower, fold": ("simulator/engine/", "simulator/network/"),
}
"""The stages of `docs/architecture.md` by the files that belong to them; the first that fits counts."""


def by_stage(stops: list[Stop]) -> dict[str, Count]:
    """The numbers of a walk by stage."""
    found: dict[str, list[Stop]] = {}
    for stop in stops:
        stage = next(name for name, paths in STAGES.items() if stop.file.startswith(paths))
        found.setdefault(stage, []).append(stop)
    return {stage: count(own) for stage, own in found.items()}
