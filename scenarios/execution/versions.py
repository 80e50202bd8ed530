"""Versions of what results depend on: another machine must have the same to give the same numbers."""

from __future__ import annotations

import hashlib
import sys
from collections.abc import Mapping
from functools import cache
from pathlib import Path

from simulator.lookup import version

DISTRIBUTIONS = ("numpy", "scipy", "networkx", "numba", "pydantic", "distributed")
"""Libraries on which numbers, or the exchange with workers, depend."""

SOURCES = ("simulator", "topologies", "workloads", "scenarios")
"""Folders of clustersim's own code and data."""


@cache
def versions() -> dict[str, str]:
    """Return the versions of clustersim, Python and libraries on this machine, by name."""
    python = f"{sys.version_info.major}.{sys.version_info.minor}"
    libraries = {name: version(name) or "none" for name in DISTRIBUTIONS}
    return {"clustersim": f"{version()} (sources {_digest()})", "Python": python, **libraries}


def difference(here: Mapping[str, str], there: Mapping[str, str]) -> str:
    """Return what of *there* differs from *here*; empty if nothing does.

    >>> difference({"Python": "3.12", "numpy": "2.1.0"}, {"Python": "3.11", "numpy": "2.1.0"})
    'Python 3.11 in place of 3.12'
    """
    differing = [name for name in here if there.get(name) != here[name]]
    return ", ".join(f"{name} {there.get(name, 'none')} in place of {here[name]}" for name in differing)


def _digest() -> str:
    """Return a short hash of clustersim's code and data: a clone may differ from a release of the same version."""
    root = Path(__file__).parents[2]
    hashed = hashlib.sha256()
    for path in sorted(path for folder in SOURCES for path in (root / folder).rglob("*")):
        if path.suffix in (".py", ".yaml", ".csv") and path.is_file():
            hashed.update(str(path.relative_to(root)).encode() + b"\0" + path.read_bytes())
    return hashed.hexdigest()[:8]
