from collections.abc import Callable

import pytest
from hypothesis import given
from hypothesis import strategies as st

from clustersim.simulator.analysis import memory, metrics
from clustersim.simulator.analysis.timeline import Timeline
from clustersim.simulator.charts import text_report
from clustersim.simulator.reading import plain_text


@given(st.lists(st.floats(0, 1e6), min_size=1, max_size=8), st.integers(1, 120))
def test_shares_sum_to_the_cells_and_are_off_by_less_than_one(values: list[float], cells: int) -> None:
    counts = plain_text.shares(values, cells)
    total = sum(values)
    assert sum(counts) == (cells if total else 0)
    for value, count in zip(values, counts, strict=True):
        assert abs(count - (value / total * cells if total else 0)) < 1


def test_gpipe_as_text(gpipe: Callable[[int, int], Timeline]) -> None:
    # a letter is 10 ms: forward 100 ms, backward 200 ms, a hop 10 ms
    forward = "F0--------F1--------F2--------"
    backward = "B2------------------B1------------------B0------------------"
    assert text_report.pipeline_chart(gpipe(3, 3), 154).splitlines() == [
        f"stage 0  {forward}{'·' * (52 + 42 - 30)}{backward}",
        f"stage 1  {'·' * 11}{forward}{'·' * (52 + 21 - 41)}{backward}{'·' * 21}",
        f"stage 2  {'·' * 22}{forward}{backward}{'·' * 42}",
    ]


def test_a_chart_of_text_is_for_small_pipelines(gpipe: Callable[[int, int], Timeline]) -> None:
    assert text_report.fits_in_text(gpipe(4, 8))
    assert not text_report.fits_in_text(gpipe(4, 40))
    assert not text_report.fits_in_text(gpipe(1, 2))


def test_breakdown_table_lists_what_took_time() -> None:
    parts = {"compute": 3.0, "recompute": 0.0, "exposed_dp": 1.0, "bubble": 4.0}
    assert text_report.breakdown_table(parts, 8) == (
        "compute     3 s  37.5%  ███\n"
        "exposed dp  1 s  12.5%     █\n"
        "bubble      4 s  50.0%      ████"
    )  # fmt: skip


def test_comparison_says_what_the_second_takes_more() -> None:
    assert text_report.comparison(
        {"ring": {"compute": 2.0, "bubble": 1.0}, "tree": {"compute": 2.0, "bubble": 0.5}}
    ) == (
        "           ring    tree  difference\n"
        "compute     2 s     2 s           =\n"
        "bubble      1 s  500 ms     -500 ms\n"
        "step time   3 s   2.5 s     -500 ms"
    )


def test_the_table_of_collectives_has_the_columns_of_nccl_tests() -> None:
    time = 1.5e-3
    rows = [
        text_report.CollectiveRow(
            2**20, time, metrics.algbw(2**20, time), metrics.busbw("all_reduce", 2**20, 8, time), "ring", "LL"
        )
    ]
    assert text_report.collective_table(rows) == (
        "   size     time   algbw   busbw  algorithm  protocol\n"
        "    (B)     (us)  (GB/s)  (GB/s)\n"
        "1048576  1500.00    0.70    1.22  ring       LL"
    )


def test_memory_table_shows_the_peak_and_what_is_reserved_beside_it(
    ddp: Callable[[int], Timeline], gpipe: Callable[[int, int], Timeline]
) -> None:
    printed = text_report.memory_table(memory.peak(ddp(4)), {"context": 1.3e9})
    assert "peak, rank 0       2.8 GB\nreserved: context  1.3 GB" in printed
    assert printed.splitlines()[-1].split() == ["host", "40", "MB"]
    assert text_report.memory_table(memory.peak(gpipe(2, 3))).splitlines()[-1].split() == ["stage", "1", "3", "GB"]


@pytest.mark.parametrize("width", [1, 7, 40])
def test_boxes_fill_exactly_the_width(width: int) -> None:
    assert len(plain_text.boxes([("F0", 0.0, 0.4), ("B0", 0.9, 1.7)], (0.0, 1.5), width)) == width
