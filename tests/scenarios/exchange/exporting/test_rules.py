"""Launch files keep the rules of the programs' own parsers, restated here from the versions that the docs name.

Megatron-LM core_v0.15.3: ``validate_args`` of megatron/training/arguments.py. DeepSpeed 0.16.4: ``_batch_assertion``
and ``_do_error_check`` of deepspeed/runtime/config.py. torchtitan 0.2.2: torchtitan/config/job_config.py, train.py,
distributed/parallel_dims.py. accelerate 1.10.1: commands/config/config_args.py.
"""

import json
import re
import shlex
import tomllib
from typing import Any

import pytest

from clustersim.scenarios.exchange.export import exporter
from clustersim.scenarios.exchange.importer import Options, imported
from clustersim.scenarios.scenario import Scenario
from clustersim.simulator.reading.yaml_and_json import read_document
from tests.scenarios.exchange.formats.configurations import MODELS
from tests.scenarios.exchange.formats.test_programs import write
from tests.scenarios.exchange.test_round_trips import ACCELERATE, DEEPSPEED, MEGATRON, TITAN, facts, machine, titan

INTEGERS = (
    "num-layers hidden-size ffn-hidden-size num-attention-heads kv-channels num-query-groups seq-length "
    "max-position-embeddings vocab-size make-vocab-size-divisible-by micro-batch-size global-batch-size train-samples "
    "train-iters recompute-num-layers tensor-model-parallel-size pipeline-model-parallel-size ddp-bucket-size "
    "num-virtual-stages-per-pipeline-rank decoder-first-pipeline-num-layers decoder-last-pipeline-num-layers "
    "num-distributed-optimizer-instances context-parallel-size expert-model-parallel-size expert-tensor-parallel-size "
    "num-experts moe-router-topk moe-ffn-hidden-size moe-shared-expert-intermediate-size moe-router-num-groups "
    "moe-router-group-topk q-lora-rank kv-lora-rank qk-head-dim qk-pos-emb-head-dim v-head-dim mtp-num-layers"
)
FLOATS = "hidden-dropout attention-dropout lr min-lr moe-aux-loss-coeff moe-expert-capacity-factor"
FLAGS = (
    "group-query-attention swiglu squared-relu openai-gelu untie-embeddings-and-output-weights disable-bias-linear "
    "add-qkv-bias qk-layernorm fp16 bf16 accumulate-allreduce-grads-in-fp32 grad-reduce-in-bf16 "
    "sequence-parallel tp-comm-overlap use-tp-pp-dp-mapping account-for-embedding-in-pipeline-split "
    "account-for-loss-in-pipeline-split "
    "use-distributed-optimizer overlap-grad-reduce overlap-param-gather no-gradient-accumulation-fusion "
    "use-torch-fsdp2 use-megatron-fsdp mock-data multi-latent-attention moe-grouped-gemm fp8-param-gather "
    "moe-router-enable-expert-bias moe-enable-deepep moe-shared-expert-overlap overlap-moe-expert-parallel-comm "
    "moe-pad-expert-input-to-capacity"
)
CHOICES = {
    "position-embedding-type": ("learned_absolute", "rope", "mrope", "relative", "none"),
    "normalization": ("LayerNorm", "RMSNorm"),
    "attention-backend": ("flash", "fused", "unfused", "local", "auto"),
    "tokenizer-type": ("NullTokenizer",),
    "optimizer": ("adam", "sgd"),
    "recompute-granularity": ("full", "selective"),
    "recompute-method": ("uniform", "block"),
    "ckpt-format": ("torch", "torch_dist", "zarr", "torch_dcp", "fsdp_dtensor"),
    "cp-comm-type": ("p2p", "a2a", "all_gather", "a2a+p2p"),
    "fp8-format": ("e4m3", "hybrid"),
    "fp8-recipe": ("tensorwise", "delayed", "mxfp8", "blockwise"),
    "moe-router-score-function": ("softmax", "sigmoid"),
    "moe-router-load-balancing-type": ("aux_loss", "seq_aux_loss", "global_aux_loss", "sinkhorn", "none"),
    "moe-token-dispatcher-type": ("allgather", "alltoall", "flex"),
    "data-parallel-sharding-strategy": ("no_shard", "optim", "optim_grads", "optim_grads_params"),
}


