"""Horovod: cycles, fusion, negotiation and copies against closed forms; buckets of DDP on the same cluster."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from clustersim.scenarios import Scenario
from clustersim.simulator.reading.errors import ScenarioError
from clustersim.workloads.parallelism.methods.horovod import REQUEST_BYTES, Gradient, fused_by_cycle

BANDWIDTH = 10e9


def scenario(gpus=4, *, changes=None, layers=4, parameters="4M", latency="0 s", **data):
    return Scenario.model_validate(
        {
            "version": 1,
            "cluster": {"preset": "uniform", "gpus": gpus, "bandwidth": "10 GB/s", "latency": latency},
            "model": {
                "kind": "unit",
                "num_layers": layers,
                "forward": "1 ms",
                "backward": "2 ms",
                "parameters": parameters,
            },
            "training": {"global_batch_size": gpus, "micro_batch_size": 1},
            "parallelism": {
                "data": {"method": "horovod", "request": "0 s", "cycle": "5 ms", "cache_capacity": 0, **data}
            },
            "network": {"transport": "ideal", "algorithms": {"all_reduce": "ring", "broadcast": "binomial"}},
            **(changes or {}),
        }
    )


gradients = st.lists(
    st.tuples(st.floats(0.5, 100.0), st.floats(0.0, 5.0), st.floats(0.0, 5.0)), min_size=1, max_size=30
)


@given(gradients, st.floats(0.1, 3.0), st.floats(1.0, 200.0))
@settings(deadline=None)
def test_every_gradient_is_in_one_buffer_that_fits(found, cycle, most):
    asked = sorted(found, key=lambda one: one[1])
    made = [Gradient(nbytes, str(n), at, at + more) for n, (nbytes, at, more) in enumerate(asked)]
    cycles = fused_by_cycle(made, cycle, most)
    assert [one for each in cycles for buffer in each.buffers for one in buffer] == made
    assert all(
        sum(one.nbytes for one in buffer) <= most or len(buffer) == 1 for each in cycles for buffer in each.buffers
    )
    # a cycle begins when it is due, or when the one before has got its gradients
    begin = free = 0.0
    for each in cycles:
        begin = max(begin + each.cycles * cycle, free)
        own = [one for buffer in each.buffers for one in buffer]
        assert all(one.asked <= begin for one in own)
        free = max(begin, *(one.ready for one in own))


def test_a_cycle_waits_for_its_time_and_reduces_what_is_ready():
    """Layers are ready after 6, 8, 10 and 12 ms: cycles of 5 ms find them after 10 (three) and 15 ms (one)."""
    program = scenario(parameters="4M").schedule().programs[0]
    reduced = {op.name: op.nbytes for op in program.ops if "buffer" in op.name and hasattr(op, "nbytes")}
    assert reduced == {"cycle 0.buffer0": 3 * 4e6, "cycle 1.buffer0": 4e6}


@pytest.mark.parametrize(("cycle", "first", "rest"), [("5 ms", 10e-3, 15e-3), ("1 ms", 6e-3, 12e-3)])
def test_the_last_all_reduce_begins_with_its_cycle(cycle, first, rest):
    run = scenario(cycle=cycle).run()
    names = [op.name for op in run.timeline.schedule.programs[0].ops]
    own = run.timeline.of(0)
    reduced = [i for i, name in enumerate(names) if "buffer" in name and name[-1].isdigit()]
    begins = own.begin[[own.op.tolist().index(i) for i in reduced]]
    # negotiation sends some hundred bytes
    assert begins[0] == pytest.approx(first, rel=1e-3)
    assert begins[-1] == pytest.approx(rest, rel=1e-3)
    ring = 2 * 3 / 4 * 4e6 / BANDWIDTH
    assert run.timeline.step_time == pytest.approx(rest + ring, rel=1e-3)


def test_fusion_pays_the_latency_of_a_ring_once():
    """Small gradients, slow messages: each all-reduce costs 2 (p - 1) latencies."""
    fused = scenario(layers=8, latency="1 ms", parameters="8", cycle="30 ms").run().timeline.step_time
    apart = scenario(layers=8, latency="1 ms", parameters="8", cycle="30 ms", fusion="4 B").run().timeline.step_time
    assert apart - fused == pytest.approx(7 * 2 * 3 * 1e-3, rel=1e-3)


@pytest.mark.parametrize("gpus", [2, 4, 8])
def test_negotiation_grows_with_the_ranks(gpus):
    base = scenario(gpus, latency="1 ms", parameters="4", cycle="20 ms").run()
    slow = scenario(gpus, latency="1 ms", parameters="4", cycle="20 ms", request="1 ms").run()
    # the coordinator handles a request of each rank for each of four layers
    assert slow.timeline.step_time - base.timeline.step_time == pytest.approx(4e-3 * gpus, rel=1e-6)
    # requests arrive together; the answer takes log2 p rounds; then the ring
    rounds = gpus.bit_length() - 1
    assert base.timeline.step_time == pytest.approx(20e-3 + (1 + rounds + 2 * (gpus - 1)) * 1e-3, rel=1e-3)


@pytest.mark.parametrize("gpus", [2, 4, 8])
def test_cached_gradients_are_negotiated_by_their_bits_alone(gpus):
    """Whatever a request costs; the all-reduce of the bits halves and doubles its distance: 2 log2 p rounds."""
    told = scenario(gpus, latency="1 ms", parameters="4", cycle="20 ms", request="1 ms", cache_capacity=1024).run()
    rounds = 2 * (gpus.bit_length() - 1)
    assert told.timeline.step_time == pytest.approx(20e-3 + (rounds + 2 * (gpus - 1)) * 1e-3, rel=1e-3)


def test_a_cache_that_is_too_small_negotiates_every_gradient():
    """Four gradients evict each other from a cache of three before they come again."""
    steps = {
        capacity: scenario(request="1 ms", cache_capacity=capacity).run().timeline.step_time for capacity in (0, 3, 4)
    }
    assert steps[3] == steps[0] > steps[4]


@pytest.mark.exhaustive
def test_negotiation_of_hundreds_of_ranks_does_not_bound_a_step():
    """Each of 512 ranks would send a request for each of 161 gradients: 82 ms for a coordinator without a cache."""
    document = {
        "version": 1,
        "cluster": {"preset": "dgx_h100", "nodes": 64},
        "model": {"preset": "resnet50"},
        "training": {"global_batch_size": 8192, "precision": "fp16", "optimizer": "momentum"},
    }
    steps = {}
    for method in ("horovod", "ddp"):
        made = Scenario.model_validate({**document, "parallelism": {"data": {"method": method}}})
        steps[method] = made.run().timeline.step_time
    assert 0.5 * steps["ddp"] < steps["horovod"] < 1.2 * steps["ddp"]


@pytest.mark.parametrize(("batched", "copied", "back"), [(True, 2, 2), (False, 161, 2 * 161)])
def test_a_kernel_copies_160_gradients(batched, copied, back):
    """ResNet-50 has 161; a kernel each, and one that divides each, before version 0.21."""
    data = {"method": "horovod", "fusion": "1 GiB", "cycle": "100 s", "batch_copies": batched}
    made = Scenario.model_validate(
        {
            "version": 1,
            "cluster": {"preset": "dgx_h100", "nodes": 1},
            "model": {"preset": "resnet50"},
            "training": {"global_batch_size": 64, "precision": "fp16"},
            "parallelism": {"data": data},
        }
    )
    ops = {op.name: op for op in made.schedule().programs[0].ops}
    launches = [sum(kernel.launches for kernel in ops[f"cycle 0.buffer0.{way}"].kernels) for way in ("in", "out")]
    assert launches == [copied, back]


def test_traffic_is_that_of_gradients_and_negotiation():
    told = scenario().run().summary()["traffic_bytes"]["dp"]
    # gradients in a ring; each request and each answer passes once to or from the other ranks
    assert told == pytest.approx(2 * 3 * 16e6 + 4 * 3 * 2 * REQUEST_BYTES)


def test_stragglers_delay_the_buffers_that_wait_for_them():
    changes = {"simulation": {"stragglers": [{"rank": 1, "slowdown": 2.0}]}}
    slow = scenario(changes=changes).run().timeline
    assert slow.step_time == pytest.approx(24e-3 + 2 * 3 / 4 * 4e6 / BANDWIDTH, rel=1e-3)


def test_the_buffer_is_held_all_step():
    plain = scenario(changes={"parallelism": {"data": {"method": "ddp", "overlap": False}}}).run()
    told = scenario(fusion="10 MB").run().summary()["memory"]["by_category_bytes"]["buffers"]
    assert told - plain.summary()["memory"]["by_category_bytes"]["buffers"] == pytest.approx(10e6)


def test_the_host_asks_ahead_of_the_gpu_so_a_slow_step_fuses_more():
    """ResNet-101 launches its backward pass long before the GPU is there: few buffers, all of 64 MiB but the last."""
    loaded = Scenario.load("horovod_vs_ddp")
    program = next(iter(loaded.variants.values())).schedule().programs[0]
    sizes = [op.nbytes for op in program.ops if ".buffer" in op.name and hasattr(op, "nbytes")]
    assert sum(sizes) == pytest.approx(4 * 44_549_160)
    assert len(sizes) <= 6


@settings(max_examples=10, deadline=None)
@given(st.data())
def test_both_engines_and_folding_agree(data):
    keys = {
        "cycle": data.draw(st.sampled_from(["1 ms", "5 ms"])),
        "fusion": data.draw(st.sampled_from(["1 MB", "64 MB"])),
        "hierarchical": data.draw(st.booleans()),
        "latency": "7 us",
    }
    simulation = {"jitter": data.draw(st.sampled_from([0.0, 0.1]))}
    found = [
        scenario(3, changes={"simulation": {**simulation, "engine": engine, "fold": fold}}, **keys).run().timeline
        for engine, fold in (("simpy", False), ("simpy", True), ("compiled", True))
    ]
    assert [one.step_time for one in found] == pytest.approx([found[0].step_time] * 3, rel=1e-9)


@pytest.mark.parametrize(
    ("data", "told"),
    [
        ({"cycle": "0 s"}, "cycle"),
        ({"fusion": 64}, "fusion"),
        ({"pp": 2}, "pp"),
        (
            {"compression": {"method": "fp16"}},
            "belongs to method ddp, fsdp, parameter_server or zero, but method is horovod",
        ),
    ],
)
def test_bad_keys_are_told(data, told):
    with pytest.raises(ScenarioError, match=told):
        scenario(**data)


def test_experts_on_several_ranks_are_refused():
    """Their gradients are not summed over all ranks, as Horovod does."""
    parallelism = {"ep": 2, "data": {"method": "horovod"}}
    with pytest.raises(ScenarioError, match="reduces some gradients apart, but horovod all together"):
        scenario(changes={"model": {"preset": "switch_base", "num_layers": 2}, "parallelism": parallelism})
