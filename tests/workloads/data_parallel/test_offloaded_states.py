"""States off the GPU: closed forms of bytes and times, conservation, and both engines against each other."""

from collections import defaultdict
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from clustersim.scenarios import Scenario
from clustersim.scenarios.search.estimator import Estimator
from clustersim.scenarios.search.least_memory import least_bytes
from clustersim.simulator.analysis.memory import bound
from clustersim.simulator.reading.errors import ScenarioError
from clustersim.simulator.schedule.ops import Copy
from clustersim.simulator.schedule.program import Program

GB = 1e9


def scenario(offload: dict[str, Any], data: dict[str, Any] | None = None, **changes: Any) -> Scenario:
    """Two micro-batches of a GPT of four layers on a node of V100s, with *changes* by dotted key."""
    whole: dict[str, Any] = {
        "version": 1,
        "cluster": {"preset": "dgx2"},
        "model": {
            "num_layers": 4,
            "hidden_size": 1024,
            "num_attention_heads": 16,
            "seq_length": 512,
            "vocab_size": 4096,
        },
        "training": {"global_batch_size": 16, "micro_batch_size": 8, "precision": "fp16", "offload": offload},
        "parallelism": {"dp": 1, "data": data or {"method": "zero", "stage": 2, "overlap": True}},
    }
    for key, value in changes.items():
        at, *path = key.split("__")
        section = whole.setdefault(at, {})
        for name in path[:-1]:
            section = section.setdefault(name, {})
        section[path[-1]] = value
    return Scenario.model_validate(whole)


HOST = {"optimizer": "host", "gradients": "host"}
INFINITY = {"optimizer": "nvme", "gradients": "host", "parameters": "nvme"}
ZERO_3 = {"method": "zero", "stage": 3}
FSDP = {"method": "fsdp"}

COMBINATIONS = {
    "ZeRO-Offload": (HOST, None),
    "gradients added up on the GPU": ({"optimizer": "host"}, None),
    "delayed": ({**HOST, "delayed_update": True}, None),
    "blocking": ({**HOST, "overlap": False}, None),
    "half": ({"optimizer": "host", "optimizer_fraction": 0.5}, {"method": "zero", "stage": 1}),
    "ZeRO-3 Offload": ({**HOST, "parameters": "host"}, ZERO_3),
    "ZeRO-Infinity": (INFINITY, ZERO_3),
    "states on drives": ({"optimizer": "nvme", "gradients": "host", "parameters": "host"}, ZERO_3),
    "FSDP": ({**HOST, "parameters": "host"}, FSDP),
    "out of core": ({**HOST, "parameters": "host"}, {"method": "ddp"}),
    "whole states on each rank": ({"optimizer": "host"}, {"method": "ddp"}),
}
"""The section and the method of data parallelism."""


def copied(program: Program) -> dict[tuple[str, str], float]:
    """Bytes by (source, target) of the copies of *program*."""
    total: defaultdict[tuple[str, str], float] = defaultdict(float)
    for op in program.ops:
        if isinstance(op, Copy) and not op.on_cores:
            total[op.source, op.to] += op.nbytes
    return dict(total)


@pytest.mark.parametrize("ranks", [1, 4])
def test_zero_offload_moves_four_bytes_per_parameter_and_update_a_micro_batch(ranks):
    one = scenario(HOST, parallelism__dp=ranks, training__global_batch_size=8 * ranks)
    (program,) = one.schedule().programs
    parameters = one.model.parameters / ranks
    assert copied(program) == pytest.approx({("gpu", "host"): 2 * parameters, ("host", "gpu"): 2 * parameters})
    # master weights and two states of Adam in fp32, and gradients in fp16 (Ren et al. 2021, table 1)
    held = {name: nbytes for name, nbytes in program.resident.items() if name.startswith("host.")}
    assert held == pytest.approx({"host.optimizer": 12 * parameters, "host.gradients": 2 * parameters})
    assert {name for name in program.resident if not name.startswith("host.")} == {"parameters"}


def test_states_in_16_bits_take_less_room_on_the_host_and_the_same_copies():
    wide, narrow = (
        scenario(HOST, training__optimizer_dtype=dtype).schedule().programs[0] for dtype in ("fp32", "bf16")
    )
    assert copied(narrow) == pytest.approx(copied(wide))
    assert narrow.resident["host.optimizer"] == pytest.approx(8 / 12 * wide.resident["host.optimizer"])
    assert narrow.resident["host.gradients"] == pytest.approx(wide.resident["host.gradients"])


