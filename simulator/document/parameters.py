"""Parameters of a function from the keys beside its name, checked by its annotations."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from typing import Any, get_type_hints

from pydantic import BaseModel, create_model

from simulator.document.quantities import Section
from simulator.document.validation import Fault, near


def parameters(function: Callable[..., Any], given: Mapping[str, Any], also: tuple[str, ...] = ()) -> dict[str, Any]:
    """Return *given*, validated as arguments of *function* after its first.

    *also*: further keys, which belong to no function. Raises `Fault` for an unknown key, with the known ones, and
    pydantic's `ValidationError` for a wrong value.
    """
    signature = list(inspect.signature(function).parameters.values())[1:]
    hints = get_type_hints(function, include_extras=True)
    fields: dict[str, Any] = {
        parameter.name: (
            hints.get(parameter.name, Any),
            ... if parameter.default is parameter.empty else parameter.default,
        )
        for parameter in signature
    }
    for key in given:
        if key not in fields:
            name = getattr(function, "__name__", str(function))
            takes = f"takes {', '.join(fields)}" if fields else "takes no parameters"
            raise Fault(key, f"unknown key; {name} {takes}", near(key, [*fields, *also]))
    if not given and all(default is not ... for _, default in fields.values()):
        return {}
    model: type[BaseModel] = create_model("Parameters", __base__=Section, **fields)
    validated = model.model_validate(dict(given))
    return {name: getattr(validated, name) for name in given}
