"""`python -m tests.benchmarks.mutations` counts seeded faults (`tests.benchmarks.faults`) that the short suite finds.

First each file of tests runs once, and what each test calls is recorded (`tests.benchmarks.called`). Then each fault is
made in a copy of the project, and the tests that call its function run there until one fails: first those of files that
import its module, and the fastest first. So a fault takes seconds instead of a whole suite. Tests that take longer than
`BUDGET` together are left out, so that a fault may be found by the suite that is not found here, never the other way
round: a fault counts as found only if the test that fails passes without it.

Records and results are appended to files in a folder; what they have is not run again, so that a run can be
interrupted and go on. A file of tests whose text has changed is recorded anew, and with `--again` faults that no test
found are judged again. `--long` does the same with the long suite, which has files of its own.
"""

from __future__ import annotations

import json
import os
import re
import resource
import shutil
import subprocess
import sys
from argparse import ArgumentParser
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from functools import partial
from hashlib import sha256
from os.path import commonpath
from pathlib import Path
from tempfile import TemporaryDirectory, gettempdir
from typing import Any

from tests.benchmarks.called import function
from tests.benchmarks.faults import Fault, drawn
from tests.benchmarks.processes import ROOT

TESTS = (
    "simulator/engine",
    "simulator/network",
    "simulator/hardware",
    "workloads",
    "test_golden.py",
    "simulator/schedule",
    "simulator/analysis",
    "scenarios/build",
    "scenarios/search",
)
"""Files and folders of tests that are recorded, those of the faults' own modules and of whole simulations first."""

EXAMPLES = ("simulator/engine", "simulator/network", "simulator/hardware", "workloads")
"""Folders of the package whose examples in docstrings are recorded."""

LEFT_BEHIND = {".git", ".venv", "runs", "build", ".hypothesis", ".mypy_cache", ".pytest_cache", ".ruff_cache"}
"""What the copy of the project lacks."""

BUDGET = 20.0
"""Processor time of the tests of a fault together, as recorded, s."""

SLOWER, START, COMPILING = 5.0, 30.0, 120.0
"""A fault is found if it makes the tests so many times slower, beside the start of a process, s, or that with the
compilation of the fault's module."""

UNFINISHED = 300.0
"""Processor time after which the recording of a file of tests ends, s; the tests until then are recorded."""

SELECTED = ("-p", "no:cacheprovider", "--tb=no", "-m", "not testbed and not cluster")


@dataclass(frozen=True)
class Recorded:
    """A *test* that passes, its processor time *seconds* and the *functions* that it calls."""

    test: str
    seconds: float
    functions: frozenset[str]


def pytest(tree: Path, arguments: Sequence[str], seconds: float) -> subprocess.CompletedProcess[str]:
    """Run pytest in *tree* for at most so many *seconds* of processor time."""
    limit = round(seconds)
    return subprocess.run(
        [sys.executable, "-m", "pytest", *SELECTED, *arguments],
        check=False,
        cwd=tree,
        env={**os.environ, "PYTHONPATH": str(tree), "PYTHONDONTWRITEBYTECODE": "1"},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        preexec_fn=partial(resource.setrlimit, resource.RLIMIT_CPU, (limit, limit)),
    )


def record(tree: Path, path: Path, options: Sequence[str]) -> None:
    """Append to *path* what tests call, of each of their files and of each folder of `EXAMPLES` that it lacks.

    A file is recorded anew if its text has changed.
    """
    known = {(row["file"], row["text"]) for row in rows(path) if "file" in row}
    for name in (*files_of_tests(tree), *(f"clustersim/{folder}" for folder in EXAMPLES)):
        text = "" if (tree / name).is_dir() else sha256((tree / name).read_bytes()).hexdigest()
        if (name, text) in known:
            continue
        print(f"recording {name}", flush=True)
        plugin = ("-p", "tests.benchmarks.called", "--called", str(path))
        pytest(tree, [*plugin, *known_there(options, [name]), name], UNFINISHED)
        append(path, {"file": name, "text": text})


def files_of_tests(tree: Path) -> Iterator[str]:
    """Yield the files at `TESTS`, as paths in *tree*."""
    for place in TESTS:
        found = tree / "tests" / place
        for file in sorted(found.rglob("test_*.py")) if found.is_dir() else [found]:
            yield file.relative_to(tree).as_posix()