def test_each_further_micro_batch_adds_its_gradients_to_those_of_the_host():
    one, three = (scenario(HOST, training__global_batch_size=8 * n).schedule().programs[0] for n in (1, 3))
    gradients = copied(one)["gpu", "host"]
    assert copied(three)["gpu", "host"] == pytest.approx(3 * gradients)
    assert copied(three)["host", "gpu"] == pytest.approx(copied(one)["host", "gpu"] + 2 * gradients)
    kept = scenario({"optimizer": "host"}, training__global_batch_size=24).schedule().programs[0]
    assert copied(kept) == pytest.approx(copied(one))


def test_megatron_core_keeps_master_weights_and_frees_what_megatron_bridge_measured():
    bridge = Scenario.load("megatron_bridge_offload").variants
    none, half, whole = (bound(bridge[name].schedule()).peak.nbytes for name in ("0 %", "50 %", "100 %"))
    # card.yaml: 47.2, 39.6 and 32.0 GB are allocated on a GPU
    assert none - half == pytest.approx((47.2 - 39.6) * GB, rel=0.02)
    assert none - whole == pytest.approx((47.2 - 32.0) * GB, rel=0.02)


def test_the_memory_of_the_host_bounds_the_update():
    one = scenario(HOST)
    (program,) = one.schedule().programs
    processor = one.cluster().accelerator("host 0")
    # 28 bytes: the gradient is read, fp32 weights and two states are read and written, fp16 weights are written
    traffic = 28 * one.model.parameters
    assert sum(op.nbytes for op in program.ops if isinstance(op, Copy) and op.on_cores) == pytest.approx(traffic)
    bandwidth = processor.memory_bandwidth * processor.memory_efficiency
    assert one.run().summary()["breakdown_s"]["optimizer"] == pytest.approx(traffic / bandwidth, rel=1e-6)


TABLE_4 = {1: 0.22, 2: 0.51, 4: 1.03, 8: 2.41, 10: 2.57}
"""Seconds of CPU-Adam on a DGX-2 by billions of parameters (Ren et al. 2021, table 4)."""


def test_the_update_of_cpu_adam_within_a_quarter_of_table_4():
    processor = scenario(HOST).cluster().accelerator("host 0")
    bandwidth = processor.memory_bandwidth * processor.memory_efficiency
    errors = [28 * count * GB / bandwidth / measured - 1 for count, measured in TABLE_4.items()]
    assert all(abs(error) < 0.25 for error in errors), errors
    assert sum(map(abs, errors)) / len(errors) < 0.12


@pytest.mark.parametrize("dp", [1, 4])
@pytest.mark.parametrize("name", COMBINATIONS)
def test_what_is_allocated_is_freed_on_both_sides(name, dp):
    offload, data = COMBINATIONS[name]
    for program in scenario(offload, data, parallelism__dp=dp, training__global_batch_size=16 * dp).schedule().programs:
        total: defaultdict[str, float] = defaultdict(float)
        for op in program.ops:
            for sign, amounts in ((1, op.allocates), (-1, op.frees)):
                for category, nbytes in amounts.items():
                    total[category] += sign * nbytes
        assert all(abs(nbytes) < 1 for nbytes in total.values()), total
        assert all(nbytes >= 0 for nbytes in program.resident.values())


@settings(deadline=None, max_examples=12)
@given(st.sampled_from(list(COMBINATIONS)), st.sampled_from([1, 2, 8]), st.booleans(), st.integers(1, 2))
def test_engines_and_folding_agree(name, dp, fold, steps):
    offload, data = COMBINATIONS[name]
    changes = {"parallelism__dp": dp, "training__global_batch_size": 16 * dp, "training__steps": steps}
    results = [
        scenario(offload, data, **changes, simulation__engine=engine, simulation__fold=how).run().summary()
        for engine, how in (("simpy", True), ("compiled", fold))
    ]
    for key in ("step_time_s", "breakdown_s", "memory", "link_traffic_bytes"):
        first, second = (flat(result[key]) for result in results)
        assert first == pytest.approx(second, rel=1e-9, abs=1e-12), key


def flat(value: Any, name: str = "") -> dict[str, float]:
    if isinstance(value, dict):
        return {k: v for key, one in value.items() for k, v in flat(one, f"{name}.{key}").items()}
    if isinstance(value, list):
        return {k: v for key, one in enumerate(value) for k, v in flat(one, f"{name}.{key}").items()}
    return {name: float(value)}


