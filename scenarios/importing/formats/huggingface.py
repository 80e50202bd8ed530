"""Hugging Face's ``config.json``: the sizes of a model, by its family."""

from __future__ import annotations

from scenarios.importing.facts import Facts
from scenarios.importing.source import Source
from workloads.huggingface.aliases import is_config
from workloads.huggingface.config import keys_read, model_section


def recognises(source: Source) -> bool:
    """Return whether *source* is a ``config.json``."""
    return not source.script and is_config(source.document)


def read(source: Source, facts: Facts) -> None:
    """Read the model. Raises `ScenarioError` for a family, or a value, that no model of clustersim has."""
    section = model_section(source.document)
    source.taken |= {(key,) for key in keys_read(source.document)}
    source.ignore("huggingface")
    # a feature that is off
    source.without_effect |= {(key,) for key, value in source.data.items() if value is None or value is False}
    places = _places(source)
    for key, value in section.data.items():
        limit = key == "seq_length"
        place = places.get(key, "model_type")
        how = "the longest sequence of the model" if limit else "" if key in places else "by the family"
        facts.give(f"model.{key}", value, source, *([place] if source.has(place) else []), how=how, given=not limit)
    if "position_rows" not in section.data:
        place = places.get("seq_length", "model_type")
        facts.give("run.positions", section.data["seq_length"], source, place)


def _places(source: Source) -> dict[str, str]:
    """Return the key of the file by the key of the section that it gives."""
    keys = {position: str(path[0]) for path, position in source.document.positions.items() if len(path) == 1}
    found = model_section(source.document).positions
    return {str(path[0]): keys[position] for path, position in found.items() if path and position in keys}
