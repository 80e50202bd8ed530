"""Dependencies: which ops of its program an op waits for, resolved from names to indices of ops.

All blocks of a template have the same names but for the micro-batch. So a name is known as a number of two parts, the
name in the template and the micro-batch that fills it, and all names of a program are looked up at once.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from functools import lru_cache
from itertools import chain
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from clustersim.simulator.schedule.pipeline_order import PLACEHOLDER, PLACEHOLDER_TEXT
from clustersim.simulator.schedule.program import Program, TemplatedOps

Integers = npt.NDArray[np.int64]

_NUMBER = re.compile(rf"(?:\d|{PLACEHOLDER_TEXT})+")
"""Digits and placeholders in a row: where a micro-batch may stand in a name."""


class Dependencies(NamedTuple):
    """Arrays of one length: op ``waiting[i]`` waits for op ``awaited[i]`` of another stream. Ops are indices."""

    waiting: Integers
    awaited: Integers


def dependencies(program: Program) -> Dependencies:
    """All dependencies between streams of *program*, in order of the waiting op, then of its `after`.

    Dependencies within a stream are left out: the order of the stream implies them.
    """
    ops = program.templated
    _, waiting, awaited = ops.once(_resolved)
    assert (awaited >= 0).all(), program.role
    every = list(chain.from_iterable(ops.templates))
    streams = {stream: place for place, stream in enumerate(dict.fromkeys(op.stream for op in every))}
    stream = np.array([streams[op.stream] for op in every], np.int64)[ops.places]
    across = stream[waiting] != stream[awaited]
    return Dependencies(waiting[across], awaited[across])


def well_named(program: Program) -> bool:
    """Return whether names in *program* are unique and `after` names earlier ops only."""
    unique, waiting, awaited = program.templated.once(_resolved)
    return unique and bool(((awaited >= 0) & (awaited < waiting)).all())


def _resolved(ops: TemplatedOps) -> tuple[bool, Integers, Integers]:
    """Whether names are unique; by name in an `after` the index of the op that waits, and of the op so named or -1."""
    own, waiting, wanted = _numbered(ops)
    ascending = np.sort(own)
    return not (ascending[1:] == ascending[:-1]).any(), waiting, _positions(own, wanted)


def _numbered(ops: TemplatedOps) -> tuple[Integers, Integers, Integers]:
    """By op the number of its name; by name in an `after` the index of the op that waits, and the number of the name.

    Equal names have equal numbers. Names in `after` are in order of the op, then of its `after`.
    """
    every = list(chain.from_iterable(ops.templates))
    names = [name for op in every for name in op.after]
    number = {name: place for place, name in enumerate(dict.fromkeys([*(op.name for op in every), *names]))}
    waits = np.array([len(op.after) for op in every], np.int64)
    counts = waits[ops.places]
    waiting = np.repeat(np.arange(len(ops)), counts)
    which = np.arange(len(waiting)) + np.repeat(np.cumsum(waits)[ops.places] - np.cumsum(counts), counts)
    own = np.array([number[op.name] for op in every], np.int64)[ops.places]
    wanted = np.array([number[name] for name in names], np.int64)[which]
    micro_batch = np.repeat(ops.micro_batches, np.diff(ops.starts))
    parts = _parts(number)
    if parts is None:
        return _written_out(ops, list(number), own, waiting, wanted)
    template, fixed = parts
    width = max(int(ops.micro_batches.max(initial=PLACEHOLDER)), int(fixed.max(initial=PLACEHOLDER))) + 3
    filled = np.array([PLACEHOLDER_TEXT in name for name in number], np.bool_)

    def numbers(of: Integers, micro_batches: Integers) -> Integers:
        return template[of] * width + np.where(filled[of], micro_batches, fixed[of]) + 2

    return numbers(own, micro_batch), waiting, numbers(wanted, micro_batch[waiting])


_NONE = -2
"""Stands for the micro-batch of a name that has none; -1 is the `PLACEHOLDER`."""

_DIGITS = 9
"""The most digits of a micro-batch."""


def _parts(names: Iterable[str]) -> tuple[Integers, Integers] | None:
    """By name: the number of its template, and the micro-batch that is written in it, `_NONE` if it has a placeholder.

    A name without placeholder is of the template that it is if a number in it is the micro-batch, or of its own. None
    if a name could be of two templates: if placeholders stand at several places of it, or beside digits.

    >>> [part.tolist() for part in _parts(["0F\N{WHITE SQUARE}.send", "0F12.send", "0O"])]
    [[0, 0, 1], [-2, 12, -2]]
    """
    templates: dict[str, int] = {}
    places: dict[str, int] = {}
    names = list(names)
    for name in names:
        if PLACEHOLDER_TEXT in name:
            runs = _NUMBER.findall(name)
            place = runs.index(PLACEHOLDER_TEXT) if PLACEHOLDER_TEXT in runs else -1
            alone = "".join(runs).count(PLACEHOLDER_TEXT) == 1
            if place < 0 or not alone or places.setdefault(_without_numbers(name), place) != place:
                return None
            templates[name] = len(templates)
    template_of, fixed_in = list[int](), list[int]()
    for name in names:
        template, fixed = name, _NONE
        place = places.get(_without_numbers(name), -1)
        if place >= 0 and name not in templates:
            written, number = _with_placeholder(name, place)
            if written in templates:
                template, fixed = written, number
        template_of.append(templates.setdefault(template, len(templates)))
        fixed_in.append(fixed)
    return np.array(template_of, np.int64), np.array(fixed_in, np.int64)


# Schedules that one process makes have the same names again and again.


@lru_cache(maxsize=2**16)
def _without_numbers(name: str) -> str:
    """*name* with a 0 for each run of digits and placeholders."""
    return _NUMBER.sub("0", name)


@lru_cache(maxsize=2**16)
def _with_placeholder(name: str, place: int) -> tuple[str, int]:
    """*name* with a placeholder for its run of digits number *place*, and the number there; empty if not written so."""
    run = list(_NUMBER.finditer(name))[place]
    number = int(run.group()[:_DIGITS])
    written = f"{name[: run.start()]}{PLACEHOLDER_TEXT}{name[run.end() :]}"
    return (written, number) if run.group() == str(number) else ("", _NONE)


def _written_out(
    ops: TemplatedOps, names: list[str], own: Integers, waiting: Integers, wanted: Integers
) -> tuple[Integers, Integers, Integers]:
    """`_numbered` by comparing all names without placeholders. *own*, *wanted*: indices of *names*."""
    blocks = [ops.block(number) for number in range(len(ops.which))]
    block = np.repeat(np.arange(len(blocks)), np.diff(ops.starts))
    known: dict[str, int] = {}

    def numbers(of: Integers, at: Integers) -> Integers:
        pairs = zip(of.tolist(), at.tolist(), strict=True)
        return np.array([known.setdefault(blocks[b].name(names[n]), len(known)) for n, b in pairs], np.int64)

    return numbers(own, block), waiting, numbers(wanted, block[waiting])


def _positions(known: Integers, wanted: Integers) -> Integers:
    """Where each of *wanted* is in *known*; -1 if it is not."""
    if not len(known):
        return np.full(len(wanted), -1)
    order = np.argsort(known, kind="stable")
    at = order[np.minimum(known[order].searchsorted(wanted), len(known) - 1)]
    return np.where(known[at] == wanted, at, -1)
