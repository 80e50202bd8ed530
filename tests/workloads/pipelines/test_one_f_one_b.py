"""1F1B against DeepSpeed's published rule."""

from collections.abc import Iterator

import pytest

from clustersim.workloads.pipelines.one_f_one_b import one_f_one_b


def deepspeed(stage: int, stages: int, micro_batches: int) -> Iterator[str]:
    """DeepSpeed's `TrainSchedule` (deepspeed/runtime/pipe/schedule.py): at clock *step*, a stage of the step's parity
    runs forward, the others backward, of the micro-batch that the step number gives, if there is one.
    """
    for step in range(2 * (micro_batches + stages - 1)):
        if step % 2 == stage % 2:
            phase, micro_batch = "F", step // 2 - stage // 2
        elif step % 2 == 0:
            phase, micro_batch = "B", step // 2 - stages + (stage + 1) // 2
        else:
            phase, micro_batch = "B", (step - 1) // 2 - stages + 1 + stage // 2
        if 0 <= micro_batch < micro_batches:
            yield f"{stage}{phase}{micro_batch}"


@pytest.mark.parametrize("stages", range(1, 10))
def test_the_order_is_deepspeeds(stages: int) -> None:
    for micro_batches in (1, 2, 3, 5, 8, 13, 32):
        expected = [",".join(deepspeed(stage, stages, micro_batches)) for stage in range(stages)]
        assert one_f_one_b(stages, micro_batches).csv().split() == expected
