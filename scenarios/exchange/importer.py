"""Configurations of training programs as a scenario: several files together describe one run.

    files -> sources        text, values and their positions
          -> facts          what each format says, by key, with its place
          -> settled facts  contradictions are errors; what is missing follows, or is assumed and said so
          -> scenario       YAML with a comment on each value

A format is a file of `scenarios.exchange.formats`; the folder is the registry.

From the facts of all files to the sections of a scenario: what is missing follows, or is assumed and said so.
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import ModuleType
from typing import Any

from clustersim import topologies
from clustersim.scenarios.build.schedule import model_share
from clustersim.scenarios.defaults import defaults
from clustersim.scenarios.exchange import run_size
from clustersim.scenarios.exchange.facts import Fact, Facts, yaml_with_sources
from clustersim.scenarios.exchange.run_size import Options
from clustersim.scenarios.exchange.source_file import opened
from clustersim.scenarios.exchange.torchtitan_keys import SINGLE, V_SHAPED
from clustersim.scenarios.scenario import Scenario
from clustersim.scenarios.specification import loading
from clustersim.scenarios.specification.parallelism import ParallelismSection
from clustersim.simulator.hardware.kernel import BYTES
from clustersim.simulator.reading.dataclass import dataclass
from clustersim.simulator.reading.document import Document, Position
from clustersim.simulator.reading.errors import ScenarioError, SimulatorError
from clustersim.simulator.reading.lookup import data_file, find, names
from clustersim.simulator.reading.plain_text import printable
from clustersim.simulator.reading.units import parse, show
from clustersim.simulator.reading.yaml_and_json import read
from clustersim.workloads.default_software_stack import default_stack
from clustersim.workloads.parallelism._parallelism import DataMethod
from clustersim.workloads.parallelism._registry import declared

ORDER = ("cluster", "model", "training", "parallelism", "network", "software")
"""Sections in the order in which they are written."""

OF_DEEPSPEED = ("deepspeed", "trainer", "accelerate")
"""Programs whose ZeRO is DeepSpeed's."""

MODEL_ORDER = ("preset", "kind", "name")


def settle(facts: Facts, options: Options, settings: Sequence[str] = ()) -> None:
    """Complete *facts* to those of a scenario; *settings* ``key=value`` hold whatever the files say.

    Raises `ScenarioError` at the place of a contradiction.
    """
    for setting, (value, shown) in loading.options(list(settings)).items():
        facts.found[setting] = Fact(value, Position(option=shown, key=loading.split(setting)), shown)
    facts.option("run.dataset_samples", options.dataset_samples, "--dataset-samples")
    run_size.settle_cluster(facts, options)
    _unsupported(facts)
    _model(facts)
    _defaults(facts)
    dp = run_size.replicas(facts)
    run_size.settle_batch(facts, dp)
    if facts.whole("run.gpus") != _gpus(facts):
        facts.follows("run.gpus", "parallelism.dp", dp, "the other GPUs of the nodes idle")
    _domains(facts)
    _stages(facts)
    _data(facts, dp)
    _length(facts)
    _software(facts)
    if "training.precision" not in facts.found:
        facts.assume("training.precision", "fp32", "no file enables bf16 or fp16")


def _cluster(facts: Facts) -> dict[str, Any]:
    section: dict[str, Any] = {}
    for key, fact in facts.below("cluster").items():
        *around, last = key.split(".")
        inner = section
        for name in around:
            inner = inner.setdefault(name, {})
        inner[last] = fact.value
    return section


def _gpus(facts: Facts) -> int:
    return len(topologies.cluster(_cluster(facts)).gpus)


def _unsupported(facts: Facts) -> None:
    """Raise `ScenarioError` at a degree of a parallelism that no scenario has."""
    for key, fact in facts.below("parallelism").items():
        name = key.partition(".")[0]
        if name not in ParallelismSection.model_fields:
            raise facts.error(f"parallelism.{key}", f"{name} {fact.value} is not simulated yet")


