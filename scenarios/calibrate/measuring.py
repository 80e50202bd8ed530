"""Start the ranks, receive each measurement as it is made, and keep the measurements if the ranks break off."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from dataclasses import asdict
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING

from simulator.errors import CalibrationError, ReplayError
from simulator.files import write_text
from simulator.lookup import module
from simulator.replay.calibration.measurement import Measurement, Sweep
from simulator.replay.launch import TIMEOUT, launch
from simulator.replay.place import Place
from simulator.replay.process import INSTALL

if TYPE_CHECKING:
    from simulator.replay.calibration.measured_device import Device

OnMeasurement = Callable[[Measurement], None]


class BrokenCalibrationError(CalibrationError):
    """Ranks that broke off. *measurements*: those made until then."""

    def __init__(self, message: str, measurements: Sequence[Measurement]) -> None:
        self.measurements = tuple(measurements)
        super().__init__(message)


def measured(
    sweep: Sweep,
    ranks: int,
    *,
    backend: str = "gloo",
    places: Sequence[Place] | None = None,
    timeout: float = TIMEOUT,
    on_measurement: OnMeasurement = lambda one: None,
) -> list[Measurement] | None:
    """Return the measurements of *sweep* by *ranks* at *places* (default: on the loopback interface), within *timeout*
    s.

    *on_measurement* is called with each measurement as it is made, and again when a later visit improves it.
    Under torchrun rank 0 gets them, the others None.
    Raises `BrokenCalibrationError`.
    """
    measure = _torch("calibration.measure").measure
    made: dict[tuple[str, tuple[int, ...], float], Measurement] = {}

    def on_report(_rank: int, one: Measurement) -> None:
        made[one.kind, one.ranks, one.nbytes] = one  # a later visit to a case knows more
        on_measurement(one)

    try:
        results = launch(measure, [sweep] * ranks, backend=backend, places=places, timeout=timeout, on_report=on_report)
    except ReplayError as error:
        raise BrokenCalibrationError(str(error), list(made.values())) from None
    except KeyboardInterrupt:
        if not made:
            raise
        raise BrokenCalibrationError("interrupted", list(made.values())) from None
    return None if results is None else list(results[0])


def measured_device(name: str) -> Device:
    """Measure the device that torch calls *name*. Raises `CalibrationError`."""
    found: Device = _torch("calibration.device").measure_device(name)
    return found


def _torch(name: str) -> ModuleType:
    """A module of the validator that needs torch."""
    try:
        return module(f"simulator.replay.{name}")
    except ModuleNotFoundError as error:
        if error.name != "torch":
            raise
        raise CalibrationError(INSTALL) from None


def with_rows_kept(error: BrokenCalibrationError, path: Path, backend: str) -> CalibrationError:
    """Write the measurements of *error* beside *path*, the requested file; return an error that names the file."""
    if not error.measurements:
        return CalibrationError(f"{error}; nothing had been measured")
    rows = keep(error.measurements, path, backend)
    many = len(error.measurements)
    return CalibrationError(
        f"{error}; {many} measurement{'s' if many > 1 else ''} kept: clustersim calibrate --from {rows} fits them"
    )


def keep(measurements: Sequence[Measurement], path: Path, backend: str) -> Path:
    """Write *measurements* beside the calibration file at *path*, as JSON that ``--from`` reads.

    Return the new path.
    """
    rows = path.with_suffix(".rows.json")
    lines = ",\n".join(json.dumps(asdict(one)) for one in measurements)
    head = json.dumps({"version": 1, "backend": backend})[:-1]
    write_text(rows, f'{head}, "measurements": [\n{lines}\n]}}\n')
    return rows
