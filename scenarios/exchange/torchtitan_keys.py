"""Settings of torchtitan that are one key of a scenario each, and its models and orders, for import and export.

Settings are those of torchtitan 0.2.2 (torchtitan/config/job_config.py), as ``section.name``.
"""

from __future__ import annotations

from clustersim.scenarios.exchange.program_keys import Flag, Key, Whole, Word

MODELS = {
    "llama3": {"8B": "llama3_8b", "70B": "llama3_70b", "405B": "llama3_405b"},
    "llama4": {"17bx16e": "llama4_scout", "17bx128e": "llama4_maverick"},
    "qwen3": {
        "0.6B": "qwen3_0_6b",
        "1.7B": "qwen3_1_7b",
        "4B": "qwen3_4b",
        "8B": "qwen3_8b",
        "14B": "qwen3_14b",
        "32B": "qwen3_32b",
        "30B-A3B": "qwen3_30b_a3b",
        "235B-A22B": "qwen3_235b_a22b",
    },
    "deepseek_v3": {"16B": "deepseek_v2_lite", "236B": "deepseek_v2", "671B": "deepseek_v3"},
    "gpt_oss": {"20b": "gpt_oss_20b", "120b": "gpt_oss_120b"},
}
"""Presets by model and flavour (torchtitan/models/*/__init__.py)."""

FLOAT8, MX = "quantize.linear.float8", "quantize.linear.mx"
"""Converters of the model for products in 8 bits (torchtitan/components/quantization)."""

SINGLE = ("1f1b", "gpipe")
"""Orders with one stage for each pipeline rank; the others have 2 by default (pipeline_parallel.py)."""

V_SHAPED = ("zero_bubble_v", "dual_pipe_v")
"""Orders with two stages for each pipeline rank, always."""

LOCAL_BATCH = Whole("training.local_batch_size", "run.replica_batch_size")
BATCH = Whole("training.global_batch_size", "training.global_batch_size")
LENGTH = Whole("training.seq_len", "model.seq_length")
STEPS = Whole("training.steps", "run.iterations")
RECOMPUTE = Word(
    "activation_checkpoint.mode", "training.recompute", {mode: mode for mode in ("none", "selective", "full")}
)
COMPILED = Flag("compile.enable", "run.compiled")

TENSOR = Whole("parallelism.tensor_parallel_degree", "parallelism.tp")
PIPELINE = Whole("parallelism.pipeline_parallel_degree", "parallelism.pp")
CONTEXT = Whole("parallelism.context_parallel_degree", "parallelism.cp")
EXPERT = Whole("parallelism.expert_parallel_degree", "parallelism.ep")
EXPERT_TENSOR = Whole("parallelism.expert_tensor_parallel_degree", "parallelism.expert_tp")
TENSOR_OVERLAP = Flag("parallelism.enable_async_tensor_parallel", "parallelism.tp_overlap")
CONTEXT_METHOD = Word(
    "parallelism.context_parallel_rotate_method",
    "parallelism.cp_method",
    {"allgather": "all_gather", "alltoall": "ring"},
)
REPLICATED = Whole("parallelism.data_parallel_replicate_degree", "run.replicated")
SHARDED = Whole("parallelism.data_parallel_shard_degree", "run.dp")
"""Ranks of a group of shards, all that are left for -1; with `REPLICATED` it gives the replicas."""
RESHARD = Word("parallelism.fsdp_reshard_after_forward", "parallelism.data.reshard", {"always": True, "never": False})
"""By default parameters stay gathered with a pipeline (models/llama3/infra/parallelize.py)."""

MICRO_BATCH = Whole("parallelism.pipeline_parallel_microbatch_size", "training.micro_batch_size")
LAYERS_PER_STAGE = Whole("parallelism.pipeline_parallel_layers_per_stage", "run.layers_per_stage")
SCHEDULE = Word(
    "parallelism.pipeline_parallel_schedule",
    "parallelism.schedule",
    {
        "1F1B": "1f1b",
        "GPipe": "gpipe",
        "Interleaved1F1B": "interleaved",
        "InterleavedZeroBubble": "interleaved_zero_bubble",
        "ZBVZeroBubble": "zero_bubble_v",
        "DualPipeV": "dual_pipe_v",
        "LoopedBFS": "looped_bfs",
    },
)
"""Orders by torch's names, which it reads in any case of letters (torch, get_schedule_class)."""

KEYS: tuple[Key, ...] = (
    *(LOCAL_BATCH, BATCH, LENGTH, STEPS, RECOMPUTE, COMPILED, TENSOR, PIPELINE, CONTEXT, EXPERT, EXPERT_TENSOR),
    *(TENSOR_OVERLAP, CONTEXT_METHOD, REPLICATED, SHARDED, RESHARD, MICRO_BATCH, LAYERS_PER_STAGE, SCHEDULE),
)
"""All of them."""
