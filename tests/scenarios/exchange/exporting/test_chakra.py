"""Chakra traces, decoded here as ASTRA-sim's reader does (mlcommons/chakra: et_def.proto, src/feeder)."""

import json

import pytest

from clustersim.scenarios import Scenario
from clustersim.scenarios.exchange.export import write
from clustersim.scenarios.exchange.exporting.chakra import chakra

TYPES = {
    "is_cpu_op": 27, "num_ops": 9, "tensor_size": 13, "comm_type": 9, "comm_size": 9, "comm_src": 7, "comm_dst": 7,
    "comm_tag": 7, "pg_name": 29,
}  # fmt: skip
"""The field of AttributeProto from which et_feeder_node.cpp takes each attribute: bool_val, int64_val, ..."""


BATCH = "training.global_batch_size=16"


def varint(data, place):
    value, shift = 0, 0
    while True:
        byte = data[place]
        value, shift, place = value | (byte & 127) << shift, shift + 7, place + 1
        if byte < 128:
            return value, place


def fields(data):
    """(number, value) of each field of a message: numbers, or the bytes of texts and messages."""
    place, found = 0, []
    while place < len(data):
        key, place = varint(data, place)
        value, place = varint(data, place)
        if key & 7 == 2:
            value, place = data[place : place + value], place + value
        else:
            assert key & 7 == 0
        found.append((key >> 3, value))
    return found


def nodes(content):
    """The nodes of a file: id, name, type, dependencies, microseconds and attributes."""
    place, messages = 0, []
    while place < len(content):
        size, place = varint(content, place)
        messages.append(content[place : place + size])
        place += size
    assert fields(messages[0]) == [(1, b"0.0.4")]
    found = []
    for message in messages[1:]:
        node = {"id": 0, "deps": [], "attributes": {}, "micros": 0}
        for number, value in fields(message):
            if number == 5:
                node["deps"].append(value)
            elif number == 10:
                (_, name), (field, content_of) = fields(value)
                assert TYPES[name.decode()] == field
                node["attributes"][name.decode()] = content_of
            else:
                node[{1: "id", 2: "name", 3: "type", 7: "micros"}[number]] = value
        found.append(node)
    return found


@pytest.fixture(scope="module")
def exported(tmp_path_factory):
    scenario = Scenario.load(
        "gpt_6_7b_64a100",
        options=["cluster.nodes=1", *(f"parallelism.{axis}=2" for axis in ("dp", "tp", "pp")), BATCH],
    )
    folder = tmp_path_factory.mktemp("chakra")
    write(chakra(scenario), folder)
    ranks = {rank: nodes((folder / f"{scenario.name}.{rank}.et").read_bytes()) for rank in range(8)}
    return scenario.run().timeline, ranks, json.loads((folder / "comm_group.json").read_text())


def test_dependencies_name_earlier_nodes_only(exported):
    for own in exported[1].values():
        ids = set()
        for node in own:
            assert set(node["deps"]) <= ids
            ids.add(node["id"])


def test_computation_has_the_duration_of_the_simulation(exported):
    timeline, ranks, _ = exported
    for rank, own in ranks.items():
        computes = [span for span in timeline.spans(rank) if type(span.op).__name__ == "Compute"]
        micros = [node["micros"] for node in own if node["type"] == 4 and not node["attributes"]["is_cpu_op"]]
        assert sum(micros) == pytest.approx(sum(span.end - span.begin for span in computes) * 1e6, rel=0.01)


def test_every_message_has_its_partner(exported):
    ends = ("comm_src", "comm_dst", "comm_tag", "comm_size")
    everything = [node for own in exported[1].values() for node in own]
    sent, received = (
        sorted(tuple(node["attributes"][name] for name in ends) for node in everything if node["type"] == kind)
        for kind in (5, 6)
    )
    assert sent
    assert sent == received
    assert len(set(sent)) == len(sent)


def test_members_of_a_group_issue_equal_collectives_in_one_order(exported):
    _, ranks, groups = exported
    assert "0" not in groups
    for name, members in groups.items():
        rows = [
            [
                (n["attributes"]["comm_type"], n["attributes"]["comm_size"])
                for n in ranks[rank]
                if n["attributes"].get("pg_name") == name.encode()
            ]
            for rank in members
        ]
        assert all(row == rows[0] for row in rows)


def test_an_all_gather_counts_the_bytes_of_one_rank(tmp_path):
    data = {
        "version": 1,
        "cluster": {"preset": "uniform", "gpus": 4, "bandwidth": "10 GB/s", "latency": "1 us"},
        "collective": {"kind": "all_gather", "size": "4 MB"},
        "network": {"transport": "ideal"},
    }
    write(chakra(Scenario.model_validate(data)), tmp_path)
    (found,) = {n["attributes"]["comm_size"] for n in nodes((tmp_path / "scenario.0.et").read_bytes())}
    assert found == 1_000_000
