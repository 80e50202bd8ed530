"""A rank is blamed for what it does in every step, not for the noise of its machine."""

from __future__ import annotations

import random
from collections.abc import Callable
from pathlib import Path

import pytest

from clustersim.scenarios.explain.report import run_report
from clustersim.scenarios.real_traces.breakdown import Late, Noise
from clustersim.scenarios.real_traces.kernels_and_communications import with_waits
from clustersim.scenarios.real_traces.pieces_of_work import Call, Piece
from clustersim.scenarios.real_traces.rank_trace import RankTrace, RealStep
from clustersim.scenarios.real_traces.run import RealRun, run_of

RECORDED = Path(__file__).parents[3] / "scenarios" / "traced" / "ddp_sleep"
RANKS, STEPS, LAYERS, OP = 4, 3, 10, 5e-3


def run(
    factor: Callable[[int, int, int], float] = lambda *_: 1.0,
    sleep: Callable[[int], float] = lambda _: 0.0,
    on_gpu: bool = False,
) -> RealRun:
    """Ranks that compute equal layers, sleep, and reduce their gradients together at the end of each step."""
    traces: dict[int, list[Piece]] = {rank: [] for rank in range(RANKS)}
    steps, begin = [], 0.0
    for step in range(STEPS):
        ends = {}
        for rank, pieces in traces.items():
            now = begin
            for layer in range(LAYERS):
                now += sleep(rank) if layer == LAYERS // 2 else 0.0
                took = OP * factor(rank, step, layer)
                phase = "forward" if layer < LAYERS // 2 else "backward"
                pieces.append(Piece(f"aten::linear {layer % 2}", phase, "0", now, now + took))
                now += took
            ends[rank] = now
        end = max(ends.values()) + 1e-3
        for rank, pieces in traces.items():
            call = Call("all_reduce", 1e6, "all", RANKS)
            pieces.append(Piece("gloo:all_reduce", "all_reduce", "1", ends[rank], end, call=call))
        steps.append(RealStep(step, begin, end))
        begin = end
    made = (
        RankTrace(Path(f"rank{rank}.json"), rank, RANKS, "", on_gpu, tuple(pieces), tuple(steps))
        for rank, pieces in traces.items()
    )
    return RealRun(tuple(with_waits(list(made))))


def late(found: RealRun) -> Late:
    assert found.late is not None
    return found.late


def hidden(found: RealRun) -> bool:
    return Noise(found.traces).hides(late(found), 0.02 * found.step_time)


def test_a_rank_that_sleeps_in_every_step_is_late_though_the_machine_is_noisy() -> None:
    draws = random.Random(1)
    found = run(lambda *_: draws.uniform(1.0, 1.5), lambda rank: 0.04 if rank == 3 else 0.0)
    assert late(found).rank == 3 and not hidden(found)
    assert Noise(found.traces).steady(late(found)) == pytest.approx(0.04, rel=0.2)
    assert "within the noise" not in run_report(found)


def test_a_rank_whose_operators_come_and_go_is_not_late() -> None:
    draws = random.Random(2)
    found = run(lambda rank, *_: draws.uniform(1.0, 3.0) if rank == 1 else 1.0)
    assert late(found).rank == 1 and late(found).seconds > 0.3 * LAYERS * OP
    assert hidden(found) and "within the noise of this machine" in run_report(found)


@pytest.mark.parametrize("factor", [1.25, 2.0])
def test_a_busy_processor_is_not_the_program_but_a_slow_gpu_is(factor: float) -> None:
    def slow(rank: int, *_: int) -> float:
        return factor if rank == 2 else 1.0

    shared, own = run(slow), run(slow, on_gpu=True)
    assert late(shared).rank == late(own).rank == 2
    assert Noise(shared.traces).processor(2) == pytest.approx((factor - 1) * LAYERS * OP)
    assert hidden(shared) and not hidden(own)


def test_one_slow_operator_is_not_the_processor() -> None:
    found = run(lambda rank, step, layer: 8.0 if rank == 2 and layer % 2 else 1.0 + 1e-3 * (layer % 2))
    assert Noise(found.traces).processor(0) == 0.0
    found = run(lambda rank, step, layer: 6.0 if (rank, layer) == (2, 3) else 1.0)
    # the third layer takes longer in every step, the others of its kind do not: half of it may be noise
    assert Noise(found.traces).processor(2) == 0.0


def test_the_recorded_sleep_is_no_noise() -> None:
    found = run_of([RECORDED])
    noise = Noise(found.traces)
    assert not hidden(found)
    # 28 ms in each step; operators of the other ranks vary by 8 to 18 ms a step
    assert noise.steady(late(found)) == pytest.approx(0.028, rel=0.05)
    assert 0.015 < noise.most < 0.02


def test_equal_ranks_have_no_noise() -> None:
    found = run()
    assert Noise(found.traces).most == pytest.approx(0.0, abs=1e-9)
