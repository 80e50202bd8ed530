"""`clustersim calibrate` fits cost parameters to its own measurements, or to those in files with `--from`."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from clustersim.scenarios.commands.application import Settings, command, load
from clustersim.simulator.reading.dataclass import dataclass
from clustersim.simulator.reading.errors import ScenarioError

if TYPE_CHECKING:
    from clustersim.scenarios.accuracy.communication import RankPlacement
    from clustersim.scenarios.accuracy.device import OnMeasurement
    from clustersim.simulator.replay.measurements import SizeSweep
    from clustersim.simulator.replay.rank_process import NetworkPlace

BACKENDS = ("gloo", "nccl")


@dataclass(frozen=True)
class MeasuredOptions:
    """The options that say what is measured: sizes, iterations, kinds."""

    begin: Annotated[str, typer.Option("-b", "--begin", "--minbytes", metavar="SIZE", help="Least size.")] = "8"
    end: Annotated[str, typer.Option("-e", "--end", "--maxbytes", metavar="SIZE", help="Largest size.")] = "128M"
    factor: Annotated[int, typer.Option("-f", "--factor", "--stepfactor", min=2, help="From size to size.")] = 4
    iterations: Annotated[int, typer.Option("-n", "--iters", min=1, help="Iterations of a batch.")] = 20
    warmup: Annotated[int, typer.Option("-w", "--warmup_iters", min=0, help="Iterations before.")] = 5
    kinds: Annotated[
        list[str] | None,
        typer.Option("--kind", help="Only this: send, all_reduce, broadcast ...; may be given several times."),
    ] = None

    def sweep(self, placement: RankPlacement, budget: float) -> SizeSweep:
        """Return the measurements between the ranks of *placement*, repeated for *budget* seconds."""
        from clustersim.scenarios.accuracy import device as measuring
        from clustersim.simulator.replay.measurements import SizeSweep

        sizes, kinds = measuring.span(self.begin, self.end, self.factor), measuring.kinds(self.kinds)
        return SizeSweep(sizes, kinds, placement.pairs(), iterations=self.iterations, warmup=self.warmup, budget=budget)


@dataclass(frozen=True)
class Told:
    """The options that say what files of measurements lack."""

    on: Annotated[
        str | None, typer.Option(metavar="SCENARIO", help="With --from: on whose cluster that was measured.")
    ] = None
    accelerator: Annotated[str | None, typer.Option(help="With --from: the GPU, where no file tells.")] = None
    nic: Annotated[str | None, typer.Option(help="With --from: the link of a NIC, where no file tells.")] = None
    nodes: Annotated[int | None, typer.Option(min=1, help="With --from: the servers, where no file tells.")] = None


@command()
def calibrate(
    scenario: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="[SCENARIO]", help="Whose cluster the ranks stand on; unknown if none. With --from, more files."
        ),
    ] = None,
    *,
    output: Annotated[Path, typer.Option("-o", metavar="FILE", help="The calibration file to write.")] = Path(
        "calibration.yaml"
    ),
    sources: Annotated[
        list[Path] | None,
        typer.Option(
            "--from",
            metavar="FILE",
            help="Fit what is in files: nccl-tests' text or JSON, nvidia-smi topo -m, NCCL's topology XML, or CSV.",
        ),
    ] = None,
    backend: Annotated[str, typer.Option(help="gloo (any machine), or nccl (a GPU for each rank).")] = "gloo",
    ranks: Annotated[int | None, typer.Option(min=2, help="Ranks to start (those of the scenario, or 2).")] = None,
    measured: MeasuredOptions,
    testbed: Annotated[bool, typer.Option("--testbed", help="Build the scenario's cluster as a real network.")] = False,
    told: Told,
    device: Annotated[
        str | None, typer.Option(help="Measure products, memory and copies of one device instead: cuda, or cpu.")
    ] = None,
    budget: Annotated[
        float, typer.Option(metavar="SECONDS", help="Repeat the measurements for so long; more is surer.")
    ] = 30.0,
    timeout: Annotated[float, typer.Option(metavar="SECONDS", help="Give up after so long.")] = 600.0,
    settings: Settings = None,
) -> None:
    """Fit cost parameters on real devices, or --from measurements, and write a calibration file."""
    if sources:
        _read([*sources, *map(Path, scenario or [])], output, told, settings)
        return
    if device is not None:
        _measure_device(device, output)
        return
    from clustersim.scenarios.accuracy import device as measuring

    measuring.check_budget(budget)
    placement = measuring.placement(scenario or [], ranks, settings)
    sweep = measured.sweep(placement, budget)
    with measuring.places(placement, testbed) as (placement, at):
        _measure(placement, sweep, backend, at, timeout, output)


def _read(files: list[Path], output: Path, told: Told, settings: list[str] | None) -> None:
    """Fit the measurements in *files* and print the report."""
    from clustersim.scenarios.accuracy.imported_measurements import Overrides, fit_tables, read

    if all(path.suffix == ".csv" for path in files):
        print(fit_tables(files, output))
        return
    scenario = load(told.on, settings) if told.on else None
    print(read(files, output, scenario, Overrides(told.accelerator, told.nic, told.nodes)))


def _measure(
    placement: RankPlacement,
    sweep: SizeSweep,
    backend: str,
    places: tuple[NetworkPlace, ...] | None,
    timeout: float,
    output: Path,
) -> None:
    from clustersim.scenarios.accuracy import communication
    from clustersim.scenarios.accuracy.communication import calibration_report, how_to_use, outcome
    from clustersim.scenarios.accuracy.device import BrokenCalibrationError, keep, measured, with_rows_kept
    from clustersim.simulator.network.library.calibration_file import transport

    if backend not in BACKENDS:
        raise ScenarioError(f"--backend {backend}: must be gloo or nccl")
    if not timeout > 0:
        raise ScenarioError(f"--timeout {timeout:g}: must be above 0")
    try:
        with _bar(sweep) as on_measurement:
            rows = measured(
                sweep, placement.ranks, backend=backend, places=places, timeout=timeout, on_measurement=on_measurement
            )
    except BrokenCalibrationError as error:
        raise with_rows_kept(error, output, backend) from None
    if rows is None:
        return
    record = keep(rows, output, backend)
    found = outcome(rows, placement, transport(backend, placement.cluster))
    print(calibration_report(found))
    where = {"network": "testbed"} if places else {}
    data = communication.contents(found, communication.provenance(backend, placement.ranks, where))
    communication.write({**data, **_gpu()} if backend == "nccl" else data, output)
    print(f"wrote {output} and {record}\n{how_to_use(found, output, cluster=False)}")


def _measure_device(name: str, output: Path) -> None:
    from clustersim.scenarios.accuracy import communication
    from clustersim.scenarios.accuracy.device import contents, device_report, fitted, in_steps, measured_device

    found = in_steps(fitted(measured_device(name)))
    print(device_report(found))
    communication.write(contents(found, communication.provenance(name, 1, {"device": found.device.name})), output)
    print(f"wrote {output}\nnext: cluster: {{node: {{accelerator: {output}}}}}, and software: {output}")


def _gpu() -> dict[str, Any]:
    """Return the part of a calibration file about the GPU of rank 0: accelerator, host link and software."""
    from clustersim.scenarios.accuracy.device import contents, device_report, fitted, in_steps, measured_device

    found = in_steps(fitted(measured_device("cuda")))
    print(device_report(found))
    return {key: value for key, value in contents(found, {}).items() if key in ("accelerator", "host", "software")}


@contextmanager
def _bar(sweep: SizeSweep) -> Iterator[OnMeasurement]:
    """Show a progress bar on stderr if it is a terminal."""
    from rich.console import Console
    from rich.progress import Progress

    console = Console(stderr=True)
    with Progress(console=console, transient=True, disable=not console.is_terminal) as bar:
        task = bar.add_task("measuring", total=sweep.cases * sweep.visits)
        yield lambda one: bar.advance(task)
