"""A browser shows the page: keys beside widgets, a redraw after a change, messages beside wrong values, lessons."""

import shutil
from threading import Event, Thread

import pytest

from clustersim.scenarios.report.serve import Site, lessons
from clustersim.scenarios.report.widgets import plain
from clustersim.scenarios.scenario import Scenario

pytest.importorskip("starlette", reason="serve needs starlette, which is not installed")
pytest.importorskip("uvicorn", reason="serve needs uvicorn, which is not installed")
pytest.importorskip("plotly", reason="the page needs plotly, which is not installed")
playwright = pytest.importorskip("playwright.sync_api", reason="playwright is not installed")
BROWSER = shutil.which("chromium") or shutil.which("chromium-browser")
pytestmark = [
    pytest.mark.exhaustive,
    pytest.mark.skipif(BROWSER is None, reason="Chromium is not installed (Debian: apt-get install chromium)"),
]

PATIENCE = 300_000
"""Milliseconds until a wait gives up: a busy machine draws slowly."""


@pytest.fixture(scope="module")
def page():
    """Yield the open page of a run of 32 GPUs, and what went wrong in it so far."""
    address: list[str] = []
    ready = Event()
    site = Site(plain(Scenario.load("lecture_3d_32gpus")))
    Thread(target=site.serve, args=(0, lambda text: (address.append(text), ready.set())), daemon=True).start()
    assert ready.wait(PATIENCE / 1000)
    with playwright.sync_playwright() as started:
        # root needs no sandbox here: the page is our own
        browser = started.chromium.launch(executable_path=BROWSER, args=["--no-sandbox"])
        opened = browser.new_page(viewport={"width": 1400, "height": 900})
        opened.set_default_timeout(PATIENCE)
        faults: list[str] = []
        own = (address[0].partition("?")[0], "data:", "blob:")
        opened.on("console", lambda one: faults.append(one.text) if one.type in ("error", "warning") else None)
        opened.on("pageerror", lambda error: faults.append(str(error)))
        opened.on("request", lambda one: None if one.url.startswith(own) else faults.append(one.url))
        opened.goto(address[0])
        _ran(opened, 1)
        yield opened, faults
        browser.close()


def _ran(opened, number: int) -> None:
    opened.wait_for_selector(f"body[data-run='{number}']")


def _fill(opened, key: str, text: str) -> None:
    field = opened.locator(f"[name='{key}']")
    field.fill(text)
    field.press("Tab")


def test_changes_redraw_the_page(page) -> None:
    opened, faults = page
    keys = opened.locator(".widget:visible label").all_text_contents()
    assert {"model.preset", "parallelism.tp", "training.recompute"} <= set(keys)
    assert "parallelism.ep" not in keys
    for chart in opened.locator(".chart").all():
        chart.scroll_into_view_if_needed()
        opened.wait_for_selector(f"[data-key={chart.get_attribute('data-key')}][data-drawn=yes]")

    # a wrong value: the message stands in the box of its widget, and the old numbers stay
    step = opened.locator("#headline").text_content()
    _fill(opened, "parallelism.tp", "3")
    message = opened.locator(".widget:has([name='parallelism.tp']) .fault")
    message.wait_for(state="visible")
    assert "does not divide" in message.text_content()
    assert opened.locator("#headline").text_content() == step

    _fill(opened, "parallelism.tp", "2")
    _ran(opened, 2)
    assert message.is_hidden()
    assert opened.locator("#headline").text_content() != step
    assert "tp: 2" in opened.locator("#yaml pre").text_content()
    assert "run 1" in opened.locator("[data-slot=comparison]").text_content()

    opened.locator("#back").click()
    opened.locator("#back").click()
    opened.wait_for_function("step => document.getElementById('headline').textContent === step", arg=step)
    assert faults == []


def test_every_lesson_is_shown_with_its_widget(page) -> None:
    opened, faults = page
    for number, lesson in enumerate(lessons()):
        before = int(opened.evaluate("document.body.dataset.run"))
        opened.select_option("#lesson", str(number))
        opened.wait_for_function("before => Number(document.body.dataset.run) > before", arg=before)
        assert opened.locator("#lesson-text").text_content() == lesson.text
        assert opened.locator(".widget.change:visible label").all_text_contents() == [lesson.change]
        assert opened.locator(".fault:visible").count() == 0
    assert faults == []
