"""Activations and states of one more layer of LLaMA 7B, measured by Galvatron's profiler on eight GPUs."""

from __future__ import annotations

from csv import DictReader
from pathlib import Path

import pytest

from clustersim.simulator.hardware.accelerator import Software
from clustersim.workloads.architectures.shape import Embedding, Mlp, Norm, SelfAttention, Shape
from clustersim.workloads.architectures.transformer import transformer
from clustersim.workloads.memory.optimizer import state_bytes
from clustersim.workloads.parallelism.tensor import sharded

PROFILE = Path(__file__).parents[3] / "../shared/data/galvatron_memory_profile.csv"
MIB = 2**20
SEQUENCE, HIDDEN, BATCH, GPUS = 2048, 4096, 8, 8

# its Llama has the fused RMSNorm and rotary embedding of flash-attention and an eager SwiGLU
LLAMA = transformer(
    Shape(
        2,
        HIDDEN,
        SEQUENCE,
        32000,
        SelfAttention(32, 32, kind="flash", bias=False),
        Mlp(11008, "swiglu", bias=False),
        norm=Norm("rmsnorm"),
        embedding=Embedding(positions="rope", tied=False),
        software=Software(fused=frozenset({"rms_norm", "rope"})),
        precision="bf16",
        dropout=False,
    )
)


def of_a_layer(quantity: str, tensor: int, checkpointing: bool) -> float:
    """The measured bytes of *quantity* of a second layer, on the first rank, without sequence parallelism."""
    if not PROFILE.exists():
        pytest.skip(f"{PROFILE.name} is not there")
    with PROFILE.open() as file:
        amounts = {
            row["layers_measured"]: float(row["MiB"])
            for row in DictReader(file)
            if row["model"].endswith("older release")
            and (row["pp"], row["tp"], row["rank"]) == ("1", str(tensor), "0")
            and (row["sequence_parallel"], row["checkpointing"]) == ("False", str(checkpointing))
            and row["quantity"] == quantity
        }
    return (amounts["2"] - amounts["1"]) * MIB


@pytest.mark.parametrize("tensor", [1, 2, 4, 8])
def test_activations_of_a_layer(tensor):
    layer = sharded(LLAMA, tensor).layers[1]
    samples = BATCH * tensor // GPUS
    measured = of_a_layer("activations held after forward", tensor, checkpointing=False)
    assert layer.activation_bytes(samples) == pytest.approx(measured, rel=0.01)


@pytest.mark.parametrize("tensor", [1, 2, 4, 8])
def test_a_layer_with_a_checkpoint_holds_its_input(tensor):
    samples = BATCH * tensor // GPUS
    measured = of_a_layer("activations held after forward", tensor, checkpointing=True)
    assert LLAMA.layers[1].output_bytes(samples) == pytest.approx(measured, rel=0.01)


@pytest.mark.parametrize("tensor", [1, 2, 4, 8])
def test_states_of_a_layer_are_16_bytes_a_parameter_over_all_gpus(tensor):
    """ZeRO-3 over the replicas, tensor parallelism over the rest."""
    measured = of_a_layer("model states", tensor, checkpointing=False)
    states = sum(state_bytes("adam", "bf16").values()) * LLAMA.layers[1].parameters / GPUS
    assert states == pytest.approx(measured, rel=0.01)
