"""What the compression of gradients saves and costs in a step."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from clustersim.simulator.analysis.intervals import partition
from clustersim.simulator.analysis.timeline import Timeline
from clustersim.simulator.reading.units import show
from clustersim.simulator.schedule.ops import Compute, Op
from clustersim.workloads.data_parallel.buckets import Coding

MODEL, ENCODING, DECODING, OTHER = range(4)
"""Kinds of op, the one that counts first if several run at a time."""


@dataclass(frozen=True)
class CompressionNumbers:
    """Of a step, the mean over the GPUs: *gradients* are encoded as *sent* bytes.

    *warm_up*: the share of a run's steps that are not compressed, if known; *start*: their number, if given.
    *encoding*, *decoding*: seconds of its kernels. *exposed*: seconds of these during which the GPU computes nothing
    of the model. The last three are None if the run is too large to keep every span.
    """

    gradients: float
    sent: float
    warm_up: float
    start: int
    encoding: float | None
    decoding: float | None
    exposed: float | None

    @property
    def ratio(self) -> float:
        """How many times fewer bytes are sent in a step that compresses."""
        return self.gradients / self.sent

    @property
    def ratio_of_run(self) -> float:
        """The same over a whole run, with its share of steps that do not compress."""
        return 1.0 / (self.warm_up + (1.0 - self.warm_up) / self.ratio)

    def summary(self) -> dict[str, Any]:
        """The numbers as `run --json` prints them."""
        return {
            "gradient_bytes": self.gradients,
            "sent_bytes": self.sent,
            "ratio": self.ratio,
            "ratio_of_run": self.ratio_of_run,
            "encoding_s": self.encoding,
            "decoding_s": self.decoding,
            "exposed_s": self.exposed,
        }

    def report(self) -> str:
        """The section of a report."""
        before, after = show(self.gradients, "size", 3), show(self.sent, "size", 3)
        lines = [f"compression\n  a GPU encodes {before} of gradients as {after}, {self.ratio:.3g} times less"]
        if self.warm_up:
            first = f"its first {100 * self.warm_up:.3g} % of steps send whole gradients"
            lines.append(f"  {self.ratio_of_run:.3g} times less over a run: {first}; times here are of the others")
        elif self.start:
            lines.append(
                f"  the first {self.start:,} steps of a run send whole gradients; times here are of the others"
            )
        if self.encoding is not None and self.decoding is not None and self.exposed is not None:
            spent = f"encoding {show(self.encoding, 'time')}, decoding {show(self.decoding, 'time')}"
            lines.append(f"  {spent}; {show(self.exposed, 'time')} of both while nothing else is computed")
        return "\n".join(lines)


def compression(timeline: Timeline, steps: float = 0.0) -> CompressionNumbers | None:
    """What compression does in *timeline*; None if it compresses nothing. *steps*: those of the run; 0: not known."""
    schedule, gpus = timeline.schedule, len(timeline.gpu_ranks)
    gradients = sent = warm_up = 0.0
    start = 0
    for number, program in enumerate(schedule.programs):
        for ops, times in program.templates():
            for op in ops:
                if isinstance(op, Coding) and op.sent:
                    count = times * len(schedule.ranks_of(number)) / schedule.batches / gpus
                    gradients, sent = gradients + count * op.gradients, sent + count * op.sent
                    warm_up, start = op.warm_up, op.start
    if not sent:
        return None
    warm_up = min(1.0, start / steps) if start and steps else warm_up
    return CompressionNumbers(gradients, sent, warm_up, start, *_seconds(timeline))


def _seconds(timeline: Timeline) -> tuple[float | None, float | None, float | None]:
    """Seconds of encoding, of decoding, and of both while the model computes nothing, the mean over the GPUs."""
    if timeline.totals is not None:
        return None, None, None
    schedule, total, gpus = timeline.schedule, np.zeros(3), 0
    for rank, ranks in timeline.classes.items():
        if schedule.program(rank).on != "gpu":
            continue
        written = timeline.of(rank)
        kind = schedule.program(rank).column(_kind, np.int64)[written.op]
        low, high = timeline.window
        inside = np.minimum(written.end, high) - np.maximum(written.begin, low)
        each = np.bincount(kind, np.maximum(0.0, inside), OTHER + 1)
        alone = partition(written.begin, written.end, kind, OTHER + 1, timeline.window)
        seconds = np.array([each[ENCODING], each[DECODING], alone[ENCODING] + alone[DECODING]])
        total, gpus = total + len(ranks) * seconds, gpus + len(ranks)
    encoding, decoding, exposed = (total / gpus / timeline.steps_measured).tolist()
    return encoding, decoding, exposed


def _kind(op: Op) -> int:
    if isinstance(op, Coding):
        return DECODING if op.decodes else ENCODING
    return MODEL if isinstance(op, Compute) else OTHER
