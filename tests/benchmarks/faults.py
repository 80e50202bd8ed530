"""Seeded faults: single edits of the syntax tree of a module.

An operator is exchanged, a bound is off by one, a term or factor is dropped, a constant is wrong, a condition is
reversed. What raises, asserts or formats text is left as it is.
"""

from __future__ import annotations

import ast
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from hashlib import sha256
from pathlib import Path

from tests.benchmarks.processes import ROOT

PARTS: dict[str, tuple[str, ...]] = {
    "engine": ("simulator/engine",),
    "collectives": ("simulator/network/collectives", "simulator/network/plan.py", "simulator/network/library"),
    "pipelines": ("workloads/pipelines",),
    "memory": ("workloads/memory",),
    "pricing": (
        "simulator/engine/pricing.py",
        "simulator/hardware/accelerator.py",
        "simulator/hardware/matrix_products.py",
        "workloads/memory/compute.py",
        "workloads/software_stack.py",
        "workloads/architectures/timed_models.py",
    ),
}
"""Folders and files by what they do. Faults are drawn from each in turn."""

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


EQUIVALENT: dict[tuple[str, str, str, str, int], str] = {
    ("simulator/engine/compiled/event_loop.py", "_fill", "1.0", "(1.2)", 0): (
        "any rate below 0 marks a flow that is not fixed, and each gets its rate"
    ),
    ("simulator/engine/compiled/event_loop.py", "_precedes", "one.since < two.since", "(one.since <= two.since)", 0): (
        "times that differ by more than an instant are not equal"
    ),
    ("simulator/engine/compiled/event_loop.py", "_remove_level", "size - 1", "(size)", 2): (
        "the last level is compared with itself, which ends the loop"
    ),
    ("simulator/engine/compiled/execution.py", "CompiledExecution._outcome", "0", "(1)", 0): (
        "room for more records, of which no more come"
    ),
    (
        "simulator/engine/compiled/execution.py",
        "_state",
        "1",
        "(2)",
        2,
    ): "room for more on a stack, of which no more come",
    (
        "simulator/engine/folding/non_binding.py",
        "_parts",
        "np.cumsum(costs) // AT_ONCE",
        "(np.cumsum(costs) * AT_ONCE)",
        0,
    ): "smaller parts of the same work",
    ("simulator/engine/reference/resources.py", "", "2", "(3)", 0): "only the order of RATES and CHOICES counts",
    ("simulator/hardware/accelerator.py", "", "257", "(258)", 0): "the range from 32 in steps of 32 ends at 256 anyway",
    ("simulator/network/collectives/binomial.py", "_rounds", "holding < size", "(holding <= size)", 0): (
        "a further step without transfers, which the tuner drops"
    ),
    ("workloads/memory/offload_and_recompute_compiled.py", "_close", "0 <= left <= slots", "(0 < left <= slots)", 0): (
        "a copy that ends in no room has no bytes"
    ),
    ("workloads/memory/offload_and_recompute_compiled.py", "solve", "0 <= left <= slots", "(0 < left <= slots)", 0): (
        "a copy that ends in no room has no bytes"
    ),
    ("workloads/memory/offload_and_recompute_tables.py", "Filling.__init__", "known / 2", "(known * 2)", 0): (
        "a bound above which plans are not looked for"
    ),
    (
        "workloads/memory/optimal_checkpointing.py",
        "_undominated",
        "rest.peak < best[-1].peak",
        "(rest.peak <= best[-1].peak)",
        0,
    ): "keeps what another one equals, which comes first",
    ("workloads/memory/optimizer.py", "", "0.0", "(0.001)", 0): "the bytes of each of no states",
    ("workloads/pipelines/_row_patterns.py", "Row._next", "phase == 'F'", "(phase != 'F')", 0): (
        "exchanges the names of two counters"
    ),
}
"""Faults (file, function, before, after, place) that change no result, and why. They are not drawn."""


@dataclass(frozen=True)
class Fault:
    """In *file* the source between the bytes *begin* and *end* is *after* instead of *before*.

    *part*: of `PARTS`. *function*: the qualified name of the function around it; empty at the level of the module.
    *place*: its number among equal ones of the function.
    """

    part: str
    file: str
    line: int
    function: str
    begin: int
    end: int
    before: str
    after: str
    place: int = 0

    def rank(self, seed: int) -> bytes:
        """Return by what faults are ordered that are drawn with *seed*: what else there is makes no difference."""
        return sha256(repr((seed, self.file, self.function, self.before, self.after, self.place)).encode()).digest()

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

    def visit_keyword(self, node: ast.keyword) -> None:
        """Visit the value, but not that of ``strict``, which asserts that lengths are equal."""
        if node.arg != "strict":
            self.generic_visit(node)

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
    functions = functions_of(ast.parse(text))
    seen: Counter[tuple[str, str, str]] = Counter()
    for node, instead in Faults(text).found:
        assert node.end_lineno is not None
        assert node.end_col_offset is not None
        begin, end = lines[node.lineno - 1] + node.col_offset, lines[node.end_lineno - 1] + node.end_col_offset
        after = ast.unparse(ast.fix_missing_locations(ast.Expression(instead)))
        name = file.relative_to(ROOT).as_posix()
        around = [one for one, (first, last) in functions.items() if first <= node.lineno <= last]
        function = max(around, key=lambda one: functions[one][0], default="")
        before = ast.unparse(node)
        place = seen[function, before, after]
        seen[function, before, after] += 1
        yield Fault(part, name, node.lineno, function, begin, end, before, f"({after})", place)


def functions_of(tree: ast.AST, outer: str = "") -> dict[str, tuple[int, int]]:
    """Return the first and the last line of each function in *tree* by its qualified name, as of a code object."""
    found: dict[str, tuple[int, int]] = {}
    for node in ast.iter_child_nodes(tree):
        inner = outer
        if isinstance(node, ast.FunctionDef):
            assert node.end_lineno is not None
            found[outer + node.name] = node.lineno, node.end_lineno
            inner = f"{outer}{node.name}.<locals>."
        elif isinstance(node, ast.ClassDef):
            inner = f"{outer}{node.name}."
        found |= functions_of(node, inner)
    return found


def drawn(count: int, seed: int) -> list[Fault]:
    """*count* faults, from each of `PARTS` in turn; of a part each file is as likely as it is long.

    What a fault is decides whether it is drawn: other changes of the sources leave it drawn or not. `EQUIVALENT` ones
    are passed over.
    """
    queues = []
    for part, places in PARTS.items():
        files = [file for place in places for file in sources(ROOT / place) if belongs(part, file)]
        every = [fault for file in files for fault in faults_of(part, file) if not equivalent(fault)]
        queues.append(sorted(every, key=lambda fault: fault.rank(seed)))
    turns = (queue[place] for place in range(count) for queue in queues if place < len(queue))
    return [fault for fault, _ in zip(turns, range(count), strict=False)]


def equivalent(fault: Fault) -> bool:
    """Return whether *fault* is one of `EQUIVALENT`."""
    return (fault.file, fault.function, fault.before, fault.after, fault.place) in EQUIVALENT


def sources(place: Path) -> list[Path]:
    """The modules at *place*, a folder or a file."""
    return sorted(place.rglob("*.py")) if place.is_dir() else [place]


def belongs(part: str, file: Path) -> bool:
    """True if *file* is listed for *part* itself or for no other part."""
    name = file.relative_to(ROOT).as_posix()
    return name in PARTS[part] or not any(name in places for other, places in PARTS.items() if other != part)
