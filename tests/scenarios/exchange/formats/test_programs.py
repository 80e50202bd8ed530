"""Published command lines and configurations of training programs become the scenarios that they describe."""

import json
from pathlib import Path

import pytest

from clustersim.scenarios.commands.command_line import run
from clustersim.scenarios.exchange.importer import Options, imported
from clustersim.scenarios.scenario import Scenario
from tests.scenarios.exchange.formats.configurations import MODELS

# NVIDIA/Megatron-LM, examples/gpt3/train_gpt3_175b_distributed.sh: the values of its arguments
GPT3 = """\
#!/bin/bash
export CUDA_DEVICE_MAX_CONNECTIONS=1
GPUS_PER_NODE=8
NUM_NODES=128
WORLD_SIZE=$(($GPUS_PER_NODE*$NUM_NODES))
CHECKPOINT_PATH=$1   # a path
PARTS=${PARTS:-"1"}
DISTRIBUTED_ARGS=(--nproc_per_node $GPUS_PER_NODE
  --nnodes $(($NUM_NODES*$PARTS))
)
MODEL="--num-layers 96 --hidden-size 12288 --num-attention-heads 96 \\
  --seq-length 2048 --max-position-embeddings 2048"
torchrun ${DISTRIBUTED_ARGS[@]} pretrain_gpt.py $MODEL \\
  --attention-backend auto \\
  --micro-batch-size 1 --global-batch-size 1536 --rampup-batch-size 16 16 5859375 \\
  --train-iters 500000 --lr 6.0e-5 --fp16 \\
  --tensor-model-parallel-size 8 --pipeline-model-parallel-size 16 \\
  --data-path 'my text' --save "$CHECKPOINT_PATH"
"""

# the same, examples/llama/train_llama3_8b_h100_fp8.sh, without fp8
LLAMA3 = (
    "torchrun --nproc_per_node 8 --nnodes 2 pretrain_gpt.py --use-mcore-models --num-layers 32 --hidden-size 4096"
    " --ffn-hidden-size 14336 --num-attention-heads 32 --group-query-attention --num-query-groups 8 --kv-channels 128"
    " --seq-length 8192 --max-position-embeddings 8192 --position-embedding-type rope --rotary-base 1000000"
    " --attention-dropout 0.0 --hidden-dropout 0.0 --swiglu --normalization RMSNorm --attention-backend fused"
    " --untie-embeddings-and-output-weights --disable-bias-linear --micro-batch-size 1 --global-batch-size 128"
    " --train-samples 1953125000 --bf16 --grad-reduce-in-bf16 --tensor-model-parallel-size 2 --sequence-parallel"
    " --use-distributed-optimizer --overlap-grad-reduce --overlap-param-gather"
    " --tokenizer-type HuggingFaceTokenizer --vocab-size 128256\n"
)

# NVIDIA/NeMo, conf/megatron_gpt_config.yaml, with the sizes of the launcher's gpt3/5b.yaml
NEMO = """\
trainer: {devices: 8, num_nodes: 16, accelerator: gpu, precision: bf16, max_steps: 75000}
exp_manager: {name: x}
model:
  mcore_gpt: true
  micro_batch_size: 4
  global_batch_size: 2048
  tensor_model_parallel_size: 2
  pipeline_model_parallel_size: 1
  encoder_seq_length: 2048
  max_position_embeddings: 2048
  num_layers: 24
  hidden_size: 4096
  ffn_hidden_size: 16384
  num_attention_heads: 32
  override_vocab_size: 50257
  make_vocab_size_divisible_by: 128
  activations_checkpoint_granularity: null
  sequence_parallel: true
  optim: {name: distributed_fused_adam, lr: 1.6e-4, overlap_grad_sync: true}
"""

