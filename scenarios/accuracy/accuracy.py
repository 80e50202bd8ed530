"""The accuracy page, by source of measurements; and the page of all figures beside their predictions."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from datetime import date

from clustersim.scenarios.accuracy import comparisons
from clustersim.scenarios.accuracy.comparisons import (
    FAR,
    INFORMS,
    KINDS,
    LEFT_OUT,
    SEEN,
    SOURCE_GROUPS,
    STRANGER,
    SourceErrors,
    by_source,
    headline,
    step_calibration,
)
from clustersim.scenarios.accuracy.evaluation import ORDER, Comparison, Evaluation, error_statistics
from clustersim.scenarios.accuracy.layers_and_products import COLUMNS, LONG, LayerClass, ProductErrors, mean_error
from clustersim.scenarios.accuracy.prediction_intervals import IntervalCalibration, coverage
from clustersim.scenarios.accuracy.provenance import informed_by_hand
from clustersim.scenarios.results.interval import CLASSES

CATEGORIES = {
    "training step": ("GPU", "GPUs", "tensor parallel", "pipeline", "data parallel", "recompute", "beside computing"),
    "collective": ("GPU", "message", "nodes", "protocol"),
}
"""Kinds of category by which the errors of each kind of run are shown."""

NOT_MODELLED = (
    "Congestion control and packet loss; of other jobs on the network only the traffic that a scenario names.",
    "How a host with one NUMA domain for many memory channels slows GPUs on PCIe that exchange through its memory: "
    "four and eight L40S of a server that is not told took 3 and 10 times as long as predicted; four and eight RTX PRO "
    "6000 took a quarter longer.",
    "Frontier's software: RCCL over libfabric is priced as NCCL, ROCm's products of any layout as its best square one; "
    "its large runs are predicted a fifth too fast and more.",
    "RCCL's own tuning: priced by NCCL's tables, small all-reduces of eight MI300X and sixteen MI355X are predicted a "
    "third too fast, those of 1 GiB and more within a tenth; on two servers of MI300X small ones took eight times "
    "as long, and why is not known.",
    "GPUDirect-TCPX and TCPXO, priced as RDMA: small all-reduces took five times as long on A3 Mega, and large ones "
    "reached half the rate of the NICs on A3 High.",
    "Clocks that drop under load or heat, and nodes that are slower than others unless a scenario names them.",
    "Logging, garbage collection and the memory allocator's retries; checkpoints, failures and waiting for data are "
    "those of a campaign, not of a step.",
    "DeepSpeed's pipeline engine: MT-NLG took a fifth longer on it than the same pipeline in Megatron-LM would.",
    "What SageMaker adds to ZeRO-3, and the micro-batch that BloombergGPT ran with: it is predicted too fast.",
    "Tensor parallelism across nodes over one adapter (DLPerf, MP_1x16x1; Megatron-LM on two DGX-2 in the ZeRO paper): "
    "exchanges of 50 to 200 MB took half as long again as NCCL's rings at the adapter's rate, which the gradients of "
    "DLPerf's cluster reached; a simulation of these rings chunk by chunk does not tell why.",
    "Kernels chosen by autotuning: a product is priced by its shape with the best of a few tiles.",
    "Ring attention of torchtitan on 4 and 8 ranks takes a third longer than here; the reason is not known.",
    "Searched pipeline schedules (ZB-1p, ZB-2p): the nearest hand-made ones are simulated in their place.",
    "What several slices of TPUs lose to one: MaxText's runs take 3 to 15 % longer on two, of which the exchange over "
    "the data-centre network, exposed whole, is 1 to 4 %.",
    "Variation among ranks beside that of GPUs' clocks: six sources that scale one configuration show none (their "
    "error changes by less than 0.6 points a doubling of GPUs); in others model, batch or sequence change with it.",
)
"""Conditions of published runs that a scenario cannot express."""


MEANING = {
    STRANGER: "its runs were written as scenarios before any prediction of them was seen; what its text tells was "
    "added as keys for it came",
    SEEN: "nothing is fitted to it, but the simulator was built with its runs in view",
    LEFT_OUT: "constants are fitted to it; it is predicted by a fit without it",
    INFORMS: "constants were chosen by hand from it, so that nothing predicts it without itself; counted apart",
}
"""What the groups of sources mean."""

HEADLINES: dict[str, tuple[str, ...]] = {
    "strangers": (STRANGER,),
    "known, left out": (SEEN, LEFT_OUT),
    "both": (STRANGER, SEEN, LEFT_OUT),
    "apart: informs constants": (INFORMS,),
}
"""The rows of the headline: which groups of sources each has."""

ERROR = (
    "An error is that of the time, (predicted - measured) / measured, also where a rate was measured; below 0 the "
    "simulator is too fast. Two clusters that run the same configuration differ by 1 to 7 %."
)


def page(
    evaluations: Sequence[Evaluation],
    waiting: Mapping[str, str],
    products: Sequence[ProductErrors],
    command: str,
    today: date,
) -> str:
    """Return the page as Markdown; *command* made it, on *today*.

    *waiting*: scenarios that are not evaluated, or not yet, with the reasons.
    """
    of = step_calibration(evaluations)
    found = by_source(evaluations, products, of)
    sections = [
        f"# Accuracy\n\nMade by `{command}` on {today:%d %B %Y}. Every source of measurements counts once, and is "
        f"predicted by constants that have not seen it. {ERROR} A page of its own has all figures (`accuracy_rows.md` "
        "of the site), and `clustersim show constants` tells which source informs which constant.",
        _headlines(found),
        *_far(found),
        *(_sources(kind, own) for kind, own in found.items() if own),
        *_products(products),
        *_intervals(of),
        "## What is not modelled\n\n" + "\n".join(f"- {one}" for one in NOT_MODELLED),
        *_left_out(evaluations, waiting),
    ]
    return "\n\n".join(sections) + "\n"


def rows_page(evaluations: Sequence[Evaluation], classes: Sequence[LayerClass], command: str, today: date) -> str:
    """Return the page of all figures as Markdown, by scenario and by category of run; *command* made it, on *today*."""
    everything = [comparison for one in evaluations for comparison in one.comparisons]
    sections = [
        f"# All figures\n\nMade by `{command}` on {today:%d %B %Y}. Every figure by which a published run is evaluated "
        "stands here, as the shipped constants predict it. The error is (predicted - measured) / measured; *time* is "
        "the mean error of the time that a figure implies; below 0 the simulator is too fast. A tolerance is the "
        "scenario author's target, not the accuracy that was reached.",
        _overview(evaluations, everything),
        *_categories(everything),
        *_layer_classes(classes),
        "## Every figure",
        *map(_scenario, evaluations),
    ]
    return "\n\n".join(sections) + "\n"


def _headlines(found: Mapping[str, Sequence[SourceErrors]]) -> str:
    rows = []
    for kind in KINDS:
        for name, groups in HEADLINES.items():
            one = headline([own for own in found[kind] if own.group in groups])
            if one is not None:
                inside = f"{one.inside:.0%}" if one.inside is not None else "-"
                figures = f"{one.mean:.1%}", f"{one.bias:+.1%}", inside, str(one.far)
                rows.append([kind, name, str(one.sources), str(one.rows), *figures])
    columns = ["", "sources", "of them", "figures", "mean error", "bias", "in the 95 % interval", f"above {FAR:.0%}"]
    meaning = "\n".join(f"- *{name}*: {MEANING[name]}" for name in SOURCE_GROUPS)
    return (
        "## Sources left out\n\nMedians over sources of the mean error and of the bias of a source; steps in their "
        f"interval; sources above {FAR:.0%}.\n\n{_table(columns, rows)}\n\nGroups of sources:\n\n{meaning}"
    )


def _far(found: Mapping[str, Sequence[SourceErrors]]) -> Iterator[str]:
    """Yield the sources with a mean error above `FAR`, and why."""
    rows = [
        [one.name, kind, f"{one.mean:.0%}", f"{one.bias:+.0%}", one.cause or "not known"]
        for kind, own in found.items()
        for one in own
        if one.mean > FAR
    ]
    if rows:
        columns = ["source", "", "mean error", "bias", "cause"]
        yield f"## Sources above {FAR:.0%}\n\n{_table(columns, rows)}"


def _sources(kind: str, own: Sequence[SourceErrors]) -> str:
    """Return the table of the sources of one *kind* of figure."""
    informs = informed_by_hand()
    rows = []
    for one in own:
        how = f"informs {informs[one.name]} constants" if one.group == INFORMS else one.group
        shipped = f"{mean_error(one.shipped):.1%}" if one.group == LEFT_OUT else ""
        inside = f"{sum(one.inside) / len(one.inside):.0%}" if one.inside else ""
        figures = str(len(one.errors)), f"{one.mean:.1%}", f"{one.bias:+.1%}", inside, shipped
        rows.append([one.name, how, *figures, str(one.refused or "")])
    columns = ["source", "how", "figures", "mean error", "bias", "in interval", "with it in the fit", "refused"]
    return f"## {kind.capitalize()} by source\n\n{_table(columns, rows)}"


def _products(products: Sequence[ProductErrors]) -> Iterator[str]:
    """Yield the errors of single products by GPU and precision."""
    rows = [
        [
            one.gpu,
            one.precision,
            str(len(one.errors)),
            f"{mean_error(one.errors):.1%}",
            str(len(one.long)),
            f"{mean_error(one.long):.1%}",
            f"{sum(one.long) / len(one.long):+.1%}" if one.long else "",
        ]
        for one in products
    ]
    if rows:
        limit = f"{LONG * 1e3:g} ms"
        columns = ["GPU", "precision", "products", "mean error", f"above {limit}", "mean error", "bias"]
        yield f"## Products by GPU\n\nTimes of single matrix products, without their launch.\n\n{_table(columns, rows)}"


def _overview(evaluations: Sequence[Evaluation], everything: Sequence[Comparison]) -> str:
    groups: dict[str, Sequence[Comparison]] = {"all": everything}
    groups |= {f"[{one.scenario.name}](#{one.scenario.name})": one.comparisons for one in evaluations}
    return "## Overview\n\n" + _statistics("scenario", groups)


def _categories(everything: Sequence[Comparison]) -> Iterator[str]:
    for what, kinds in CATEGORIES.items():
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


def _intervals(of: IntervalCalibration) -> Iterator[str]:
    """Yield the limits of the intervals of step times by distance, and their coverage on sources left out."""
    found = coverage(of)
    limits = of.limits() if found else {}
    rows = [
        [
            name,
            f"{limits[name].about(1.0)[0] - 1:+.0%} to {limits[name].about(1.0)[1] - 1:+.0%}" if name in limits else "",
            str(found[name].rows),
            str(found[name].sources),
            f"{found[name].share:.0%}",
        ]
        for name in (*CLASSES, "all")
        if name in found
    ]
    if rows:
        yield (
            "## Intervals of step times\n\n"
            "The interval that a report prints is wider for a run that is farther from what is known, by framework, "
            "kind of model, generation of the GPU, scale and size of kernels. Limits are those of measured over "
            "predicted time. Inside: the share of runs in the interval that all other sources give them.\n\n"
            + _table(["known runs", "limits", "runs", "sources", "inside"], rows)
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
    refused = {f"{one.scenario.name}: {run}": _fault(why) for one in evaluations for run, why in one.refused.items()}
    lines = [f"- {name}: {reason.splitlines()[0]}" for name, reason in {**waiting, **failed}.items()]
    lines += [f"- {name}: refused: {reason}" for name, reason in refused.items()]
    if lines:
        yield "## What could not be evaluated here\n\n" + "\n".join(lines)


def _fault(reason: str) -> str:
    """Return the first line of *reason* without the folder of the file.

    >>> _fault("/home/me/scenarios/published/runs.csv:9:24: cluster.nodes: is absurd\\n   9 | 1,2")
    'runs.csv:9:24: cluster.nodes: is absurd'
    """
    where, colon, what = reason.splitlines()[0].partition(":")
    return f"{where.rpartition('/')[2]}{colon}{what}"


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
