"""What the command line does with odd names, streams, disks, options and files."""

import json
import os
import resource
import signal
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from clustersim.scenarios.commands.command_line import run
from clustersim.scenarios.scenario import Scenario
from clustersim.scenarios.specification.loading import located
from clustersim.simulator.reading.errors import ScenarioError

CODE = "from clustersim.scenarios.commands.command_line import main; main()"

FILES = ["result.json", "scenario.yaml", "spans.csv", "timeline.png"]


@pytest.fixture(autouse=True)
def _in_a_folder_of_its_own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


def command(
    *arguments: str, env: Mapping[str, str] | None = None, code: str = CODE, **options: Any
) -> subprocess.CompletedProcess[bytes]:
    """Run a process of the command line, which is *code*, with *env* in its environment."""
    root = str(Path(__file__).parents[3])
    path = os.pathsep.join(filter(None, [root, os.environ.get("PYTHONPATH", "")]))
    streams: dict[str, Any] = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE} | options
    environment = {**os.environ, "PYTHONPATH": path, **(env or {})}
    line = [sys.executable, "-c", code, *arguments]
    done: subprocess.CompletedProcess[bytes] = subprocess.run(line, env=environment, check=False, **streams)
    return done


def refused(capsys: pytest.CaptureFixture[str], *arguments: str) -> str:
    assert run([*arguments]) == 2
    out, err = capsys.readouterr()
    assert out == ""
    return err


@pytest.mark.parametrize(
    ("setting", "message"),
    [
        ('name="a\\0b"', "has the control character '\\x00'"),
        ('name="a\\nb"', "must be the name of a folder below runs/, without control characters, not 'a\\nb'"),
        ('name="a/b"', 'must be the name of a folder below runs/, without "/" or "\\", not "a/b"'),
        (f"name={'x' * 300}", f'must be at most 180 bytes long, not 300: "{"x" * 20}..."'),
        ('description="\\x1b[31mred"', "has the control character '\\x1b'"),
        ('description="\\ud800"', "has half of a surrogate pair, '\\ud800'"),
        (
            'variants={"a/b": {training.steps: 2}}',
            'variants.a/b: must be the name of a folder below runs/, without "/"',
        ),
        ("variants={a: {variants.b: {}}}", "cannot be set for one run: it says which runs there are"),
        ("version=true", "must be a whole number, not true"),
        ("version=1.0", "must be a whole number, not 1"),
        ("parallelism.data={method: zero, stage: true}", "must be a whole number, not true"),
        ("cluster.bandwidth=1e-308 B/s", "1e-308 B/s is absurd; the least that is taken is 0.001 B/s"),
        ("cluster.bandwidth=1e-300 GB/s", "1e-300 GB/s is absurd; the least that is taken is 0.001 B/s"),
        ("cluster.bandwidth=1e9999999 B/s", "must be finite"),
        ("model.forward=1e-300 s", "1e-300 s is absurd; the least that is taken is 1e-09 ns"),
        ("cluster.degraded=[{link: [gpu 0, gpu 1], bandwidth: 1e-300}]", "1e-300 is absurd; the least that is taken"),
        (f"training.tokens=1{'0' * 400}", "must be at most 1e+30, not about 1e400"),
        ("training.steps=1000000", "1000000 steps are too many to simulate one by one; the most that is taken is"),
    ],
)
def test_nonsense_is_refused_at_check(setting: str, message: str, capsys: pytest.CaptureFixture[str]) -> None:
    err = refused(capsys, "check", "hello", "--set", setting)
    assert message in err
    assert err.startswith("--set ")
    assert "\x1b" not in err


def test_factors_of_a_link_do_not_vanish_together(capsys: pytest.CaptureFixture[str]) -> None:
    entry = "{link: [gpu 0, switch 0], bandwidth: 1e-6}"
    err = refused(capsys, "check", "hello", "--set", f"cluster.degraded=[{entry}, {entry}]")
    assert "multiply to 1e-12, which is absurd" in err


