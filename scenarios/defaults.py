"""The defaults of what a user leaves open about a run: number format, data parallelism, recomputation, batches.

All doors take them here: `run` of a model, `init`, `import`, `plan --model`, `memory`, `mfu` and `Scenario.of_model`.
The software stack follows from them (`workloads.default_software_stack`). Nothing is searched for: of a few usual
layouts the first one that fits is taken, and `clustersim plan` finds the best.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Mapping, Sequence
from math import gcd, prod
from pathlib import Path
from typing import Any

from clustersim.scenarios.build.built import BuiltScenario
from clustersim.scenarios.build.description import selective_saves
from clustersim.scenarios.build.memory_need import MemoryNeed, memory_need
from clustersim.scenarios.specification import loading
from clustersim.scenarios.specification.plan import AUTO, ONLY_IF_NAMED, SEARCHABLE
from clustersim.simulator.hardware.accelerator import Accelerator
from clustersim.simulator.hardware.cluster import Cluster
from clustersim.simulator.reading.dataclass import dataclass
from clustersim.simulator.reading.document import Document, Position, replaced
from clustersim.simulator.reading.errors import SimulatorError
from clustersim.workloads.operators.model import Model

SAMPLES_PER_GPU = 8
"""Samples of the global batch for each GPU, so that it divides in many ways."""

LARGE = 1e9
"""Parameters from which on states are sharded: 16 bytes each no longer fit beside activations everywhere."""

DDP, FSDP = {"method": "ddp"}, {"method": "fsdp"}
DISTRIBUTED_OPTIMIZER = {"method": "zero", "stage": 1}
"""Megatron-LM's, which goes with a pipeline and needs no gather for each micro-batch."""

DEGREES = ("tp", "pp", "cp", "ep")

_ONE_GPU = {"preset": "uniform", "gpus": 1, "bandwidth": "1 GB/s", "latency": "1 us"}
"""A cluster on which a model can be looked at."""

_BENCHMARK = {"kind": "all_reduce", "size": "1 MB"}
"""What runs on a cluster that is looked at."""

_DEFAULT = Position(option="a default", key=())

Values = Mapping[str, Any]


@dataclass(frozen=True)
class Defaults:
    """What was *chosen* for the keys that were open, by dotted key, and what the scenario with it needs, *need*.

    *model*: the whole model, on one GPU. *gpus*: those of the cluster.
    """

    chosen: Values
    need: MemoryNeed
    model: Model
    gpus: int

    def added_to(self, data: Values) -> dict[str, Any]:
        """Return the *data* of a scenario with what was chosen."""
        return _with_values(Document(dict(data)), self.chosen).data


def defaults(data: Values, settings: Sequence[str] = ()) -> Defaults:
    """Return the defaults of the keys that *data*, with cluster and model, leaves open.

    *settings*: texts ``key.path=value``, which hold whatever *data* says. The first candidate that fits is taken; if
    none does, that which needs least. Raises `ScenarioError` at a fault of what is given.
    """
    given = loading.overridden(Document(dict(data)), loading.options(list(settings)))
    machine = cluster_of(given.data["cluster"], _of_section(settings, "cluster"))
    model = _model_of(data["model"], _of_section(settings, "model"))
    known = _known(given, model, machine)
    found: list[tuple[Values, MemoryNeed]] = []
    for choice in _choices(given, model, machine):
        chosen: Values = {**known, **choice}
        need = _need(given, chosen, first=not found)
        if need is None:
            continue
        found.append((chosen, need))
        if need.fits:
            break
    chosen, need = next((one for one in found if one[1].fits), min(found, key=lambda one: one[1].nbytes))
    return Defaults(chosen, need, model, len(machine.gpus))


def model_on(
    model: str,
    cluster: str,
    nodes: int,
    batch: int | None = None,
    tokens: str | None = None,
    settings: Sequence[str] = (),
) -> dict[str, Any]:
    """Return the data of a scenario of *model* (a name, or the path of a file) on *nodes* of *cluster*.

    *batch*: samples of a step, *tokens* of the whole run. Raises `ScenarioError` for an unknown name.
    """
    data = open_keys(model, cluster, nodes, batch, tokens)
    return defaults(data, settings).added_to(data)


