"""The steps of a collective: which rank sends which chunk to which rank in each round, as textbooks draw it."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from fractions import Fraction
from typing import NamedTuple

import numpy as np
from matplotlib import colormaps
from matplotlib.artist import Artist
from matplotlib.axes import Axes
from matplotlib.collections import LineCollection
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.ticker import MaxNLocator

from clustersim.simulator.charts.canvas import columns_beside, stacked
from clustersim.simulator.charts.palette import SERIES_FILLS
from clustersim.simulator.network.step import Step
from clustersim.simulator.reading.errors import SimulatorError

MOST_RANKS, MOST_ROUNDS = 16, 40
"""Ranks and rounds up to which each message is drawn; more are an image, a point for each rank and round."""
MOST_COLUMNS = 600
"""Rounds of an image; of more, so many are drawn, evenly spread."""
ROW, IMAGE = 0.42, 3.6
"""Inches for a rank, and for the ranks of an image."""
LANDING = 0.86
"""Where the line of a message ends, of the distance between rounds."""
APART, SPREAD = 0.4, 0.85
"""Of a row, between the chunks that a rank sends in one round, and for all of them."""
MOST_NUMBERED = 2
"""Chunks of a rank and round up to which each has its number."""
CHUNKS = "viridis"


class SentChunk(NamedTuple):
    """*sender* sends *chunk* to *receiver* in *round*, from 0; the receiver adds it to its own if it *adds*.

    *chunk*: the first of the blocks of the vector that the message carries; -1 if the algorithm does not say.
    """

    round: int
    sender: int
    receiver: int
    chunk: int
    adds: bool


def steps_chart(algorithms: Mapping[str, Sequence[Step]], size: int, nbytes: float, title: str) -> Figure:
    """Return a panel for each of *algorithms*, by name, over *size* ranks and a vector of *nbytes*.

    Raises `SimulatorError` if nothing is sent.
    """
    if not any(algorithms.values()):
        raise SimulatorError("nothing to draw: a collective of one rank sends nothing")
    small = size <= MOST_RANKS and all(rounds_of(steps) <= MOST_ROUNDS for steps in algorithms.values())
    columns = columns_beside([f"rank {size - 1:,}"])
    told = "each row is a rank, each column a round; a square is a chunk that the rank sends, with its number"
    if not small:
        told = "each row is a rank, each column a round; the colour is the chunk that the rank sends, white none"
    entries: list[Artist] = []
    if small:
        adds = Line2D([], [], color="#4D4D4D", linewidth=1.4, label="the receiver adds the chunk to its own")
        copies = Line2D([], [], color="#4D4D4D", linewidth=1.4, linestyle=":", label="the receiver keeps a copy")
        entries = [adds, copies]
    height = ROW * size if small else IMAGE
    figure, panels = stacked([height] * len(algorithms), columns, title, told, entries, headed=True, one_axis=False)
    for axes, (name, steps) in zip(panels, algorithms.items(), strict=True):
        (_messages if small else _image)(axes, steps, size)
        axes.set_title(f"{name}: {in_words(steps, size, nbytes)}", loc="left", fontsize=9.5)
        axes.set_xlabel("round")
        axes.xaxis.set_major_locator(MaxNLocator(16, integer=True, min_n_ticks=1))
        axes.set_ylim(size - 0.5, -0.6)
        if small:
            axes.set_yticks(range(size), [f"rank {rank}" for rank in range(size)])
        else:
            axes.yaxis.set_major_locator(MaxNLocator(8, integer=True))
            axes.set_ylabel("rank")
    return figure


def in_words(steps: Sequence[Step], size: int, nbytes: float) -> str:
    """Return how many rounds *steps* have, how large a message is, and how much the busiest rank sends."""
    sent = np.zeros(size)
    for step in steps:
        np.add.at(sent, [sender for sender, _ in step.transfers], step.nbytes * step.repeat)
    shares = sorted({Fraction(step.nbytes / nbytes).limit_denominator(10**5) for step in steps})
    count = rounds_of(steps)
    return (
        f"{count:,} {'round' if count == 1 else 'rounds'}, messages of {' and '.join(map(str, shares))} of the vector; "
        f"the busiest rank sends {sent.max() / nbytes:.3g} vectors"
    )


def rounds_of(steps: Sequence[Step]) -> int:
    """Return the number of rounds of *steps*, one after the other."""
    return sum(_length(step) for step in steps)


def _length(step: Step) -> int:
    return step.repeat + (max(_levels(step)) if step.pipelined else 0)


def _levels(step: Step) -> list[int]:
    """Return for each transfer of a pipelined *step* how many transfers its chunk has passed before."""
    levels: list[int] = []
    arrived: dict[tuple[int, int], int] = {}
    for number, (sender, receiver) in enumerate(step.transfers):
        lane = step.lane(number)
        levels.append(arrived.get((lane, sender), 0))
        arrived[lane, receiver] = max(arrived.get((lane, receiver), 0), levels[-1] + 1)
    return levels


def messages(steps: Sequence[Step], every: int = 1) -> Iterator[SentChunk]:
    """Yield the messages of *steps*; of the rounds only each one that *every* divides."""
    first = 0
    for step in steps:
        levels = _levels(step) if step.pipelined else [0] * len(step.transfers)
        for repetition in range(step.repeat):
            for number, (sender, receiver) in enumerate(step.transfers):
                place = first + repetition + levels[number]
                if place % every:
                    continue
                carried = step.blocks(repetition, number) if step.blocks is not None else ()
                yield SentChunk(place, sender, receiver, min(carried, default=-1), step.adds(number))
        first += _length(step)


def _messages(axes: Axes, steps: Sequence[Step], size: int) -> None:
    """Draw each message of *steps*: a square with its chunk at the sender, and a line to the receiver."""
    sent: dict[tuple[int, int], list[int]] = {}
    for one in messages(steps):
        several = sent.setdefault((one.round, one.sender), [])
        several += [one.chunk] * (one.chunk not in several)
    lines, fills, styles = [], [], []
    for one in messages(steps):
        several = sent[one.round, one.sender]
        y = one.sender + (several.index(one.chunk) - (len(several) - 1) / 2) * min(APART, SPREAD / len(several))
        fill = SERIES_FILLS[one.chunk % len(SERIES_FILLS)] if one.chunk >= 0 else "#999999"
        lines.append([(one.round, y), (one.round + LANDING, one.receiver)])
        fills.append(fill)
        styles.append("-" if one.adds else ":")
    for (place, sender), several in sent.items():
        for number, chunk in enumerate(several):
            y = sender + (number - (len(several) - 1) / 2) * min(APART, SPREAD / len(several))
            _square(axes, place, y, chunk, len(several))
    axes.add_collection(LineCollection(lines, colors=fills, linestyles=styles, linewidths=1.1, zorder=2))
    _between_steps(axes, steps)
    axes.set_xlim(-0.5, rounds_of(steps) - 0.1)
    axes.hlines(range(size), -0.5, rounds_of(steps) - 0.1, colors="#EEEEEE", linewidths=0.6, zorder=0)


def _square(axes: Axes, x: float, y: float, chunk: int, beside: int) -> None:
    """Draw the square of *chunk*, one of so many *beside* one another, with its number if there is room."""
    fill = SERIES_FILLS[chunk % len(SERIES_FILLS)] if chunk >= 0 else "#999999"
    if beside > MOST_NUMBERED:
        axes.plot(x, y, "s", color=fill, markersize=2.5, zorder=3)
        return
    box = {"boxstyle": "square,pad=0.12", "facecolor": fill, "edgecolor": "white", "linewidth": 0.4}
    size = 7.0 if beside == 1 else 5.6
    text = "" if chunk < 0 else str(chunk)
    axes.text(x, y, text, color="white", fontsize=size, ha="center", va="center", bbox=box, zorder=3)


def _image(axes: Axes, steps: Sequence[Step], size: int) -> None:
    """Draw a point for each rank and round, in the colour of the chunk that the rank sends."""
    count = rounds_of(steps)
    every = -(-count // MOST_COLUMNS)
    chunks = np.full((size, -(-count // every)), np.nan)
    for one in messages(steps, every):
        chunks[one.sender, one.round // every] = max(one.chunk, 0)
    axes.imshow(
        chunks,
        cmap=colormaps[CHUNKS],
        aspect="auto",
        interpolation="nearest",
        extent=(-0.5, count - 0.5, size - 0.5, -0.5),
    )
    _between_steps(axes, steps)


def _between_steps(axes: Axes, steps: Sequence[Step]) -> None:
    """Draw a line between steps, such as the end of a reduce-scatter and the begin of an all-gather."""
    ends = np.cumsum([_length(step) for step in steps])[:-1]
    for end in ends.tolist():
        axes.axvline(end - 0.5 + 0.43, color="#4D4D4D", linewidth=0.8, zorder=4)
