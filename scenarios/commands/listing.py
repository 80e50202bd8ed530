"""`clustersim list` prints the names that scenarios may use."""

from __future__ import annotations

from typing import Annotated

import typer

from scenarios.application import app
from scenarios.commands.terminal import say

PACKAGES = {
    "models": "workloads.models",
    "gpus": "topologies.gpus",
    "clusters": "topologies.clusters",
    "links": "topologies.links",
    "fabrics": "topologies.fabrics",
    "schedules": "workloads.pipelines",
    "software": "workloads.software",
}


@app.command("list")
def list_names(
    kind: Annotated[
        str | None, typer.Argument(help=f"{', '.join(PACKAGES)} or scenarios; all of them if none.")
    ] = None,
) -> None:
    """List models, GPUs, clusters, links, fabrics, schedules, software stacks and scenarios."""
    kinds = [*PACKAGES, "scenarios"]
    if kind is not None and kind not in kinds:
        from simulator.document.validation import listed
        from simulator.errors import ScenarioError

        raise ScenarioError(f'there is no list of "{kind}"; ask for {listed(kinds)}')
    for one in [kind] if kind else kinds:
        if not kind:
            print(f"{one}:")
        for line in _lines(one):
            say(line if kind else f"  {line}")


def _lines(kind: str) -> list[str]:
    from scenarios.specification import loading
    from simulator.analysis.text import table
    from simulator.lookup import names

    if kind == "links":
        return table([_link(name) for name in names(PACKAGES[kind])], align="lrr").splitlines()
    if kind != "scenarios":
        extra = loading.WITHOUT_FILE["cluster"] if kind == "clusters" else ()
        return sorted([*names(PACKAGES[kind]), *extra])
    found = {name: folder for folder in ("", *loading.FOLDERS) for name in loading.shipped(folder)}
    width = max(map(len, found), default=0)
    return [f"{name:<{width}}  {_described(name, folder)}".rstrip() for name, folder in found.items()]


def _link(name: str) -> list[str]:
    """Return the name of a link of the catalogue, its bandwidth in one direction and its latency."""
    from simulator.units import show
    from topologies.catalogue import link_data

    data = link_data(name)
    return [name, show(data.bandwidth, "bandwidth"), show(data.latency, "time")]


def _described(name: str, folder: str) -> str:
    """Return the description of the shipped scenario of that name, in one line, after its *folder*."""
    from scenarios.specification import loading
    from simulator.document import read

    text = " ".join(str(read(loading.located(name)).get(("description",), "")).split())
    return f"{folder}: {text}" if folder else text
