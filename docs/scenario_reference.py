"""Write the reference of a scenario's keys as Markdown, from the JSON schema of `Specification`.

One table per section, sections in the order in which keys name them. `docs/conf.py` calls `page` at build time.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping
from typing import Any

from clustersim.scenarios.specification.specification import json_schema

Schema = Mapping[str, Any]

TITLE = (
    "# Scenario reference\n\nEvery key of a scenario, generated from the JSON schema that `clustersim schema` prints."
)
INTRODUCTION = """\
The `preset` of a section, or each row of a `table`, may give required keys; `clustersim list` prints the presets.
A quantity needs its unit: `25 GB/s` is bytes, `200 Gb/s` is bits. `--set key.path=value` sets a key by its path.

A name with a dot is an import path, and its code runs, under `check` too; keys that name a file open it. See
[Security](../security.md) before you run the scenario of somebody else."""
NAMES = {
    "string": "text",
    "integer": "whole number",
    "number": "number",
    "boolean": "true or false",
    "object": "mapping",
}
"""What a reader calls the types of JSON schema."""


def page() -> str:
    """Return the reference as one MyST Markdown page."""
    schema = json_schema()
    sections = schema["$defs"]
    parts = [TITLE, INTRODUCTION, "## The whole file", _described(schema), _table(schema)]
    for name, paths in _places(schema).items():
        places = ", ".join(f"`{path}`" for path in paths)
        parts += [f"({_anchor(name)})=\n## {_title(name, sections[name])}", f"Key: {places}."]
        parts += [_described(sections[name]), _table(sections[name])]
    return "\n\n".join(part for part in parts if part) + "\n"


def _places(schema: Schema) -> dict[str, list[str]]:
    """Return the dotted paths at which each section may stand, sections in order of first use."""
    found: dict[str, list[str]] = {}

    def follow(section: Schema, path: str) -> None:
        for key, value in section.get("properties", {}).items():
            for name in dict.fromkeys(_references(value)):
                below = f"{path}{key}"
                first = name not in found
                if below not in found.setdefault(name, []):
                    found[name].append(below)
                if first:
                    follow(schema["$defs"][name], f"{below}.")

    follow(schema, "")
    return found


def _references(schema: Any) -> Iterator[str]:
    """Yield the names of the sections that *schema* refers to, in order."""
    if isinstance(schema, dict):
        if "$ref" in schema:
            yield schema["$ref"].rpartition("/")[2]
        # a discriminator repeats the references of its union
        yield from (name for key, value in schema.items() if key != "discriminator" for name in _references(value))
    elif isinstance(schema, list):
        yield from (name for item in schema for name in _references(item))


def _title(name: str, section: Schema) -> str:
    """Return the section's name as words, with the key that selects it, as in "Zero (`method: zero`)"."""
    words = _words(name)
    chosen = [f"`{key}: {value['const']}`" for key, value in section["properties"].items() if "const" in value]
    return f"{words} ({', '.join(chosen)})" if chosen else words


def _words(name: str) -> str:
    bare = name.removesuffix("Specification").removesuffix("Section").removesuffix("Entry")
    return re.sub(r"(?<=[a-z])(?=[A-Z])", " ", bare).capitalize()


def _anchor(name: str) -> str:
    return f"section-{name.lower()}"


def _described(schema: Schema) -> str:
    return str(schema.get("description", "")).replace("``", "`")


def _table(section: Schema) -> str:
    """Return the keys of *section* as a table: key, value, default, meaning."""
    required = section.get("required", ())
    rows = ["| key | value | default | meaning |", "|---|---|---|---|"]
    for key, value in section.get("properties", {}).items():
        default = "required" if key in required else _default(value)
        rows.append(f"| `{key}` | {_kind(value)} | {default} | {_meaning(value)} |")
    if section.get("additionalProperties") is True:
        rows.append("| any other | a parameter of the chosen `kind` | | |")
    return "\n".join(rows)


def _meaning(schema: Schema) -> str:
    """Return the description of a key without what the other columns say: its default, and the form of a quantity."""
    parts = str(schema.get("description", "")).split("; ")
    told = [part for part in parts if not part.startswith("default: ") and " with its unit" not in part]
    return "; ".join(told).removesuffix(". Required").replace("|", "\\|")


def _default(schema: Schema) -> str:
    value = schema.get("default")
    if value is None or value == "" or isinstance(value, dict):
        return "optional"
    return f"`{value if isinstance(value, str) else json.dumps(value)}`"


def _kind(schema: Schema) -> str:
    """Return what a value may be, in words."""
    if "$ref" in schema:
        name = schema["$ref"].rpartition("/")[2]
        return f"[{_words(name)}](#{_anchor(name)})"
    for union in ("anyOf", "oneOf"):
        if union in schema:
            members = (_kind(one) for one in schema[union] if one.get("type") != "null")
            return " or ".join(dict.fromkeys(members))
    if "const" in schema or "enum" in schema:
        return ", ".join(f"`{value}`" for value in schema.get("enum", [schema.get("const")]))
    if schema.get("type") == "array":
        return _list(schema)
    if isinstance(schema.get("additionalProperties"), dict):
        return f"mapping to {_kind(schema['additionalProperties'])}"
    return _scalar(schema)


def _list(schema: Schema) -> str:
    if "prefixItems" in schema:
        return f"[{', '.join(_kind(item) for item in schema['prefixItems'])}]"
    return f"list of {_kind(schema['items'])}" if schema.get("items") else "list"


def _scalar(schema: Schema) -> str:
    if " with its unit" in schema.get("description", ""):  # a size with its unit, e.g. "40 MB" or "25 MiB"
        before, _, after = schema["description"].partition(" with its unit")
        what = before.rpartition("; ")[2].removeprefix("a ")
        return f"{what} such as " + ", ".join(f"`{one}`" for one in re.findall(r'"(.+?)"', after))
    if "pattern" in schema:  # of a count with a suffix
        return "text such as `300B`"
    kinds = schema.get("type", "string")
    name = " or ".join(NAMES[kind] for kind in ([kinds] if isinstance(kinds, str) else kinds))
    bounds = {"minimum": "at least", "exclusiveMinimum": "above", "maximum": "at most", "exclusiveMaximum": "below"}
    said = [f"{words} {schema[key]}" for key, words in bounds.items() if key in schema]
    examples = [f"`{one}`" for one in schema.get("examples", ())]
    return ", ".join([name, *said]) + (f" such as {', '.join(examples)}" if examples else "")