def test_names_from_code_are_checked_too() -> None:
    data: dict[str, Any] = {
        "version": 1,
        "cluster": {"preset": "uniform", "gpus": 2, "hosts": 1, "bandwidth": "1 GB/s", "latency": "0 s"},
        "collective": {"kind": "all_reduce", "size": "1 MB"},
    }
    with pytest.raises(ScenarioError, match=r"name: must be the name of a folder"):
        Scenario.model_validate({**data, "name": "a\0b"})
    with pytest.raises(ScenarioError, match=r"description: has the control character"):
        Scenario.model_validate({**data, "description": "\x1b[2J"})


def test_a_row_of_a_table_sets_no_variants(capsys: pytest.CaptureFixture[str]) -> None:
    Path("runs.csv").write_text("steps\n1\n")
    table = "table={file: runs.csv, name: 's {steps}', set: {variants.x: {training.steps: 2}}}"
    assert "table.set.variants.x: cannot be set for one run" in refused(capsys, "check", "hello", "--set", table)
    Path("runs.csv").write_text("steps,steps\n1,2\n")
    table = "table={file: runs.csv, name: 's {steps}', set: {}}"
    assert refused(capsys, "check", "hello", "--set", table) == 'runs.csv:1: the header has the column "steps" twice\n'
    Path("runs.csv").write_text("steps\na/b\n")
    assert "each row's name must be the name of a folder" in refused(capsys, "check", "hello", "--set", table)


@pytest.mark.parametrize(
    ("ranks", "message"),
    [
        ("0:99999999999", "a cluster has at most 1,000,000 ranks"),
        ("0:999999999", "a cluster has at most 1,000,000 ranks"),
        ("9" * 5000, "a cluster has at most 1,000,000 ranks"),
        ("²", '"²" is not a rank or a range'),
        ("4:2", "names no rank"),
    ],
)
def test_ranks_that_no_cluster_has(ranks: str, message: str, capsys: pytest.CaptureFixture[str]) -> None:
    err = refused(capsys, "plot", "hello", "--ranks", ranks)
    assert message in err
    assert len(err) < 200


@pytest.mark.parametrize(
    ("bandwidth", "message"),
    [
        (str(10**400), "bandwidth must be finite and above 0"),
        ("9" * 5000, "is not valid here: it has a number of thousands of digits"),
        ("1e-300", "1e-300 is absurd; the least that is taken is 0.001 B/s"),
    ],
)
def test_numbers_of_a_graph(bandwidth: str, message: str, capsys: pytest.CaptureFixture[str]) -> None:
    gpus = ", ".join(f'{{"id": "gpu {n}", "kind": "gpu", "accelerator": "unit"}}' for n in (0, 1))
    link = f'{{"source": "gpu 0", "target": "gpu 1", "bandwidth": {bandwidth}, "latency": 0}}'
    Path("mine.json").write_text(f'{{"nodes": [{gpus}], "edges": [{link}]}}')
    text = "version: 1\ncluster: {graph: mine.json}\ncollective: {kind: all_reduce, size: 1 MB}\n"
    Path("mine.yaml").write_text(text)
    assert message in refused(capsys, "check", "mine.yaml")


def test_devices_and_pipes_are_no_input(capsys: pytest.CaptureFixture[str]) -> None:
    os.mkfifo("pipe")
    told = "is a device or a pipe; give a file\n"
    assert refused(capsys, "calibrate", "--from", "/dev/zero") == f"/dev/zero: {told}"
    assert refused(capsys, "calibrate", "--from", "pipe") == f"pipe: {told}"
    assert refused(capsys, "check", "pipe") == f"pipe: {told}"
    Path("rows.json").write_text('{"measurements": [{"kind": "send", "ranks": [0, 1], "nbytes": 1e999, "seconds": 1}]}')
    assert "measurements[0]: must have kind, ranks" in refused(capsys, "calibrate", "--from", "rows.json")


