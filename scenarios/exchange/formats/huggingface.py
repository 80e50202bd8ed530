"""Hugging Face's ``config.json``: the sizes of a model, by its family."""

from __future__ import annotations

from clustersim.scenarios.exchange.facts import Facts
from clustersim.scenarios.exchange.source_file import SourceFile
from clustersim.workloads.architectures.huggingface_config import KEY, keys_read, model_section, text_path
from clustersim.workloads.architectures.model_keys import is_config

ENCODERS = ("vision_config", "audio_config")
"""Parts of a model beside its text model."""

QUANTISED = "quantization_config"
"""How the weights in the files are stored."""


def recognises(source: SourceFile) -> bool:
    """Return whether *source* is a ``config.json``."""
    return not source.script and is_config(source.document)


def read(source: SourceFile, facts: Facts) -> None:
    """Read the model. Raises `ScenarioError` for a family, or a value, that no model of clustersim has."""
    section = model_section(source.document)
    inside = tuple(map(str, text_path(source.document)))
    for at in {(), inside}:
        source.taken |= {(*at, key) for key in keys_read(source.document)}
        source.ignore("huggingface", *at)
        # a feature that is off
        own = source.section(*at) if at else source.data
        source.without_effect |= {(*at, key) for key, value in own.items() if value is None or value is False}
        if source.take(*at, QUANTISED):
            whole = ".".join((*at, QUANTISED))
            facts.remarks.append(f"{whole}: the weights of the file are quantised; a step has training.precision")
    for part in ENCODERS:
        read = part == KEY and "vision" in section.data
        if (inside or read) and source.take(part) and not read:
            facts.remarks.append(f"{part}: only the text model is read, without this encoder")
    places = _places(source)
    for key, value in section.data.items():
        limit = key == "seq_length"
        place = places.get(key, ("model_type",))
        how = "the longest sequence of the model" if limit else "" if key in places else "by the family"
        facts.give(f"model.{key}", value, source, *(place if source.has(*place) else ()), how=how, given=not limit)
    if "position_rows" not in section.data and section.data["kind"] == "transformer":
        place = places.get("seq_length", ("model_type",))
        facts.give("run.positions", section.data["seq_length"], source, *place)


def _places(source: SourceFile) -> dict[str, tuple[str, ...]]:
    """Return the path in the file by the key of the section that it gives."""
    keys = {position: tuple(map(str, path)) for path, position in source.document.positions.items() if path}
    found = model_section(source.document).positions
    return {str(path[0]): keys[position] for path, position in found.items() if path and position in keys}
