"""A launch script for Megatron-LM: torchrun, ``pretrain_gpt.py`` and its arguments, as core_v0.15.3 has them.

Arguments are those of Megatron-LM core_v0.15.3 (megatron/training/arguments.py).
"""

from __future__ import annotations

from collections.abc import Iterator

from clustersim.scenarios.exchange import megatron_keys as keys
from clustersim.scenarios.exchange.export import (
    PLAIN_RANK_ORDERS,
    Export,
    Launch,
    command,
    launch,
    script,
    torchrun,
    transformer,
)
from clustersim.scenarios.exchange.exporting._megatron_experts import LOSS, experts, latent
from clustersim.scenarios.exchange.program_keys import argument
from clustersim.scenarios.scenario import Scenario
from clustersim.workloads.architectures.attention_keys import LatentKeys, windows_of
from clustersim.workloads.architectures.block_keys import ExpertKeys
from clustersim.workloads.architectures.model_keys import Named
from clustersim.workloads.architectures.transformer_keys import TransformerSpecification
from clustersim.workloads.parallelism.expert import Expert

PROGRAM = "Megatron-LM's pretrain_gpt.py"

ACTIVATIONS = ("gelu", *(key.means for key in keys.ACTIVATIONS if key.written))

WRITTEN = {
    *("kind", "num_layers", "hidden_size", "num_attention_heads", "head_dim", "num_key_value_heads", "ffn_hidden_size"),
    *("seq_length", "vocab_size", "tie_embeddings", "activation", "attention", "attention_window", "normalization"),
    *("qk_norm", "position_embedding_type", "position_rows", "relative_attention_num_buckets", "add_bias_linear"),
    *("add_qkv_bias", "dropout", "num_nextn_predict_layers", "router_load"),
    *Named.model_fields,
    *LatentKeys.model_fields,
    *(key for key in ExpertKeys.model_fields if key != "router_load"),
}
"""Keys of the model that arguments, or notes, tell. Any other must have its default."""

SAID = {
    *("tp", "pp", "dp", "cp", "cp_method", "cp_layout", "data", "rank_order", "placement", "sequence_parallel"),
    *("tp_overlap", "tp_split", "schedule", "virtual_stages", "layout", *Expert.model_fields),
}
"""Keys of the parallelism that arguments tell, or that are refused."""

DIVISORS = (128, 64, 32, 16, 8, 4, 2, 1)
"""Of the vocabulary: ``--make-vocab-size-divisible-by`` is the first that leaves its size as it is."""

AXES = ("tp", "pp", "dp", "cp", "ep")
"""Parallelisms that it has."""

DATA = ("stage", "overlap", "bucket", "hybrid")
"""Keys of the exchange of gradients that arguments tell."""

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
    model = transformer(run, PROGRAM)
    made = ["data, tokenizer and learning rate are placeholders: --mock-data, NullTokenizer, --lr"]
    if not run.samples:
        made.append("the scenario gives no tokens or samples: --train-iters 100")
    vocabulary = model.vocab_size
    if padding := -vocabulary % run.tp:
        made.append(f"Megatron-LM pads the vocabulary of {vocabulary} to {vocabulary + padding}, by tp {run.tp}")
    if model.router_load != "balanced":
        made.append("model.router_load is not said: the data decide it")
    if model.moe_aux_loss and model.num_experts:
        made.append(f"the weight of the loss for equal loads is a placeholder: --moe-aux-loss-coeff {LOSS}")
    overlap = run.scenario.specification.parallelism.tp_overlap
    if overlap not in (False, True, 0.0, 1.0):
        made.append(f"parallelism.tp_overlap: {overlap} is written as --tp-comm-overlap, without the fraction")
    return (*made, *run.unsaid(SAID, DATA))


def environment(run: Launch) -> list[str]:
    """Return the variables that Megatron-LM wants: tensor parallelism wants one connection, FSDP more."""
    several = run.tp > 1 or run.scenario.derived.degree("cp") > 1
    return ["export CUDA_DEVICE_MAX_CONNECTIONS=1"] if several and not _shards(run) else []


def _shards(run: Launch) -> bool:
    """Return whether parameters or gradients are sharded, which Megatron-LM's FSDP does."""
    return run.data.method == "fsdp" or getattr(run.data, "stage", 0) in (2, 3)


