"""Documents packed into one sequence: a position attends to positions of its own document only.

Llama 3 masks so (arXiv:2407.21783, section 3.2), torchtitan with ``attn_mask_type: block_causal`` and Megatron-LM with
``--reset-attention-mask``; by default the latter two attend across documents.
"""

from __future__ import annotations

from functools import lru_cache
from itertools import cycle

Range = tuple[int, int]
"""The first position, and the one after the last."""


@lru_cache(maxsize=64)
def packed(lengths: tuple[int, ...], total: int) -> tuple[Range, ...]:
    """Documents of *lengths*, in turn, in a sequence of *total* positions; the last one is cut.

    >>> packed((4, 2), 9)
    ((0, 4), (4, 6), (6, 9))
    """
    found: list[Range] = []
    begin = 0
    for length in cycle(lengths):
        found.append((begin, min(begin + length, total)))
        begin += length
        if begin >= total:
            return tuple(found)
    return ()


@lru_cache(maxsize=65536)
def scores(lengths: tuple[int, ...], total: int, rows: Range, keys: Range, *, causal: bool) -> float:
    """The scores of queries *rows* against *keys* in a `packed` sequence; no *lengths*: it is one document.

    *rows* and *keys* are the same range or do not overlap. Under a *causal* mask a position counts half of the score
    with itself.

    >>> scores((4, 2), 9, (0, 9), (0, 9), causal=False)
    29.0
    """
    found = 0
    for document in packed(lengths or (total,), total):
        queries, others = _overlap(document, rows), _overlap(document, keys)
        if not causal or keys[1] <= rows[0]:
            found += 2 * queries * others
        elif rows == keys:
            found += queries * others
    return found / 2


def _overlap(one: Range, other: Range) -> int:
    return max(0, min(one[1], other[1]) - max(one[0], other[0]))
