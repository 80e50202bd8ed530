"""Documents merge and change, and every value keeps its own origin."""

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from clustersim.simulator.reading.document import Document, Position, merged, replaced
from clustersim.simulator.reading.errors import ScenarioError

LEAVES = st.integers() | st.sampled_from(["x", "y"]) | st.lists(st.integers(), max_size=2)
TREES = st.recursive(LEAVES, lambda inner: st.dictionaries(st.sampled_from("abc"), inner, max_size=3), max_leaves=8)
MAPPINGS = st.dictionaries(st.sampled_from("abc"), TREES, max_size=3)


def leaves(value: Any, path: tuple[str, ...] = ()) -> dict[tuple[str, ...], Any]:
    if isinstance(value, dict):
        return {p: leaf for key, inner in value.items() for p, leaf in leaves(inner, (*path, key)).items()}
    return {path: value}


def of(file: str, data: dict[str, Any]) -> Document:
    paths = {path[:end] for path in leaves(data) for end in range(len(path) + 1)}
    return Document(data, {path: Position(file) for path in paths})


@given(MAPPINGS, MAPPINGS)
def test_what_lies_over_stands_and_the_rest_shows_through(below: dict[str, Any], above: dict[str, Any]) -> None:
    made = merged(of("below", below), of("above", above))
    for path, leaf in leaves(above).items():
        if path:
            assert made.get(path) == leaf
            assert made.position(path).file == "above"
    for path, leaf in leaves(made.data).items():
        if path and made.position(path).file == "below":
            assert leaf == of("", below).get(path)


@given(MAPPINGS)
def test_merging_with_nothing_changes_nothing(data: dict[str, Any]) -> None:
    assert merged(Document({}), of("a", data)).data == data
    assert merged(of("a", data), Document({})).data == data


def test_a_preset_lies_below_its_section() -> None:
    preset = of("preset", {"nodes": 8, "node": {"nics": 1, "gpus": 4}})
    scenario = of("scenario", {"cluster": {"preset": "x", "node": {"nics": 2}}})
    made = merged(preset, scenario, ("cluster",))
    assert made.data == {"cluster": {"preset": "x", "nodes": 8, "node": {"nics": 2, "gpus": 4}}}
    origins = {key: made.position(("cluster", "node", key)).file for key in ("nics", "gpus")}
    assert origins == {"nics": "scenario", "gpus": "preset"}


def test_a_value_is_put_in_place_and_what_was_there_is_gone() -> None:
    option = Position(option="--set a.b=1", key=("a", "b"))
    made = replaced(of("file", {"a": {"b": {"c": 2}, "d": [3, 4]}}), ("a", "b"), 1, option)
    assert made.data == {"a": {"b": 1, "d": [3, 4]}}
    assert ("a", "b", "c") not in made.positions
    assert made.fault(("a", "b"), "is wrong") == "--set a.b=1: is wrong"
    assert replaced(made, ("a", "d", 1), 5, option).data["a"]["d"] == [3, 5]
    assert replaced(made, ("x", "y"), 5, option).data["x"] == {"y": 5}
    with pytest.raises(ScenarioError, match=r"^--set a\.b=1: a\.d\.7\.e: a\.d is a list of 2 and has no 7$"):
        replaced(made, ("a", "d", 7, "e"), 5, option)


def test_a_fault_without_a_file_names_its_key() -> None:
    assert Document({}).fault(("a", 0, "b"), "is wrong", "do right") == "a.0.b: is wrong\n     help: do right"
