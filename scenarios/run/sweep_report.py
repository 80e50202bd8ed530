"""The report of a sweep: a line for each run, with the numbers that are looked at first, and the best run. What a
column is: its dimension, its unit, and whether more of it is better.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

from clustersim.scenarios.build.memory_need import of_capacity
from clustersim.scenarios.results.expectations import is_duration
from clustersim.scenarios.run.sweep_table import Scalar, SweepRow, as_text
from clustersim.simulator.reading.plain_text import figure, table
from clustersim.simulator.reading.units import show, show_long

SHARES = ("mfu", "mfu_6nd", "hfu", "bubble_fraction", "utilisation", "goodput", "goodput_of_held", "blocked_share")
BANDWIDTHS = ("algbw", "busbw")
LESS = ("bubble_fraction", "days", "gpu_hours", "energy_mwh", "cost", "co2_t", "idle_gpus")
MORE = (
    "utilisation",
    "goodput",
    "goodput_of_held",
    "mfu",
    "mfu_6nd",
    "hfu",
    "algbw",
    "busbw",
    "model_tflops_per_gpu",
    "hardware_tflops_per_gpu",
)


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


MARK = "*"

WAITING = "queue.waiting_s.mean"
"""The number of queues that is looked at first."""

Numbers = Mapping[str, Scalar]


def text(name: str, rows: Sequence[SweepRow]) -> str:
    """Return the report of the *rows* of a sweep of the scenario *name*."""
    done = [row for row in rows if row.error is None]
    columns = _columns(done[0].numbers) if done else {}
    quantity = _ranked(done[0].numbers) if done else ""
    first = best(rows, quantity)
    keys = list(rows[0].values)
    header = [*keys, *(["variant"] if rows[0].variant else []), *columns, ""]
    lines = [
        [*_settings(row), *([shown(row.numbers) for shown in columns.values()] if row.error is None else [])]
        + ([] if row.error is not None else [MARK if row is first else ""])
        for row in rows
    ]
    failed = [row for row in rows if row.error is not None]
    told = [
        f"{name}: {len(rows)} run{'s' if len(rows) > 1 else ''}"
        + (f", {len(failed)} without a result" if failed else ""),
        table(lines, header, "r"),
    ]
    if first is not None:
        among = "" if all(row.fits for row in done) else " of the runs that fit in memory"
        told.append(f"{MARK} best {quantity}{among}")
    return "\n".join([*told, *_failures(failed)])


def _failures(failed: Sequence[SweepRow]) -> list[str]:
    """Return a line for each message of *failed* runs, with the first run that has it."""
    by_message: dict[str, list[SweepRow]] = {}
    for row in failed:
        by_message.setdefault(str(row.error).splitlines()[0], []).append(row)
    lines = [
        f"{', '.join(_named(same[0]))}{f' and {len(same) - 1} more' if len(same) > 1 else ''}: {message}"
        for message, same in by_message.items()
    ]
    more = len(lines) - MOST_FAILURES
    return lines[:MOST_FAILURES] + [f"and {more} other messages; a file and --json have all"] * (more > 0)


MOST_FAILURES = 10
"""Messages of failed runs that are printed."""


def best(rows: Sequence[SweepRow], quantity: str) -> SweepRow | None:
    """Return the row with the best *quantity* among runs that fit in memory; None if there is none or no best."""
    less = less_is_better(quantity)
    if less is None:
        return None
    found = [(number, row) for row in rows if row.fits and isinstance(number := row.numbers.get(quantity), int | float)]
    return (min if less else max)(found, key=lambda one: one[0])[1] if found else None


def _ranked(numbers: Numbers) -> str:
    """Return the quantity by which runs are ranked: throughput, because the step of a small batch is short.

    Replayed traces have step times alone; queues are ranked by their waiting time.
    """
    if WAITING in numbers:
        return WAITING
    if "samples_per_s" in numbers or "step_time_s" not in numbers:
        return "samples_per_s" if "samples_per_s" in numbers else f"{_largest(numbers)}.busbw"
    return "step_time_s"


def _largest(numbers: Numbers) -> str:
    """Return the begin of the names of the largest size of a collective."""
    sizes = {key: float(value or 0) for key, value in numbers.items() if key.endswith(".size_bytes")}
    return max(sizes, key=lambda key: sizes[key]).removesuffix(".size_bytes")


def _columns(numbers: Numbers) -> dict[str, Callable[[Numbers], str]]:
    """Return for each column of the report the function that prints its cell."""
    if WAITING in numbers:
        return {
            "waiting": lambda row: show_long(_number(row, WAITING)),
            "95 %": lambda row: show_long(_number(row, "queue.waiting_s.p95")),
            "turnaround": lambda row: show_long(_number(row, "queue.turnaround_s.mean")),
            "utilisation": lambda row: f"{_number(row, 'queue.utilisation'):.1%}",
            "goodput": lambda row: f"{_number(row, 'queue.goodput'):.1%}",
        }
    if "step_time_s" not in numbers:
        return {
            "size": lambda row: show(_number(row, f"{_largest(row)}.size_bytes"), "size", 3),
            "time": lambda row: show(_number(row, f"{_largest(row)}.time_s"), "time"),
            "busbw": lambda row: show(_number(row, f"{_largest(row)}.busbw"), "bandwidth"),
        }
    step = {"step time": lambda row: show(_number(row, "step_time_s"), "time")}
    if "samples_per_s" not in numbers:
        return step
    return {
        **step,
        "samples/s": lambda row: figure(_number(row, "samples_per_s")),
        "MFU": lambda row: f"{_number(row, 'mfu'):.1%}",
        "memory needed": _memory,
        "fits": lambda row: "yes" if row["memory.fits"] else "NO",
    }


def _memory(numbers: Numbers) -> str:
    needed = _number(numbers, "memory.peak_bytes") + _number(numbers, "memory.reserved_bytes")
    capacity = numbers["memory.capacity_bytes"]
    return of_capacity(needed, float("inf") if capacity is None else float(capacity))


def _number(numbers: Numbers, name: str) -> float:
    return float(numbers[name] or 0.0)


def _settings(row: SweepRow) -> list[str]:
    return [*(as_text(value) for value in row.values.values()), *([row.variant] if row.variant else [])]


def _named(row: SweepRow) -> list[str]:
    named = [f"{key} {as_text(value)}" for key, value in row.values.items()]
    return [*named, *([row.variant] if row.variant else [])]
