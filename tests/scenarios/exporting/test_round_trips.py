"""A scenario that is imported, exported and imported again is the same; batch, accumulation and replicas are equal."""

import json
from pathlib import Path
from typing import Any

import pytest

from scenarios.exporting import exporter, write
from scenarios.importing import Imported, Options, imported
from scenarios.scenario import Scenario
from tests.scenarios.importing.configurations import MODELS
from tests.scenarios.importing.test_programs import GPT3, LLAMA3
from tests.scenarios.importing.test_programs import write as written

SECTIONS = ("cluster", "model", "training", "parallelism", "software")

MODEL = (
    "--num-layers 24 --hidden-size 1024 --num-attention-heads 16 --seq-length 1024 --max-position-embeddings 2048 "
    "--tokenizer-type NullTokenizer --vocab-size 32767 --micro-batch-size 2 --train-samples 100000"
)

MEGATRON = {
    "gpt3": GPT3,
    "llama3": LLAMA3,
    "plain": f"--bf16 --global-batch-size 64 {MODEL}",
    "fp32": f"--global-batch-size 32 {MODEL} --optimizer sgd --no-position-embedding",
    "interleaved": f"--fp16 --global-batch-size 64 {MODEL} --pipeline-model-parallel-size 4 "
    "--num-layers-per-virtual-pipeline-stage 2 --accumulate-allreduce-grads-in-fp32 --recompute-activations",
    "uneven": f"--bf16 --global-batch-size 64 {MODEL} --pipeline-model-parallel-size 4 "
    "--decoder-first-pipeline-num-layers 5 --decoder-last-pipeline-num-layers 5",
    "embedding": f"--bf16 --global-batch-size 64 {MODEL.replace('layers 24', 'layers 26')} "
    "--pipeline-model-parallel-size 4 --account-for-embedding-in-pipeline-split --account-for-loss-in-pipeline-split",
    "tensor": f"--bf16 --global-batch-size 64 {MODEL} --tensor-model-parallel-size 4 --sequence-parallel "
    "--tp-comm-overlap --recompute-granularity full --recompute-method uniform --squared-relu --qk-layernorm",
    "instances": f"--bf16 --global-batch-size 64 {MODEL} --use-distributed-optimizer --overlap-grad-reduce "
    "--num-distributed-optimizer-instances 2 --ddp-bucket-size 40000000",
    "fsdp2": f"--bf16 --global-batch-size 64 {MODEL} --use-torch-fsdp2 --untie-embeddings-and-output-weights",
    "megatron_fsdp": f"--bf16 --global-batch-size 64 {MODEL} --use-megatron-fsdp "
    "--data-parallel-sharding-strategy optim_grads_params",
}


def content(one: Scenario) -> dict[str, Any]:
    """What two equal scenarios have in common: their sections without names."""
    dumped = one.specification.model_dump(mode="json")
    dumped["model"].pop("name")
    return {key: dumped[key] for key in SECTIONS}


def facts(one: Scenario) -> tuple[int, ...]:
    """Batch, micro-batch, accumulation, replicas."""
    derived, training = one.derived, one.specification.training
    assert training is not None
    return training.global_batch_size, derived.micro_batch_size, derived.micro_batches, derived.replicas


def exported(one: Imported | Scenario, target: str, folder: Path) -> list[str]:
    """The paths of the files that *target* makes of a scenario."""
    scenario = one.scenario if isinstance(one, Imported) else one
    made = exporter(target)(scenario)
    folder.mkdir()
    where = folder if made.in_folder else folder / next(iter(made.files))
    return [str(path) for path in write(made, where)]


@pytest.mark.parametrize("name", MEGATRON)
@pytest.mark.parametrize("target", ["megatron", "slurm"])
def test_megatron(name, target, tmp_path):
    line = MEGATRON[name]
    line = line if "torchrun" in line else f"torchrun --nnodes 2 --nproc_per_node 8 pretrain_gpt.py {line}\n"
    options = Options(cluster="dgx_a100_80gb")
    first = imported(written(tmp_path, run__sh=line), options, "run")
    files = exported(first, target, tmp_path / "out")
    again = imported(files, options, "run")
    assert facts(again.scenario) == facts(first.scenario)
    assert content(again.scenario) == content(first.scenario)
    assert again.unread == {}
    # and what is exported again is the same text
    assert Path(exported(again, target, tmp_path / "more")[0]).read_text() == Path(files[0]).read_text()


DEEPSPEED = {
    "stage_0": {"zero_optimization": {"stage": 0}},
    "stage_2": {"zero_optimization": {"stage": 2, "overlap_comm": True, "reduce_bucket_size": 200000000}},
    "stage_3": {
        "zero_optimization": {"stage": 3},
        "bf16": {"enabled": True},
        "data_types": {"grad_accum_dtype": "bf16"},
    },
    "pipeline": {"zero_optimization": {"stage": 1}, "pipeline": {"stages": 4}, "fp16": {"enabled": True}},
    "tensor": {"zero_optimization": {"stage": 1}, "tensor_parallel": {"autotp_size": 4}, "bf16": {"enabled": True}},
}


