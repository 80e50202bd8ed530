"""One step of a real run, of traces of torch.profiler or of Chakra."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from clustersim.scenarios.real_traces.run import run_of
from clustersim.scenarios.trace_workload.chakra_file import SUFFIX, chakra_work
from clustersim.scenarios.trace_workload.inference import lanes_of, rank_work
from clustersim.scenarios.trace_workload.work import RankWork, TracedStep
from clustersim.simulator.reading.errors import TraceError


def traced_step(paths: Sequence[Path]) -> TracedStep:
    """Return the step of the traces at *paths*, files or folders, all of one kind. Raises `TraceError`.

    Of several recorded steps it is the one with the duration nearest to their mean.
    """
    files = [file for path in paths for file in (sorted(path.glob(f"*{SUFFIX}")) if path.is_dir() else [path])]
    graphs = [file for file in files if file.name.endswith(SUFFIX)]
    if not graphs:
        return _of_profiler(paths)
    if len(graphs) < len(files):
        other = next(file for file in files if file not in graphs)
        raise TraceError(f"{other}: is no Chakra trace ({SUFFIX}), but {graphs[0]} is; give traces of one kind")
    return _of_chakra(graphs)


def _of_profiler(paths: Sequence[Path]) -> TracedStep:
    run = run_of(paths)
    first = run.traces[0]
    counts = [sum(trace.steps[n].seconds for trace in run.traces) for n in range(len(first.steps))]
    seconds = [one / len(run.traces) for one in counts]
    chosen = min(range(len(seconds)), key=lambda n: abs(seconds[n] - run.step_time))
    steps = [trace.steps[chosen] for trace in run.traces]
    lanes = max(lanes_of(trace, step) for trace, step in zip(run.traces, steps, strict=True))
    works = {trace.rank: rank_work(trace, step, lanes) for trace, step in zip(run.traces, steps, strict=True)}
    return TracedStep(works, run.world_size, run.step_time, first.device, str(first.path), run.on_gpu)


def _of_chakra(files: Sequence[Path]) -> TracedStep:
    works: dict[int, RankWork] = {}
    for file in files:
        work = chakra_work(file)
        if work.rank in works:
            raise TraceError(f"{file}: is of rank {work.rank}, and so is another file; give one trace of each rank")
        works[work.rank] = work
    ranks = {one for own in works.values() for w in own.works if w.exchange is not None for one in w.exchange.group}
    return TracedStep(works, 1 + max([*works, *ranks]), 0.0, "", str(files[0]))
