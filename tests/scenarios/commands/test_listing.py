"""`clustersim list` names what scenarios may use, and scenarios that run."""

from pathlib import Path

import pytest

from clustersim.scenarios.commands import listing
from clustersim.scenarios.commands.command_line import run
from clustersim.scenarios.scenario import Scenario
from clustersim.scenarios.specification.loading import located
from clustersim.simulator.reading.lookup import names
from clustersim.simulator.reading.yaml_and_json import read
from clustersim.topologies.catalogue import LINKS, link_data
from clustersim.workloads.software_stack import aliases


def listed(capsys: pytest.CaptureFixture[str], *kind: str) -> list[str]:
    assert run(["list", *kind]) == 0
    return capsys.readouterr().out.splitlines()


@pytest.mark.exhaustive
def test_links_are_listed_with_bandwidth_and_latency(capsys: pytest.CaptureFixture[str]) -> None:
    lines = listed(capsys, "links")
    assert [line.split()[0] for line in lines] == names(LINKS)
    assert next(line.split() for line in lines if line.startswith("ib_hdr")) == ["ib_hdr", "25", "GB/s", "365", "ns"]
    assert link_data("ib_hdr").bandwidth == 25e9
    everything = listed(capsys)
    assert everything[everything.index("links:") + 1] == f"  {lines[0]}"


def test_only_scenarios_are_listed_as_scenarios(capsys: pytest.CaptureFixture[str]) -> None:
    listed_names = [line.split()[0] for line in listed(capsys, "scenarios")]
    assert "hello" in listed_names
    assert not {"a100", "v100"} & set(listed_names)
    for name in listed_names:
        data = read(located(name)).data
        assert data["version"] == 1
        assert (
            {"cluster", "collective"} <= data.keys()
            or {"cluster", "model", "training"} <= data.keys()
            or {"cluster", "jobs"} <= data.keys()
            or {"cluster", "workload"} <= data.keys()
            or "table" in data
        )
    assert Scenario.load(listed_names[0]).name == listed_names[0]


def test_software_stacks_are_listed(capsys: pytest.CaptureFixture[str]) -> None:
    lines = listed(capsys, "software")
    assert len(names("clustersim.workloads.software")) <= 12
    end = lines.index("")
    assert [line.split()[0] for line in lines[:end]] == names("clustersim.workloads.software")
    assert [line.split()[0] for line in lines[end + 2 :]] == sorted(aliases())
    assert "ddp Eager PyTorch with DistributedDataParallel" in [" ".join(line.split()) for line in lines]


@pytest.mark.exhaustive
def test_kept_lists_are_those_of_the_files() -> None:
    told = 'write them anew: python -c "from clustersim.scenarios.commands.listing import keep; keep()"'
    assert listing.KEPT.read_text(encoding="utf-8") == listing.text_to_keep(), told


def test_a_list_of_changed_files_is_made_from_them(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "mylinks").mkdir()
    (tmp_path / "mylinks" / "one.yaml").write_text("bandwidth: 1 GB/s\nlatency: 1 us\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.setitem(listing.PACKAGES, "links", "mylinks")
    monkeypatch.setitem(listing.ROWS, "links", (lambda name: [name, "here"], "ll"))
    assert listed(capsys, "links") == ["one  here"]
    monkeypatch.setattr(listing, "KEPT", tmp_path / "none.json")
    listing._all_kept.cache_clear()
    assert listed(capsys, "fabrics") == names("clustersim.topologies.fabrics")
    listing._all_kept.cache_clear()
