"""Scenarios as files of other programs: launch files, pipeline orders, traces, topologies, one target a file; and what
launch files of all programs need of a scenario: its run in their terms, and refusals with their place.

A target is a file of `exporting/` with a function of its name, ``def x(scenario) -> Export``; files that begin with
``_`` and folders are no targets. ``--to torch-csv`` is `torch_csv`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence, Set
from math import ceil
from pathlib import Path
from typing import Any

from pydantic import BaseModel

from clustersim.scenarios.build.schedule import gradient_dtype
from clustersim.scenarios.exchange.facts import scalar
from clustersim.scenarios.scenario import Scenario
from clustersim.scenarios.specification.training import Training
from clustersim.simulator.hardware.kernel import BYTES
from clustersim.simulator.reading.dataclass import dataclass
from clustersim.simulator.reading.errors import ScenarioError
from clustersim.simulator.reading.files import check_writable, written
from clustersim.simulator.reading.lookup import UnknownName, function, names
from clustersim.simulator.reading.validation import near
from clustersim.workloads.architectures.transformer_keys import TransformerSpecification
from clustersim.workloads.parallelism._parallelism import DataMethod

PACKAGE = "clustersim.scenarios.exchange.exporting"

Content = str | bytes | Callable[[Path], None]
"""The content of a file, or a function that writes it to a path."""


@dataclass(frozen=True)
class Export:
    """What a target makes of a scenario: *files*, content by name, and *notes* on what it cannot say there.

    *folder*: True if the files lie in a folder of their own even if there is only one.
    """

    files: Mapping[str, Content]
    notes: tuple[str, ...] = ()
    folder: bool = False

    @property
    def in_folder(self) -> bool:
        """True if the files lie in a folder of their own."""
        return self.folder or len(self.files) > 1


def targets() -> list[str]:
    """Return the names of the targets, as the command line has them."""
    return [name.replace("_", "-") for name in names(PACKAGE)]


def exporter(target: str) -> Callable[[Scenario], Export]:
    """Return the function of *target*. Raises `ScenarioError` with the targets for an unknown one."""
    try:
        return function(PACKAGE, target.replace("-", "_"))
    except UnknownName:
        hint = near(target, targets())
        message = f"--to {target[:60]}: unknown target; there are {', '.join(targets())}"
        raise ScenarioError(f"{message}\n     help: {hint}" if hint else message) from None


def write(export: Export, path: Path | None) -> list[Path]:
    """Write the files of *export* and return their paths.

    *path*: the file, or the folder if the export has several files; None: their own names in the working directory, or
    in a folder ``export`` there. Every file is written whole or not at all.
    """
    folder = (path or Path("export")) if export.in_folder else Path()
    paths = [folder / name if export.in_folder else path or Path(name) for name in export.files]
    if export.in_folder and folder.exists() and not folder.is_dir():
        raise ScenarioError(f"{folder} is a file; several files are written: give a folder")
    for target in paths:
        check_writable(target)
    for target, content in zip(paths, export.files.values(), strict=True):
        with written(target) as beside:
            if isinstance(content, str):
                beside.write_text(content, encoding="utf-8")
            elif isinstance(content, bytes):
                beside.write_bytes(content)
            else:
                content(beside)
    return paths


PLAIN_RANK_ORDERS = (["tp", "dp", "pp"],)
"""Rank orders of the programs here: Megatron's default, which torchtitan's mesh (pp, dp, cp, tp) has too."""


@dataclass(frozen=True)
class Launch:
    """A *scenario* that trains, in the terms of training programs.

    *nodes* of *gpus_per_node* processes each; degrees *tp*, *pp* and *dp*; *micro_batch* samples, *accumulation*
    micro-batches of a replica, *batch* samples of a step; *samples* of the whole run, 0 if the scenario gives none.
    """

    scenario: Scenario
    training: Training
    nodes: int
    gpus_per_node: int
    tp: int
    pp: int
    dp: int
    micro_batch: int
    accumulation: int
    batch: int
    samples: int

    @property
    def data(self) -> DataMethod:
        """How replicas exchange gradients."""
        return self.scenario.specification.parallelism.data

    @property
    def precision(self) -> str:
        """The number format of the computation; of all but its products if these have another one."""
        return str(getattr(self.training, "base_precision", self.training.precision))

    def check_precision(self, program: str) -> None:
        """Raise `ScenarioError` for products in few bits, which *program* is not told here."""
        if not isinstance(self.training.precision, str):
            raise self.refuse("training.precision", program, "bf16, fp16, fp32")

    @property
    def rank_order(self) -> list[str]:
        """The order in which ranks are numbered along these axes."""
        numbering = self.scenario.specification.parallelism.numbering
        return [axis for axis in numbering if axis in ("tp", "pp", "dp")]

    def degree(self, axis: str) -> int:
        """Return the degree of *axis*; 1 if there is no such axis."""
        return self.scenario.derived.degree(axis)

    @property
    def gradient_dtype(self) -> str:
        """In which gradients are reduced, as given or by default."""
        return gradient_dtype(self.training, self.data, self.scenario.software)

    @property
    def steps(self) -> int:
        """Steps of the whole run, rounded up; 0 if the scenario gives no length."""
        return ceil(self.samples / self.batch)

    @property
    def bucket_elements(self) -> int | None:
        """Elements of a bucket of gradients; None for the program's default."""
        size = getattr(self.data, "bucket", None)
        return None if size is None else round(size / BYTES[self.gradient_dtype])

    def error(self, key: str, message: str) -> ScenarioError:
        """Return an error at the *key* of the scenario."""
        return self.scenario.document.error(tuple(key.split(".")), message)

    def refuse(self, key: str, program: str, known: str = "") -> ScenarioError:
        """Return the error that *program* does not have the value of *key*; *known*: what it has."""
        value = _at(self.scenario.specification, key)
        return self.error(key, f"{program} has no {scalar(value)} here" + (f"; it has {known}" if known else ""))

    def unsaid(self, said: Set[str], data: Sequence[str], training: Sequence[str] = ()) -> list[str]:
        """Return a note for each key that a program is not told.

        *said*: keys of the parallelism that it is told. *data*: those of the exchange of gradients. *training*: keys
        of the training that it is not told.
        """
        specification = self.scenario.specification
        found = [f"parallelism.{key}" for key in _changed(specification.parallelism) if key not in {*said, "data"}]
        found += [f"parallelism.data.{key}" for key in _changed(self.data) if key not in {*data, "method"}]
        found += [f"training.{key}" for key in _changed(self.training) if key in training]
        return [f"{key}: {scalar(_at(specification, key))} is not said" for key in found]


