"""The interleaved order against Megatron-LM's published rule, and where the two part."""

from collections.abc import Iterator

import pytest

from clustersim.workloads.pipelines.interleaved import interleaved


def megatron(rank: int, ranks: int, micro_batches: int, virtual_stages: int) -> Iterator[str]:
    """Megatron-LM's `forward_backward_pipelining_with_interleaving` (megatron/core/pipeline_parallel/schedules.py)."""

    def place(number: int, forward: bool) -> str:
        group, within = divmod(number, ranks * virtual_stages)
        chunk = within // ranks
        chunk = chunk if forward else virtual_stages - 1 - chunk
        return f"{chunk * ranks + rank}{'F' if forward else 'B'}{group * ranks + number % ranks}"

    total = micro_batches * virtual_stages
    warm_up = min(total, (ranks - rank - 1) * 2 + (virtual_stages - 1) * ranks)
    for number in range(total):
        yield place(number, True)
        if number >= warm_up:
            yield place(number - warm_up, False)
    yield from (place(number, False) for number in range(total - warm_up, total))


@pytest.mark.parametrize("ranks", [2, 3, 4, 8])
@pytest.mark.parametrize("virtual_stages", [2, 3, 6])
@pytest.mark.parametrize("rounds", [1, 2, 5])
def test_the_order_is_megatrons_where_micro_batches_are_a_multiple_of_the_ranks(
    ranks: int, virtual_stages: int, rounds: int
) -> None:
    order = interleaved(ranks, rounds * ranks, virtual_stages)
    rows = [",".join(megatron(rank, ranks, rounds * ranks, virtual_stages)) for rank in range(ranks)]
    assert order.csv().split() == rows
    assert not order.notes


def test_what_megatron_refuses_carries_a_note() -> None:
    assert interleaved(4, 10, 2).notes == (
        "10 micro-batches are no multiple of 4 stages: torch runs this order, Megatron-LM does not",
    )
