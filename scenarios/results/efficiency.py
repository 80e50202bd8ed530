"""The efficiency of a training step: throughput and utilisation at a known step time, the bubble fraction in theory,
for pipeline orders with a closed form; and what a larger batch costs in data, and which optimizer it needs.

All forms assume p stages of equal length, m micro-batches, messages without cost, and no recomputation.

The gradient of a batch is an average over noise. Up to the critical batch size, the gradient noise scale, twice the
batch needs about half of the steps. Beyond it more data bring little (McCandlish et al. 2018, arXiv:1812.06162).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import NamedTuple

import numpy as np

from clustersim.scenarios.build.built import BuiltScenario
from clustersim.simulator.analysis.metrics import hardware_flops, model_flops
from clustersim.simulator.hardware.accelerator import Accelerator
from clustersim.simulator.reading.dataclass import dataclass
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
    on_gpu = np.array([program.on == "gpu" for program in schedule.programs])
    six = tokens and model.trainable_parameters == model.parameters
    return Utilisation(
        int(np.count_nonzero(on_gpu[schedule.program_numbers])),
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


LINEAR_UP_TO = 8192
"""Samples up to which the linear scaling rule held on ImageNet with momentum (Goyal et al. 2017, arXiv:1706.02677)."""

LARS_UP_TO = 32_768
"""Samples that LARS reached on ImageNet (You et al. 2017, arXiv:1708.03888)."""

LAMB_UP_TO = 65_536
"""Samples that LAMB reached with BERT (You et al. 2020, arXiv:1904.00962)."""

LARGEST = {
    "lars": (LARS_UP_TO, "on ImageNet", "You et al. 2017, arXiv:1708.03888"),
    "lamb": (LAMB_UP_TO, "with BERT", "You et al. 2020, arXiv:1904.00962"),
}
"""Samples that an optimizer reached, where, and the source."""


def steps_factor(batch: float, critical: float) -> float:
    """Return the steps to a loss over the fewest possible: 1 + B_crit / B (McCandlish et al., section 2).

    >>> steps_factor(4e6, 4e6)
    2.0
    """
    return 1.0 + critical / batch


def data_factor(batch: float, critical: float) -> float:
    """Return the data to a loss over the least possible, that of a small batch: 1 + B / B_crit.

    >>> data_factor(4e6, 4e6), data_factor(1.0, 1e9)
    (2.0, 1.000000001)
    """
    return 1.0 + batch / critical


def rules(batch: int, optimizer: str, unit: float, critical: float | None) -> Iterator[str]:
    """Yield the rules for *batch* samples of *unit* tokens each (1 for samples), *critical* in the same unit."""
    if optimizer in ("lars", "lamb"):
        reached, where, paper = LARGEST[optimizer]
        yield (
            f"Step size: {optimizer.upper()} scales the step of each tensor by the norm of its weight over that of its "
            f"{'update' if optimizer == 'lamb' else 'gradient'}; it reached {reached:,} samples {where} ({paper})."
        )
    elif optimizer in ("sgd", "momentum"):
        yield (
            "Step size: multiply it by k if the batch is multiplied by k, with a warm-up over the first epochs "
            f"(Goyal et al. 2017, arXiv:1706.02677; it held up to {LINEAR_UP_TO:,} samples on ImageNet)."
        )
        if batch > LINEAR_UP_TO:
            yield (
                f"Batch {batch:,} is beyond that: layer-wise step sizes, LARS (training.optimizer: lars), reached "
                f"{LARS_UP_TO:,} samples (You et al. 2017, arXiv:1708.03888)."
            )
    else:
        yield (
            "Step size: with Adam multiply it by sqrt(k) if the batch is multiplied by k (Malladi et al. 2022, "
            "arXiv:2205.10287), with a warm-up."
        )
        if batch > LINEAR_UP_TO:
            yield (
                f"Batch {batch:,} samples: layer-wise step sizes on Adam, LAMB (training.optimizer: lamb), reached "
                f"{LAMB_UP_TO:,} samples with BERT (You et al. 2020, arXiv:1904.00962)."
            )
    if critical is None:
        yield (
            "A bigger batch is not free: beyond the critical batch size (gradient noise scale, McCandlish et al. 2018, "
            "arXiv:1812.06162) it needs more data for the same loss; give training.critical_batch_size."
        )
        return
    size = batch * unit
    yield (
        f"Batch {size:,.3g} is {size / critical:.3g} of the critical batch size {critical:,.3g}: the same loss needs "
        f"{data_factor(size, critical):.3g} times the data of a small batch, in {steps_factor(size, critical):.3g} "
        "times the fewest steps (McCandlish et al. 2018, arXiv:1812.06162)."
    )
