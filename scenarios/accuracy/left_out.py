"""Published runs as predicted without their own source: by fits of the parameters to the rows of all other sources.

``left_out/SOURCE.yaml`` has the values of the fits of GPUs and software stacks without the source, and
``left_out/SOURCE_nccl.yaml`` is a calibration file of NCCL without it. Of a source with several GPUs there are also
``left_out/SOURCE_nccl_GPU.yaml``, each without that GPU's rows only: the GPU is then as much of a stranger to the fit.
`clustersim accuracy --refit` writes all of them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import closing
from dataclasses import field, replace
from datetime import UTC, datetime
from functools import lru_cache
from pathlib import Path
from typing import Any

from clustersim.scenarios.accuracy import gpus, nccl, nccl_tests
from clustersim.scenarios.accuracy.gpus import A100_PARAMETERS, V100_PARAMETERS
from clustersim.scenarios.accuracy.provenance import source_of, source_of_table
from clustersim.scenarios.accuracy.robust_fit import TOLERANCE, FitRow, Parameter, least_squares
from clustersim.scenarios.results.uncertainty import FITS
from clustersim.scenarios.run.execution import execute
from clustersim.scenarios.run.processes import Failure
from clustersim.scenarios.scenario import Scenario
from clustersim.scenarios.specification.loading import SHIPPED
from clustersim.simulator.hardware.accelerator import Accelerator
from clustersim.simulator.network.library.nccl import FITTED
from clustersim.simulator.network.library.nccl import nccl as nccl_transport
from clustersim.simulator.reading.dataclass import dataclass
from clustersim.simulator.reading.errors import CalibrationError
from clustersim.simulator.reading.files import write_text
from clustersim.simulator.reading.yaml_and_json import read, yaml_text
from clustersim.topologies.catalogue import GPUS
from clustersim.workloads.software_stack import holds

FOLDER = Path(__file__).with_name("left_out")

SOFTWARE = {key: f"{key}_seconds" for key in ("launch", "load", "exchange", "slice", "tensor")}
"""Keys of a software stack's file, and the attributes that hold them."""

NCCL = "nccl"
"""The fit of the library, beside those of GPUs and stacks."""


@dataclass(frozen=True)
class Refit:
    """The fits without one source.

    *factors*: by entry of the catalogue, ``package.file:key``, the value of the fit without the source over that of the
    shipped fit. *transport*: the calibration file of NCCL without it, if the source is one of NCCL's.
    *without_gpu*: the same without one GPU of the source, by GPU, for runs on that GPU.
    """

    factors: Mapping[str, float]
    transport: Path | None = None
    without_gpu: Mapping[str, Path] = field(default_factory=dict)

    def applied(self, run: Scenario) -> Scenario:
        """Return *run* with the parameters of these fits in place of the shipped ones."""
        transport = self.transport
        if self.without_gpu:
            transport = self.without_gpu.get(run.cluster().accelerator(run.derived.devices[0]).name, transport)
        if transport is not None and run.specification.network.transport == "nccl":
            run = run.changed({"network.transport": str(transport)}, "the fit of NCCL without this source")
        if not self.factors:
            return run

        def change(gpu: Accelerator) -> Accelerator:
            return replace(gpu, **self._of(f"{GPUS}.{gpu.name}", gpu, {}))

        stack = self._of(f"clustersim.workloads.software.{run.stack}", run.software, SOFTWARE)
        cluster = run.cluster()
        types = dict.fromkeys(cluster.accelerator(gpu) for gpu in cluster.gpus)
        other = run.with_software(replace(run.software, **stack))
        other.__dict__["_cluster"] = cluster.with_accelerators({gpu: change(gpu) for gpu in types})
        return other

    def _of(self, place: str, entry: object, attributes: Mapping[str, str]) -> dict[str, Any]:
        """Return the changed values of the *entry* at *place* by the attribute that holds a key."""
        found = {}
        for spot, factor in self.factors.items():
            key = spot.partition(":")[2]
            value = getattr(entry, attributes.get(key, key), None)
            if value is not None and holds(place, spot):
                found[attributes.get(key, key)] = value * factor
        return found


@lru_cache(maxsize=1)
def refits() -> Mapping[str, Refit]:
    """Return the stored fits without each source, by source."""
    names = {path.stem.partition("_nccl")[0] for path in FOLDER.glob("*.yaml")}
    return {name: _read(name) for name in sorted(names)}


def refit_of(scenario: str) -> Refit | None:
    """Return the fits without the source of a published *scenario*; None if nothing is fitted to that source."""
    return refits().get(source_of(scenario))


def _read(source: str) -> Refit:
    computation, transport = FOLDER / f"{source}.yaml", FOLDER / f"{source}_nccl.yaml"
    factors: dict[str, float] = {}
    if computation.exists():
        for name, parameters in read(computation).data["fits"].items():
            shipped = _shipped(name)["parameters"]
            for parameter, value in parameters.items():
                factors |= dict.fromkeys(shipped[parameter]["lands"], value / shipped[parameter]["value"])
    without = {path.stem.partition("_nccl_")[2]: path for path in FOLDER.glob(f"{source}_nccl_*.yaml")}
    return Refit(factors, transport if transport.exists() else None, without)


def _shipped(fit: str) -> dict[str, Any]:
    data: dict[str, Any] = read(Path(__file__).with_name(f"{fit}.yaml")).data
    return data