def _changed(section: BaseModel) -> list[str]:
    """Return the keys of *section* that do not have their defaults."""
    fields = type(section).model_fields.items()
    return [key for key, field in fields if getattr(section, key) != field.get_default(call_default_factory=True)]


def _at(section: Any, key: str) -> Any:
    """Return the value at the dotted *key*, as plain data."""
    for part in key.split("."):
        section = getattr(section, part)
    return section.model_dump(exclude_none=True) if isinstance(section, BaseModel) else section


def _check_fine_tuning(scenario: Scenario, target: str) -> None:
    """Raise `ScenarioError` for adapters, attentions with a section, and states in 16 bits: no file says them."""
    model, training = scenario.specification.model, scenario.specification.training
    kind = getattr(getattr(model, "attention", ""), "kind", None)
    dtype = getattr(training, "optimizer_dtype", None)
    for path, given in (
        (("model", "lora"), getattr(model, "lora", None)),
        (("model", "attention"), kind),
        (("training", "optimizer_dtype"), None if dtype == "fp32" else dtype),
        (("training", "master_weights"), not getattr(training, "master_weights", True)),
    ):
        if given:
            raise scenario.document.error(path, f"is not written for {target}")


def launch(scenario: Scenario, target: str, axes: Sequence[str] = ("tp", "pp", "dp")) -> Launch:
    """Return the run of *scenario* for *target*, which has parallelisms along *axes*.

    Raises `ScenarioError` for a scenario without training, and for what no program can be told: unequal replicas,
    parallelisms of the user's own, compression, groups of replicas, ranks on chosen GPUs.
    """
    specification, derived = scenario.specification, scenario.derived
    training, parallelism = specification.training, specification.parallelism
    if training is None or specification.model is None:
        raise ScenarioError(f"{scenario.name} {scenario.aim}; {target} starts a training")
    if derived.by_stage:
        raise scenario.document.error(("parallelism", "dp"), f"{target} has the same number of replicas for each stage")
    if own := next((axis for axis, degree in derived.degrees.items() if axis not in axes and degree > 1), None):
        raise scenario.document.error(("parallelism",), f"{target} has no parallelism {own} here", at_key=True)
    if "ep" not in axes and parallelism.ep > 1:
        raise scenario.document.error(("parallelism", "ep"), f"{target} shares no experts here; --to megatron")
    _check_fine_tuning(scenario, target)
    for key in ("compression", "groups", "allow"):
        if getattr(parallelism.data, key, None):
            raise scenario.document.error(("parallelism", "data", key), f"is not written for {target}")
    if parallelism.placement != "packed":
        raise scenario.document.error(("parallelism", "placement"), f"{target} places ranks node by node")
    nodes, each = _processes(scenario)
    tokens = scenario.model.tokens_per_sample if scenario.model else None
    samples = training.samples or (training.tokens / tokens if training.tokens and tokens else 0)
    return Launch(
        scenario,
        training,
        nodes,
        each,
        derived.degree("tp"),
        derived.degree("pp"),
        derived.degree("dp"),
        derived.micro_batch_size,
        derived.micro_batches,
        training.global_batch_size,
        round(samples),
    )


