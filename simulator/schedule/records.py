"""Copies of records: of frozen dataclasses with slots, such as ops and kernels."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import fields
from functools import cache
from typing import Any, TypeVar

from clustersim.simulator.reading.dataclass import unfrozen

_Record = TypeVar("_Record")


def changed(record: _Record, /, **values: Any) -> _Record:
    """Return *record* with other *values* of some fields.

    As ``dataclasses.replace``, which takes twice as long, since it calls the constructor with all fields. Whole
    programs are copied so. What the constructor checks is not checked again.

    >>> from clustersim.simulator.hardware.kernel import Kernel
    >>> changed(Kernel(flops=1.0, nbytes=2.0), nbytes=3.0) == Kernel(flops=1.0, nbytes=3.0)
    True
    """
    return _copier(type(record))(record, values)  # type: ignore[arg-type,no-any-return]


@cache
def _copier(kind: type[Any]) -> Callable[[Any, Mapping[str, Any]], Any]:
    """Return the function that copies a record of *kind* with other values of some fields.

    The copy is made as an instance of a class that is not frozen, and becomes one of *kind* at the end.
    """
    known: dict[str, Any] = {"new": object.__new__, "kind": kind, "open": unfrozen(kind)}
    lines = (f"    copy.{one.name} = record.{one.name}\n" for one in fields(kind))
    text = (
        "def copier(record, values):\n"
        f"    copy = new(open)\n{''.join(lines)}"
        "    for name in values:\n        setattr(copy, name, values[name])\n"
        "    copy.__class__ = kind\n"
        "    return copy"
    )
    exec(text, known)
    copier: Callable[[Any, Mapping[str, Any]], Any] = known["copier"]
    return copier
