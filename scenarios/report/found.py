"""Tables of sweeps and plans that lie in a folder, or are given by themselves."""

from __future__ import annotations

import csv
import gzip
import io
import zlib
from collections.abc import Iterator, Sequence
from math import isfinite
from pathlib import Path
from typing import Any

from clustersim.scenarios.report.parts import Cell, PageSection, PageTable, Part, Text
from clustersim.scenarios.results.run_folder import RESULT
from clustersim.scenarios.search.answer import ANSWER
from clustersim.simulator.reading.dataclass import dataclass
from clustersim.simulator.reading.errors import ScenarioError
from clustersim.simulator.reading.files import UnreadableFile, read_text
from clustersim.simulator.reading.validation import Fault
from clustersim.simulator.reading.yaml_and_json import parse_json, shown_at

SWEEPS = (".csv", ".csv.gz")
LARGEST = 64 * 2**20
"""Bytes of a file at most."""
MOST_ROWS, MOST_COLUMNS = 2_000, 60
"""Rows and columns of a sweep in a page at most: a table that a browser still sorts at once."""
LOOKED_AT = ("step_time_s", "samples_per_s", "mfu", "memory.peak_bytes", "memory.fits")
"""Columns that are shown also if all runs have the same value."""
MARKS = ("step_time_s", "error")
"""Columns that every table of a sweep has one of."""


@dataclass(frozen=True)
class Given:
    """What a user named: the *runs* to simulate, the files of *plans*, and those of *sweeps*."""

    runs: Sequence[str]
    plans: Sequence[Path]
    sweeps: Sequence[Path]


def sorted_out(names: Sequence[str]) -> Given:
    """Return what *names* are: scenarios, run folders, folders of plans, or tables of sweeps.

    Plans and sweeps that lie in the folder of a run belong to it. Raises `ScenarioError` for an empty folder.
    """
    runs: list[str] = []
    plans: list[Path] = []
    sweeps: list[Path] = []
    for name in names:
        path = Path(name)
        if name.endswith(SWEEPS):
            sweeps.append(path)
            continue
        inside = list(_sweeps_of(path)) if path.is_dir() else []
        sweeps += inside
        plan = path / ANSWER
        if plan.is_file():
            plans.append(plan)
        is_run = not path.is_dir() or (path / "scenario.yaml").is_file()
        if is_run:
            runs.append(name)
        elif not inside and not plan.is_file():
            raise ScenarioError(
                f"{name}: holds no run ({RESULT}, scenario.yaml), no plan ({ANSWER}), no table of a sweep"
            )
    return Given(runs, list(dict.fromkeys(plans)), list(dict.fromkeys(sweeps)))


def _sweeps_of(folder: Path) -> Iterator[Path]:
    """Yield the tables of sweeps in *folder*; the tables of spans are none."""
    for path in sorted(folder.iterdir()):
        if path.is_file() and path.name.endswith(SWEEPS) and not path.name.startswith("spans"):
            header, _ = _table(path)
            if any(mark in header for mark in MARKS):
                yield path


def sweep_section(path: Path, number: int) -> PageSection:
    """Return the table of the sweep in the file *path*. Raises `ScenarioError` if it holds none."""
    header, rows = _table(path)
    if not any(mark in header for mark in MARKS):
        raise ScenarioError(f"{path}:1: is no table of a sweep: it has no column {' or '.join(MARKS)}")
    told = [Text(f"{path.name}: {len(rows):,} runs. A click on a column sorts by it.")]
    kept = _columns(header, rows)
    if len(kept) < len(header):
        left = len(header) - len(kept)
        told.append(Text(f"{left} columns of one value only, of the simulator, or beyond {MOST_COLUMNS} are left out."))
    if len(rows) > MOST_ROWS:
        told.append(Text(f"The first {MOST_ROWS:,} rows."))
    cells = [[_cell(row[place]) for place in kept] for row in rows[:MOST_ROWS]]
    return PageSection(f"sweep-{number}", "Sweep", [*told, PageTable([header[place] for place in kept], cells)])


