"""Scenarios from Python: loading, overrides, presets, variants, placement, and what follows from them."""

import dataclasses
import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from clustersim.scenarios import Scenario
from clustersim.simulator.hardware.cluster import Cluster
from clustersim.simulator.reading.errors import ScenarioError
from clustersim.simulator.schedule.schedule import Schedule

TINY: dict[str, Any] = {
    "version": 1,
    "cluster": {"preset": "uniform", "gpus": 4, "hosts": 2, "bandwidth": "1 GB/s", "latency": "1 us"},
    "model": {"kind": "unit", "num_layers": 2, "forward": "1 s", "backward": "2 s", "parameters": 500e6},
    "training": {"global_batch_size": 8},
    "network": {"transport": "ideal"},
}


def tiny(**changes: Any) -> Scenario:
    return Scenario.model_validate({**TINY, **changes})


def seconds(scenario: Scenario) -> float:
    return float(scenario.run().summary()["step_time_s"])


def test_a_scenario_gives_both_nouns_and_runs() -> None:
    scenario = tiny()
    assert isinstance(scenario.schedule(), Schedule)
    assert isinstance(scenario.cluster(), Cluster)
    result = scenario.run()
    assert result.timeline.step_time == result.summary()["step_time_s"]
    assert result.report().startswith("scenario\n4 of 4 GPUs")


def test_overrides_are_those_of_the_option() -> None:
    by_python = Scenario.load("hello", {"cluster.gpus": 2, "parallelism.data.overlap": False})
    by_option = Scenario.load("hello", options=["cluster.gpus=2", "parallelism.data.overlap=false"])
    assert by_python.specification == by_option.specification
    with pytest.raises(ScenarioError, match=r"^cluster\.gpus=0: must be at least 1, not 0$"):
        Scenario.load("hello", {"cluster.gpus": 0})


def test_without_overlap_one_all_reduce_follows_the_backward_pass() -> None:
    # 2 x (1 + 2) s, then 2 (p-1) alpha + 2 (p-1)/p beta d of 2 GB, or of the last of two buckets of 1 GB
    ring = 6 * 1e-6 + 1.5 * 2.0
    assert math.isclose(seconds(tiny(parallelism={"data": {"overlap": False}})), 6.0 + ring, rel_tol=1e-9)
    overlapped = tiny(parallelism={"data": {"method": "ddp", "bucket": "1 GB"}})
    assert math.isclose(seconds(overlapped), 6.0 + 6e-6 + 1.5, rel_tol=1e-9)


def test_accumulation_communicates_once_with_no_sync_and_each_time_without() -> None:
    def run(no_sync: bool) -> float:
        data = {"method": "ddp", "overlap": False, "no_sync": no_sync}
        training = {"global_batch_size": 8, "micro_batch_size": 1}
        scenario = tiny(training=training, parallelism={"data": data})
        assert scenario.derived.micro_batches == 2
        return seconds(scenario)

    ring = 6e-6 + 3.0
    assert math.isclose(run(True), 12.0 + ring, rel_tol=1e-9)
    assert math.isclose(run(False), 12.0 + 2 * ring, rel_tol=1e-9)


def test_parameter_servers_share_their_ports() -> None:
    # pull and push of 2 GB: each server's port carries the share of four GPUs, each GPU's port those of all servers
    def run(servers: int) -> float:
        return seconds(tiny(parallelism={"data": {"method": "parameter_server", "servers": servers}}))

    assert math.isclose(run(1), 6.0 + 2 * (1e-6 + 4 * 2.0), rel_tol=1e-9)
    assert math.isclose(run(2), 6.0 + 2 * (1e-6 + 4 / 2 * 2.0), rel_tol=1e-9)


def test_the_initial_broadcast_stands_apart() -> None:
    summary = tiny().run().summary()
    assert summary["initial_broadcast_s"] >= 2.0
    assert summary["step_time_s"] < 6.0 + 3.1
    assert tiny(parallelism={"dp": 1}).run().summary()["initial_broadcast_s"] == 0.0


def test_gpus_that_are_left_over_idle() -> None:
    scenario = tiny(parallelism={"dp": 2})
    assert scenario.derived.idle == ("gpu 2", "gpu 3")
    result = scenario.run()
    assert result.summary()["idle_gpus"] == 2
    assert "2 of 4 GPUs of uniform; 2 idle" in result.report()


def test_placement() -> None:
    cluster = {"preset": "dgx1", "nodes": 2}

    def devices(**parallelism: Any) -> Sequence[str]:
        return tiny(cluster=cluster, parallelism={"dp": 4, **parallelism}).derived.devices

    assert devices() == ("gpu 0", "gpu 1", "gpu 2", "gpu 3")
    assert devices(placement="round_robin") == ("gpu 0", "gpu 8", "gpu 1", "gpu 9")
    assert devices(placement=[3, 1, 15, 0]) == ("gpu 3", "gpu 1", "gpu 15", "gpu 0")


def test_a_straggler_makes_all_wait() -> None:
    slow = tiny(simulation={"stragglers": [{"rank": 3, "slowdown": 1.5}]})
    assert math.isclose(seconds(slow), seconds(tiny()) + 3.0, rel_tol=1e-9)


def test_keys_beside_a_preset_go_deep() -> None:
    scenario = tiny(cluster={"preset": "zhores", "nodes": 2, "node": {"nics": 2}})
    cluster = scenario.cluster()
    assert len(cluster.gpus) == 8
    assert sum(data["kind"] == "nic" for _, data in cluster.graph.nodes.items()) == 4