def parsed(text: str) -> tuple[dict[str, Any], int, bool]:
    """The arguments of a script by argparse's rules, the world size, and whether one connection is wanted."""
    words = shlex.split(text.replace("\\\n", " "), comments=True)
    flags = words[words.index("pretrain_gpt.py") + 1 :]
    made: dict[str, Any] = {}
    place = 0
    while place < len(flags):
        name = flags[place].removeprefix("--")
        assert flags[place].startswith("--")
        assert name not in made
        place += 1
        if name in FLAGS.split():
            made[name] = True
            continue
        value = flags[place]
        place += 1
        if name in INTEGERS.split():
            made[name] = int(value)
        elif name in FLOATS.split():
            made[name] = float(value)
        elif name == "window-size":
            made[name] = tuple(map(int, value.split(",")))
        elif name == "moe-layer-freq":
            # moe_freq_type evaluates a list expression
            assert set(value) <= set("0123456789[]()*+")
            made[name] = eval(value)
        else:
            assert value in CHOICES[name], f"{name} {value}"
            made[name] = value
    nodes, each = re.search(r"--nnodes=(\d+)", text), re.search(r"--nproc_per_node=(\d+)", text)
    assert nodes and each
    return made, int(nodes[1]) * int(each[1]), "CUDA_DEVICE_MAX_CONNECTIONS=1" in text


def validate(args: dict[str, Any], world: int, one_connection: bool) -> tuple[int, int]:
    """The rules of validate_args; return replicas and accumulation."""
    get = args.get
    tp, pp, layers = get("tensor-model-parallel-size", 1), get("pipeline-model-parallel-size", 1), args["num-layers"]
    cp, ep = get("context-parallel-size", 1), get("expert-model-parallel-size", 1)
    assert world % (tp * pp * cp) == 0
    dp = world // (tp * pp * cp)
    assert world % (pp * ep * get("expert-tensor-parallel-size", tp)) == 0
    if ep > 1:
        assert get("num-experts", 0) % ep == 0
        assert tp == 1 or get("sequence-parallel")
    if get("moe-enable-deepep"):
        assert args["moe-token-dispatcher-type"] == "flex"
    if get("overlap-moe-expert-parallel-comm"):
        assert ep > 1
        assert args["moe-token-dispatcher-type"] in ("alltoall", "flex")
        assert get("recompute-granularity") != "full"
        assert pp == 1 or get("num-virtual-stages-per-pipeline-rank")
    if type(get("moe-layer-freq", 1)) is list:
        assert len(args["moe-layer-freq"]) == args["num-layers"]
    if get("fp8-param-gather"):
        assert get("fp8-format")
        assert get("use-distributed-optimizer") or get("use-torch-fsdp2") or get("use-megatron-fsdp")
    fsdp = get("use-torch-fsdp2") or get("use-megatron-fsdp")
    virtual = get("num-virtual-stages-per-pipeline-rank", 1)
    shared = layers + sum(bool(get(f"account-for-{part}-in-pipeline-split")) for part in ("embedding", "loss"))
    ends = [get(f"decoder-{end}-pipeline-num-layers") for end in ("first", "last")]
    if any(ends):
        middle, rest = pp - sum(map(bool, ends)), layers - sum(end or 0 for end in ends)
        assert rest % middle == 0 if middle else rest == 0
    else:
        assert shared % (pp * virtual) == 0
    assert virtual == 1 or pp > 1
    assert "kv-channels" in args or args["hidden-size"] % args["num-attention-heads"] == 0
    assert args["num-attention-heads"] % tp == 0
    assert args["max-position-embeddings"] >= args["seq-length"]
    assert not (get("bf16") and get("fp16"))
    assert not (get("grad-reduce-in-bf16") and not get("bf16"))
    assert not (get("train-iters") and get("train-samples"))
    assert get("train-iters") or get("train-samples")
    assert get("recompute-granularity") != "selective" or "recompute-method" not in args
    assert not get("tp-comm-overlap") or get("sequence-parallel")
    assert tp > 1 or not get("sequence-parallel")
    assert not get("overlap-param-gather") or (get("use-distributed-optimizer") and get("overlap-grad-reduce"))
    assert args["min-lr"] <= args["lr"]
    assert one_connection == ((tp > 1 or cp > 1) and not fsdp)
    if get("use-torch-fsdp2"):
        assert pp == 1
        assert not get("use-distributed-optimizer")
        assert get("no-gradient-accumulation-fusion")
        assert args["ckpt-format"] in ("torch_dist", "torch_dcp")
        assert get("untie-embeddings-and-output-weights")
        assert not get("fp16")
    if get("use-megatron-fsdp"):
        assert args["ckpt-format"] == "fsdp_dtensor"
    batch, micro = args["global-batch-size"], args["micro-batch-size"]
    # megatron/core/num_microbatches_calculator.py
    assert batch % (micro * dp) == 0
    return dp, batch // (micro * dp)


