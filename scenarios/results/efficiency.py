"""The efficiency of a training step: throughput and utilisation at a known step time, and the bubble fraction in
theory, for pipeline orders with a closed form.

All forms assume p stages of equal length, m micro-batches, messages without cost, and no recomputation.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import NamedTuple

from clustersim.scenarios.build.built import BuiltScenario
from clustersim.simulator.analysis.metrics import hardware_flops, model_flops
from clustersim.simulator.hardware.accelerator import Accelerator
from clustersim.simulator.schedule.schedule import Schedule


@dataclass(frozen=True)
class Utilisation:
    """What *gpus* GPUs do in a step of *seconds*: FLOPs of the *model*, and those *executed*, of all of them together.

    *precision*, *peak*: the fastest products of the step, and their dense FLOP/s on the slowest GPU. *samples* and
    *tokens* of a step, the means where replicas are idle; *parameters*: the active ones, None where 6 N D does not
    count right.
    """

    gpus: int
    seconds: float
    model: float
    executed: float
    precision: str
    peak: float
    samples: float
    tokens: float
    parameters: int | None

    def summary(self) -> dict[str, float | None]:
        """Return the numbers by the keys of a result."""
        achieved, executed = self._rate(self.model), self._rate(self.executed)
        samples = self.samples / self.seconds if self.seconds else 0.0
        return {
            "samples_per_s": samples,
            "tokens_per_s": samples * (self.tokens / self.samples),
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
    samples = training.global_batch_size * trained_share(scenario, schedule)
    tokens = samples * model.tokens_per_sample
    # gradients of frozen parameters are not computed, so that 6ND counts too many
    six = tokens and model.trainable_parameters == model.parameters
    return Utilisation(
        sum(schedule.programs[number].on == "gpu" for number in schedule.program_of),
        seconds,
        model_flops(schedule),
        hardware_flops(schedule),
        *peak(scenario, schedule, gpus),
        samples,
        tokens,
        model.active_parameters if six else None,
    )


def trained_share(scenario: BuiltScenario, schedule: Schedule) -> float:
    """Return the share of the samples of the global batches of *schedule* that is trained on."""
    data = scenario.specification.parallelism.data
    return data.trained_share(scenario.derived.degree("dp"), schedule.batches)


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


class ClosedForm(NamedTuple):
    """The *fraction* of the step that is bubble, and its *formula*."""

    formula: str
    fraction: float


def bubble(scenario: BuiltScenario) -> ClosedForm | None:
    """Return the bubble fraction of the pipeline of *scenario*; None without a pipeline or a closed form.

    GPipe: Huang et al. 2019 (arXiv:1811.06965); 1F1B, and with v virtual stages: Narayanan et al. 2021
    (arXiv:2104.04473, section 2.2), here as a share of the whole step, not of the ideal time, (p - 1)/m; the same for
    breadth first: Lamy-Poirier 2022 (arXiv:2211.05953). ZB-H1, if F, I and W take equally long: p - 1 of their slots,
    Qi et al. 2023 (arXiv:2401.10241). ZB-H2: none, if ranks begin a step as they end the one before, without waiting.
    Naive: one stage of p works at a time. An asynchronous order in its steady state: none (arXiv:2006.09503).
    """
    parallelism, derived = scenario.specification.parallelism, scenario.derived
    p, m, v = derived.degree("pp"), derived.micro_batches, parallelism.stages_per_rank
    if scenario.model is None or p == 1 or derived.by_stage:
        return None
    form: ClosedForm | None = None
    match parallelism.order_name:
        case "naive":
            form = ClosedForm("1 - 1/p", 1 - 1 / p)
        case "gpipe" | "one_f_one_b":
            form = ClosedForm("(p - 1)/(m + p - 1)", (p - 1) / (m + p - 1))
        case "interleaved" | "looped_bfs" if m % p == 0:
            form = ClosedForm("(p - 1)/(v m + p - 1)", (p - 1) / (v * m + p - 1))
        case "zero_bubble_h1" if m >= p:
            form = ClosedForm("(p - 1)/(3 m + p - 1)", (p - 1) / (3 * m + p - 1))
        case "zero_bubble_h2" if m >= 2 * p - 1 and _steps_without_waiting(scenario):
            form = ClosedForm("0", 0.0)
        case "pipedream" | "pipedream_2bw":
            form = ClosedForm("0", 0.0)
    return form


def _steps_without_waiting(scenario: BuiltScenario) -> bool:
    """True if several steps follow one another, and none waits for the norm of all gradients."""
    training = scenario.specification.training
    return training is not None and training.steps > 1 and not scenario.specification.parallelism.synchronous_update
