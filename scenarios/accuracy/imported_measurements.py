"""Fits of measurements that were made elsewhere.

Rows of communication and the inventory of a server determine a transport and a cluster. Tables (CSV) determine
constants of NCCL, of GPUs and of software stacks, by their columns or names.
"""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from dataclasses import replace
from math import isfinite
from pathlib import Path
from typing import Any

from clustersim import topologies
from clustersim.scenarios.accuracy import communication, gpus, products, published_runs
from clustersim.scenarios.accuracy.communication import RankPlacement, calibration_report, how_to_use, outcome
from clustersim.scenarios.accuracy.nccl import calibration as nccl_calibration
from clustersim.scenarios.scenario import Scenario
from clustersim.simulator.network.library import nccl
from clustersim.simulator.network.library.calibration_file import transport
from clustersim.simulator.network.library.nccl_tables import VERSIONS
from clustersim.simulator.network.transport import Transport
from clustersim.simulator.reading.dataclass import dataclass
from clustersim.simulator.reading.errors import CalibrationError
from clustersim.simulator.reading.files import UnreadableFile, read_rows, read_text, write_text
from clustersim.simulator.reading.validation import Fault, listed
from clustersim.simulator.reading.yaml_and_json import parse_json, shown_at, yaml_text
from clustersim.simulator.replay import nccl_tests
from clustersim.simulator.replay.measurements import Measurement
from clustersim.simulator.replay.nccl_tests import Sweeps
from clustersim.topologies import inventory_files
from clustersim.topologies.inventory import Inventory, gpu_called, graph, section

LARGEST = 64 * 2**20
"""Bytes of a file. The sweep of a day is far smaller."""


@dataclass(frozen=True)
class Overrides:
    """The user's values for what the files lack: names of a GPU and of a NIC's link, number of servers."""

    accelerator: str | None = None
    nic: str | None = None
    nodes: int | None = None


@dataclass(frozen=True)
class Sources:
    """*sweeps* by file, and the *inventory* of a server, if any.

    *by_torch*: torch.distributed was measured, not the *library* by itself.
    """

    sweeps: dict[str, Sweeps]
    library: str
    inventory: Inventory | None
    by_torch: bool = True


def read(files: Sequence[Path], output: Path, scenario: Scenario | None, overrides: Overrides) -> str:
    """Fit the contents of *files*, write the result to *output*, and return the report.

    The ranks are on the cluster of *scenario*, or else on one described by the inventory or by the headings of the
    sweeps. Raises `CalibrationError` with file and line.
    """
    sources = taken(files)
    if not sources.sweeps:
        return _inventory_only(sources, output, overrides)
    measurements = [one for sweeps in sources.sweeps.values() for one in sweeps.measurements]
    placement, cluster = _placement(sources, scenario, overrides)
    found = outcome(_placed(measurements, placement), placement, _library(sources))
    origin = {"from": [path.name for path in files], "library": sources.library}
    data = communication.contents(found, communication.elsewhere(placement.ranks, origin))
    communication.write(data if cluster is None else {**data, "cluster": cluster}, output)
    use = how_to_use(found, output, cluster is not None)
    return f"{calibration_report(found)}\nwrote {output}\n{use}"


def taken(files: Sequence[Path]) -> Sources:
    """Return the contents of *files*, each read by its kind. Raises `CalibrationError` for a file of unknown kind."""
    sweeps: dict[str, Sweeps] = {}
    inventory, library, by_torch = None, "nccl", True
    for path in files:
        content = _content(path)
        if isinstance(content, Inventory):
            inventory = content
        else:
            sweeps[str(path)], library, by_torch = content
    return Sources(sweeps, library, inventory, by_torch)


def _content(path: Path) -> Inventory | tuple[Sweeps, str, bool]:
    """Return an inventory, or measurements with their library and whether torch.distributed ran it."""
    text, name = _text(path), str(path)
    if text.lstrip().startswith("<"):
        return inventory_files.read_nccl_topology(text, name)
    if text.lstrip().startswith("{"):
        return _json(text, name)
    if nccl_tests.is_text(text):
        return nccl_tests.of_text(text, name), "nccl", False
    if inventory_files.is_nvidia_smi(text):
        return inventory_files.read_nvidia_smi(text, name)
    if nccl_tests.has_rows(text):
        raise CalibrationError(
            f"{name}: has rows of numbers without the lines above them; give the whole output of nccl-tests, with the "
            'list of ranks ("# Rank  0 ... on HOST device  0 [...] GPU") and the header ("# size count type ... time '
            'algbw busbw")'
        )
    raise CalibrationError(
        f"{name}: must be nccl-tests' text or JSON, nvidia-smi topo -m, NCCL's topology XML, kept rows, or CSV"
    )


