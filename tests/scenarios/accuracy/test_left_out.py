"""Fits without a source: what they change of a run, and how they are found."""

from __future__ import annotations

from pathlib import Path

import pytest

from clustersim.scenarios.accuracy import left_out
from clustersim.scenarios.accuracy.left_out import Refit, fits_without, gpus_without, refit_of, refits
from clustersim.scenarios.accuracy.nccl import transport_entries
from clustersim.scenarios.accuracy.provenance import fitted_to
from clustersim.scenarios.accuracy.robust_fit import FitRow, Parameter
from clustersim.scenarios.scenario import Scenario
from clustersim.simulator.reading.yaml_and_json import read, yaml_text

GPT = {
    "version": 1,
    "cluster": {"preset": "dgx_a100_80gb", "nodes": 1},
    "model": {"num_layers": 2, "hidden_size": 2048, "num_attention_heads": 16, "seq_length": 1024, "vocab_size": 51200},
    "training": {"global_batch_size": 32, "micro_batch_size": 4, "precision": "fp16"},
    "software": "megatron",
}


def test_there_is_a_fit_without_each_source_that_a_fit_has() -> None:
    assert set(refits()) == fitted_to()
    assert {source for _, source in fits_without()} == fitted_to()
    assert refit_of("vtrain_layers") == refit_of("nccl_allreduce_one_node") == refits()["vtrain"]
    assert refit_of("mlperf_lora") is None


def test_stored_fits_have_all_parameters_of_the_shipped_ones() -> None:
    for fit, source in fits_without():
        if fit == left_out.NCCL:
            assert read(left_out.FOLDER / f"{source}_nccl.yaml").data["provenance"]["without"] == source
        else:
            shipped = read(Path(left_out.__file__).with_name(f"{fit}.yaml")).data["parameters"]
            stored = read(left_out.FOLDER / f"{source}.yaml").data["fits"][fit]
            assert set(stored) == {name for name, entry in shipped.items() if entry["lands"]}
            assert all(value > 0 for value in stored.values())


def test_factors_change_the_gpu_and_the_stack_of_a_run_and_nothing_else() -> None:
    run = Scenario.model_validate(GPT)
    factors = {
        "clustersim.topologies.gpus.a100_80gb:matmul_efficiency": 0.5,
        "clustersim.topologies.gpus.h100:matmul_efficiency": 0.1,
        "clustersim.workloads.software.megatron:launch": 2.0,
        "clustersim.workloads.software.ddp:launch": 9.0,
    }
    other = Refit(factors).applied(run)
    gpu, changed = (one.cluster().accelerator(one.derived.devices[0]) for one in (run, other))
    assert changed.matmul_efficiency == pytest.approx(gpu.matmul_efficiency / 2)
    assert changed.memory_efficiency == gpu.memory_efficiency
    assert other.software.launch_seconds == pytest.approx(2 * run.software.launch_seconds)
    assert other.run().summary()["step_time_s"] > 1.1 * run.run().summary()["step_time_s"]
    assert Refit({}).applied(run) is run


def test_a_fit_of_nccl_is_taken_by_the_version_that_knows_the_gpus(tmp_path: Path) -> None:
    from clustersim.scenarios.accuracy.nccl_tests import PARAMETERS

    values = {one.name: one.start for one in PARAMETERS}
    path = tmp_path / "nccl.yaml"
    path.write_text(yaml_text({"version": 1, "library": "nccl", "transport": transport_entries(values)}))
    for preset in ("dgx_a100_80gb", "dgx_h100"):
        run = Scenario.model_validate(
            {"version": 1, "cluster": {"preset": preset}, "collective": {"kind": "all_reduce", "size": "64 MiB"}}
        )
        (before,), (after,) = (one.run().summary()["collective"] for one in (run, Refit({}, path).applied(run)))
        assert after["algorithm"] == before["algorithm"]
        assert 0 < abs(after["time_s"] / before["time_s"] - 1) < 0.3


