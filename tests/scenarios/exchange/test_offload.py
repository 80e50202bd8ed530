"""States off the GPU in configurations of other programs: read, written, or listed as not said."""

import json

import pytest

from clustersim.scenarios.exchange.export import exporter, write
from clustersim.scenarios.exchange.importer import Options, imported
from clustersim.scenarios.scenario import Scenario
from clustersim.simulator.reading.errors import ScenarioError

OFFLOADS = [
    (2, {"optimizer": "host", "gradients": "host"}),
    (1, {"optimizer": "host", "optimizer_fraction": 0.5}),
    (3, {"optimizer": "nvme", "gradients": "host", "parameters": "nvme"}),
    (3, {"optimizer": "host", "gradients": "host", "parameters": "host"}),
]


def scenario(stage, offload, software="megatron_deepspeed"):
    return Scenario.model_validate(
        {
            "version": 1,
            "cluster": {"preset": "dgx2"},
            "model": {"preset": "gpt2_xl"},
            "training": {
                "global_batch_size": 64,
                "micro_batch_size": 4,
                "precision": "fp16",
                "offload": offload,
            },
            "parallelism": {"data": {"method": "zero", "stage": stage}},
            "software": software,
        }
    )


def read(file):
    return imported([str(file)], Options(cluster="dgx2"), "run", ["model.preset=gpt2_xl"])


@pytest.mark.parametrize(("stage", "offload"), OFFLOADS)
def test_deepspeed_is_told_and_read_back(stage, offload, tmp_path):
    one = scenario(stage, offload)
    file = tmp_path / "ds_config.json"
    file.write_text(exporter("deepspeed")(one).files["ds_config.json"])
    again = read(file).scenario
    assert again.specification.training.offload == one.specification.training.offload


def test_a_delayed_update_is_refused():
    with pytest.raises(ScenarioError, match="delayed_update: DeepSpeed has no true here"):
        exporter("deepspeed")(scenario(2, {**OFFLOADS[0][1], "delayed_update": True}))


def test_what_is_not_said_is_listed():
    one = scenario(2, OFFLOADS[0][1])
    assert any(note.startswith("training.offload") for note in exporter("accelerate")(one).notes)


@pytest.mark.parametrize(("device", "told"), [("tpu", "must be cpu, nvme or none, not tpu"), ("none", "")])
def test_devices(device, told, tmp_path):
    file = tmp_path / "ds_config.json"
    zero = {"stage": 2, "offload_optimizer": {"device": device}}
    batch = {"train_micro_batch_size_per_gpu": 4, "gradient_accumulation_steps": 1}
    file.write_text(json.dumps({**batch, "zero_optimization": zero}))
    if told:
        with pytest.raises(ScenarioError, match=told):
            read(file)
    else:
        assert read(file).scenario.specification.training.offload is None


@pytest.mark.parametrize("overlap", [False, True])
def test_megatron_is_told_and_read_back(overlap, tmp_path):
    offload = {"optimizer": "host", "optimizer_fraction": 0.25, "overlap": overlap}
    one = scenario(1, offload, "megatron_core")
    paths = write(exporter("megatron")(one), tmp_path / "run.sh")
    again = imported([str(path) for path in paths], Options(cluster="dgx2"), "run")
    assert again.scenario.specification.training.offload == one.specification.training.offload


def test_megatron_keeps_gradients_on_the_gpu():
    with pytest.raises(ScenarioError, match=r"offload.gradients: .* has no host here; it has gpu"):
        exporter("megatron")(scenario(2, OFFLOADS[0][1]))
