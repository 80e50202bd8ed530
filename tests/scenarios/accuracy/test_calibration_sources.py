"""Files of measurements and inventories of other tools become a transport and a cluster."""

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from clustersim import topologies
from clustersim.scenarios.accuracy.imported_measurements import Overrides, fit_tables, read
from clustersim.scenarios.scenario import Scenario
from clustersim.simulator.hardware.cluster import Cluster
from clustersim.simulator.network.library.calibration_file import loaded
from clustersim.simulator.network.library.communicator import Communicator
from clustersim.simulator.network.library.nccl import nccl
from clustersim.simulator.reading.errors import CalibrationError
from clustersim.simulator.reading.yaml_and_json import read as document

SIZES = [2**power for power in range(10, 31, 4)]

SERVER = "\n".join(
    ["\t" + "\t".join([*(f"GPU{i}" for i in range(4)), "NIC0", "CPU Affinity", "NUMA Affinity"])]
    + [
        "\t".join([f"GPU{i}", *(" X " if i == j else "NV4" for j in range(4)), "NODE" if i < 2 else "SYS", cores, "0"])
        for i, cores in enumerate(["0-31", "0-31", "32-63", "32-63"])
    ]
    + ["NIC0\tNODE\tNODE\tSYS\tSYS\t X "]
)
"""Four A100 in a full mesh, two on either socket, and one NIC."""


def swept(servers, seconds, gpu="NVIDIA A100-SXM4-40GB"):
    """The text of an all-reduce over all GPUs of *servers* servers; so many digits that an exact fit is found exact."""
    ranks = 4 * servers
    lines = ["# nccl-tests version 2.18.2 nccl-headers=21003 nccl-library=21003"]
    lines += ["# Collective test starting: all_reduce_perf"]
    lines += [
        f"#  Rank {r:2} Group  0 Pid {r} on  node-{r // 4} device {r % 4} [0000:07:00] {gpu}" for r in range(ranks)
    ]
    lines += ["#       size         count      type   redop    root     time   algbw   busbw #wrong"]
    for size, time in zip(SIZES, seconds, strict=True):
        lines += [f"{size} {size // 4} float sum -1 {time * 1e6:.9f} {size / time / 1e9:.3f} 0.00 0"]
    return "\n".join(lines) + "\n"


def truth(cluster, **changes):
    """Seconds of each size with NCCL 2.10 and *changes*, as nccl-tests measure it: nothing is handed over by torch."""
    communicator = Communicator(cluster, cluster.gpus, replace(nccl("2.10"), handover=0.0, **changes))
    ranks = tuple(range(len(cluster.gpus)))
    return [communicator.collective("all_reduce", "x", ranks, size).alone for size in SIZES]


@pytest.fixture
def files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "topo.txt").write_text(SERVER)
    return tmp_path


def servers(nodes: int) -> Cluster:
    """*nodes* servers of `SERVER`."""
    node = {"accelerator": "a100_40gb", "accelerators": 4, "intra": {"kind": "nvlink3", "shape": "full_mesh"}}
    return topologies.cluster({"nodes": nodes, "node": {**node, "sockets": 2, "nics": 1, "nic": {"kind": "ib_hdr"}}})


def test_a_sweep_and_a_server_make_a_transport_and_a_cluster(files):
    cluster = servers(2)
    efficiency = {**nccl("2.10").efficiency, "NET": 0.7}
    seconds = truth(cluster, efficiency=efficiency)
    (files / "sweep.txt").write_text(swept(2, seconds))
    report = read([Path("sweep.txt"), Path("topo.txt")], Path("x.yaml"), None, Overrides(nic="ib_hdr"))
    assert "all_reduce of 8 ranks" in report
    assert loaded("x.yaml").efficiency["NET"] == pytest.approx(0.7, rel=0.02)
    written = document("x.yaml").data
    assert (written["library"], written["library_version"], written["provenance"]["from"]) == (
        "nccl",
        "2.10",
        ["sweep.txt", "topo.txt"],
    )
    data = {
        "version": 1,
        "cluster": {"preset": "x.yaml"},
        "collective": {"kind": "all_reduce", "size": [f"{size} B" for size in SIZES]},
        "network": {"transport": "x.yaml"},
    }
    rows = Scenario.model_validate(data).run().summary()["collective"]
    assert [row["time_s"] for row in rows] == pytest.approx(seconds, rel=0.03)


