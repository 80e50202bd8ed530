"""Changes of a scenario's data by a widget, and the place of a fault among the widgets."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Mapping
from copy import deepcopy
from typing import Any

from clustersim.scenarios.serve.widgets import KEPT, WHOLE
from clustersim.scenarios.specification.loading import split
from clustersim.simulator.reading.errors import ScenarioError
from clustersim.simulator.reading.yaml_and_json import read_value


def changed(data: Mapping[str, Any], key: str, text: str) -> dict[str, Any]:
    """Return *data* with the value that *text* is in YAML at *key*; an empty text removes the key.

    Raises `ScenarioError` for a key or a text that cannot be read.
    """
    try:
        value = read_value(text) if text.strip() else None
    except ValueError as error:
        raise ScenarioError(f"{key}: {error}") from None
    made = deepcopy(dict(data))
    path = split(key)
    if key in WHOLE:
        _begin_anew(made, WHOLE[key], value)
    _assign(made, path, value)
    held = _get(made, ("parallelism", "data"))
    if isinstance(held, dict):
        held.setdefault("method", "ddp")
    return made


def _begin_anew(data: dict[str, Any], section: str, value: Any) -> None:
    """Remove what belongs to the former choice of *section* if *value* is another one."""
    path = split(section)
    held = _get(data, path)
    if isinstance(held, dict) and value not in (held.get("preset"), held.get("method")):
        _assign(data, path, {key: held[key] for key in KEPT if key in held} or None)


def _get(data: Any, path: Iterable[Any]) -> Any:
    for key in path:
        data = data.get(key) if isinstance(data, dict) else None
    return data


def _assign(data: dict[str, Any], path: tuple[Any, ...], value: Any) -> None:
    """Set *value* at *path*; None removes it, and sections that are empty then."""
    key, *rest = path
    if rest:
        below = data.get(key)
        if not isinstance(below, dict):
            # a name alone is a preset
            below = {"preset": below} if below is not None else {}
        _assign(below, tuple(rest), value)
        value = below or None
    if value is None:
        data.pop(key, None)
    else:
        data[key] = value


def value_text(data: Mapping[str, Any], key: str) -> str:
    """Return the value at *key* as the text of its widget; empty if it is not given."""
    value = _get(data, split(key))
    if isinstance(value, dict) and key == "software":
        value = value.get("preset")
    if value is None:
        return ""
    return value if isinstance(value, str) else json.dumps(value)


def faults(error: Exception, keys: Iterable[str]) -> list[dict[str, str]]:
    """Return the messages of *error*, each with the widget of *keys* beside which it belongs; "" is the page."""
    known = list(keys)
    found: list[dict[str, str]] = []
    for line in str(error).splitlines():
        named = re.match(r"([a-z_]\w*(?:\.\w+)*)[:=]", line)
        place = _nearest(named[1], known) if named else ""
        if named or not found:
            found.append({"key": place, "text": line})
        else:
            found[-1]["text"] += f"\n{line.strip()}"
    return found


def _nearest(key: str, known: list[str]) -> str:
    """Return the widget of *key*, of the key that holds it, or the first below it; "" if there is none."""
    if key in known:
        return key
    holding = [one for one in known if key.startswith(f"{one}.")]
    below = [one for one in known if one.startswith(f"{key}.")]
    return next(iter([*holding, *below]), "")