def _model(run: Launch, model: TransformerSpecification) -> Iterator[str]:
    for key, field in TransformerSpecification.model_fields.items():
        value = getattr(model, key)
        usual = value in (field.default, "causal") or (key == "norm_bias" and model.normalization == "rmsnorm")
        if key not in WRITTEN and not usual:
            raise run.error(f"model.{key}", f"{PROGRAM} has no argument for it here")
    if model.activation not in ACTIVATIONS:
        raise run.refuse("model.activation", PROGRAM, ", ".join(ACTIVATIONS))
    if model.position_embedding_type not in keys.POSITIONS.words:
        raise run.refuse("model.position_embedding_type", PROGRAM, ", ".join(keys.POSITIONS.words))
    if model.qk_norm == "all_heads":
        raise run.refuse("model.qk_norm", PROGRAM, "none, per_head")
    if model.attention not in ("flash", "unfused"):
        raise run.refuse("model.attention", PROGRAM, "flash, unfused")
    yield from argument(keys.LAYERS, model.num_layers)
    yield from argument(keys.HIDDEN, model.hidden_size)
    yield f"--ffn-hidden-size {model.ffn_hidden_size or 4 * model.hidden_size}"
    yield from argument(keys.HEADS, model.num_attention_heads)
    yield from argument(keys.CHANNELS, model.head_dim)
    if model.num_key_value_heads not in (None, model.num_attention_heads):
        yield f"--group-query-attention --num-query-groups {model.num_key_value_heads}"
    yield from argument(keys.LENGTH, model.seq_length)
    yield f"--max-position-embeddings {model.position_rows or model.seq_length}"
    yield from argument(keys.POSITIONS, model.position_embedding_type)
    yield from argument(keys.NORMALIZATION, model.normalization)
    yield from argument(keys.BACKEND, model.attention)
    yield f"--hidden-dropout {model.dropout:g} --attention-dropout {model.dropout:g}"
    for activation in keys.ACTIVATIONS:
        yield from argument(activation, model.activation)
    yield from argument(keys.UNTIED, model.tie_embeddings)
    yield from argument(keys.UNBIASED, model.add_bias_linear)
    yield from argument(keys.QKV_BIAS, model.add_qkv_bias and not model.add_bias_linear)
    yield from argument(keys.QK_NORM, model.qk_norm)
    yield from latent(run, model)
    yield from experts(run, model)
    yield from argument(keys.NEXT_TOKENS, model.num_nextn_predict_layers or None)
    yield from _windows(run, model)


def _windows(run: Launch, model: TransformerSpecification) -> Iterator[str]:
    """Yield the window of attention, and which layers have it (1) or see all positions (0)."""
    windows = windows_of(model.attention_window)
    sizes = {window.size for window in windows} - {0}
    if not sizes:
        return
    if len(sizes) > 1 or any(window.chunked for window in windows):
        raise run.error("model.attention_window", f"{PROGRAM} has one window for its layers, and no chunks")
    yield f"--window-size {sizes.pop() - 1},0"
    if len(windows) > 1:
        skipped = [int(window.size > 0) for window in windows]
        layers = [skipped[number % len(skipped)] for number in range(model.num_layers)]
        plain = skipped == [1] * (len(skipped) - 1) + [0]
        yield f"--window-attn-skip-freq {len(skipped) if plain else str(layers).replace(' ', '')}"


def _vocabulary(run: Launch, model: TransformerSpecification) -> Iterator[str]:
    """Yield a tokenizer whose vocabulary, the end of a document included, is padded to the model's."""
    divisor = next((one for one in DIVISORS if model.vocab_size % (one * run.tp) == 0), 1)
    yield f"--tokenizer-type NullTokenizer --vocab-size {model.vocab_size - 1}"
    yield f"--make-vocab-size-divisible-by {divisor}"


def _training(run: Launch) -> Iterator[str]:
    training = run.training
    yield from argument(keys.MICRO_BATCH, run.micro_batch)
    yield from argument(keys.BATCH, run.batch)
    yield f"--train-samples {run.samples}" if run.samples else "--train-iters 100"
    if run.precision != "fp32":
        yield f"--{run.precision}"
    yield from _few_bits(run)
    if run.precision != "fp32":
        if run.gradient_dtype == "fp32":
            yield "--accumulate-allreduce-grads-in-fp32"
        elif run.gradient_dtype != run.precision:
            raise run.refuse("training.gradient_dtype", PROGRAM, f"fp32, {run.precision}")
        elif run.precision == "bf16":
            yield "--grad-reduce-in-bf16"
    optimizers = keys.OPTIMIZER.words.values()
    if training.optimizer not in optimizers:
        raise run.refuse("training.optimizer", PROGRAM, ", ".join(optimizers))
    yield from argument(keys.OPTIMIZER, training.optimizer)
    yield from _recomputation(run)


