"""Draw the pictures in docs/ anew, and ACCURACY.md with them: `make pictures`.

`python docs/pictures.py timeline links` draws only these. A picture that cannot be drawn here is left as it is, and the
reason printed: `validation` needs torch, root and iproute2.
"""

from __future__ import annotations

import shutil
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path

from scenarios.command import run

DOCS = Path(__file__).parent
JOBS = "2"
"""Processes that share the published runs."""

LEFT_OUT = ("dash_frontier",)
"""Published runs that take more than ten minutes and 8 GB; `clustersim accuracy` judges them too."""


def _plotted(picture: str, scenario: str, *options: str) -> Callable[[], int]:
    return lambda: run(["plot", scenario, *options, "-o", str(DOCS / f"{picture}.png")])


def _accuracy() -> int:
    """Judge the published runs: ACCURACY.md, accuracy.png and ptd_p_against_zero_3.png."""
    left_out = [word for name in LEFT_OUT for word in ("--except", name)]
    return run(["accuracy", *left_out, "-j", JOBS, "-o", str(DOCS.parent / "ACCURACY.md"), "--figures", str(DOCS)])


def _validation() -> int:
    """Replay 1F1B on a testbed and keep the chart."""
    with tempfile.TemporaryDirectory() as folder:
        status = run(["validate", "two_nodes_of_2", "--testbed", "-o", folder])
        if status == 0:
            shutil.copyfile(Path(folder) / "validation_1f1b.png", DOCS / "validation.png")
    return status


PICTURES: dict[str, Callable[[], int]] = {
    "timeline": _plotted("timeline", "zhores_resnet50_ddp", "timeline", "--ranks", "0:4"),
    "links": _plotted("links", "zhores_resnet50_ddp", "links"),
    "validation": _validation,
    "accuracy": _accuracy,
}


def main(names: list[str]) -> int:
    """Draw the pictures of those *names*, all if there are none; return 1 if one could not be drawn."""
    unknown = [name for name in names if name not in PICTURES]
    if unknown:
        print(f"there is no picture {unknown[0]}; there are {', '.join(PICTURES)}", file=sys.stderr)
        return 2
    failed = [name for name in names or PICTURES if PICTURES[name]() != 0]
    for name in failed:
        print(f"{name}: not drawn, for the reason above; what is in docs/ stays", file=sys.stderr)
    return 1 if failed else 0


if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1:]))
