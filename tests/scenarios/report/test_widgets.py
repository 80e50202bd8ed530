"""Widgets come from the schema and the catalogue; a change of one gives the scenario that its key describes."""

import json
from functools import cache

import pytest

from clustersim.scenarios.report.widgets import Widget, changed, faults, not_applying, plain, value_text, widgets
from clustersim.scenarios.scenario import Scenario
from clustersim.simulator.reading.errors import ScenarioError
from clustersim.simulator.reading.lookup import names


@cache
def by_key() -> dict[str, Widget]:
    return {one.key: one for one in widgets()}


def test_every_key_is_described_by_the_schema() -> None:
    assert [key for key, one in by_key().items() if not one.description] == []


def test_menus_are_the_names_of_the_catalogue_and_of_the_schema() -> None:
    assert set(by_key()["model.preset"].choices) == set(names("clustersim.workloads.models"))
    assert set(by_key()["cluster.node.accelerator"].choices) == set(names("clustersim.topologies.gpus"))
    assert by_key()["training.recompute"].choices == ("none", "selective", "full", "optimal")
    assert by_key()["parallelism.data.stage"].choices == ("0", "1", "2", "3")
    assert {"ddp", "zero", "fsdp"} <= set(by_key()["parallelism.data.method"].choices)


@pytest.mark.parametrize(
    "key", ["training.recompute", "parallelism.data.method", "parallelism.schedule", "model.preset"]
)
def test_every_choice_of_a_menu_is_known(key) -> None:
    """A choice may not suit the scenario, but it is never an unknown name."""
    data = plain(Scenario.load("gpt_6_7b_64a100"))
    for choice in by_key()[key].choices[:12]:
        made = changed(data, key, choice)
        try:
            Scenario.model_validate(made)
        except ScenarioError as error:
            assert f'not "{choice}"' not in str(error)
            assert "unknown" not in str(error)


def test_numbers_take_any_value_and_menus_do_not() -> None:
    assert by_key()["parallelism.tp"].free
    assert by_key()["parallelism.tp"].choices == ("auto",)
    assert by_key()["cluster.nodes"].free
    assert not by_key()["parallelism.data.stage"].free


def test_widgets_without_meaning_are_hidden() -> None:
    dense, sparse = (Scenario.load(name).specification for name in ("gpt_6_7b_64a100", "mixtral_8x7b_dgx_h100"))
    assert "parallelism.ep" in not_applying(dense)
    assert "parallelism.ep" not in not_applying(sparse)
    data = plain(Scenario.load("hello"))
    for method, hidden in (("ddp", {"stage", "servers"}), ("zero", {"servers"}), ("parameter_server", {"stage"})):
        made = Scenario.model_validate(changed(data, "parallelism.data.method", method)).specification
        found = {key.rpartition(".")[2] for key in not_applying(made) if key.startswith("parallelism.data.")}
        assert found - {"overlap"} == hidden
    collective = Scenario.load("gradient_rings").runs[0].specification
    assert "model.preset" in not_applying(collective)
    assert "collective.size" not in not_applying(collective)


def test_another_preset_begins_its_section_anew() -> None:
    data = {"cluster": {"preset": "zhores", "nodes": 4, "node": {"nics": 2}}, "model": {"preset": "gpt2", "dropout": 0}}
    made = changed(changed(data, "cluster.preset", "dgx_h100"), "model.preset", "gpt2_xl")
    assert made == {"cluster": {"preset": "dgx_h100", "nodes": 4}, "model": {"preset": "gpt2_xl"}}
    assert data["cluster"]["node"] == {"nics": 2}


def test_an_empty_text_removes_the_key() -> None:
    data = {"parallelism": {"tp": 2}, "software": {"preset": "megatron", "graphs": True}}
    assert changed(data, "parallelism.tp", " ") == {"software": data["software"]}
    assert value_text(data, "software") == "megatron"
    assert value_text(data, "parallelism.pp") == ""
    assert value_text(changed(data, "parallelism.sequence_parallel", "true"), "parallelism.sequence_parallel") == "true"


def test_values_are_those_of_yaml() -> None:
    made = changed({}, "training.recompute", json.dumps({"method": "uniform", "num_layers": 4}))
    assert made == {"training": {"recompute": {"method": "uniform", "num_layers": 4}}}
    assert changed({}, "parallelism.data.overlap", "false")["parallelism"]["data"] == {
        "method": "ddp",
        "overlap": False,
    }
    with pytest.raises(ScenarioError, match="training\\.micro_batch_size"):
        changed({}, "training.micro_batch_size", "[1")


@pytest.mark.parametrize(
    ("text", "key"),
    [
        ("parallelism.tp: tp = 7 does not divide the 32 heads", "parallelism.tp"),
        ("cluster.nodes=0: must be at least 1", "cluster.nodes"),
        ("software.graphs: must be true or false", "software"),
        ("parallelism.data: wrong", "parallelism.data.method"),
        ("optimizer.x: wrong", ""),
        ("nothing to run", ""),
    ],
)
def test_a_fault_belongs_to_the_widget_of_its_key(text, key) -> None:
    assert faults(ScenarioError(f"{text}\n     help: try 2"), by_key()) == [
        {"key": key, "text": f"{text}\nhelp: try 2"}
    ]


def test_several_faults_belong_to_several_widgets() -> None:
    error = ScenarioError("training.micro_batch_size: must be 1\nparallelism.tp: must be 2")
    assert [one["key"] for one in faults(error, by_key())] == ["training.micro_batch_size", "parallelism.tp"]
