"""Charts show a timeline: who did what when, how full the links were, where the step time and the memory went.

The only module of the simulator that loads matplotlib; it uses figures alone, never the global state of pyplot.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import AbstractContextManager
from pathlib import Path

import numpy as np
from matplotlib import rc_context
from matplotlib.axes import Axes
from matplotlib.collections import PolyCollection
from matplotlib.figure import Figure
from matplotlib.patches import Patch
from matplotlib.ticker import FuncFormatter, MaxNLocator, PercentFormatter

from simulator.analysis import memory, metrics, traffic
from simulator.analysis.files import suffix_of, written
from simulator.analysis.palette import WAIT, Paint, category_fill, in_claiming_order, in_order, part_paint
from simulator.analysis.pipeline import pipeline_ranks, pipeline_rows
from simulator.analysis.rows import Row, chosen, rows, shown_window
from simulator.errors import SimulatorError
from simulator.timeline import Timeline
from simulator.units import show

Window = tuple[float, float]

SUFFIXES = (".png", ".svg", ".pdf")
WIDTH, DPI = 12.0, 120
TIME_UNITS = ((1.0, "s"), (1e-3, "ms"), (1e-6, "µs"), (1e-9, "ns"))


def draw(
    timeline: Timeline,
    chart: str,
    path: Path | str,
    *,
    ranks: Sequence[int] | None = None,
    window: Window | None = None,
    title: str | None = None,
) -> None:
    """Draw *timeline* as *chart* (one of `CHARTS`) to *path*, whose suffix says the form: PNG, SVG or PDF.

    *ranks* and *window* (s) choose what is shown; default is everything, thinned where it is too much. Raises
    `SimulatorError` for an unknown chart or suffix, and where there is nothing to show.
    """
    if chart not in CHARTS:
        raise SimulatorError(f'there is no chart "{chart}"; there are: {", ".join(CHARTS)}')
    with _style():
        _save(CHARTS[chart](timeline, ranks, window, title), Path(path))


def draw_breakdowns(
    breakdowns: Mapping[str, Mapping[str, float]], path: Path | str, *, title: str | None = None
) -> None:
    """Draw several breakdowns (`metrics.breakdown`) as stacked bars, one below the other, to *path*."""
    if not breakdowns:
        raise SimulatorError("there are no results to compare")
    with _style():
        _save(_bars(breakdowns, title or "Step time by what it went to"), Path(path))


def _style() -> AbstractContextManager[None]:
    return rc_context(
        {
            "font.size": 9.0,
            "axes.titlesize": 11.0,
            "axes.spines.top": False,
            "axes.spines.right": False,
            "hatch.linewidth": 0.5,
            "svg.hashsalt": "clustersim",
            "svg.fonttype": "none",
        }
    )


def _save(figure: Figure, path: Path) -> None:
    suffix = suffix_of(path, SUFFIXES)
    # without a date the same timeline gives the same bytes
    undated = {".svg": {"Date": None}, ".pdf": {"CreationDate": None}, ".png": {}}[suffix]
    with written(path):
        figure.savefig(path, dpi=DPI, metadata=undated, format=suffix[1:])


def _timeline(timeline: Timeline, ranks: Sequence[int] | None, window: Window | None, title: str | None) -> Figure:
    shown, window = chosen(timeline, ranks), shown_window(timeline, window)
    what = "" if len(shown) == timeline.world_size else f" ({len(shown)} of {timeline.world_size:,} ranks)"
    return _gantt(rows(timeline, shown, window), window, (title or "Timeline") + what)


def _pipeline(timeline: Timeline, ranks: Sequence[int] | None, window: Window | None, title: str | None) -> Figure:
    window = shown_window(timeline, window)
    chart = pipeline_rows(timeline, ranks, window)
    return _gantt(chart, window, title or "Pipeline", name=lambda row: row.stream)


def _gantt(chart: Sequence[Row], window: Window, title: str, name: Callable[[Row], str] | None = None) -> Figure:
    heights = np.array([1.0 if row.computes else 0.62 for row in chart])
    new_rank = np.array([i > 0 and chart[i].rank != chart[i - 1].rank for i in range(len(chart))])
    bottoms = np.cumsum(heights + 0.3 * new_rank) - heights
    units = float(bottoms[-1] + heights[-1])
    pitch = float(np.clip(10.0 / units, 0.095, 0.42))
    figure = Figure(figsize=(WIDTH, max(2.6, units * pitch + 1.5)), layout="constrained")
    axes = figure.add_subplot(title=title)
    axes.set_xlim(*window)
    axes.set_ylim(units + 0.2, -0.2)
    paints = _boxes(axes, chart, bottoms, heights, window)
    if pitch * DPI > 12:
        _texts(axes, chart, bottoms, heights, window)
    _row_names(axes, chart, bottoms, heights, pitch, name)
    _time_axis(axes, window)
    _legend(figure, [_patch(paint) for paint in in_order(paints)])
    return figure


def _boxes(axes: Axes, chart: Sequence[Row], bottoms: np.ndarray, heights: np.ndarray, window: Window) -> list[Paint]:
    """Draw the boxes, one collection for each paint and size; the paints that were used."""
    visible = (window[1] - window[0]) / (WIDTH * DPI) * 4
    parts: dict[tuple[Paint, bool], list[np.ndarray]] = {}
    for row, bottom, height in zip(chart, bottoms, heights, strict=True):
        for boxes in row.boxes:
            wide = (boxes.end - boxes.begin > visible) & boxes.apart
            for edged in (False, True):
                left, right = boxes.begin[wide == edged], boxes.end[wide == edged]
                low, high = np.full_like(left, bottom + 0.04 * height), np.full_like(left, bottom + 0.96 * height)
                corners = np.stack([left, low, left, high, right, high, right, low], axis=1).reshape(-1, 4, 2)
                parts.setdefault((boxes.paint, edged), []).append(corners)
    for (paint, edged), corners_of in sorted(parts.items(), key=lambda part: part[0][0] != WAIT):
        corners = np.concatenate(corners_of)
        if not len(corners):
            continue
        look = {"edgecolors": "white", "linewidths": 0.5} if edged else {"linewidths": 0.0}
        if paint == WAIT:
            look = {"hatch": "////", "edgecolors": "#BBBBBB", "linewidths": 0.0}
        axes.add_collection(PolyCollection(list(corners), facecolors=paint.fill, **look), autolim=False)
    return [paint for paint, _ in parts]


def _texts(
    axes: Axes, chart: Sequence[Row], bottoms: np.ndarray, heights: np.ndarray, window: Window, most: int = 500
) -> None:
    """Write the labels that fit into their boxes, the widest first if there are too many."""
    letter = (window[1] - window[0]) / (WIDTH * DPI * 0.85) * 8.0
    fitting = [
        (label, bottom + height / 2)
        for row, bottom, height in zip(chart, bottoms, heights, strict=True)
        for label in row.labels
        if label.end - label.begin > letter * (len(label.text) + 0.5)
    ]
    fitting.sort(key=lambda item: item[0].begin - item[0].end)
    for label, middle in fitting[:most]:
        # the box hides the edges between the layers of one action
        behind = {"facecolor": label.paint.fill, "edgecolor": "none", "pad": 1.0}
        place = (label.begin + label.end) / 2
        text = axes.text(place, middle, label.text, color=label.paint.ink, fontsize=7.5, bbox=behind, clip_on=True)
        text.set(horizontalalignment="center", verticalalignment="center")


def _row_names(
    axes: Axes,
    chart: Sequence[Row],
    bottoms: np.ndarray,
    heights: np.ndarray,
    pitch: float,
    name: Callable[[Row], str] | None,
) -> None:
    """Name every row if there is room, else every rank, else every so many ranks."""
    middles = (bottoms + heights / 2).tolist()
    first = [i for i, row in enumerate(chart) if i == 0 or row.rank != chart[i - 1].rank]
    if name is not None:
        axes.set_yticks(middles, [name(row) for row in chart])
    elif 0.62 * pitch * DPI >= 14:
        axes.set_yticks(
            middles, [f"rank {row.rank}  {row.stream}" if i in first else row.stream for i, row in enumerate(chart)]
        )
    else:
        apart = float(np.diff(bottoms[first]).min()) * pitch * DPI if len(first) > 1 else np.inf
        every = 1 if apart >= 15 else int(np.ceil(15 / apart))
        axes.set_yticks([middles[i] for i in first[::every]], [f"rank {chart[i].rank}" for i in first[::every]])
    for i in first[1:]:
        axes.axhline(bottoms[i] - 0.15, color="#DDDDDD", linewidth=0.5, zorder=0)
    axes.tick_params(axis="y", length=0)


def _links(timeline: Timeline, ranks: Sequence[int] | None, window: Window | None, title: str | None) -> Figure:
    window = shown_window(timeline, window)
    use = dict(list(traffic.over_time(timeline, window).items())[:6])
    figure = Figure(figsize=(WIDTH, 1.2 + 1.55 * len(use)), layout="constrained")
    panels = np.atleast_1d(figure.subplots(len(use), sharex=True))
    figure.suptitle(title or "Link use over time", fontsize=11)
    for axes, (kind, one) in zip(panels, use.items(), strict=True):
        axes.stairs(one.mean, one.edges, fill=True, color="#56B4E9", label="mean of all links of the kind")
        axes.stairs(one.busiest, one.edges, color="#D55E00", linewidth=1.1, label="busiest link", baseline=None)
        axes.set_ylim(0, 1.08)
        axes.yaxis.set_major_formatter(PercentFormatter(1.0))
        axes.set_yticks([0, 0.5, 1.0])
        axes.grid(axis="y", color="#E4E4E4", linewidth=0.6)
        source, target = timeline.cluster.ends[one.link] if timeline.cluster else ("", "")
        text = (
            f"{kind}: busiest {source} → {target}, {one.busiest.mean():.0%} of the window; mean {one.mean.mean():.0%}"
        )
        axes.set_title(text, fontsize=9, loc="left")
    panels[0].set_xlim(*window)
    _time_axis(panels[-1], window)
    figure.supylabel("share of bandwidth", fontsize=9)
    _legend(figure, [*panels[0].get_legend_handles_labels()[0]])
    return figure


def _breakdown(timeline: Timeline, ranks: Sequence[int] | None, window: Window | None, title: str | None) -> Figure:
    gpus = [rank for rank in chosen(timeline, ranks, 12) if rank in timeline.gpu_ranks]
    bars = {"mean of all": metrics.breakdown(timeline)}
    bars |= {f"rank {rank}": metrics.rank_breakdown(timeline, rank) for rank in gpus}
    return _bars(bars, title or "Step time by what it went to")


def _bars(breakdowns: Mapping[str, Mapping[str, float]], title: str) -> Figure:
    named = dict.fromkeys(p for one in breakdowns.values() for p in one)
    parts = [p for p in in_claiming_order(named) if any(one.get(p, 0.0) > 0 for one in breakdowns.values())]
    longest = max((sum(one.values()) for one in breakdowns.values()), default=0.0)
    if not longest:
        raise SimulatorError("nothing to draw: no time was spent")
    figure = Figure(figsize=(WIDTH, 1.6 + 0.42 * len(breakdowns)), layout="constrained")
    axes = figure.add_subplot(title=title)
    unit, unit_name = _time_unit(longest)
    for place, one in enumerate(breakdowns.values()):
        left = 0.0
        for part in parts:
            seconds, paint = one.get(part, 0.0), part_paint(part)
            axes.barh(place, seconds, left=left, height=0.72, color=paint.fill, edgecolor="white", linewidth=0.5)
            text = f"{seconds / unit:.3g}"
            if seconds > longest * 0.0095 * (len(text) + 0.8):
                axes.text(left + seconds / 2, place, text, color=paint.ink, fontsize=8, ha="center", va="center")
            left += seconds
        axes.text(left + longest * 0.006, place, f"{left / unit:.4g} {unit_name}", fontsize=8.5, va="center")
    axes.set_yticks(range(len(breakdowns)), list(breakdowns))
    axes.set_ylim(len(breakdowns) - 0.5, -0.5)
    axes.tick_params(axis="y", length=0)
    axes.margins(x=0)
    axes.set_xlim(0, longest * 1.09)
    _time_axis(axes, (0.0, longest * 1.09), "step time")
    _legend(figure, [_patch(part_paint(part)) for part in parts])
    return figure


def _memory(timeline: Timeline, ranks: Sequence[int] | None, window: Window | None, title: str | None) -> Figure:
    window = shown_window(timeline, window)
    top = memory.peak(timeline).peak
    shown = pipeline_ranks(timeline, ranks)[:16]
    figure = Figure(figsize=(WIDTH, 6.2), layout="constrained")
    figure.suptitle(title or "Memory over time", fontsize=11)
    upper, lower = figure.subplots(2, sharex=True)
    _stacked(upper, memory.curve(timeline, top.rank), window[1])
    upper.set_title(
        f"rank {top.rank}, the fullest: {show(top.nbytes, 'size', 3)} at {show(top.time, 'time', 3)}",
        fontsize=9,
        loc="left",
    )
    lower.set_title("by rank" if ranks else "by pipeline stage, the first rank of each", fontsize=9, loc="left")
    for number, rank in enumerate(shown):
        held = memory.curve(timeline, rank)
        name = f"rank {rank}" if ranks else f"stage {memory.stage_of(timeline.schedule, rank)}"
        shade = _viridis(0.9 * number / max(1, len(shown) - 1))
        edges = np.append(held.times, max(window[1], held.times[-1]))
        lower.stairs(held.total, edges, baseline=None, linewidth=1.2, color=shade, label=name)
    _capacity(timeline, top.rank, (upper, lower))
    for axes in (upper, lower):
        axes.set_ylim(0, None)
        axes.yaxis.set_major_formatter(FuncFormatter(lambda nbytes, _: show(nbytes, "size", 3)))
        axes.legend(loc="center left", bbox_to_anchor=(1.0, 0.5), fontsize=8, frameon=False)
    upper.set_xlim(*window)
    _time_axis(lower, window)
    return figure


def _stacked(axes: Axes, held: memory.Curve, end: float) -> None:
    below = np.zeros(len(held.times))
    edges = np.append(held.times, max(end, held.times[-1]))
    for category, nbytes in held.by_category.items():
        axes.stairs(below + nbytes, edges, baseline=below, fill=True, color=category_fill(category), label=category)
        below = below + nbytes


def _capacity(timeline: Timeline, rank: int, panels: Iterable[Axes]) -> None:
    if timeline.cluster is None or not timeline.devices:
        return
    capacity = timeline.cluster.accelerator(timeline.devices[rank]).memory_bytes
    if np.isfinite(capacity):
        for axes in panels:
            axes.axhline(capacity, color="#D55E00", linestyle="--", linewidth=1.2, label="capacity")


def _viridis(share: float) -> tuple[float, float, float, float]:
    from matplotlib import colormaps

    red, green, blue, alpha = colormaps["viridis"](share)
    return red, green, blue, alpha


def _time_unit(seconds: float) -> tuple[float, str]:
    return next(((scale, name) for scale, name in TIME_UNITS if seconds >= scale), TIME_UNITS[-1])


def _time_axis(axes: Axes, window: Window, what: str = "time") -> None:
    scale, name = _time_unit(window[1] - window[0])
    axes.xaxis.set_major_locator(MaxNLocator(10, steps=[1, 2, 2.5, 5, 10]))
    axes.xaxis.set_major_formatter(FuncFormatter(lambda moment, _: f"{moment / scale:.10g}"))
    axes.set_xlabel(f"{what} ({name})")


def _patch(paint: Paint) -> Patch:
    if paint == WAIT:
        return Patch(facecolor=paint.fill, edgecolor="#BBBBBB", hatch="////", label=paint.label)
    return Patch(facecolor=paint.fill, label=paint.label)


def _legend(figure: Figure, handles: Sequence[Patch]) -> None:
    figure.legend(handles=list(handles), loc="outside lower center", ncols=min(6, len(handles)), frameon=False)


CHARTS: dict[str, Callable[[Timeline, Sequence[int] | None, Window | None, str | None], Figure]] = {
    "timeline": _timeline,
    "pipeline": _pipeline,
    "memory": _memory,
    "breakdown": _breakdown,
    "links": _links,
}
"""The charts by name."""
