"""Rules of batch size and step size: what a larger batch costs in data, and which optimizer it needs.

The gradient of a batch is an average over noise. Up to the critical batch size, the gradient noise scale, twice the
batch needs about half of the steps. Beyond it more data bring little (McCandlish et al. 2018, arXiv:1812.06162).
"""

from __future__ import annotations

from collections.abc import Iterator

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
