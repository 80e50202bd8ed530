"""The report of `validate`: simulated beside measured times, and notes for judging the difference."""

from __future__ import annotations

from collections.abc import Iterator
from math import isnan

from scenarios.validate.validation import Validation, cores
from simulator.analysis import report, text
from simulator.analysis.text import indented
from simulator.cluster import Cluster
from simulator.units import show


def validation_report(validation: Validation) -> str:
    """Return the whole report."""
    sections = [
        _heading(validation),
        _table(validation),
        "where the step time went\n" + indented(report.comparison(validation.breakdowns)),
        "\n".join(_notes(validation)),
    ]
    return "\n\n".join(sections)


def _heading(validation: Validation) -> str:
    options, ranks = validation.options, validation.simulated.world_size
    often = "one repetition" if options.repeat == 1 else f"the median of {options.repeat} repetitions"
    how = {"sleep": "sleeping", "spin": "spinning", "kernels": "executing the kernels"}[options.compute]
    return (
        f"{validation.scenario.name}: {ranks} ranks with {options.backend}, computing by {how}; {often} after a warm-up"
    )


def _table(validation: Validation) -> str:
    times = validation.simulated.step_time, validation.measured.step_time
    rows = [["step", "", "", *(show(time, "time") for time in times), _percent(validation.relative_error)]]
    rows += [
        [
            row.what,
            f"{row.count:,}",
            show(row.nbytes, "size", 3) if row.nbytes else "",
            show(row.simulated, "time", 3),
            show(row.measured, "time", 3),
            _percent(row.error),
        ]
        for row in validation.kinds
    ]
    return text.table(rows, ["", "number", "each", "simulated", "measured", "error"], "lr")


def _percent(error: float) -> str:
    return "" if isnan(error) else f"{error:+.1%}"


def _notes(validation: Validation) -> Iterator[str]:
    """The repetitions, the order of ops, and caveats."""
    times = ", ".join(show(time, "time") for time in validation.replay.step_times)
    yield f"step time of each repetition: {times}"
    yield from _order(validation)
    if validation.scale != 1:
        yield f"note: all that is communicated was scaled by {validation.scale:g}, in the simulation too"
    transport, backend = validation.scenario.specification.network.transport, validation.options.backend
    if transport in ("nccl", "gloo", "ideal") and transport != backend:
        yield f"note: simulated with transport {transport}, replayed with {backend}: --set network.transport={backend}"
    if _latency(validation.scenario.cluster()) and not _latency(validation.simulated.cluster):
        yield "note: this kernel cannot delay frames (it has no netem); links have no latency, also in the simulation"
    ranks, there = validation.simulated.world_size, cores()
    if backend == "gloo" and ranks > there:
        yield f"note: {ranks} ranks share {there} cores to send and to add, which the simulation does not model"


def _latency(cluster: Cluster | None) -> bool:
    """Whether any link has a latency."""
    return cluster is not None and any(link.latency for link in cluster.links)


def _order(validation: Validation) -> Iterator[str]:
    ranks, swaps = validation.simulated.world_size, validation.swaps
    if not validation.same_order:
        yield "order of ops: NOT as simulated"
        return
    yield f"order of ops: as simulated on every stream of all {ranks} ranks"
    if swaps:
        widest = max(swaps, key=lambda swap: swap.seconds)
        yield (
            f"  streams overtook each other on {len(swaps)} of them; farthest on rank {widest.rank}: {widest.first},"
            f" to end {show(widest.seconds, 'time', 3)} before {widest.second} began, began after its end"
        )
