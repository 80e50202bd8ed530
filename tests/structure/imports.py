"""Who imports whom: every import of the project, also those inside functions and those for type checking only."""

from __future__ import annotations

import ast
from collections.abc import Iterable, Iterator
from functools import cache
from pathlib import Path

import networkx as nx

ROOT = Path(__file__).parents[2]
PACKAGES = ("simulator", "topologies", "workloads", "scenarios")
"""Lowest first; topologies and workloads do not know each other."""


def modules() -> Iterator[tuple[str, Path]]:
    """Every module of the project: its dotted name and its file."""
    for package in PACKAGES:
        for path in sorted((ROOT / package).rglob("*.py")):
            parts = path.relative_to(ROOT).with_suffix("").parts
            yield ".".join(["clustersim", *(parts[:-1] if parts[-1] == "__init__" else parts)]), path


MODULES = dict(modules())


def imports(path: Path) -> Iterator[str]:
    """The dotted names that a file imports, wherever the import stands in it."""
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{path}: relative import"
            for alias in node.names:
                whole = f"{node.module}.{alias.name}"
                yield whole if whole in MODULES else str(node.module)


@cache
def all_imports() -> list[tuple[str, str]]:
    """(importing module, imported name), outside libraries included."""
    return [(module, name) for module, path in MODULES.items() for name in imports(path)]


@cache
def arrows() -> list[tuple[str, str]]:
    """(importing module, imported module) within the project."""
    return [(module, target) for module, target in all_imports() if target in MODULES]


def package_of(module: str) -> str:
    """The package that *module* belongs to."""
    return module.split(".")[1]


def arrows_up() -> list[tuple[str, str]]:
    """The imports of a module in a higher package."""
    return sorted(
        {
            (module, target)
            for module, target in arrows()
            if PACKAGES.index(package_of(target)) > PACKAGES.index(package_of(module))
        }
    )


def circles() -> list[list[str]]:
    """The sets of modules that import each other, directly or through others."""
    return _circles((module, target) for module, target in arrows())


def folder_circles() -> list[list[str]]:
    """The sets of folders whose modules import each other, directly or through other folders."""
    folders = {module: path.parent.relative_to(ROOT).as_posix() for module, path in MODULES.items()}
    return _circles((folders[module], folders[target]) for module, target in arrows())


def _circles(pairs: Iterable[tuple[str, str]]) -> list[list[str]]:
    graph = nx.DiGraph((source, target) for source, target in pairs if source != target)
    return sorted(sorted(part) for part in nx.strongly_connected_components(graph) if len(part) > 1)
