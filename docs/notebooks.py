"""Execute the notebooks and store them with their outputs: `make notebooks`, for some of them NOTEBOOKS="01 07".

Stored outputs are the same on every machine: no times, no paths. Pictures have 24 colours, which makes them small.
"""

from __future__ import annotations

import base64
import io
import os
import sys
from pathlib import Path
from typing import Any

import nbformat
from nbclient import NotebookClient
from PIL import Image

NOTEBOOKS = Path(__file__).parents[1] / "notebooks"
COLOURS = 24
"""Charts have flat colours; the rest is the smooth edges of letters."""
TIMEOUT = 600
"""Seconds for one cell."""


def main(numbers: list[str]) -> int:
    """Execute and store the notebooks that begin with one of *numbers*, or all."""
    paths = [path for path in sorted(NOTEBOOKS.glob("*.ipynb")) if path.name.startswith(tuple(numbers or [""]))]
    if not paths:
        print(f"no notebook begins with {' or '.join(numbers)}", file=sys.stderr)
        return 2
    # `!clustersim` in a notebook is the command of this environment
    os.environ["PATH"] = os.pathsep.join([str(Path(sys.executable).parent), os.environ["PATH"]])
    for path in paths:
        notebook: Any = nbformat.read(path, as_version=4)  # type: ignore[no-untyped-call]
        client = NotebookClient(
            notebook,
            timeout=TIMEOUT,
            record_timing=False,
            coalesce_streams=True,
            resources={"metadata": {"path": str(path.parent)}},
        )
        client.execute()
        store(notebook, path)
        print(f"stored {path.name}, {path.stat().st_size / 1e3:.0f} kB")
    return 0


def store(notebook: Any, path: Path) -> None:
    """Write *notebook* with small pictures and without what is of this machine."""
    # cells with `!clustersim` are no Python
    notebook.metadata.language_info = {"name": "python", "pygments_lexer": "ipython3"}
    for cell in notebook.cells:
        for output in cell.get("outputs", ()):
            output.pop("metadata", None) if output.output_type == "stream" else output.update(metadata={})
            data = output.get("data", {})
            if "image/png" in data:
                data["image/png"] = small(data["image/png"])
    nbformat.validate(notebook)
    nbformat.write(notebook, path)  # type: ignore[no-untyped-call]


def small(picture: str) -> str:
    """Return *picture*, a PNG in base64, with `COLOURS` colours and without metadata."""
    image = Image.open(io.BytesIO(base64.b64decode(picture))).convert("RGB")
    packed = io.BytesIO()
    image.quantize(COLOURS, dither=Image.Dither.NONE).save(packed, "png", optimize=True)
    return base64.b64encode(packed.getvalue()).decode()


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
