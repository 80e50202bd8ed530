"""Imports run downward only, in no circle, and the ground stays light."""

import ast
import subprocess
import sys
from pathlib import Path

import networkx as nx
import pytest

ROOT = Path(__file__).parents[1]
PACKAGES = ("simulator", "topologies", "workloads", "scenarios")

# the parts of the simulator, lowest layer first
LAYERS = (
    ("errors", "units", "lookup", "kernel", "hashing", "gc_paused", "least_squares"),
    ("accelerator", "document"),
    ("schedule", "cluster"),
    ("network", "timeline"),
    ("engine", "analysis", "replay"),
)


def modules():
    """Every module of the project by dotted name."""
    for package in PACKAGES:
        for path in sorted((ROOT / package).rglob("*.py")):
            parts = path.relative_to(ROOT).with_suffix("").parts
            yield ".".join(parts[:-1] if parts[-1] == "__init__" else parts), path


MODULES = dict(modules())


def imports(path):
    """What a file imports: also inside functions, and for type checking only."""
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{path}: relative import"
            for alias in node.names:
                whole = f"{node.module}.{alias.name}"
                yield whole if whole in MODULES else str(node.module)


def floor(module):
    """How high a module stands."""
    package, _, rest = module.partition(".")
    if package == "simulator":
        room = rest.partition(".")[0]
        if not room:
            return len(LAYERS)  # the public face sees all rooms
        return next(number for number, rooms in enumerate(LAYERS) if room in rooms)
    return len(LAYERS) + 1 + (package == "scenarios")


ARROWS = [
    (module, target) for module, path in MODULES.items() for target in imports(path) if target.split(".")[0] in PACKAGES
]


@pytest.mark.parametrize(("module", "target"), ARROWS)
def test_no_import_runs_up(module, target):
    assert floor(target) <= floor(module), f"{module} imports {target}, which stands above it"


def test_neither_wing_knows_the_other():
    wings = {"topologies", "workloads"}
    crossing = [(m, t) for m, t in ARROWS if {m.split(".")[0], t.split(".")[0]} == wings]
    assert crossing == []


def test_schedule_and_cluster_do_not_know_each_other():
    pairs = {("simulator.schedule", "simulator.cluster"), ("simulator.cluster", "simulator.schedule")}
    assert not pairs & set(ARROWS)


def test_no_circle():
    graph = nx.DiGraph(
        (module, target)
        for module, path in MODULES.items()
        for target in imports(path)
        if target in MODULES and target != module
    )
    circles = [sorted(part) for part in nx.strongly_connected_components(graph) if len(part) > 1]
    assert circles == []


@pytest.mark.parametrize("package", PACKAGES)
def test_importing_loads_neither_matplotlib_nor_torch(package):
    code = f"import {package}, sys; print(sorted({{'matplotlib', 'torch', 'scipy'}} & set(sys.modules)))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, cwd=ROOT)
    assert done.stdout.strip() == "[]"


def test_only_pictures_import_matplotlib():
    users = {module for module, path in MODULES.items() for name in imports(path) if name.startswith("matplotlib")}
    assert users
    assert all(module.startswith("simulator.analysis.plot") or "analysis" in module for module in users)


def test_lookup_is_the_only_use_of_importlib():
    users = {module for module, path in MODULES.items() for name in imports(path) if name.startswith("importlib")}
    assert users <= {"simulator.lookup", "scenarios.command", "simulator.engine.simulate"}