@pytest.mark.exhaustive
def test_a_sweep_on_the_cluster_of_a_scenario(files):
    scenario = Scenario.load("allreduce_dgx_a100", {"cluster.nodes": 1})
    cluster = scenario.cluster()
    seconds = truth(cluster, launch=5e-6)
    text = swept(2, seconds).replace("node-1", "node-0")
    (files / "sweep.txt").write_text(text)
    read([Path("sweep.txt")], Path("x.yaml"), scenario, Overrides())
    assert "cluster" not in document("x.yaml").data
    assert loaded("x.yaml").handover == nccl("2.10").handover > 0.0
    library = replace(loaded("x.yaml"), handover=0.0)
    ranks, found = tuple(range(8)), Communicator(cluster, cluster.gpus, library)
    again = [found.collective("all_reduce", "x", ranks, size).alone for size in SIZES]
    assert again == pytest.approx(seconds, rel=0.03)


def test_a_server_alone_makes_a_cluster(files):
    overrides = Overrides(accelerator="a100_40gb", nic="ib_hdr", nodes=3)
    report = read([Path("topo.txt")], Path("node.yaml"), None, overrides)
    assert report.endswith("wrote node.yaml\nnext: cluster: {preset: node.yaml}")
    data = {
        "version": 1,
        "cluster": {"preset": "node.yaml", "nodes": 5},
        "collective": {"kind": "broadcast", "size": "1 kB"},
    }
    assert len(Scenario.model_validate(data).cluster().gpus) == 20
    read([Path("topo.txt")], Path("node.json"), None, overrides)
    assert len(topologies.cluster({"graph": "node.json"}, files).gpus) == 4


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("hello\n", r"x: must be nccl-tests' text or JSON, nvidia-smi topo -m"),
        ("{", r"x:1:2: is not valid JSON"),
        ("{}", r"x: has neither results"),
        ('{"measurements": []}', r"x: has no measurements"),
        ('{"measurements": [{"kind": "send"}]}', r"x: measurements\[0\]: must have kind, ranks, nbytes and seconds"),
        (swept(2, [1e-3] * len(SIZES)), r"do not describe the network between the 2 servers; add nvidia-smi"),
    ],
)
def test_files_with_missing_information(files, text, message):
    (files / "x").write_text(text)
    with pytest.raises(CalibrationError, match=message):
        read([Path("x")], Path("x.yaml"), None, Overrides())


def test_more_ranks_than_gpus(files):
    (files / "sweep.txt").write_text(swept(4, [1e-3] * len(SIZES)))
    with pytest.raises(CalibrationError, match="16 ranks were measured, but the scenario has 8"):
        read(
            [Path("sweep.txt")], Path("x.yaml"), Scenario.load("allreduce_dgx_a100", {"cluster.nodes": 1}), Overrides()
        )
    with pytest.raises(CalibrationError, match="16 ranks were measured, but 2 such servers have 8 GPUs"):
        read([Path("sweep.txt"), Path("topo.txt")], Path("x.yaml"), None, Overrides(nic="ib_hdr", nodes=2))


def test_kept_rows_are_read_again(files):
    rows = [{"kind": "send", "ranks": [0, 1], "nbytes": n, "seconds": 50e-6 + n / 1e9} for n in (8, 1024, 1 << 20)]
    (files / "rows.json").write_text(json.dumps({"version": 1, "backend": "gloo", "measurements": rows}))
    read([Path("rows.json")], Path("x.yaml"), None, Overrides())
    assert loaded("x.yaml").hop_latency["NET", "ring", "tcp"] == pytest.approx(50e-6, rel=0.01)


def test_rows_without_the_lines_above_them_are_told_what_is_missing(files):
    whole = swept(1, [1e-4] * len(SIZES))
    (files / "rows.txt").write_text("\n".join(whole.splitlines()[-len(SIZES) :]) + "\n")
    with pytest.raises(CalibrationError, match=r"rows.txt: has rows of numbers without the lines above them") as error:
        read([Path("rows.txt")], Path("x.yaml"), None, Overrides())
    assert "# size count type" in str(error.value) and "# Rank" in str(error.value)
    (files / "words.txt").write_text("nothing to see here\n12 sheep\n")
    with pytest.raises(CalibrationError, match=r"words.txt: must be nccl-tests' text or JSON"):
        read([Path("words.txt")], Path("x.yaml"), None, Overrides())


def test_a_table_without_a_header_is_told_that(files):
    (files / "rows.csv").write_text("a100,8,1024,31.5\n8,8,1024,31.5\n")
    with pytest.raises(CalibrationError, match="is no table that can be fitted"):
        fit_tables([Path("rows.csv")], Path("x.yaml"))
    (files / "rows.csv").write_text("8,1024,31.5\n8,2048,41.5\n")
    with pytest.raises(CalibrationError, match=r"rows.csv: has no header; its first row must name the columns"):
        fit_tables([Path("rows.csv")], Path("x.yaml"))


