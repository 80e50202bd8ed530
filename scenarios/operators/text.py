"""The profile of operators as tables of text, and as numbers for JSON."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from scenarios.operators.profile import OUTSIDE, Profile, Row
from simulator.analysis import text
from simulator.analysis.operators import BOUNDS
from simulator.units import show

PHASES = ("forward", "backward", "recompute", "optimizer", "other")
"""Columns of time; those without any time are left out."""


def tables(profile: Profile) -> str:
    """Return tables by operator, elementary operation and class, and of one layer of each kind."""
    head = (
        f"{show(profile.seconds, 'time')} of computation in a step of {show(profile.step_time, 'time')}, "
        "the mean over the GPUs; saved: activations that one micro-batch keeps, if they are not recomputed"
    )
    whole = profile.whole()
    parts = [head, _table("operator", profile.by_operator(), whole)]
    parts += [_table("operation", profile.by_operation(), whole), _table("class", profile.by_class(), whole)]
    for kind, rows in profile.of_one_layer().items():
        name = f"of one {kind} layer" if kind.islower() else f"of one {kind}"
        parts.append(_table(f"{name} ({profile.held[kind]:.4g} a GPU)", rows, Row.sum(rows.values())))
    return "\n\n".join(parts)


def _table(title: str, rows: Mapping[str, Row], whole: Row) -> str:
    phases = [phase for phase in PHASES if whole.by_phase.get(phase)]
    header = [title, *phases, "share", "FLOPs", "moved", "saved", "kernels", "bound by"]
    lines = [_line(name, row, phases, whole) for name, row in {**rows, "all": whole}.items()]
    if not any(row.saved for row in rows.values()):
        place = header.index("saved")
        header, *lines = ([*line[:place], *line[place + 1 :]] for line in (header, *lines))
    return text.table(lines, header, "l" + "r" * (len(header) - 2) + "l")


def _line(name: str, row: Row, phases: list[str], whole: Row) -> list[str]:
    return [
        name,
        *(show(seconds, "time") if (seconds := row.by_phase.get(phase, 0.0)) else "" for phase in phases),
        f"{row.seconds / whole.seconds:.1%}" if whole.seconds else "",
        show(row.flops, "rate", 3).removesuffix("/s") if row.flops else "",
        show(row.nbytes, "size", 3) if row.nbytes else "",
        show(row.saved, "size", 3) if row.saved else "",
        f"{row.kernels:,.0f}",
        bounds(row),
    ]


def bounds(row: Row) -> str:
    """Return what bounds *row*, with its share of the time where it is not all of it."""
    if not row.seconds:
        return ""
    share = row.by_bound[row.bound] / row.seconds
    return row.bound if share > 0.995 else f"{row.bound} {share:.0%}"


def summary(profile: Profile) -> dict[str, Any]:
    """Return the numbers of *profile* for JSON: s, FLOPs and bytes of one step on a GPU, the mean over the GPUs."""
    rows: dict[tuple[str, str, str, str, str], Row] = {}
    for time in profile.times:
        key = profile.kind(time.layer), time.operation.operator, time.operation.name, time.operation.kind, time.phase
        rows.setdefault(key, Row()).add(time)
    return {
        "name": profile.name,
        "step_time_s": profile.step_time,
        "computing_s": profile.seconds,
        "layers_per_gpu": dict(profile.held),
        "operators": [
            {
                "layers": "" if kind == OUTSIDE else kind,
                "operator": operator,
                "operation": operation,
                "class": group,
                "phase": phase,
                "seconds": row.seconds,
                "bound": row.bound,
                "bound_s": {name: row.by_bound[name] for name in BOUNDS},
                "flops": row.flops,
                "bytes": row.nbytes,
                "kernels": row.kernels,
            }
            for (kind, operator, operation, group, phase), row in rows.items()
        ],
        "saved_bytes_per_layer": [
            {"layers": kind, "operator": operator, "bytes": nbytes}
            for (kind, operator), nbytes in profile.saved.items()
        ],
    }