def _recomputation(run: Launch) -> Iterator[str]:
    options = run.training.recompute_options
    if options.method in ("full", "uniform", "block"):
        method = "block" if options.method == "block" else "uniform"
        layers = options.num_layers or 1
        yield f"--recompute-granularity full --recompute-method {method} --recompute-num-layers {layers}"
    elif options.method == "selective":
        yield "--recompute-granularity selective"
    elif options.method == "operators" and options.operators:
        flags = {name: flag for flag, name in keys.MODULES.items()}
        modules = " ".join(flags[name] for name in options.operators)
        yield f"--recompute-granularity selective --recompute-modules {modules}"
    elif options.method != "none":
        raise run.refuse("training.recompute", PROGRAM, "none, selective, full, uniform, block, operators by name")
    yield from _offload(run)


def _offload(run: Launch) -> Iterator[str]:
    """Yield the share of the optimizer states on the host; Megatron-LM has gradients and parameters on the GPU."""
    offload = run.training.offload
    if offload is None:
        return
    for key, had in (("gradients", "gpu"), ("parameters", "gpu"), ("delayed_update", False), ("activations", "none")):
        if getattr(offload, key) != had:
            raise run.refuse(f"training.offload.{key}", PROGRAM, str(had).lower())
    if offload.optimizer == "nvme":
        raise run.refuse("training.offload.optimizer", PROGRAM, "gpu, host")
    if offload.optimizer == "host":
        share = argument(keys.HOST_SHARE, offload.optimizer_fraction)
        yield " ".join(argument(keys.ON_HOST, "host") + share)
        yield from argument(keys.HOST_OVERLAP, offload.overlap)


def _few_bits(run: Launch) -> Iterator[str]:
    """Yield the format of products in 8 or 4 bits, how they are scaled, and that of parameters."""
    precision = run.training.precision
    if isinstance(precision, str):
        return
    if precision.matmul == "int8":
        raise run.refuse("training.precision.matmul", PROGRAM, "fp8, fp4")
    recipe = precision.scaling
    form = "e2m1" if precision.matmul == "fp4" else "e4m3" if recipe in ("blockwise", "mxfp8") else "hybrid"
    yield f"--{precision.matmul}-format {form} --{precision.matmul}-recipe {recipe}"
    if precision.parameters == "fp8":
        if getattr(run.data, "stage", 0) == 0 and run.data.method != "fsdp":
            raise run.error("training.precision.parameters", "Megatron-LM wants the distributed optimizer, or FSDP")
        yield "--fp8-param-gather"


def _parallelism(run: Launch, model: TransformerSpecification) -> Iterator[str]:
    parallelism = run.scenario.specification.parallelism
    if run.rank_order not in PLAIN_RANK_ORDERS:
        if run.rank_order != ["tp", "pp", "dp"]:
            raise run.refuse("parallelism.rank_order", PROGRAM, "[tp, dp, pp], [tp, pp, dp]")
        yield "--use-tp-pp-dp-mapping"
    yield from argument(keys.TENSOR, run.tp)
    yield from argument(keys.PIPELINE, run.pp)
    yield from _context(run)
    if parallelism.tp_head != "vocabulary":
        raise run.refuse("parallelism.tp_head", PROGRAM, "vocabulary")
    if parallelism.by_columns:
        raise run.refuse("parallelism.tp_split", PROGRAM, "column_row")
    yield from argument(keys.SEQUENCE, bool(parallelism.sequence_parallel))
    if parallelism.tp_overlap and not parallelism.sequence_parallel:
        raise run.error("parallelism.tp_overlap", "Megatron-LM wants sequence_parallel: true with it")
    yield from argument(keys.TENSOR_OVERLAP, bool(parallelism.tp_overlap))
    if run.pp > 1:
        yield from _stages(run, model)


def _context(run: Launch) -> Iterator[str]:
    """Yield the degree of context parallelism, which divides sequences in zigzag."""
    parallelism = run.scenario.specification.parallelism
    if (degree := run.degree("cp")) == 1:
        return
    if parallelism.cp_layout == "contiguous":
        raise run.refuse("parallelism.cp_layout", PROGRAM, "zigzag")
    method = str(parallelism.cp_method)
    kind = argument(keys.CONTEXT_METHOD, method if method in keys.CONTEXT_METHOD.words.values() else "ring")
    yield " ".join(argument(keys.CONTEXT, degree) + kind)


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
    (strategy,) = argument(keys.STRATEGY, stage)
    yield f"--use-megatron-fsdp {strategy} --ckpt-format fsdp_dtensor"


def megatron(scenario: Scenario) -> Export:
    """Return the script. Raises `ScenarioError` for what Megatron-LM does not have, with its rule."""
    run = launch(scenario, PROGRAM, AXES)
    started = command(f"{torchrun(run)} pretrain_gpt.py", arguments(run))
    text = script(scenario.name, "Megatron-LM core_v0.15.3", [*environment(run), "", started])
    return Export({f"{scenario.name}.sh": text}, notes(run))