def _text(path: Path) -> str:
    try:
        return read_text(path, LARGEST)
    except UnreadableFile as error:
        raise CalibrationError(str(error)) from None


def _json(text: str, name: str) -> tuple[Sweeps, str, bool]:
    try:
        data = parse_json(text)
    except Fault as fault:
        raise CalibrationError(f"{shown_at(name, fault)}: {fault.message}") from None
    if isinstance(data.get("results"), list):
        return nccl_tests.of_json(data, name), "nccl", False
    if isinstance(data.get("measurements"), list):
        rows = tuple(_row(name, number, row) for number, row in enumerate(data["measurements"]))
        if not rows:
            raise CalibrationError(f"{name}: has no measurements")
        return Sweeps(rows, 1 + max(max(row.ranks) for row in rows)), str(data.get("backend", "gloo")), True
    raise CalibrationError(f"{name}: has neither results, as nccl-tests writes them (-J), nor measurements")


def _row(name: str, number: int, row: Any) -> Measurement:
    try:
        ranks, spread = tuple(map(int, row["ranks"])), float(row.get("spread", 0.0))
        made = Measurement(str(row["kind"]), ranks, float(row["nbytes"]), float(row["seconds"]), spread)
        if not ranks or not all(map(isfinite, (made.nbytes, made.seconds, spread))):
            raise ValueError("must be finite, of at least one rank")
        return made
    except (AttributeError, KeyError, TypeError, ValueError, OverflowError):
        raise CalibrationError(
            f"{name}: measurements[{number}]: must have kind, ranks, nbytes and seconds, not {json.dumps(row)[:60]}"
        ) from None


def _inventory_only(sources: Sources, output: Path, overrides: Overrides) -> str:
    if sources.inventory is None:
        raise CalibrationError("the files have neither measurements nor a topology")
    if output.suffix == ".json":
        data = graph(sources.inventory, accelerator=overrides.accelerator, nic=overrides.nic)
        write_text(output, json.dumps(data, indent=1) + "\n")
        return f"wrote {output}\nnext: cluster: {{graph: {output}}}"
    cluster = section(sources.inventory, overrides.nodes or 1, accelerator=overrides.accelerator, nic=overrides.nic)
    topologies.cluster(cluster)  # raise before a section is written that no scenario accepts
    communication.write({"version": 1, "cluster": cluster}, output)
    return f"{yaml_text({'cluster': cluster})}wrote {output}\nnext: cluster: {{preset: {output}}}"


def _library(sources: Sources) -> Transport:
    """The measured library; for NCCL the newest tables that are not newer than it.

    nccl-tests measure it without torch's handover, which a training step has all the same: it is no part of the fit.
    """
    if sources.library != "nccl":
        return transport(sources.library)
    library = _nccl(sources)
    return library if sources.by_torch else replace(library, handover=0.0)


def _nccl(sources: Sources) -> Transport:
    measured = [sweeps.version for sweeps in sources.sweeps.values() if sweeps.version]
    if not measured:
        return nccl.nccl()
    versions = sorted(VERSIONS, key=_numbers)
    return nccl.nccl(
        max((v for v in versions if _numbers(v) <= _numbers(measured[0])), key=_numbers, default=versions[0])
    )


def _numbers(version: str) -> tuple[int, ...]:
    return tuple(map(int, version.split(".")))


