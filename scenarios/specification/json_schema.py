"""The JSON schema of a scenario, with a description of every key, for editors and the reference."""

from __future__ import annotations

from typing import Any

from scenarios.specification.specification import Specification
from simulator.document.descriptions import with_descriptions
from workloads.huggingface.aliases import ACTIVATIONS, ALIASES


def json_schema() -> dict[str, Any]:
    """Return the JSON schema of `Specification`; keys that presets may give are required as they are there."""
    return with_descriptions(Specification.model_json_schema(), Specification)


def with_aliases(schema: dict[str, Any]) -> dict[str, Any]:
    """Return *schema* with the keys and activations of Hugging Face in the section of transformers."""
    section = schema["$defs"]["TransformerSpecification"]
    activation = section["properties"]["activation"]
    named = {**activation, "enum": [*activation["enum"], *ACTIVATIONS]}
    properties = {**section["properties"], "activation": named}
    added = {
        alias: {**properties[key], "description": f"Hugging Face's name of {key}."} for alias, key in ALIASES.items()
    }
    changed = {**section, "properties": {**properties, **added}}
    return {**schema, "$defs": {**schema["$defs"], "TransformerSpecification": changed}}
