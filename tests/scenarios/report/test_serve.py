"""Every route answers, to who knows the token and asks this machine by its name, and to nobody else."""

import json
import re
import sys
import urllib.request
from threading import Event, Thread

import pytest

from clustersim.scenarios.commands.command_line import run
from clustersim.scenarios.report.serve import LARGEST, Site
from clustersim.scenarios.report.widgets import plain
from clustersim.scenarios.scenario import Scenario
from clustersim.simulator.reading.errors import SimulatorError

pytest.importorskip("starlette", reason="serve needs starlette, which is not installed")
pytest.importorskip("httpx2", reason="the client of tests needs httpx2, which is not installed")
pytest.importorskip("plotly", reason="the page needs plotly, which is not installed")

HELLO = plain(Scenario.load("hello"))
FILES = ("plotly.js", "page.js", "page.css", "serve.js", "serve.css")
ROUTES = [("GET", "/"), *(("GET", f"/files/{name}") for name in FILES)]
ROUTES += [("POST", f"/{name}") for name in ("run", "charts", "plan")]


@pytest.fixture
def site() -> Site:
    return Site(HELLO)


@pytest.fixture
def client(site):
    from starlette.testclient import TestClient

    return TestClient(site.application(), base_url="http://127.0.0.1", raise_server_exceptions=True)


def _post(client, site, path, body):
    return client.post(f"/{path}", params={"token": site.token}, json=body)


@pytest.mark.parametrize(("method", "path"), ROUTES)
@pytest.mark.parametrize("token", ["", "wrong", "é"])
def test_no_route_answers_without_the_token(client, method, path, token) -> None:
    answer = client.request(method, path, params={"token": token} if token else {})
    assert answer.status_code == 403
    assert "token" in answer.text


@pytest.mark.parametrize(("method", "path"), ROUTES)
def test_no_route_answers_by_the_name_of_another_machine(client, site, method, path) -> None:
    answer = client.request(method, path, params={"token": site.token}, headers={"Host": "evil.example"})
    assert answer.status_code == 400
    assert site.token not in answer.text


def test_tokens_differ() -> None:
    assert Site(HELLO).token != Site(HELLO).token
    assert len(Site(HELLO).token) >= 32


def test_the_page_loads_nothing_from_outside(client, site) -> None:
    answer = client.get("/", params={"token": site.token})
    assert answer.status_code == 200
    named = re.findall(r'(?:src|href)="([^"]+)"', answer.text)
    assert {one.partition("?")[0] for one in named} == {"data:,", *(f"files/{name}" for name in FILES)}
    for one in named[1:]:
        assert client.get(f"/{one}").status_code == 200
    policy = answer.headers["content-security-policy"]
    assert "default-src 'none'" in policy
    assert "http" not in policy
    found = re.search(r'id="start">(.*?)</script>', answer.text, re.DOTALL)
    assert found
    start = json.loads(found[1])
    assert start["data"] == HELLO
    assert len(start["lessons"]) == 9


def test_text_of_a_scenario_cannot_leave_its_place() -> None:
    from starlette.testclient import TestClient

    hostile = Site(HELLO | {"description": "</script><script>alert(1)</script>"})
    client = TestClient(hostile.application(), base_url="http://localhost")
    assert "<script>alert" not in client.get("/", params={"token": hostile.token}).text


@pytest.mark.parametrize("name", ["web.py", "..%2Fweb.py", "page.html"])
def test_no_other_file_is_served(client, site, name) -> None:
    assert client.get(f"/files/{name}", params={"token": site.token}).status_code == 404


def test_a_run_its_charts_and_a_plan(client, site) -> None:
    ran = _post(client, site, "run", {"data": HELLO, "set": {"training.global_batch_size": "64"}}).json()
    assert ran["run"] == 1
    assert ran["faults"] == []
    assert "timeline" in _post(client, site, "charts", {"run": 1}).json()["sections"]
    planned = _post(client, site, "plan", {"data": HELLO})
    assert planned.status_code == 200, planned.text
    assert planned.json()["best"]


def test_wrong_values_come_back_with_their_widget(client, site) -> None:
    ran = _post(client, site, "run", {"data": HELLO, "set": {"parallelism.pp": "3"}}).json()
    assert ran["run"] is None
    assert [one["key"] for one in ran["faults"]] == ["parallelism.pp"]
    assert "try 2 or 4 stages" in ran["faults"][0]["text"]


@pytest.mark.parametrize(
    ("path", "body", "status", "told"),
    [
        ("run", [], 400, "not a mapping"),
        ("run", {}, 422, 'no mapping "data"'),
        ("run", {"data": HELLO, "set": 3}, 422, 'no mapping "set"'),
        ("charts", {}, 400, "cannot be read"),
        ("charts", {"run": "x"}, 400, "cannot be read"),
        ("charts", {"run": 9}, 422, "run 9 is no longer kept"),
        ("plan", {"data": {}}, 422, "version"),
    ],
)
def test_a_wrong_request_is_told(client, site, path, body, status, told) -> None:
    answer = _post(client, site, path, body)
    assert answer.status_code == status
    assert told in answer.json()["error"]


def test_a_body_that_is_no_json_or_too_long_is_told(client, site) -> None:
    where = {"params": {"token": site.token}}
    assert client.post("/run", content=b"{", **where).status_code == 400
    assert client.post("/run", content=b" " * (LARGEST + 1), **where).status_code == 413


def test_a_scenario_of_wrong_sections_is_told(client, site) -> None:
    for data in ({}, {"version": 1}, {"version": 1, "cluster": 3, "model": [], "training": "x"}):
        answer = _post(client, site, "run", {"data": data, "set": {"parallelism.tp": "2"}})
        assert answer.status_code == 200, answer.text
        assert answer.json()["faults"]


def test_without_the_extra_the_command_says_what_to_install(monkeypatch, capsys) -> None:
    monkeypatch.setitem(sys.modules, "starlette", None)
    assert run(["serve", "hello"]) == 2
    assert "pip install 'clustersim[serve]'" in capsys.readouterr().err


def test_a_taken_port_and_a_wrong_scenario_are_told(site, capsys) -> None:
    import socket

    with socket.create_server(("127.0.0.1", 0)) as taken, pytest.raises(SimulatorError, match="--port 0 takes a free"):
        site.serve(taken.getsockname()[1], lambda address: None)
    assert run(["serve", "helo", "--no-browser"]) == 2
    assert 'did you mean "hello"' in capsys.readouterr().err


def test_the_server_answers_at_the_address_that_it_prints(site) -> None:
    ready, address = Event(), []

    def opened(text: str) -> None:
        address.append(text)
        ready.set()

    Thread(target=site.serve, args=(0, opened), daemon=True).start()
    assert ready.wait(60)
    assert address[0].startswith("http://127.0.0.1:")
    with urllib.request.urlopen(address[0], timeout=60) as answer:
        assert b"<h1>clustersim</h1>" in answer.read()
