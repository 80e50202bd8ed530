"""`clustersim init`, completion of scenario names, and `python -m clustersim`."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

from clustersim.scenarios.commands.application import complete_scenarios
from clustersim.scenarios.commands.command_line import run
from clustersim.scenarios.scenario import Scenario
from clustersim.simulator.reading.lookup import names

LLAMA = {
    "model_type": "llama",
    "num_hidden_layers": 4,
    "hidden_size": 512,
    "num_attention_heads": 8,
    "num_key_value_heads": 2,
    "intermediate_size": 1024,
    "max_position_embeddings": 1024,
    "vocab_size": 32000,
}


@pytest.fixture(autouse=True)
def _here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


@pytest.mark.parametrize("model", ["llama3_8b", "resnet50", "bert_base", "alexnet"])
@pytest.mark.parametrize("cluster", ["dgx1", "dgx_h100", "gb200_nvl72"])
def test_what_is_written_is_a_scenario(model: str, cluster: str) -> None:
    assert run(["init", "mine.yaml", "--model", model, "--cluster", cluster, "--nodes", "3"]) == 0
    scenario = Scenario.load("mine.yaml")
    assert scenario.specification.cluster.nodes == 3  # type: ignore[attr-defined]
    assert scenario.derived.gpus == len(scenario.cluster().gpus)
    expected = "fp16" if cluster == "dgx1" else "bf16"
    assert scenario.specification.training.precision == expected  # type: ignore[union-attr]


def test_without_a_terminal_what_is_offered_is_taken(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["init"]) == 0
    assert "wrote scenario.yaml" in capsys.readouterr().out
    assert Scenario.load("scenario.yaml").derived.gpus == 32
    assert run(["init"]) == 2
    assert "scenario.yaml exists already; give another name" in capsys.readouterr().err


def test_a_configuration_is_found_from_the_folder_of_the_file() -> None:
    Path("config.json").write_text(json.dumps(LLAMA))
    assert run(["init", "deep/mine.yaml", "--model", "config.json", "--cluster", "dgx1", "--nodes", "1"]) == 0
    assert "preset: ../config.json" in Path("deep/mine.yaml").read_text()
    assert Scenario.load("deep/mine.yaml").specification.model.seq_length == 1024  # type: ignore[union-attr]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--model", "lama3_8b"], 'unknown model "lama3_8b"; there are: llama3_8b'),
        (["--cluster", "dgx"], 'unknown cluster "dgx"; there are: dgx1'),
        (["--model", "gone.json"], "gone.json: no such file"),
    ],
)
def test_nothing_is_written_for_an_unknown_name(
    arguments: list[str], message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(["init", "mine.yaml", *arguments]) == 2
    assert message in capsys.readouterr().err
    assert not Path("mine.yaml").exists()


def test_an_unknown_model_tells_the_nearest_of_many(capsys: pytest.CaptureFixture[str]) -> None:
    run(["init", "mine.yaml", "--model", "lama3_8b"])
    more = len(names("clustersim.workloads.models")) - 10
    assert f" and {more} more (clustersim list)" in capsys.readouterr().err


def test_completion_tells_shipped_scenarios_files_and_folders() -> None:
    Path("hello_there.yaml").touch()
    Path("hello.txt").touch()
    Path("hell").mkdir()
    Path("hell/inner.yml").touch()
    assert complete_scenarios("hell") == ["hello", "hello_there.yaml", "hell/"]
    assert complete_scenarios("hell/") == ["hell/inner.yml"]
    assert complete_scenarios("nowhere/x") == []


def test_the_package_is_the_command() -> None:
    done = subprocess.run([sys.executable, "-m", "clustersim", "--version"], capture_output=True, text=True, check=True)
    assert done.stdout.startswith("clustersim ")
