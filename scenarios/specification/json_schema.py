"""The JSON schema of a scenario, with a description of every key, for editors and the reference.

They are read from the source only when a schema is asked for, so that commands start without them.
"""

from __future__ import annotations

import ast
import inspect
import textwrap
from collections.abc import Iterator
from functools import lru_cache
from itertools import pairwise
from typing import Any

from clustersim.scenarios.specification.specification import Specification
from clustersim.simulator.reading.quantities import Section
from clustersim.workloads.architectures.model_keys import ACTIVATIONS, ALIASES

JsonSchema = dict[str, Any]


def with_descriptions(schema: JsonSchema, model: type[Section]) -> JsonSchema:
    """Return *schema*, the JSON schema of *model*, with a description of every property that its class documents."""
    classes = {cls.__name__: cls for cls in _subclasses(Section)}
    sections = {name: _described(one, classes.get(name)) for name, one in schema.get("$defs", {}).items()}
    return _described({**schema, **({"$defs": sections} if sections else {})}, model)


def _subclasses(cls: type[Section]) -> Iterator[type[Section]]:
    for one in cls.__subclasses__():
        yield one
        yield from _subclasses(one)


def _described(section: JsonSchema, cls: type[Section] | None) -> JsonSchema:
    """Return *section* with the descriptions of its properties; a default and the form of a quantity are added."""
    if cls is None or "properties" not in section:
        return section
    own = field_docstrings(cls)
    # some keys are words of Python, for example from
    texts = own | {info.alias: own[name] for name, info in cls.model_fields.items() if info.alias and name in own}
    properties = {key: _property(value, texts.get(key, "")) for key, value in section["properties"].items()}
    return {**section, "properties": properties}


def _property(value: JsonSchema, text: str) -> JsonSchema:
    if not text:
        return value
    default = value.get("default")
    shown = str(default).lower() if isinstance(default, bool) else str(default)
    parts = [text.rstrip("."), value.get("description", "")]
    if isinstance(default, str | int | float) and default != "":
        parts.append(f"default: {shown}")
    return {**value, "description": "; ".join(part for part in parts if part)}


@lru_cache(maxsize=256)
def field_docstrings(cls: type[Section]) -> dict[str, str]:
    """Return the docstrings below the fields of *cls* and of its bases, each in one line, by name of the field."""
    found: dict[str, str] = {}
    for base in reversed(cls.__mro__):
        if issubclass(base, Section) and base is not Section:
            found |= _own(base)
    return found


def _own(cls: type[Section]) -> dict[str, str]:
    try:
        source = inspect.getsource(cls)
    except (OSError, TypeError):  # a class that was made by code
        return {}
    (made,) = ast.parse(textwrap.dedent(source)).body
    body = made.body if isinstance(made, ast.ClassDef) else []
    return {
        field.target.id: " ".join(text.value.value.split())
        for field, text in pairwise(body)
        if isinstance(field, ast.AnnAssign)
        and isinstance(field.target, ast.Name)
        and isinstance(text, ast.Expr)
        and isinstance(text.value, ast.Constant)
        and isinstance(text.value.value, str)
    }


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