@pytest.mark.parametrize("name", COMBINATIONS)
def test_half_of_the_pcie_bandwidth_is_never_faster_and_links_are_at_most_full(name):
    offload, data = COMBINATIONS[name]
    slow, fast = (
        scenario(offload, data, cluster__node={"host": {"kind": "pcie3", "bandwidth": rate}}).run().summary()
        for rate in ("4 GB/s", "8 GB/s")
    )
    assert slow["step_time_s"] >= fast["step_time_s"]
    if name == "blocking":
        assert slow["breakdown_s"]["copy"] == pytest.approx(2 * fast["breakdown_s"]["copy"], rel=0.01)
    for result in (slow, fast):
        assert all(use["max"] <= 1 + 1e-9 for use in result["link_utilisation"].values())


@pytest.mark.parametrize("name", COMBINATIONS)
def test_the_bound_of_check_is_at_least_the_peak_of_a_run(name):
    offload, data = COMBINATIONS[name]
    one = scenario(offload, data, parallelism__dp=2, training__global_batch_size=48)
    most, held = bound(one.schedule(), ranks_per_host=2), one.run().memory
    assert most.peak.nbytes >= held.peak.nbytes * (1 - 1e-9)
    assert most.host_bytes >= held.host_bytes * (1 - 1e-9)


def test_a_delayed_update_hides_the_host_behind_the_gpu():
    plain, delayed = (scenario(COMBINATIONS[name][0]).run().summary() for name in ("ZeRO-Offload", "delayed"))
    assert delayed["step_time_s"] < plain["step_time_s"]
    assert delayed["memory"]["host_peak_bytes"] > plain["memory"]["host_peak_bytes"]


@pytest.mark.parametrize("dp", [1, 2])
@pytest.mark.parametrize("name", COMBINATIONS)
def test_a_step_needs_what_the_step_before_has_written(name, dp):
    offload, data = COMBINATIONS[name]
    changes = {"parallelism__dp": dp, "training__global_batch_size": 16 * dp, "training__steps": 2}
    spans = list(scenario(offload, data, **changes).run().timeline.spans(0))
    updated = max(span.end for span in spans if span.step == 0 and span.op.name == "0O")
    sent = max(span.end for span in spans if span.step == 0 and span.op.name.endswith(".out"))
    for span in spans:
        if span.step == 1 and isinstance(span.op, Copy):
            assert span.begin >= max(updated, sent) - 1e-9, span.op


def test_ranks_share_the_cores_of_a_socket_and_each_updates_its_shard():
    # one rank: one socket alone; sixteen: two sockets, so half of the time for the same parameters
    one, sixteen = (
        scenario(HOST, parallelism__dp=dp, training__global_batch_size=8 * dp).run().summary()["breakdown_s"]
        for dp in (1, 16)
    )
    assert sixteen["optimizer"] == pytest.approx(one["optimizer"] / 2, rel=0.01)


def test_bandwidth_centric_partitioning_reads_each_shard_over_a_link_of_its_own():
    one, four = (
        scenario(*COMBINATIONS["ZeRO-3 Offload"], parallelism__dp=dp, training__global_batch_size=16 * dp)
        for dp in (1, 4)
    )
    fetched = [copied(one.schedule().programs[0])["host", "gpu"] for one in (one, four)]
    assert fetched[1] == pytest.approx(fetched[0] / 4, rel=0.02)


def test_states_on_drives_are_read_and_written_once_a_step():
    one = scenario(*COMBINATIONS["ZeRO-Infinity"], training__global_batch_size=8)
    (program,) = one.schedule().programs
    parameters, found = one.model.parameters, copied(program)
    assert found["host", "nvme"] == pytest.approx((12 + 2) * parameters)
    assert found["nvme", "host"] == pytest.approx(12 * parameters + found["host", "gpu"])


def test_a_host_without_the_memory_does_not_fit():
    small = {"preset": "xeon_platinum_8168", "memory": "100 MB"}
    result = scenario(HOST, cluster__node={"processor": small, "sockets": 1}).run()
    assert not result.summary()["memory"]["fits"]
    assert "of host memory a node: DOES NOT FIT" in result.report()
    drives = {"count": 1, "read": "3 GB/s", "write": "3 GB/s", "capacity": "100 MB"}
    result = scenario(INFINITY, ZERO_3, cluster__node={"nvme": drives}).run()
    assert "of NVMe a node: DOES NOT FIT" in result.report()
    assert "nodes with more NVMe" in result.report()
    assert "GPU with more memory" not in result.report()


