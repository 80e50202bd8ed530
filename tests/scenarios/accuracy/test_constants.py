"""The table of constants that measurements inform, held against the files of the catalogue and the published runs."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from clustersim.scenarios.accuracy.left_out import refits
from clustersim.scenarios.accuracy.provenance import (
    CONSTANTS_FILE,
    NCCL,
    ROOT,
    constants,
    fitted_to,
    informed_by_hand,
    source_of,
    source_of_table,
    sources,
    value_at,
)
from clustersim.scenarios.accuracy.published_runs import PUBLICATIONS
from clustersim.scenarios.commands.command_line import run
from clustersim.scenarios.specification.loading import SHIPPED, shipped
from clustersim.simulator.reading.lookup import names
from clustersim.simulator.reading.yaml_and_json import read
from clustersim.workloads.software_stack import aliases, described

FITS = read(CONSTANTS_FILE).data["fits"]
PLACES = {one.at for one in constants()}

DATA_SET = re.compile(
    r"(?<!not )\bfitted|(?<!not )\bmeasured|scenarios/published|stas00/|MooreThreads|zhuzilin|nccl-tests|\bruns\b"
    r"|AxoNN \("
)
"""What the source of a constant says if measurements inform it."""

NO_CONSTANT = (
    "efficiency_of",
    "peak_flops",
    "memory",
    "memory_bandwidth",
    "power",
    "links",
    "bus",
    "sms",
    "generation",
)
"""Facts of data sheets, and references to another GPU, whose constants count there."""


def catalogued() -> Iterator[tuple[str, str]]:
    """Yield (place, text of its source) of each constant of GPUs and links."""
    for folder in ("gpus", "links"):
        for path in sorted((SHIPPED.parent / "topologies" / folder).glob("*.yaml")):
            for key, text in read(path).data.get("sources", {}).items():
                if key not in NO_CONSTANT:
                    yield f"clustersim.topologies.{folder}.{path.stem}:{key}", text


def stacks() -> Iterator[tuple[str, str]]:
    """Yield (place, text of its source) of each key of a software stack that its source tells apart."""
    for name in [*names("clustersim.workloads.software"), *aliases()]:
        data = described(name).data
        for part in data["source"].split(";"):
            keys, colon, text = part.strip().partition(":")
            for key in keys.split(",") if colon else ():
                if key.strip() in data:
                    yield f"clustersim.workloads.software.{name}:{key.strip()}", text


def test_every_constant_whose_source_names_a_data_set_is_in_the_table() -> None:
    informed = [place for place, text in catalogued() if DATA_SET.search(text)]
    informed += [place for place, text in stacks() if re.search(r"(?<!is )(?<!are )(?<!no )fitted to", text)]
    assert len(informed) > 50
    assert [place for place in informed if place not in PLACES] == []


def test_every_constant_stands_where_the_table_says() -> None:
    for one in constants():
        assert value_at(one.at) == one.value, one.at
        assert one.sources, one.at
        assert len([other for other in constants() if other.at == one.at]) == 1, one.at


@pytest.mark.parametrize("fit", ["a100", "v100"])
def test_the_values_of_a_fit_are_those_of_the_catalogue(fit: str) -> None:
    for name, entry in read(ROOT / FITS[fit]["file"]).data["parameters"].items():
        for place in entry["lands"]:
            assert _number(value_at(place)) == pytest.approx(entry["value"]), name


def _number(value: object) -> float:
    """Return a number, or the seconds of a text such as ``20 ms``."""
    if isinstance(value, int | float):
        return float(value)
    number, unit = str(value).split()
    return float(number) * {"s": 1.0, "ms": 1e-3, "us": 1e-6, "ns": 1e-9}[unit]


def test_the_sources_of_a_fit_are_those_of_its_data() -> None:
    for fit, entry in FITS.items():
        data = read(ROOT / entry["file"]).data["provenance"]["data"]
        assert set(entry["sources"]) == {source_of_table(Path(file).stem) for file in data}, fit
    assert {source_of(one.scenario) for one in PUBLICATIONS.values()} <= fitted_to()
    assert NCCL.rpartition(".")[2] == Path(FITS["nccl"]["file"]).stem


def test_every_published_scenario_is_of_one_source() -> None:
    named = [scenario for one in sources().values() for scenario in one.scenarios]
    assert sorted(named) == shipped("published")
    tables = [stem for one in sources().values() for stem in one.tables]
    assert len(tables) == len(set(tables))


def test_a_stranger_informs_nothing() -> None:
    strangers = {name for name, one in sources().items() if one.stranger}
    by_gpu = {name for name, one in refits().items() if one.without_gpu}  # judged by fits that lack the GPU of a run
    assert len(strangers) >= 7
    assert len(strangers | by_gpu) >= 8
    assert not strangers & {*fitted_to(), *informed_by_hand()}


def test_expectations_that_were_fitted_to_are_of_sources_that_inform_constants() -> None:
    for name in shipped("published"):
        if "fitted: true" in (SHIPPED / "published" / f"{name}.yaml").read_text():
            assert source_of(name) in {*fitted_to(), *informed_by_hand()}, name


def test_the_command_prints_the_table(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["show", "constants"]) == 0
    out = capsys.readouterr().out
    assert out.startswith(f"{len(constants())} constants are informed by ")
    assert re.search(r"clustersim.topologies.gpus.a100_80gb:matmul_efficiency +0\.\d+ +\d+% +fit a100", out)
    assert re.search(
        r"clustersim.workloads.software.nanotron:keep_gathered +True +by hand +ultrascale_playbook_runs", out
    )
    assert run(["show", "constants", "--json"]) == 0
    told = json.loads(capsys.readouterr().out)
    assert {one["constant"] for one in told} == PLACES
    # with a view it is the name of a scenario, as before
    assert run(["show", "constants", "groups"]) == 2
    assert capsys.readouterr().err.startswith('unknown scenario "constants"')