def _columns(header: Sequence[str], rows: Sequence[Sequence[str]]) -> list[int]:
    """Return the places of the columns to show: those that are looked at first, and all in which runs differ."""
    first = [header.index(name) for name in LOOKED_AT if name in header]
    differ = [
        place
        for place, name in enumerate(header)
        if len({row[place] for row in rows}) > 1 and not name.startswith("simulation.")
    ]
    keys = [place for place in differ if "error" in header and place < header.index("error")]
    return list(dict.fromkeys([*keys, *first, *differ]))[:MOST_COLUMNS]


def _table(path: Path) -> tuple[list[str], list[list[str]]]:
    """Return the header and the rows of the CSV file *path*. Raises `ScenarioError` naming file and line."""
    try:
        text = _text(path)
        lines = list(csv.reader(io.StringIO(text), strict=True))
    except (csv.Error, gzip.BadGzipFile, zlib.error, EOFError, UnicodeDecodeError) as error:
        raise ScenarioError(f"{path}: is not a table of a sweep: {error}") from None
    if not lines:
        raise ScenarioError(f"{path}: is empty; give a table that `clustersim sweep -o` wrote")
    for number, row in enumerate(lines, 1):
        if len(row) != len(lines[0]):
            raise ScenarioError(f"{path}:{number}: has {len(row)} cells where the header has {len(lines[0])}")
    return lines[0], lines[1:]


def _text(path: Path) -> str:
    if not path.name.endswith(".gz"):
        return read_text(path, LARGEST)
    if not path.is_file():
        raise UnreadableFile(path, "cannot be read: no such file", missing=True)
    with gzip.open(path) as file:
        data = file.read(LARGEST + 1)
    if len(data) > LARGEST:
        raise UnreadableFile(path, f"holds more than {LARGEST // 2**20} MiB")
    return data.decode()


def _cell(text: str) -> Cell:
    """Return *text* as a cell; numbers have four digits and sort as numbers."""
    try:
        number = float(text)
    except ValueError:
        return Cell(text)
    whole = text.lstrip("-").isdigit()
    return Cell(text if whole or not isfinite(number) else f"{number:.4g}", number if isfinite(number) else None)


def plan_section(path: Path, number: int) -> PageSection:
    """Return the best candidates of the plan in the file *path*. Raises `ScenarioError` if it holds none."""
    try:
        answer = parse_json(read_text(path, LARGEST))
        head = f"{answer['name']}: {answer['candidates']:,} candidates, {answer['simulated']:,} simulated"
        rows = [_candidate(place, one) for place, one in enumerate(answer["best"], 1)]
        why = next((str(one["why"]) for one in answer["best"] if one.get("why")), "")
    except Fault as fault:
        raise ScenarioError(f"{shown_at(str(path), fault)}: {fault.message}") from None
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        raise ScenarioError(
            f"{path}: is no answer of `clustersim plan -o`: {type(error).__name__} at {error}"
        ) from None
    settings = list(dict.fromkeys(key for one in rows for key in one))
    cells = [[one.get(key, Cell("")) for key in settings] for one in rows]
    parts: list[Part] = [Text(f"{head}; best by {answer.get('objective', 'step_time')}."), PageTable(settings, cells)]
    return PageSection(f"plan-{number}", "Plan", [*parts, *([Text(f"Why the first: {why}")] if why else [])])


def _candidate(place: int, one: dict[str, Any]) -> dict[str, Cell]:
    """Return the cells of a candidate of a plan by column."""
    settings = {key.rpartition(".")[2]: _cell(_setting(value)) for key, value in one["set"].items()}
    numbers = {
        "step time, s": float(one["step_time_s"]),
        "estimate, s": float(one["estimate_s"]),
        "MFU": float(one["mfu"]),
        "memory, GB": float(one["memory"]["need_bytes"]) / 1e9,
        "bubble": float(one["bubble_fraction"]),
        "exposed, s": float(one["exposed_s"]),
    }
    return {"": Cell(str(place), place), **settings, **{key: Cell(f"{x:.4g}", x) for key, x in numbers.items()}}


def _setting(value: Any) -> str:
    return ", ".join(f"{key} {one}" for key, one in value.items()) if isinstance(value, dict) else str(value)
