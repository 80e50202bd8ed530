"""A step time has an interval and a list of what is outside the calibrated range."""

import re
from dataclasses import replace

import pytest

from clustersim.scenarios import Scenario
from clustersim.scenarios.results.interval import GENERATIONS, generation_of
from clustersim.scenarios.results.interval import shipped as intervals
from clustersim.scenarios.results.uncertainty import (
    MEMORY_BOUND,
    Beyond,
    Uncertainty,
    calibrated_range,
    joined,
    outside,
)
from clustersim.simulator.hardware.kernel import matmul, memory_bound
from clustersim.simulator.reading.lookup import names
from clustersim.simulator.schedule.ops import Compute
from clustersim.topologies.catalogue import GPUS

GPT = {"num_layers": 2, "hidden_size": 2048, "num_attention_heads": 16, "seq_length": 1024, "vocab_size": 51200}


def scenario(preset="dgx_a100_80gb", software="megatron", **model):
    return Scenario.model_validate(
        {
            "version": 1,
            "cluster": {"preset": preset, "nodes": 1},
            "model": GPT | model,
            "training": {"global_batch_size": 1024, "micro_batch_size": 4, "precision": "fp16"},
            "software": software,
        }
    )


def uncertainty_of(of):
    timeline = of.run().timeline
    return Uncertainty(of, timeline.schedule, timeline.step_time)


def test_the_interval_is_that_of_the_conditions_of_the_run():
    one = uncertainty_of(scenario())
    own = one.conditions
    assert (own.framework, own.model, own.generation, own.ranks) == ("megatron", "transformer", "Ampere", 8)
    assert one.interval == intervals().of(own).about(one.step)
    assert one.interval[0] < one.step < one.interval[1]


def test_the_size_of_kernels_is_their_mean_time_on_the_gpu():
    of = scenario()
    gpu = of.cluster().accelerator(of.derived.devices[0])
    kernels = [
        kernel for program in of.schedule().programs for op in program.ops for kernel in getattr(op, "kernels", ())
    ]
    expected = sum(map(gpu.kernel_seconds, kernels)) / len(kernels)
    assert abs(uncertainty_of(of).conditions.kernel / expected - 1) < 1e-9


def test_a_run_like_known_ones_says_how_many_and_one_of_an_unknown_framework_that_it_is():
    assert re.fullmatch(
        r"holds 95 % of measured runs; like \d+ known runs of \d+ sources", uncertainty_of(scenario()).known
    )
    farther = uncertainty_of(scenario("dgx1", software="fsdp"))
    assert farther.known == "holds 95 % of measured runs; no run of this kind is known"
    unknown = uncertainty_of(scenario())
    unknown.__dict__["conditions"] = replace(unknown.conditions, framework="mine")
    assert unknown.known == "holds 95 % of measured runs; no run of this framework (mine) is known"
    assert unknown.interval[1] - unknown.interval[0] >= uncertainty_of(scenario()).interval[1] - unknown.interval[0]


@pytest.mark.parametrize("gpu", names(GPUS))
def test_each_gpu_of_the_catalogue_has_a_generation(gpu):
    """Those without one are other makers', of which each is its own."""
    assert generation_of(gpu) in GENERATIONS.values() or gpu in {"gaudi2", "gaudi3", "trainium2", "unit"}


def test_a_bound_and_given_durations_have_no_interval():
    assert uncertainty_of(scenario(software="ideal")).interval is None
    assert uncertainty_of(Scenario.load("hello")).interval is None


def test_a_gpu_without_rows_is_named():
    line = "GPU h100: its products were measured, its other kernels are scaled from data sheets"
    assert line in uncertainty_of(scenario("dgx_h100")).outside()


def test_a_gpu_without_data_has_a_wider_interval_by_what_is_known_of_its_generation():
    """An H800 has the products of its generation, known to 3 %; the H100's are measured."""
    of = scenario("dgx_h100")
    other = of.changed({"cluster": {"preset": "dgx_h100", "nodes": 1, "node": {"accelerator": "h800"}}}, "here")
    measured, similar = uncertainty_of(of), uncertainty_of(other)
    assert any("GPU h800 was not measured: its products, by those of similar GPUs" in one for one in similar.outside())
    widths = [(one.interval[1] - one.interval[0]) / one.step for one in (measured, similar)]
    assert widths[0] < widths[1] < 1.2 * widths[0]


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
    beyond = Beyond(MEMORY_BOUND, (512e3, 4.93e9), {256e3}, {"fc1": None})
    assert str(beyond) == "memory-bound kernels of 256 kB (fc1); measured: 512 kB to 4.93 GB"
    # nobody ran fused attention on a V100
    lines = uncertainty_of(scenario("dgx1", attention="flash", num_layers=1)).outside()
    found = [line for line in lines if line.endswith("; none was measured")]
    assert len(found) == 2
    assert all("of the computation is priced by extrapolation: fused attention" in line for line in found)


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
