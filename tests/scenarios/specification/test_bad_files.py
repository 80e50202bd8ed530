"""Files that are not scenarios, options without effect, disconnected graphs: each gives one sentence."""

import json
from pathlib import Path
from typing import Any

import pytest

from clustersim.scenarios.commands.command_line import run

Links = list[tuple[int, int]]


def told(capsys: pytest.CaptureFixture[str], *arguments: str) -> str:
    status = run([*arguments])
    out, err = capsys.readouterr()
    assert (status, out) == (2, "")
    return err


@pytest.fixture(autouse=True)
def _in_a_folder_of_its_own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


@pytest.mark.parametrize(
    ("content", "expected"),
    [
        (b"", "bad.yaml: is empty; a scenario begins with version: 1\n"),
        (b"# nothing but a comment\n", "bad.yaml: is empty; a scenario begins with version: 1\n"),
        (b"\x89PNG\r\n", "bad.yaml: is not a text file: byte 0x89 at 0 is not UTF-8\n"),
        (b"version: 1\n\0", "bad.yaml: is not a text file: it has a zero byte at 11\n"),
        (b"version: 1\x07\n", "bad.yaml:1: is not a text file: it has the character '\\x07'\n"),
        (b"- 1\n", "bad.yaml:1:1: must be a mapping (key: value) at the top\n   1 | - 1\n"),
        (b"hello\n", "bad.yaml:1:1: must be a mapping (key: value) at the top\n   1 | hello\n"),
        (
            b"version: 1\ncluster: {preset: dgx1\nmodel: x\n",
            "bad.yaml:3:6: not valid YAML: expected ',' or '}', but got ':'"
            " (while parsing a flow mapping that begins in line 2)\n   3 | model: x\n",
        ),
        (
            b"version: 1\n cluster: 3\n",
            "bad.yaml:2:9: not valid YAML: mapping values are not allowed here\n   2 |  cluster: 3\n",
        ),
        (
            b"cluster:\n\tpreset: dgx1\n",
            "bad.yaml:2:1: not valid YAML: a tab cannot indent; use spaces\n   2 | \tpreset: dgx1\n",
        ),
        (
            b"version: 1\nname: a\nname: b\n",
            "bad.yaml:3:1: name: duplicate key; it stands in line 2 already\n",
        ),
        (
            b"version: 1\ncluster: {nodes: 1, nodes: 2}\n",
            "bad.yaml:2:21: cluster.nodes: duplicate key; it stands in line 2 already\n",
        ),
        (
            b"version: 1\n---\nversion: 1\n",
            "bad.yaml:2:1: not valid YAML: a second document begins here; a file holds one\n   2 | ---\n",
        ),
        (
            b"cluster: &a\n  node: *a\n",
            "bad.yaml:1:10: cluster.node: an alias leads back into itself\n   1 | cluster: &a\n",
        ),
        (
            b"version: !mine 1\n",
            'bad.yaml:1:10: version: the tag "!mine" is not known here; write the plain value\n'
            "   1 | version: !mine 1\n",
        ),
        (b"a: " + b"[" * 100 + b"]" * 100 + b"\n", "bad.yaml:1:6: a.0.0: is nested deeper than 60 levels\n"),
    ],
)
def test_a_file(content: bytes, expected: str, capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    (tmp_path / "bad.yaml").write_bytes(content)
    assert told(capsys, "check", "bad.yaml").startswith(expected)


def test_nested_aliases_do_not_fill_the_memory(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    lines = ["a0: &a0 [1, 1, 1, 1, 1, 1, 1, 1, 1, 1]"]
    lines += [f"a{n}: &a{n} [{', '.join([f'*a{n - 1}'] * 10)}]" for n in range(1, 10)]
    (tmp_path / "bad.yaml").write_text("\n".join(lines))
    assert told(capsys, "check", "bad.yaml") == "bad.yaml: has more than 200000 values, aliases followed\n"


def test_no_file(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    assert told(capsys, "check", "nowhere.yaml") == "nowhere.yaml: no such file\n"
    (tmp_path / "folder").mkdir()
    assert told(capsys, "check", "folder") == "folder: is a directory; give a YAML file\n"
    err = told(capsys, "run", "helo")
    assert err.startswith('unknown scenario "helo"; did you mean "hello"? ')


@pytest.mark.parametrize(
    ("setting", "expected"),
    [
        ("cluster.gpus=0", "--set cluster.gpus=0: must be at least 1, not 0\n"),
        ("cluster.gpus=x", '--set cluster.gpus=x: must be a whole number, not "x"\n'),
        ("cluster.gpus", "--set cluster.gpus: needs a value: --set cluster.gpus=...\n"),
        ("=3", '--set =3: "" is not a key; write it as in cluster.nodes\n'),
        ("cluster..gpus=3", '--set cluster..gpus=3: "cluster..gpus" is not a key; write it as in cluster.nodes\n'),
        ("clustr.gpus=4", '--set clustr.gpus=4: clustr: unknown key\n     help: did you mean "cluster"?\n'),
        ("cluster.gpsu=4", '--set cluster.gpsu=4: unknown key\n     help: did you mean "gpus"?\n'),
        ("cluster.gpus=[1", "--set cluster.gpus=[1: not valid YAML: expected ',' or ']', but got '<stream end>'\n"),
        ("cluster.gpus.a=3", "--set cluster.gpus.a=3: cluster.gpus is no mapping and has no a\n"),
        ("training={}", "--set training={}: training.global_batch_size: is required\n"),
        ("name=3", "--set name=3: must be text, not 3\n"),
        ("version=", "--set version=: must be 1, not nothing\n"),
        (
            "training.global_batch_size=7",
            "--set training.global_batch_size=7: 7 is not a multiple of dp 4; the nearest are 4 and 8\n",
        ),
        (
            "simulation.stragglers=[{rank: 4, slowdown: 2}]",
            "--set simulation.stragglers=[{rank: 4, slowdown: 2}]: simulation.stragglers.0.rank:"
            " there is no rank 4; ranks go from 0 to 3\n",
        ),
    ],
)
def test_an_option(setting: str, expected: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert told(capsys, "run", "hello", "--set", setting) == expected


def graph(links: Links) -> dict[str, Any]:
    vertices = [{"id": f"gpu {n}", "kind": "gpu", "accelerator": "v100_16gb"} for n in range(3)]
    link = {"kind": "nvlink2", "bandwidth": "50 GB/s", "latency": "1 us"}
    edges = [{"source": f"gpu {a}", "target": f"gpu {b}", "link": link} for a, b in links]
    return {"directed": True, "multigraph": False, "graph": {}, "nodes": vertices, "edges": edges}


def of_graph(tmp_path: Path, links: Links) -> str:
    (tmp_path / "mine.json").write_text(json.dumps(graph(links)))
    (tmp_path / "bad.yaml").write_text(
        "version: 1\ncluster: {graph: mine.json}\ncollective: {kind: all_reduce, size: 1 MB}\n"
    )
    return "bad.yaml"


def test_a_graph_of_ones_own_runs(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    name = of_graph(tmp_path, [(0, 1), (1, 0), (1, 2), (2, 1)])
    assert run(["check", name]) == 0
    assert capsys.readouterr().out == "bad.yaml: ok, 3 GPUs\n"


def test_unreachable_gpus(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    err = told(capsys, "check", of_graph(tmp_path, [(0, 1), (1, 0)]))
    assert err == "mine.json: gpu 2 cannot be reached from gpu 0; every GPU must reach every other\n"


def test_a_usage_error(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["run"]) == 2
    assert "Missing argument" in capsys.readouterr().err
    assert run(["fly"]) == 2
    assert "No such command" in capsys.readouterr().err
