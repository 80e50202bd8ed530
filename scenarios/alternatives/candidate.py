"""A candidate: one choice of the keys of a scenario that may vary, and its words."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from functools import cached_property
from operator import ne
from typing import Any

from clustersim.scenarios.specification.plan import TRAINING
from clustersim.simulator.reading.dataclass import dataclass
from clustersim.simulator.reading.errors import ScenarioError

DIVISIBILITY, GPUS, RULES, ORDER, MEMORY = "divisibility", "gpus", "rules", "order", "memory"
"""Why a candidate is rejected: sizes that do not divide; degrees that need more GPUs or leave some over; keys that do
not go together; a pipeline order that cannot run so; memory."""


_ENCODER = json.JSONEncoder(sort_keys=True)


class Rejected(ScenarioError):  # noqa: N818 - it is the outcome of a check
    """A candidate that cannot run: *kind* of the rule, and *why* in words."""

    def __init__(self, kind: str, why: str) -> None:
        self.kind, self.why = kind, why
        super().__init__(why)


@dataclass(frozen=True)
class Candidate:
    """One choice of the keys that may vary, *values* by key.

    A key with a dot is any key of a scenario. Published methods use them: they also set the replicas of each stage.
    """

    values: Mapping[str, Any]

    @cached_property
    def key(self) -> str:
        """The values as text: equal for equal candidates."""
        return _ENCODER.encode(self.values)

    @property
    def settings(self) -> dict[str, Any]:
        """The values by dotted key of a scenario, without those that stand for no key."""
        found = {}
        for key, value in self.values.items():
            if "." in key:
                found[key] = value
            elif value is not None:
                found[f"{'training' if key in TRAINING else 'parallelism'}.{key}"] = value
        return found

    @property
    def free(self) -> bool:
        """True if it sets keys with a dot."""
        return any("." in key for key in self.values)

    def differences(self, other: Candidate) -> dict[str, Any]:
        """Return the values of this candidate that *other* does not have."""
        return {key: value for key, value in self.values.items() if other.values.get(key) != value}

    def distance(self, other: Candidate) -> int:
        """Return in how many values of this candidate *other* differs."""
        if list(self.values) != list(other.values):
            return len(self.differences(other))
        return sum(map(ne, self.values.values(), other.values.values()))

    def changed(self, **values: Any) -> Candidate:
        """Return the candidate with other *values*."""
        return Candidate({**self.values, **values})

    @property
    def name(self) -> str:
        """The values in words: ``tp 8 sp, pp 4 interleaved x2, micro-batch 1, recompute full, zero 1``."""
        return ", ".join(filter(None, _words(self.values)))


def _words(values: Mapping[str, Any]) -> Iterator[str]:
    known = {key.rpartition(".")[2]: value for key, value in values.items()}
    tp, pp = known.pop("tp", None), known.pop("pp", None)
    sequence, overlap = known.pop("sequence_parallel", None), known.pop("tp_overlap", None)
    schedule, virtual = known.pop("schedule", None), known.pop("virtual_stages", None)
    data, size = known.pop("data", None), known.pop("micro_batch_size", None)
    yield f"tp {tp}{' sp' if sequence else ''}{' overlapped' if overlap else ''}" if tp else "sp" if sequence else ""
    for key in ("cp", "ep"):
        if (degree := known.pop(key, 1)) and degree != 1:
            yield f"{key} {degree}"
    order = f" {schedule}{f' x{virtual}' if virtual else ''}" if schedule and pp != 1 else ""
    yield f"pp {pp}{order}" if pp else order.strip()
    yield described_data(data) if data else ""
    yield f"micro-batch {size}" if size else ""
    for key, value in known.items():
        if value is not None:
            yield f"{key} {described(key, value)}"


def described(key: str, value: Any) -> str:
    """Return the *value* of *key* in words; of a section its method and numbers.

    >>> described("recompute", {"method": "uniform", "num_layers": 2})
    'uniform 2'
    """
    if key == "data":
        return described_data(value)
    return " ".join(map(str, value.values())) if isinstance(value, Mapping) else str(value)


def described_data(data: Any) -> str:
    """Return the method of data parallelism in words.

    >>> described_data({"method": "zero", "stage": 1, "bucket": "40 MB"})
    'zero 1'
    """
    if not isinstance(data, Mapping):
        return str(data)
    return f"{data.get('method', 'ddp')} {data['stage']}" if "stage" in data else str(data.get("method", "ddp"))
