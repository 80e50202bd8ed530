"""Documents packed into a sequence: scores by brute force, on one rank and on several."""

from __future__ import annotations

from itertools import product
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from clustersim.scenarios import Scenario
from clustersim.scenarios.results.result import Result
from clustersim.simulator.hardware.kernel import Kernel
from clustersim.simulator.reading.errors import ScenarioError
from clustersim.workloads.operators.attentions.context_parallel import ContextCut, cut_over
from clustersim.workloads.operators.attentions.core_attention import FlashAttention, packed, scores
from clustersim.workloads.operators.by_coordinate import KernelByCoordinate

LENGTHS = st.lists(st.integers(1, 40), min_size=1, max_size=4).map(tuple)


def allowed(lengths: tuple[int, ...], total: int, causal: bool) -> dict[tuple[int, int], float]:
    """By (query, key), whether a mask lets it through; half of the diagonal under a causal mask."""
    of = {position: n for n, (begin, end) in enumerate(packed(lengths, total)) for position in range(begin, end)}
    return {
        (query, key): (0.5 if query == key else float(query > key)) if causal else 1.0
        for query, key in product(range(total), repeat=2)
        if of[query] == of[key]
    }


@given(lengths=LENGTHS, total=st.integers(1, 48), causal=st.booleans())
def test_scores_of_a_sequence(lengths: tuple[int, ...], total: int, causal: bool) -> None:
    every = 0, total
    mask = allowed(lengths, total, causal)
    assert scores(lengths, total, every, every, causal=causal) == sum(mask.values())
    half = total // 2
    late, early = (half, total), (0, half)
    expected = sum(one for (query, key), one in mask.items() if query >= half > key)
    assert scores(lengths, total, late, early, causal=causal) == expected


@given(lengths=LENGTHS, ranks=st.integers(2, 4), zigzag=st.booleans(), method=st.sampled_from(["ring", "all_gather"]))
def test_scores_of_ranks(lengths: tuple[int, ...], ranks: int, zigzag: bool, method: str) -> None:
    """All ranks together count the scores of the mask; where positions are cut as they are, each rank its own."""
    chunk, total = 6, 12 * ranks
    one = FlashAttention(2 * chunk, 1, 1, 1, drop=False, precision="bf16", documents=lengths)
    kernels = cut_over(one, ContextCut("cp", ranks, method, zigzag)).forward(1)
    mask = allowed(lengths, total, causal=True)
    # two products forward; model FLOPs count twice the scores under a causal mask
    found = [sum(of_rank(kernel, rank).flops for kernel in kernels) / 8 for rank in range(ranks)]
    assert sum(found) == pytest.approx(sum(mask.values()))
    if method == "ring" and zigzag:
        # each document is cut into chunks for all ranks
        assert found == pytest.approx([sum(mask.values()) / ranks] * ranks)
        return
    for rank in range(ranks):
        numbers = (rank, 2 * ranks - 1 - rank) if zigzag else (2 * rank, 2 * rank + 1)
        own = {position for number in numbers for position in range(number * chunk, (number + 1) * chunk)}
        assert found[rank] == pytest.approx(sum(part for (query, _), part in mask.items() if query in own))


def of_rank(kernel: Kernel, rank: int) -> Kernel:
    return kernel.each[rank] if isinstance(kernel, KernelByCoordinate) else kernel


def run(**model: Any) -> Result:
    sizes = {"num_layers": 1, "hidden_size": 64, "num_attention_heads": 4, "seq_length": 4096, "vocab_size": 1000}
    result = Scenario.model_validate(
        {
            "version": 1,
            "cluster": {"preset": "dgx_h100"},
            "model": {**sizes, "attention": "flash", "dropout": 0, **model},
            "training": {"global_batch_size": 8, "micro_batch_size": 1, "precision": "bf16"},
            "parallelism": {"cp": 2},
        }
    ).run()
    assert isinstance(result, Result)
    return result


def test_documents_in_a_scenario() -> None:
    """Sixteen documents take a sixteenth of the scores; one document of the whole sequence is what there is without."""
    whole, one, many = run(), run(document_length=4096), run(document_length=[256])
    assert whole.summary()["step_time_s"] == pytest.approx(one.summary()["step_time_s"], rel=0.01)
    models = [result.scenario.model for result in (whole, one, many)]
    flops = [model.flops() for model in models if model is not None]
    assert flops[0] == flops[1]
    scored = 12 * 4096**2 * 64
    assert flops[0] - flops[2] == pytest.approx(scored * (1 - 1 / 16))
    assert many.summary()["step_time_s"] < whole.summary()["step_time_s"]
    for bad, message in (
        ({"attention": "unfused"}, "model.document_length: belongs to attention: flash; with unfused all scores"),
        ({"attention_window": 64}, "model.document_length: is not taken together with attention_window"),
        ({"document_length": 0}, "model.document_length"),
        ({"document_length": []}, "model.document_length"),
    ):
        with pytest.raises(ScenarioError, match=message):
            run(**{"document_length": 256, **bad})
