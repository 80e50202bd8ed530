"""Windows of attention by layer: in turn over the layers, some see a window of positions and others see all.

Gemma 2 (arXiv:2408.00118) and GPT-OSS have a window in every other layer, Gemma 3 (arXiv:2503.19786) in five of six,
OLMo 3 in three of four; Llama 4 cuts the sequence into chunks in three of four (transformers,
src/transformers/models/*/configuration_*.py, ``layer_types``). The first layers of each turn have the window.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Annotated, Any

from pydantic import BeforeValidator, Field

from simulator.document import Count, Flag, Index, Section

OF = re.compile(r"(\d{1,4}) of (\d{1,4})")


@dataclass(frozen=True)
class Window:
    """The *size* of the window of a layer in positions, 0: all. *chunked*: the sequence is cut into parts of that size.

    A position then attends to those before it in its own chunk, else to itself and the *size* - 1 before it.
    """

    size: int
    chunked: bool = False


def _turn(value: Any) -> Any:
    found = OF.fullmatch(value) if isinstance(value, str) else None
    if found is None or not 0 < int(found[1]) <= int(found[2]):
        raise ValueError(f'must say how many layers of how many have the window, such as "5 of 6", not {value!r}')
    return value


class WindowKeys(Section):
    """A window of attention that some layers have."""

    size: Count
    """Positions to which each one attends in a layer with a window. Required."""
    every: Annotated[str, BeforeValidator(_turn)] = "1 of 1"
    """Layers with a window, the first of each turn, as text: "5 of 6". By default all layers."""
    chunked: Flag = False
    """The sequence is cut into chunks of that size, and a position attends within its own (Llama 4)."""


Windows = Count | WindowKeys | Annotated[list[Index], Field(min_length=1)]
"""Of a scenario: one window for all layers, a section, or windows in turn over the layers (0: all positions)."""


def windows_of(given: int | WindowKeys | Sequence[int] | None) -> tuple[Window, ...]:
    """Return the windows in turn over the layers; none if all layers see all positions.

    >>> windows_of(WindowKeys(size=512, every="2 of 3"))
    (Window(size=512, chunked=False), Window(size=512, chunked=False), Window(size=0, chunked=False))
    >>> windows_of([128, 0]) == windows_of(WindowKeys(size=128, every="1 of 2"))
    True
    """
    if given is None:
        return ()
    if isinstance(given, int):
        return (Window(given),)
    if isinstance(given, WindowKeys):
        windowed, turn = map(int, given.every.split(" of "))
        return (Window(given.size, given.chunked),) * windowed + (Window(0),) * (turn - windowed)
    return tuple(map(Window, given))


def pattern(sizes: Iterable[int]) -> int | dict[str, Any] | list[int] | None:
    """Return the shortest value of the key that gives layers windows of *sizes*, one for each layer; 0: all positions.

    >>> pattern([4096] * 32), pattern([0] * 4), pattern([128, 0] * 12), pattern([512, 512, 0, 512])
    (4096, None, {'size': 128, 'every': '1 of 2'}, {'size': 512, 'every': '2 of 3'})
    """
    whole = list(sizes)
    if not any(whole):
        return None
    turn = next(n for n in range(1, len(whole) + 1) if all(one == whole[i % n] for i, one in enumerate(whole)))
    first = whole[:turn]
    if turn == 1:
        return first[0]
    windowed = first.index(0) if 0 in first else turn
    if len({*first[:windowed]}) == 1 and not any(first[windowed:]):
        return {"size": first[0], "every": f"{windowed} of {turn}"}
    return first
