"""What a run says of the compression of gradients, and when compression costs more than it saves."""

import pytest

from clustersim.scenarios import Scenario

BASE = {
    "version": 1,
    "cluster": {"preset": "p3_8xlarge", "nodes": 4},
    "model": {"preset": "resnet50"},
    "training": {"global_batch_size": 512, "micro_batch_size": 32, "precision": "fp32", "optimizer": "momentum"},
    "software": "ddp",
}


def run(compression=None, data=None, **sections):
    method = {"method": "ddp", **(data or {}), **({"compression": compression} if compression else {})}
    return Scenario.model_validate({**BASE, "parallelism": {"data": method}, **sections}).run()


@pytest.fixture(scope="module")
def plain():
    return run()


def test_a_run_without_compression_says_nothing_of_it(plain):
    assert "compression" not in plain.summary()
    assert "compression" not in plain.report()


def test_a_run_says_bytes_and_times():
    result = run({"method": "fp16"})
    told, parameters = result.summary()["compression"], result.scenario.model.parameters
    assert told["gradient_bytes"] == pytest.approx(4 * parameters)
    assert told["sent_bytes"] == pytest.approx(2 * parameters)
    # a cast of 4 + 2 bytes and a division of 2 x 2; back 2 + 4
    gpu = result.scenario.cluster().accelerator("gpu 0")
    bandwidth = gpu.memory_bandwidth * gpu.memory_efficiency
    assert told["encoding_s"] > 10 * parameters / bandwidth
    # decoding runs beside the backward pass and shares the GPU with it
    assert told["decoding_s"] > 6 * parameters / bandwidth
    assert 0 < told["exposed_s"] <= told["encoding_s"] + told["decoding_s"]
    assert "a GPU encodes 102 MB of gradients as 51.1 MB, 2 times less" in result.report()


def test_traffic_falls_as_bytes_do(plain):
    """All-reduces of the same algorithm: half of the bytes in fp16."""
    ring = {"network": {"algorithms": {"all_reduce": "ring"}}}
    dense, half = run(**ring), run({"method": "fp16"}, **ring)
    assert half.summary()["traffic_bytes"]["dp"] == pytest.approx(dense.summary()["traffic_bytes"]["dp"] / 2)


def test_one_bit_adam_over_a_run():
    """1 / (0.15 + 0.85 / 16) = 4.92 times less than gradients in 16 bits (the lecture says 5)."""
    half = {"training": {**BASE["training"], "precision": "fp16"}}
    told = run({"method": "one_bit_adam"}, {"overlap": False}, **half, software="ideal").summary()["compression"]
    assert told["ratio"] == pytest.approx(16, rel=1e-4)
    assert told["ratio_of_run"] == pytest.approx(1 / (0.15 + 0.85 / 16), rel=1e-4)
    assert told["ratio_of_run"] == pytest.approx(4.92, abs=0.01)


def test_on_a_fast_network_compression_costs_more_than_it_saves():
    """Within one NVLink node a singular value decomposition, a selection and PowerSGD's products only cost."""
    one_node = {"cluster": {"preset": "dgx1"}, "training": {**BASE["training"], "global_batch_size": 256}}
    dense = run(**one_node).summary()["step_time_s"]
    for compression in ({"method": "atomo"}, {"method": "top_k", "density": 0.1}, {"method": "powersgd", "rank": 4}):
        assert run(compression, **one_node).summary()["step_time_s"] > dense
    # and on 10 Gb/s the cheap ones gain
    slow = {"cluster": {"preset": "p3_8xlarge", "nodes": 4}}
    dense = run(**slow).summary()["step_time_s"]
    for compression in ({"method": "fp16"}, {"method": "random_k"}, {"method": "powersgd", "rank": 4}):
        assert run(compression, **slow).summary()["step_time_s"] < dense


@pytest.mark.parametrize(
    ("compression", "share"),
    [({"method": "fp16"}, 1 / 2), ({"method": "top_k", "density": 0.01}, 0.02), ({"method": "sign"}, 1 / 32)],
)
def test_parameter_servers_get_fewer_bytes(compression, share):
    """Servers send parameters as they are; with signs they answer with the signs of the majority."""
    server = {"method": "parameter_server", "servers": 2}
    dense, less = run(data=server), run(compression, server)
    parameters = 16 * 4.0 * dense.scenario.model.parameters
    assert dense.summary()["traffic_bytes"]["ps"] == pytest.approx(2 * parameters)
    answered = share if compression["method"] == "sign" else 1.0
    assert less.summary()["traffic_bytes"]["ps"] == pytest.approx((share + answered) * parameters, rel=1e-5)
    assert less.summary()["compression"]["encoding_s"] > 0
    kept = dense.summary()["memory"]["host_peak_bytes"] > 0, less.summary()["memory"]["host_peak_bytes"] > 0
    assert kept == (True, compression["method"] != "sign")


@pytest.mark.parametrize(
    ("model", "micro_batch", "gains"), [("resnet50", 64, {4}), ("bert_base", 12, {4, 16})], ids=["ResNet-50", "BERT"]
)
def test_what_the_backward_pass_hides_cannot_be_gained(model, micro_batch, gains):
    """On 32 V100 with 10 Gb/s a node, BERT gains from PowerSGD of rank 4 and 16, ResNet-50 from rank 4 only."""
    sections = {
        "cluster": {"preset": "p3_8xlarge", "nodes": 8},
        "model": {"preset": model},
        "training": {**BASE["training"], "global_batch_size": 32 * micro_batch, "micro_batch_size": micro_batch},
    }
    dense = run(**sections).summary()["step_time_s"]
    ranks = {4, 16}
    steps = {rank: run({"method": "powersgd", "rank": rank}, **sections).summary()["step_time_s"] for rank in ranks}
    assert {rank for rank, step in steps.items() if step < dense} == gains
    # the largest elements of all ranks are more bytes than all gradients, above a density of 1/p
    for density, faster in ((0.01, True), (0.1, False)):
        assert (run({"method": "top_k", "density": density}, **sections).summary()["step_time_s"] < dense) == faster


def test_powersgd_begins_after_some_steps():
    """torch's hook after 1,000; their share is known if the whole run is."""
    one_node = {"cluster": {"preset": "p3_8xlarge"}, "training": {**BASE["training"], "global_batch_size": 128}}
    unknown = run({"method": "powersgd"}, **one_node)
    assert "the first 1,000 steps of a run send whole gradients" in unknown.report()
    one_node["training"] = {**one_node["training"], "samples": 128 * 10_000}
    told = run({"method": "powersgd"}, **one_node).summary()["compression"]
    assert told["ratio_of_run"] == pytest.approx(1 / (0.1 + 0.9 / told["ratio"]))


def test_a_whole_training_counts_the_steps_that_are_not_compressed():
    """Of 10,000 steps PowerSGD leaves the first 1,000 as they are, 1-bit Adam 15 %."""
    sections = {"training": {**BASE["training"], "samples": 512 * 10_000}}
    dense = run(**sections).summary()
    assert "first_steps" not in dense
    for method, first in (("powersgd", 1_000), ("one_bit_adam", 1_500)):
        told = run({"method": method}, **sections).summary()
        assert told["first_steps"] == {"count": first, "step_time_s": pytest.approx(dense["step_time_s"])}
        seconds = first * dense["step_time_s"] + (10_000 - first) * told["step_time_s"]
        assert told["training"]["days"] == pytest.approx(seconds / 86_400)
