"""Optimizers: bytes of state against the ZeRO paper's table, bytes of traffic against what must be read and written."""

import csv
from pathlib import Path
from typing import Any

import pytest

from clustersim.scenarios import Scenario
from clustersim.simulator.reading.errors import ScenarioError
from clustersim.simulator.schedule.ops import Collective
from clustersim.workloads.memory.optimizer import (
    BY_SHAPE,
    CHUNK,
    OPTIMIZERS,
    Optimizer,
    optimizer_kernels,
    state_bytes,
)

DATA = Path(__file__).parents[3] / "../shared/data"


def test_model_states_of_the_zero_paper() -> None:
    """Rajbhandari et al. 2020, table 1; the paper rounds to three digits, in one place to the even lower one."""
    path = DATA / "zero_table1_memory.csv"
    if not path.exists():
        pytest.skip("zero_table1_memory.csv is not here; published measurements are not part of the project")
    held = state_bytes("adam", "fp16")
    parameters, gradients, optimizer = held["parameters"], held["gradients"], held["optimizer"]
    with path.open() as file:
        for row in csv.DictReader(file):
            billions, degree = float(row["params_B"]), int(row["dp_degree"])
            stages = {
                "Pos_GB": parameters + gradients + optimizer / degree,
                "Pos_g_GB": parameters + (gradients + optimizer) / degree,
                "Pos_g_p_GB": (parameters + gradients + optimizer) / degree,
            }
            for stage, each in stages.items():
                assert billions * each == pytest.approx(float(row[stage]), rel=0.005, abs=0.06), row


@pytest.mark.parametrize(
    ("optimizer", "precision", "gradient", "expected"),
    [
        ("adam", "bf16", None, (2, 2, 12)),
        ("adam", "bf16", "fp32", (2, 4, 12)),  # Megatron-LM's recipe for bf16: 18 bytes
        ("adam", "fp32", None, (4, 4, 8)),
        ("momentum", "fp32", None, (4, 4, 4)),
        ("momentum", "fp16", None, (2, 2, 8)),
        ("sgd", "fp32", None, (4, 4, 0)),
        ("sgd", "bf16", None, (2, 2, 4)),
    ],
)
def test_state(optimizer: str, precision: str, gradient: str | None, expected: tuple[int, int, int]) -> None:
    held = state_bytes(optimizer, precision, gradient)
    assert (held["parameters"], held["gradients"], held["optimizer"]) == expected
    assert list(held) == ["parameters", "gradients", "optimizer"]


@pytest.mark.parametrize(("optimizer", "expected"), [("adam", 4), ("momentum", 2), ("sgd", 0)])
def test_without_master_weights_all_is_in_the_format_of_the_model(optimizer: str, expected: int) -> None:
    own = Optimizer(optimizer, "bf16", master=False)
    assert state_bytes(own, "bf16") == {"parameters": 2, "gradients": 2, "optimizer": expected}
    # gradient read, weight and states read and written; of unfused passes each is half as wide
    assert traffic(own, "bf16") == 2 + 2 * 2 + 2 * expected
    assert traffic(own, "bf16", fused=False) == traffic(optimizer, "fp32", fused=False) / 2


def test_eight_bits_save_three_quarters_of_the_states() -> None:
    """Dettmers et al. 2022: two states of a byte each, and their scales."""
    assert state_bytes("adam8bit", "fp32")["optimizer"] == pytest.approx(
        state_bytes("adam", "fp32")["optimizer"] / 4, rel=0.01
    )


def traffic(optimizer: str | Optimizer, precision: str, gradient: str | None = None, *, fused: bool = True) -> float:
    return sum(kernel.nbytes for kernel in optimizer_kernels(1000, optimizer, precision, gradient, fused=fused)) / 1000


def test_a_fused_step_reads_and_writes_each_value_once() -> None:
    assert traffic("adam", "fp32") == 4 + 3 * 8
    assert traffic("momentum", "fp32") == 4 + 2 * 8
    assert traffic("sgd", "fp32") == 4 + 8
    assert traffic("adam", "bf16") == 2 + 3 * 8 + 2
    assert traffic("adam", "bf16", "fp32") == 4 + 3 * 8 + 2


def test_lars_and_lamb_read_what_their_norms_need() -> None:
    # LARS: weight and gradient once more; LAMB: norms of weight and update, the update written and read, the weight
    assert traffic("lars", "fp32") == traffic("momentum", "fp32") + 4 * 2
    assert traffic("lamb", "fp32") == traffic("adam", "fp32") + 4 * 5
    assert state_bytes("lars", "bf16") == state_bytes("momentum", "bf16")
    assert state_bytes("lamb", "bf16") == state_bytes("adam", "bf16")


