"""Throughput and utilisation of a training step whose time is known, simulated or measured."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from scenarios.build.built import BuiltScenario
from simulator.accelerator import Accelerator
from simulator.analysis.metrics import hardware_flops, model_flops
from simulator.schedule import Schedule


@dataclass(frozen=True)
class Utilisation:
    """What *gpus* GPUs do in a step of *seconds*: FLOPs of the *model*, and those *executed*, of all of them together.

    *precision*, *peak*: the fastest products of the step, and their dense FLOP/s on the slowest GPU. *samples* and
    *tokens* of a step; *parameters*: the active ones, None where 6 N D does not count right.
    """

    gpus: int
    seconds: float
    model: float
    executed: float
    precision: str
    peak: float
    samples: int
    tokens: int
    parameters: int | None

    def summary(self) -> dict[str, float | None]:
        """Return the numbers by the keys of a result."""
        achieved, executed = self._rate(self.model), self._rate(self.executed)
        samples = self.samples / self.seconds if self.seconds else 0.0
        return {
            "samples_per_s": samples,
            "tokens_per_s": samples * (self.tokens // self.samples),
            "model_tflops_per_gpu": achieved / 1e12,
            "hardware_tflops_per_gpu": executed / 1e12,
            "mfu": achieved / self.peak,
            "mfu_6nd": self.mfu_6nd,
            "hfu": executed / self.peak,
        }

    @property
    def mfu_6nd(self) -> float | None:
        """6 N D / (GPUs x peak x step time), for N parameters and D tokens of a step; None if it does not apply.

        Kaplan et al. 2020 (arXiv:2001.08361, section 2.1): 6 FLOPs a parameter and token. Unlike the MFU, it leaves
        out the products of attention scores, and counts parameters of embeddings that no product uses.
        """
        if self.parameters is None:
            return None
        available = self.gpus * self.seconds * self.peak
        return 6.0 * self.parameters * self.tokens / available if available else 0.0

    def _rate(self, flops: float) -> float:
        """Return FLOP/s of one GPU, the mean over the step."""
        available = self.gpus * self.seconds
        return flops / available if available else 0.0


def utilisation(
    scenario: BuiltScenario, schedule: Schedule, gpus: Mapping[Accelerator, int], seconds: float
) -> Utilisation:
    """Return what *gpus* (types with counts) do in a step of *schedule*, a training step of *scenario*."""
    training, model = scenario.specification.training, scenario.model
    assert training is not None
    assert model is not None
    tokens = training.global_batch_size * model.tokens_per_sample
    # gradients of frozen parameters are not computed, so that 6ND counts too many
    six = tokens and model.trainable_parameters == model.parameters
    return Utilisation(
        sum(schedule.programs[number].on == "gpu" for number in schedule.program_of),
        seconds,
        model_flops(schedule),
        hardware_flops(schedule),
        *peak(scenario, schedule, gpus),
        training.global_batch_size,
        tokens,
        model.active_parameters if six else None,
    )


def peak(scenario: BuiltScenario, schedule: Schedule, gpus: Mapping[Accelerator, int]) -> tuple[str, float]:
    """Return (precision, dense FLOP/s) of the fastest products of *schedule* on the slowest of *gpus*."""
    precisions = {
        kernel.precision
        for program in schedule.programs
        if program.on == "gpu"
        for op in program.distinct()
        for kernel in getattr(op, "kernels", ())
        if kernel.flops and kernel.seconds is None
    } or {scenario.model.precision if scenario.model else "fp32"}
    peaks = [max((accelerator.peak(p), named(p, accelerator)) for p in sorted(precisions)) for accelerator in gpus]
    flops, precision = min(peaks)
    return precision, flops


def named(precision: str, accelerator: Accelerator) -> str:
    """Return the precision in which *accelerator* runs *precision*: fp32 for tf32 if it has no tf32."""
    peaks = accelerator.peak_flops
    return "fp32" if precision == "tf32" and not (isinstance(peaks, Mapping) and "tf32" in peaks) else precision
