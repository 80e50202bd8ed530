"""How large folders, files and functions are."""

from __future__ import annotations

import ast
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

from tests.structure.imports import MODULES, PACKAGES, ROOT

SMALL = 40
"""Lines of a module so short that it is asked whether it needs a file of its own."""


class Length(NamedTuple):
    """*name* has so many *lines*."""

    lines: int
    name: str


def modules_by_folder() -> dict[str, int]:
    """The number of modules in each folder of the project and of its tests, `__init__.py` not counted."""
    tests = (ROOT / "tests").rglob("*.py")
    paths = [path for path in (*MODULES.values(), *tests) if path.name != "__init__.py"]
    return dict(sorted(Counter(path.parent.relative_to(ROOT).as_posix() for path in paths).items()))


def small_modules() -> int:
    """How many modules have at most `SMALL` lines, `__init__.py` not counted."""
    paths = (path for path in MODULES.values() if path.name != "__init__.py")
    return sum(len(path.read_text().splitlines()) <= SMALL for path in paths)


def doubled_classes() -> dict[str, list[str]]:
    """The class names that stand in several files, with the files."""
    found: dict[str, list[str]] = {}
    for path in MODULES.values():
        for node in ast.parse(path.read_text()).body:
            if isinstance(node, ast.ClassDef):
                found.setdefault(node.name, []).append(path.relative_to(ROOT).as_posix())
    return {name: files for name, files in sorted(found.items()) if len(files) > 1}


def files() -> list[Length]:
    """The files of the packages, longest first."""
    paths = (path for package in PACKAGES for path in (ROOT / package).rglob("*.py"))
    lengths = (Length(len(path.read_text().splitlines()), path.relative_to(ROOT).as_posix()) for path in paths)
    return sorted(lengths, reverse=True)


def functions() -> list[Length]:
    """The functions and methods of the packages, longest first, docstrings and decorators included."""
    return sorted((length for path in MODULES.values() for length in _functions(path)), reverse=True)


def _functions(path: Path) -> Iterator[Length]:
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            first = min([node.lineno, *(decorator.lineno for decorator in node.decorator_list)])
            assert node.end_lineno is not None
            yield Length(node.end_lineno - first + 1, f"{path.relative_to(ROOT)}:{node.lineno} {node.name}")
