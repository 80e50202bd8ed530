"""The journal of a plan: what has been estimated and simulated, a line each, so that an interrupted plan goes on."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any

from scenarios.plan.candidate import Candidate
from scenarios.plan.judging import Priced
from simulator.errors import ScenarioError, SimulatorError
from simulator.files import UnreadableFile, read_text
from simulator.lookup import version

NAME = "journal.jsonl"

MOST_BYTES = 2**30
"""A journal of 100,000 candidates has some 50 MB."""


class Journal:
    """The journal in *folder*, of the plan with that *source* (`judging.packed`); None: in memory alone.

    The first line names version and plan. Raises `ScenarioError` if the folder has the journal of another plan.
    """

    def __init__(self, folder: Path | None, source: bytes) -> None:
        self.path = folder / NAME if folder else None
        self.estimated: dict[str, Priced] = {}
        self.simulated: dict[str, dict[str, Any]] = {}
        head = {"clustersim": version(), "plan": hashlib.sha256(source).hexdigest()}
        if self.path is None:
            return
        if self.path.exists():
            self._read(self.path, head)
        else:
            self._append(head)

    def estimate(self, candidate: Candidate, priced: Priced) -> None:
        """Keep the estimate of *candidate*."""
        self.estimated[candidate.key] = priced
        self._append({"estimate": candidate.values, **asdict(priced)})

    def simulation(self, candidate: Candidate, result: Mapping[str, Any]) -> None:
        """Keep the simulated *result* of *candidate*."""
        self.simulated[candidate.key] = dict(result)
        self._append({"simulation": candidate.values, "result": result})

    def _append(self, line: Mapping[str, Any]) -> None:
        if self.path is None:
            return
        try:
            self.path.parent.mkdir(parents=True, exist_ok=True)
            with self.path.open("a", encoding="utf-8") as file:
                file.write(json.dumps(line) + "\n")
        except OSError as error:
            raise SimulatorError(f"cannot write {self.path}: {error.strerror or error}") from None

    def _read(self, path: Path, head: Mapping[str, str]) -> None:
        try:
            lines = read_text(path, MOST_BYTES).splitlines()
        except UnreadableFile as error:
            raise ScenarioError(str(error)) from None
        found = [_line(text) for text in lines]
        if not found or found[0] != head:
            raise ScenarioError(
                f"{path}: the journal of another plan, or of another version of clustersim; give another folder"
            )
        for line in found[1:]:
            # a last line that was cut off by an interrupt is None
            if line and "estimate" in line:
                fields = {key: line[key] for key in ("seconds", "nbytes", "kind", "why")}
                self.estimated[Candidate(line["estimate"]).key] = Priced(**fields)
            elif line and "simulation" in line:
                self.simulated[Candidate(line["simulation"]).key] = line["result"]
        if lines and found[-1] is None:
            # what follows begins on a line of its own
            self._append_newline(path)

    def _append_newline(self, path: Path) -> None:
        with path.open("a", encoding="utf-8") as file:
            file.write("\n")


def _line(text: str) -> dict[str, Any] | None:
    try:
        line = json.loads(text)
    except ValueError:
        return None
    return line if isinstance(line, dict) else None