def text_of(scenario: Scenario, target: str, name: str) -> str:
    made = exporter(target)(scenario).files[name]
    assert isinstance(made, str)
    return made


@pytest.mark.parametrize("name", MEGATRON)
def test_megatron(name, tmp_path):
    line = MEGATRON[name]
    line = line if "torchrun" in line else f"torchrun --nnodes 2 --nproc_per_node 8 pretrain_gpt.py {line}\n"
    scenario = imported(write(tmp_path, run__sh=line), machine(line), "run").scenario
    for target, file in (("megatron", "run.sh"), ("slurm", "run.sbatch")):
        text = text_of(scenario, target, file).replace("$SLURM_NNODES", str(scenario.derived.gpus // 8))
        dp, accumulation = validate(*parsed(text))
        assert (dp, accumulation) == (scenario.derived.replicas, scenario.derived.micro_batches)


@pytest.mark.parametrize(
    "name", ["gpt3_175b_1024a100", "megatron_1t_3072a100", "mt_nlg_530b", "gpt_6_7b_64a100", "mixtral_8x7b_dgx_h100"]
)
def test_megatron_of_shipped_scenarios(name):
    scenario = Scenario.load(name)
    dp, accumulation = validate(*parsed(text_of(scenario, "megatron", f"{scenario.name}.sh")))
    assert (dp, accumulation) == (scenario.derived.replicas, scenario.derived.micro_batches)


@pytest.mark.parametrize("name", DEEPSPEED)
def test_deepspeed(name, tmp_path):
    config = {"train_micro_batch_size_per_gpu": 2, "gradient_accumulation_steps": 4, **DEEPSPEED[name]}
    line = "deepspeed --num_nodes 2 --num_gpus 8 train.py --deepspeed_config ds.json\n"
    model = write(tmp_path, config__json=json.dumps(MODELS["gpt2"][0]))
    scenario = imported([*write(tmp_path, ds__json=json.dumps(config), run__sh=line), *model], Options(), "x").scenario
    made = json.loads(text_of(scenario, "deepspeed", "ds_config.json"))
    batch, micro, accumulation, replicas = facts(scenario)
    assert made["train_batch_size"] == batch
    assert batch == made["train_micro_batch_size_per_gpu"] * made["gradient_accumulation_steps"] * replicas
    assert (micro, accumulation) == (made["train_micro_batch_size_per_gpu"], made["gradient_accumulation_steps"])
    assert not (made.get("bf16") and made.get("fp16"))
    zero = made["zero_optimization"]
    assert zero["stage"] in range(4)
    # the configuration of ZeRO forbids unknown keys
    assert zero.keys() <= {"stage", "overlap_comm", "reduce_bucket_size"}
    assert type(zero["overlap_comm"]) is bool
    assert type(zero.get("reduce_bucket_size", 1)) is int
    assert not ("pipeline" in made and zero["stage"] > 1)
    assert not ("tensor_parallel" in made and zero["stage"] > 1)
    # deepspeed.runtime.engine: AdamW and SGD are its own or torch's
    assert made["optimizer"]["type"] in ("AdamW", "SGD")


JOB = {
    "job": {"description": str},
    "model": {"name": str, "flavor": str, "converters": list},
    "quantize": {"linear": dict},
    "optimizer": {"name": str, "lr": float},
    "training": {
        "local_batch_size": int,
        "global_batch_size": int,
        "seq_len": int,
        "steps": int,
        "mixed_precision_param": str,
        "mixed_precision_reduce": str,
    },
    "parallelism": {
        "data_parallel_replicate_degree": int,
        "data_parallel_shard_degree": int,
        "fsdp_reshard_after_forward": str,
        "tensor_parallel_degree": int,
        "enable_async_tensor_parallel": bool,
        "context_parallel_degree": int,
        "context_parallel_rotate_method": str,
        "pipeline_parallel_degree": int,
        "pipeline_parallel_schedule": str,
        "pipeline_parallel_microbatch_size": int,
        "pipeline_parallel_layers_per_stage": int,
        "pipeline_parallel_first_stage_less_layers": int,
        "pipeline_parallel_last_stage_less_layers": int,
    },
    "activation_checkpoint": {"mode": str, "selective_ac_option": str},
    "compile": {"enable": bool},
}
"""Settings that are written, and their types in job_config.py."""


@pytest.mark.parametrize("name", TITAN)
def test_torchtitan(name, tmp_path):
    text = titan(name)
    options = Options(cluster=machine(text).cluster, nodes=4)
    scenario = imported(write(tmp_path, t__toml=text), options, "t").scenario
    made = tomllib.loads(text_of(scenario, "torchtitan", "t.toml"))
    for section, keys in made.items():
        for key, value in keys.items():
            assert type(value) is JOB[section][key], (section, key)
    training, parallelism = made["training"], made["parallelism"]
    replicas = parallelism["data_parallel_replicate_degree"] * parallelism["data_parallel_shard_degree"]
    world = replicas * parallelism["tensor_parallel_degree"] * parallelism["pipeline_parallel_degree"]
    world *= parallelism.get("context_parallel_degree", 1)
    assert world == scenario.derived.gpus
    assert training["mixed_precision_reduce"] == "float32"
    accumulation, rest = divmod(training["global_batch_size"], training["local_batch_size"] * replicas)
    assert not rest
    micro = parallelism.get("pipeline_parallel_microbatch_size", training["local_batch_size"])
    split = training["local_batch_size"] // micro
    batch, _, micro_batches, dp = facts(scenario)
    assert (training["global_batch_size"], accumulation * split, replicas) == (batch, micro_batches, dp)


FIELDS = (
    "compute_environment distributed_type mixed_precision use_cpu debug num_processes machine_rank num_machines "
    "gpu_ids "
    "main_process_ip main_process_port rdzv_backend same_network main_training_function enable_cpu_affinity fp8_config "
    "deepspeed_config fsdp_config parallelism_config megatron_lm_config"
)
"""Fields of ClusterConfig: any other key of a file is an error there."""


@pytest.mark.parametrize("name", ACCELERATE)
def test_accelerate(name, tmp_path):
    kind, more = ACCELERATE[name]
    text = f"distributed_type: {kind}\nnum_machines: 2\nnum_processes: 16\nmixed_precision: bf16\n{more}\n"
    settings = ["training.global_batch_size=128", "training.micro_batch_size=4"]
    files = [*write(tmp_path, a__yaml=text), *write(tmp_path, config__json=json.dumps(MODELS["gpt2"][0]))]
    scenario = imported(files, Options(), "x", settings).scenario
    made = read_document(text_of(scenario, "accelerate", "accelerate.yaml"), "a").data
    assert made.keys() <= set(FIELDS.split())
    assert made["distributed_type"] == kind
    assert (made["num_machines"], made["num_processes"]) == (2, 16)
    if kind == "DEEPSPEED":
        assert made["deepspeed_config"]["gradient_accumulation_steps"] == scenario.derived.micro_batches
    flags = text_of(scenario, "accelerate", "launch.sh")
    assert f"--per_device_train_batch_size {scenario.derived.micro_batch_size} " in flags
    assert f"--gradient_accumulation_steps {scenario.derived.micro_batches} " in flags


@pytest.mark.exhaustive
def test_what_torch_reads():
    """The loader of torch.distributed.pipelining takes the cells of the file."""
    schedules = pytest.importorskip("torch.distributed.pipelining.schedules")
    for name in ("1f1b", "gpipe", "interleaved", "interleaved_zero_bubble", "zero_bubble_v", "dual_pipe_v"):
        scenario = Scenario.load("lecture_3d_32gpus", {"parallelism.schedule": name})
        text = text_of(scenario, "torch-csv", f"{scenario.name}.csv")
        for row in text.splitlines():
            for cell in row.split(","):
                assert str(schedules._Action.from_str(cell)) == cell
