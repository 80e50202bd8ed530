"""An imported scenario as YAML, with a comment on each value that says where it is from."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from clustersim.simulator.reading.plain_text import printable

_WORD = re.compile(r"[A-Za-z_.][\w./+-]*( [\w./+-]+)*")
_RESERVED = ("true", "false", "null", "yes", "no", "on", "off", "y", "n", ".inf", ".nan")


def yaml_with_sources(data: Mapping[str, Any], sources: Mapping[tuple[str, ...], str], heading: Sequence[str]) -> str:
    """Return *data* as YAML with a comment from *sources* on each value, below the lines of *heading*."""
    lines = [f"# {printable(one)}".rstrip() for text in heading for one in text.splitlines() or [""]]
    for number, (key, value) in enumerate(data.items()):
        lines += [""] if number != 1 else []
        lines += _lines((key,), value, sources)
    return "\n".join(lines) + "\n"


def _lines(path: tuple[str, ...], value: Any, sources: Mapping[tuple[str, ...], str]) -> Iterator[str]:
    indent = "  " * (len(path) - 1)
    if isinstance(value, dict) and value and path not in sources:
        yield f"{indent}{path[-1]}:"
        for key, inner in value.items():
            yield from _lines((*path, key), inner, sources)
        return
    line = f"{indent}{path[-1]}: {scalar(value)}"
    source = printable(" ".join(sources.get(path, "").split()))
    yield f"{line}   # {source}" if source else line


def scalar(value: Any) -> str:
    """Return *value* as YAML on one line.

    >>> scalar("1f1b"), scalar("no"), scalar([1, 2]), scalar({"kind": "ib_ndr"}), scalar(0.1)
    ('"1f1b"', '"no"', '[1, 2]', '{"kind": "ib_ndr"}', '0.1')
    """
    if isinstance(value, str) and _WORD.fullmatch(value) and value.lower() not in _RESERVED:
        return value
    if isinstance(value, float) and value.is_integer() and abs(value) < 1e15:
        return str(int(value))
    return json.dumps(value, ensure_ascii=False)
