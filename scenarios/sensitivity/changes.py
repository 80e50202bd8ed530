"""Changes of the configuration that could shorten the step: micro-batch, bucket, recomputation, each simulated."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from scenarios import running
from scenarios.build.built import BuiltScenario
from scenarios.results.step_numbers import StepNumbers
from scenarios.running import Watch
from simulator.errors import SimulatorError
from simulator.units import show
from workloads.parallelism.ddp import BUCKET_BYTES


@dataclass(frozen=True)
class Change:
    """*values* by dotted key, and the step time (s) with them; *needs*: the memory of the fullest GPU, as text."""

    values: Mapping[str, Any]
    step_time: float
    needs: str
    fits: bool

    @property
    def text(self) -> str:
        """The change as options of the command line."""
        return " ".join(f"--set {key}={value}" for key, value in self.values.items())


def changes(scenario: BuiltScenario, watch: Watch | None = None) -> Iterator[Change]:
    """Yield the changes of *scenario* that are possible."""
    for values in _candidates(scenario):
        try:
            result = running.run(scenario.changed(values, "a change"), watch)
        except SimulatorError:
            continue
        assert isinstance(result, StepNumbers)
        times = result.step_times or (result.timeline.step_time,)
        yield Change(values, sum(times) / len(times), result.need.amount, result.fits)


def _candidates(scenario: BuiltScenario) -> Iterator[dict[str, Any]]:
    training, size = scenario.specification.training, scenario.derived.micro_batch_size
    assert training is not None
    if not scenario.derived.by_stage:
        if scenario.derived.micro_batches % 2 == 0:
            yield {"training.micro_batch_size": 2 * size}
        if size % 2 == 0:
            yield {"training.micro_batch_size": size // 2}
    data = scenario.specification.parallelism.data
    bucket = getattr(data, "bucket", None) or (BUCKET_BYTES if data.method == "ddp" else None)
    if bucket and scenario.derived.replicas > 1:
        for factor in (0.5, 2.0):
            yield {"parallelism.data.bucket": show(bucket * factor, "size", 6)}
    if training.recompute_method != "none":
        yield {"training.recompute": "none"}
