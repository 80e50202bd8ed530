"""The report on a real run, and its numbers: step, parts, slowest rank, kernels, communications, gap, changes."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

from clustersim.scenarios.explain.changes import Suggestions, suggestions
from clustersim.scenarios.explain.gap import Gap, compared
from clustersim.scenarios.real_traces.breakdown import Noise, busy, parts_in_order, stretches
from clustersim.scenarios.real_traces.kernels_and_communications import (
    Kernels,
    Size,
    by_class,
    like,
    longest,
    sizes,
    title,
)
from clustersim.scenarios.real_traces.pieces_of_work import HOST, PHASES
from clustersim.scenarios.real_traces.run import RealRun
from clustersim.scenarios.scenario import Scenario
from clustersim.simulator.hardware.accelerator import Accelerator
from clustersim.simulator.reading.plain_text import indented, table
from clustersim.simulator.reading.units import show

MOST_ROWS = 8
"""Kernels and communications that are listed."""

LATE = 0.02
"""Share of a step from which the latest rank, and waits for the host, are told."""

MEANINGS = {
    "compute": "computing",
    "waiting": "waiting for partners",
    "loading": "idle: samples",
    "host": "idle: host",
    "launch gaps": "idle: launches",
    "dependency": "idle: other streams",
    "copy": "copies",
}
"""Parts in words; a phase is named by itself, and any other part is an exposed kind of communication."""


def run_report(run: RealRun, gpu: Accelerator | None = None, simulated: Sequence[Size] = ()) -> str:
    """Return the report on *run* by itself; *gpu* prices its matrix products, *simulated* communications are beside."""
    sections = [_head(run), "time of a step\n" + indented(_parts(run)), _launch_bound(run), _late(run)]
    kernels = longest(run.traces, gpu)[:MOST_ROWS]
    if kernels:
        sections.append(f"longest kernels of a rank and step\n{indented(_kernels(kernels))}\n{_classes(run)}")
    calls = sizes(run.traces)[:MOST_ROWS]
    if calls:
        sections.append("communications of a rank and step\n" + indented(_calls(calls, simulated)))
    return "\n\n".join(section for section in sections if section)


def _head(run: RealRun) -> str:
    steps = [step.seconds for trace in run.traces for step in trace.steps]
    ranks, first = len(run.traces), run.traces[0]
    what = f"{ranks} of {run.world_size} ranks" if ranks < run.world_size else f"{ranks} rank{'s' * (ranks > 1)}"
    lines = [
        f"{what}{f' on {first.device}' if first.device else ''}, {len(first.steps)} step{'s' * (len(first.steps) > 1)}",
        f"step {show(run.step_time, 'time', 4)} ({show(min(steps), 'time', 4)} to {show(max(steps), 'time', 4)}), "
        f"computing {_percent(busy(run.parts), run.step_time)}",
    ]
    return "\n".join([*lines, *_notes(run)])


def _notes(run: RealRun) -> Iterator[str]:
    """Yield what the traces do not say."""
    first = run.traces[0]
    if not first.marked:
        yield "note: the trace marks no steps (ProfilerStep#n); all of it is taken as one step"
    if run.unusual:
        steps = ", ".join(map(str, run.unusual[:8]))
        yield f"note: left out, since longer than the others: step {steps}"
    if not run.on_gpu:
        yield "note: the trace has no kernels of a GPU; the operators of the host's threads stand for kernels"
    if len(run.traces) == 1 and any(piece.call for piece in first.pieces):
        yield "note: with one rank, waits for late ranks cannot be told from transfers; give the traces of all ranks"


def _parts(run: RealRun) -> str:
    rows = []
    for part in parts_in_order(run.parts):
        if run.parts[part] <= 0:
            continue
        by_rank = sorted((parts.get(part, 0.0), rank) for rank, parts in run.breakdowns.items())
        (least, _), (most, rank) = by_rank[0], by_rank[-1]
        row = [_meaning(part), show(run.parts[part], "time", 4), _percent(run.parts[part], run.step_time)]
        rows.append([*row, show(least, "time", 4), f"{show(most, 'time', 4)} (rank {rank})"])
    if len(run.traces) == 1:
        return table([row[:3] for row in rows], ["", "mean", "share"], "lrr")
    return table(rows, ["", "mean", "share", "least", "most"], "lrrrr")


def _meaning(part: str) -> str:
    if part in MEANINGS:
        return MEANINGS[part]
    return part if part in PHASES else f"exposed {part}"


def _percent(seconds: float, of: float) -> str:
    return f"{seconds / of:.1%}"


def _late(run: RealRun) -> str:
    late = run.late
    if late is None:
        return ""
    if late.seconds < LATE * run.step_time:
        return f"no rank is late: rank {late.rank} is behind the others by {_percent(late.seconds, run.step_time)}"
    because = ", ".join(
        f"{_meaning(part)} +{show(seconds, 'time', 3)}" for part, seconds in list(late.because.items())[:3]
    )
    share = _percent(late.seconds, run.step_time)
    noise = Noise(run.traces)
    within = ""
    if noise.hides(late, LATE * run.step_time):
        within = (
            f"\n  within the noise of this machine: {show(noise.most, 'time', 3)} of a step come and go on one rank, "
            f"{show(max(noise.steady(late), 0.0), 'time', 3)} of the delay are in every step and not of the processor"
        )
    return (
        f"slowest rank: {late.rank}, {show(late.seconds, 'time', 3)} of a step ({share}) behind the others\n"
        f"  because: {because}{within}"
    )


def _launch_bound(run: RealRun) -> str:
    """Return where the GPU of the rank that waits most for its host does so; empty if it hardly waits."""
    rank = max(run.breakdowns, key=lambda one: run.breakdowns[one].get(HOST, 0.0))
    waits = run.breakdowns[rank].get(HOST, 0.0)
    if not run.on_gpu or waits < LATE * run.step_time:
        return ""
    trace = next(one for one in run.traces if one.rank == rank)
    found = stretches(trace)
    before = ", ".join(f"{show(seconds, 'time', 3)} before {title(piece)}" for seconds, piece in found[:3])
    count = len(found) / len(trace.steps)
    return f"launch-bound: the GPU of rank {rank} waits for its host {count:.0f} times a step\n  longest: {before}"


def _kernels(rows: Sequence[Kernels]) -> str:
    priced = any(one.priced is not None for one in rows)
    cells = []
    for one in rows:
        cell = [one.name, one.phase, f"{one.per_step:.4g}", show(one.seconds, "time", 3)]
        cell.append(show(one.per_step * one.seconds, "time", 3))
        if priced:
            cell.append(f"{one.seconds / one.priced:.2f} x" if one.priced else "")
        cells.append(cell)
    return table(cells, ["", "phase", "a step", "each", "in all", *(["of price"] if priced else [])], "llr")


def _classes(run: RealRun) -> str:
    seconds = by_class(run.traces)
    total = sum(seconds.values())
    return "  of computation: " + ", ".join(f"{name} {one / total:.0%}" for name, one in seconds.items() if one)


def _calls(rows: Sequence[Size], simulated: Sequence[Size]) -> str:
    cells = []
    for one in rows:
        call, beside = one.call, like(one, simulated)
        nbytes = show(call.nbytes, "size", 4) if call.nbytes is not None else "not recorded"
        cell = [call.kind, str(call.ranks), nbytes, f"{one.per_step:.4g}", show(one.seconds, "time", 3), _rate(one)]
        cell += [_rate(beside) if beside else "not there"] if simulated else []
        cells.append([*cell, show(one.waited, "time", 3)])
    header = ["", "ranks", "bytes", "a step", "transfer", "busbw", *(["simulated"] if simulated else [])]
    return table(cells, [*header, "waits before"], "lr")


def _rate(one: Size) -> str:
    return show(one.busbw, "bandwidth", 3) if one.busbw is not None else ""


def gap_report(gap: Gap, name: str) -> str:
    """Return the report on the *gap* to the simulation of the scenario *name*."""
    step, real = show(gap.simulated, "time", 4), show(gap.real, "time", 4)
    share = gap.seconds / gap.simulated
    much = f"{show(abs(gap.seconds), 'time', 4)} ({abs(share):.1%}) {'slower' if share > 0 else 'faster'}"
    lines = [f"gap to {name}: real {real}, simulated {step}: {much if abs(share) > TOLD else 'as simulated'}"]
    rows = [
        [f"{cause.seconds * 1e3:+.3f} ms", f"{cause.seconds / gap.simulated:+.1%}", cause.text]
        for cause in gap.causes
        if abs(cause.seconds) > TOLD * gap.simulated
    ]
    lines.append(indented(table(rows, ["", "of step", "cause"], "rrl")) if rows else "  nothing to explain")
    if gap.first is None:
        lines.append(f"no cause is sure: none exceeds {show(gap.threshold, 'time', 3)}, by which healthy steps vary")
    else:
        lines.append(f"first cause: {gap.first.text}")
    return "\n".join(lines)


TOLD = 1e-3
"""Share of the simulated step from which a cause is listed."""


def suggestions_report(found: Suggestions) -> str:
    """Return the changes that matter most, with their simulated gains."""
    base = found.as_measured
    lines = [f"changes, simulated from the scenario as measured ({show(base, 'time', 4)} a step)"]
    for number, change in enumerate(found.changes, 1):
        assert change.step_time is not None
        gain = base - change.step_time
        lines.append(
            f"  {number}. {change.text}: {show(change.step_time, 'time', 4)}, {gain / base:.1%} less "
            f"({show(gain, 'time', 3)})"
        )
    if not found.changes:
        lines.append("  none gains more than 0.5 %")
    lines += [f"  not in the simulation: {text}" for text in found.beyond]
    return "\n".join(lines)


def summary(run: RealRun, scenario: Scenario | None) -> dict[str, Any]:
    """Return the numbers as `explain --json` prints them; times in s, bytes, bytes/s."""
    found = {
        "ranks": len(run.traces),
        "world_size": run.world_size,
        "steps": len(run.traces[0].steps),
        "step_time_s": run.step_time,
        "busy_s": busy(run.parts),
        "breakdown_s": run.parts,
        "breakdown_of_ranks_s": {str(rank): parts for rank, parts in run.breakdowns.items()},
        "slowest_rank": _late_numbers(run),
        "communications": [
            {
                "kind": one.call.kind, "bytes": one.call.nbytes, "ranks": one.call.ranks, "per_step": one.per_step,
                "transfer_s": one.seconds, "wait_s": one.waited, "busbw": one.busbw,
            }
            for one in sizes(run.traces)
        ],
    }  # fmt: skip
    if scenario is not None:
        found["gap"] = _gap_numbers(run, scenario)
    return found


def _late_numbers(run: RealRun) -> dict[str, Any] | None:
    late = run.late
    if late is None:
        return None
    noise = Noise(run.traces)
    told = {"rank": late.rank, "behind_s": late.seconds, "because_s": dict(late.because)}
    return {**told, "steady_s": noise.steady(late), "noise_s": noise.most}


def _gap_numbers(run: RealRun, scenario: Scenario) -> dict[str, Any]:
    timeline, gap = compared(run, scenario)
    better = suggestions(scenario, timeline, gap)
    first = gap.first
    return {
        "scenario": scenario.name,
        "simulated_step_time_s": gap.simulated,
        "gap_s": gap.seconds,
        "causes": [
            {"kind": one.kind, "subject": one.subject, "s": one.seconds, "text": one.text} for one in gap.causes
        ],
        "first_cause": first.kind if first else None,
        "as_measured_s": better.as_measured,
        "changes": [{"text": one.text, "step_time_s": one.step_time} for one in better.changes],
    }
