"""`python -m tests.benchmarks.mutations` counts the seeded faults that the short and the long suite of tests find.

A fault is one edit of the syntax tree of a module: an operator is exchanged, a bound is off by one, a term or factor is
dropped, a constant is wrong, a condition is reversed. Each is made in a copy of the project, and tests run there until
one fails: first those of the module and the stored numbers of whole simulations, then the whole suite. `--near` ends
after the first; a fault that they do not find counts as not found. `--long` gives the faults that are left to the long
suite.

Results are appended to a file; what it has is not run again, so that a run can be interrupted. A hundred faults take a
night.
"""

from __future__ import annotations

import ast
import json
import os
import random
import resource
import shutil
import subprocess
import sys
from argparse import ArgumentParser
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory

from tests.benchmarks.processes import ROOT

PARTS: dict[str, tuple[str, ...]] = {
    "engine": ("simulator/engine",),
    "collectives": ("simulator/network/collectives", "simulator/network/plan.py", "simulator/network/library"),
    "pipelines": ("workloads/pipelines",),
    "memory": ("workloads/memory",),
    "pricing": (
        "simulator/engine/interface/pricing.py",
        "simulator/hardware/accelerator.py",
        "simulator/hardware/matrix_products.py",
        "workloads/memory/compute.py",
        "workloads/host_time.py",
        "workloads/architectures/timed_models.py",
    ),
}
"""Folders and files by what they do. Faults are drawn from each in turn."""

SIMULATIONS = "tests/test_golden.py"
"""Tests of whole simulations, which most faults change."""

ALL = ("tests", "clustersim")
"""All tests."""

LEFT_BEHIND = {".git", ".venv", "runs", "build", ".hypothesis", ".mypy_cache", ".pytest_cache", ".ruff_cache"}
"""What the copy of the project lacks. Code that numba has compiled is copied."""

SECONDS = 1200
"""Processor time of a process of tests, s. A fault that makes one longer is found."""

EXCHANGED: dict[type[ast.AST], type[ast.AST]] = {
    ast.Add: ast.Sub,
    ast.Sub: ast.Add,
    ast.Mult: ast.Div,
    ast.Div: ast.Mult,
    ast.FloorDiv: ast.Mult,
    ast.Mod: ast.FloorDiv,
    ast.Lt: ast.LtE,
    ast.LtE: ast.Lt,
    ast.Gt: ast.GtE,
    ast.GtE: ast.Gt,
    ast.Eq: ast.NotEq,
    ast.NotEq: ast.Eq,
    ast.And: ast.Or,
    ast.Or: ast.And,
}
"""The operator that a fault puts in place of another one."""

CALLS = {"min": "max", "max": "min", "ceil": "floor", "floor": "ceil", "any": "all", "all": "any"}
"""The function that a fault calls in place of another one."""


@dataclass(frozen=True)
class Fault:
    """In *file* the source between the bytes *begin* and *end* is *after* instead of *before*. *part*: of `PARTS`."""

    part: str
    file: str
    line: int
    begin: int
    end: int
    before: str
    after: str

    def __str__(self) -> str:
        return f"{self.file}:{self.line}: {self.before} -> {self.after}"