def collected(tree: Path, options: Sequence[str]) -> set[str]:
    """Return the names of the tests that there are: a record may be older."""
    places = ["tests", *(f"clustersim/{folder}" for folder in EXAMPLES)]
    done = pytest(tree, ["--collect-only", *options, *places], UNFINISHED)
    return {line for line in done.stdout.splitlines() if "::" in line}


def known_there(options: Sequence[str], names: Iterable[str]) -> Sequence[str]:
    """Return *options* if one of *names* lies in `tests`, whose ``conftest.py`` defines them; else none."""
    return options if any(name.startswith("tests/") for name in names) else ()


def recorded(path: Path) -> list[Recorded]:
    """Return the tests at *path*, the fastest first; of a test its last record."""
    last = {row["test"]: row for row in rows(path) if "test" in row}
    found = [Recorded(row["test"], row["seconds"], frozenset(row["functions"])) for row in last.values()]
    return sorted(found, key=lambda one: one.seconds)


def selected(fault: Fault, known: Sequence[Recorded]) -> list[Recorded]:
    """Return the tests that call the function of *fault*, `BUDGET` of them.

    What numba has compiled is not seen: then those that call a function of a module that names the fault's module, the
    nearest by their folder first. If there are none either, those that call any of its folder. A constant belongs to no
    function; its tests are those that call any of its module, or whose file imports from it.
    """
    users = importing(fault.file) | {f"clustersim/{fault.file}"}
    known = sorted(known, key=lambda one: one.test.partition("::")[0] not in users)
    if not fault.function:
        found = [one for one in known if one.test.partition("::")[0] in users or calls(one, [f"{fault.file}:"])]
    else:
        found = [one for one in known if function(fault.file, fault.function) in one.functions]
    if not found:
        found = [one for one in known if calls(one, [f"{file}:" for file in naming(fault.file)])]
        found.sort(key=lambda one: -len(commonpath([one.test, f"tests/{fault.file}"])))
    folder = f"{Path(fault.file).parent.as_posix()}/"
    return list(within(found or [one for one in known if calls(one, [folder])], BUDGET))


def calls(test: Recorded, starts: Sequence[str]) -> bool:
    """Return whether *test* calls a function with a key that begins with one of *starts*."""
    return any(name.startswith(tuple(starts)) for name in test.functions)


def importing(file: str) -> set[str]:
    """Return the files of tests that import from the module *file*."""
    module = f"from clustersim.{file.removesuffix('.py').replace('/', '.')} import"
    paths = (ROOT / "tests").rglob("test_*.py")
    return {path.relative_to(ROOT).as_posix() for path in paths if module in path.read_text()}


def naming(file: str) -> list[str]:
    """Return the modules of the package that import *file* or have its dotted name: it may be imported by name."""
    package, _, name = f"clustersim.{file.removesuffix('.py').replace('/', '.')}".rpartition(".")
    named = re.compile(rf"{re.escape(package)}(\.| import ([\w, ]+, )?){name}\b")
    return [
        path.relative_to(ROOT).as_posix()
        for folder in ("simulator", "workloads")
        for path in (ROOT / folder).rglob("*.py")
        if named.search(path.read_text())
    ]


def within(tests: Iterable[Recorded], seconds: float) -> Iterator[Recorded]:
    """Yield *tests* that take *seconds* together: the first one in any case, others unless they exceed what is left."""
    spent = 0.0
    for one in tests:
        if not spent or spent + one.seconds <= seconds:
            spent += one.seconds
            yield one


