"""A run as arguments of Megatron-LM's ``pretrain_gpt.py``, by the rules of its ``validate_args``.

Arguments are those of Megatron-LM core_v0.15.3 (megatron/training/arguments.py).
"""

from __future__ import annotations

import shlex
from collections.abc import Iterator

from scenarios.exporting._launch import PLAIN_RANK_ORDERS, Launch, transformer
from workloads.specification import TransformerSpecification

PROGRAM = "Megatron-LM's pretrain_gpt.py"

ACTIVATIONS = {"gelu": "", "swiglu": "--swiglu", "squared_relu": "--squared-relu", "gelu_new": "--openai-gelu"}

FIXED = {
    "block": "serial",
    "norm_placement": "before",
    "head": "causal_lm",
    "head_bias": False,
    "embedding_norm": False,
    "type_vocab_size": 0,
    "norm_bias": True,
}
"""What its transformer has, and no argument changes."""

DIVISORS = (128, 64, 32, 16, 8, 4, 2, 1)
"""Of the vocabulary: ``--make-vocab-size-divisible-by`` is the first that leaves its size as it is."""

AXES = ("tp", "pp", "dp", "cp", "ep")
"""Parallelisms that it has."""

CONTEXT = {"all_gather": "all_gather", "ulysses": "a2a"}
"""``--cp-comm-type`` by the method of context parallelism; others pass keys and values around, p2p."""

EXPERTS = {
    "moe_router_topk": "--moe-router-topk",
    "moe_ffn_hidden_size": "--moe-ffn-hidden-size",
    "moe_shared_expert_intermediate_size": "--moe-shared-expert-intermediate-size",
}
"""Arguments of a mixture of experts by the key of the model."""

PLACEHOLDERS = ("--mock-data", "--lr 1.0e-4", "--min-lr 1.0e-5")
"""What a run needs and a scenario does not have."""


def arguments(run: Launch) -> list[str]:
    """Return the arguments, a flag with its value each. Raises `ScenarioError` for what Megatron-LM does not have."""
    model = transformer(run, PROGRAM)
    return [
        *_model(run, model),
        *_vocabulary(run, model),
        *_training(run),
        *_parallelism(run, model),
        *_data(run, model),
        *PLACEHOLDERS,
    ]


def notes(run: Launch) -> tuple[str, ...]:
    """Return what the arguments do not say as the scenario does."""
    made = ["data, tokenizer and learning rate are placeholders: --mock-data, NullTokenizer, --lr"]
    if not run.samples:
        made.append("the scenario gives no tokens or samples: --train-iters 100")
    vocabulary = transformer(run, PROGRAM).vocab_size
    if padding := -vocabulary % run.tp:
        made.append(f"Megatron-LM pads the vocabulary of {vocabulary} to {vocabulary + padding}, by tp {run.tp}")
    return tuple(made)


def environment(run: Launch) -> list[str]:
    """Return the variables that Megatron-LM wants: tensor parallelism wants one connection, FSDP more."""
    several = run.tp > 1 or run.scenario.derived.degree("cp") > 1
    return ["export CUDA_DEVICE_MAX_CONNECTIONS=1"] if several and not _shards(run) else []


def _shards(run: Launch) -> bool:
    """Return whether parameters or gradients are sharded, which Megatron-LM's FSDP does."""
    return run.data.method == "fsdp" or getattr(run.data, "stage", 0) in (2, 3)


def _model(run: Launch, model: TransformerSpecification) -> Iterator[str]:
    for key, value in FIXED.items():
        if getattr(model, key) != value and not (key == "norm_bias" and model.normalization == "rmsnorm"):
            raise run.refuse(f"model.{key}", PROGRAM, f"{value}")
    if model.activation not in ACTIVATIONS:
        raise run.refuse("model.activation", PROGRAM, ", ".join(ACTIVATIONS))
    if model.position_embedding_type == "alibi":
        raise run.refuse("model.position_embedding_type", PROGRAM, "learned_absolute, rope, none")
    if model.qk_norm == "all_heads":
        raise run.refuse("model.qk_norm", PROGRAM, "none, per_head")
    if model.attention not in ("flash", "unfused"):
        raise run.refuse("model.attention", PROGRAM, "flash, unfused")
    yield f"--num-layers {model.num_layers}"
    yield f"--hidden-size {model.hidden_size}"
    yield f"--ffn-hidden-size {model.ffn_hidden_size or 4 * model.hidden_size}"
    yield f"--num-attention-heads {model.num_attention_heads}"
    if model.head_dim is not None:
        yield f"--kv-channels {model.head_dim}"
    if model.num_key_value_heads not in (None, model.num_attention_heads):
        yield f"--group-query-attention --num-query-groups {model.num_key_value_heads}"
    yield f"--seq-length {model.seq_length}"
    yield f"--max-position-embeddings {model.position_rows or model.seq_length}"
    yield f"--position-embedding-type {model.position_embedding_type}"
    yield f"--normalization {'RMSNorm' if model.normalization == 'rmsnorm' else 'LayerNorm'}"
    yield f"--attention-backend {model.attention}"
    yield f"--hidden-dropout {model.dropout:g} --attention-dropout {model.dropout:g}"
    flags = {
        ACTIVATIONS[model.activation]: True,
        "--untie-embeddings-and-output-weights": not model.tie_embeddings,
        "--disable-bias-linear": not model.add_bias_linear,
        "--add-qkv-bias": model.add_qkv_bias and not model.add_bias_linear,
        "--qk-layernorm": model.qk_norm == "per_head",
    }
    yield from (flag for flag, given in flags.items() if flag and given)
    yield from _experts(run, model)
    if model.attention_window:
        yield f"--window-size {model.attention_window - 1},0"


