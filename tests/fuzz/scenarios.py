"""Scenarios made of a small base and two or three features of the schema, and what has to hold of each.

A scenario is refused by a check, with one sentence, or it runs: with both engines, folded and not, from Python and from
the command line, in one process and in two, and always with the same numbers. Anything else is a finding.
"""

from __future__ import annotations

import contextlib
import copy
import io
import json
import tempfile
import traceback
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from math import isclose
from pathlib import Path
from random import Random
from typing import Any

from clustersim.scenarios.commands.check import _line as checked
from clustersim.scenarios.commands.command_line import run
from clustersim.scenarios.scenario import Scenario
from clustersim.scenarios.specification import loading
from clustersim.scenarios.specification.specification import Specification
from clustersim.simulator.reading.document import Document
from clustersim.simulator.reading.errors import DeadlockError, SimulatorError
from clustersim.simulator.reading.validation import validated
from clustersim.workloads.architectures.model_keys import with_plain_keys
from tests.fuzz.limit import cpu_limit
from tests.fuzz.values import Feature, features

SMALL = {"num_layers": 4, "hidden_size": 256, "num_attention_heads": 8, "seq_length": 128, "vocab_size": 1024}
UNIFORM = {"preset": "uniform", "gpus": 8, "hosts": 2, "bandwidth": "30 GB/s", "latency": "5 us"}
EXPERTS = {"num_experts": 8, "moe_router_topk": 2, "moe_ffn_hidden_size": 256}

CLUSTERS: tuple[Mapping[str, Any], ...] = (
    {**UNIFORM, "accelerator": "a100_80gb"},
    {"preset": "dgx_a100_80gb", "nodes": 1},
    {"preset": "dgx_h100", "nodes": 2},
    {"preset": "zhores", "nodes": 2},
    {"preset": "frontier", "nodes": 1},
    {"preset": "dgx_b200", "nodes": 1},
)

MODELS: tuple[Mapping[str, Any], ...] = (
    {**SMALL, "attention": "flash"},
    {**SMALL, "attention": "flash"},
    {**SMALL, "attention": "flash", **EXPERTS},
    {**SMALL, "num_decoder_layers": 4, "decoder_seq_length": 64, "position_embedding_type": "relative"},
    {"kind": "vision", "num_layers": 4, "hidden_size": 256, "num_attention_heads": 8, "patch_size": 28},
    {"kind": "unit", "num_layers": 8, "forward": "1 ms", "backward": "2 ms", "parameters": 1e6, "activations": "1 MB"},
    {"preset": "resnet18"},
)

LAYOUTS: tuple[Mapping[str, Any], ...] = ({}, {"tp": 2}, {"pp": 2}, {"pp": 4}, {"tp": 2, "pp": 2}, {"cp": 2})

MOST_OPS = 20_000
"""Ops of a scenario that is simulated op by op in SimPy, and unfolded; a larger one is run once."""

SECONDS = 120.0
"""Of processor time for one simulation of so many ops at most."""

TRIES = 12
"""Features that are tried for a place: most belong to another model, or to another method, than the scenario has."""

SAME = 1e-9
"""Relative difference between two ways to run a scenario."""


@dataclass
class Finding:
    """A scenario that breaks a rule: the *kind* of fault, what it *says*, and the scenario."""

    kind: str
    says: str
    scenario: Mapping[str, Any]
    trace: str = ""

    def __str__(self) -> str:
        return f"{self.kind}: {self.says}\n  {json.dumps(self.scenario)}\n{self.trace}"


@dataclass
class Tally:
    """How many scenarios ended how."""

    counts: dict[str, int] = field(default_factory=dict)
    findings: list[Finding] = field(default_factory=list)

    def add(self, ending: str | Finding) -> None:
        """Count *ending*."""
        key = ending if isinstance(ending, str) else ending.kind
        self.counts[key] = self.counts.get(key, 0) + 1
        if isinstance(ending, Finding):
            self.findings.append(ending)

    def __str__(self) -> str:
        return ", ".join(f"{count} {name}" for name, count in self.counts.items())


def generated(seed: int, count: int) -> Iterator[dict[str, Any]]:
    """Yield *count* scenarios: every one a base with two or three features."""
    random, all_features = Random(seed), features()
    for number in range(count):
        yield _scenario(random, all_features, f"s{seed}_{number}")


def _scenario(random: Random, all_features: list[Feature], name: str) -> dict[str, Any]:
    scenario: dict[str, Any] = {
        "version": 1,
        "name": name,
        "cluster": dict(random.choice(CLUSTERS)),
        "model": dict(random.choice(MODELS)),
        "training": {"global_batch_size": 16, "micro_batch_size": random.choice([1, 2])},
        "parallelism": dict(random.choice(LAYOUTS)),
    }
    for _ in range(random.choice([2, 3])):
        scenario = _with_another(scenario, random, all_features)
    return scenario


