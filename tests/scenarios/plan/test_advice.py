"""Advice on parallelism for models whose answer is known."""

from collections.abc import Mapping
from typing import Any

import pytest

from scenarios import Scenario
from scenarios.command import run
from scenarios.plan.advice import advice, figure
from scenarios.plan.candidates import candidates, memory_budget
from simulator.errors import ScenarioError
from tests.workloads.parallelism.zero_states import zero_state_bytes


def scenario(model: str, cluster: str, nodes: int, batch: int, **training: Any) -> Scenario:
    return Scenario.model_validate(
        {
            "version": 1,
            "cluster": {"preset": cluster, "nodes": nodes},
            "model": {"preset": model},
            "training": {"global_batch_size": batch, **training},
        }
    )


HALF: Mapping[str, Any] = {"precision": "fp16", "micro_batch_size": 1, "recompute": "full"}


@pytest.fixture(scope="module")
def gpt3() -> Scenario:
    return Scenario.load("gpt3_175b_1024a100")


def test_resnet50_fits_a_v100_and_wants_data_parallelism() -> None:
    told = advice(scenario("resnet50", "zhores", 25, 6400))
    assert "data parallelism, a replica on each of 100." in told
    assert "ZeRO" not in told
    assert "tensor parallelism." in told


def test_gpt2_xl_does_not_fit_a_v100_until_its_optimizer_is_sharded() -> None:
    asked = scenario("gpt2_xl", "zhores", 4, 64, **HALF)
    told = advice(asked)
    # torch's autocast keeps fp32 gradients: 18 bytes for each of 1.5576 billion parameters; ZeRO-1 over 16 GPUs, by
    # DeepSpeed, 4 + 12/16 (arXiv:1910.02054, section 3.1 and figure 1)
    assert "18 bytes of parameters, gradients and optimizer states each are 28 GB" in told
    assert "First of these that fits: ZeRO-1 over dp 16" in told
    assert "4.75 bytes of states a parameter" in told
    # its 25 heads cannot be shared by 2 or 4
    assert "Tensor parallelism is left out: tp = 2 does not divide the 25 heads" in told


def test_gpt3_needs_zero_3_or_a_node_of_tensor_parallelism_and_a_pipeline(gpt3: Scenario) -> None:
    told = advice(gpt3)
    # fp16: 2 + 2 + 12; the fp32 copies of gradients, 4 more, exist during the optimizer step only
    assert "16 bytes of parameters, gradients and optimizer states each are 2.79 TB" in told
    assert "First of these that fits: ZeRO-3 over dp 768" in told
    # 768 is the largest divisor of the batch of 1,536 that 1,024 GPUs can hold
    assert "tp 8 x dp 128" in told
    # as Narayanan et al. 2021 (arXiv:2104.04473, table 2) trained it
    assert "tp 8 x pp 8 x dp 16 is the first that fits" in told


def test_what_is_held_is_no_less_than_the_states_and_falls_with_the_stage(gpt3: Scenario) -> None:
    known = memory_budget(gpt3)
    plain, *sharded = candidates(known)[:4]
    assert [candidate.stage for candidate in sharded] == [1, 2, 3]
    peaks = [candidate.nbytes for candidate in (plain, *sharded)]
    assert peaks == sorted(peaks, reverse=True)
    for candidate in (plain, *sharded):
        states = sum(zero_state_bytes(candidate.stage, candidate.dp, "adam", "bf16").values()) * known.model.parameters
        assert candidate.nbytes >= states
    assert known.fits(sharded[-1])


def test_eight_gpus_are_not_enough_for_gpt3() -> None:
    told = advice(scenario("gpt3_175b", "dgx_a100_80gb", 1, 64, **HALF))
    # 16 bytes of states are 2.79 TB, / 8 are 349 GB, for whichever candidate
    assert "Nothing of this fits: take more GPUs" in told


def test_a_layer_larger_than_a_gpu_is_cut_by_tensors() -> None:
    # 12 h^2 = 7.9 billion parameters x (2 + 2) bytes are 31 GB, twice a V100
    told = advice(scenario("megatron_1t", "zhores", 25, 100, **HALF))
    assert "more than a GPU has: its operations must be cut, tensor parallelism." in told


def test_activations_are_first_recomputed() -> None:
    told = advice(scenario("gpt2_medium", "zhores", 1, 32, precision="fp16"))
    # 18 x 355 million are 6.4 GB of 17.2
    assert "states fit one GPU (18 bytes" in told
    assert "micro_batch_size: 1 and recompute: full bring data parallelism down to" in told


def test_memory_that_suffices_only_without_what_is_reserved_is_no_advice() -> None:
    asked = scenario("gpt2_large", "zhores", 1, 32, precision="fp16")
    least = memory_budget(asked).candidate(micro_batch_size=1, recompute="full")
    # 18 x 774 million, activations, and 1.3 GB of context: 17.3 of 17.2 GB
    assert least.need.tensors < least.need.capacity < least.nbytes
    assert "bring data parallelism down to" not in advice(asked)


def test_advice_and_check_give_one_answer(capsys: pytest.CaptureFixture[str]) -> None:
    settings = ["--set", "model.num_layers=48"]
    assert run(["check", "gpt2_xl_zero_zhores", *settings]) == 0
    checked = [line.partition("needs ")[2].partition(":")[0] for line in capsys.readouterr().out.splitlines()]
    assert run(["show", "gpt2_xl_zero_zhores", "advice", *settings]) == 0
    given = [line for line in capsys.readouterr().out.splitlines() if line.startswith("as given")]
    assert len(given) == len(checked) == 4
    assert all(need in line for need, line in zip(checked, given, strict=True))


def test_advice_does_not_name_what_is_so_already() -> None:
    told = advice(scenario("gpt3_175b", "dgx_a100_80gb", 1, 64, **HALF))
    resort = next(line for line in told.splitlines() if line.startswith("Nothing of this fits"))
    assert resort == "Nothing of this fits: take more GPUs."
    plain = advice(scenario("gpt3_175b", "dgx_a100_80gb", 1, 64, precision="fp32"))
    assert "a smaller micro-batch, precision: bf16 or recompute: full." in plain


def test_selective_recomputation_beside_flash_attention_is_called_useless() -> None:
    flash = Scenario.load("llama3_8b_fsdp_dgx_h100", {"training.recompute": "selective"})
    assert "selective costs time and saves next to no memory" in advice(flash)
    scores = flash.changed({"model.attention": "unfused"}, "attention")
    assert "saves next to no memory" not in advice(scores)


def test_replicas_are_no_more_than_the_batch_feeds() -> None:
    few = Scenario.load("gpt2_xl_zero_zhores", {"training.global_batch_size": 12, "parallelism.dp": 6})
    # micro-batches of 2: 6 of them, though there are 16 GPUs
    assert {candidate.dp for candidate in candidates(memory_budget(few.variants["zero_0"])) if candidate.stage} == {6}


def test_the_command_prints_it(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["show", "zhores_resnet50_ddp", "advice"]) == 0
    out, err = capsys.readouterr()
    assert out.startswith("resnet50, 25.6 million parameters, on 100 GPUs of 17.2 GB\n")
    assert err == ""
    assert run(["show", "allreduce_dgx_a100", "advice"]) == 2


def test_a_collective_has_no_model() -> None:
    with pytest.raises(ScenarioError, match="no model to give advice on"):
        advice(Scenario.load("allreduce_dgx_a100"))


def test_counts() -> None:
    assert [figure(n) for n in (100, 12_288, 1.5e6, 174_604_763_136)] == ["100", "12,288", "1.5 million", "175 billion"]
