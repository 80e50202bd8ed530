"""The server of the page in which a scenario is changed: its scripts, its lessons, the routes that run, draw and plan,
and runs of one process that stays warm. It answers on this machine only, and only to who knows the token.
"""

from __future__ import annotations

import json
import pathlib
import secrets
import socket
from collections import deque
from collections.abc import Callable, Iterator, Mapping
from dataclasses import asdict, field
from functools import cache
from pathlib import Path
from threading import Lock
from typing import TYPE_CHECKING, Any

from clustersim.scenarios.report import page
from clustersim.scenarios.report.links_and_memory import links_section, memory_section
from clustersim.scenarios.report.parts import Code, PageSection
from clustersim.scenarios.report.summary import breakdown_section, comparison_section, summary_section
from clustersim.scenarios.report.timeline import pipeline_section, timeline_section
from clustersim.scenarios.report.widgets import changed, faults, not_applying, plain, value_text, widgets
from clustersim.scenarios.results import efficiency
from clustersim.scenarios.results.result import Result, check_finite
from clustersim.scenarios.results.step_numbers import StepNumbers
from clustersim.scenarios.scenario import Scenario
from clustersim.scenarios.search.answer import PlanAnswer, answer
from clustersim.scenarios.search.planner import Planner
from clustersim.simulator.reading.dataclass import dataclass
from clustersim.simulator.reading.document import Document
from clustersim.simulator.reading.errors import ScenarioError, SimulatorError
from clustersim.simulator.reading.lookup import version
from clustersim.simulator.reading.units import show
from clustersim.simulator.reading.yaml_and_json import read, yaml_text
from clustersim.simulator.schedule.gc_paused import gc_paused

if TYPE_CHECKING:
    from starlette.applications import Starlette
    from starlette.requests import Request
    from starlette.responses import Response

FOLDER = Path(__file__).parent
HOST = "127.0.0.1"
HOSTS = (HOST, "localhost")
"""Names by which the page is asked for; another one is a page elsewhere whose name points to this machine."""

HEADERS = {
    "Content-Security-Policy": (
        "default-src 'none'; script-src 'self'; style-src 'self' 'unsafe-inline'; img-src data: blob:; "
        "connect-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
    ),
    "Referrer-Policy": "no-referrer",
    "X-Content-Type-Options": "nosniff",
    "Cache-Control": "no-store",
}
LARGEST = 2**20
"""Bytes of a request at most; a scenario has some thousands."""

Answer = Callable[[Mapping[str, Any]], Mapping[str, Any]]


def check() -> None:
    """Raise `SimulatorError` if a library that the server needs is not installed."""
    try:
        import jinja2  # noqa: F401
        import plotly  # noqa: F401
        import starlette  # noqa: F401
        import uvicorn  # noqa: F401
    except ImportError as error:
        raise SimulatorError(
            f"serve needs {error.name}, which is not installed: pip install 'clustersim[serve]'"
        ) from None


COMPARED = 3
"""Former runs that a new one is compared with."""