# pytorch/torchtitan, models/llama3/train_configs/llama3_8b.toml
TITAN = """\
# NOTE: this toml config is a preset for 64 A100 GPUs.
[job]
dump_folder = "./outputs"
[model]
name = "llama3"
flavor = "8B"
[training]
local_batch_size = 1
seq_len = 8192
steps = 1000
[parallelism]
data_parallel_shard_degree = -1
tensor_parallel_degree = 1
[activation_checkpoint]
mode = "selective"
selective_ac_option = "op"
"""

BRIDGE = """\
model: {num_layers: 4, hidden_size: 256, num_attention_heads: 8, num_query_groups: 2, ffn_hidden_size: 512,
  seq_length: 512, vocab_size: 1024, tensor_model_parallel_size: 2, pipeline_model_parallel_size: 2,
  virtual_pipeline_model_parallel_size: 2, sequence_parallel: true, add_bias_linear: false,
  position_embedding_type: rope, share_embeddings_and_output_weights: false, normalization: RMSNorm}
train: {micro_batch_size: 1, global_batch_size: 64, train_iters: 100}
ddp: {use_distributed_optimizer: true, overlap_grad_reduce: true, grad_reduce_in_fp32: true}
mixed_precision: bf16_mixed
"""


def write(folder: Path, **files: str) -> list[str]:
    """The paths of *files*, content by name with ``__`` for a dot."""
    paths = []
    for name, text in files.items():
        path = folder / name.replace("__", ".")
        path.write_text(text)
        paths.append(str(path))
    return paths


def made(files: list[str], *settings: str, **options: object) -> Scenario:
    return imported(files, Options(**options), "x", settings).scenario  # type: ignore[arg-type]


def test_gpt3_of_megatron(tmp_path):
    one = imported(write(tmp_path, run__sh=GPT3), Options(cluster="selene"), "gpt3")
    scenario = one.scenario
    assert scenario.derived.described == "tp 8 x pp 16 x dp 8"
    assert (scenario.derived.gpus, scenario.derived.micro_batches) == (1024, 192)
    # 12 L h^2 (1 + 13 / (12 h)) + (V + s) h + 2 h, with the vocabulary padded to a multiple of 128 x 8
    layers, hidden, vocabulary, length = 96, 12288, 51200, 2048
    expected = layers * (12 * hidden**2 + 13 * hidden) + (vocabulary + length) * hidden + 2 * hidden
    assert scenario.model.parameters == expected
    training = scenario.specification.training
    assert (training.precision, training.samples) == ("fp16", 500_000 * 1536)
    assert list(one.unread.values()) == [["--rampup-batch-size"]]
    assert one.formats == {str(tmp_path / "run.sh"): ["launcher", "megatron"]}
    assert "num_layers: 96   # run.sh:11 --num-layers" in one.text


def test_llama3_of_megatron(tmp_path):
    scenario = made(write(tmp_path, run__sh=LLAMA3))
    assert scenario.model.parameters == MODELS["llama3_8b"][1]
    assert scenario.derived.described == "tp 2 x pp 1 x dp 8"
    data = scenario.specification.parallelism.data
    assert (data.method, data.stage, data.overlap) == ("zero", 1, True)
    assert scenario.specification.training.gradient_dtype == "bf16"
    assert scenario.specification.software == "megatron_core"


@pytest.mark.parametrize(("value", "blocking"), [("1", True), ("0", False)])
def test_a_script_tells_whether_launches_block(value, blocking, tmp_path):
    text = f"export CUDA_LAUNCH_BLOCKING={value}\n{LLAMA3}"
    one = imported(write(tmp_path, run__sh=text), Options(), "x")
    stack = one.scenario.software
    assert (stack.launch_blocking, stack.flash_backward) == (blocking, 3.0)
    assert ("launch_blocking: true   # run.sh:1" in one.text) == blocking
    assert one.unread == {}


