"""`clustersim plan` on the command line."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from clustersim.scenarios import Scenario
from clustersim.scenarios.commands.command_line import run

HELLO = ["plan", "hello", "--simulate", "3", "--search", "micro_batch_size=4,8", "--search", "tp=1"]


def test_the_answer_as_text(capsys: pytest.CaptureFixture[str]) -> None:
    assert run([*HELLO, "--top", "1"]) == 0
    told = capsys.readouterr().out
    assert "hello: 2 candidates, 0 rejected" in told
    assert "Why: " in told
    assert "Memory does not bind" in told


def test_the_answer_as_json_and_as_files(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    assert run([*HELLO, "--json", "-o", str(tmp_path)]) == 0
    answer = json.loads(capsys.readouterr().out)
    assert answer == json.loads((tmp_path / "plan.json").read_text())
    assert (answer["candidates"], answer["priced"], len(answer["best"])) == (2, 2, 2)
    for place, row in enumerate(answer["best"], 1):
        assert {"set", "estimate_s", "step_time_s", "mfu", "memory", "why"} <= set(row)
        written = Scenario.load(tmp_path / f"{place:02}.yaml")
        assert written.run().timeline.step_time == row["step_time_s"]
    assert (tmp_path / "plan.png").exists()
    assert run([*HELLO, "--json", "-o", str(tmp_path)]) == 0
    assert json.loads(capsys.readouterr().out) == answer


def test_a_plan_from_nothing(capsys: pytest.CaptureFixture[str]) -> None:
    options = ["--model", "gpt2", "--cluster", "dgx1", "--batch", "32", "--tokens", "1B", "--simulate", "1"]
    search = ["--search", "tp=1", "--search", "pp=1,2", "--search", "micro_batch_size=1,2", "--set", "cost.gpu_hour=2"]
    precision = ["--set", "training.precision=fp16", "--objective", "cost"]
    assert run(["plan", *options, *search, *precision, "--json"]) == 0
    best = json.loads(capsys.readouterr().out)["best"]
    assert best[0]["training"]["cost"] > 0


def test_a_plan_from_a_configuration_of_hugging_face(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    config = tmp_path / "tiny" / "config.json"
    config.parent.mkdir()
    given = {"model_type": "llama", "architectures": ["LlamaForCausalLM"], "hidden_size": 256, "num_hidden_layers": 2}
    given |= {"num_attention_heads": 8, "num_key_value_heads": 4, "intermediate_size": 512, "hidden_act": "silu"}
    given |= {"max_position_embeddings": 512, "vocab_size": 1024, "tie_word_embeddings": False, "rms_norm_eps": 1e-5}
    config.write_text(json.dumps(given))
    search = ["--search", "tp=1", "--search", "micro_batch_size=1,2", "--simulate", "1"]
    assert run(["plan", "--model", str(config), "--cluster", "dgx_h100", "--batch", "16", *search, "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["name"] == "tiny-1xdgx_h100"


def test_what_is_planned_of_a_scenario_with_variants(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    path = tmp_path / "several.yaml"
    path.write_text(
        "version: 1\ncluster: {preset: dgx1}\nmodel: {preset: gpt2}\n"
        "training: {global_batch_size: 32, precision: fp16}\n"
        "variants: {small: {model.num_layers: 2}, whole: {}}\n"
    )
    search = ["--search", "micro_batch_size=4", "--json"]
    times = {}
    for variant in ([], ["--variant", "small"], ["--variant", "whole"]):
        assert run(["plan", str(path), *search, *variant]) == 0
        shown = capsys.readouterr()
        assert ("the variant" if variant else "without its 2 variants") in shown.err
        times[" ".join(variant)] = json.loads(shown.out)["best"][0]["step_time_s"]
    assert times["--variant small"] < times[""] == times["--variant whole"]
    assert run(["plan", str(path), "--variant", "smal"]) == 2
    assert 'did you mean "small"?' in capsys.readouterr().err


@pytest.mark.exhaustive
def test_the_largest_that_fits(capsys: pytest.CaptureFixture[str]) -> None:
    long = {"model.seq_length": 8192}
    search = ["--search", "recompute=none", "--set", "model.seq_length=8192"]
    assert run(["plan", "gpt_6_7b_64a100", *search, "--json", "--largest", "micro_batch_size"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert 1 <= found["size"] < 32
    fitting = Scenario.load("gpt_6_7b_64a100", {**long, **found["set"]}).run()
    assert fitting.fits
    assert fitting.timeline.step_time == found["step_time_s"]
    more = {"training.micro_batch_size": 2 * found["size"], "training.recompute": "none"}
    assert not Scenario.load("gpt_6_7b_64a100", {**long, **more}).run().fits


@pytest.mark.exhaustive
def test_the_fewest_nodes(capsys: pytest.CaptureFixture[str]) -> None:
    common = ["plan", "gpt_6_7b_64a100", "--search", "pp=1,2", "--tokens", "10B", "--json"]
    assert run([*common, "--days", "2"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert found["training"]["days"] <= 2 < min(found["slower"].values())
    assert found["gpus"] == 8 * found["nodes"]


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        (["plan"], "give a scenario, or --model, --cluster and --batch"),
        (["plan", "hello", "--model", "gpt2"], "not both"),
        (["plan", "--model", "gpt2", "--cluster", "dgx1"], "give a scenario, or --model"),
        (["plan", "hello", "--search", "tp"], "--search tp: write it as in --search tp=1,2,4"),
        (["plan", "hello", "--search", "tq=1"], "plan.search.tq=[1]: cannot be searched"),
        (["plan", "hello", "--objective", "cost"], "plan.objective=cost: cost is of a whole training run"),
        (["plan", "hello", "--largest", "layers"], "--largest layers: must be micro_batch_size, batch, sequence"),
        (["plan", "hello", "--days", "2"], "gives no length of the run: give tokens"),
        (["plan", "allreduce_dgx_a100"], "measures a collective"),
        (["plan", "--model", "nothing", "--cluster", "dgx1", "--batch", "8"], 'unknown model "nothing"'),
        (["plan", "--model", "no.json", "--cluster", "dgx1", "--batch", "8"], "no.json"),
    ],
)
def test_bad_input_is_one_clear_error(arguments: list[str], told: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(arguments) == 2
    error = capsys.readouterr().err
    assert told in " ".join(error.split())
    assert "Traceback" not in error