def refit(jobs: int = 1, finished: Callable[[], object] = lambda: None) -> list[Path]:
    """Fit all parameters without each source in turn, write the files, and return them.

    The rows are those of the shipped fits, from the tables of published runs that come with clustersim. *jobs*
    processes share the fits; *finished* is called after each. Raises `CalibrationError` if one fails.
    """
    fits: list[tuple[str, ...]] = [*fits_without(), *gpus_without()]
    outcomes: dict[tuple[str, ...], dict[str, float]] = {}
    with closing(execute([(_fitted, one) for one in fits], jobs)) as ended:
        for index, outcome in ended:
            if isinstance(outcome, Failure):
                raise CalibrationError(f"fit {fits[index][0]} without {' '.join(fits[index][1:])}: {outcome.message}")
            outcomes[fits[index]] = outcome
            finished()
    refits.cache_clear()
    return [*_written(outcomes), *_written_nccl(outcomes)]


def fits_without() -> list[tuple[str, str]]:
    """Return (name of the fit, source that it leaves out) of each fit without a source."""
    return [(name, source) for name in (*FITS, NCCL) for source in sorted(set(map(source_of_table, _stems(name))))]


def gpus_without() -> list[tuple[str, str, str]]:
    """Return (name of the fit, source, GPU of the source that it leaves out) of each fit of NCCL without one GPU."""
    of_source: dict[str, set[str]] = {}
    for stem in _stems(NCCL):
        gpus = {str(row.groups["machine"]) for row in nccl_tests.rows(_table(stem))} & set(nccl_tests.PRESETS)
        of_source.setdefault(source_of_table(stem), set()).update(gpus)
    return [(NCCL, source, gpu) for source, gpus in of_source.items() for gpu in sorted(gpus)]


def _stems(fit: str) -> list[str]:
    """Return the stems of the tables to which the shipped *fit* was made."""
    data = read(FITTED).data if fit == NCCL else _shipped(fit)
    return [Path(file).stem for file in data["provenance"]["data"]]


def _fitted(job: tuple[str, ...]) -> dict[str, float]:
    """Return the values of the parameters of a fit without a source, (fit, source), or without one GPU of it."""
    fit, source, *gpu = job
    if fit == NCCL:
        rows = [row for stem in _stems(fit) for row in nccl_tests.rows(_table(stem))]
        begin = nccl_tests.values_of(nccl_transport())
        others = [row for row in rows if source_of_table(str(row.groups["data"])) != source]
        if gpu:
            others = [row for row in rows if row.groups["machine"] not in gpu]
        found: dict[str, float] = {}
        for parameters, part in nccl_tests.stages(others):
            found |= _by_rows(parameters, [row.given(found) for row in part], begin, nccl_tests.TOLERANCE)
        return found
    rows = [row for stem in _stems(fit) for row in gpus.rows_of(_table(stem))]
    shipped = _shipped(fit)["parameters"]
    known = dict.fromkeys((*A100_PARAMETERS, *V100_PARAMETERS, *gpus.PROFILE_PARAMETERS))
    own = [one for one in known if one.name in shipped]
    values = _without(source, own, rows, {one.name: shipped[one.name]["value"] for one in own})
    return {one.name: float(f"{values[one.name]:.3g}") for one in own if one.lands}


def _written(outcomes: Mapping[tuple[str, ...], Mapping[str, float]]) -> Iterator[Path]:
    """Write the values of the fits of GPUs and stacks of each source that was left out; yield the files."""
    for source in sorted({source for fit, source, *_ in outcomes if fit != NCCL}):
        fits = {one[0]: dict(values) for one, values in outcomes.items() if one[1] == source and one[0] != NCCL}
        path = FOLDER / f"{source}.yaml"
        write_text(path, yaml_text({"version": 1, "made": _today(), "fits": fits}))
        yield path


def _written_nccl(outcomes: Mapping[tuple[str, ...], Mapping[str, float]]) -> Iterator[Path]:
    """Write a calibration file of NCCL without each source of its fit, and each GPU of one; yield the files."""
    for (fit, source, *gpu), values in outcomes.items():
        if fit == NCCL:
            path = FOLDER / f"{'_'.join([source, NCCL, *gpu])}.yaml"
            provenance = {"made": _today(), "without": source, **({"gpu": gpu[0]} if gpu else {})}
            entries = nccl.transport_entries(values)
            write_text(path, yaml_text({"version": 1, "library": NCCL, "transport": entries, "provenance": provenance}))
            yield path


def _without(
    source: str, parameters: Sequence[Parameter], rows: Sequence[FitRow], begin: Mapping[str, float]
) -> dict[str, float]:
    """Return the values of *parameters* by the rows of other sources than *source*."""
    return _by_rows(parameters, [row for row in rows if source_of_table(str(row.groups["data"])) != source], begin)


def _by_rows(
    parameters: Sequence[Parameter],
    others: Sequence[FitRow],
    begin: Mapping[str, float],
    tolerance: float = TOLERANCE,
) -> dict[str, float]:
    """Return the values of *parameters* by the rows *others*. Where none informs one, it has its start."""
    informed = [one for one in parameters if any(not row.uses or one.name in row.uses for row in others)]
    names = {one.name for one in informed}
    fixed = {one.name: one.start for one in parameters if one.name not in names}
    at = {one.name: begin.get(one.name, one.start) for one in informed}
    found = least_squares(informed, [row.given(fixed) for row in others], at, tolerance).found
    return fixed | found


def _table(stem: str) -> Path:
    """Return the table *stem* of the published runs; a scenario that repeats its figures stands for one not shipped."""
    return SHIPPED / "published" / f"{stem}.csv"


def _today() -> str:
    return datetime.now(UTC).date().isoformat()