def _with_another(scenario: dict[str, Any], random: Random, all_features: list[Feature]) -> dict[str, Any]:
    """*scenario* with one more feature: the first that is accepted of some, or else the last of them."""
    changed = scenario
    for _ in range(TRIES):
        changed, feature = copy.deepcopy(scenario), random.choice(all_features)
        place = changed
        for key in feature.path[:-1]:
            place = place.setdefault(key, {})
        place[feature.path[-1]] = feature.value(random)
        with contextlib.suppress(SimulatorError):
            validated(loading.expanded(with_plain_keys(Document(changed), ("model",))), Specification)
            break
    return changed


def judged(scenario: Mapping[str, Any], *, processes: bool = False) -> str | Finding:
    """Return how *scenario* ended, ``refused`` or ``agrees``, or what is wrong with it.

    *processes*: it is run in two processes as well.
    """
    try:
        with cpu_limit(SECONDS):
            made = Scenario.model_validate(copy.deepcopy(dict(scenario)))
            checked(made, "x")
    except SimulatorError as error:
        return _refusal(scenario, str(error))
    except Exception as error:
        return _crash("crash in check", error, scenario)
    try:
        return _compared(made, scenario, processes) or "agrees"
    except DeadlockError as error:
        return Finding("deadlock", str(error), scenario)
    except SimulatorError as error:
        return Finding("refused late", str(error), scenario)
    except Exception as error:
        return _crash("crash", error, scenario)


def _refusal(scenario: Mapping[str, Any], message: str) -> str | Finding:
    """The command line refuses *scenario* too, at a line of its file."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "s.yaml"
        path.write_text(json.dumps(scenario, indent=1))
        status, out, err = _commanded("check", str(path))
    if status != 2 or out or not err.strip():
        return Finding("refused by one door only", f"{message}; the command: {status} {out} {err}", scenario)
    return "refused"


def _compared(made: Scenario, scenario: Mapping[str, Any], processes: bool) -> Finding | None:
    ops = sum(len(made.schedule().program(rank).ops) for rank in range(made.schedule().mesh.world_size))
    ops *= made.specification.simulation.repeats
    ways = [{"simulation.engine": "compiled", "simulation.fold": True}]
    if ops <= MOST_OPS:
        ways += [
            {"simulation.engine": engine, "simulation.fold": fold}
            for engine, fold in (("simpy", True), ("simpy", False), ("compiled", False))
        ]
    first: dict[str, Any] = {}
    for way in ways:
        with cpu_limit(SECONDS):
            numbers = _numbers(made.changed(way, "way").run().summary())
        first = first or numbers
        if difference := _difference(first, numbers):
            return Finding("ways differ", f"{ways[0]} and {way}: {difference}", scenario)
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "s.yaml"
        path.write_text(json.dumps(scenario, indent=1))
        status, out, err = _commanded("run", str(path), "--json", "--set", "simulation.engine=compiled")
    if status != 0:
        return Finding("refused by one door only", f"the command: {status} {err}", scenario)
    if difference := _difference(first, _numbers(json.loads(out))):
        return Finding("doors differ", difference, scenario)
    return _in_processes(made, scenario) if processes else None


def _in_processes(made: Scenario, scenario: Mapping[str, Any]) -> Finding | None:
    values = {"simulation.seed": [0, 1]}
    one, two = (made.sweep(values, processes=count).table() for count in (1, 2))
    for row, other in zip(one, two, strict=True):
        if difference := _difference(_numbers(row), _numbers(other)):
            return Finding("processes differ", difference, scenario)
    return None


def _numbers(summary: Mapping[str, Any]) -> dict[str, Any]:
    """The numbers of *summary* by dotted key, but for those that may differ between two ways to run it."""
    found: dict[str, Any] = {}

    def walk(path: str, value: Any) -> None:
        if isinstance(value, Mapping):
            for key, inner in value.items():
                walk(f"{path}.{key}", inner)
        elif isinstance(value, int | float) and not path.startswith((".simulation", "simulation", ".critical_path_s")):
            found[path] = float(value)

    walk("", summary)
    # which of several equal ranks or paths is named depends on the way
    return {key: value for key, value in found.items() if "peak_rank" not in key and "wall" not in key}


def _difference(one: Mapping[str, float], other: Mapping[str, float]) -> str:
    if one.keys() != other.keys():
        return f"keys differ: {sorted(one.keys() ^ other.keys())[:5]}"
    step = max(abs(one.get(".step_time_s", 0.0)), 1e-9)
    for key in one:
        slack = SAME * step if key.endswith("_s") or "_s." in key else SAME
        if not isclose(one[key], other[key], rel_tol=1e3 * SAME, abs_tol=slack):
            return f"{key} {one[key]!r} and {other[key]!r}"
    return ""


def _commanded(*arguments: str) -> tuple[int, str, str]:
    out, err = io.StringIO(), io.StringIO()
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
        status = run(list(arguments))
    return status, out.getvalue(), err.getvalue()


def _crash(kind: str, error: Exception, scenario: Mapping[str, Any]) -> Finding:
    kind = "too slow" if isinstance(error, TimeoutError) else kind
    trace = "".join(traceback.format_exception(error)[-6:])
    return Finding(kind, f"{type(error).__name__}: {error}", scenario, trace)
