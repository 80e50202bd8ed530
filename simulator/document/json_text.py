"""JSON text as plain data, with one clear sentence for what is wrong with it."""

from __future__ import annotations

import json
from typing import Any

from simulator.document.validation import Fault


def parse_json(text: str) -> Any:
    """Return the data of *text*.

    Raises `Fault`, whose path is empty or (line, column), for text that is no JSON, for a key that occurs twice in an
    object, and for numbers of more digits than Python reads. NaN and infinity are numbers.
    """
    try:
        return json.loads(text, object_pairs_hook=_distinct)
    except json.JSONDecodeError as error:
        raise Fault((error.lineno, error.colno), "is not valid JSON") from None
    except RecursionError:
        raise Fault((), "is not valid JSON: it is nested too deeply") from None
    except Fault:
        raise
    except ValueError:
        raise Fault((), "is not valid here: it has a number of thousands of digits") from None


def shown_at(name: str, fault: Fault) -> str:
    """Return the place of *fault* of `parse_json` in the file *name*: ``name:line:column``, or *name* alone."""
    return ":".join(map(str, (name, *fault.path)))


def _distinct(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    made = dict(pairs)
    if len(made) < len(pairs):
        seen: set[str] = set()
        twice = next(key for key, _ in pairs if key in seen or seen.add(key))  # type: ignore[func-returns-value]
        raise Fault((), f'the key "{twice}" appears twice in one object: {json.dumps(made)[:60]}')
    return made