def _model(facts: Facts) -> None:
    """Give the length of the sequence, and the rows of a learned table of positions if it is longer."""
    if not {"preset", "num_layers", "kind", "profile"} & facts.below("model").keys():
        why = "no file describes the model; give its config.json too, or --set model.preset=NAME"
        raise ScenarioError(f"the files give no model: {why}")
    sizes = facts.below("model").keys()
    if not {"preset", "profile", "vocab_size"} & sizes and facts.value("model.kind") in (None, "transformer"):
        why = "it is that of the tokenizer's own file; give --set model.vocab_size=N"
        raise ScenarioError(f"the files give no size of the vocabulary (model.vocab_size): {why}")
    length, positions = facts.whole("model.seq_length"), facts.whole("run.positions")
    if length is None and positions is not None:
        facts.follows("run.positions", "model.seq_length", positions, "no file gives the length of a sample")
        length = positions
    learned = facts.value("model.position_embedding_type") in (None, "learned_absolute")
    if (
        length is not None
        and positions is not None
        and positions != length
        and learned
        and "model.preset" not in facts.found
    ):
        if positions < length:
            raise facts.error("model.seq_length", f"{length} tokens a sample, but the model has {positions} positions")
        facts.follows("run.positions", "model.position_rows", positions, "")


def _defaults(facts: Facts) -> None:
    """Give what `run` of a model takes by default, if no file is of a training program with defaults of its own."""
    if "run.program" in facts.found:
        return
    given, _ = scenario_document(facts, "imported")
    try:
        chosen = defaults(given.data).chosen
    except SimulatorError:
        # it is told at its place when the scenario is made
        return
    sizes = {run_size.MICRO, run_size.BATCH}
    of_batch = sizes if any(key in facts.found for key in (*sizes, *run_size.PARTS)) else set()
    for key, value in chosen.items():
        if key not in of_batch:
            inner = value.items() if isinstance(value, Mapping) else ()
            for name, one in [(f"{key}.{part}", one) for part, one in inner] or [(key, value)]:
                facts.assume(name, one, "no file gives it; the default of clustersim run")