WRONG = {
    "gradients": ({"gradients": "host"}, None, {}, "optimizer states too: add optimizer: host"),
    "parameters": ({"parameters": "host"}, None, {}, "optimizer states too: add optimizer: host"),
    "streams": ({**HOST, "parameters": "host"}, None, {}, "must shard the parameters: take data: .*stage: 3"),
    "drives": ({**INFINITY, "parameters": "gpu"}, None, {}, "is nvme, as in ZeRO-Infinity, so its data parallelism"),
    "no drive": (INFINITY, ZERO_3, {"cluster__preset": "dgx1"}, "has no NVMe drive; give the node nvme"),
    "delayed": ({"delayed_update": True}, None, {}, "belongs to an optimizer on the host"),
    "delayed and split": (
        {**HOST, "delayed_update": True, "optimizer_fraction": 0.5},
        None,
        {},
        "needs all optimizer states on the host",
    ),
    "delayed of FSDP": ({**HOST, "delayed_update": True}, FSDP, {}, "belongs to ZeRO-Offload; fsdp has none"),
    "fraction": ({**HOST, "optimizer_fraction": 0.0}, None, {}, "must be above 0"),
    "no states": (HOST, None, {"training__optimizer": "sgd", "training__precision": "fp32"}, "sgd in fp32 has no"),
    "servers": (HOST, {"method": "parameter_server"}, {}, "updates the parameters in a way of its own"),
    "whole gradients": (HOST, {"method": "ddp"}, {"parallelism__dp": 2}, "take data: .*stage: 2"),
    "asynchronous": (
        {"optimizer": "host"},
        {"method": "ddp"},
        {"parallelism__pp": 2, "parallelism__schedule": "pipedream"},
        "take a pipeline order that flushes",
    ),
    "local steps": (
        {"optimizer": "host"},
        {"method": "local_sgd", "every": 4},
        {"parallelism__dp": 2},
        "local_sgd is not modelled with states off the GPU",
    ),
    "no update on the host": (HOST, None, {"training__optimizer": "muon"}, "muon has no update on the host; take adam"),
    "overlap of activations": ({"activations": "all", "overlap": False}, None, {}, "belongs to states off the GPU"),
    "typing error": ({"optimiser": "host"}, None, {}, "unknown key"),
}


@pytest.mark.parametrize("name", WRONG)
def test_bad_input(name):
    offload, data, changes, told = WRONG[name]
    with pytest.raises(ScenarioError, match=told):
        scenario(offload, data, **changes).schedule()


def test_offload_without_a_host():
    cluster = {"preset": "uniform", "gpus": 1, "hosts": 0, "bandwidth": "10 GB/s", "latency": "1 us"}
    training = {"global_batch_size": 1, "offload": HOST}
    with pytest.raises(ScenarioError, match="no host to offload to; give it hosts"):
        Scenario.model_validate(
            {"version": 1, "cluster": cluster, "model": {"preset": "gpt2"}, "training": training}
        ).schedule()


@pytest.mark.parametrize("name", ["ZeRO-Offload", "half", "ZeRO-3 Offload", "FSDP"])
def test_the_planner_estimates_copies_that_share_the_links_of_a_node(name):
    offload, data = COMBINATIONS[name]
    one = scenario(offload, data, parallelism__dp=16, training__global_batch_size=256)
    estimator = Estimator(one)
    estimate = estimator.estimate(one)
    assert estimate.seconds == pytest.approx(one.run().summary()["step_time_s"], rel=0.05)
    assert least_bytes(estimator, one) <= estimate.need.nbytes


def test_replicas_out_of_core_copy_what_a_single_one_does() -> None:
    """KARMA: layers come in for both passes and gradients leave; several replicas add their all-reduce, no copies."""
    out = {**HOST, "parameters": "host"}
    same = {"training__micro_batch_size": 16, "training__gradient_dtype": "fp16"}
    single = scenario(out, ZERO_3, **same).schedule().programs[0]
    made = scenario(out, {"method": "ddp"}, parallelism__dp=4, **same, training__global_batch_size=64)
    (program,) = made.schedule().programs
    for way in (("host", "gpu"), ("gpu", "host")):
        assert copied(program)[way] == copied(single)[way] > 0
    told = made.run().summary()
    assert told["memory"]["by_category_bytes"]["parameters"] == 0.0
    assert made.model is not None
    gradients = 2.0 * made.model.parameters
    # 2 (p - 1) / p of the gradients from each of four ranks
    assert told["traffic_bytes"]["dp"] == pytest.approx(6 * gradients, rel=1e-6)


def test_sharded_gradients_alone_do_not_go_with_parameters_on_the_host() -> None:
    with pytest.raises(ScenarioError, match="or ddp, whose replicas may have all states on the host"):
        scenario({**HOST, "parameters": "host"}, parallelism__dp=2).schedule()
