"""Reports are what a person wants first: the step time and where it went, throughput, utilisation, memory, links."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from math import isfinite
from typing import TYPE_CHECKING, Any

from scenarios import theory
from simulator.analysis import memory, metrics, report, text, traffic
from simulator.analysis.critical import table
from simulator.units import show

if TYPE_CHECKING:
    from scenarios.built import BuiltScenario
    from scenarios.result import CollectiveResult, Result, VariantsResult
    from scenarios.step_result import StepResult
    from simulator.timeline import Timeline

LINKS = 6
"""Kinds of link that a report names, the busiest first."""


def heading(scenario: BuiltScenario) -> str:
    """Name and description, and what runs where."""
    lines = [scenario.name]
    if scenario.specification.description:
        lines[0] += f" - {' '.join(scenario.specification.description.split())}"
    derived, cluster = scenario.derived, scenario.cluster()
    idle = f"; {len(derived.idle)} idle" if derived.idle else ""
    used = derived.ranks
    lines.append(f"{used} of {derived.gpus} GPUs of {cluster.name}{idle}")
    return "\n".join(lines)


def step_report(result: StepResult) -> str:
    """All that a run of a training step prints."""
    model = result.scenario.model
    assert model is not None
    sections = [
        f"{heading(result.scenario)}; {batch(result.scenario)}",
        _times(result),
        _throughput(result, result.summary()),
        _memory(result),
        _links(result),
    ]
    if report.fits_in_text(result.timeline):
        sections.append(report.pipeline_chart(result.timeline))
    sections.append(engine_line(result.timeline))
    sections += [f"note: {note}" for note in model.notes]
    sections += ["\n".join(f"warning: outside the fit: {line}" for line in result.outside)]
    return "\n\n".join(section for section in sections if section)


def engine_line(timeline: Timeline) -> str:
    """Which engine ran, and how many ranks it simulated."""
    simulated, ranks = len(timeline.distinct_ranks), timeline.world_size
    which = f"all {ranks:,}" if simulated == ranks else f"{simulated:,} of {ranks:,}"
    equal = "" if simulated == ranks else "; each other rank does the same as one of them"
    return f"engine {timeline.engine}: {which} ranks simulated{equal}"


def _memory(result: StepResult) -> str:
    table = report.memory_table(result.memory, result.capacity, result.allowance)
    lines = ["memory of the fullest GPU, by category", indented(table)]
    if not result.fits:
        lines.append("  DOES NOT FIT: take a smaller micro-batch, a 16-bit precision, or a larger GPU")
    return "\n".join(lines)


def batch(scenario: BuiltScenario) -> str:
    """The batch and how it is cut."""
    training, model, derived = scenario.specification.training, scenario.model, scenario.derived
    assert training is not None
    assert model is not None
    micro = "1 micro-batch" if derived.micro_batches == 1 else f"{derived.micro_batches} micro-batches"
    shares = "" if derived.by_stage else f"{derived.replicas} replicas x "
    cut = f"{shares}{micro} of {derived.micro_batch_size}"
    if derived.ranks > derived.replicas:
        cut += f"; {derived.described}"
    return f"{model.name}, {training.precision}, batch {training.global_batch_size} = {cut}"


def _times(result: StepResult) -> str:
    count = result.timeline.steps_measured
    mean = f" (mean of {count} steps after the first)" if result.timeline.steps_run > 1 else ""
    lines = [f"step time {show(result.timeline.step_time, 'time')}{mean}"]
    if result.certainty.interval:
        low, high = (show(seconds, "time") for seconds in result.certainty.interval)
        lines.append(f"  {low} to {high} by the uncertainty of the fitted parameters (95 %)")
    if result.percentiles:
        shown = ", ".join(f"{name} {show(seconds, 'time')}" for name, seconds in result.percentiles.items())
        lines.append(f"  {shown} of {len(result.step_times)} repeats; what follows is of the first")
    lines.append(indented(report.breakdown_table(result.breakdown)))
    expected = theory.bubble(result.scenario)
    if expected is not None:
        lines.append(f"  bubble {metrics.bubble_fraction(result.breakdown):.1%}; in theory {told(expected)}")
    if result.initial_broadcast:
        lines.append(f"  before the first step: broadcast of the model, {show(result.initial_broadcast, 'time')}")
    return "\n".join([*lines, *_critical(result)])


def _critical(result: StepResult) -> list[str]:
    if result.critical is None:
        return ["critical path: absent, since a run of this size does not keep every span"]
    return table.lines(result.critical)


def told(expected: theory.ClosedForm) -> str:
    """A closed form of the bubble, its value first.

    >>> told(theory.ClosedForm("1 - 1/p", 0.75))
    '75.0% = 1 - 1/p, for equal stages, free messages and no recomputation'
    """
    return f"{expected.fraction:.1%} = {expected.formula}, for equal stages, free messages and no recomputation"


def _throughput(result: StepResult, summary: Mapping[str, Any]) -> str:
    precision, peak = result.peak
    rows = [["samples/s", figure(summary["samples_per_s"])]]
    if summary["tokens_per_s"]:
        rows.append(["tokens/s", figure(summary["tokens_per_s"])])
    if summary["model_tflops_per_gpu"]:
        of = f"the dense {precision} peak of {show(peak, 'rate')}"
        each = f"{summary['model_tflops_per_gpu']:.3g} TFLOP/s a GPU"
        rows.append(["MFU", f"{summary['mfu']:.1%}", f"model FLOPs / (GPUs x step time) = {each}, of {of}"])
        rows.append(["HFU", f"{summary['hfu']:.1%}", "the same of all FLOPs executed, recomputation included"])
    lines = [text.table(rows, align="lrl")]
    if "training" in summary:
        lines.append(_whole(summary["training"]))
    return "throughput\n" + indented("\n".join(lines))


def _whole(training: Mapping[str, float | None]) -> str:
    parts = [f"{figure(training['days'] or 0.0)} days", f"{figure(training['gpu_hours'] or 0.0)} GPU-hours"]
    if training["energy_mwh"] is not None:
        parts.append(f"{training['energy_mwh']:.4g} MWh")
    if training["co2_t"]:
        parts.append(f"{training['co2_t']:.4g} t CO2")
    if training["cost"]:
        parts.append(f"cost {figure(training['cost'])}")
    return f"whole training: {', '.join(parts)}"


def _links(result: StepResult) -> str:
    used = traffic.utilisation(result.timeline)
    nbytes = traffic.by_link_kind(result.timeline)
    busiest = sorted((kind for kind in used if nbytes[kind]), key=lambda kind: -used[kind]["max"])[:LINKS]
    if not busiest:
        return ""
    rows = [
        [kind, show(nbytes[kind], "size", 3), f"{used[kind]['mean']:.1%}", f"{used[kind]['max']:.1%}"]
        for kind in busiest
    ]
    table = text.table(rows, ["", "bytes a step", "mean use", "busiest"], "lrrr")
    sent = [f"{axis} {show(nbytes, 'size', 3)}" for axis, nbytes in traffic.by_axis(result.timeline).items() if nbytes]
    return f"links, by kind\n{indented(table)}\n  all ranks together send, by axis: {', '.join(sent)}"


def collective_report(result: CollectiveResult) -> str:
    """The table of nccl-tests."""
    benchmark = result.scenario.specification.collective
    assert benchmark is not None
    rows = [
        report.Measurement(
            row["size_bytes"], row["time_s"], row["algbw"], row["busbw"], row["algorithm"], row["protocol"]
        )
        for row in result.rows()
    ]
    network = result.scenario.specification.network
    title = f"{benchmark.kind} over {result.scenario.derived.ranks} ranks, transport {network.transport}"
    title += f", {network.fidelity}, engine {result.timeline.engine}"
    return f"{heading(result.scenario)}\n\n{title}\n{indented(report.collective_table(rows))}"


def variants_report(result: VariantsResult) -> str:
    """The variants side by side: a table of their numbers, and where their times went."""
    scenario = result.scenario
    title = scenario.name
    if scenario.specification.description:
        title += f" - {' '.join(scenario.specification.description.split())}"
    return "\n\n".join([title, *side_by_side(result.variants)])


def side_by_side(results: Mapping[str, Result]) -> Iterator[str]:
    """Several results as tables, a column each."""
    from scenarios.result import CollectiveResult
    from scenarios.step_result import StepResult

    steps = {name: result for name, result in results.items() if isinstance(result, StepResult)}
    if steps:
        yield text.table(_numbers(steps), ["", *steps], "lr")
        yield "where the step time went\n" + indented(
            report.comparison({name: result.breakdown for name, result in steps.items()})
        )
    for name, result in results.items():
        if isinstance(result, CollectiveResult):
            yield f"{name}\n{indented(result.report().split(chr(10), 4)[-1])}"


def _numbers(results: Mapping[str, StepResult]) -> list[list[str]]:
    summaries = {name: result.summary() for name, result in results.items()}
    rows = [
        ["step time", *(show(s["step_time_s"], "time") for s in summaries.values())],
        *_percentiles(results),
        ["samples/s", *(figure(s["samples_per_s"]) for s in summaries.values())],
        ["MFU", *(f"{s['mfu']:.1%}" for s in summaries.values())],
        ["peak memory", *(show(s["memory"]["peak_bytes"], "size", 3) for s in summaries.values())],
        ["fits", *("yes" if s["memory"]["fits"] else "NO" for s in summaries.values())],
        ["GPUs", *(f"{len(result.timeline.gpu_ranks)}" for result in results.values())],
    ]
    forms = [theory.bubble(result.scenario) for result in results.values()]
    if any(forms):
        rows.append(["bubble", *(f"{s['bubble_fraction']:.1%}" for s in summaries.values())])
        rows.append(["  in theory, without recomputation", *(f"{form.fraction:.1%}" if form else "" for form in forms)])
    kinds = dict.fromkeys(kind for s in summaries.values() for kind in s["link_utilisation"])
    for kind in kinds:
        uses = [s["link_utilisation"].get(kind, {"max": 0.0})["max"] for s in summaries.values()]
        if any(uses):
            rows.append([f"busiest {kind}", *(f"{use:.0%}" for use in uses)])
    return rows


def _percentiles(results: Mapping[str, StepResult]) -> list[list[str]]:
    """Rows of the percentiles that any of *results* has."""
    names = dict.fromkeys(name for result in results.values() for name in result.percentiles)
    return [
        [
            f"  {name} of repeats",
            *(show(own[name], "time") if name in (own := one.percentiles) else "" for one in results.values()),
        ]
        for name in names
    ]


def memory_line(held: memory.Peak, capacity: float) -> str:
    """A bound of memory against what a GPU has, in one line."""
    if not isfinite(capacity):
        return f"at most {show(held.nbytes, 'size', 3)} a GPU"
    comparison = "fits" if held.nbytes <= capacity else "DOES NOT FIT"
    return f"at most {show(held.nbytes, 'size', 3)} of {show(capacity, 'size', 3)} a GPU: {comparison}"


def indented(block: str, by: str = "  ") -> str:
    """*block* with every line moved to the right."""
    return "\n".join(f"{by}{line}" if line else line for line in block.splitlines())


def figure(number: float) -> str:
    """Four significant digits, never an exponent for what people count.

    >>> figure(460757.2), figure(236.98), figure(0.04181)
    ('460,757', '237', '0.04181')
    """
    return f"{number:,.0f}" if number >= 1000 else f"{number:.4g}"
