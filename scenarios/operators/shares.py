"""What the chart of operators shows: bars by operator, elementary operation and class."""

from __future__ import annotations

from collections.abc import Mapping

from scenarios.operators.profile import Profile, Row
from scenarios.operators.text import bounds
from simulator.analysis.plot.operators import Bar
from simulator.units import show


def panels(profile: Profile) -> dict[str, list[Bar]]:
    """Return the bars of *profile* by the title of their panel."""
    return {
        "by operator": _bars(profile.by_operator()),
        "by elementary operation": _bars(profile.by_operation()),
        "by class of operation": _bars(profile.by_class()),
    }


def _bars(rows: Mapping[str, Row]) -> list[Bar]:
    return [Bar(name, row.by_phase, _told(row)) for name, row in rows.items() if row.seconds]


def _told(row: Row) -> str:
    saved = f"; saves {show(row.saved, 'size', 3)}" if row.saved else ""
    bound = bounds(row)
    return f"bound by {bound}{saved}" if bound != "given" else f"given{saved}"