def test_gpt_5b_of_nemo(tmp_path):
    one = imported(write(tmp_path, nemo__yaml=NEMO), Options(), "x")
    scenario = one.scenario
    assert scenario.derived.described == "tp 2 x pp 1 x dp 64"
    assert scenario.derived.micro_batches == 8
    assert scenario.specification.model.vocab_size == 50432  # 50,257 to a multiple of 256
    assert scenario.specification.parallelism.data.stage == 1
    assert scenario.specification.training.samples == 75000 * 2048
    assert one.unread == {}


def test_bridge(tmp_path):
    scenario = made(write(tmp_path, bridge__yaml=BRIDGE), nodes=1)
    assert scenario.derived.described == "tp 2 x pp 2 x dp 2"
    parallelism = scenario.specification.parallelism
    assert (parallelism.schedule, parallelism.virtual_stages, parallelism.data.stage) == ("interleaved", 2, 1)
    assert scenario.specification.training.gradient_dtype == "fp32"


def test_torchtitan(tmp_path):
    scenario = made(write(tmp_path, llama3__toml=TITAN), cluster="dgx_a100_80gb", nodes=8)
    assert scenario.model.parameters == MODELS["llama3_8b"][1]
    assert scenario.specification.parallelism.data.method == "fsdp"
    training = scenario.specification.training
    assert (training.global_batch_size, training.samples, training.recompute) == (64, 64_000, "selective")
    assert (training.precision, training.gradient_dtype) == ("bf16", "fp32")


def test_flags_of_torchtitan_override_its_file(tmp_path):
    line = "srun torchrun --nnodes 4 --nproc_per_node 8 -m torchtitan.train --job.config_file titan.toml"
    files = write(
        tmp_path, titan__toml=TITAN, job__sh=f"{line} --training.seq_len 4096 --training.local_batch_size=2\n"
    )
    scenario = made(files[1:])
    assert scenario.specification.model.seq_length == 4096
    assert scenario.specification.training.global_batch_size == 64
    assert scenario.derived.gpus == 32


DS = {
    "train_batch_size": "auto",
    "train_micro_batch_size_per_gpu": "auto",
    "gradient_accumulation_steps": "auto",
    "bf16": {"enabled": "auto"},
    "zero_optimization": {"stage": 2, "overlap_comm": True, "reduce_bucket_size": 200000000},
}
ARGUMENTS = {
    "output_dir": "out",
    "per_device_train_batch_size": 2,
    "gradient_accumulation_steps": 4,
    "num_train_epochs": 3,
    "bf16": True,
    "gradient_checkpointing": True,
    "deepspeed": "ds_config.json",
}


def test_the_trainer_resolves_auto_of_deepspeed(tmp_path):
    config = json.dumps(MODELS["llama2_7b"][0])
    files = write(tmp_path, config__json=config, arguments__json=json.dumps(ARGUMENTS), ds_config__json=json.dumps(DS))
    one = imported(files[:2], Options(nodes=2, dataset_samples=10_000), "x")
    training, data = one.scenario.specification.training, one.scenario.specification.parallelism.data
    assert (training.micro_batch_size, training.global_batch_size) == (2, 128)
    assert (training.precision, training.recompute, training.samples) == ("bf16", "full", 30_000)
    assert (data.method, data.stage, data.overlap) == ("zero", 2, True)
    assert data.bucket == 200_000_000 * 2
    # given as a further file, it says the same
    assert imported(files, Options(nodes=2, dataset_samples=10_000), "x").scenario.specification == (
        one.scenario.specification
    )


def test_the_line_of_deepspeed(tmp_path):
    line = "deepspeed --num_nodes=2 --num_gpus 4 train.py --deepspeed ds_config.json --per_device_train_batch_size 2"
    config = json.dumps(MODELS["gpt2"][0])
    files = write(
        tmp_path, run__sh=f"{line} --max_steps 50 --bf16\n", config__json=config, ds_config__json=json.dumps(DS)
    )
    scenario = made(files[:2])
    assert (scenario.derived.gpus, scenario.derived.ranks) == (8, 8)
    assert scenario.specification.training.samples == 50 * 16


