"""The JSON schema that editors read: every key says what it is."""

from collections.abc import Iterator
from typing import Any, Literal

import pytest

from clustersim.scenarios.commands.schema import for_editors
from clustersim.scenarios.specification.specification import field_docstrings, json_schema, with_descriptions
from clustersim.simulator.reading.quantities import Section, Time
from clustersim.workloads.architectures.model_keys import ALIASES


def properties(schema: dict[str, Any]) -> Iterator[tuple[str, str, dict[str, Any]]]:
    """(section, key, schema) of every key; the section of the whole file is empty."""
    for name, section in {"": schema, **schema["$defs"]}.items():
        for key, value in section.get("properties", {}).items():
            yield name, key, value


@pytest.mark.parametrize("schema", [json_schema(), for_editors()], ids=["reference", "editors"])
def test_every_key_has_a_description(schema: dict[str, Any]) -> None:
    every = list(properties(schema))
    assert len(every) > 190
    assert [(name, key) for name, key, value in every if len(value.get("description", "").split()) < 2] == []


def test_a_default_that_is_a_word_or_a_number_is_told() -> None:
    for _, _, value in properties(json_schema()):
        default = value.get("default")
        if isinstance(default, str | int | float) and default != "":
            shown = str(default).lower() if isinstance(default, bool) else str(default)
            assert value["description"].endswith(f"; default: {shown}")


class Base(Section):
    """A section."""

    length: Time
    """How long it
    takes."""


class Derived(Base):
    """A section with more keys."""

    shape: Literal["round", "square"] = "round"
    """How it looks."""
    bare: int = 3


def test_descriptions_are_the_docstrings_of_fields_those_of_bases_included() -> None:
    assert field_docstrings(Derived) == {"length": "How long it takes.", "shape": "How it looks."}
    made = with_descriptions(Derived.model_json_schema(), Derived)["properties"]
    assert made["length"]["description"] == 'How long it takes; a time with its unit, e.g. "3 us" or "1.5 ms"'
    assert made["shape"]["description"] == "How it looks; default: round"
    assert "description" not in made["bare"]


def test_editors_know_the_keys_of_hugging_face() -> None:
    section = for_editors()["$defs"]["TransformerSpecification"]["properties"]
    assert section.keys() >= ALIASES.keys()
    assert section["num_hidden_layers"]["type"] == "integer"


def test_names_of_hugging_face_are_completed_for_activations() -> None:
    section = for_editors()["$defs"]["TransformerSpecification"]["properties"]
    for key in ("activation", "hidden_act", "activation_function"):
        assert section[key]["enum"] == section["activation"]["enum"]
        assert {"gelu", "swiglu", "geglu", "silu", "gelu_pytorch_tanh", "relu2"} <= set(section[key]["enum"])
