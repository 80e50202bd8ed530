"""Sphinx configuration of the site. `make docs` builds it into build/docs; nothing is fetched from the network."""

from __future__ import annotations

import shutil
import sys
from importlib import import_module
from importlib.metadata import version as version_of
from pathlib import Path
from typing import Any

DOCS = Path(__file__).parent
GENERATED = DOCS / "generated"
sys.path.insert(0, str(DOCS))

project = "clustersim"
author = "the clustersim authors"
project_copyright = "the clustersim authors"
version = release = version_of("clustersim")

extensions = ["myst_nb", "sphinx.ext.autodoc", "sphinx.ext.autosummary"]
html_theme = "furo"
html_title = f"clustersim {version}"
html_show_sourcelink = False

# a single backtick in a docstring is code
default_role = "literal"
autodoc_member_order = "bysource"
autodoc_typehints = "signature"

nb_execution_mode = "off"
myst_heading_anchors = 3


def write_generated(app: Any) -> None:
    """Write what the site takes from elsewhere: the references, and the notebooks as they stand."""
    GENERATED.mkdir(exist_ok=True)
    for name, script in (
        ("scenario", "scenario_reference"),
        ("commands", "command_reference"),
        ("api", "api_reference"),
    ):
        (GENERATED / f"{name}.md").write_text(import_module(script).page(), encoding="utf-8")
    shutil.rmtree(GENERATED / "notebooks", ignore_errors=True)
    shutil.copytree(DOCS.parent / "notebooks", GENERATED / "notebooks", ignore=shutil.ignore_patterns(".*"))


def setup(app: Any) -> None:
    """Have the generated pages written before Sphinx looks for its sources."""
    app.connect("builder-inited", write_generated)
