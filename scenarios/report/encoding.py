"""Charts as text for the scripts of a page: compressed JSON, in which arrays of spans are base64 of their bytes."""

from __future__ import annotations

import gzip
import json
from base64 import b64encode
from html import escape
from typing import Any

import numpy as np
import numpy.typing as npt

from scenarios.report.parts import Chart, Gantt, Lane
from simulator.timeline import Integers


def encoded(part: Chart | Gantt) -> str:
    """Return *part* as base64 of gzip of JSON; the same part gives the same text.

    Texts are escaped as in HTML, since plotly reads some tags in them; templates of hover texts stay.
    """
    data = _escaped(_chart(part) if isinstance(part, Chart) else _gantt(part))
    text = json.dumps(data, separators=(",", ":"), allow_nan=False)
    return b64encode(gzip.compress(text.encode(), mtime=0)).decode("ascii")


def _escaped(data: Any, key: str = "") -> Any:
    if isinstance(data, dict):
        return {name: _escaped(value, name) for name, value in data.items()}
    if isinstance(data, list):
        return [_escaped(value, key) for value in data]
    return escape(data, quote=False) if isinstance(data, str) and key != "hovertemplate" else data


def _chart(chart: Chart) -> dict[str, Any]:
    return {"traces": list(chart.traces), "layout": chart.layout}


def _gantt(gantt: Gantt) -> dict[str, Any]:
    used = np.unique(np.concatenate([lane.text for lane in gantt.lanes])) if gantt.lanes else np.zeros(0, np.int64)
    return {
        "lanes": [_lane(lane, np.searchsorted(used, lane.text)) for lane in gantt.lanes],
        "paints": [{"label": label, "fill": fill} for label, fill in gantt.paints],
        "texts": [gantt.texts[place] for place in used.tolist()],
        "window": list(gantt.window),
    }


def _lane(lane: Lane, text: Integers) -> dict[str, str]:
    """Return the arrays of *lane* as base64: times as 64-bit floats, others as 32-bit numbers, little-endian."""
    times = {"ready": lane.ready, "begin": lane.begin, "end": lane.end, "busy": lane.busy}
    numbers = {"paint": lane.paint, "text": text, "count": lane.count}
    return {
        "name": lane.name,
        **{name: _bytes(values, "<f8") for name, values in times.items()},
        **{name: _bytes(values, "<u4") for name, values in numbers.items()},
    }


def _bytes(values: npt.NDArray[Any], dtype: str) -> str:
    return b64encode(np.ascontiguousarray(values, dtype).tobytes()).decode("ascii")
