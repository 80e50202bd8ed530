"""A step time has an interval and a list of what is outside the calibrated range."""

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from scenarios import Scenario
from scenarios.fitting.computation import PARAMETERS
from scenarios.fitting.rerun import Rerun
from scenarios.results import uncertainty as uncertainties
from scenarios.results.calibrated_range import calibrated_range, joined, outside
from scenarios.results.uncertainty import Shipped, Uncertainty, shipped
from simulator.document import read
from simulator.kernel import matmul, memory_bound
from simulator.schedule import Compute

GPT = {"num_layers": 2, "hidden_size": 2048, "num_attention_heads": 16, "seq_length": 1024, "vocab_size": 51200}


def scenario(preset="dgx_a100_80gb", **model):
    return Scenario.model_validate(
        {
            "version": 1,
            "cluster": {"preset": preset, "nodes": 1},
            "model": GPT | model,
            "training": {"global_batch_size": 1024, "micro_batch_size": 4, "precision": "fp16"},
            "software": "megatron",
        }
    )


def uncertainty_of(of):
    timeline = of.run().timeline
    return Uncertainty(of, timeline.schedule, timeline.step_time, 0.0)


def test_the_interval_holds_the_step_time_and_is_not_idle():
    one = uncertainty_of(scenario())
    low, high = one.interval
    assert 0.7 * one.step < low < 0.995 * one.step
    assert low * high == pytest.approx(one.step**2)


def test_what_is_exposed_of_the_network_widens_the_interval():
    """NCCL's five parameters, 1.1 to 4.6 % each, come to 6.3 % of what is exposed."""
    deviation = uncertainties.nccl_variance() ** 0.5
    assert deviation == pytest.approx(0.063, abs=1e-3)

    def width(exposed, transport="nccl"):
        of = scenario()
        moved = of.specification.model_copy(
            update={"network": of.specification.network.model_copy(update={"transport": transport})}
        )
        schedule = of.schedule()
        low, high = Uncertainty(replace(of, specification=moved), schedule, 1.0, 0.0, exposed).interval
        return np.log(high / low) / 2 / uncertainties.NORMAL_95

    assert width(1.0) ** 2 - width(0.0) ** 2 == pytest.approx(deviation**2)
    assert width(0.5) ** 2 - width(0.0) ** 2 == pytest.approx(deviation**2 / 4)
    assert width(1.0, "ideal") == width(0.0)


def test_slopes_are_those_of_simulating_again():
    one, of = uncertainty_of(scenario()), scenario()
    fit = shipped("a100")
    names = list(fit.lands)
    place = names.index("a100.matmul_efficiency")
    alone = np.zeros_like(fit.covariance)
    alone[place, place] = 1.0
    slope = one._variance(Shipped(fit.lands, alone, {})) ** 0.5
    parameters = read(Path(uncertainties.__file__).parents[1] / "fitting/a100.yaml").data["parameters"]
    values = {name: entry["value"] for name, entry in parameters.items()}
    rerun, name = Rerun(of, PARAMETERS), "a100.matmul_efficiency"
    before, after = (rerun.value("step_time_s", values | {name: factor * values[name]}) for factor in (1.0, 1.01))
    assert slope == pytest.approx(-np.log(after / before) / np.log(1.01), rel=0.1)


def test_a_gpu_without_rows_is_named():
    of = scenario("dgx_h100")
    assert uncertainty_of(of).interval is None
    assert [
        line
        for line in uncertainty_of(of).outside()
        if line == "GPU h100 was not measured: its kernels are scaled from data sheets"
    ]


def test_an_op_beyond_the_rows_is_named():
    of = scenario(vocab_size=1_000_003)
    lines = uncertainty_of(of).outside()
    (line,) = [line for line in lines if ": products with a longer side of 1,000,003 (head); measured: " in line]
    gpu, computed, found = of.cluster().accelerator(of.derived.devices[0]), 0.0, 0.0
    for op in of.schedule().program(0).ops:
        own = [k for k in getattr(op, "kernels", ()) if k.shape is not None and max(k.shape[1:3]) == 1_000_003]
        computed += gpu.seconds(getattr(op, "kernels", ()), of.software)
        found += gpu.seconds(own, of.software)
    assert line.startswith(f"{found / computed * 100:.2g} % of the computation is priced by extrapolation: ")
    assert not [line for line in uncertainty_of(scenario()).outside() if "product" in line]


def test_what_is_outside_is_told_in_units_with_its_weight():
    of = Scenario.load("zhores_resnet50_ddp")
    lines = uncertainty_of(of).outside()
    assert lines == [
        "under 0.1 % of the computation is priced by extrapolation: memory-bound kernels of 256 kB (fc1); "
        "measured: 512 kB to 4.93 GB"
    ]


def test_given_durations_need_no_fit_of_the_gpu():
    assert uncertainty_of(Scenario.load("hello")).outside() == []


def test_calibrated_range_is_that_of_the_ops():
    ops = [
        Compute(name="a", kernels=(matmul(10, 20, 30), memory_bound(5.0))),
        Compute(name="b", kernels=(matmul(7, 7, 7),)),
    ]
    found = calibrated_range(ops)
    assert found["longer side of a product"] == (7, 20)
    assert found["depth of a product"] == (7, 30)
    assert outside(ops, found) == []
    beyond = outside(ops[:1], calibrated_range(ops[1:]))[0]
    assert str(beyond) == "products with a longer side of 20 (a); measured: 7"
    assert joined(calibrated_range(ops[:1]), calibrated_range(ops[1:])) == found