@pytest.mark.parametrize("name", DEEPSPEED)
def test_deepspeed(name, tmp_path):
    config = {"train_micro_batch_size_per_gpu": 2, "gradient_accumulation_steps": 4, **DEEPSPEED[name]}
    model = written(tmp_path, config__json=json.dumps(MODELS["gpt2"][0]))
    line = "deepspeed --num_nodes 2 --num_gpus 8 train.py --deepspeed_config ds.json\n"
    first = imported([*written(tmp_path, ds__json=json.dumps(config), run__sh=line), *model], Options(), "x")
    files = exported(first, "deepspeed", tmp_path / "out")
    again = imported([*files, *model], Options(), "x")
    assert facts(again.scenario) == facts(first.scenario)
    # data.overlap and the type of gradients stand in the file, where they were defaults
    first = imported([*files, *model], Options(), "x")
    assert content(imported([*exported(first, "deepspeed", tmp_path / "b"), *model], Options(), "x").scenario) == (
        content(first.scenario)
    )
    written_config = json.loads(Path(files[0]).read_text())
    batch, micro, accumulation, replicas = facts(first.scenario)
    assert written_config["train_batch_size"] == batch == micro * accumulation * replicas


TITAN = {
    "fsdp": "data_parallel_shard_degree = -1",
    "hybrid": "data_parallel_replicate_degree = 4\ndata_parallel_shard_degree = 8",
    "ddp": "data_parallel_replicate_degree = 32\ndata_parallel_shard_degree = 1",
    "tensor": 'tensor_parallel_degree = 8\nenable_async_tensor_parallel = true\nfsdp_reshard_after_forward = "always"',
    "pipeline": 'pipeline_parallel_degree = 4\npipeline_parallel_schedule = "1F1B"',
    "interleaved": 'pipeline_parallel_degree = 4\npipeline_parallel_schedule = "Interleaved1F1B"\n'
    "pipeline_parallel_layers_per_stage = 3\npipeline_parallel_microbatch_size = 2",
    "zero_bubble": 'pipeline_parallel_degree = 2\npipeline_parallel_schedule = "ZBVZeroBubble"',
}


@pytest.mark.parametrize("name", TITAN)
def test_torchtitan(name, tmp_path):
    text = (
        '[model]\nname = "llama3"\nflavor = "8B"\n[training]\nlocal_batch_size = 8\nseq_len = 4096\nsteps = 100\n'
        f'[parallelism]\n{TITAN[name]}\n[activation_checkpoint]\nmode = "full"\n'
    )
    options = Options(nodes=4)
    first = imported(written(tmp_path, t__toml=text), options, "t")
    files = exported(first, "torchtitan", tmp_path / "out")
    again = imported(files[1:], Options(), "t")
    assert facts(again.scenario) == facts(first.scenario)
    assert content(again.scenario) == content(first.scenario)
    assert content(imported(files[:1], options, "t").scenario) == content(first.scenario)


ACCELERATE = {
    "FULL_SHARD": ("FSDP", "fsdp_config: {fsdp_sharding_strategy: FULL_SHARD, fsdp_backward_prefetch: BACKWARD_PRE}"),
    "SHARD_GRAD_OP": (
        "FSDP",
        "fsdp_config: {fsdp_sharding_strategy: SHARD_GRAD_OP, fsdp_backward_prefetch: NO_PREFETCH}",
    ),
    "HYBRID_SHARD": (
        "FSDP",
        "fsdp_config: {fsdp_sharding_strategy: HYBRID_SHARD, fsdp_backward_prefetch: BACKWARD_PRE}",
    ),
    "ddp": ("MULTI_GPU", ""),
    "zero": ("DEEPSPEED", "deepspeed_config: {zero_stage: 3, gradient_accumulation_steps: 2}"),
}


@pytest.mark.parametrize("name", ACCELERATE)
def test_accelerate(name, tmp_path):
    kind, more = ACCELERATE[name]
    text = f"distributed_type: {kind}\nnum_machines: 2\nnum_processes: 16\nmixed_precision: bf16\n{more}\n"
    line = (
        "accelerate launch --config_file a.yaml train.py --per_device_train_batch_size 4 "
        "--gradient_accumulation_steps 2 --max_steps 100 --bf16 --gradient_checkpointing --optim adamw_torch\n"
    )
    model = written(tmp_path, config__json=json.dumps(MODELS["qwen2_7b"][0]))
    first = imported([*written(tmp_path, a__yaml=text, run__sh=line), *model], Options(), "x")
    again = imported([*exported(first, "accelerate", tmp_path / "out"), *model], Options(), "x")
    assert facts(again.scenario) == facts(first.scenario)
    assert content(again.scenario) == content(first.scenario)


def test_the_order_of_a_pipeline(tmp_path):
    one = Scenario.load("lecture_3d_32gpus")
    (file,) = exported(one, "torch-csv", tmp_path / "out")
    again = Scenario.load("lecture_3d_32gpus", {"parallelism.schedule": file})
    first, second = one.run().summary(), again.run().summary()
    for summary in (first, second):
        summary["simulation"].pop("wall_s")
    assert second == first
