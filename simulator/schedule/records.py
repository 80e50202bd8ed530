"""Copies of records: of frozen dataclasses with slots, such as ops and kernels."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import fields
from functools import cache
from operator import attrgetter
from typing import Any, TypeVar

_Record = TypeVar("_Record")
_Write = Callable[[Any, Any], None]


def changed(record: _Record, /, **values: Any) -> _Record:
    """Return *record* with other *values* of some fields.

    As ``dataclasses.replace``, which takes twice as long, since it calls the constructor with all fields. Whole
    programs are copied so. What the constructor checks is not checked again.

    >>> from clustersim.simulator.hardware.kernel import Kernel
    >>> changed(Kernel(flops=1.0, nbytes=2.0), nbytes=3.0) == Kernel(flops=1.0, nbytes=3.0)
    True
    """
    read, write, own = _slots(type(record))  # type: ignore[arg-type]  # mypy takes a class for its instances
    copy = object.__new__(type(record))
    for put, value in zip(write, read(record), strict=True):
        put(copy, value)
    for name, value in values.items():
        own[name](copy, value)
    return copy


@cache
def _slots(kind: type[Any]) -> tuple[Callable[[Any], tuple[Any, ...]], tuple[_Write, ...], Mapping[str, _Write]]:
    """Return what reads all fields of *kind*, what writes them, and that by name."""
    # each field has a slot, whose descriptor writes what ``frozen`` protects
    write: dict[str, _Write] = {one.name: getattr(kind, one.name).__set__ for one in fields(kind)}
    return attrgetter(*write), tuple(write.values()), write