def to_plan(
    model: str, cluster: str, nodes: int, batch: int, tokens: str | None = None, settings: Sequence[str] = ()
) -> dict[str, Any]:
    """Return the data of a scenario to plan for: degrees that are searched with one value are those of its layout.

    All that *settings* do not give is searched, precision too.
    The batch need not be a multiple of the GPUs: the candidates have degrees of their own.
    """
    data = open_keys(model, cluster, nodes, batch, tokens)
    options = loading.options(list(settings))
    search = {key: options.get(f"plan.search.{key}", (None, ""))[0] for key in DEGREES}
    fixed = {key: value[0] for key, value in search.items() if isinstance(value, list) and len(value) == 1}
    gpus = len(cluster_of(data["cluster"], _of_section(settings, "cluster")).gpus)
    inner = prod(degree for key, degree in fixed.items() if key != "ep" and isinstance(degree, int))
    if "parallelism.dp" not in options:
        data["parallelism"] = {**fixed, "dp": gcd(batch, max(1, gpus // inner))}
    made = defaults(data, settings).added_to(data)
    given = {key.rpartition(".")[2] for key in options if not key.startswith("plan.")}
    made["plan"] = {"search": {key: AUTO for key in SEARCHABLE if key not in ONLY_IF_NAMED and key not in given}}
    if "training.micro_batch_size" not in options:
        # it is searched, and need not divide the share of these replicas
        made["training"].pop("micro_batch_size", None)
    return made


def open_keys(
    model: str, cluster: str, nodes: int, batch: int | None = None, tokens: str | None = None
) -> dict[str, Any]:
    """Return the data of a scenario of *model* on *nodes* of *cluster*, in which all that has a default is open."""
    training = {**({"global_batch_size": batch} if batch else {}), **({"tokens": tokens} if tokens else {})}
    return {
        "version": 1,
        "name": f"{called(Path(model))}-{nodes}x{cluster}",
        "cluster": {"preset": cluster, "nodes": nodes},
        "model": {"preset": model},
        "training": training,
    }


def precision_on(accelerator: Accelerator) -> str:
    """Return the number format in which models train on *accelerator*: bf16, before Ampere fp16, else fp32.

    >>> precision_on(Accelerator(peak_flops={"fp32": 1.0, "fp16": 2.0}))
    'fp16'
    """
    known = accelerator.peak_flops if isinstance(accelerator.peak_flops, Mapping) else {}
    return next((precision for precision in ("bf16", "fp16") if precision in known), "fp32")


def cluster_of(section: Values, settings: Sequence[str] = ()) -> Cluster:
    """Return the cluster of *section*; *settings* change it."""
    data = {"version": 1, "cluster": dict(section), "collective": _BENCHMARK}
    return BuiltScenario.model_validate(data, list(settings)).cluster()


def called(model: Path) -> str:
    """Return the name of a model; of a config.json, which has the same name for all, that of its folder."""
    return model.absolute().parent.name or "model" if model.suffix == ".json" else model.stem


def _with_values(document: Document, values: Values) -> Document:
    """Return *document* with *values* by dotted key."""
    for key, value in values.items():
        document = replaced(document, loading.split(key), value, _DEFAULT)
    return document


def _of_section(settings: Sequence[str], section: str) -> list[str]:
    return [one for one in settings if one.startswith((f"{section}.", f"{section}="))]


def _model_of(section: Values, settings: Sequence[str]) -> Model:
    data = {"version": 1, "cluster": _ONE_GPU, "model": section, "training": {"global_batch_size": 1}}
    made = BuiltScenario.model_validate(data, list(settings)).model
    assert made is not None
    return made


def _known(given: Document, model: Model, machine: Cluster) -> dict[str, Any]:
    """Return the defaults that need no choice: precision and batches."""
    open_keys: dict[str, Any] = {}
    training = given.data.get("training") or {}
    batch = training.get("global_batch_size")
    if batch is None:
        batch = open_keys["training.global_batch_size"] = SAMPLES_PER_GPU * len(machine.gpus)
    if "micro_batch_size" not in training and model.tokens_per_sample:
        # of images, which are small, a GPU takes its whole share
        open_keys["training.micro_batch_size"] = 1
    if "precision" not in training:
        open_keys["training.precision"] = precision_on(machine.accelerator(machine.gpus[0]))
    return open_keys


def _choices(given: Document, model: Model, machine: Cluster) -> Iterator[Values]:
    """Yield the values of the keys that decide what fits; those that cost least time come first."""
    training, parallelism = given.data.get("training") or {}, given.data.get("parallelism") or {}
    divided = any(parallelism.get(key, 1) != 1 for key in DEGREES)
    methods: Sequence[Values] = (
        (DDP if model.parameters < LARGE else DISTRIBUTED_OPTIMIZER, DISTRIBUTED_OPTIMIZER)
        if parallelism.get("pp", 1) != 1
        else (DDP, DISTRIBUTED_OPTIMIZER, FSDP)
        if divided and model.parameters < LARGE
        else (DISTRIBUTED_OPTIMIZER, FSDP)
        if divided
        else (DDP, FSDP)
        if model.parameters < LARGE
        else (FSDP,)
    )
    own_data = "data" in parallelism
    recompute = (None,) if "recompute" in training else ("none", "selective", "full")
    last: Values = {}
    for again, method in itertools.product(recompute, (None,) if own_data else methods):
        last = {
            **({} if again is None else {"training.recompute": again}),
            **({} if method is None else {"parallelism.data": dict(method)}),
        }
        yield last
    if divided or own_data or "dp" in parallelism:
        return
    # a layer that is gathered whole, or its activations, may be what does not fit
    node = sum(machine.node_of(gpu) == machine.node_of(machine.gpus[0]) for gpu in machine.gpus)
    for degree in (2, 4, 8):
        if degree <= node and node % degree == 0:
            yield {**last, "parallelism.tp": degree, "parallelism.sequence_parallel": True}


def _need(given: Document, chosen: Values, *, first: bool) -> MemoryNeed | None:
    """Return what *given* needs with what was *chosen*; None if it cannot be so, or if a choice saves nothing.

    Raises the fault of the *first* choice: it is one of what is given.
    """
    try:
        made = BuiltScenario.of_document(_with_values(given, chosen), Path(), "scenario")
        if chosen.get("training.recompute") == "selective" and not selective_saves(made):
            return None
        shorter = _few_micro_batches(made)
        return memory_need(shorter, shorter.schedule())
    except SimulatorError:
        if first:
            raise
        return None


def _few_micro_batches(scenario: BuiltScenario) -> BuiltScenario:
    """Return *scenario* with two micro-batches, which need what many do if there is no pipeline."""
    derived = scenario.derived
    if derived.micro_batches <= 2 or derived.degree("pp") > 1 or derived.by_stage:
        return scenario
    samples = 2 * derived.replicas * derived.micro_batch_size
    return scenario.changed({"training.global_batch_size": samples}, "two micro-batches")
