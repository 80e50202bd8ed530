"""A scenario that is imported, exported and imported again is the same; batch, accumulation and replicas are equal."""

import json
from pathlib import Path
from typing import Any

import pytest

from clustersim.scenarios.exchange.export import exporter, write
from clustersim.scenarios.exchange.importer import Imported, Options, imported
from clustersim.scenarios.scenario import Scenario
from clustersim.simulator.reading.errors import ScenarioError
from tests.scenarios.exchange.formats.configurations import MODELS
from tests.scenarios.exchange.formats.test_programs import GPT3, LLAMA3
from tests.scenarios.exchange.formats.test_programs import write as written

SECTIONS = ("cluster", "model", "training", "parallelism", "software")

MODEL = (
    "--num-layers 24 --hidden-size 1024 --num-attention-heads 16 --seq-length 1024 --max-position-embeddings 2048 "
    "--tokenizer-type NullTokenizer --vocab-size 32767 --micro-batch-size 2 --train-samples 100000"
)

# the forms of NVIDIA/Megatron-LM, examples/mixtral and the published runs of DeepSeek-V3, with documented sizes
EXPERTS = (
    "torchrun --nnodes 8 --nproc_per_node 8 pretrain_gpt.py --bf16 --num-layers 32 --hidden-size 4096 "
    "--ffn-hidden-size 14336 --num-attention-heads 32 --group-query-attention --num-query-groups 8 --swiglu "
    "--normalization RMSNorm --position-embedding-type rope --disable-bias-linear --hidden-dropout 0 "
    "--attention-dropout 0 --untie-embeddings-and-output-weights --seq-length 4096 --max-position-embeddings 4096 "
    "--tokenizer-type NullTokenizer --vocab-size 31999 --micro-batch-size 1 --global-batch-size 256 "
    "--train-iters 1000 --num-experts 8 --moe-router-topk 2 --moe-aux-loss-coeff 1e-2 "
    "--moe-router-load-balancing-type aux_loss --moe-token-dispatcher-type alltoall --expert-model-parallel-size 8 "
    "--use-distributed-optimizer --overlap-grad-reduce --overlap-param-gather "
)
LATENT = (
    "torchrun --nnodes 32 --nproc_per_node 8 pretrain_gpt.py --bf16 --num-layers 61 --hidden-size 7168 "
    "--ffn-hidden-size 18432 --num-attention-heads 128 --kv-channels 128 --seq-length 4096 --swiglu "
    "--max-position-embeddings 4096 --position-embedding-type rope --normalization RMSNorm --disable-bias-linear "
    "--untie-embeddings-and-output-weights --make-vocab-size-divisible-by 3232 --vocab-size 129280 --hidden-dropout 0 "
    "--attention-dropout 0 --tokenizer-type HuggingFaceTokenizer --qk-layernorm --multi-latent-attention "
    "--q-lora-rank 1536 --kv-lora-rank 512 --qk-head-dim 128 --qk-pos-emb-head-dim 64 --v-head-dim 128 "
    "--num-experts 256 --moe-layer-freq ([0]*3+[1]*58) --moe-ffn-hidden-size 2048 --moe-router-topk 8 "
    "--moe-shared-expert-intermediate-size 2048 --moe-router-load-balancing-type seq_aux_loss "
    "--moe-aux-loss-coeff 1e-4 --moe-token-dispatcher-type flex --moe-enable-deepep --moe-router-num-groups 8 "
    "--moe-router-group-topk 4 --moe-router-score-function sigmoid --moe-router-enable-expert-bias "
    "--micro-batch-size 1 --global-batch-size 1024 --train-samples 585937500 --tensor-model-parallel-size 2 "
    "--pipeline-model-parallel-size 4 --expert-model-parallel-size 64 --expert-tensor-parallel-size 1 "
    "--sequence-parallel --use-distributed-optimizer --overlap-grad-reduce --fp8-format e4m3 --fp8-recipe blockwise "
    "--fp8-param-gather --moe-shared-expert-overlap --mtp-num-layers 1 "
    "--decoder-first-pipeline-num-layers 16 --decoder-last-pipeline-num-layers 13\n"
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
    "groups": f"--bf16 --global-batch-size 64 {MODEL} --recompute-granularity full --recompute-method uniform "
    "--recompute-num-layers 4",
    "blocks": f"--bf16 --global-batch-size 64 {MODEL} --recompute-granularity full --recompute-method block "
    "--recompute-num-layers 2",
    "instances": f"--bf16 --global-batch-size 64 {MODEL} --use-distributed-optimizer --overlap-grad-reduce "
    "--num-distributed-optimizer-instances 2 --ddp-bucket-size 40000000",
    "fsdp2": f"--bf16 --global-batch-size 64 {MODEL} --use-torch-fsdp2 --untie-embeddings-and-output-weights",
    "experts": f"{EXPERTS} --pipeline-model-parallel-size 4 --num-layers-per-virtual-pipeline-stage 1 "
    "--overlap-moe-expert-parallel-comm\n",
    "experts_cut": f"{EXPERTS} --tensor-model-parallel-size 4 --sequence-parallel --expert-tensor-parallel-size 1 "
    "--moe-expert-capacity-factor 1.25 --moe-pad-expert-input-to-capacity --window-size 1023,0\n",
    "experts_by_deepep": f"{EXPERTS.replace('alltoall', 'flex --moe-enable-deepep')}\n",
    "experts_every_other_layer": f"{EXPERTS} --moe-layer-freq 2 --context-parallel-size 2 --cp-comm-type all_gather\n",
    "latent": LATENT,
    "ring": f"--bf16 --global-batch-size 64 {MODEL} --context-parallel-size 4",
    "ulysses": f"--bf16 --global-batch-size 64 {MODEL} --context-parallel-size 4 --cp-comm-type a2a",
    "delayed": f"--bf16 --global-batch-size 64 {MODEL} --fp8-format hybrid --fp8-amax-history-len 1024",
    "mxfp8": f"--fp16 --global-batch-size 64 {MODEL} --fp8-format e4m3 --fp8-recipe mxfp8",
    "megatron_fsdp": f"--bf16 --global-batch-size 64 {MODEL} --use-megatron-fsdp "
    "--data-parallel-sharding-strategy optim_grads_params",
}


