"""The accuracy page: every published figure beside its prediction, and the errors by category of run."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from datetime import date

from scenarios.evaluate import comparisons
from scenarios.evaluate.categories import ORDER
from scenarios.evaluate.evaluation import Comparison, Evaluation, error_statistics
from scenarios.evaluate.intervals import coverage, residuals
from scenarios.evaluate.layer_classes import COLUMNS, LayerClass

KINDS = {
    "training step": ("GPU", "GPUs", "tensor parallel", "pipeline", "data parallel", "recompute", "beside computing"),
    "collective": ("GPU", "message", "nodes", "protocol"),
}
"""Kinds of category by which the errors of each kind of run are shown."""

NOT_MODELLED = (
    "Congestion control, packet loss, adaptive routing, and other jobs on the same network.",
    "Frontier's software: RCCL over libfabric is priced as NCCL, ROCm's products of any layout as its best square one; "
    "its large runs are predicted a fifth too fast and more.",
    "Clocks that drop under load or heat, and nodes that are slower than others unless a scenario names them.",
    "Reading of data, checkpoints, logging, garbage collection, the memory allocator's retries.",
    "DeepSpeed's pipeline engine: MT-NLG took a fifth longer on it than the same pipeline in Megatron-LM would.",
    "What SageMaker adds to ZeRO-3, and the micro-batch that BloombergGPT ran with: it is predicted too fast.",
    "Tensor parallelism across nodes over one adapter (DLPerf, MP_1x16x1; Megatron-LM on two DGX-2 in the ZeRO paper): "
    "exchanges of 50 to 200 MB took half as long again as NCCL's rings at the adapter's rate, which the gradients of "
    "DLPerf's cluster reached; a simulation of these rings chunk by chunk does not tell why.",
    "Kernels chosen by autotuning: a product is priced by its shape with the best of a few tiles.",
    "Ring attention of torchtitan on 4 and 8 ranks takes a third longer than here; the reason is not known.",
    "Searched pipeline schedules (ZB-1p, ZB-2p): the nearest hand-made ones are simulated in their place.",
    "What products reach on TPUs: they are priced at the peak.",
)
"""Conditions of published runs that a scenario cannot express."""


def page(
    evaluations: Sequence[Evaluation],
    waiting: Mapping[str, str],
    classes: Sequence[LayerClass],
    command: str,
    today: date,
) -> str:
    """Return the page as Markdown; *command* made it, on *today*.

    *waiting*: scenarios that are not evaluated, or not yet, with the reasons.
    """
    everything = [comparison for one in evaluations for comparison in one.comparisons]
    sections = [
        f"# Accuracy\n\nMade by `{command}` on {today:%d %B %Y}. Every figure by which a published run is evaluated "
        "stands here. The error is (predicted - measured) / measured; *time* is the mean error of the time that a "
        "figure implies; below 0 the simulator is too fast. A tolerance is the scenario author's target, not the "
        "accuracy that was reached. Two clusters that run the same configuration differ by 1 to 7 %.",
        _overview(evaluations, everything),
        *_categories(everything),
        *_intervals(everything),
        *_layer_classes(classes),
        "## What is not modelled\n\n" + "\n".join(f"- {one}" for one in NOT_MODELLED),
        *_left_out(evaluations, waiting),
        "## Every figure",
        *map(_scenario, evaluations),
    ]
    return "\n\n".join(sections) + "\n"


def _overview(evaluations: Sequence[Evaluation], everything: Sequence[Comparison]) -> str:
    groups: dict[str, Sequence[Comparison]] = {
        "all": everything,
        "of these, parameters were fitted to": [one for one in everything if one.outcome.fitted],
        "of these, nothing was fitted to": [one for one in everything if not one.outcome.fitted],
    }
    groups |= {f"[{one.scenario.name}](#{one.scenario.name})": one.comparisons for one in evaluations}
    return "## Overview\n\n" + _statistics("scenario", groups)


def _categories(everything: Sequence[Comparison]) -> Iterator[str]:
    for what, kinds in KINDS.items():
        timed = [one for one in everything if one.categories.get("what") == what and "memory" not in one.outcome.key]
        groups: dict[str, Sequence[Comparison]] = {}
        for kind in kinds:
            names = sorted({one.categories[kind] for one in timed if kind in one.categories}, key=_place)
            groups |= {f"{kind}: {name}": [one for one in timed if one.categories.get(kind) == name] for name in names}
        if timed:
            yield f"## Errors of a {what} by category\n\n" + _statistics("category", groups)
    memory = [one for one in everything if "memory" in one.outcome.key]
    if memory:
        yield "## Errors of memory\n\n" + _statistics("figure", {"memory": memory})


def _place(category: str) -> tuple[int, str]:
    return ORDER.index(category) if category in ORDER else -1, category


def _statistics(title: str, groups: Mapping[str, Sequence[Comparison]]) -> str:
    rows = []
    for name, members in groups.items():
        one = error_statistics(members)
        if one is not None:
            met = sum(comparison.outcome.met for comparison in members)
            shares = f"{one.mean:.1%}", f"{one.middle:.1%}", f"{one.worst:.1%}", f"{one.slower:+.1%}"
            rows.append([name, str(one.count), str(met), *shares])
    return _table([title, "figures", "within tolerance", "mean", "median", "worst", "time"], rows)


def _intervals(everything: Sequence[Comparison]) -> Iterator[str]:
    rows = [
        [kind, name, str(own.rows), str(own.sources), f"{own.share:.0%}", f"{own.width:.0%}"]
        for (kind, name), own in coverage(list(residuals(everything))).items()
    ]
    if rows:
        yield (
            "## Intervals of step times\n\n"
            "The interval that a report prints holds 95 % of the published runs that nothing was fitted to, by regime. "
            "Inside: the share of a regime's runs in the interval, each source with an interval made of all other "
            "sources. Width: the mean, over the predicted step time.\n\n"
            + _table(["kind", "regime", "runs", "sources", "inside", "width"], rows)
        )


def _layer_classes(classes: Sequence[LayerClass]) -> Iterator[str]:
    if classes:
        yield (
            "## Layers of convolutional models on a V100, priced by shape\n\n"
            "Measured are PipeDream's profiles (msr-fiddle/pipedream), each layer alone; priced is the same layer from "
            "its shape. Milliseconds of all layers of a class, forward and backward.\n\n"
            + _table(COLUMNS, [one.row() for one in classes])
        )


def _left_out(evaluations: Iterable[Evaluation], waiting: Mapping[str, str]) -> Iterator[str]:
    failed = {f"{one.scenario.name}: {run}": why for one in evaluations for run, why in one.failures.items()}
    lines = [f"- {name}: {reason.splitlines()[0]}" for name, reason in {**waiting, **failed}.items()]
    if lines:
        yield "## What could not be evaluated here\n\n" + "\n".join(lines)


def _scenario(evaluation: Evaluation) -> str:
    name, description = evaluation.scenario.name, evaluation.scenario.specification.description
    rows = [row[1:] for row in comparisons.rows(evaluation.comparisons, longest=10_000)]
    parts = [f"### {name}\n\n{description}.", _table(comparisons.ROWS[1:], rows), *_predicted_only(evaluation)]
    return "\n\n".join(parts)


def _predicted_only(evaluation: Evaluation) -> Iterator[str]:
    """Yield the predictions of runs without expectations."""
    compared = {comparison.outcome.variant for comparison in evaluation.comparisons}
    compared |= {comparison.outcome.relative_to for comparison in evaluation.comparisons}
    for name, summary in evaluation.summary.get("variants", {}).items():
        if name not in compared and "mfu" in summary:
            yield (
                f"Predicted only: {name}, {summary['step_time_s']:.4g} s a step, MFU {summary['mfu']:.1%}, "
                f"HFU {summary['hfu']:.1%}."
            )


def _table(header: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    lines = [header, ["---"] * len(header), *rows]
    return "\n".join(f"| {' | '.join(cell.replace('|', '/') for cell in line)} |" for line in lines)
