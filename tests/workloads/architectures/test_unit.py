"""Unit models: what is given comes out."""

import pytest

from clustersim.simulator.hardware.accelerator import Accelerator
from clustersim.workloads.architectures.timed_models import unit_model
from clustersim.workloads.operators.operator import parameter_tensors


@pytest.mark.parametrize("micro_batch_size", [1, 7])
@pytest.mark.parametrize("accelerator", [Accelerator(), Accelerator("fast", 1e15, 1e12, sms=100)])
def test_durations_are_exact_on_any_accelerator(micro_batch_size: int, accelerator: Accelerator) -> None:
    for layer in unit_model(4, 1.0, 2.0).layers:
        assert accelerator.seconds(layer.forward(micro_batch_size)) == 1.0
        assert accelerator.seconds(layer.backward(micro_batch_size)) == 2.0
        assert accelerator.seconds(layer.backward_input(micro_batch_size)) == 1.0
        assert accelerator.seconds(layer.backward_weights(micro_batch_size)) == 1.0


@pytest.mark.parametrize(("layers", "parameters"), [(4, 0), (4, 3), (3, 10), (5, 1_000_000_007)])
def test_parameters_are_spread_evenly(layers: int, parameters: int) -> None:
    made = unit_model(layers, 1.0, 2.0, parameters)
    assert made.parameters == parameters
    counts = [layer.parameters for layer in made.layers]
    assert max(counts) - min(counts) <= 1
    assert all(
        layer.tensors == parameter_tensors(*[count] * bool(count))
        for layer, count in zip(made.layers, counts, strict=True)
    )


def test_activations_are_per_boundary_and_the_optimizer_is_free() -> None:
    made = unit_model(2, 1.0, 2.0, activations=1e6, precision="bf16")
    assert {(layer.output_bytes(n), layer.activation_bytes(n)) for layer in made.layers for n in (1, 9)} == {(1e6, 1e6)}
    assert made.optimizer_seconds == 0.0
    assert made.precision == "bf16"
    assert made.flops(3) == 0