def test_a_name_alone_is_a_preset_that_options_and_variants_may_change() -> None:
    cluster = {"preset": "dgx_h100", "nodes": 1, "node": {"accelerator": "a100_80gb"}}
    more = {"cluster.node.accelerator.memory": "100 GB", "software.launch": "1 us"}
    scenario = tiny(cluster=cluster, software="ddp", variants={"changed": more, "plain": {}})
    by_option = Scenario.model_validate(scenario.source.data, options=[f"{key}={value}" for key, value in more.items()])
    for one, memory, launch in (
        (scenario.variants["changed"], 100e9, 1e-6),
        (by_option.variants["plain"], 100e9, 1e-6),
        (scenario.variants["plain"], 85.5e9, 8e-6),
    ):
        gpu = one.cluster().accelerator("gpu 0")
        assert (gpu.name, one.software.name) == ("a100_80gb", "ddp")
        assert (gpu.memory_bytes, one.software.launch_seconds) == pytest.approx((memory, launch), rel=1e-2)


def test_a_figure_of_the_gpu_of_a_preset_changes_alone() -> None:
    gpu = tiny(cluster={"preset": "dgx_h100", "nodes": 1, "node": {"accelerator": {"memory": "100 GB"}}}).cluster()
    plain = tiny(cluster={"preset": "dgx_h100", "nodes": 1}).cluster().accelerator("gpu 0")
    assert gpu.accelerator("gpu 0") == dataclasses.replace(plain, memory_bytes=100e9)


def test_variants_change_what_they_name_and_nothing_else() -> None:
    scenario = tiny(
        parallelism={"data": {"method": "ddp", "bucket": "1 GB"}},
        variants={
            "as it is": {},
            "server": {"parallelism.data": {"method": "parameter_server"}},
            "other model": {"model": {"kind": "unit", "num_layers": 1, "forward": "1 s", "backward": "1 s"}},
            "other cluster": {"cluster": {"preset": "zhores", "nodes": 1}},
        },
    )
    summary = scenario.run().summary()
    assert list(summary) == ["name", "variants"]
    times = {name: one["step_time_s"] for name, one in summary["variants"].items()}
    assert times["as it is"] == seconds(tiny(parallelism={"data": {"method": "ddp", "bucket": "1 GB"}}))
    assert times["other model"] == 2.0
    assert times["server"] > times["as it is"] > times["other cluster"]


def test_several_steps_are_measured_after_the_first() -> None:
    summary = tiny(training={"global_batch_size": 8, "steps": 3}).run().summary()
    assert math.isclose(summary["step_time_s"], seconds(tiny()), rel_tol=1e-9)
    assert math.isclose(sum(summary["breakdown_s"].values()), summary["step_time_s"], rel_tol=1e-9)


def test_a_transport_of_ones_own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    package = tmp_path / "mylab"
    package.mkdir()
    (package / "__init__.py").write_text("")
    (package / "slow.py").write_text(
        "from clustersim.simulator.network.library.ideal import ideal\n"
        "from dataclasses import replace\n\n"
        "def slow():\n    return replace(ideal(), name='slow')\n"
    )
    (package / "broken.py").write_text("1 / 0\n")
    monkeypatch.syspath_prepend(tmp_path)
    assert seconds(tiny(network={"transport": "mylab.slow"})) == seconds(tiny())
    with pytest.raises(ScenarioError, match=r"network\.transport: mylab\.broken cannot be imported: ZeroDivisionError"):
        tiny(network={"transport": "mylab.broken"})


def test_paths_are_relative_to_the_scenario(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    home = tmp_path / "home"
    home.mkdir()
    (home / "layers.csv").write_text(
        "model,node,op,forward_ms,backward_ms,activation_bytes,parameter_bytes,preds\n"
        "two,node1,Linear,1.0,2.0,100,4000000,\n"
        "two,node2,Linear,1.0,2.0,100,4000000,node1\n"
    )
    (home / "mine.yaml").write_text(
        "version: 1\ncluster: {preset: zhores, nodes: 1}\nmodel: {profile: layers.csv, model: two}\n"
        "training: {global_batch_size: 4}\nparallelism: {dp: 1}\n"
    )
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    monkeypatch.chdir(elsewhere)
    scenario = Scenario.load("../home/mine.yaml")
    assert scenario.model is not None
    assert [layer.parameters for layer in scenario.model.layers] == [1_000_000, 1_000_000]
    assert scenario.name == "mine"


def test_alpha_beta_reports_bytes_but_no_use_of_links() -> None:
    changes = {"network.fidelity": "alpha_beta", "parallelism.data": {"method": "parameter_server"}}
    result = Scenario.load("hello", changes).run()
    assert result.summary()["link_utilisation"] == {}
    assert any(result.summary()["link_traffic_bytes"].values())
    assert "no use: with fidelity alpha_beta each transfer has its links for itself" in result.report()
    assert Scenario.load("hello").run().summary()["link_utilisation"]


@pytest.mark.parametrize(
    ("key", "value", "told"),
    [
        ("hidden_size", "x", 'model.hidden_size: must be a whole number, not "x"'),
        ("hiden_size", 3, "model.hiden_size: unknown key"),
        ("num_attention_heads", 7, "model.num_attention_heads: 7 does not divide hidden_size = 768"),
    ],
)
def test_an_error_in_data_from_python_names_its_key_and_no_shipped_file(key: str, value: Any, told: str) -> None:
    data = {"version": 1, "cluster": {"preset": "dgx1"}, "training": {"global_batch_size": 8}}
    with pytest.raises(ScenarioError) as error:
        Scenario.model_validate({**data, "model": {"preset": "gpt2", key: value}})
    assert str(error.value).startswith(told)