def _experts(run: Launch, model: TransformerSpecification) -> Iterator[str]:
    """Yield the mixture of experts, if the model has one."""
    if getattr(model, "kv_lora_rank", None):
        raise run.error("model.kv_lora_rank", "latent attention is not written for Megatron-LM")
    experts = getattr(model, "num_experts", None)
    if not experts:
        return
    yield f"--num-experts {experts}"
    yield from (f"{flag} {value}" for key, flag in EXPERTS.items() if (value := getattr(model, key, None)))
    frequency = getattr(model, "moe_layer_freq", 1)
    if dense := getattr(model, "first_k_dense_replace", 0):
        frequency = [0] * dense + [1] * (model.num_layers - dense)
    if frequency != 1:
        yield f"--moe-layer-freq {frequency if isinstance(frequency, int) else shlex.quote(str(frequency))}"


def _vocabulary(run: Launch, model: TransformerSpecification) -> Iterator[str]:
    """Yield a tokenizer whose vocabulary, the end of a document included, is padded to the model's."""
    divisor = next((one for one in DIVISORS if model.vocab_size % (one * run.tp) == 0), 1)
    yield f"--tokenizer-type NullTokenizer --vocab-size {model.vocab_size - 1}"
    yield f"--make-vocab-size-divisible-by {divisor}"


def _training(run: Launch) -> Iterator[str]:
    training = run.training
    yield f"--micro-batch-size {run.micro_batch}"
    yield f"--global-batch-size {run.batch}"
    yield f"--train-samples {run.samples}" if run.samples else "--train-iters 100"
    if run.precision != "fp32":
        yield f"--{run.precision}"
    if run.eight_bits:
        yield "--fp8-format hybrid"
    if run.precision != "fp32":
        if run.gradient_dtype == "fp32":
            yield "--accumulate-allreduce-grads-in-fp32"
        elif run.gradient_dtype != run.precision:
            raise run.refuse("training.gradient_dtype", PROGRAM, f"fp32, {run.precision}")
        elif run.precision == "bf16":
            yield "--grad-reduce-in-bf16"
    if training.optimizer not in ("adam", "momentum"):
        raise run.refuse("training.optimizer", PROGRAM, "adam, momentum")
    yield f"--optimizer {'adam' if training.optimizer == 'adam' else 'sgd'}"
    if training.recompute == "full":
        yield "--recompute-granularity full --recompute-method uniform --recompute-num-layers 1"
    elif training.recompute == "selective":
        yield "--recompute-granularity selective"
    elif training.recompute != "none":
        raise run.refuse("training.recompute", PROGRAM, "none, selective, full")


def _parallelism(run: Launch, model: TransformerSpecification) -> Iterator[str]:
    parallelism = run.scenario.specification.parallelism
    if run.rank_order not in PLAIN_RANK_ORDERS:
        if run.rank_order != ["tp", "pp", "dp"]:
            raise run.refuse("parallelism.rank_order", PROGRAM, "[tp, dp, pp], [tp, pp, dp]")
        yield "--use-tp-pp-dp-mapping"
    yield f"--tensor-model-parallel-size {run.tp}"
    yield f"--pipeline-model-parallel-size {run.pp}"
    yield from _context_and_experts(run)
    if parallelism.by_columns:
        raise run.refuse("parallelism.tp_split", PROGRAM, "column_row")
    if parallelism.sequence_parallel:
        yield "--sequence-parallel"
    if parallelism.tp_overlap:
        if not parallelism.sequence_parallel:
            raise run.error("parallelism.tp_overlap", "Megatron-LM wants sequence_parallel: true with it")
        yield "--tp-comm-overlap"
    if run.pp > 1:
        yield from _stages(run, model)


