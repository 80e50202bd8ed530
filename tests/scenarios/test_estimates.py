"""The memory of a model's layouts and the utilisation of a logged step say what `check` and `run` say."""

import json

import pytest

from clustersim.scenarios.build.memory_need import memory_need
from clustersim.scenarios.commands.command_line import run
from clustersim.scenarios.estimates import logged_step, machine, memory
from clustersim.scenarios.scenario import Scenario
from clustersim.simulator.reading.errors import ScenarioError


def test_memory_is_that_of_check_for_each_layout() -> None:
    found = memory("llama2_7b", machine("dgx_a100_80gb", 2, None), settings=["model.num_layers=4"])
    assert [one.name for one in found] == [
        "dp 16, fsdp",
        "dp 16, ddp",
        "dp 16, zero 1",
        "dp 16, zero 2",
        "dp 16, zero 3",
        "tp 8 sp, dp 2, zero 1",
        "tp 8 sp, pp 2, zero 1",
    ]
    assert [one.chosen for one in found] == [True, *[False] * 6]
    for one in found:
        scenario = Scenario.model_validate(one.scenario.source.data)
        need = memory_need(scenario, scenario.schedule())
        assert one.need.nbytes == pytest.approx(need.nbytes, rel=1e-12)
        assert sum(one.need.by_category.values()) == pytest.approx(one.need.tensors)
        assert one.need.fits == need.fits


def test_memory_is_that_of_run(capsys: pytest.CaptureFixture[str]) -> None:
    asked = ["llama3_8b", "--cluster", "dgx_h100", "--gpus", "16", "--tp", "8", "--zero", "1", "--recompute", "full"]
    assert run(["memory", *asked, "--json"]) == 0
    (one,) = json.loads(capsys.readouterr().out)["layouts"]
    given = ["parallelism.tp=8", "parallelism.data={method: zero, stage: 1}", "training.recompute=full"]
    result = Scenario.of_model("llama3_8b", "dgx_h100", 2, settings=given).run()
    told = result.summary()["memory"]
    assert one["by_category_bytes"] == pytest.approx(told["by_category_bytes"])
    assert sum(one["reserved_bytes"].values()) == pytest.approx(told["reserved_bytes"])
    assert one["software"] == "megatron_core"
    assert one["fits"] is told["fits"] is True


def test_a_whole_table_is_printed(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["memory", "gpt2", "--gpus", "2"]) == 0
    told = capsys.readouterr().out
    assert "on 2 GPUs of dgx_h100 (assumed; --cluster names another), " in told
    assert "* what clustersim run takes by default" in told
    assert "dp 2, ddp*" in told


@pytest.mark.parametrize("model", ["llama3_8b", "mixtral_8x7b", "resnet50"])
def test_the_utilisation_of_a_step_is_that_of_run(model: str) -> None:
    given = ["training.recompute=none", *(["model.num_layers=2"] if model != "resnet50" else [])]
    result = Scenario.of_model(model, "dgx_h100", settings=given).run().summary()
    found = logged_step(model, machine("dgx_h100", 1, None), result["step_time_s"], 64, settings=given).summary()
    for key in ("mfu", "mfu_6nd", "model_tflops_per_gpu", "samples_per_s", "tokens_per_s", "hfu"):
        expected = result[key]
        assert found[key] == (expected if expected is None else pytest.approx(expected, rel=1e-9)), key


def test_days_follow_from_tokens(capsys: pytest.CaptureFixture[str]) -> None:
    asked = ["llama3_8b", "--nodes", "8", "--batch", "100", "--step", "2 s", "--tokens", "1T", "--recompute", "full"]
    assert run(["mfu", *asked]) == 0
    told = capsys.readouterr().out
    # 1e12 / (100 x 8192) steps of 2 s
    assert f"{1e12 / 819_200 * 2 / 86_400:.3g} days" in told
    assert run(["mfu", *asked, "--json"]) == 0
    numbers = json.loads(capsys.readouterr().out)
    assert numbers["training"]["days"] == pytest.approx(1e12 / 819_200 * 2 / 86_400)
    # recomputation is one more forward pass of the layers
    assert 1.25 < numbers["hfu"] / numbers["mfu"] < 1.34


@pytest.mark.parametrize(
    ("command", "message"),
    [
        (["memory", "gpt2", "--gpus", "60"], "--gpus 60: does not fill nodes of 8 GPUs (dgx_h100); the nearest are 56"),
        (["memory", "gpt2", "--gpus", "8", "--nodes", "2"], "--gpus 8: 2 nodes of dgx_h100 have 16 GPUs"),
        (["memory", "gpt2", "--gpus", "64", "--tp", "3"], "--tp 3: tp 3 does not divide the 64 GPUs"),
        (["memory", "gpt2", "--zero", "1", "--fsdp"], "--fsdp and --zero 1 are two methods; give one"),
        (["memory", "gpt22"], 'unknown model "gpt22"'),
        (["memory", "gpt2", "--precision", "fp7"], "--precision fp7: must be bf16"),
        (["mfu", "gpt2", "--batch", "8", "--step", "17"], "--step 17: needs a unit"),
        (["mfu", "gpt2", "--batch", "8", "--step", "0 s"], "--step 0 s: must be above 0"),
        (["mfu", "gpt2", "--batch", "8", "--step", "1 s", "--cluster", "dgx"], 'unknown cluster "dgx"'),
    ],
)
def test_bad_input_names_the_option(command: list[str], message: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(command) == 2
    assert message in capsys.readouterr().err


def test_a_node_may_be_used_in_part() -> None:
    assert machine(None, None, 2).settings == ["cluster.node.accelerators=2"]
    with pytest.raises(ScenarioError, match="the nearest are 8 and 16"):
        machine("dgx_h100", None, 12)