class Faults(ast.NodeVisitor):
    """All faults of the source *text*: pairs of a node and the expression in its place."""

    def __init__(self, text: str) -> None:
        self.found: list[tuple[ast.expr, ast.expr]] = []
        self.visit(ast.parse(text))

    def visit_AnnAssign(self, node: ast.AnnAssign) -> None:
        """Visit the value only; an annotation has no effect."""
        if node.value is not None:
            self.visit(node.value)

    def visit_ClassDef(self, node: ast.ClassDef) -> None:
        """Visit the body only; decorators say how a dataclass is stored."""
        for one in node.body:
            self.visit(one)

    def visit_FunctionDef(self, node: ast.FunctionDef) -> None:
        """Visit defaults and body; text for readers and developers (`__repr__`) has no effect on results."""
        if node.name not in ("__repr__", "__str__"):
            for one in (*node.args.defaults, *node.args.kw_defaults, *node.body):
                if one is not None:
                    self.visit(one)

    def visit_Raise(self, node: ast.Raise) -> None:
        """Skip what is raised: messages."""

    def visit_Assert(self, node: ast.Assert) -> None:
        """Skip assertions, which hold anyway."""

    def visit_JoinedStr(self, node: ast.JoinedStr) -> None:
        """Skip texts."""

    def visit_If(self, node: ast.If) -> None:
        """Skip a refusal, which is no result, and imports for types."""
        if not isinstance(node.body[0], ast.Raise) and ast.unparse(node.test) != "TYPE_CHECKING":
            self.generic_visit(node)

    def visit_BinOp(self, node: ast.BinOp) -> None:
        """Exchange the operator; drop either operand."""
        self.generic_visit(node)
        if isinstance(node.op, ast.BitOr):  # mostly a union of types
            return
        if type(node.op) in EXCHANGED:
            self._add(node, ast.BinOp(node.left, EXCHANGED[type(node.op)](), node.right))  # type: ignore[arg-type]
        if isinstance(node.op, ast.Add | ast.Sub | ast.Mult):
            self._add(node, node.left)

    def visit_Compare(self, node: ast.Compare) -> None:
        """Exchange the first operator."""
        self.generic_visit(node)
        if type(node.ops[0]) in EXCHANGED:
            first = EXCHANGED[type(node.ops[0])]()
            self._add(node, ast.Compare(node.left, [first, *node.ops[1:]], node.comparators))  # type: ignore[list-item]

    def visit_BoolOp(self, node: ast.BoolOp) -> None:
        """Exchange the operator; drop the last condition."""
        self.generic_visit(node)
        self._add(node, ast.BoolOp(EXCHANGED[type(node.op)](), node.values))  # type: ignore[arg-type]
        self._add(node, ast.BoolOp(node.op, node.values[:-1]) if len(node.values) > 2 else node.values[0])

    def visit_UnaryOp(self, node: ast.UnaryOp) -> None:
        """Drop a minus or a ``not``."""
        self.generic_visit(node)
        if isinstance(node.op, ast.USub | ast.Not):
            self._add(node, node.operand)

    def visit_Call(self, node: ast.Call) -> None:
        """Exchange the function."""
        self.generic_visit(node)
        if isinstance(node.func, ast.Name) and node.func.id in CALLS:
            self._add(node.func, ast.Name(CALLS[node.func.id]))

    def visit_Constant(self, node: ast.Constant) -> None:
        """Add one to an integer, a fifth to a fraction; reverse a truth value."""
        if isinstance(node.value, bool):
            self._add(node, ast.Constant(not node.value))
        elif isinstance(node.value, int):
            self._add(node, ast.Constant(node.value + 1))
        elif isinstance(node.value, float):
            self._add(node, ast.Constant(node.value * 1.2 if node.value else 1e-3))

    def _add(self, node: ast.expr, instead: ast.expr) -> None:
        self.found.append((node, instead))


def faults_of(part: str, file: Path) -> Iterator[Fault]:
    """All faults of one file."""
    text = file.read_text()
    lines = [0]
    for line in text.encode().splitlines(keepends=True):
        lines.append(lines[-1] + len(line))
    for node, instead in Faults(text).found:
        assert node.end_lineno is not None
        assert node.end_col_offset is not None
        begin, end = lines[node.lineno - 1] + node.col_offset, lines[node.end_lineno - 1] + node.end_col_offset
        after = ast.unparse(ast.fix_missing_locations(ast.Expression(instead)))
        name = file.relative_to(ROOT).as_posix()
        yield Fault(part, name, node.lineno, begin, end, ast.unparse(node), f"({after})")


def drawn(count: int, seed: int) -> list[Fault]:
    """*count* faults, from each of `PARTS` in turn; of a part each file is as likely as it is long."""
    draws = random.Random(seed)
    queues = []
    for part, places in PARTS.items():
        files = [file for place in places for file in sources(ROOT / place) if belongs(part, file)]
        every = [fault for file in files for fault in faults_of(part, file)]
        queues.append(draws.sample(every, len(every)))
    turns = (queue[place] for place in range(count) for queue in queues if place < len(queue))
    return [fault for fault, _ in zip(turns, range(count), strict=False)]


def sources(place: Path) -> list[Path]:
    """The modules at *place*, a folder or a file."""
    return sorted(place.rglob("*.py")) if place.is_dir() else [place]


def belongs(part: str, file: Path) -> bool:
    """True if *file* is listed for *part* itself or for no other part."""
    name = file.relative_to(ROOT).as_posix()
    return name in PARTS[part] or not any(name in places for other, places in PARTS.items() if other != part)


