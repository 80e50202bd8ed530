"""What a column of a sweep is: its dimension, its unit, and whether more of it is better."""

from __future__ import annotations

from scenarios.results.expectations import is_duration

SHARES = ("mfu", "mfu_6nd", "hfu", "bubble_fraction")
BANDWIDTHS = ("algbw", "busbw")
LESS = ("bubble_fraction", "days", "gpu_hours", "energy_mwh", "cost", "co2_t", "idle_gpus")
MORE = ("mfu", "mfu_6nd", "hfu", "algbw", "busbw", "model_tflops_per_gpu", "hardware_tflops_per_gpu")


def dimension(column: str) -> str:
    """Return the dimension of *column*: time, size, bandwidth, share, or empty for a plain number.

    >>> [dimension(column) for column in ("step_time_s", "memory.peak_bytes", "busbw", "mfu", "samples_per_s")]
    ['time', 'size', 'bandwidth', 'share', '']
    """
    last = column.rpartition(".")[2]
    if last in SHARES or column.startswith("link_utilisation."):
        return "share"
    if last in BANDWIDTHS:
        return "bandwidth"
    if is_duration(column):
        return "size" if any(part.endswith("_bytes") for part in column.split(".")) else "time"
    return ""


def less_is_better(column: str) -> bool | None:
    """Return whether the least value of *column* is the best; None if neither the least nor the greatest is.

    >>> [less_is_better(column) for column in ("step_time_s", "mfu", "tokens_per_s", "simulation.ops")]
    [True, False, False, None]
    """
    last = column.rpartition(".")[2]
    if last in LESS or is_duration(column):
        return True
    return False if last in MORE or last.endswith("_per_s") else None
