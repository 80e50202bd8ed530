"""Packages that only some extras of the project have."""

from importlib.util import find_spec

import pytest


def require(package: str, reason: str = "") -> None:
    """Skip the tests of the calling module unless *package* is installed, at its import.

    `pytest.importorskip` would import the package too, in every process of the tests: torch takes more than a second.
    """
    if find_spec(package) is None:
        pytest.skip(reason or f"{package} is not installed", allow_module_level=True)