def machine(text: str) -> Options:
    """A cluster with the number formats of *text*."""
    eight = "dgx_h100" if "fp8" in text or "float8" in text else "dgx_a100_80gb"
    return Options(cluster="dgx_b200" if "mx" in text else eight)


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
    options = machine(line)
    first = imported(written(tmp_path, run__sh=line), options, "run")
    files = exported(first, target, tmp_path / "out")
    again = imported(files, options, "run")
    assert facts(again.scenario) == facts(first.scenario)
    assert content(again.scenario) == content(first.scenario)
    assert again.unread == {}
    # and what is exported again is the same text
    assert Path(exported(again, target, tmp_path / "more")[0]).read_text() == Path(files[0]).read_text()


def test_deepep_sends_a_token_once_to_each_rank_of_a_node_or_once_to_each_node(tmp_path):
    for name, expected in (("experts_by_deepep", 1), ("latent", 8)):
        line = MEGATRON[name]
        made = imported(written(tmp_path, run__sh=line), machine(line), "run")
        assert made.scenario.specification.parallelism.ep_domain == expected


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
    "context": 'context_parallel_degree = 4\ncontext_parallel_rotate_method = "alltoall"',
    "gathered": "context_parallel_degree = 4",
    "float8": "tensor_parallel_degree = 2\n[quantize.linear.float8]\nenable_fsdp_float8_all_gather = true",
    "mx": '[quantize.linear.mx]\nrecipe_name = "mxfp8_cublas"',
    "zero_bubble": 'pipeline_parallel_degree = 2\npipeline_parallel_schedule = "ZBVZeroBubble"',
}


def titan(name: str) -> str:
    """torchtitan's configuration of Llama 3 8B with the settings *name* of `TITAN`."""
    converter = next((one for one in ("quantize.linear.float8", "quantize.linear.mx") if one in TITAN[name]), "")
    converters = f'converters = ["{converter}"]\n' if converter else ""
    return (
        f'[model]\nname = "llama3"\nflavor = "8B"\n{converters}'
        "[training]\nlocal_batch_size = 8\nseq_len = 4096\nsteps = 100\n"
        f'[activation_checkpoint]\nmode = "full"\n[parallelism]\n{TITAN[name]}\n'
    )


@pytest.mark.parametrize("name", TITAN)
def test_torchtitan(name, tmp_path):
    text = titan(name)
    options = Options(cluster=machine(text).cluster, nodes=4)
    first = imported(written(tmp_path, t__toml=text), options, "t")
    files = exported(first, "torchtitan", tmp_path / "out")
    again = imported(files[1:], Options(cluster=options.cluster), "t")
    assert facts(again.scenario) == facts(first.scenario)
    assert content(again.scenario) == content(first.scenario)
    assert content(imported(files[:1], options, "t").scenario) == content(first.scenario)