ACCELERATE = """\
compute_environment: LOCAL_MACHINE
distributed_type: FSDP
fsdp_config: {fsdp_sharding_strategy: HYBRID_SHARD, fsdp_backward_prefetch: BACKWARD_PRE, fsdp_offload_params: false,
  fsdp_auto_wrap_policy: TRANSFORMER_BASED_WRAP, fsdp_activation_checkpointing: true}
mixed_precision: bf16
num_machines: 4
num_processes: 32
"""


def test_accelerate(tmp_path):
    files = write(tmp_path, a__yaml=ACCELERATE, config__json=json.dumps(MODELS["mistral_7b"][0]))
    scenario = made(files, "training.global_batch_size=64", "training.micro_batch_size=1")
    data = scenario.specification.parallelism.data
    assert (data.method, data.hybrid, data.prefetch) == ("fsdp", 8, 1)
    assert scenario.specification.training.recompute == "full"
    assert scenario.derived.gpus == 32


@pytest.mark.parametrize(
    ("kind", "machines", "processes", "described"),
    [
        ("MULTI_GPU", 2, 4, "tp 1 x pp 1 x dp 4"),
        ("MULTI_GPU", 1, 2, "tp 1 x pp 1 x dp 2"),
        ("NO", 1, 8, "tp 1 x pp 1 x dp 1"),
    ],
)
def test_parts_of_nodes(kind, machines, processes, described, tmp_path):
    text = f"distributed_type: '{kind}'\nnum_machines: {machines}\nnum_processes: {processes}\nmixed_precision: 'no'\n"
    scenario = made(write(tmp_path, a__yaml=text, config__json=json.dumps(MODELS["gpt2"][0])), cluster="dgx_a100_80gb")
    assert scenario.derived.described == described
    nodes = {scenario.cluster().node_of(gpu) for gpu in scenario.derived.devices}
    assert len(nodes) == machines


SBATCH = """\
#!/bin/bash
#SBATCH -N 4
#SBATCH --gres=gpu:h100:8
#SBATCH --job-name=x
srun torchrun --nnodes $SLURM_NNODES --nproc_per_node 8 train.py --per_device_train_batch_size 4 --fp16 yes
"""


def test_headers_of_sbatch(tmp_path):
    one = imported(write(tmp_path, job__sbatch=SBATCH, config__json=json.dumps(MODELS["gpt2"][0])), Options(), "x")
    assert one.scenario.derived.gpus == 32
    assert one.scenario.specification.training.precision == "fp16"
    assert one.remarks[0].endswith("--nnodes is $SLURM_NNODES, which the script does not set")


def test_an_order_of_torch(tmp_path):
    files = write(tmp_path, config__json=json.dumps(MODELS["gpt2"][0]), o__csv="0F0,0F1,0B0,0B1\n1F0,1B0,1F1,1B1\n")
    (tmp_path / "sub").mkdir()
    one = imported(files, Options(nodes=1), "x", ["training.precision=bf16"], tmp_path / "sub")
    assert "schedule: ../o.csv" in one.text
    (tmp_path / "sub" / "x.yaml").write_text(one.text)
    scenario = Scenario.load(tmp_path / "sub" / "x.yaml")
    assert scenario.derived.described == "tp 1 x pp 2 x dp 4"
    assert scenario.derived.micro_batches == 2
    assert scenario.run().summary()["step_time_s"] > 0


TOPOLOGY = "\n".join(
    [
        "\tGPU0\tGPU1\tNIC0\tCPU Affinity\tNUMA Affinity\tGPU NUMA ID",
        "GPU0\t X \tNV4\tPIX\t0-15\t0\tN/A",
        "GPU1\tNV4\t X \tPIX\t0-15\t0\tN/A",
        "NIC0\tPIX\tPIX\t X ",
        "",
        "Legend:",
        "",
        "  X    = Self",
        "",
    ]
)