class Judge:
    """Judges faults in *tree* by the tests *known*, which run with these *options* of pytest."""

    def __init__(self, tree: Path, known: Sequence[Recorded], options: Sequence[str]) -> None:
        self._tree, self._known, self._options = tree, list(known), options
        self._passes: dict[str, bool] = {}

    def finding(self, fault: Fault) -> tuple[str, int]:
        """Return the first test that fails with *fault* and passes without it, empty if none does; how many ran."""
        while tests := selected(fault, self._known):
            found, last = self._first(fault, tests)
            if not found or self._sound(last):
                return found, len(tests)
            print(f"    {last} fails without a fault", flush=True)
            self._known = [one for one in self._known if one.test != last]
        return "", 0

    def _first(self, fault: Fault, tests: Sequence[Recorded]) -> tuple[str, str]:
        """What pytest says of the first of *tests* that fails with *fault*, and the name of this test if it is told."""
        path = self._tree / fault.file
        source, times = path.read_bytes(), path.stat()
        listed = self._tree / "tests_of_fault.txt"
        listed.write_text("".join(f"{one.test}\n" for one in tests))
        path.write_bytes(source[: fault.begin] + fault.after.encode() + source[fault.end :])
        try:
            limit = (COMPILING if b"numba" in source else START) + SLOWER * sum(one.seconds for one in tests)
            options = known_there(self._options, [one.test for one in tests])
            done = pytest(self._tree, ["-x", *options, f"@{listed}"], limit)
        finally:
            path.write_bytes(source)
            # numba compiles a file anew if its time has changed
            os.utime(path, ns=(times.st_atime_ns, times.st_mtime_ns))
        if done.returncode == 0:
            return "", ""
        said = [line for line in done.stdout.splitlines() if line.startswith(("FAILED ", "ERROR "))]
        if not said:
            return f"status {done.returncode}: {done.stdout[-200:].strip()}", ""
        first = said[0].partition(" - ")[0]
        return first, first.partition(" ")[2]

    def _sound(self, test: str) -> bool:
        """Whether *test* passes without a fault; True if no test is named, as where a module cannot be imported."""
        if test and test not in self._passes:
            options = known_there(self._options, [test])
            self._passes[test] = pytest(self._tree, [*options, test], UNFINISHED).returncode == 0
        return not test or self._passes[test]


def rows(path: Path) -> list[dict[str, Any]]:
    """Return the lines of JSON at *path*; none if there is no such file."""
    return [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []


def append(path: Path, row: dict[str, Any]) -> None:
    """Append *row* to *path* as a line of JSON."""
    with path.open("a") as file:
        file.write(json.dumps(row) + "\n")


def main() -> None:
    """Judge the faults that the file of results lacks; print a line for each, and the figures."""
    parser = ArgumentParser(prog="python -m tests.benchmarks.mutations", description=__doc__)
    parser.add_argument("--count", type=int, default=100, help="how many faults")
    parser.add_argument("--seed", type=int, default=1, help="of the faults")
    parser.add_argument("--long", action="store_true", help="the long suite instead of the short one")
    parser.add_argument("--only-known", action="store_true", help="record no further files of tests")
    parser.add_argument("--again", action="store_true", help="judge again the faults that no test found")
    parser.add_argument(
        "--folder", type=Path, default=Path(gettempdir()) / "clustersim_mutations", help="of records and results"
    )
    given = parser.parse_args()
    given.folder.mkdir(parents=True, exist_ok=True)
    suite, options = ("long", []) if given.long else ("short", ["--short"])
    calls, results = given.folder / f"{suite}_calls.jsonl", given.folder / f"{suite}_results.jsonl"
    faults = drawn(given.count, given.seed)
    with TemporaryDirectory() as folder:
        tree = Path(folder) / "tree"
        # published measurements lie beside the project; tests without them are skipped
        (Path(folder) / "shared").symlink_to(ROOT.parent / "shared")
        shutil.copytree(ROOT, tree, symlinks=True, ignore=lambda at, _: LEFT_BEHIND if Path(at) == ROOT else set())
        if not given.only_known:
            record(tree, calls, options)
        there, found = collected(tree, options), {identity(row["fault"]): str(row["found"]) for row in rows(results)}
        judge = Judge(tree, [one for one in recorded(calls) if one.test in there], options)
        for number, fault in enumerate(faults, 1):
            key = identity(asdict(fault))
            if key not in found or (given.again and not found[key]):
                found[key], tests = judge.finding(fault)
                append(results, {"fault": asdict(fault), "found": found[key], "tests": tests})
            print(f"{number}. {fault}\n    {found[key] or 'not found'}", flush=True)
    seen = [found[identity(asdict(fault))] for fault in faults]
    print(f"the {suite} suite finds {sum(map(bool, seen))} of {len(seen)}")


def identity(fault: Mapping[str, Any]) -> str:
    """Return what *fault* is, wherever it stands in its file by now."""
    return json.dumps([fault[name] for name in ("file", "function", "before", "after", "place")])


if __name__ == "__main__":
    main()