@pytest.mark.exhaustive
def test_a_closed_output_loses_no_result() -> None:
    def close() -> None:
        os.close(1)

    done = command("run", "hello", stdout=None, preexec_fn=close)
    assert (done.returncode, done.stderr) == (0, b"")
    assert sorted(path.name for path in Path("runs/hello").iterdir()) == FILES


@pytest.mark.exhaustive
def test_an_output_in_ascii_shows_the_report() -> None:
    done = command("run", "hello", env={"PYTHONIOENCODING": "ascii"})
    assert (done.returncode, done.stderr) == (0, b"")
    assert b"  compute       120 ms  88.9%  ####" in done.stdout


@pytest.mark.exhaustive
def test_the_name_of_a_file_does_not_steer_the_terminal() -> None:
    Path("\x1b[31mred.yaml").write_bytes(located("hello").read_bytes())
    done = command("check", "\x1b[31mred.yaml")
    assert done.returncode == 2
    assert b"must be the name of a folder below runs/, without control characters, not '\\x1b[31mred'" in done.stderr
    Path("\x1b[31mred.yaml").write_bytes(b"name: named\n" + located("hello").read_bytes())
    done = command("check", "\x1b[31mred.yaml")
    assert (done.returncode, done.stdout) == (0, b"\\x1b[31mred.yaml: ok, 4 GPUs, needs 3.3 GB a GPU\n")


@pytest.mark.exhaustive
def test_a_reader_that_goes_away_loses_no_result() -> None:
    reading, writing = os.pipe()
    os.close(reading)
    done = command("run", "hello", stdout=writing)
    os.close(writing)
    assert (done.returncode, done.stderr) == (0, b"")
    assert sorted(path.name for path in Path("runs/hello").iterdir()) == FILES


@pytest.mark.exhaustive
@pytest.mark.skipif(not Path("/dev/full").exists(), reason="needs /dev/full")
def test_a_full_output_is_told() -> None:
    with Path("/dev/full").open("wb") as full:
        done = command("run", "hello", stdout=full)
    assert (done.returncode, done.stderr) == (2, b"cannot write standard output: No space left on device\n")
    assert sorted(path.name for path in Path("runs/hello").iterdir()) == FILES


@pytest.mark.exhaustive
def test_the_screen_for_figures_does_not_matter() -> None:
    assert command("plot", "hello", "-o", "x.png", env={"MPLBACKEND": "junk"}).returncode == 0


@pytest.mark.exhaustive
def test_an_interrupt_during_imports_is_status_130() -> None:
    code = (
        "import os, sys, importlib.abc\n"
        "class Interrupt(importlib.abc.MetaPathFinder):\n"
        "    def find_spec(self, name, path, target=None):\n"
        "        if name == os.environ['INTERRUPTED']: raise KeyboardInterrupt\n"
        "sys.meta_path.insert(0, Interrupt())\n"
        "from clustersim.scenarios.commands.command_line import main; main()"
    )
    for module in ("typer", "clustersim.scenarios.commands.run", "matplotlib"):
        done = command("run", "hello", code=code, env={"INTERRUPTED": module})
        assert (done.returncode, b"Traceback" in done.stderr) == (130, False)