@pytest.fixture(scope="module")
def quiet(tmp_path_factory: pytest.TempPathFactory) -> tuple[str, dict[str, Any]]:
    """The report on a sweep of one server alone, without its topology, and what stands in the file x.yaml."""
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(tmp_path_factory.mktemp("quiet"))
        Path("sweep.txt").write_text(swept(1, truth(servers(1))))
        report = read([Path("sweep.txt")], Path("x.yaml"), None, Overrides())
        return report, document("x.yaml").data


@pytest.mark.exhaustive
def test_the_report_says_how_to_use_the_file_and_where_its_bandwidth_holds(files, quiet):
    alone = quiet[0].splitlines()
    assert "next: clustersim run SCENARIO --set network.transport=x.yaml" in alone
    preset = "or on the measured cluster, in a scenario: cluster: {preset: x.yaml} and network: {transport: x.yaml}"
    assert preset in alone
    assert alone[-1].startswith("cluster.bandwidth, ")
    assert alone[-1].endswith("a preset such as dgx_a100_80gb keeps the bandwidths of its own links")
    (files / "sweep.txt").write_text(swept(1, truth(servers(1))))
    beside = read([Path("sweep.txt"), Path("topo.txt")], Path("y.yaml"), None, Overrides(nic="ib_hdr")).splitlines()
    assert beside[-1] == preset.replace("x.yaml", "y.yaml")


@pytest.mark.exhaustive
def test_a_row_that_took_longer_than_one_of_more_bytes_is_left_out_and_told(files, quiet):
    seconds = truth(servers(1))
    seconds[1] = 1.4e-3
    (files / "busy.txt").write_text(swept(1, seconds))
    report = read([Path("busy.txt")], Path("busy.yaml"), None, Overrides())
    assert f"left out, since more bytes took less time: all_reduce of {SIZES[1]} B (1.4 ms)" in report
    busy = document("busy.yaml").data
    assert busy["provenance"]["rows"] == quiet[1]["provenance"]["rows"] - 1
    # the row of 1.4 ms would be predicted 99 % too short, or move those beside it, of 7 and 13 us
    assert busy["provenance"]["worst_error"] < 0.9
    assert busy["provenance"]["median_error"] < 0.05


@pytest.mark.parametrize(("spread", "sure"), [(0.1, True), (3.0, False)])
def test_the_report_says_if_the_machine_was_busy(spread, sure, files):
    rows = [{"kind": "send", "ranks": [0, 1], "nbytes": n, "seconds": 2e-5 + n / 1e9, "spread": spread} for n in SIZES]
    (files / "rows.json").write_text(json.dumps({"version": 1, "backend": "gloo", "measurements": rows}))
    report = read([Path("rows.json")], Path("x.yaml"), None, Overrides())
    told = "not sure: other work disturbed the ranks, and the median batch took 4.0 times as long as the shortest"
    assert (told in report) is not sure


def _report_of(rows: list[dict[str, Any]]) -> str:
    Path("rows.json").write_text(json.dumps({"version": 1, "backend": "gloo", "measurements": rows}))
    return read([Path("rows.json")], Path("x.yaml"), None, Overrides())


@pytest.mark.exhaustive
def test_the_report_says_which_sizes_the_fit_does_not_follow(files):
    sizes = [8 * 4**power for power in range(13)]
    # 10 GB/s in the cache, up to 256 KiB, and 500 MB/s beyond: no latency and bandwidth follow both
    slow = [max(0.0, n - 2**18) / 5e8 for n in sizes]
    rows = [
        {"kind": "send", "ranks": [0, 1], "nbytes": n, "seconds": 2e-5 + n / 1e10 + more, "spread": 0.1}
        for n, more in zip(sizes, slow, strict=True)
    ]
    report = _report_of(rows)
    assert "errors by size: up to 8 KiB median " in report
    assert "not sure 8 KiB to 1 MiB: one latency and one bandwidth do not follow all sizes" in report
    fast = [{**row, "seconds": 2e-5 + row["nbytes"] / 1e10} for row in rows]
    assert "not sure" not in _report_of(fast)


@pytest.mark.exhaustive
def test_rows_of_a_single_batch_are_counted(files):
    rows = [{"kind": "send", "ranks": [0, 1], "nbytes": n, "seconds": 2e-5 + n / 1e9, "spread": 0.1} for n in SIZES]
    told = "1 rows were measured in one batch only"
    assert told not in _report_of(rows)
    assert told in _report_of([*rows[:-1], {**rows[-1], "spread": 0.0}])