def _context_and_experts(run: Launch) -> Iterator[str]:
    """Yield the degrees of context and expert parallelism, if the scenario has them."""
    parallelism = run.scenario.specification.parallelism
    if (degree := run.degree("cp")) > 1:
        method = getattr(parallelism, "cp_method", None)
        yield f"--context-parallel-size {degree} --cp-comm-type {CONTEXT.get(str(method), 'p2p')}"
    if (degree := getattr(parallelism, "ep", 1)) > 1:
        yield f"--expert-model-parallel-size {degree}"
    if (experts := getattr(parallelism, "expert_tp", None)) is not None:
        yield f"--expert-tensor-parallel-size {experts}"


def _stages(run: Launch, model: TransformerSpecification) -> Iterator[str]:
    """Yield the pipeline's order and layers. Megatron-LM wants layers that the stages divide."""
    parallelism = run.scenario.specification.parallelism
    if parallelism.order_name not in ("one_f_one_b", "interleaved"):
        raise run.refuse("parallelism.schedule", PROGRAM, "1f1b, interleaved")
    virtual = parallelism.stages_per_rank
    layers = model.num_layers + (2 if parallelism.layout == "embedding_as_layer" else 0)
    if isinstance(parallelism.layout, list):
        yield from _uneven(run, parallelism.layout, virtual)
    elif layers % (run.pp * virtual):
        shown = f"{run.pp} pipeline ranks" + (f" of {virtual} virtual stages" if virtual > 1 else "")
        raise run.error("parallelism.pp", f"Megatron-LM wants the {layers} layers divisible by {shown}")
    elif parallelism.layout == "embedding_as_layer":
        yield "--account-for-embedding-in-pipeline-split --account-for-loss-in-pipeline-split"
    if virtual > 1:
        yield f"--num-virtual-stages-per-pipeline-rank {virtual}"


def _uneven(run: Launch, split: list[int], virtual: int) -> Iterator[str]:
    """Yield the layers of the first and the last stage, where the others are equal."""
    if virtual > 1 or len(set(split[1:-1])) > 1:
        known = "layouts in which only the first and the last stage differ, without virtual stages"
        raise run.refuse("parallelism.layout", PROGRAM, known)
    yield f"--decoder-first-pipeline-num-layers {split[0]} --decoder-last-pipeline-num-layers {split[-1]}"


def _data(run: Launch, model: TransformerSpecification) -> Iterator[str]:
    """Yield how replicas exchange gradients: all-reduce, distributed optimizer, or FSDP."""
    data, stage = run.data, getattr(run.data, "stage", None)
    if data.method not in ("ddp", "zero", "fsdp"):
        raise run.refuse("parallelism.data.method", PROGRAM, "ddp, zero, fsdp")
    if _shards(run):
        yield from _fully_sharded(run, model, stage)
        return
    if stage == 1:
        yield "--use-distributed-optimizer"
        hybrid = getattr(data, "hybrid", None)
        if hybrid and hybrid < run.dp:
            yield f"--num-distributed-optimizer-instances {run.dp // hybrid}"
    if getattr(data, "overlaps", getattr(data, "overlap", False)):
        yield "--overlap-grad-reduce" + (" --overlap-param-gather" if stage == 1 else "")
    if run.bucket_elements:
        yield f"--ddp-bucket-size {run.bucket_elements}"


def _fully_sharded(run: Launch, model: TransformerSpecification, stage: int | None) -> Iterator[str]:
    """Yield FSDP: torch's for ``fsdp``, Megatron's own for ZeRO 2 and 3; with the rules of ``validate_args``."""
    rules = {
        "parallelism.pp": (run.pp == 1, "1, without a pipeline"),
        "training.precision": (run.precision != "fp16", "bf16, fp32"),
    }
    if stage is None:
        rules["model.tie_embeddings"] = (not model.tie_embeddings, "false")
    for key, (kept, known) in rules.items():
        if not kept:
            raise run.refuse(key, "Megatron-LM with FSDP", known)
    yield "--no-gradient-accumulation-fusion"
    if stage is None:
        yield "--use-torch-fsdp2 --ckpt-format torch_dist"
        return
    strategy = "optim_grads" if stage == 2 else "optim_grads_params"
    yield f"--use-megatron-fsdp --data-parallel-sharding-strategy {strategy} --ckpt-format fsdp_dtensor"
