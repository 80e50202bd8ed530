"""One run of each command from end to end."""

import csv
import gzip
import json
import os
import subprocess
import sys
import tomllib
from pathlib import Path
from typing import Any, NoReturn

import pytest

from clustersim.scenarios.commands import application
from clustersim.scenarios.commands.command_line import run
from clustersim.scenarios.scenario import Scenario
from clustersim.scenarios.specification.loading import located
from clustersim.simulator.reading.plain_text import figure
from clustersim.simulator.reading.units import show, show_long
from clustersim.simulator.reading.yaml_and_json import read

ROOT = Path(__file__).parents[3]


@pytest.fixture(autouse=True)
def _in_a_folder_of_its_own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


def answer(capsys: pytest.CaptureFixture[str], *arguments: str, status: int = 0) -> str:
    assert run([*arguments]) == status
    out, err = capsys.readouterr()
    assert err == ""
    return out


def test_run_reports_and_writes(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    out = answer(capsys, "run", "hello", "--check")
    assert "step time 135 ms" in out
    assert "4 of 4 GPUs of uniform; unit, fp32, batch 32 = 4 replicas x 1 micro-batch of 8" in out
    assert "before the first step: broadcast of the model" in out
    assert "ok     step_time_s = 0.13503, expected 0.13503" in out
    folder = tmp_path / "runs" / "hello"
    assert sorted(path.name for path in folder.iterdir()) == [
        "result.json",
        "scenario.yaml",
        "spans.csv",
        "timeline.png",
    ]
    assert (folder / "timeline.png").read_bytes().startswith(b"\x89PNG")
    result = json.loads((folder / "result.json").read_text())
    with (folder / "spans.csv").open() as file:
        spans = list(csv.DictReader(file))
    assert sum(int(span["ranks"]) for span in spans) == result["simulation"]["ops"] == 4 * (4 + 4 + 4 + 1)
    assert max(float(span["end_s"]) for span in spans) == result["step_time_s"]


def test_the_version_is_that_of_the_project(capsys: pytest.CaptureFixture[str]) -> None:
    version = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["version"]
    assert answer(capsys, "--version") == f"clustersim {version}\n"
    assert f"\nversion: {version}\n" in (ROOT / "CITATION.cff").read_text()
    assert f"\n## {version}" in (ROOT / "CHANGELOG.md").read_text()


def test_run_with_json_prints_that_alone_and_draws_nothing(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    assert json.loads(answer(capsys, "run", "hello", "--json"))["name"] == "hello"
    several = json.loads(answer(capsys, "run", "hello", "allreduce_dgx_a100", "--json"))
    assert [one["name"] for one in several] == ["hello", "allreduce_dgx_a100"]
    assert list(tmp_path.iterdir()) == []


def test_the_same_scenario_gives_the_same_bytes(capsys: pytest.CaptureFixture[str]) -> None:
    def once(*options: str) -> str:
        result = json.loads(answer(capsys, "run", "zhores_resnet50_ddp", "--json", *options))
        assert result["simulation"].pop("wall_s") > 0
        return json.dumps(result)

    jittered = ("--set", "simulation={jitter: 0.1, seed: 7}", "--set", "cluster.nodes=4", "--set", "training.steps=2")
    smaller = ("--set", "training.global_batch_size=1024")
    assert once(*jittered, *smaller) == once(*jittered, *smaller)
    assert once(*jittered, *smaller) != once(*jittered, *smaller, "--set", "simulation.seed=8")


def test_a_result_can_be_drawn_again_and_moved(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    answer(capsys, "run", "hello", "-o", "a", "--set", "cluster.bandwidth=5 GB/s")
    (tmp_path / "a").rename(tmp_path / "b")
    before = json.loads((tmp_path / "b" / "result.json").read_text())
    again = json.loads(answer(capsys, "run", "b", "--json"))
    assert again["step_time_s"] == before["step_time_s"]
    assert again["name"] == "hello"
    assert answer(capsys, "plot", "b", "links").strip() == "b/links.png"


@pytest.mark.parametrize("name", ["trace.pftrace", "trace.json", "trace.json.gz"])
def test_a_trace(name: str, capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    answer(capsys, "run", "hello", "--json", "--trace", name)
    assert (tmp_path / name).stat().st_size > 500


@pytest.mark.parametrize("name", ["spans.csv", "spans.csv.gz"])
def test_spans_on_request(name: str, capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    answer(capsys, "run", "hello", "--json", "--spans", name)
    assert [path.name for path in tmp_path.iterdir()] == [name]
    opened = gzip.open if name.endswith(".gz") else open
    with opened(tmp_path / name, "rt") as file:
        rows = list(csv.DictReader(file))
    assert [row["op"] for row in rows][:2] == ["0F0.layer 0", "0F0.layer 1"]
    assert {row["ranks"] for row in rows} == {"4"}


def test_spans_of_variants_have_files_of_their_own(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    answer(capsys, "run", "gpipe_vs_varuna", "--json", "--spans", "s.csv")
    assert {path.name for path in tmp_path.iterdir()} == {"s_gpipe.csv", "s_varuna.csv", "s_1f1b.csv"}


def test_a_large_run_leaves_its_spans_out_and_says_how_to_get_them(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("clustersim.scenarios.results.result_files.MOST_SPANS", 13)
    told = "spans.csv left out, 13 rows or more; to get it: --spans runs/hello/spans.csv\n"
    assert told in answer(capsys, "run", "hello")
    folder = tmp_path / "runs" / "hello"
    assert sorted(path.name for path in folder.iterdir()) == ["result.json", "scenario.yaml", "timeline.png"]
    assert "left out" not in answer(capsys, "run", "hello", "--spans", "runs/hello/spans.csv")
    assert (folder / "spans.csv").exists()


def test_spans_in_a_form_that_is_not_known_are_refused(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["run", "hello", "--spans", "s.txt"]) == 2
    assert capsys.readouterr().err == "s.txt: the name must end with one of .csv, .csv.gz, .parquet\n"


def test_the_trace_of_chosen_ranks_is_the_same_folded_and_unfolded(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    smaller = ["--set", "training.global_batch_size=16", "--set", "model.num_layers=8"]
    for name, fold in (("folded", "true"), ("plain", "false")):
        options = ["--trace", f"{name}.json", "--ranks", "0,8:10,63", "--set", f"simulation.fold={fold}", *smaller]
        answer(capsys, "run", "gpt_6_7b_64a100", "--json", *options)
    folded, plain = (json.loads((tmp_path / f"{name}.json").read_text())["traceEvents"] for name in ("folded", "plain"))
    assert {event["pid"] for event in folded} == {0, 8, 9, 63}

    def told(event: dict[str, Any]) -> str:
        return json.dumps({k: v for k, v in event.items() if k not in ("ts", "dur", "args")}, sort_keys=True)

    def times(events: list[dict[str, Any]]) -> list[float]:
        return [
            event[key]
            for event in sorted(events, key=lambda e: (told(e), e.get("ts", 0)))
            for key in ("ts", "dur")
            if key in event
        ]

    assert sorted(map(told, folded)) == sorted(map(told, plain))
    assert times(folded) == pytest.approx(times(plain), rel=1e-9, abs=1e-6)


@pytest.mark.parametrize("more", [["--json", "--trace", "t.json"], []])
def test_ranks_that_there_are_not(
    more: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    assert run(["run", "hello", "--ranks", "9", *more]) == 2
    assert capsys.readouterr().err == "there is no rank 9; ranks are 0 to 3\n"


@pytest.mark.parametrize("chart", ["timeline", "links", "breakdown", "memory", "states", "operators", "topology"])
def test_plot(chart: str, capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    options = ["--ranks", "0,2:4", "--window", "20ms:100ms"] if chart == "timeline" else []
    assert answer(capsys, "plot", "hello", chart, "-o", "x.svg", *options).strip() == "x.svg"
    assert "<svg" in (tmp_path / "x.svg").read_text()


def test_three_schedules_stand_in_one_figure_on_one_axis(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    assert answer(capsys, "plot", "gpipe_vs_varuna", "pipeline", "-o", "three.svg").strip() == "three.svg"
    text = (tmp_path / "three.svg").read_text()
    assert all(f">{name}" in text for name in ("gpipe: 28 s", "varuna: 27 s", "1f1b: 24 s"))
    assert text.count(">time (s)<") == 1
    assert text.count(">stage 3<") == 3
    assert ">gpipe_vs_varuna on 4 GPUs of uniform<" in text


@pytest.mark.exhaustive
def test_bars_of_zero_say_what_does_not_fit(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    answer(capsys, "plot", "gpt2_xl_zero_zhores", "states", "-o", "zero.svg")
    text = (tmp_path / "zero.svg").read_text()
    assert text.count("DOES NOT FIT") == 1
    assert all(f">{word}<" in text for word in ("zero_0", "zero_3", "capacity of the GPU", "optimizer", "reserved"))
    files = answer(capsys, "plot", "gpt2_xl_zero_zhores", "memory", "-o", "memory.svg").split()
    assert files == [f"memory_zero_{stage}.svg" for stage in range(4)]
    told = ["DOES NOT FIT" in (tmp_path / name).read_text() for name in files]
    assert told == [True, False, False, False]


def test_a_sweep_has_the_number_that_varies_on_x(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    both = "variants={a: {training.global_batch_size: 64}, b: {training.global_batch_size: 128}}"
    answer(capsys, "plot", "hello", "sweep", "-o", "s.svg", "--set", both)
    text = (tmp_path / "s.svg").read_text()
    assert all(f">{word}<" in text for word in ("training.global_batch_size", "64", "128", "step time"))
    answer(capsys, "plot", "allreduce_dgx_a100", "sweep", "-o", "c.svg")
    assert all(f">{word}<" in (tmp_path / "c.svg").read_text() for word in ("collective.size", "busbw", "1.07 GB"))
    assert run(["plot", "gpipe_vs_varuna", "sweep"]) == 2
    assert "has no number to put on x: its variants differ in training.recompute" in capsys.readouterr().err


def test_titles_name_cluster_time_and_mfu_and_files_have_no_spaces(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    answer(capsys, "plot", "zhores_resnet50_ddp", "breakdown", "-o", "b.svg")
    summary = Scenario.load("zhores_resnet50_ddp").run().summary()
    step, mfu = f"{summary['step_time_s'] * 1e3:.1f} ms", f"{summary['mfu']:.1%}"
    title = f">zhores_resnet50_ddp on 100 GPUs of zhores, step {step}, MFU {mfu}<"
    assert title in (tmp_path / "b.svg").read_text()
    out = answer(capsys, "plot", "gradient_rings", "links").splitlines()
    assert out == ["gradient_rings_links_without_chunks.png", "gradient_rings_links_with_chunks.png"]
    answer(capsys, "run", "gradient_rings", "-o", "rings")
    assert not [path for path in (tmp_path / "rings").iterdir() if " " in path.name]


def test_a_collective_has_no_memory_to_draw(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["plot", "allreduce_dgx_a100", "memory"]) == 2
    assert "measures a collective; it has no chart of memory" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        (
            ["hello", "flames"],
            'there is no chart "flames"; draw timeline, pipeline, memory, states, breakdown, links, repeats, critical, '
            "operators, topology, sweep, steps, shared_links, queue or activations",
        ),
        (["hello", "-o", "x.gif"], "x.gif: the name must end with one of .png, .svg, .pdf"),
        (["hello", "--ranks", "0-3"], '--ranks 0-3: "0-3" is not a rank or a range; write e.g. 0,8:16'),
        (["hello", "--ranks", "4:4"], "--ranks 4:4: names no rank; write e.g. 0,8:16"),
        (["hello", "--window", "1:2"], '--window 1:2: needs a unit, e.g. "3 us" or "1.5 ms"; write e.g. 1s:2s'),
        (["hello", "--window", "2s:1s"], "--window 2s:1s: must begin before it ends; write e.g. 1s:2s"),
    ],
)
def test_plot_tells_what_is_wrong(arguments: list[str], expected: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["plot", *arguments]) == 2
    assert capsys.readouterr().err == f"{expected}\n"


def test_compare_tells_only_what_differs(capsys: pytest.CaptureFixture[str]) -> None:
    out = answer(capsys, "compare", "naive_vs_ddp", "-o", "bars.png")
    first, *_ = out.split("\n\n")
    assert [line.split()[0] for line in first.splitlines()[1:]] == [
        "parallelism.data.method",
        "parallelism.data.update",
        "parallelism.data.overlap",
    ]
    assert "where the step time went" in out
    assert run(["compare", "hello"]) == 2
    assert capsys.readouterr().err == "compare needs at least two scenarios, or one with variants\n"


def test_compare_of_runs_tells_what_was_set(capsys: pytest.CaptureFixture[str]) -> None:
    answer(capsys, "run", "hello", "-o", "slow", "--set", "cluster.bandwidth=1 GB/s")
    out = answer(capsys, "compare", "hello", "slow")
    assert "cluster.bandwidth  10 GB/s  1 GB/s" in out.splitlines()[1]
    assert "difference" in out


def test_check_says_what_fits(capsys: pytest.CaptureFixture[str]) -> None:
    out = answer(capsys, "check", "zhores_resnet50_ddp", "hello")
    first, second = out.splitlines()
    assert first == "zhores_resnet50_ddp: ok, 100 GPUs, needs 8.1 of 17.2 GB: fits"
    # 2 GB of tensors and 1.3 GB of CUDA's context
    assert second == "hello: ok, 4 GPUs, needs 3.3 GB a GPU"
    out = answer(capsys, "check", "zhores_resnet50_ddp", "--set", "parallelism.dp=50")
    assert ": ok, 100 GPUs, 50 idle, " in out


def test_check_goes_on_after_a_fault(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["check", "nowhere.yaml", "hello"]) == 2
    out, err = capsys.readouterr()
    assert (out, err) == ("hello: ok, 4 GPUs, needs 3.3 GB a GPU\n", "nowhere.yaml: no such file\n")


def test_show_order(capsys: pytest.CaptureFixture[str]) -> None:
    assert answer(capsys, "show", "dgx_a100_gpt2_xl_ddp", "order") == "0F0,0B0,0F1,0B1,0F2,0B2,0F3,0B3\n"


def test_show_groups(capsys: pytest.CaptureFixture[str]) -> None:
    out = answer(capsys, "show", "hello", "groups")
    assert "dp: 1 groups of 4\n  0 1 2 3\n" in out
    assert "rank 3  stage 0  gpu 3  node 0" in out


def test_show_derived_is_a_scenario_again(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    out = answer(capsys, "show", "hello")
    assert "# micro_batch_size: 8\n" in out
    assert "  bandwidth: 10 GB/s\n" in out
    (tmp_path / "again.yaml").write_text(out)
    again = json.loads(answer(capsys, "run", "again.yaml", "--json"))
    assert again["step_time_s"] == json.loads(answer(capsys, "run", "hello", "--json"))["step_time_s"]


def test_show_topology(capsys: pytest.CaptureFixture[str]) -> None:
    out = answer(capsys, "show", "zhores_resnet50_ddp", "topology")
    # four GPUs of a node share its one NIC, which only the host's PCIe reaches
    assert "gpu 0 > host 0 > nic 0 > leaf 0 > nic 1 > host 2 > gpu 4: 12.5 GB/s" in out
    assert "100  gpu" in out


@pytest.mark.exhaustive
def test_list(capsys: pytest.CaptureFixture[str]) -> None:
    models = {line.split()[0]: line for line in answer(capsys, "list", "models").splitlines()}
    assert models["gpt2"] == "gpt2                124.4M  GPT-2 small, 124 million parameters"
    gpus = {line.split()[0]: line.split()[1:] for line in answer(capsys, "list", "gpus").splitlines()}
    assert gpus["h100"] == ["989", "TFLOP/s", "85.52", "GB", "3.35", "TB/s"]
    assert "zhores" in answer(capsys, "list", "clusters").splitlines()
    assert "one_f_one_b" in answer(capsys, "list", "schedules").splitlines()
    everything = answer(capsys, "list")
    assert all(f"{kind}:\n" in everything for kind in ("models", "gpus", "clusters", "fabrics", "scenarios"))
    assert run(["list", "cats"]) == 2
    assert "ask for models, gpus" in capsys.readouterr().err


@pytest.mark.exhaustive
def test_what_is_listed_as_a_scenario_is_one(capsys: pytest.CaptureFixture[str]) -> None:
    names = [line.split()[0] for line in answer(capsys, "list", "scenarios").splitlines()]
    assert {"hello", "zero_bubble", "two_nodes_of_2"} <= set(names)
    assert all("version" in read(located(name)).data and "cluster" in read(located(name)).data for name in names)


def test_schema(capsys: pytest.CaptureFixture[str]) -> None:
    schema = json.loads(answer(capsys, "schema"))
    assert schema["required"] == ["version", "cluster"]
    assert schema["additionalProperties"] is False


def test_an_expectation_missed_is_status_1(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["run", "hello", "--json", "--check", "--set", "cluster.bandwidth=1 GB/s"]) == 1
    out, err = capsys.readouterr()
    assert json.loads(out)["name"] == "hello"
    assert err.startswith("MISSED step_time_s = ")


def test_what_does_not_fit_is_status_3(capsys: pytest.CaptureFixture[str]) -> None:
    large = ["run", "dgx_a100_gpt2_xl_ddp", "--set", "cluster.preset=dgx_a100_40gb", "--set", "cluster.nodes=1"]
    assert run([*large, "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["memory"]["fits"] is False
    assert run([*large, "--strict-memory", "-o", "x"]) == 3
    assert "DOES NOT FIT" in capsys.readouterr().out


def test_a_deadlock_is_status_4(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    from clustersim.scenarios.scenario import Scenario
    from clustersim.simulator.reading.errors import DeadlockError

    def stuck(self: object, watch: object = None) -> NoReturn:
        raise DeadlockError("deadlock: 2 ranks have not finished; in a circle")

    monkeypatch.setattr(Scenario, "run", stuck)
    assert run(["run", "hello"]) == 4
    assert capsys.readouterr().err == "deadlock: 2 ranks have not finished; in a circle\n"


def test_an_interrupt_is_status_130(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    from clustersim.scenarios.scenario import Scenario

    def interrupted(*arguments: object, **options: object) -> NoReturn:
        raise KeyboardInterrupt

    monkeypatch.setattr(Scenario, "load", interrupted)
    assert run(["run", "hello"]) == 130


@pytest.mark.exhaustive
def test_a_reader_that_goes_away_hears_no_complaint() -> None:
    reading, writing = os.pipe()
    os.close(reading)
    code = "from clustersim.scenarios.commands.command_line import main; main()"
    done = subprocess.run([sys.executable, "-c", code, "list"], stdout=writing, stderr=subprocess.PIPE, check=False)
    os.close(writing)
    assert (done.returncode, done.stderr) == (0, b"")


def test_help_loads_nothing_heavy() -> None:
    code = (
        "import sys; sys.argv = ['clustersim', '--help']\n"
        "from clustersim.scenarios.commands.command_line import run\n"
        "run(['--help'])\n"
        "print(sorted({name.partition('.')[0] for name in sys.modules}), file=sys.stderr)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, check=True, text=True)
    loaded = done.stderr
    assert not [name for name in ("matplotlib", "numpy", "networkx", "pydantic", "torch") if f"'{name}'" in loaded]
    assert "run" in done.stdout


def test_json_loads_neither_matplotlib_nor_masked_arrays() -> None:
    code = (
        "import sys\nfrom clustersim.scenarios.commands.command_line import run\n"
        "status = run(['run', 'hello', '--json'])\n"
        "print({'matplotlib', 'numba', 'numpy.ma'} & set(sys.modules), status, file=sys.stderr)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, check=True, text=True)
    assert done.stderr == "set() 0\n"


def test_a_fault_of_the_house_is_not_hidden(monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(*arguments: object, **options: object) -> NoReturn:
        raise ZeroDivisionError

    monkeypatch.setattr(application, "read", lambda: broken)
    with pytest.raises(ZeroDivisionError):
        run(["list"])


def test_plot_shows_the_progress_of_drawing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from clustersim.scenarios.commands.terminal import Progress

    begun: list[tuple[str, int]] = []
    done: list[str] = []
    monkeypatch.setattr(Progress, "begin", lambda self, title, parts=0: begun.append((title, parts)))
    monkeypatch.setattr(Progress, "advance", lambda self: done.append("file"))
    assert run(["plot", "gpipe_vs_varuna", "memory", "-o", "m.svg"]) == 0
    assert begun[-1] == ("drawing m.svg", 3)
    assert done[-3:] == ["file"] * 3


def test_variants_are_compared_by_the_time_and_cost_of_the_whole_training(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    (tmp_path / "two.yaml").write_text(
        "version: 1\ncluster: {preset: zhores, nodes: 2}\nmodel: {preset: resnet50}\n"
        "training: {global_batch_size: 64, samples: 1e6}\ncost: {gpu_hour: 2.0}\n"
        "variants: {a: {}, b: {parallelism.data.overlap: false}}\n"
    )
    lines = {line.strip().split("  ")[0]: line for line in answer(capsys, "compare", "two.yaml").splitlines()}
    summary = Scenario.load("two.yaml").run().summary()["variants"]
    for name in ("a", "b"):
        assert show_long(summary[name]["training"]["days"] * 86_400) in lines["whole training"]
    assert figure(summary["a"]["training"]["cost"]) in lines["cost"]


ODD = """
version: 1
cluster:
  nodes: [1, 2]
  node:
    - {accelerator: h100, accelerators: 2, intra: {kind: nvlink4, shape: switch}, host: {kind: pcie5}, nics: 1,
       nic: {kind: roce, bandwidth: 25 GB/s, latency: 2 us}}
    - {accelerator: l40s, accelerators: 1, intra: {kind: pcie4, shape: pcie}, nics: 1, nic: {kind: eth_25}}
model: {preset: resnet50}
training: {global_batch_size: 64}
"""


def test_a_cluster_without_a_name_is_told_by_its_gpus(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    (tmp_path / "odd.yaml").write_text(ODD)
    out = answer(capsys, "run", "odd.yaml")
    assert "4 of 4 GPUs (2 h100, 2 l40s); resnet50, fp32, software ddp, batch 64" in out
    answer(capsys, "plot", "odd.yaml", "timeline", "-o", "t.svg")
    assert ">odd on 4 GPUs (2 h100, 2 l40s), step" in (tmp_path / "t.svg").read_text()


@pytest.mark.parametrize("name", ["../x", "a/b", ".."])
def test_a_name_that_is_no_folder_is_told_with_its_option(name: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["run", "hello", "--name", name]) == 2
    assert capsys.readouterr().err.startswith(f"--name {name}: must be the name of a folder below runs/")


@pytest.mark.parametrize("command", ["check", "run", "show", "compare"])
def test_a_configuration_is_no_scenario(
    command: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("config.json").write_text('{"model_type": "llama", "hidden_size": 64}')
    assert run([command, "config.json"]) == 2
    told = capsys.readouterr().err
    assert told == (
        "config.json is no scenario; a model's config.json runs with --cluster: "
        "clustersim run config.json --cluster dgx_h100 --nodes 4\n"
    )


def test_stacks_are_compared(capsys: pytest.CaptureFixture[str]) -> None:
    changes = ["model.num_layers=2", "cluster.nodes=1", "training.global_batch_size=8", "expect={}"]
    settings = [part for change in changes for part in ("--set", change)]
    assert run(["show", "llama3_8b_fsdp_dgx_h100", "software", *settings]) == 0
    told = capsys.readouterr().out
    assert told.startswith("fsdp: as given\n")
    for stack in ("fsdp_sdpa", "fsdp_compile"):
        other = Scenario.load("llama3_8b_fsdp_dgx_h100", {"software": stack}, [*changes])
        assert show(other.run().timeline.step_time, "time") in told
    assert run(["show", "allreduce_dgx_a100", "software"]) == 2
    assert "measures a collective; it has no software stack" in capsys.readouterr().err


def test_campaigns_are_compared(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    campaign = {"tokens": 1e12, "checkpoint": {"every": "1 h", "storage": "1 GB/s"}}
    failures = {"mtbf_per_node": "20 days", "restart": "10 min"}
    data = {
        "version": 1,
        "cluster": {"preset": "dgx1", "nodes": 2},
        "model": {"preset": "gpt2"},
        "training": {"global_batch_size": 16, "precision": "fp16"},
        "campaign": {**campaign, "failures": failures},
        "cost": {"gpu_hour": 2.0},
    }
    files = [tmp_path / "a.yaml", tmp_path / "b.yaml"]
    files[0].write_text(json.dumps(data))
    files[1].write_text(json.dumps({**data, "campaign": campaign}))
    assert run(["compare", *map(str, files), "--campaign", "--repeats", "3"]) == 0
    told = capsys.readouterr().out
    assert "campaign.failures.mtbf_per_node" in told
    assert run(["campaign", str(files[0]), "--repeats", "3", "--json"]) == 0
    numbers = json.loads(capsys.readouterr().out)
    row = next(line.split() for line in told.splitlines() if line.startswith("days"))
    assert row[1] == f"{numbers['days']:.4g}"
    assert float(row[2]) < float(row[1])
    assert run(["compare", *map(str, files), "--repeats", "3"]) == 2
    assert "--repeats 3 is of campaigns; give --campaign too" in capsys.readouterr().err
