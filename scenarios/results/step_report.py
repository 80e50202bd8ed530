"""The report of a training step: its time and breakdown, throughput, utilisation, memory, links, and constants that
make up much of it.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from clustersim.scenarios.alternatives.changes import remedy_line
from clustersim.scenarios.build.built import BuiltScenario
from clustersim.scenarios.build.description import notes
from clustersim.scenarios.results import efficiency
from clustersim.scenarios.results.step_numbers import StepNumbers
from clustersim.scenarios.results.titles import batch, engine_line, heading
from clustersim.simulator.analysis import critical_path_tables, metrics, network_traffic
from clustersim.simulator.analysis.network_traffic import cable_load
from clustersim.simulator.charts import text_report
from clustersim.simulator.charts.pipeline import box_lengths
from clustersim.simulator.reading import plain_text
from clustersim.simulator.reading.plain_text import figure, indented
from clustersim.simulator.reading.units import SECONDS_PER_DAY, show, show_long
from clustersim.simulator.schedule.ops import Recv
from clustersim.simulator.schedule.program import Program
from clustersim.workloads.software_stack import tensors_by_stage

SHARE = 0.1
"""Share of a step above which a constant is named."""


def received(program: Program) -> int:
    """Return how many messages *program* receives in a step."""
    return sum(times * sum(isinstance(op, Recv) for op in ops) for ops, times in program.templates())


def large_constants(scenario: BuiltScenario, step: float) -> Iterator[str]:
    """Yield a line for each constant of the software stack that is more than `SHARE` of *step* (seconds)."""
    model, programs = scenario.model, scenario.schedule().programs
    if model is None or model.optimizer_seconds is not None:
        return
    tensors = max(sum(tensors_by_stage(one, model).values()) for one in programs)
    messages, software = max(map(received, programs)), scenario.software
    each = software.host_seconds_per_tensor
    terms = {
        "loading data and logging": (software.load_seconds, "once a step"),
        "the host's work for parameter tensors": (each * tensors, f"{tensors} x {show(each, 'time')}"),
        "waiting for messages": (
            software.host_seconds_per_message * messages,
            f"{messages} x {show(software.host_seconds_per_message, 'time')}",
        ),
    }
    for name, (seconds, how) in terms.items():
        if seconds > SHARE * step:
            yield f"{seconds / step:.0%} of the step is a constant of {scenario.stack}: {name}, {how}"


MOST_BLAMED = 5
"""Ranks with most time on the critical path that a report shows."""

LINKS = 6
"""Kinds of link that a report shows, the busiest first."""


def step_report(result: StepNumbers) -> str:
    """Return the text that a run of a training step prints."""
    sections = [
        f"{heading(result.scenario)}; {batch(result.scenario)}",
        _times(result),
        _throughput(result, result.summary()),
        result.experts.report() if result.experts else "",
        result.compression.report() if result.compression else "",
        result.federated.report() if result.federated else "",
        _memory(result),
        _links(result),
    ]
    if text_report.fits_in_text(result.timeline):
        sections.append(f"{text_report.pipeline_chart(result.timeline)}\n  {box_lengths(result.timeline)}".rstrip())
    sections.append(engine_line(result.timeline))
    sections += [f"note: {note}" for note in notes(result.scenario)]
    sections += [f"note: {line}" for line in large_constants(result.scenario, result.timeline.step_time)]
    sections += ["\n".join(f"not calibrated: {line}" for line in result.outside)]
    return "\n\n".join(section for section in sections if section)


def _memory(result: StepNumbers) -> str:
    table = text_report.memory_table(result.memory, result.reserved)
    lines = ["memory of the fullest GPU, by category", indented(table), f"  {result.need}"]
    if not result.fits:
        lines.append(f"  {remedy_line(result.scenario)}")
    return "\n".join(lines)


def _times(result: StepNumbers) -> str:
    lines = [f"step time {show(result.timeline.step_time, 'time')}{_window(result)}"]
    if result.uncertainty.interval:
        low, high = (show(seconds, "time") for seconds in result.uncertainty.interval)
        lines.append(f"  {low} to {high} {result.uncertainty.known} (see the accuracy page)")
    if result.percentiles:
        shown = ", ".join(f"{name} {show(seconds, 'time')}" for name, seconds in result.percentiles.items())
        lines.append(f"  {shown} of {len(result.step_times)} repeats; what follows is of the first")
    if result.blame:
        told = [f"rank {rank} in {count}" for rank, count in list(result.blame.items())[:MOST_BLAMED]]
        more = f" and {len(result.blame) - MOST_BLAMED} more" if len(result.blame) > MOST_BLAMED else ""
        lines.append(f"  most on the critical path: {', '.join(told)}{more}, of {sum(result.blame.values())} repeats")
    lines.append(indented(text_report.breakdown_table(result.breakdown)))
    expected = efficiency.bubble(result.scenario)
    if expected is not None:
        lines.append(f"  bubble {metrics.bubble_fraction(result.breakdown):.1%}; in theory {_theory(expected)}")
        lines += _causes(result, expected)
    if result.first_steps:
        count, seconds = result.first_steps
        how = "sends whole gradients" if result.whole_step else "is synchronous"
        lines.append(f"  each of the first {count:,} steps {how} and takes {show(seconds, 'time')}")
    if result.initial_broadcast:
        lines.append(f"  before the first step: broadcast of the model, {show(result.initial_broadcast, 'time')}")
    return "\n".join([*lines, *_input(result), *_critical(result)])


def _input(result: StepNumbers) -> Iterator[str]:
    """Yield how long the samples of a step take to load, if that is known."""
    if result.loading is None:
        return
    load, wait = result.loading.seconds, result.loading.wait(result.timeline.step_time)
    size = show(result.loading.nbytes, "size", 3)
    if wait:
        more = f"each step waits {show(wait, 'time')} more for its data"
        yield f"  input: {size} a step load in {show(load, 'time')}: {more}"
    else:
        yield f"  input: {size} a step load in {show(load, 'time')}, beside the step before"


def _window(result: StepNumbers) -> str:
    """Of which steps the step time is the mean, in brackets; nothing of a single step."""
    timeline, specification = result.timeline, result.scenario.specification
    data = specification.parallelism.data
    if timeline.schedule.independent:
        return f" (mean of {timeline.steps_measured:.4g} steps in the steady state)"
    if result.federated:
        return f" (of a round's {timeline.steps_measured / len(result.federated.seconds):.4g} local steps)"
    if data.period(1):
        return f" (mean of {timeline.steps_measured:.4g} steps, whole periods of {data.label})"
    if timeline.schedule.batches > 1:
        which = "one global batch" if timeline.steps_measured == 1 else f"{timeline.steps_measured} global batches"
        return f" ({which} in the steady state)"
    return f" (mean of {timeline.steps_measured} steps after the first)" if timeline.steps_run > 1 else ""


def _critical(result: StepNumbers) -> list[str]:
    if result.critical is None:
        return ["critical path: absent, since a run of this size does not keep every span"]
    return critical_path_tables.lines(result.critical)


def _causes(result: StepNumbers, expected: efficiency.ClosedForm) -> Iterator[str]:
    """Yield the causes of the bubble with their shares of the step time, the largest first."""
    found = metrics.bubble_causes(result.timeline, expected.fraction)
    if found is None:
        return
    step = result.timeline.step_time
    slowest = f" (stage {found.slowest} works {found.excess:.1%} more than the mean)"
    seconds = {
        "fill and drain": found.fill_and_drain,
        f"unequal stages{slowest}": found.unequal_stages,
        "waiting for the optimizer": found.optimizer,
        "messages and order": found.messages,
    }
    told = [
        f"{cause} {s / step:.1%}"
        for cause, s in sorted(seconds.items(), key=lambda item: -item[1])
        if s >= LEAST * step
    ]
    if told:
        yield f"    {', '.join(told)}"


LEAST = 5e-4
"""Least share of the step time that is told; less would be printed as 0.0 %."""


def _theory(expected: efficiency.ClosedForm) -> str:
    """Return a closed form of the bubble as text, its value first.

    >>> _theory(efficiency.ClosedForm("1 - 1/p", 0.75))
    '75.0% = 1 - 1/p, for equal stages, free messages and no recomputation'
    """
    return f"{expected.fraction:.1%} = {expected.formula}, for equal stages, free messages and no recomputation"


def _throughput(result: StepNumbers, summary: Mapping[str, Any]) -> str:
    precision, peak = result.peak
    rows = [["samples/s", figure(summary["samples_per_s"])]]
    if summary["tokens_per_s"]:
        rows.append(["tokens/s", figure(summary["tokens_per_s"])])
    if summary["model_tflops_per_gpu"]:
        of = f"the dense {precision} peak of {show(peak, 'rate')}"
        each = f"{summary['model_tflops_per_gpu']:.3g} TFLOP/s a GPU"
        rows.append(["MFU", f"{summary['mfu']:.1%}", f"model FLOPs / (GPUs x step time) = {each}, of {of}"])
        if summary["mfu_6nd"] is not None:
            model, training = result.scenario.model, result.scenario.specification.training
            assert model is not None
            assert training is not None
            tokens = training.global_batch_size * model.tokens_per_sample
            active = " active" if model.active_parameters < model.parameters else ""
            numbers = f"N = {figure(model.active_parameters)}{active} parameters, D = {figure(tokens)} tokens a step"
            formula = f"6 N D / (GPUs x peak x step time), {numbers}"
            rows.append(["MFU by 6ND", f"{summary['mfu_6nd']:.1%}", formula])
        rows.append(["HFU", f"{summary['hfu']:.1%}", "the same of all FLOPs executed, recomputation included"])
    lines = [plain_text.table(rows, align="lrl"), *_above_peak(result, summary["mfu"])]
    if "training" in summary:
        lines.append(_whole(summary["training"]))
    return "throughput\n" + indented("\n".join(lines))


def _above_peak(result: StepNumbers, mfu: float) -> Iterator[str]:
    """Yield why *mfu* is above 1, if it is: FLOPs that are counted but not executed, or durations that are given."""
    if mfu <= 1:
        return
    kernels = [
        kernel
        for program in result.timeline.schedule.programs
        for op in program.distinct()
        for kernel in getattr(op, "kernels", ())
    ]
    if any(kernel.seconds is not None and kernel.flops for kernel in kernels):
        why = "durations are given by the scenario, and are shorter than this GPU could compute them"
    elif any(kernel.winograd for kernel in kernels):
        why = "Winograd's algorithm multiplies less than the model FLOPs count"
    elif any(kernel.attention for kernel in kernels):
        why = "model FLOPs count the whole square of attention, by convention, of which a causal mask computes half"
    else:
        why = "the GPU or the precision of the products is not that of the peak; check the cluster's accelerator"
    yield f"note: MFU above 100 %: {why}"


def _whole(training: Mapping[str, float | None]) -> str:
    parts = [
        show_long((training["days"] or 0.0) * SECONDS_PER_DAY),
        f"{figure(training['gpu_hours'] or 0.0)} GPU-hours",
    ]
    if training["energy_mwh"] is not None:
        parts.append(_scaled(training["energy_mwh"], "MWh", "kWh"))
    if training["co2_t"]:
        parts.append(f"{_scaled(training['co2_t'], 't', 'kg')} CO2")
    if training["cost"]:
        parts.append(f"cost {figure(training['cost'])}")
    if training.get("cost_reserved"):
        parts.append(f"reserved {figure(training['cost_reserved'] or 0.0)}")
    whole = f"whole training: {', '.join(parts)}"
    if training.get("days_to_loss"):
        more = show_long((training["days_to_loss"] or 0.0) * SECONDS_PER_DAY)
        whole += f"\nto the loss that a small batch reaches with these data: {more} (critical batch size)"
    return whole


def _scaled(number: float, unit: str, thousandth: str) -> str:
    """Return *number* in *unit*, or in its *thousandth* if it is below one.

    >>> _scaled(0.02716, "MWh", "kWh")
    '27.16 kWh'
    """
    return f"{figure(number)} {unit}" if number >= 1 else f"{figure(1000 * number)} {thousandth}"


def _links(result: StepNumbers) -> str:
    used = network_traffic.utilisation(result.timeline)
    nbytes = network_traffic.by_link_kind(result.timeline)
    share = {kind: used[kind]["max"] if used else nbytes[kind] for kind in nbytes}
    busiest = sorted((kind for kind in nbytes if nbytes[kind]), key=lambda kind: -share[kind])[:LINKS]
    if not busiest:
        return ""
    rows = [
        [kind, show(nbytes[kind], "size", 3), *(f"{used[kind][of]:.1%}" if used else "-" for of in ("mean", "max"))]
        for kind in busiest
    ]
    table = plain_text.table(rows, ["", "bytes a step", "mean use", "busiest"], "lrrr")
    if not used:
        table += "\nno use: with fidelity alpha_beta each transfer has its links for itself"
    if load := cable_load(result.timeline):
        table += f"\n{load.told()}"
    sent = [
        f"{axis} {show(nbytes, 'size', 3)}"
        for axis, nbytes in network_traffic.by_axis(result.timeline).items()
        if nbytes
    ]
    return f"links, by kind\n{indented(table)}\n  all ranks together send, by axis: {', '.join(sent)}"
