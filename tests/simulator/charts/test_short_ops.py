"""Boxes and shades together hold the busy share of each paint, however narrow its boxes are."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from clustersim.simulator.analysis.timeline import Floats
from clustersim.simulator.charts.palette import COPY, PHASE_PAINTS, WAIT, Paint
from clustersim.simulator.charts.rows import Boxes
from clustersim.simulator.charts.short_ops import Drawn, Shades, colours, drawn, merged

F, B = PHASE_PAINTS["F"], PHASE_PAINTS["B"]
COLUMNS = 50


def one_after_the_other(spans: list[tuple[float, int]]) -> tuple[list[Boxes], float]:
    """Boxes of these lengths and paints (0, 1, or 2 for a gap), and where the last one ends."""
    lengths, kind = np.array([length for length, _ in spans]), np.array([kind for _, kind in spans])
    end = np.cumsum(lengths)
    parts = [(paint, kind == number) for number, paint in enumerate((F, B))]
    return [Boxes(paint, (end - lengths)[mine], end[mine]) for paint, mine in parts if mine.any()], float(end[-1])


def seen(wide: list[Drawn], shades: Shades, paint: Paint, whole: float) -> float:
    """Seconds of *paint* that one sees: in shades by their share, in boxes where no shade covers them."""
    pixel = whole / COLUMNS
    total = sum(float(share.sum()) for one, share in zip(shades.paints, shades.shares, strict=True) if one == paint)
    total *= pixel
    for boxes, _ in wide:
        if boxes.paint == paint:
            edges = np.linspace(0, whole, COLUMNS + 1)
            left, right = (np.clip(edges[c + shades.columns], 0, whole) for c in (0, 1))
            for begin, end in zip(boxes.begin, boxes.end, strict=True):
                total += end - begin - np.maximum(np.minimum(end, right) - np.maximum(begin, left), 0).sum()
    return total


@given(st.lists(st.tuples(st.floats(1e-3, 1), st.integers(0, 2)), min_size=1, max_size=200))
def test_what_is_seen_of_each_paint_is_what_it_took(spans: list[tuple[float, int]]) -> None:
    boxes, whole = one_after_the_other(spans)
    wide, shades = drawn(boxes, (0.0, whole), COLUMNS)
    for number, paint in enumerate((F, B)):
        took = sum(length for length, kind in spans if kind == number)
        assert seen(wide, shades, paint, whole) == pytest.approx(took, abs=1e-6 * whole)


@given(st.lists(st.tuples(st.floats(0, 9), st.floats(1e-4, 3), st.sampled_from([F, B, WAIT])), min_size=1, max_size=60))
def test_shares_of_overlapping_boxes_never_exceed_a_column(spans: list[tuple[float, float, Paint]]) -> None:
    parts = [(paint, [(b, b + length) for b, length, one in spans if one == paint]) for paint in (F, B, WAIT)]
    boxes = [Boxes(paint, *np.array(some).T) for paint, some in parts if some]
    _, shades = drawn(boxes, (0.0, 12.0), COLUMNS)
    assert shades.shares.min(initial=0.0) >= 0.0
    assert shades.shares.sum(axis=0).max(initial=0.0) <= 1 + 1e-9


def test_each_of_many_narrow_boxes_is_seen() -> None:
    # 33 boxes, a tenth of a pixel each, in a row that is empty otherwise
    begin = np.linspace(0, 49, 33)
    wide, shades = drawn([Boxes(F, begin, begin + 0.1)], (0.0, 50.0), COLUMNS)
    assert wide == []
    assert shades.shares.sum() == pytest.approx(3.3)
    touched = set((begin.astype(int)).tolist())
    assert touched <= set(shades.columns[shades.shares[0] > 0.01].tolist())


def test_wide_boxes_are_boxes_with_edges_and_middling_ones_without() -> None:
    (one,), shades = drawn([Boxes(F, np.array([0.0, 20.0]), np.array([20.0, 40.0]))], (0.0, 50.0), COLUMNS)
    assert (one.edged, len(one.boxes.begin), len(shades.columns)) == (True, 2, 0)
    # eight forwards of a warm-up are told apart
    begin = np.arange(0.0, 48.0, 6.0)
    (one,), _ = drawn([Boxes(F, begin, begin + 6.0)], (0.0, 50.0), COLUMNS)
    assert (one.edged, len(one.boxes.begin)) == (True, 8)
    begin = np.arange(0.0, 50.0, 5.0)
    (one,), shades = drawn([Boxes(F, begin, begin + 5.0)], (0.0, 50.0), COLUMNS)
    # nine seams between boxes of one paint would show as lines
    assert (one.edged, one.boxes.begin.tolist(), one.boxes.end.tolist()) == (False, [0.0], [50.0])


def test_no_speck_of_a_box_is_left_between_shades() -> None:
    narrow = Boxes(B, np.array([10.2, 12.2, 30.2]), np.array([10.4, 12.4, 30.4]))
    _, shades = drawn([Boxes(WAIT, np.array([0.0]), np.array([50.0])), narrow], (0.0, 50.0), COLUMNS)
    assert shades.columns.tolist() == [10, 11, 12, 30]


@given(st.lists(st.tuples(st.integers(0, 30), st.integers(0, 8)), max_size=12), st.integers(0, 3))
def test_merged_intervals_cover_what_the_intervals_cover(intervals: list[tuple[int, int]], gap: int) -> None:
    begin = np.array([b for b, _ in intervals], float)
    end = np.array([b + length for b, length in intervals], float)
    left, right = merged(begin, end, gap)
    assert (left[1:] > right[:-1] + gap).all()
    cells = [any(b <= cell < b + length for b, length in intervals) for cell in range(50)]
    inside = [any(b <= cell < e for b, e in zip(left, right, strict=True)) for cell in range(50)]
    assert all(inside[cell] for cell in range(50) if cells[cell])
    if gap == 0:
        assert inside == cells


def test_work_in_a_column_stands_by_its_share_and_pales_with_idle_time() -> None:
    fills = np.array([[1.0, 0.0, 0.0], [0.0, 0.0, 1.0]])
    shades = Shades([F, COPY], np.array([0, 1]), np.array([[0.75, 0.5], [0.25, 0.0]]), 2)
    picture = colours(shades, fills, 4)
    assert picture[:, 0].tolist() == [[0, 0, 1], [1, 0, 0], [1, 0, 0], [1, 0, 0]]
    assert picture[:, 1].tolist() == [[1, 0.5, 0.5]] * 4


@given(st.lists(st.floats(0.0, 0.3), min_size=3, max_size=3), st.integers(1, 12))
def test_the_ink_of_a_column_is_the_sum_of_the_shares(shares: list[float], lines: int) -> None:
    fills = np.array([[0.0, 1.0, 1.0], [1.0, 0.0, 1.0], [1.0, 1.0, 0.0]])
    shades = Shades([F, B, COPY], np.array([0]), np.array(shares)[:, None], 1)
    ink: Floats = 1.0 - colours(shades, fills, lines)[:, 0].mean(axis=0)
    assert ink == pytest.approx(shares)


def test_a_pattern_of_a_few_pixels_has_no_moire_and_phases_keep_their_edges() -> None:
    # F and B in turn, 2.2 and 1.4 pixels, from column 0 to 360; then F and COPY
    begin: Floats = np.linspace(0.0, 356.4, 100)
    boxes = [
        Boxes(F, np.append(begin, 360 + begin), np.append(begin, 360 + begin) + 2.2),
        Boxes(B, begin + 2.2, begin + 3.6),
        Boxes(COPY, 362.2 + begin, 363.6 + begin),
    ]
    _, shades = drawn(boxes, (0.0, 720.0), 720)
    assert len(shades.columns) == 720
    shares = dict(zip(shades.paints, shades.shares, strict=True))
    # without a mean it is between 0 and 1
    assert np.abs(shares[F][20:340] - 2.2 / 3.6).max() < 0.02
    assert np.abs(shares[F][380:700] - 2.2 / 3.6).max() < 0.02
    assert np.abs(shares[B][20:340] - 1.4 / 3.6).max() < 0.02
    assert shares[B][362:].max() < 1e-9
    assert shares[COPY][:359].max() < 1e-9
    assert shades.shares.sum(axis=1) == pytest.approx([440, 140, 140])
