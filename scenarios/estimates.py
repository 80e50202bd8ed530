"""Answers about a model without a scenario file: the memory of its layouts, and the utilisation of a logged step.

Both make a scenario with the defaults of `scenarios.defaults` and ask it, so that `run` and `check` say the same.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from math import isfinite
from typing import Any

from clustersim.scenarios import defaults
from clustersim.scenarios.build.built import BuiltScenario
from clustersim.scenarios.build.description import model_title
from clustersim.scenarios.build.memory_need import MemoryNeed, of_capacity
from clustersim.scenarios.results.efficiency import Utilisation, utilisation
from clustersim.simulator.reading import plain_text
from clustersim.simulator.reading.dataclass import dataclass
from clustersim.simulator.reading.errors import ScenarioError, SimulatorError
from clustersim.simulator.reading.plain_text import figure
from clustersim.simulator.reading.units import SECONDS_PER_DAY, show, show_long

CATEGORIES = ("parameters", "gradients", "optimizer", "activations", "buffers")
"""Of tensors, as a result has them."""


@dataclass(frozen=True)
class PresetMachine:
    """*gpus* of the preset *cluster*, or all of its *nodes*; *assumed*: the user has named no cluster."""

    cluster: str
    nodes: int
    gpus: int
    per_node: int
    assumed: bool = False

    @property
    def settings(self) -> list[str]:
        """What it changes of the preset."""
        return [f"cluster.node.accelerators={self.gpus}"] if self.gpus < self.per_node else []


ASSUMED = "dgx_h100"
"""The cluster of a question that names none: the most widespread server with eight GPUs."""


def machine(cluster: str | None, nodes: int | None, gpus: int | None) -> PresetMachine:
    """Return the machine of a question. Raises `ScenarioError` if *gpus* do not fill *nodes*, or nodes."""
    name = cluster or ASSUMED
    each = len(defaults.cluster_of({"preset": name, "nodes": 1}).gpus)
    if gpus is None:
        return PresetMachine(name, nodes or 1, (nodes or 1) * each, each, cluster is None)
    if nodes is not None and gpus != nodes * each:
        raise ScenarioError(f"--gpus {gpus}: {nodes} nodes of {name} have {nodes * each} GPUs; give one of both")
    if gpus > each and gpus % each:
        below = gpus // each * each
        raise ScenarioError(
            f"--gpus {gpus}: does not fill nodes of {each} GPUs ({name}); the nearest are {below} and {below + each}"
        )
    return PresetMachine(name, max(1, gpus // each), gpus, each, cluster is None)


@dataclass(frozen=True)
class LayoutMemory:
    """What a layout needs on its fullest GPU: *scenario*, and its *need*; *chosen*: `run` takes it by default."""

    scenario: BuiltScenario
    need: MemoryNeed
    chosen: bool

    @property
    def name(self) -> str:
        """The degrees above 1 and the method of data parallelism, such as ``tp 8 sp, dp 8, zero 1``."""
        parallelism, degrees = self.scenario.specification.parallelism, dict(self.scenario.derived.degrees)
        shown = [
            f"{axis} {degree}{' sp' if axis == 'tp' and parallelism.sequence_parallel else ''}"
            for axis, degree in degrees.items()
            if degree > 1
        ]
        shown += [f"ep {parallelism.ep}"] if parallelism.ep > 1 and "ep" not in degrees else []
        stage = getattr(parallelism.data, "stage", None)
        return ", ".join([*shown, parallelism.data.method + ("" if stage is None else f" {stage}")])

    def summary(self) -> dict[str, Any]:
        """Return the numbers for `--json`."""
        training = self.scenario.specification.training
        assert training is not None
        derived = self.scenario.derived
        return {
            "layout": self.name,
            "default": self.chosen,
            "software": self.scenario.stack,
            "precision": str(training.precision),
            "recompute": training.recompute_method,
            "micro_batch_size": derived.micro_batch_size,
            "by_category_bytes": {name: float(self.need.by_category.get(name, 0.0)) for name in CATEGORIES},
            "reserved_bytes": dict(self.need.reserved),
            "need_bytes": self.need.nbytes,
            "capacity_bytes": self.need.capacity if isfinite(self.need.capacity) else None,
            "fits": self.need.fits,
            "host_bytes": self.need.bytes_in("host memory"),
        }


def memory(model: str, on: PresetMachine, batch: int | None = None, settings: Sequence[str] = ()) -> list[LayoutMemory]:
    """Return what *model* needs *on* a machine: of the layout in *settings* (``key.path=value``), or of several.

    What the settings leave open is by default; recomputation is what the layout needs to fit. Raises `ScenarioError`.
    """
    first = layout_memory(model, on, batch, settings, chosen=True)
    if on.gpus == 1 or any(one.startswith("parallelism.") for one in settings):
        return [first]
    found = [first]
    for layout in _layouts(first.scenario, on):
        try:
            one = layout_memory(model, on, batch, [*settings, *layout])
        except SimulatorError:
            # the model, or the batch, cannot be divided so
            continue
        if one.name != first.name:
            found.append(one)
    return found


def layout_memory(
    model: str, on: PresetMachine, batch: int | None = None, settings: Sequence[str] = (), *, chosen: bool = False
) -> LayoutMemory:
    """Return what *model* needs *on* a machine with *settings* and, for what they leave open, the defaults."""
    own = [*on.settings, *settings]
    data = defaults.open_keys(model, on.cluster, on.nodes, batch)
    found = defaults.defaults(data, own)
    return LayoutMemory(BuiltScenario.model_validate(found.added_to(data), own), found.need, chosen)


def _layouts(scenario: BuiltScenario, on: PresetMachine) -> Iterator[list[str]]:
    """Yield usual layouts as settings: sharded more and more, then cut within the node, then across nodes."""
    data = "parallelism.data={{method: {}}}"
    yield [data.format("ddp")]
    for stage in (1, 2, 3):
        yield [data.format(f"zero, stage: {stage}")]
    yield [data.format("fsdp")]
    megatron = [data.format("zero, stage: 1"), "parallelism.sequence_parallel=true"]
    tensor = min(on.gpus, on.per_node, 8)
    if tensor > 1:
        yield [f"parallelism.tp={tensor}", *megatron]
    stages = min(4, on.nodes)
    if stages > 1:
        yield [f"parallelism.tp={tensor}", f"parallelism.pp={stages}", *megatron]
    if getattr(scenario.specification.model, "num_experts", None):
        yield [f"parallelism.ep={tensor}", data.format("zero, stage: 1")]


def memory_text(found: Sequence[LayoutMemory], on: PresetMachine) -> str:
    """Return a table of *found*: a row for each layout, bytes by category and the sum beside the capacity."""
    scenario, capacity = found[0].scenario, found[0].need.capacity
    model, training = scenario.model, scenario.specification.training
    assert model is not None
    assert training is not None
    of = show(capacity, "size", 3) if isfinite(capacity) else "no limit"
    tokens = f" of {model.tokens_per_sample:,} tokens" if model.tokens_per_sample else ""
    assumed = " (assumed; --cluster names another)" if on.assumed else ""
    head = (
        f"{model_title(scenario)}, {figure(model.parameters)} parameters, {training.precision}, "
        f"on {_counted(on.gpus, 'GPU')} of {on.cluster}{assumed}, {of} each; "
        f"micro-batch of {_counted(scenario.derived.micro_batch_size, 'sample')}{tokens}"
    )
    titles = ["layout", "software", "recompute", *CATEGORIES, "reserved", "needs", ""]
    rows = [
        [
            one.name + ("*" if one.chosen and len(found) > 1 else ""),
            one.scenario.stack,
            one.summary()["recompute"],
            *(show(one.need.by_category.get(name, 0.0), "size", 3) for name in CATEGORIES),
            show(sum(one.need.reserved.values()), "size", 3),
            of_capacity(one.need.nbytes, one.need.capacity),
            "fits" if one.need.fits else f"no: {one.need.short}" if one.need.short else "does not fit",
        ]
        for one in found
    ]
    lines = [head, "", plain_text.table(rows, titles, "lllrrrrrrrl")]
    if len(found) > 1:
        lines += ["", "* what clustersim run takes by default. recompute: the least with which the layout fits."]
    lines += ["reserved: CUDA's context, buffers of the communication library, gaps of the allocator."]
    return "\n".join(lines)


def _counted(number: int, noun: str) -> str:
    return f"{number:,} {noun}{'s' if number > 1 else ''}"


@dataclass(frozen=True)
class LoggedStep:
    """A step that a training program has logged: its *scenario*, *numbers*, and *steps* of the whole training, or 0."""

    scenario: BuiltScenario
    numbers: Utilisation
    steps: float

    def summary(self) -> dict[str, Any]:
        """Return the numbers for `--json`, by the keys of a result."""
        made = self.scenario.specification.training
        assert made is not None
        whole = {"training": {"days": self.days, "gpu_hours": self.days * 24 * self.numbers.gpus}} if self.steps else {}
        return {
            "name": self.scenario.name,
            "step_time_s": self.numbers.seconds,
            **self.numbers.summary(),
            "peak_flops": self.numbers.peak,
            "precision": str(made.precision),
            "recompute": made.recompute_method,
            **whole,
        }

    @property
    def days(self) -> float:
        """Days of the whole training."""
        return self.steps * self.numbers.seconds / SECONDS_PER_DAY

    def report(self) -> str:
        """Return the numbers as a table."""
        numbers, told = self.numbers, self.numbers.summary()
        training = self.scenario.specification.training
        assert training is not None
        rows = [
            ["MFU", f"{told['mfu']:.1%}", "model FLOPs / (GPUs x step time x peak)"],
            ["HFU", f"{told['hfu']:.1%}", f"the same with recomputation, recompute: {training.recompute_method}"],
            ["TFLOP/s", f"{told['model_tflops_per_gpu']:.4g}", "of the model, on each GPU"],
            ["peak", show(numbers.peak, "rate"), f"dense, {numbers.precision}"],
            ["samples/s", figure(told["samples_per_s"] or 0.0), ""],
        ]
        if numbers.mfu_6nd is not None:
            formula = f"6 N D / (GPUs x step time x peak), N = {figure(numbers.parameters or 0)} parameters"
            rows.insert(1, ["MFU by 6ND", f"{numbers.mfu_6nd:.1%}", formula])
        if numbers.tokens:
            rows.append(["tokens/s", figure(told["tokens_per_s"] or 0.0), f"{numbers.tokens:,} tokens a step"])
        if self.steps:
            hours = f"{figure(self.days * 24 * numbers.gpus)} GPU-hours"
            rows.append(["training", show_long(self.days * SECONDS_PER_DAY), f"{figure(self.steps)} steps, {hours}"])
        on, step = _counted(numbers.gpus, "GPU"), show(numbers.seconds, "time")
        head = f"{model_title(self.scenario)} on {on}, a step of {step}"
        lines = [head, "", plain_text.table(rows, align="lrl")]
        if (told["hfu"] or 0.0) > 1:
            lines += ["", "above 100 %: check the step's time, the batch, the number of GPUs and the precision"]
        return "\n".join(lines)


def logged_step(
    model: str,
    on: PresetMachine,
    seconds: float,
    batch: int,
    tokens: str | None = None,
    settings: Sequence[str] = (),
) -> LoggedStep:
    """Return the utilisation of a step of *batch* samples that took *seconds* on a machine. Raises `ScenarioError`."""
    own = [*on.settings, *settings]
    data = defaults.open_keys(model, on.cluster, on.nodes, 1, tokens) | {"parallelism": {"dp": 1}}
    scenario = BuiltScenario.model_validate(defaults.defaults(data, own).added_to(data), own)
    # FLOPs are those of a sample: they depend on no layout, and the batch need not divide the GPUs
    counts = scenario.cluster().count(scenario.derived.devices)
    each = utilisation(scenario, scenario.schedule(), counts, seconds)
    numbers = replace(
        each,
        gpus=on.gpus,
        model=each.model * batch,
        executed=each.executed * batch,
        samples=batch,
        tokens=each.tokens * batch,
    )
    training, one = scenario.specification.training, each.tokens or 1
    assert training is not None
    samples = training.samples or (training.tokens or 0.0) / one
    return LoggedStep(scenario, numbers, samples / batch)