def test_a_run_takes_the_fit_of_nccl_without_its_own_gpu(tmp_path: Path) -> None:
    values = {"launch": 1e-6}
    for name, factor in (("all", 1), ("b200", 10)):
        launch = f"{factor * values['launch'] * 1e6} us"
        (tmp_path / f"{name}.yaml").write_text(
            yaml_text({"version": 1, "library": "nccl", "transport": {"launch": launch}})
        )
    refit = Refit({}, tmp_path / "all.yaml", {"b200": tmp_path / "b200.yaml"})
    times = {}
    for preset in ("dgx_b200", "dgx_h100"):
        run = Scenario.model_validate(
            {
                "version": 1,
                "cluster": {"preset": preset},
                "collective": {"kind": "all_gather", "size": "1 KiB"},
                "network": {"version": "2.27"},
            }
        )
        with_all = Refit({}, tmp_path / "all.yaml").applied(run)
        (one,), (other,) = (each.run().summary()["collective"] for each in (with_all, refit.applied(run)))
        times[preset] = other["time_s"] - one["time_s"]
    assert times == pytest.approx({"dgx_b200": 9e-6, "dgx_h100": 0.0}, abs=1e-9)


def test_a_parameter_that_no_other_source_informs_has_its_start() -> None:
    """Two parameters, one measured by both sources and one by one of them only: means of what is left."""

    def row(data: str, name: str, measured: float) -> FitRow:
        return FitRow(data, measured, lambda values: values[name], {"data": data}, frozenset({name}))

    def parameter(name: str) -> Parameter:
        return Parameter(name, 2.0, 0.1, 10.0, "", "")

    rows = [row("a", "both", 3.0), row("b", "both", 4.0), row("a", "one", 5.0)]
    parameters = [parameter("both"), parameter("one")]
    assert left_out._without("a", parameters, rows, {}) == pytest.approx({"both": 4.0, "one": 2.0}, rel=1e-3)
    assert left_out._without("b", parameters, rows, {}) == pytest.approx({"both": 3.0, "one": 5.0}, rel=1e-3)


def test_refit_writes_what_is_read_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """With fits that give the shipped values all factors are 1, but for one parameter that doubles."""
    from clustersim.scenarios.accuracy.nccl_tests import PARAMETERS

    def fitted(job: tuple[str, ...]) -> dict[str, float]:
        if job[0] == left_out.NCCL:
            return {one.name: one.start for one in PARAMETERS}
        shipped = read(Path(left_out.__file__).with_name(f"{job[0]}.yaml")).data["parameters"]
        values = {name: entry["value"] for name, entry in shipped.items() if entry["lands"]}
        return values | (
            {"a100.memory_efficiency": 2 * values["a100.memory_efficiency"]} if job == ("a100", "vtrain") else {}
        )

    monkeypatch.setattr(left_out, "FOLDER", tmp_path)
    monkeypatch.setattr(left_out, "_fitted", fitted)
    ended: list[None] = []
    paths = left_out.refit(1, lambda: ended.append(None))
    try:
        assert len(ended) == len(fits_without()) + len(gpus_without()) == 11 + 5
        assert sorted(paths) == sorted(tmp_path.iterdir())
        assert set(refits()) == fitted_to()
        far = {place: factor for place, factor in refits()["vtrain"].factors.items() if abs(factor - 1) > 1e-9}
        assert far == pytest.approx(
            {f"clustersim.topologies.gpus.a100_{size}gb:memory_efficiency": 2.0 for size in (40, 80)}
        )
        assert refits()["vtrain"].transport == tmp_path / "vtrain_nccl.yaml"
        assert not refits()["vtrain"].without_gpu
        path = tmp_path / "aiconfigurator_nccl_b200.yaml"
        assert refits()["aiconfigurator"].without_gpu["b200"] == path
        assert read(path).data["provenance"]["gpu"] == "b200"
    finally:
        refits.cache_clear()
