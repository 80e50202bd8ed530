"""`clustersim list` prints the names that scenarios may use.

Reading all files of the catalogue takes seconds, so the lists are kept in ``lists.json`` with a digest of the files of
each. A list whose files have changed is made from them. `keep` writes ``lists.json``:
``python -c "from clustersim.scenarios.commands.listing import keep; keep()"``.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from functools import cache
from pathlib import Path
from typing import Annotated, Any

import typer

from clustersim.scenarios.commands.application import command
from clustersim.scenarios.commands.terminal import say
from clustersim.simulator.reading.errors import ScenarioError
from clustersim.simulator.reading.lookup import files, find, names
from clustersim.simulator.reading.plain_text import table
from clustersim.simulator.reading.units import show

PACKAGES = {
    "models": "clustersim.workloads.models",
    "gpus": "clustersim.topologies.gpus",
    "clusters": "clustersim.topologies.clusters",
    "links": "clustersim.topologies.links",
    "fabrics": "clustersim.topologies.fabrics",
    "schedules": "clustersim.workloads.pipelines",
    "algorithms": "clustersim.simulator.network.collectives",
    "software": "clustersim.workloads.software",
}
TABLES = ("regions", "accounts")
"""Tables with sources: carbon intensity by region, and published accounts of training runs."""

KEPT = Path(__file__).with_name("lists.json")
SCENARIOS = Path(__file__).parents[1]


@command("list")
def list_names(
    kind: Annotated[
        str | None, typer.Argument(help=f"{', '.join([*PACKAGES, *TABLES])} or scenarios; all names if none.")
    ] = None,
) -> None:
    """List models, GPUs, clusters, links, fabrics, orders, algorithms, software, scenarios, or a table."""
    kinds = [*PACKAGES, *TABLES, "scenarios"]
    if kind is not None and kind not in kinds:
        from clustersim.simulator.reading.validation import listed

        raise ScenarioError(f'there is no list of "{kind}"; ask for {listed(kinds)}')
    for one in [kind] if kind else [*PACKAGES, "scenarios"]:
        if not kind:
            print(f"{one}:")
        for line in kept(one) or made(one):
            say(line if kind else f"  {line}")


def kept(kind: str) -> list[str]:
    """Return the lines of the list *kind* in `KEPT`; none if it is not there, or its files have changed."""
    found = _all_kept().get(kind)
    if found is None or found["digest"] != digest(kind, found["folders"]):
        return []
    lines: list[str] = found["lines"]
    return lines


@cache
def _all_kept() -> dict[str, Any]:
    try:
        return dict(json.loads(KEPT.read_text(encoding="utf-8")))
    except (OSError, ValueError):
        return {}


def digest(kind: str, folders: list[str]) -> str:
    """Return a digest of the names and the contents of the files of the list *kind*; scenarios are in *folders*."""
    from hashlib import sha256

    scenarios = (path for folder in folders for path in sorted((SCENARIOS / folder).glob("*.yaml")))
    total = sha256()
    for path in scenarios if kind == "scenarios" else files(PACKAGES[kind]):
        total.update(f"{path.name} {sha256(path.read_bytes()).hexdigest()}\n".encode())
    return total.hexdigest()


def keep() -> None:
    """Write `KEPT` for the present files."""
    KEPT.write_text(text_to_keep(), encoding="utf-8")


def text_to_keep() -> str:
    """Return the text of `KEPT` for the present files."""
    from clustersim.scenarios.specification.loading import FOLDERS

    lists = {}
    for kind in (*PACKAGES, "scenarios"):
        folders = ["", *FOLDERS] if kind == "scenarios" else []
        lists[kind] = {"digest": digest(kind, folders), "folders": folders, "lines": made(kind)}
    return json.dumps(lists, indent=1, ensure_ascii=False) + "\n"


def made(kind: str) -> list[str]:
    """Return the lines of the list *kind*, from its files."""
    from clustersim.scenarios.specification import loading

    if kind == "scenarios":
        folders = {name: folder for folder in ("", *loading.FOLDERS) for name in loading.shipped(folder)}
        return table([[name, _described(name, folder)] for name, folder in folders.items()], align="ll").splitlines()
    if kind == "regions":
        from clustersim.scenarios.specification.cost import regions

        return table([[name, f"{kg:g} kg/kWh"] for name, kg in regions().items()], align="lr").splitlines()
    if kind == "accounts":
        from clustersim.scenarios.specification.cost import accounts_table

        return accounts_table().splitlines()
    if kind in ROWS:
        row, align = ROWS[kind]
        lines = table([row(name) for name in names(PACKAGES[kind])], align=align).splitlines()
        return [*lines, *_composed()] if kind == "software" else lines
    extra = loading.WITHOUT_FILE["cluster"] if kind == "clusters" else ()
    return sorted([*names(PACKAGES[kind]), *extra])


def _stack(name: str) -> list[str]:
    """Return the name of a software stack and its description."""
    from clustersim.workloads.software_stack import specification

    return [name, specification(name).description]


def _composed() -> list[str]:
    """Return lines of the stacks that are composed of others: name, what of, and description."""
    from clustersim.workloads.software_stack import GROUPS, aliases

    rows = [
        [name, " + ".join([entry["preset"], *entry.get(GROUPS, [])]), entry["description"]]
        for name, entry in sorted(aliases().items())
    ]
    return ["", "composed of these:", *table(rows, align="lll").splitlines()]


def _model(name: str) -> list[str]:
    """Return the name of a model of the catalogue, its number of parameters and its description."""
    from clustersim.workloads.architectures.specification import model, specification

    count = model(name).parameters
    shown = f"{count / 1e9:.4g}B" if count >= 1e9 else f"{count / 1e6:.4g}M"
    return [name, shown, specification(name).description]


def _gpu(name: str) -> list[str]:
    """Return the name of a GPU of the catalogue, its dense peak in 16 bits, its memory and its memory bandwidth."""
    from math import isfinite

    from clustersim.topologies.catalogue import GPUS, device

    data = device(GPUS, name)
    made = data.accelerator()
    # of bf16 where both are stated and differ, as on Gaudi 3: models train in it
    peaks = made.peak_flops if isinstance(made.peak_flops, dict) else {}
    peak = made.peak(next((precision for precision in ("bf16", "fp16") if precision in peaks), "fp32"))
    sizes = ((made.memory_bytes, "size"), (made.memory_bandwidth, "bandwidth"))
    return [name, show(peak, "rate"), *(show(value, unit) if isfinite(value) else "unlimited" for value, unit in sizes)]


def _link(name: str) -> list[str]:
    """Return the name of a link of the catalogue, its bandwidth in one direction and its latency."""
    from clustersim.topologies.catalogue import link_data

    data = link_data(name)
    return [name, show(data.bandwidth, "bandwidth"), show(data.latency, "time")]


def _algorithm(name: str) -> list[str]:
    """Return the name of an algorithm, its collectives, for how many ranks it is, and its description."""
    from clustersim.simulator.network.library.tuner import FOLDER, ranks_allowed
    from clustersim.simulator.schedule.ops import COLLECTIVES

    module = find(FOLDER, name)
    kinds = ", ".join(kind for kind in COLLECTIVES if hasattr(module, kind))
    sentence = " ".join((module.__doc__ or "").split()).partition(". ")[0].rstrip(".")
    return [name, kinds, ranks_allowed(name) or "any ranks", sentence]


ROWS: Mapping[str, tuple[Callable[[str], list[str]], str]] = {
    "models": (_model, "lrl"),
    "gpus": (_gpu, "lrrr"),
    "links": (_link, "lrr"),
    "software": (_stack, "ll"),
    "algorithms": (_algorithm, "llll"),
}
"""Lists of more than names: the row of a name, and how its columns are aligned."""


def _described(name: str, folder: str) -> str:
    """Return the description of the shipped scenario of that name, in one line, after its *folder*."""
    from clustersim.scenarios.specification import loading
    from clustersim.simulator.reading.yaml_and_json import read

    text = " ".join(str(read(loading.located(name)).get(("description",), "")).split())
    return f"{folder}: {text}" if folder else text
