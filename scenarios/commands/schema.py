"""`clustersim schema` prints the JSON schema of a scenario, for editors."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

from clustersim.scenarios.commands.application import command
from clustersim.simulator.reading.files import write_text

WHOLE = ("Expectation", "Straggler", "Table")
"""Sections that neither presets nor rows of a table complete: the file must have their required keys."""


@command()
def schema(
    output: Annotated[Path | None, typer.Option("-o", metavar="FILE", help="Write it to a file.")] = None,
) -> None:
    """Print the JSON schema of a scenario, for editors."""
    import json

    text = json.dumps(for_editors(), indent=2)
    if output is None:
        print(text)
    else:
        write_text(output, f"{text}\n")
        print(f"wrote {output}")


def for_editors() -> dict[str, Any]:
    """Return the JSON schema that is printed: of a file before presets are merged, with Hugging Face's keys."""
    from clustersim.scenarios.specification.specification import json_schema, with_aliases

    return for_files(with_aliases(json_schema()))


def for_files(schema: dict[str, Any]) -> dict[str, Any]:
    """Return *schema* for a file before presets are merged into it: sections may leave keys to the preset."""
    for name, section in schema["$defs"].items():
        if name not in WHOLE:
            section.pop("required", None)
    several: dict[str, Any] = _several(schema)
    return several


def _several(schema: Any) -> Any:
    # with keys left out, a section may meet several members of a union
    if isinstance(schema, dict):
        kept = {key: _several(value) for key, value in schema.items() if key != "discriminator"}
        return {"anyOf" if key == "oneOf" else key: value for key, value in kept.items()}
    return [_several(item) for item in schema] if isinstance(schema, list) else schema