def _domains(facts: Facts) -> None:
    """Give the expert-parallel neighbours in a node, if tokens go to each node, or each rank of one, once (DeepEP)."""
    if not facts.value("run.expert_domains"):
        return
    node = (facts.whole("run.gpus") or 1) // (facts.whole("cluster.nodes") or 1)
    shared = facts.whole("parallelism.expert_tp") or facts.whole("parallelism.tp") or 1
    each, ep = max(1, node // shared), facts.whole("parallelism.ep") or 1
    if ep > 1 and each >= ep:
        facts.follows("run.expert_domains", "parallelism.ep_domain", 1, "once to each rank of a node")
    elif each < ep and ep % each == 0:
        facts.follows("run.expert_domains", "parallelism.ep_domain", each, f"the expert-parallel ranks in {node} GPUs")


def _stages(facts: Facts) -> None:
    """Give the number of virtual stages from the layers of one."""
    each, pp = facts.whole("run.layers_per_stage"), facts.whole("parallelism.pp") or 1
    layers = facts.whole("model.num_layers") or _preset_layers(facts)
    if each is None or layers is None:
        return
    stages = -(-(layers + 2) // each)
    if stages % pp:
        raise facts.error(
            "run.layers_per_stage",
            f"torchtitan makes {stages} stages of {layers} layers and 2 more, which {pp} pipeline ranks do not divide",
        )
    virtual, several = stages // pp, virtual_stages_of(str(facts.value("parallelism.schedule")))
    if several is not None and virtual != several:
        name = facts.value("parallelism.schedule")
        message = f"torchtitan makes {virtual} stages a pipeline rank, but {name} has {several}"
        raise facts.error("run.layers_per_stage", message)
    if several is None:
        how = f"{layers} layers and 2 in {stages} stages"
        facts.follows("run.layers_per_stage", "parallelism.virtual_stages", virtual, how)


def virtual_stages_of(schedule: str) -> int | None:
    """Return the stages that a pipeline rank has with *schedule*; None if they can be chosen."""
    return 1 if schedule in SINGLE else 2 if schedule in V_SHAPED else None


def _preset_layers(facts: Facts) -> int | None:
    preset = facts.value("model.preset")
    if preset not in names("clustersim.workloads.models"):
        return None
    found = read(data_file("clustersim.workloads.models", preset)).get(("num_layers",))
    return found if isinstance(found, int) else None


def _data(facts: Facts, dp: int) -> None:
    """Give the groups that share states, and the bytes of a bucket; leave out what the method does not have."""
    if "parallelism.data.method" not in facts.found:
        facts.assume("parallelism.data.method", "ddp", "no file says how replicas exchange gradients")
    groups = facts.whole("run.replicated") or facts.whole("run.optimizer_instances")
    source = "run.replicated" if "run.replicated" in facts.found else "run.optimizer_instances"
    if groups:
        if dp % groups:
            raise facts.error(source, f"{groups} groups do not divide the {dp} replicas")
        facts.follows(source, "parallelism.data.hybrid", dp // groups, f"{dp} replicas in {groups} groups")
    if facts.value("run.shards_in_node"):
        inner = (facts.whole("parallelism.tp") or 1) * (facts.whole("parallelism.cp") or 1)
        each = max(1, (facts.whole("run.gpus") or 1) // (facts.whole("cluster.nodes") or 1) // inner)
        facts.follows("run.shards_in_node", "parallelism.data.hybrid", each, "the replicas of a node")
    elements = facts.value("run.bucket_elements")
    if elements:
        precision = facts.value("training.gradient_dtype") or facts.value("training.precision") or "fp32"
        precision = precision["rest"] if isinstance(precision, dict) else precision
        size = (
            show(float(elements) * BYTES[precision], "size")
            if _shown_unrounded(elements, precision)
            else f"{elements * BYTES[precision]:.0f} B"
        )
        facts.follows("run.bucket_elements", "parallelism.data.bucket", size, f"{elements:.0f} elements in {precision}")
    name = str(facts.value("parallelism.data.method"))
    accelerate = facts.value("run.program") in ("trainer", "accelerate") and not facts.value("run.sync_each_batch")
    if name == "fsdp" and accelerate and (facts.whole("run.accumulation") or 1) > 1:
        how = "whose gradients Accelerate reduces in the last one"
        facts.follows("run.accumulation", "parallelism.data.no_sync", True, how)
    method = declared(name, DataMethod)
    assert method is not None
    for key in facts.below("parallelism.data"):
        if key not in method.model_fields:
            facts.drop(f"parallelism.data.{key}", f"{key} is not simulated with {name}")


def _shown_unrounded(elements: float, precision: str) -> bool:
    """Return whether the size in bytes is the one that is shown, unrounded."""
    size = float(elements) * BYTES[precision]
    return parse(show(size, "size"), "size") == size


def _length(facts: Facts) -> None:
    """Give the samples of the whole run from its steps, or from epochs and the data set."""
    if "training.samples" in facts.found or "training.tokens" in facts.found:
        return
    size = facts.whole("training.global_batch_size") or 1
    steps, epochs, dataset = (
        facts.whole("run.iterations"),
        facts.value("run.epochs"),
        facts.whole("run.dataset_samples"),
    )
    if steps:
        facts.follows("run.iterations", "training.samples", steps * size, f"{steps} steps of {size} samples")
    elif epochs and dataset:
        facts.follows(
            "run.epochs", "training.samples", int(epochs * dataset), f"{epochs:g} epochs of {dataset} samples"
        )
    elif epochs and facts.found["run.epochs"].given:
        facts.remarks.append(
            f"{facts.found['run.epochs'].source}: {epochs:g} epochs of a data set; --dataset-samples N gives its size"
        )


def _software(facts: Facts) -> None:
    """Give the stack of the program; without one it is chosen by the parallelism."""
    program, compiled = facts.value("run.program"), facts.value("run.compiled")
    key = "software.preset" if "software.launch_blocking" in facts.found else "software"
    if program == "megatron":
        cluster = topologies.cluster(_cluster(facts))
        stack = default_stack("ddp", {"tp": 2}, cluster.accelerator(cluster.gpus[0]), transformer=True).stack
        facts.follows("run.program", key, stack, "Megatron-LM on this GPU")
    elif program in OF_DEEPSPEED and facts.value("parallelism.data.method") == "zero":
        cluster = topologies.cluster(_cluster(facts))
        stack = default_stack("zero", {}, cluster.accelerator(cluster.gpus[0]), transformer=True, stage=3).stack
        facts.follows("run.program", key, stack, "DeepSpeed on this GPU")
    elif compiled and facts.value("parallelism.data.method") in ("fsdp", "ddp"):
        facts.follows("run.compiled", key, f"{facts.value('parallelism.data.method')}_compile", "")


def scenario_document(facts: Facts, name: str, folder: Path = Path()) -> tuple[Document, dict[tuple[str, ...], str]]:
    """Return the scenario *name* with the positions of its values, and by path where each value is from.

    Paths of files are relative to *folder*.
    """
    data: dict[str, Any] = {"version": 1, "name": name}
    positions: dict[tuple[str | int, ...], Any] = {}
    sources: dict[tuple[str, ...], str] = {}
    for section in ORDER:
        keys = [key for key in facts.found if key == section or key.startswith(f"{section}.")]
        for key in sorted(keys, key=_rank):
            fact, path = facts.found[key], tuple(key.split("."))
            inner = data
            for part in path[:-1]:
                inner = inner.setdefault(part, {})
            order = key == "parallelism.schedule" and str(fact.value).endswith(".csv")
            inner[path[-1]] = os.path.relpath(fact.value, folder) if order else fact.value
            sources[path] = fact.source
            if fact.position.file or fact.position.option:
                positions[path] = fact.position
    return Document(data, positions), sources


def _rank(key: str) -> int:
    """Return the rank of *key* in its section: what names the whole comes first; others keep their order."""
    last = key.rpartition(".")[2]
    return MODEL_ORDER.index(last) if last in MODEL_ORDER else len(MODEL_ORDER)


FORMATS = "clustersim.scenarios.exchange.formats"

__all__ = ["Imported", "Options", "imported"]


@dataclass(frozen=True)
class Imported:
    """The *scenario*, its *text* in YAML, and what the user should know.

    *assumed*: what no file says. *remarks*: what is simulated otherwise. *unread*: keys by file that no reader took.
    *formats*: by file. *sweeps*: files of measured collectives, which are fitted on the scenario's cluster.
    """

    scenario: Scenario
    text: str
    formats: dict[str, list[str]]
    assumed: list[str]
    remarks: list[str]
    unread: dict[str, list[str]]
    sweeps: list[Path]


def imported(
    files: Sequence[str], options: Options, name: str, settings: Sequence[str] = (), folder: Path = Path()
) -> Imported:
    """Return the scenario *name* of the run that *files* describe.

    *settings*: texts ``key.path=value``, which override the files. Paths in the text are relative to *folder*, where it
    will be written. Raises `ScenarioError` with file, line and key of what is wrong.
    """
    facts, formats, sources = Facts(), {}, []
    for file in files:
        source = opened(file)
        readers = [module for module in _formats() if module.recognises(source)]
        if not readers:
            raise ScenarioError(f"{printable(file)}: is of no format that can be imported: {_known()}")
        for reader in readers:
            reader.read(source, facts)
        formats[file] = [_stem(reader) for reader in readers]
        sources.append(source)
    settle(facts, options, settings)
    document, where = scenario_document(facts, name, folder)
    scenario = Scenario.of_document(document, folder, name, list(settings))
    if scenario.model is not None:
        model_share(scenario.model, scenario.specification.parallelism.parts, scenario.document)
    unread = {one.name: [one.described(path) for path in one.left()] for one in [*sources, *facts.followed]}
    unread = {file: keys for file, keys in unread.items() if keys}
    heading = _heading(files, facts, unread, settings)
    data = loading.overridden(document, loading.options(list(settings))).data
    text = yaml_with_sources(data, _with_settings(where, settings), heading)
    sweeps = [Path(one.name) for one in facts.sweeps]
    return Imported(scenario, text, formats, facts.assumed, facts.remarks, unread, sweeps)


def _formats() -> list[ModuleType]:
    return [find(FORMATS, name) for name in names(FORMATS)]


def _stem(module: ModuleType) -> str:
    return module.__name__.rpartition(".")[2]


def _known() -> str:
    """Return the formats in words: the first sentence of each."""
    return "; ".join((module.__doc__ or "").splitlines()[0].split(" (")[0].rstrip(".") for module in _formats())


def _with_settings(sources: dict[tuple[str, ...], str], settings: Sequence[str]) -> dict[tuple[str, ...], str]:
    given = {tuple(one.partition("=")[0].strip().split(".")): f"--set {one}" for one in settings}
    return sources | given


def _heading(files: Sequence[str], facts: Facts, unread: dict[str, list[str]], settings: Sequence[str]) -> list[str]:
    lines = [f"Made by clustersim import from {', '.join(files)}."]
    lines += [f"assumed: {one}" for one in facts.assumed]
    lines += [f"remark: {one}" for one in facts.remarks]
    lines += [f"not read: {file}: {', '.join(keys)}" for file, keys in unread.items()]
    return lines
