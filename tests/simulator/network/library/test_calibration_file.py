"""A calibration file is a library with some parameters replaced; an error message names the place of a fault."""

import dataclasses

import pytest
from hypothesis import given
from hypothesis import strategies as st

from clustersim.simulator.network.library.calibration_file import LIBRARIES, loaded, transport
from clustersim.simulator.network.library.gloo import gloo
from clustersim.simulator.network.library.nccl import nccl
from clustersim.simulator.network.library.transport_parameters import (
    FILE_KEYS,
    IDENTITY,
    difference,
    hints,
    overridden,
    section,
)
from clustersim.simulator.network.transport import Transport
from clustersim.simulator.reading.errors import ScenarioError
from clustersim.simulator.reading.yaml_and_json import yaml_text

FULL = Transport(
    "full",
    algorithms={"all_reduce": ("ring", "tree")},
    protocols=("LL", "Simple"),
    messages=("Simple",),
    base_latency={("ring", "LL"): 6.6e-6},
    hop_latency={("NET", "ring", "LL"): 2.7e-6, ("PCI", "tree", "Simple"): 1e-3},
    intra_node_penalty={"LL": 1.8},
    large_message_factor={("ring", "Simple"): 1.9},
    large_message_bytes=4096.0,
    efficiency={"NVLINK": 0.88, "ib_hdr": 0.93},
    attainable={"pcie4": 24e9},
    limits={"any": 235e9},
    shares={("ring", "LL", False): 0.5, ("ring", "LL", True): 0.25},
    ceilings={("any", "LL", "amd 2"): 22.5e9},
    corrections={("tree", "LL"): (1.0, 0.9, 0.5)},
    nvlink_only=frozenset({"LL128", "LL"}),
    buffer_bytes=4e6,
    reorders=True,
    tagged=False,
)


def fields(one):
    return {field.name: getattr(one, field.name) for field in dataclasses.fields(one) if field.name not in IDENTITY}


@pytest.mark.parametrize("meant", [FULL, gloo(), nccl("2.5"), nccl("2.30")])
def test_a_file_with_the_differences_restores_the_transport(meant):
    """No entry is lost on the way through text and units."""
    again = overridden(Transport("bare"), section().model_validate(difference(Transport("bare"), meant)))
    for name, value in fields(meant).items():
        found = getattr(again, name)
        if isinstance(value, dict) and all(isinstance(one, float) for one in value.values()):
            assert found == pytest.approx(value)
        else:
            assert found == value, name


def test_every_parameter_of_a_transport_has_a_form():
    assert set(section().model_fields) == set(hints())
    assert set(hints()) == {FILE_KEYS.get(name, name) for name in fields(FULL)}


@given(seconds=st.floats(1e-9, 10.0), share=st.floats(1e-3, 1.5))
def test_values_survive_the_file(tmp_path_factory, seconds, share):
    path = tmp_path_factory.mktemp("files") / "x.yaml"
    hop = {"NET": {"ring": {"tcp": f"{seconds!r} s"}}}
    parts = {"hop_latency": hop, "efficiency": {"NET": share}}
    path.write_text(yaml_text({"version": 1, "library": "gloo", "transport": parts}))
    found = loaded(path)
    assert (found.hop_latency["NET", "ring", "tcp"], found.efficiency["NET"]) == (seconds, share)
    assert found.hop_latency["PCI", "ring", "tcp"] == gloo().hop_latency["PCI", "ring", "tcp"]


def test_a_library_and_its_version(tmp_path):
    path = tmp_path / "x.yaml"
    path.write_text("version: 1\nlibrary: nccl\nlibrary_version: '2.5'\ntransport: {strained: {LL: 3.0}}\n")
    assert (loaded(path).intra_node_penalty["LL"], loaded(path).version) == (3.0, "2.5")
    assert transport(str(path)).version == "2.5"
    assert [transport(name).name for name in LIBRARIES] == list(LIBRARIES)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("version: 2\ntransport: {}", r"x\.yaml:1:10: version: must be 1, not 2"),
        ("version: 1\nlibrary: gloo", r"x\.yaml:1:1: transport: is required"),
        ("version: 1\nlibrary: glue\ntransport: {}", r"x\.yaml:2:10: library: must be nccl, gloo, ici or ideal"),
        ("version: 1\nlibrary: x.yaml\ntransport: {}", r"x\.yaml:2:10: library: must be the name of a library"),
        (
            "version: 1\nlibrary: gloo\nlibrary_version: '2'\ntransport: {}",
            r"x\.yaml:3:18: library_version: gloo has no versions",
        ),
        (
            "version: 1\nlibrary: nccl\nlibrary_version: '1.0'\ntransport: {}",
            r'x\.yaml:3:18: library_version: NCCL has no tables for version "1.0"',
        ),
        ("version: 1\ntransport:\n  latency: {}", r"x\.yaml:3:3: transport\.latency: unknown key"),
        (
            "version: 1\ntransport:\n  hop_latency: {NET: {ring: {tcp: 3}}}",
            r'x\.yaml:3:35: transport\.hop_latency\.NET\.ring\.tcp: needs a unit, e\.g\. "3 us"',
        ),
        (
            "version: 1\ntransport:\n  hop_latency: {WAN: {ring: {tcp: 3 us}}}",
            r"x\.yaml:3:22: transport\.hop_latency\.WAN: must be NVLINK, PCI or NET",
        ),
        (
            "version: 1\ntransport:\n  hop_latency: {NET: {ring: 3 us}}",
            r"x\.yaml:3:29: transport\.hop_latency\.NET\.ring: must be a mapping",
        ),
        (
            "version: 1\ntransport:\n  shares: {ring: {tcp: {far: 0.5}}}",
            r"x\.yaml:3:30: transport\.shares\.ring\.tcp\.far: must be inside or across",
        ),
        (
            "version: 1\ntransport:\n  efficiency: {NET: 0}",
            r"x\.yaml:3:21: transport\.efficiency\.NET: must be above 0, not 0",
        ),
        ("version: 1\ntransport:\n  tagged:", r"x\.yaml:3:3: transport\.tagged: has no value"),
        (
            "version: 1\ntransport:\n  ceilings: {any: {tcp: {any: 3 us}}}",
            r'x\.yaml:3:31: transport\.ceilings\.any\.tcp\.any: "us" is not a unit of bandwidth',
        ),
        (
            "version: 1\ntransport: {algorithms: {all_add: [ring]}}",
            r"transport\.algorithms\.all_add: must be all_reduce,",
        ),
    ],
)
def test_a_fault_in_a_file_is_reported_at_its_place(tmp_path, monkeypatch, text, message):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "x.yaml").write_text(text + "\n")
    with pytest.raises(ScenarioError, match=message):
        loaded("x.yaml")
