"""The server: the page, its scripts, and the routes that run, draw and plan. It answers on this machine only, and only
to who knows the token.
"""

from __future__ import annotations

import json
import secrets
import socket
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from clustersim.scenarios.report import page
from clustersim.scenarios.serve.lessons import lessons
from clustersim.scenarios.serve.warm_runs import WarmRuns
from clustersim.scenarios.serve.widgets import widgets
from clustersim.simulator.reading.errors import ScenarioError, SimulatorError
from clustersim.simulator.reading.lookup import version

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