@pytest.mark.parametrize(
    ("arguments", "file"),
    [
        (["run", "hello", "-o", "d"], "d/spans.csv"),
        *(
            pytest.param(*one, marks=pytest.mark.exhaustive)
            for one in (
                (["run", "hello", "--json", "--trace", "d/t.json"], "d/t.json"),
                (["run", "hello", "--json", "--spans", "d/s.csv"], "d/s.csv"),
                (["plot", "hello", "-o", "d/x.png"], "d/x.png"),
                (["schema", "-o", "d/schema.json"], "d/schema.json"),
                (["accuracy", "hello", "-o", "d/A.md"], "d/A.md"),
            )
        ),
    ],
)
def test_a_full_disk_leaves_the_old_file_whole(arguments: list[str], file: str) -> None:
    def limit() -> None:
        # a file that grows beyond it fails like one on a full disk
        signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
        resource.setrlimit(resource.RLIMIT_FSIZE, (600, 600))

    path = Path(file)
    path.parent.mkdir()
    path.write_text("old")
    done = command(*arguments, preexec_fn=limit, env={"PYTHONDONTWRITEBYTECODE": "1", "MPLCONFIGDIR": os.devnull})
    assert done.returncode == 2
    assert b"cannot write" in done.stderr
    assert b"Traceback" not in done.stderr
    assert path.read_text() == "old"
    assert not [one for one in path.parent.iterdir() if one.name.startswith(".")]


@pytest.mark.exhaustive
def test_an_interrupted_accuracy_keeps_the_page(monkeypatch: pytest.MonkeyPatch) -> None:
    from clustersim.scenarios.commands import runner

    evaluated = runner.evaluated

    def interrupted(*arguments: Any) -> Any:
        yield next(iter(evaluated(*arguments)))
        raise KeyboardInterrupt

    monkeypatch.setattr(runner, "evaluated", interrupted)
    Path("A.md").write_text("old")
    assert run(["accuracy", "hello", "naive_vs_ddp", "-o", "A.md"]) == 130
    assert Path("A.md").read_text() == "old"
    assert "- naive_vs_ddp: not evaluated yet" in Path("A.partial.md").read_text()
    monkeypatch.setattr(runner, "evaluated", evaluated)
    assert run(["accuracy", "hello", "-o", "A.md"]) == 0
    assert Path("A.md").read_text() != "old"
    assert not Path("A.partial.md").exists()


def test_a_folder_with_other_numbers_or_of_another_version_is_told(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["run", "hello", "-o", "a"]) == 0
    capsys.readouterr()
    for arguments in (["plot", "a", "links"], ["compare", "a", "hello"]):
        assert run(arguments) == 0
        assert capsys.readouterr().err == ""
    path = Path("a/result.json")
    before = json.loads(path.read_text())
    path.write_text(json.dumps({**before, "clustersim": "0.1", "step_time_s": 9.0}))
    for arguments in (["plot", "a", "links"], ["compare", "a", "hello"]):
        assert run(arguments) == 0
        err = capsys.readouterr().err
        assert "warning: a/result.json was written by clustersim 0.1; this is " in err
        assert "a/result.json has other numbers than its scenario.yaml gives now: step_time_s was 9.0, is 0.135" in err
    path.write_text("{")
    assert run(["plot", "a", "links"]) == 0
    assert "warning: a/result.json: is not valid JSON" in capsys.readouterr().err


def test_an_order_of_ones_own(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    package = tmp_path / "orders_of_robustness"
    package.mkdir()
    (package / "__init__.py").write_text("")
    (package / "lifo.py").write_text("def lifo(stages, micro_batches):\n    return [[1], [2]]\n")
    (package / "boom.py").write_text("def boom(stages, micro_batches):\n    return 1 / 0\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    for name, message in (
        ("lifo", "must return clustersim.Order, not list"),
        ("boom", "failed: ZeroDivisionError: division by zero"),
    ):
        setting = f"parallelism={{pp: 2, schedule: orders_of_robustness.{name}}}"
        err = refused(capsys, "check", "hello", "--set", setting)
        assert f"orders_of_robustness.{name} {message}" in err


def test_a_huge_model_is_refused_before_its_gathers_are_made(capsys: pytest.CaptureFixture[str]) -> None:
    settings = ["model.parameters=1e15", "parallelism.data={method: zero, stage: 1}", "network.transport=gloo"]
    err = refused(capsys, "check", "hello", *(word for setting in settings for word in ("--set", setting)))
    assert "a rank gathers 1e+15 updated parameters, 5e+08 at a time; at most 10,000 gathers are simulated" in err
