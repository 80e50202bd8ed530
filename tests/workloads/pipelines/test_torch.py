"""Our orders are those of torch.distributed.pipelining, and run there: read by its parser, checked by its validator."""

from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from clustersim.simulator.reading import lookup
from clustersim.simulator.reading.errors import ScheduleError
from clustersim.simulator.schedule.pipeline_order import Order

pytestmark = pytest.mark.skipif(find_spec("torch") is None, reason='run pip install -e ".[torch]"')

SHAPES = [(p, m) for p in (1, 2, 3, 4, 5, 8) for m in (1, 2, 3, 4, 5, 8, 10, 15, 16, 17, 24, 32)]
LOOPED = [(p, m, v) for p in (1, 2, 3, 4, 6) for m in (1, 3, 4, 6, 8, 9, 10, 12) for v in (1, 2, 3)]
V_SHAPED = [(p, m, 2) for p, m in SHAPES]


def stage(index: int, pipeline_ranks: int, stages: int, log: list[str]) -> SimpleNamespace:
    """As much of a pipeline stage as a schedule looks at; what it is told to compute goes to *log*."""

    def nothing(*_args: Any, **_options: Any) -> list[Any]:
        return []

    def forward(micro_batch: int, *_args: Any, **_options: Any) -> None:
        log.append(f"{index}F{micro_batch}")

    def backward(micro_batch: int, **_options: Any) -> None:
        log.append(f"{index}B{micro_batch}")

    return SimpleNamespace(
        num_stages=stages,
        group_size=pipeline_ranks,
        group_rank=index % pipeline_ranks,
        stage_index=index,
        is_last=index == stages - 1,
        submod=None,
        get_fwd_recv_ops=nothing,
        get_fwd_send_ops=nothing,
        get_bwd_recv_ops=nothing,
        get_bwd_send_ops=nothing,
        perform_reduce_grad=nothing,
        forward_one_chunk=forward,
        backward_one_chunk=backward,
    )


def torch_schedule(kind: str) -> Any:
    """torch's schedule of that *kind*. Its module takes a second to import, so that no collection of tests does."""
    return getattr(import_module("torch.distributed.pipelining.schedules"), kind)


def runtime(stages: int, micro_batches: int, virtual_stages: int, kind: str = "_PipelineScheduleRuntime") -> Any:
    """torch's schedule of that *kind* as the first pipeline rank has it."""
    held = [stage(i * stages, stages, stages * virtual_stages, []) for i in range(virtual_stages)]
    return torch_schedule(kind)(held, micro_batches)


def executed(kind: str, stages: int, micro_batches: int) -> list[list[str]]:
    """What each rank computes when torch runs its schedule of that *kind*, one stage a rank."""
    rows = []
    for rank in range(stages):
        log: list[str] = []
        schedule = torch_schedule(kind)(stage(rank, stages, stages, log), micro_batches)
        schedule._initialize_stage = lambda *_args: None
        schedule._step_microbatches()
        rows.append(log)
    return rows


def generated(kind: str, stages: int, micro_batches: int, virtual_stages: int) -> list[list[str]]:
    """The rows of torch's order of that *kind*, idle slots left out."""
    order = runtime(stages, micro_batches, virtual_stages, kind).pipeline_order
    return [[str(action) for action in order[rank] if action is not None] for rank in range(stages)]


def loaded(order: Order, stages: int, micro_batches: int, virtual_stages: int, path: Path) -> list[list[str]]:
    """The rows of *order* as torch reads them from our CSV; torch validates them and adds all sends and receives."""
    path.write_text(order.csv())
    schedule = runtime(stages, micro_batches, virtual_stages)
    schedule._load_csv(str(path))
    return [[str(action) for action in schedule.pipeline_order[rank]] for rank in range(stages)]


@pytest.mark.parametrize(
    ("name", "kind", "triples"),
    [
        ("interleaved", "ScheduleInterleaved1F1B", LOOPED),
        ("looped_bfs", "ScheduleLoopedBFS", LOOPED),
        ("interleaved_zero_bubble", "ScheduleInterleavedZeroBubble", LOOPED),
        ("zero_bubble_v", "ScheduleZBVZeroBubble", V_SHAPED),
        ("dual_pipe_v", "ScheduleDualPipeV", V_SHAPED),
    ],
)
def test_the_order_is_torchs_and_is_refused_where_torch_refuses(
    name: str, kind: str, triples: list[tuple[int, int, int]], tmp_path: Path
) -> None:
    build = lookup.function("clustersim.workloads.pipelines", name)
    compared = 0
    for triple in triples:
        try:
            expected = generated(kind, *triple)
        except ValueError:
            with pytest.raises(ScheduleError, match=f"micro_batches = {triple[1]}: {name}"):
                build(*triple)
            continue
        assert loaded(build(*triple), *triple, tmp_path / "order.csv") == expected, triple
        compared += 1
    assert compared >= 40


def test_1f1b_is_what_torch_executes(tmp_path: Path) -> None:
    # executed, not printed: torch 2.13 prints the last stage's forwards numbered from 1
    build = lookup.function("clustersim.workloads.pipelines", "one_f_one_b")
    pairs = [(p, m) for p, m in SHAPES if m >= p]
    for pair in pairs:
        assert loaded(build(*pair), *pair, 1, tmp_path / "order.csv") == executed("Schedule1F1B", *pair), pair
    assert len(pairs) >= 40


def test_the_forwards_of_gpipe_are_what_torch_executes(tmp_path: Path) -> None:
    # torch runs the backwards from the first micro-batch on, the paper from the last
    build = lookup.function("clustersim.workloads.pipelines", "gpipe")
    for pair in SHAPES:
        rows = loaded(build(*pair), *pair, 1, tmp_path / "order.csv")
        theirs = executed("ScheduleGPipe", *pair)
        assert [[a for a in row if "F" in a] for row in rows] == [[a for a in row if "F" in a] for row in theirs]
        assert [sorted(row) for row in rows] == [sorted(row) for row in theirs]
    assert len(SHAPES) >= 40


@pytest.mark.parametrize("name", ["naive", "gpipe", "one_f_one_b", "zero_bubble_h1", "zero_bubble_h2"])
def test_orders_of_one_stage_a_rank_load_in_torch(name: str, tmp_path: Path) -> None:
    build = lookup.function("clustersim.workloads.pipelines", name)
    for pair in [(1, 1), (2, 5), (4, 4), (4, 10)]:
        order = build(*pair)
        assert loaded(order, *pair, 1, tmp_path / "order.csv") == [line.split(",") for line in order.csv().split()]


@pytest.mark.parametrize("kind", ["ScheduleInterleaved1F1B", "ScheduleDualPipeV"])
def test_an_order_that_torch_writes_is_read(kind: str, tmp_path: Path) -> None:
    path = tmp_path / "order.csv"
    runtime(3, 6, 2, kind)._dump_csv(str(path), format="compute_only")
    rows = [line.split(",") for line in Order.parse(path.read_text()).csv().split()]
    assert rows == generated(kind, 3, 6, 2)
