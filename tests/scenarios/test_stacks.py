"""What a software stack decides: bytes of state per parameter, traffic of gradients, scattered pipeline messages."""

import pytest

from clustersim.scenarios import Scenario
from clustersim.simulator.reading.errors import ScenarioError

PARAMETERS = 4e6


def run(changes, gpus=1):
    """A model of given durations and *PARAMETERS*, without activations, under Megatron-LM."""
    scenario = {
        "version": 1,
        "cluster": {"preset": "uniform", "gpus": gpus, "hosts": 1, "bandwidth": "10 GB/s", "latency": "0 s",
                    "accelerator": "a100_80gb"},
        "model": {"kind": "unit", "num_layers": 4, "forward": "1 s", "backward": "2 s", "parameters": PARAMETERS,
                  "activations": "0 B"},
        "training": {"global_batch_size": 2 * gpus, "micro_batch_size": 1},
        "network": {"transport": "ideal"},
        "software": "megatron",
    }  # fmt: skip
    for section, values in changes.items():
        keep = section in scenario and section not in ("software", "model")
        scenario[section] = {**scenario[section], **values} if keep else values
    return Scenario.model_validate(scenario).run().summary()


def each(summary):
    """Peak bytes per parameter."""
    return summary["memory"]["peak_bytes"] / PARAMETERS


ROWS = {  # whole and sharded over d ranks: Megatron-LM, docs/source/api-guide/dist_optimizer.md
    "fp16": (20, 4, 16),
    "bf16": (18, 6, 12),
    "fp32": (16, 8, 8),
}


@pytest.mark.parametrize("precision", ROWS)
@pytest.mark.parametrize("d", [1, 2, 4])
@pytest.mark.parametrize("overlap", [True, False])
def test_bytes_per_parameter_of_megatrons_distributed_optimizer(precision, d, overlap):
    whole, kept, sharded = ROWS[precision]
    training = {"global_batch_size": 2 * d, "micro_batch_size": 1, "precision": precision}
    ddp, zero = ({"method": "ddp", "overlap": overlap}, {"method": "zero", "stage": 1, "overlap": overlap})
    assert each(run({"training": training, "parallelism": {"data": ddp}}, d)) == whole
    assert each(run({"training": training, "parallelism": {"data": zero}}, d)) == kept + sharded / d


@pytest.mark.parametrize(
    ("software", "precision", "method", "dtype"),
    [
        ("megatron_2021", "bf16", {"method": "ddp"}, 4),
        ("megatron_core", "bf16", {"method": "zero", "stage": 1}, 4),
        ("megatron", "fp16", {"method": "ddp"}, 2),
        ("megatron_deepspeed", "bf16", {"method": "zero", "stage": 1}, 4),
        ("megatron_deepspeed", "bf16", {"method": "zero", "stage": 2}, 2),
        ("megatron_deepspeed", "fp16", {"method": "zero", "stage": 1}, 2),
        ("ddp", "bf16", {"method": "ddp"}, 4),
        ("ddp", "fp16", {"method": "ddp"}, 4),
        ("ddp", "fp16", {"method": "zero", "stage": 1}, 2),
        ("fsdp", "bf16", {"method": "fsdp"}, 2),
    ],
)
def test_gradients_are_as_wide_on_the_network_as_the_stack_has_them(software, precision, method, dtype):
    """An all-reduce is a reduce-scatter and an all-gather of gradients; ZeRO gathers 16-bit parameters, FSDP twice.

    DeepSpeed all-reduces gradients in ZeRO's stages too (runtime/zero/stage_1_and_2.py, allreduce_bucket).

    Two micro-batches: stage 2 and FSDP reduce in each, and FSDP gathers in each.
    """
    d, norm = 4, 0 if method["method"] == "ddp" else 2 * 3 * 4
    training = {"global_batch_size": 2 * d, "micro_batch_size": 1, "precision": precision}
    found = run({"software": software, "training": training, "parallelism": {"data": method}}, d)["traffic_bytes"]["dp"]
    reduced = dtype * (2 if software == "megatron_deepspeed" else 1) * (2 if method.get("stage") == 2 else 1)
    vectors = {"ddp": 2 * dtype, "zero": reduced + 2, "fsdp": 2 * (dtype + 4)}
    assert found - norm == pytest.approx((d - 1) * PARAMETERS * vectors[method["method"]])


def test_torch_copies_gradients_into_its_buckets_and_megatron_does_not():
    training = {"global_batch_size": 4, "micro_batch_size": 1, "precision": "bf16"}
    torch, *others = (
        run({"software": one, "training": training}, 2) for one in ("ddp", "megatron", "megatron_deepspeed")
    )
    assert [each(torch) - each(other) for other in others] == [4, 4]


def test_a_given_gradient_dtype_stands():
    training = {"global_batch_size": 2, "micro_batch_size": 1, "precision": "bf16", "gradient_dtype": "bf16"}
    assert each(run({"training": training})) == 2 + 2 + 12 + 4  # and the fp32 copies during the step


GPT = {"num_layers": 4, "hidden_size": 64, "num_attention_heads": 4, "seq_length": 32, "vocab_size": 128}
PIPELINE = {"tp": 2, "pp": 2, "data": {"method": "ddp"}}


@pytest.mark.parametrize(
    ("software", "given", "copies"),
    [
        ("megatron", {}, 1),
        ("megatron_2021", {}, 1),
        ("megatron_early_2021", {}, 2),
        ("megatron_deepspeed", {}, 1),
        ("megatron_core", {}, 2),
        ("ddp", {}, 2 * 2),  # the residual stream is fp32 under autocast
        ("megatron", {"scatter_gather": False}, 2),
        ("ddp", {"scatter_gather": True}, 1 * 2),
        ("megatron_core", {"sequence_parallel": True}, 1),
        ("megatron", {"sequence_parallel": True}, 1),
    ],
)
def test_how_often_a_boundary_is_sent(software, given, copies):
    changes = {"software": software, "model": GPT, "training": {"global_batch_size": 3, "precision": "bf16"}}
    summary = run({**changes, "parallelism": {**PIPELINE, **given}}, 4)
    assert summary["traffic_bytes"]["pp"] == copies * 2 * 3 * (2 * 32 * 64)


@pytest.mark.parametrize(
    ("parallelism", "message"),
    [
        ({"tp": 4, "scatter_gather": True}, "scatter_gather: belongs to a pipeline, but pp is 1"),
        ({"pp": 4, "scatter_gather": True}, "scatter_gather: belongs to tensor parallelism without sequence_parallel"),
        ({**PIPELINE, "sequence_parallel": True, "scatter_gather": True}, "scatter_gather: belongs to tensor"),
    ],
)
def test_what_cannot_be_scattered_is_told(parallelism, message):
    with pytest.raises(ScenarioError, match=message):
        run({"model": GPT, "parallelism": parallelism}, 4)
