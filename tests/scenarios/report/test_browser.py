"""A browser draws a page: no error, no request, all charts, more detail by zoom, sorted tables."""

import shutil
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from clustersim.scenarios.commands.command_line import run

pytest.importorskip("plotly", reason="pages need plotly, which is not installed")
playwright = pytest.importorskip("playwright.sync_api", reason="playwright is not installed")
BROWSER = shutil.which("chromium") or shutil.which("chromium-browser")
pytestmark = [
    pytest.mark.exhaustive,
    pytest.mark.skipif(BROWSER is None, reason="Chromium is not installed (Debian: apt-get install chromium)"),
]
FEWEST, MOST = 20, 4000
"""Boxes of a timeline that a view must have, and may have."""
PATIENCE = 300_000
"""Milliseconds until a wait gives up: a busy machine draws slowly."""


@pytest.fixture(scope="module")
def page(tmp_path_factory: pytest.TempPathFactory):
    """Yield an open page of a run of 1,024 GPUs with a hostile description, and what went wrong in it so far."""
    folder = tmp_path_factory.mktemp("page")
    file = folder / "page.html"
    hostile = "description=</script><script>window.hostile = 1</script><img src=x onerror='window.hostile = 1'>"
    assert run(["report", "gpt3_175b_1024a100", "--set", hostile, "-o", str(file)]) == 0
    with playwright.sync_playwright() as started:
        # root needs no sandbox here: the page is our own
        browser = started.chromium.launch(executable_path=BROWSER, args=["--no-sandbox"])
        opened = browser.new_page(viewport={"width": 1400, "height": 900})
        opened.set_default_timeout(PATIENCE)
        faults: list[str] = []
        opened.on("console", lambda one: faults.append(one.text) if one.type in ("error", "warning") else None)
        opened.on("pageerror", lambda error: faults.append(str(error)))
        opened.on("request", lambda one: faults.append(one.url) if one.url.startswith(("http", "ws")) else None)
        opened.goto(Path(file).as_uri())
        for chart in opened.locator(".chart").all():
            _draw(opened, chart)
        yield opened, faults
        browser.close()


def _draw(page, chart) -> None:
    chart.scroll_into_view_if_needed()
    page.wait_for_selector(f"[data-key={chart.get_attribute('data-key')}][data-drawn=yes]")


def test_all_charts_are_drawn_without_a_fault(page) -> None:
    opened, faults = page
    for chart in opened.locator(".chart").all():
        shapes = chart.locator(".point path, .scatterlayer path, .fills path").count()
        assert shapes > 0, chart.get_attribute("data-key")
    assert faults == []
    assert opened.evaluate("window.hostile") is None


MIXED = "several kinds in one box: their colours, mixed by their times"
TIMELINE = ".chart[data-kind=gantt]"
DRAGGED = datetime(2026, 1, 1, tzinfo=UTC)


def test_detail_appears_by_zoom_and_stays_bounded(page) -> None:
    opened, faults = page
    timeline = opened.locator(TIMELINE).first
    whole = _view(timeline)
    middle = (whole[0] + whole[1]) / 2
    assert MIXED in timeline.locator(".legendtext").all_text_contents()
    for share in (0.1, 0.01, 0.001):
        half = share * (whole[1] - whole[0]) / 2
        view = [middle - half, middle + half]
        opened.evaluate(f"view => Plotly.relayout(document.querySelector('{TIMELINE}'), {{'xaxis.range': view}})", view)
        _drawn(opened, *view)
        assert FEWEST <= int(timeline.get_attribute("data-boxes")) <= MOST
    # a narrow view has boxes of single kinds in place of mixed ones
    assert MIXED not in timeline.locator(".legendtext").all_text_contents()
    assert faults == []


def test_a_drag_zooms_and_a_double_click_shows_all(page) -> None:
    opened, faults = page
    timeline = opened.locator(TIMELINE).first
    opened.evaluate(f"Plotly.relayout(document.querySelector('{TIMELINE}'), {{'xaxis.range': [0, 20]}})")
    _drawn(opened, 0, 20)
    timeline.scroll_into_view_if_needed()
    area = timeline.locator(".nsewdrag").first.bounding_box()
    row = area["y"] + 20
    # Plotly takes two clicks for a double click by the time between them, which a busy machine stretches
    opened.clock.set_fixed_time(DRAGGED)
    opened.mouse.move(area["x"] + 0.25 * area["width"], row)
    opened.mouse.down()
    opened.mouse.move(area["x"] + 0.5 * area["width"], row, steps=5)
    opened.mouse.up()
    opened.wait_for_function(f"() => document.querySelector('{TIMELINE}').dataset.to !== '20'")
    begin, end = _view(timeline)
    assert begin == pytest.approx(5.0, abs=0.1)
    assert end == pytest.approx(10.0, abs=0.1)
    opened.clock.set_fixed_time(DRAGGED + timedelta(seconds=10))
    opened.mouse.dblclick(area["x"] + 0.5 * area["width"], row)
    opened.wait_for_function(f"() => document.querySelector('{TIMELINE}').dataset.from === '0'")
    assert _view(timeline)[1] > 30.0
    assert faults == []


def _view(timeline) -> tuple[float, float]:
    return float(timeline.get_attribute("data-from")), float(timeline.get_attribute("data-to"))


def _drawn(page, begin: float, end: float) -> None:
    """Wait until the first timeline shows the time from *begin* to *end*."""
    page.wait_for_function(
        f"view => {{ const data = document.querySelector('{TIMELINE}').dataset;"
        " return Number(data.from) === view[0] && Number(data.to) === view[1]; }",
        arg=[begin, end],
    )


def test_a_box_tells_its_op_on_hover(page) -> None:
    opened, _ = page
    pipeline = opened.locator("section[data-section=pipeline] .chart")
    pipeline.scroll_into_view_if_needed()
    place = pipeline.locator(".point path").nth(3).bounding_box()
    opened.mouse.move(place["x"] + place["width"] / 2, place["y"] + place["height"] / 2)
    opened.wait_for_selector("section[data-section=pipeline] .hovertext")
    told = pipeline.locator(".hovertext").first.text_content()
    assert " from " in told


def test_tables_sort_by_a_click(page) -> None:
    opened, _ = page
    table = opened.locator("section[data-section=operators] table").last
    time = table.locator("th", has_text="time").first
    column = 3
    cells = f"tbody td:nth-child({column + 1})"
    for order, sort in (("ascending", sorted), ("descending", lambda one: sorted(one, reverse=True))):
        time.locator("button").click()
        assert time.get_attribute("aria-sort") == order
        seconds = table.locator(cells).evaluate_all("cells => cells.map(cell => Number(cell.dataset.order))")
        assert seconds == sort(seconds)
        assert len(set(seconds)) > 1
