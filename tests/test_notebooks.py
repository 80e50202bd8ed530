"""Notebooks are stored with their outputs, import only what is public, and tell nothing of a machine."""

import ast
import base64
import json
import re
import struct
import sys
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).parents[1]
NOTEBOOKS = sorted((ROOT / "notebooks").glob("*.ipynb"))
PUBLIC = {"clustersim", "numpy", "pandas", "matplotlib", "IPython"}
"""Packages that a notebook may import beside the standard library; of this project only the facade."""
LARGEST = 310_000
"""Bytes of a notebook that a code host still shows at once."""
OF_A_MACHINE = re.compile(r"/(?:tmp|home|root|work|usr|opt|Users|var)/|[A-Z]:\\\\|\bat 0x[0-9a-f]{6,}|\bwall_s\b")
"""Paths, and addresses of objects in memory."""


def code_cells(notebook: dict[str, Any]) -> list[dict[str, Any]]:
    return [cell for cell in notebook["cells"] if cell["cell_type"] == "code"]


def python(cell: dict[str, Any]) -> str:
    """The Python of a cell, without lines of IPython."""
    source = "".join(cell["source"])
    return "" if source.startswith("%%") else re.sub(r"^[%!].*$", "", source, flags=re.M)


def imported(tree: ast.AST) -> set[str]:
    """The modules that a cell imports; names of a module of this project as dotted names."""
    found = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            found.add(str(node.module))
    return found


def private(tree: ast.AST) -> list[str]:
    names = [node.attr for node in ast.walk(tree) if isinstance(node, ast.Attribute)]
    return [name for name in names if name.startswith("_")]


def forbidden(module: str) -> bool:
    """True if *module* is neither the facade nor one of the libraries that readers of notebooks know."""
    package = module.partition(".")[0]
    if package in sys.stdlib_module_names:
        return False
    return package not in PUBLIC or (package == "clustersim" and module != package)


def faults(path: Path) -> list[str]:
    """What is wrong with the notebook at *path*."""
    notebook = json.loads(path.read_text(encoding="utf-8"))
    cells = code_cells(notebook)
    trees = [ast.parse(python(cell)) for cell in cells]
    outputs = [output for cell in cells for output in cell["outputs"]]
    found = [f"imports {name}" for tree in trees for name in sorted(imported(tree)) if forbidden(name)]
    found += [f"uses {name}" for tree in trees for name in private(tree)]
    found += [f"{cell['id']} was not executed" for cell in cells if cell["execution_count"] is None]
    found += ["an error is stored" for output in outputs if output["output_type"] == "error"]
    found += ["stderr is stored" for output in outputs if output.get("name") == "stderr"]
    found += [] if pictures(notebook) else ["has no picture"]
    # a picture's base64 may have any letters
    texts = [{key: data for key, data in output.get("data", {}).items() if key != "image/png"} for output in outputs]
    told = json.dumps(
        [texts, [output.get("text") for output in outputs], notebook["metadata"], cells_metadata(notebook)]
    )
    found += [f"tells {match}" for match in OF_A_MACHINE.findall(told)]
    found += [f"has {path.stat().st_size:,} bytes"] if path.stat().st_size > LARGEST else []
    return found


def cells_metadata(notebook: dict[str, Any]) -> list[Any]:
    return [cell["metadata"] for cell in notebook["cells"]]


def pictures(notebook: dict[str, Any]) -> list[bytes]:
    data = [output.get("data", {}) for cell in code_cells(notebook) for output in cell["outputs"]]
    return [base64.b64decode("".join(one["image/png"])) for one in data if "image/png" in one]


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_a_notebook_is_stored_as_readers_need_it(path: Path) -> None:
    assert faults(path) == []


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_pictures_are_whole_and_of_a_legible_size(path: Path) -> None:
    found = pictures(json.loads(path.read_text(encoding="utf-8")))
    for picture in found:
        assert picture.startswith(b"\x89PNG")
        assert picture.endswith(b"IEND\xaeB`\x82")
        width, height = struct.unpack(">II", picture[16:24])
        assert 700 <= width <= 1600
        assert 200 <= height <= 1600
    assert found


@pytest.mark.parametrize(
    ("source", "fault"),
    [
        ("from clustersim.simulator.simulate import simulate", "imports clustersim.simulator.simulate"),
        ("from clustersim.scenarios.search.answer import answer", "imports clustersim.scenarios.search.answer"),
        ("result._timeline", "uses _timeline"),
        ("print('/home/me/runs')", "tells /home/"),
    ],
)
def test_faults_are_found(source: str, fault: str, tmp_path: Path) -> None:
    notebook = json.loads(NOTEBOOKS[0].read_text(encoding="utf-8"))
    cell = code_cells(notebook)[1]
    cell["source"] = source
    cell["outputs"] = [{"output_type": "stream", "name": "stdout", "text": source}]
    path = tmp_path / "faulty.ipynb"
    path.write_text(json.dumps(notebook), encoding="utf-8")
    assert faults(path) == [fault]