@pytest.mark.parametrize(
    ("parallelism", "exchanged"),
    [
        ({"dp": 4}, []),
        ({"dp": 4, "data": {"method": "zero", "stage": 1}}, ["dp"]),
        ({"dp": 4, "data": {"method": "fsdp"}}, ["dp"]),
        ({"dp": 2, "tp": 2}, ["tensor norms"]),
        ({"dp": 2, "pp": 2}, []),
        ({"dp": 2, "tp": 2, "data": {"method": "zero", "stage": 2}}, ["dp", "tensor norms"]),
    ],
    ids=str,
)
def test_ranks_with_parts_of_a_tensor_sum_its_norms(parallelism: dict[str, Any], exchanged: list[str]) -> None:
    """Two norms of 4 bytes for each tensor, over each axis that divides tensors; none where they are whole."""

    def sent(optimizer: str) -> list[tuple[str, float]]:
        given = {
            "version": 1,
            "cluster": {
                "preset": "uniform",
                "gpus": 4,
                "accelerator": "a100_40gb",
                "bandwidth": "10 GB/s",
                "latency": "5 us",
            },
            "model": {"preset": "gpt2"},
            "training": {"global_batch_size": 8, "precision": "bf16", "optimizer": optimizer},
            "parallelism": parallelism,
        }
        scenario = Scenario.model_validate(given)
        ops = scenario.schedule().programs[0].ops
        return [(op.over, op.nbytes) for op in ops if isinstance(op, Collective) and ".norms of " in op.name]

    tensors = 2 + 12 * 12 + 2  # embeddings; two norms and four products with biases in each block; the last norm
    assert sent("lamb") == [(axis, 4.0 * tensors) for axis in exchanged for _ in range(2)]
    assert not sent("adam")


@pytest.mark.parametrize("optimizer", [name for name in OPTIMIZERS if name not in BY_SHAPE])
@pytest.mark.parametrize("precision", ["fp32", "bf16"])
def test_traffic_grows_with_states_and_is_never_less_unfused(optimizer: str, precision: str) -> None:
    assert traffic(optimizer, precision, fused=False) >= traffic(optimizer, precision)
    assert traffic(optimizer, precision) >= traffic("sgd", precision)


def test_every_chunk_is_a_launch() -> None:
    assert [sum(k.launches for k in optimizer_kernels(n, "adam", "fp32")) for n in (1, CHUNK, CHUNK + 1)] == [1, 1, 2]
    assert sum(k.launches for k in optimizer_kernels(1, "adam", "fp32", fused=False)) == 7
    assert optimizer_kernels(0, "adam", "fp32") == ()


def test_unknown_names() -> None:
    with pytest.raises(ScenarioError) as error:
        state_bytes("adamw", "fp32")
    near = "adam, adam8bit, lamb, adafactor, adafactor_momentum, sgd, lars, muon, momentum"
    assert str(error.value) == f'unknown optimizer "adamw"; there are: {near}'
    with pytest.raises(ScenarioError, match='unknown precision "fp8"; there are: bf16, fp16, tf32, fp32'):
        optimizer_kernels(1, "sgd", "fp8")


def test_deepspeed_checks_and_flattens_gradients_of_16_bits() -> None:
    def bytes_for_each(precision: str, gradients: str, *, flat: bool) -> float:
        own = optimizer_kernels(1000, "adam", precision, gradients, unfused_update=True, flat_update=flat)
        return sum(kernel.nbytes for kernel in own) / 1000

    # cast 2 + 4, check and unscale 4 + 4, norm 4, update 4 + 12 + 12, weights back 4 + 2
    assert bytes_for_each("fp16", "fp16", flat=False) == 6 + 8 + 4 + 28 + 6
    # an fp32 copy 2 + 4 and its sum 4, a flat copy 4 + 4
    assert bytes_for_each("fp16", "fp16", flat=True) == 6 + 8 + 4 + 28 + 6 + 10 + 8
    assert bytes_for_each("bf16", "fp32", flat=True) == bytes_for_each("bf16", "fp32", flat=False) == 4 + 28 + 6


@pytest.mark.parametrize(
    ("precision", "gradients", "how", "kernels"),
    [
        ("fp32", "fp32", {}, ["update"]),
        ("bf16", "bf16", {}, ["update"]),
        ("fp32", "fp32", {"unfused_update": True}, ["norm", "update"]),
        ("bf16", "fp32", {"unfused_update": True}, ["norm", "update", "weights back"]),
        ("bf16", "bf16", {"unfused_update": True}, ["cast", "norm", "update", "weights back"]),
        ("fp16", "fp16", {"unfused_update": True}, ["cast", "check", "norm", "update", "weights back"]),
        (
            "fp16",
            "fp16",
            {"unfused_update": True, "flat_update": True},
            ["copy", "sum", "flat copy", "cast", "check", "norm", "update", "weights back"],
        ),
        ("bf16", "bf16", {"fused": False}, ["cast", *["foreach"] * 7, "weights back"]),
    ],
)
def test_each_pass_around_an_update_is_a_kernel(
    precision: str, gradients: str, how: dict[str, bool], kernels: list[str]
) -> None:
    (made,) = optimizer_kernels(1000, "adam", precision, gradients, **how)
    assert made.launches == len(kernels)
