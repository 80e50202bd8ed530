"""How tokens spread over experts: the share of all assignments that each expert gets.

A token has *topk* assignments to different experts, so that no expert gets more than one in *topk* of all.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import ceil, isclose
from pathlib import Path

from simulator.comma_separated import TableRow, read_rows
from simulator.errors import ScenarioError
from simulator.files import UnreadableFile

Shares = tuple[float, ...]
"""The share of the assignments of a layer that each expert gets; they add up to 1. Empty: all get the same."""

COLUMNS = ("expert", "tokens")
"""What a table of loads must have; with a column ``layer`` each layer with experts has a load of its own."""


def zipf(experts: int, exponent: float, topk: int) -> Shares:
    """Shares in proportion to 1 / (i + 1)^s, s the *exponent*, of expert i; what exceeds 1 / *topk* goes to the rest.

    >>> zipf(2, 1.0, 1)
    (0.666..., 0.333...)
    >>> zipf(3, 9.0, 2)[0]
    0.5
    """
    weights = [(number + 1) ** -exponent for number in range(experts)]
    full = 0
    while full < topk:
        rest = (1.0 - full / topk) / sum(weights[full:])
        if weights[full] * rest <= 1.0 / topk:
            break
        full += 1
    if full == topk:
        return (1.0 / topk,) * topk + (0.0,) * (experts - topk)
    return (1.0 / topk,) * full + tuple(weight * rest for weight in weights[full:])


def read_load(path: Path, experts: int, topk: int, layers: int) -> tuple[Shares, ...]:
    """The shares of each of *layers* layers, from the table at *path*; one for all if it has no column ``layer``.

    Raises `ScenarioError` for what is missing, given twice, negative, or more than all tokens can be.
    """
    header, *rows = read_rows(path)
    columns = header.cells
    for column in COLUMNS:
        if column not in columns:
            raise UnreadableFile(path, f'has no column "{column}"; it needs {" and ".join(COLUMNS)}', line=header.line)
    by_layer = "layer" in columns
    found: dict[tuple[int, int], float] = {}
    for row in rows:
        layer = _index(path, row, columns, "layer", layers) if by_layer else 0
        expert = _index(path, row, columns, "expert", experts)
        if (layer, expert) in found:
            raise UnreadableFile(path, f"has expert {expert} twice", line=row.line)
        found[layer, expert] = _tokens(path, row, columns)
    return tuple(_shares(path, found, layer, experts, topk) for layer in range(layers if by_layer else 1))


def _index(path: Path, row: TableRow, columns: Sequence[str], name: str, count: int) -> int:
    text = _cell(row, columns, name)
    if not text.isdecimal() or int(text) >= count:
        raise UnreadableFile(path, f'{name} must be a number from 0 to {count - 1}, not "{text}"', line=row.line)
    return int(text)


def _tokens(path: Path, row: TableRow, columns: Sequence[str]) -> float:
    text = _cell(row, columns, "tokens")
    try:
        tokens = float(text)
    except ValueError:
        tokens = -1.0
    if not 0 <= tokens < float("inf"):
        raise UnreadableFile(path, f'tokens must be a number of 0 or more, not "{text}"', line=row.line)
    return tokens


def _cell(row: TableRow, columns: Sequence[str], name: str) -> str:
    place = columns.index(name)
    return row.cells[place].strip() if place < len(row.cells) else ""


def _shares(path: Path, found: dict[tuple[int, int], float], layer: int, experts: int, topk: int) -> Shares:
    missing = [expert for expert in range(experts) if (layer, expert) not in found]
    if missing:
        raise ScenarioError(f"{path}: layer {layer} has no row for expert {missing[0]}; there are {experts} experts")
    tokens = [found[layer, expert] for expert in range(experts)]
    total = sum(tokens)
    if not total:
        raise ScenarioError(f"{path}: layer {layer} has no tokens")
    most = max(tokens)
    if most > total / topk and not isclose(most, total / topk):
        raise ScenarioError(
            f"{path}: expert {tokens.index(most)} of layer {layer} has {most:g} of {total:g} tokens; each token goes "
            f"to {topk} different experts, so that one has at most {total / topk:g}"
        )
    return tuple(count / total for count in tokens)


def capacity(tokens: float, topk: int, experts: int, factor: float) -> int:
    """The tokens that an expert takes at most of *tokens* tokens on one rank (Megatron-LM, ``get_capacity``).

    >>> capacity(4096, 2, 8, 1.25)
    1280
    """
    return ceil(tokens * topk / experts * factor)