def test_a_server_and_a_model(tmp_path):
    files = write(tmp_path, topo__txt=TOPOLOGY, config__json=json.dumps(MODELS["gpt2"][0]))
    scenario = made(files, nodes=3, accelerator="a100_80gb", nic="ib_hdr")
    assert scenario.derived.gpus == 6
    assert scenario.cluster().accelerator(scenario.cluster().gpus[0]).name.startswith("a100")


def test_the_command_writes_and_tells(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    write(tmp_path, run__sh=LLAMA3)
    assert run(["import", "run.sh", "-o", "llama.yaml"]) == 0
    told = capsys.readouterr().out
    assert "model: 8,030,261,248 parameters" in told
    assert "assumed: cluster.preset" in told
    assert run(["check", "llama.yaml"]) == 0
    assert run(["import", "run.sh"]) == 0
    assert "num_layers: 32   # run.sh:1 --num-layers" in capsys.readouterr().out


@pytest.mark.parametrize("nodes", [1, 4])
def test_a_configuration_runs_directly(nodes, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    write(tmp_path, config__json=json.dumps(MODELS["gpt2"][0]))
    assert run(["run", "config.json", "--cluster", "dgx_h100", "--nodes", str(nodes), "--json"]) == 0
    result = json.loads(capsys.readouterr().out)
    assert result["simulation"]["ranks"] == 8 * nodes
    assert run(["run", "config.json"]) == 2
    assert "clustersim run config.json --cluster dgx_h100 --nodes 4" in capsys.readouterr().err


@pytest.mark.exhaustive
def test_measured_collectives_are_fitted_beside_the_scenario(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    ranks = [
        f"#  Rank  {i} Group  0 Pid  4112{i} on     node-a device  {i} [0000:0{i}:00] NVIDIA A100-SXM4-80GB"
        for i in range(8)
    ]
    sizes = [(2**power, 20 + 2**power / 1.3e5) for power in (12, 20, 28)]
    rows = [f"{n:12}  {n // 4:12}     float     sum      -1  {us:7.2f}   1.0   1.0      0" for n, us in sizes]
    header = "#       size         count      type   redop    root     time   algbw   busbw #wrong"
    text = "\n".join(["# nThread 1 nGpus 1 minBytes 4096", *ranks, "#", header, *rows, "# Avg bus bandwidth    : 1"])
    files = write(tmp_path, perf__txt=text + "\n", config__json=json.dumps(MODELS["gpt2"][0]))
    given = ["--cluster", "dgx_a100_80gb", "--nodes", "1", "--set", "training.precision=bf16"]
    assert run(["import", *files, *given, "-o", "x.yaml"]) == 0
    assert "wrote x-network.yaml" in capsys.readouterr().out
    scenario = Scenario.load("x.yaml")
    assert scenario.specification.network.transport.endswith("x-network.yaml")
    assert scenario.run().summary()["step_time_s"] > 0
    assert run(["import", *files, *given]) == 2
    assert "give -o FILE" in capsys.readouterr().err


@pytest.mark.parametrize("given", [False, True])
def test_the_configuration_that_a_flag_names_is_read(given, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    zero = json.dumps({"zero_optimization": {"stage": 2}, "bf16": {"enabled": True}, "train_batch_size": 32})
    line = "deepspeed --num_nodes=2 --num_gpus 8 train.py --deepspeed ds.json --other 1"
    write(tmp_path, run__sh=line, ds__json=zero, config__json=json.dumps(MODELS["gpt2"][0]))
    assert run(["import", "run.sh", "config.json", *(["ds.json"] if given else []), "-o", "x.yaml"]) == 0
    told = capsys.readouterr().out
    assert "not read: run.sh: --other\n" in told
    assert "stage: 2" in Path("x.yaml").read_text()
    assert "software: huggingface_deepspeed" in Path("x.yaml").read_text()