@dataclass
class WarmRuns:
    """Simulates scenarios one after the other, and keeps the last ones by number."""

    kept: deque[tuple[int, Result]] = field(default_factory=lambda: deque(maxlen=COMPARED + 1))
    count: int = 0
    _one_at_a_time: Lock = field(default_factory=Lock)

    def run(self, data: Mapping[str, Any], changes: Mapping[str, str]) -> dict[str, Any]:
        """Simulate *data* with *changes*, texts by key; return its state, and its numbers or the faults.

        The state has the data, the values of the widgets, the defaults of those without a value, those that do not
        apply, and the YAML.
        """
        made, wrong = _with_changes(data, changes)
        state: dict[str, Any] = {"data": made, "values": {one.key: value_text(made, one.key) for one in widgets()}}
        state |= {"yaml": yaml_text(made), "faults": wrong, "hidden": None, "defaults": None, "run": None}
        if wrong:
            return state
        with self._one_at_a_time, gc_paused():
            try:
                scenario = _scenario(made)
                state["hidden"] = sorted(not_applying(scenario.specification))
                whole = scenario.document.data
                state["defaults"] = {one.key: value_text(whole, one.key) or one.default for one in widgets()}
                result = scenario.run()
                check_finite(result.summary())
            except SimulatorError as error:
                return state | {"faults": faults(error, state["values"])}
            self.count += 1
            self.kept.append((self.count, result))
            return state | {"run": self.count, "headline": headline(result), **_shown(_first_sections(result))}

    def charts(self, number: int) -> dict[str, Any]:
        """Return the charts of the run *number* that take longer, and the comparison. Raises `ScenarioError`."""
        with self._one_at_a_time, gc_paused():
            result = dict(self.kept).get(number)
            if result is None:
                raise ScenarioError(f"run {number} is no longer kept; change a value to run it again")
            return _shown(self._later_sections(result))

    def _later_sections(self, result: Result) -> Iterator[PageSection]:
        yield timeline_section(result.timeline, MOST_SPANS // 2)
        if isinstance(result, StepNumbers) and (pipeline := pipeline_section(result, MOST_SPANS // 2)):
            yield pipeline
        if len(self.kept) > 1:
            yield comparison_section({f"run {number}": one for number, one in reversed(self.kept)})
        yield PageSection("report", "Report", [Code(result.report())])

    def plan(self, data: Mapping[str, Any]) -> dict[str, Any]:
        """Return the answer of a plan for *data*: its text, and what its best candidates change."""
        with self._one_at_a_time, gc_paused():
            found = answer(Planner(_scenario(data)))
        return {"report": found.report(), "best": list(_offers(found))}


@dataclass(frozen=True)
class Site:
    """The page that begins with the scenario of *data*, for who knows the *token*."""

    data: Mapping[str, Any]
    token: str = field(default_factory=lambda: secrets.token_urlsafe(24))
    runs: WarmRuns = field(default_factory=WarmRuns)

    def application(self) -> Starlette:
        """Return the application with all routes."""
        from starlette.applications import Starlette
        from starlette.middleware import Middleware
        from starlette.middleware.trustedhost import TrustedHostMiddleware
        from starlette.routing import Route

        routes = [
            Route("/", self.guarded(self.page)),
            Route("/files/{name}", self.guarded(self.file)),
            Route("/run", self.posted(self._run), methods=["POST"]),
            Route("/charts", self.posted(lambda asked: self.runs.charts(int(asked["run"]))), methods=["POST"]),
            Route("/plan", self.posted(lambda asked: self.runs.plan(_mapping(asked, "data"))), methods=["POST"]),
        ]
        return Starlette(routes=routes, middleware=[Middleware(TrustedHostMiddleware, allowed_hosts=list(HOSTS))])

    def guarded(self, answer: Callable[[Request], Response]) -> Callable[[Request], Response]:
        """Return *answer* for requests with the token in their URL, in a thread of its own; others are refused."""
        from starlette.responses import PlainTextResponse

        def answered(request: Request) -> Response:
            known = secrets.compare_digest(request.query_params.get("token", "").encode(), self.token.encode())
            refused = "the token is missing or wrong; open the address that clustersim serve printed"
            made = answer(request) if known else PlainTextResponse(refused, 403)
            made.headers.update(HEADERS)
            return made

        return answered

    def posted(self, answer: Answer) -> Callable[[Request], Any]:
        """Return *answer* for requests whose body is JSON; what is wrong with one is told as ``{"error": ...}``."""
        from starlette.concurrency import run_in_threadpool
        from starlette.responses import JSONResponse

        async def answered(request: Request) -> Response:
            body = bytearray()
            async for some in request.stream():
                body += some
                if len(body) > LARGEST:
                    return JSONResponse({"error": f"the request has more than {LARGEST} bytes"}, 413)
            made = self.guarded(lambda _: JSONResponse(*_answered(answer, bytes(body))))
            return await run_in_threadpool(made, request)

        return answered

    def page(self, request: Request) -> Response:
        """Return the page."""
        from jinja2 import Environment
        from starlette.responses import HTMLResponse

        start = {
            "data": self.data,
            "token": self.token,
            "widgets": [asdict(one) for one in widgets()],
            "lessons": [asdict(one) for one in lessons()],
        }
        template = Environment(autoescape=True).from_string((FOLDER / "serve.html").read_text(encoding="utf-8"))
        return HTMLResponse(template.render(start=start, token=self.token, version=version()))

    def file(self, request: Request) -> Response:
        """Return a script or a style of the page."""
        from starlette.responses import PlainTextResponse, Response

        name = request.path_params["name"]
        if name == "plotly.js":
            return Response(page.chart_library(), media_type="text/javascript")
        kinds = {"js": "text/javascript", "css": "text/css"}
        if name in ("page.js", "page.css"):
            return Response(page.own_file(name), media_type=kinds[name.rpartition(".")[2]])
        if name in ("serve.js", "serve.css"):
            return Response((FOLDER / name).read_text(encoding="utf-8"), media_type=kinds[name.rpartition(".")[2]])
        return PlainTextResponse("no such file", 404)

    def _run(self, asked: Mapping[str, Any]) -> Mapping[str, Any]:
        data, changes = _mapping(asked, "data"), _mapping(asked, "set")
        return self.runs.run(data, {key: str(text) for key, text in changes.items()})

    def serve(self, port: int, opened: Callable[[str], None]) -> None:
        """Serve on *port*, a free one if it is 0, until interrupted; *opened* is called with the address.

        Raises `SimulatorError` if the port is taken.
        """
        import uvicorn

        try:
            listening = socket.create_server((HOST, port))
        except OSError as error:
            raise SimulatorError(f"--port {port}: {error.strerror}; --port 0 takes a free one") from None
        with listening:
            opened(f"http://{HOST}:{listening.getsockname()[1]}/?token={self.token}")
            settings = uvicorn.Config(self.application(), log_level="warning", access_log=False, server_header=False)
            uvicorn.Server(settings).run(sockets=[listening])


def _mapping(asked: Mapping[str, Any], key: str) -> dict[str, Any]:
    found = asked.get(key)
    if not isinstance(found, dict):
        raise ScenarioError(f'the request has no mapping "{key}"')
    return found


def _answered(answer: Answer, body: bytes) -> tuple[Mapping[str, Any], int]:
    """Return what *answer* returns for the JSON *body*, and the status of HTTP."""
    try:
        asked = json.loads(body)
    except ValueError:
        return {"error": "the request is not JSON"}, 400
    if not isinstance(asked, dict):
        return {"error": "the request is not a mapping"}, 400
    try:
        return answer(asked), 200
    except (SimulatorError, KeyError, ValueError, TypeError) as error:
        if not isinstance(error, SimulatorError):
            return {"error": f"the request cannot be read: {type(error).__name__} {error}"}, 400
        return {"error": str(error)}, 422


LESSONS = Path(__file__).with_name("lessons.yaml")


@dataclass(frozen=True)
class Lesson:
    """The *data* of a scenario, a *text* of two sentences, and the key whose widget is to *change*."""

    title: str
    text: str
    change: str
    data: Mapping[str, Any]


@cache
def lessons() -> tuple[Lesson, ...]:
    """Return all lessons in order."""
    return tuple(_lesson(one) for one in read(LESSONS).data["lessons"])


def _lesson(given: Mapping[str, Any]) -> Lesson:
    scenario = Scenario.load(given["scenario"])
    data = plain(scenario.variants[given["variant"]] if "variant" in given else scenario)
    for key, text in given.get("set", {}).items():
        data = changed(data, key, str(text))
    return Lesson(given["title"], given["text"], given["change"], data)


MOST_SPANS = 30_000
"""Spans of the charts of a run at most: more than a screen has pixels, and some 0.5 MB."""

MOST_PLANS = 3
"""Best candidates of a plan that the page offers."""


def _with_changes(data: Mapping[str, Any], changes: Mapping[str, str]) -> tuple[dict[str, Any], list[dict[str, str]]]:
    """Return *data* with those *changes* that can be read, and the faults of the others."""
    made, wrong = dict(data), []
    for key, text in changes.items():
        try:
            made = changed(made, key, text)
        except ScenarioError as error:
            wrong += [{"key": key, "text": str(error)}]
    return made, wrong


def _scenario(data: Mapping[str, Any]) -> Scenario:
    return Scenario.of_document(Document(dict(data)), pathlib.Path(), "page")


def _offers(found: PlanAnswer) -> Iterator[dict[str, Any]]:
    for one in found.best[:MOST_PLANS]:
        # JSON is YAML on one line
        settings = {key: json.dumps(value) for key, value in one.candidate.settings.items()}
        yield {"label": show(one.seconds, "time"), "set": settings}


def headline(result: Result) -> list[dict[str, Any]]:
    """Return the numbers looked at first: *name*, *text*, and *wrong* if the run would fail by it."""
    if not isinstance(result, StepNumbers):
        return [{"name": "result", "text": result.in_short(), "wrong": False}]
    summary = result.summary()
    form = efficiency.bubble(result.scenario)
    bubble = f"{summary['bubble_fraction']:.1%}" + (f", in theory {form.fraction:.1%}" if form else "")
    return [
        {"name": "GPUs", "text": f"{len(result.timeline.gpu_ranks):,}", "wrong": False},
        {"name": "step time", "text": show(result.timeline.step_time, "time"), "wrong": False},
        {"name": "MFU", "text": f"{summary['mfu']:.1%}", "wrong": False},
        {"name": "memory", "text": result.need.amount, "wrong": not result.fits},
        {"name": "bubble", "text": bubble, "wrong": False},
    ]


def _first_sections(result: Result) -> Iterator[PageSection]:
    """Yield the sections that are ready at once."""
    if isinstance(result, StepNumbers):
        yield breakdown_section({"this run": result.breakdown})
        yield memory_section(result)
    else:
        yield summary_section(result.scenario.name, result)
    yield links_section(result.timeline)


def _shown(sections: Iterator[PageSection]) -> dict[str, Any]:
    """Return the HTML of *sections* by key, and the data of their charts."""
    made = page.Chapter("run", "This run", tuple(sections))
    return {"sections": page.fragments(made), "charts": page.chart_data([made])}
