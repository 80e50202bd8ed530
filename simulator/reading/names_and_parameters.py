"""Names in a scenario, of files of the project or import paths of the user's own, and the parameters of the function
so named, from the keys beside its name.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping, Sequence
from functools import cache
from typing import Any, get_type_hints

from pydantic import BaseModel, create_model

from clustersim.simulator.reading.errors import SimulatorError
from clustersim.simulator.reading.lookup import find, names, plain
from clustersim.simulator.reading.quantities import Section
from clustersim.simulator.reading.validation import Fault, listed, near


def known(name: str, package: str, extra: Sequence[str] = (), only: Sequence[str] | None = None) -> str:
    """Return *name* if *package* has such a file (*only*: some of them; *extra*: more), or if it can be imported.

    The import path of a file of *package*, such as ``simulator.network.library.nccl``, becomes its name: ``nccl``.
    Raises `Fault` with the existing names, or with the error of the user's module.
    """
    choices = [*extra, *(names(package) if only is None else only)]
    name = plain(package, name)
    if name in choices:
        return name
    if "." not in name.strip("."):
        raise Fault((), f'must be {listed(choices)}, not "{name}"', near(name, choices))
    try:
        find(package, name)
    except SimulatorError:
        home, _, stem = name.rpartition(".")
        built_in = f"; it must be {listed(choices)}, or can be imported" if choices else ""
        raise Fault((), f"there is no {stem} in {home}{built_in}") from None
    except Exception as error:  # whatever the user's module raises
        raise Fault((), f"{name} cannot be imported: {type(error).__name__}: {error}") from None
    return name


def parameters(function: Callable[..., Any], given: Mapping[str, Any], also: tuple[str, ...] = ()) -> dict[str, Any]:
    """Return *given*, validated as arguments of *function* after its first.

    *also*: further keys, which belong to no function. Raises `Fault` for an unknown key, with the known ones, and
    pydantic's `ValidationError` for a wrong value.
    """
    fields = _fields(function)
    for key in given:
        if key not in fields:
            name = getattr(function, "__name__", str(function))
            takes = f"takes {', '.join(fields)}" if fields else "takes no parameters"
            raise Fault(key, f"unknown key; {name} {takes}", near(key, [*fields, *also]))
    if not given and all(default is not ... for _, default in fields.values()):
        return {}
    validated = _model(function).model_validate(dict(given))
    return {name: getattr(validated, name) for name in given}


@cache
def _fields(function: Callable[..., Any]) -> dict[str, Any]:
    """Return by name the type and the default, ... for none, of the arguments of *function* after its first."""
    hints = get_type_hints(function, include_extras=True)
    return {
        name: (hints.get(name, Any), ... if one.default is one.empty else one.default)
        for name, one in list(inspect.signature(function).parameters.items())[1:]
    }


@cache
def _model(function: Callable[..., Any]) -> type[BaseModel]:
    """Return the pydantic model of the arguments of *function* after its first."""
    return create_model("Parameters", __base__=Section, **_fields(function))