@pytest.mark.parametrize(
    ("model", "degrees"),
    [
        ('"deepseek_v3"\nflavor = "16B"', "expert_parallel_degree = 8"),
        ('"deepseek_v3"\nflavor = "671B"', "expert_parallel_degree = 32\npipeline_parallel_degree = 8"),
        ('"qwen3"\nflavor = "30B-A3B"', "expert_parallel_degree = 16\ntensor_parallel_degree = 4"),
        (
            '"qwen3"\nflavor = "235B-A22B"',
            "expert_parallel_degree = 4\ntensor_parallel_degree = 4\nexpert_tensor_parallel_degree = 4",
        ),
        ('"gpt_oss"\nflavor = "120b"', "expert_parallel_degree = 8"),
        ('"llama4"\nflavor = "17bx16e"', "expert_parallel_degree = 8"),
    ],
)
def test_torchtitans_experts(model, degrees, tmp_path):
    text = f"[model]\nname = {model}\n[training]\nlocal_batch_size = 8\nseq_len = 2048\n[parallelism]\n{degrees}\n"
    first = imported(written(tmp_path, t__toml=text), Options(nodes=32), "t")
    again = imported(exported(first, "torchtitan", tmp_path / "out")[1:], Options(), "t")
    assert facts(again.scenario) == facts(first.scenario)
    assert content(again.scenario) == content(first.scenario)
    assert again.unread == {}


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


def test_accelerate_reduces_gradients_in_the_last_micro_batch_unless_it_is_told(tmp_path):
    text = "distributed_type: FSDP\nnum_processes: 8\nfsdp_config: {fsdp_sharding_strategy: FULL_SHARD}\n"
    line = "accelerate launch --config_file a.yaml train.py --per_device_train_batch_size 1 --max_steps 9"
    told = ' --accelerator_config \'{"gradient_accumulation_kwargs": {"sync_each_batch": true}}\''
    model = written(tmp_path, config__json=json.dumps(MODELS["qwen2_7b"][0]))
    cases = (" --gradient_accumulation_steps 4", True), (" --gradient_accumulation_steps 4" + told, False), ("", False)
    for number, (flags, no_sync) in enumerate(cases):
        first = imported([*written(tmp_path, a__yaml=text, run__sh=f"{line}{flags}\n"), *model], Options(), "x")
        assert first.scenario.specification.parallelism.data.no_sync is no_sync
        again = imported([*exported(first, "accelerate", tmp_path / f"out{number}"), *model], Options(), "x")
        assert facts(again.scenario) == facts(first.scenario)


@pytest.mark.parametrize(
    ("given", "told"),
    [
        ("'{\"gradient_accumulation_kwargs\": }'", "accelerator_config: must be JSON, or the path of a file"),
        (
            '\'{"gradient_accumulation_kwargs": {"sync_each_batch": 2}}\'',
            "sync_each_batch: must be true or false, not 2",
        ),
    ],
)
def test_a_wrong_configuration_of_accelerate_on_the_command_line(tmp_path, given, told):
    line = f"accelerate launch train.py --per_device_train_batch_size 1 --max_steps 9 --accelerator_config {given}\n"
    model = written(tmp_path, config__json=json.dumps(MODELS["qwen2_7b"][0]))
    with pytest.raises(ScenarioError, match=told):
        imported([*written(tmp_path, run__sh=line), *model], Options(), "x")


def test_a_file_of_accelerate_is_no_fault(tmp_path):
    line = "accelerate launch train.py --per_device_train_batch_size 1 --max_steps 9 --accelerator_config more.json\n"
    model = written(tmp_path, config__json=json.dumps(MODELS["qwen2_7b"][0]))
    made = imported([*written(tmp_path, run__sh=line), *model], Options(), "x")
    assert any("accelerator_config" in key for keys in made.unread.values() for key in keys)


def test_the_order_of_a_pipeline(tmp_path):
    one = Scenario.load("lecture_3d_32gpus")
    (file,) = exported(one, "torch-csv", tmp_path / "out")
    again = Scenario.load("lecture_3d_32gpus", {"parallelism.schedule": file})
    first, second = one.run().summary(), again.run().summary()
    for summary in (first, second):
        summary["simulation"].pop("wall_s")
    assert second == first