def _placement(
    sources: Sources, scenario: Scenario | None, overrides: Overrides
) -> tuple[RankPlacement, dict[str, Any] | None]:
    """The placement of the ranks, and the cluster to write if it is not the scenario's."""
    ranks = max(sweeps.ranks for sweeps in sources.sweeps.values())
    servers = overrides.nodes or max(sweeps.servers for sweeps in sources.sweeps.values())
    if scenario is not None:
        placement = RankPlacement.of(scenario)
        if placement.ranks < ranks:
            raise CalibrationError(f"{ranks} ranks were measured, but the scenario has {placement.ranks}")
        return placement.of_ranks(ranks), None
    accelerator = overrides.accelerator or gpu_called(" ".join(one.gpu for one in sources.sweeps.values()))
    if sources.inventory is not None:
        cluster = section(sources.inventory, servers, accelerator=accelerator, nic=overrides.nic)
        built = topologies.cluster(cluster)
        if len(built.gpus) < ranks:
            raise CalibrationError(
                f"{ranks} ranks were measured, but {servers} such servers have {len(built.gpus)} GPUs"
            )
        return RankPlacement(ranks, built, built.gpus[:ranks]), cluster
    if servers > 1:
        raise CalibrationError(
            f"the files do not describe the network between the {servers} servers; add nvidia-smi topo -m or NCCL's"
            " topology XML, or name a scenario on that cluster with --on"
        )
    return RankPlacement(ranks), None


def _placed(measurements: Sequence[Measurement], placement: RankPlacement) -> list[Measurement]:
    if any(max(one.ranks) >= placement.ranks for one in measurements):
        raise CalibrationError(f"a row has ranks beyond the {placement.ranks} of the placement")
    return list(measurements)


ALL_REDUCES = (
    {"gpu", "ngpus", "size_bytes", "in_place_us"},
    {"nodes", "gpus_total", "size_bytes", "time_us"},
    {"size_bytes", "in_place_us"},
    {"gpu", "collective", "ranks", "size_bytes", "time_us"},
)
"""Columns of tables of all-reduces, and of one of several collectives."""

COMMUNICATION, COMPUTATION, PRODUCTS = "communication", "computation", "matrix products"


def fit_tables(paths: Sequence[Path], output: Path) -> str:
    """Fit the parameters that the tables at *paths* measure, write them to *output* and return the report.

    Tables of all-reduces give parameters of NCCL; tables of published scenarios give those of GPUs and software stacks;
    a table of products gives how GPUs and their generations run them. Raises `CalibrationError` if a table is of no
    known kind, or if the tables are of several kinds.
    """
    kinds = {path: _kind_of_table(path) for path in paths}
    if len(set(kinds.values())) > 1:
        given = ", ".join(f"{path.name} of {kind}" for path, kind in kinds.items())
        raise CalibrationError(f"one fit is of one kind of cost, not {given}; fit them one after the other")
    if PRODUCTS in kinds.values():
        if len(paths) > 1:
            raise CalibrationError(f"one fit of products is of one table, not {len(paths)}; join them")
        data, report = products.calibration(paths[0])
        communication.write(data, output)
        return f"{report}\n\nwrote {output}; its values land in the GPUs of the catalogue"
    if COMPUTATION in kinds.values():
        data, report = gpus.calibration(paths)
        communication.write(data, output)
        return f"{report}\n\nwrote {output}; each value lands in the file of the catalogue that it names"
    data, report = nccl_calibration(paths)
    communication.write(data, output)
    return f"{report}\n\nwrote {output}\nnext: clustersim run SCENARIO --set network.transport={output}"


def _kind_of_table(path: Path) -> str:
    columns = _columns(path)
    if any(needed <= columns for needed in ALL_REDUCES):
        return COMMUNICATION
    if columns >= products.COLUMNS:
        return PRODUCTS
    if gpus.takes(path):
        return COMPUTATION
    if columns and all(re.fullmatch(r"[-+.\deE]*", column.strip()) for column in columns):
        raise CalibrationError(f"{path}: has no header; its first row must name the columns, such as size_bytes")
    known = " or ".join(listed(sorted(needed)) for needed in ALL_REDUCES)
    files = listed([*published_runs.PUBLICATIONS, gpus.PROFILES])
    raise CalibrationError(
        f"{path}: is no table that can be fitted; a table of all-reduces has the columns {known}, "
        f"one of products {listed(sorted(products.COLUMNS))}, one of computation is called {files}"
    )


def _columns(path: Path) -> set[str]:
    try:
        rows = list(read_rows(path))
    except UnreadableFile as error:
        raise CalibrationError(str(error)) from None
    return set(rows[0].cells) if rows else set()