def _processes(scenario: Scenario) -> tuple[int, int]:
    """Return the number of nodes and of processes on each. Raises `ScenarioError` if nodes have unequal numbers."""
    counts: dict[int | str, int] = {}
    for device in scenario.derived.devices[: scenario.derived.ranks]:
        node = scenario.cluster().node_of(device)
        counts[node] = counts.get(node, 0) + 1
    if len(set(counts.values())) > 1:
        shown = " and ".join(map(str, sorted(set(counts.values()))))
        raise scenario.document.error(
            ("cluster",), f"its nodes run {shown} ranks each; launchers start the same number on each node", at_key=True
        )
    return len(counts), next(iter(counts.values()))


def transformer(run: Launch, target: str) -> TransformerSpecification:
    """Return the model of *run*, a transformer. Raises `ScenarioError` for any other."""
    model = run.scenario.specification.model
    if not isinstance(model, TransformerSpecification):
        raise run.scenario.document.error(("model",), f"{target} trains transformers only", at_key=True)
    return model


def torchrun(run: Launch) -> str:
    """Return the command that starts the processes of *run*, one for each GPU."""
    return (
        f"torchrun --nnodes={run.nodes} --nproc_per_node={run.gpus_per_node} "
        "--node_rank=${NODE_RANK:-0} --master_addr=${MASTER_ADDR:-localhost} --master_port=${MASTER_PORT:-6000}"
    )


def script(name: str, program: str, lines: list[str]) -> str:
    """Return a shell script of *lines* for *program*, made from the scenario *name*."""
    return "\n".join(["#!/bin/bash", f"# Made by clustersim export from {name}, for {program}.", *lines]) + "\n"


def command(begin: str, words: list[str]) -> str:
    """Return a command: *begin*, and each of *words* (a flag with its value) on a line."""
    return " \\\n".join([begin, *(f"    {word}" for word in words)])
