"""Write the API reference from what `clustersim` offers: every name of its ``__all__``, by the module that defines it.

`docs/conf.py` calls `page` at build time; Sphinx's autodoc fills in docstrings and signatures.
"""

from __future__ import annotations

import inspect
from collections.abc import Iterator
from typing import Any

import clustersim

TITLE = (
    "# API reference\n\nWhat scripts, notebooks and extensions import. Every other module may change between versions."
)

MEMBERS = {"Scenario": "load, model_validate, cluster, schedule, run, sweep"}
"""The members of a class that are documented, where these are not all."""


def page() -> str:
    """Return the reference as one MyST Markdown page."""
    found = dict(sorted(_offered(), key=lambda item: (item[1].__module__, item[0])))
    parts = [TITLE, _block([".. autosummary::", "", *(f"   ~{name}" for name in found)])]
    parts += [_block(_directive(name, thing)) for name, thing in found.items()]
    return "\n\n".join(parts) + "\n"


def _offered() -> Iterator[tuple[str, Any]]:
    """Yield (dotted name, class or function) of what `clustersim` offers; types of values and constants are no part of
    the page.
    """
    for name in clustersim.__all__:
        thing = getattr(clustersim, name)
        if inspect.isclass(thing) or inspect.isfunction(thing):
            yield f"clustersim.{name}", thing


def _directive(name: str, thing: Any) -> list[str]:
    if not inspect.isclass(thing):
        return [f".. autofunction:: {name}"]
    kind = "autoexception" if issubclass(thing, Exception) else "autoclass"
    return [f".. {kind}:: {name}", f"   :members: {MEMBERS.get(thing.__name__, '')}".rstrip()]


def _block(lines: list[str]) -> str:
    return "\n".join(["```{eval-rst}", *lines, "```"])
