"""Samples of sweeps: the short suite runs some cases, `make test-all` runs all."""

from __future__ import annotations

from collections.abc import Collection, Iterable
from typing import Any
from zlib import crc32

import pytest


def sample(cases: Iterable[Any], one_in: int = 1, heavy: Collection[Any] = ()) -> list[Any]:
    """Return *cases* as parameters of a test; those that are not in the short suite are marked exhaustive.

    It has one in *one_in* of those that are not *heavy*: the same ones whatever other cases there are.
    """
    return [
        pytest.param(case, marks=[pytest.mark.exhaustive] * (case in heavy or crc32(repr(case).encode()) % one_in != 0))
        for case in cases
    ]
