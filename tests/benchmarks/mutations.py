"""`python -m tests.benchmarks.mutations` counts seeded faults (`tests.benchmarks.faults`) that the short suite finds.

First each file of tests runs once, and what each test calls is recorded (`tests.benchmarks.called`). Then each fault is
made in a copy of the project, and the tests that call its function run there until one fails: first those of files that
import its module, and the fastest first. So a fault takes seconds instead of a whole suite. Tests that take longer than
`BUDGET` together are left out, so that a fault may be found by the suite that is not found here, never the other way
round.

Records and results are appended to files in a folder; what they have is not run again, so that a run can be
interrupted and go on. `--long` does the same with the long suite, which has files of its own.
"""

from __future__ import annotations

import json
import os
import resource
import shutil
import subprocess
import sys
from argparse import ArgumentParser
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import asdict, dataclass
from functools import partial
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

LEFT_BEHIND = {".git", ".venv", "runs", "build", ".hypothesis", ".mypy_cache", ".pytest_cache", ".ruff_cache"}
"""What the copy of the project lacks."""

BUDGET = 20.0
"""Processor time of the tests of a fault together, as recorded, s."""

SLOWER, START = 5.0, 120.0
"""A fault is found if it makes the tests so many times slower, beside the start of a process with compilation, s."""

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


def record(tree: Path, places: Iterable[str], path: Path, options: Sequence[str]) -> None:
    """Append to *path* what the tests at *places* call, of each file that it lacks."""
    known = {row["file"] for row in rows(path) if "file" in row}
    for place in places:
        found = tree / "tests" / place
        for file in sorted(found.rglob("test_*.py")) if found.is_dir() else [found]:
            name = file.relative_to(tree).as_posix()
            if name in known:
                continue
            print(f"recording {name}", flush=True)
            plugin = ("-p", "tests.benchmarks.called", "--called", str(path))
            pytest(tree, [*plugin, *options, name], UNFINISHED)
            append(path, {"file": name})


def recorded(path: Path) -> list[Recorded]:
    """Return the tests at *path*, the fastest first."""
    found = [Recorded(row["test"], row["seconds"], frozenset(row["functions"])) for row in rows(path) if "test" in row]
    return sorted(found, key=lambda one: one.seconds)


def selected(fault: Fault, known: Sequence[Recorded]) -> list[Recorded]:
    """Return the tests that call the function of *fault*, `BUDGET` of them.

    If none is seen to, those that call any of its folder: what numba has compiled is not seen. A constant belongs to
    no function; its tests are those that call any of its module, or whose file imports from it.
    """
    users = importing(fault.file)
    known = sorted(known, key=lambda one: one.test.partition("::")[0] not in users)
    if not fault.function:
        found = [one for one in known if one.test.partition("::")[0] in users or calls(one, f"{fault.file}:")]
    else:
        found = [one for one in known if function(fault.file, fault.function) in one.functions]
    folder = f"{Path(fault.file).parent.as_posix()}/"
    return list(within(found or [one for one in known if calls(one, folder)], BUDGET))


def calls(test: Recorded, start: str) -> bool:
    """Return whether *test* calls a function with a key that begins with *start*."""
    return any(name.startswith(start) for name in test.functions)


def importing(file: str) -> set[str]:
    """Return the files of tests that import from the module *file*."""
    module = f"from clustersim.{file.removesuffix('.py').replace('/', '.')} import"
    paths = (ROOT / "tests").rglob("test_*.py")
    return {path.relative_to(ROOT).as_posix() for path in paths if module in path.read_text()}


def within(tests: Iterable[Recorded], seconds: float) -> Iterator[Recorded]:
    """Yield *tests* that take *seconds* together; the first one whatever it takes."""
    spent = 0.0
    for one in tests:
        if spent and spent + one.seconds > seconds:
            return
        spent += one.seconds
        yield one


def judged(tree: Path, fault: Fault, tests: Sequence[Recorded], options: Sequence[str]) -> str:
    """Make *fault* in *tree* and run *tests*; return the first that fails, empty if none does."""
    path = tree / fault.file
    source, times = path.read_bytes(), path.stat()
    listed = tree / "tests_of_fault.txt"
    listed.write_text("".join(f"{one.test}\n" for one in tests))
    path.write_bytes(source[: fault.begin] + fault.after.encode() + source[fault.end :])
    try:
        limit = START + SLOWER * sum(one.seconds for one in tests)
        done = pytest(tree, ["-x", *options, f"@{listed}"], limit)
    finally:
        path.write_bytes(source)
        # numba compiles a file anew if its time has changed
        os.utime(path, ns=(times.st_atime_ns, times.st_mtime_ns))
    if done.returncode == 0:
        return ""
    said = [line for line in done.stdout.splitlines() if line.startswith(("FAILED ", "ERROR "))]
    return said[0].partition(" - ")[0] if said else f"status {done.returncode}: {done.stdout[-200:].strip()}"


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
    parser.add_argument(
        "--folder", type=Path, default=Path(gettempdir()) / "clustersim_mutations", help="of records and results"
    )
    given = parser.parse_args()
    given.folder.mkdir(parents=True, exist_ok=True)
    suite, options = ("long", []) if given.long else ("short", ["--short"])
    calls, results = given.folder / f"{suite}_calls.jsonl", given.folder / f"{suite}_results.jsonl"
    with TemporaryDirectory() as folder:
        tree = Path(folder) / "tree"
        # published measurements lie beside the project; tests without them are skipped
        (Path(folder) / "shared").symlink_to(ROOT.parent / "shared")
        shutil.copytree(ROOT, tree, symlinks=True, ignore=lambda at, _: LEFT_BEHIND if Path(at) == ROOT else set())
        if not given.only_known:
            record(tree, TESTS, calls, options)
        known, found = recorded(calls), {json.dumps(row["fault"]): str(row["found"]) for row in rows(results)}
        for number, fault in enumerate(drawn(given.count, given.seed), 1):
            key = json.dumps(asdict(fault))
            if key not in found:
                tests = selected(fault, known)
                found[key] = judged(tree, fault, tests, options) if tests else ""
                append(results, {"fault": asdict(fault), "found": found[key], "tests": len(tests)})
            print(f"{number}. {fault}\n    {found[key] or 'not found'}", flush=True)
    print(f"the {suite} suite finds {sum(map(bool, found.values()))} of {len(found)}")


if __name__ == "__main__":
    main()