def near(file: str) -> list[str]:
    """Tests of the module *file*: those that import it, of whole simulations, in the folder with its name, its own."""
    module = file.removesuffix(".py").replace("/", ".").removesuffix(".__init__")
    package, _, name = module.rpartition(".")
    said = (f"{module} import", f"import {module}", f"from {package} import {name}")
    users = [
        path.relative_to(ROOT).as_posix()
        for path in sorted((ROOT / "tests").rglob("test_*.py"))
        if any(one in path.read_text() for one in said)
    ]
    mirrored = [folder for folder in (f"tests/{Path(file).parent}",) if (ROOT / folder).is_dir()]
    return [*users, SIMULATIONS, *mirrored, file]


def first_failure(tree: Path, tests: Sequence[str], options: Sequence[str]) -> str:
    """Run *tests* in *tree* until one fails; return its name, or an empty text if none does."""
    command = [sys.executable, "-m", "pytest", "-x", "-p", "no:cacheprovider", "--tb=no", *options, *tests]
    done = subprocess.run(
        command,
        check=False,
        cwd=tree,
        env={**os.environ, "PYTHONPATH": str(tree), "PYTHONDONTWRITEBYTECODE": "1"},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        preexec_fn=partial(resource.setrlimit, resource.RLIMIT_CPU, (SECONDS, SECONDS)),
    )
    if done.returncode in (0, 5):  # 5: there are no such tests
        return ""
    said = [line for line in done.stdout.splitlines() if line.startswith(("FAILED ", "ERROR "))]
    return said[0].partition(" - ")[0] if said else f"status {done.returncode}: {done.stdout[-200:].strip()}"


def judged(tree: Path, fault: Fault, stages: dict[str, list[str]], options: Sequence[str]) -> str:
    """Make *fault* in *tree*, run the *stages* in turn; return the stage that found it and the first failed test."""
    path = tree / fault.file
    source = path.read_bytes()
    path.write_bytes(source[: fault.begin] + fault.after.encode() + source[fault.end :])
    try:
        for stage, tests in stages.items():
            failed = first_failure(tree, tests, ["-m", "not testbed and not cluster", *options])
            if failed:
                return f"{stage}: {failed}"
    finally:
        path.write_bytes(source)
    return ""


def rows(path: Path) -> dict[Fault, dict[str, str]]:
    """The results at *path* by fault: what found it in the short and in the long suite."""
    lines = path.read_text().splitlines() if path.exists() else []
    return {Fault(**row["fault"]): row["found"] for row in map(json.loads, lines)}


def main() -> None:
    """Judge the faults that the file of results lacks; print a line for each, and the figures."""
    parser = ArgumentParser(prog="python -m tests.benchmarks.mutations", description=__doc__)
    parser.add_argument("--count", type=int, default=100, help="how many faults")
    parser.add_argument("--seed", type=int, default=1, help="of the faults")
    parser.add_argument("--near", action="store_true", help="end after the tests of the module and whole simulations")
    parser.add_argument("--long", action="store_true", help="give what is left to the long suite")
    parser.add_argument("--results", type=Path, default=ROOT / "build/mutations.jsonl", help="a line for each fault")
    given = parser.parse_args()
    given.results.parent.mkdir(parents=True, exist_ok=True)
    known, faults = rows(given.results), drawn(given.count, given.seed)
    with TemporaryDirectory() as folder:
        tree = Path(folder) / "tree"
        shutil.copytree(ROOT, tree, symlinks=True, ignore=lambda at, _: LEFT_BEHIND if Path(at) == ROOT else set())
        for number, fault in enumerate(faults, 1):
            found = known.setdefault(fault, {})
            stages = {"near": near(fault.file)}
            before = dict(found)
            if "short" not in found:
                found["short"] = judged(tree, fault, stages if given.near else stages | {"rest": [*ALL]}, ["--short"])
            if given.long and not found["short"] and "long" not in found:
                found["long"] = judged(tree, fault, {"long": [*ALL]}, [])
            if found != before:
                with given.results.open("a") as file:
                    file.write(json.dumps({"fault": asdict(fault), "found": found}) + "\n")
            print(f"{number}. {fault}\n    {found['short'] or found.get('long') or 'not found'}", flush=True)
    report([known[fault] for fault in faults])


def report(found: Sequence[dict[str, str]]) -> None:
    """Print how many faults either suite finds."""
    short = sum(bool(one["short"]) for one in found)
    print(f"the short suite finds {short} of {len(found)}")
    if any("long" in one for one in found):
        print(f"the long suite finds {sum(bool(one['short'] or one.get('long')) for one in found)} of {len(found)}")


if __name__ == "__main__":
    main()
