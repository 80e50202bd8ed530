"""Arguments of Megatron-LM and Megatron Bridge: a command line, or their YAML.

Arguments and defaults are those of Megatron-LM core_v0.15.3 (megatron/training/arguments.py).
Argument names are those of argparse, with ``_``. Megatron's own YAML has them in ``language_model`` and
``model_parallel``; Bridge's in ``model``, ``train``, ``ddp``, ``optimizer`` and others.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import ceil
from typing import Any

from scenarios.importing.facts import Facts
from scenarios.importing.formats import deepspeed
from scenarios.importing.source import Source, opened
from scenarios.importing.without_effect import without_effect

SECTIONS = (
    *("arguments", "language_model", "model_parallel", "model", "train", "ddp"),
    *("optimizer", "mixed_precision", "tokenizer", "dataset", "dist", "comm_overlap"),
)
"""Where arguments stand, besides the top of a file."""

KEYS = {"num_layers", "tensor_model_parallel_size", "micro_batch_size"}
"""Arguments of which a file has at least two."""

MODEL = {
    "num_layers": "num_layers",
    "hidden_size": "hidden_size",
    "num_attention_heads": "num_attention_heads",
    "kv_channels": "head_dim",
    "seq_length": "seq_length",
}
"""Keys of the model by argument."""

DEGREES = {
    "tensor_model_parallel_size": "tp",
    "pipeline_model_parallel_size": "pp",
    "context_parallel_size": "cp",
    "expert_model_parallel_size": "ep",
    "expert_tensor_parallel_size": "expert_tp",
}

ACTIVATIONS = {"swiglu": "swiglu", "squared_relu": "squared_relu", "quick_geglu": "geglu", "openai_gelu": "gelu_new"}
"""The activation by the flag that chooses it."""

GPT2_VOCABULARY = 50257
"""Tokens of GPT2BPETokenizer, the default of pretrain_gpt.py."""

STAGES = {"no_shard": 0, "optim": 1, "optim_grads": 2, "optim_grads_params": 3}
"""ZeRO's stage by ``--data-parallel-sharding-strategy`` of Megatron FSDP."""


def recognises(source: Source) -> bool:
    """Return whether *source* has arguments of Megatron-LM or a configuration of Megatron Bridge."""
    if "trainer" in source.data or "model_type" in source.data:
        return False
    return sum(Arguments(source).path(key) is not None for key in KEYS) >= 2


class Arguments:
    """The arguments of a *source*, wherever they stand in it."""

    def __init__(self, source: Source) -> None:
        self.source = source
        self._places: list[tuple[str, ...]] = [()] if not source.script else []
        self._places += [(name,) for name in SECTIONS if isinstance(source.data.get(name), dict)]

    def path(self, key: str) -> tuple[str, ...] | None:
        """Return the path of the argument *key*; None if it is not given."""
        return next(
            ((*place, key) for place in self._places if self.source.document.get((*place, key)) is not None), None
        )

    def whole(self, key: str, least: int = 1) -> int | None:
        """Return the whole number of *key*; None if it is not given."""
        path = self.path(key)
        return None if path is None else self.source.whole(*path, least=least)

    def number(self, key: str) -> float | None:
        """Return the number of *key*; None if it is not given."""
        path = self.path(key)
        return None if path is None else self.source.number(*path)

    def flag(self, key: str) -> bool:
        """Return whether *key* is given and not false."""
        path = self.path(key)
        return path is not None and bool(self.source.flag(*path))

    def word(self, key: str) -> str | None:
        """Return the word of *key*; None if it is not given."""
        path = self.path(key)
        return None if path is None else self.source.word(*path)

    def give(self, facts: Facts, name: str, value: Any, key: str, how: str = "") -> None:
        """Give *value* for *name* to *facts*, at the place of the argument *key*."""
        path = self.path(key) or ()
        facts.give(name, value, self.source, *path, how=how or ("" if path else "Megatron-LM's default"))

    def ignore(self, keys: Sequence[str]) -> None:
        """Note that *keys* have no effect."""
        self.source.without_effect |= {(*place, key) for place in self._places for key in keys}

    def error(self, key: str, message: str) -> Exception:
        """Return an error at the argument *key*."""
        return self.source.error(self.path(key) or (), message)


def read(source: Source, facts: Facts) -> None:
    """Read model, batch, precision and parallelism."""
    arguments = Arguments(source)
    arguments.ignore(without_effect("megatron"))
    facts.give("run.program", "megatron", source, given=False)
    for key, name in DEGREES.items():
        value = arguments.whole(key)
        if name in ("tp", "pp") or (value or 1) > 1:
            arguments.give(facts, f"parallelism.{name}", value, key)
    _model(arguments, facts)
    _vocabulary(arguments, facts)
    _training(arguments, facts)
    _pipeline(arguments, facts)
    _data(arguments, facts)


def _model(arguments: Arguments, facts: Facts) -> None:
    """Read the sizes of the model; other parts have Megatron's defaults."""
    for key, name in MODEL.items():
        arguments.give(facts, f"model.{name}", arguments.whole(key), key)
    arguments.give(facts, "run.positions", arguments.whole("max_position_embeddings"), "max_position_embeddings")
    if experts := arguments.whole("num_experts", 0) or arguments.whole("num_moe_experts", 0):
        key = "num_experts" if arguments.path("num_experts") else "num_moe_experts"
        if experts > 1:
            raise arguments.error(key, "models with experts are not imported from Megatron's arguments yet")
    hidden = arguments.whole("hidden_size")
    activation = next((key for key in ACTIVATIONS if arguments.flag(key)), None)
    gated = arguments.flag("gated_linear_unit")
    if hidden is None:
        return
    ffn = arguments.whole("ffn_hidden_size")
    width = ffn or (int(4 * hidden * 2 / 3 / 64) * 64 if activation == "swiglu" else 4 * hidden)
    arguments.give(
        facts,
        "model.ffn_hidden_size",
        width,
        "ffn_hidden_size" if ffn else activation or "hidden_size",
        "" if ffn else "by default",
    )
    name = ACTIVATIONS[activation] if activation else "swiglu" if gated else "gelu"
    arguments.give(facts, "model.activation", name, activation or "gated_linear_unit")
    groups = arguments.whole("num_query_groups")
    if arguments.flag("group_query_attention") or (groups and not arguments.source.script):
        arguments.give(facts, "model.num_key_value_heads", groups or 1, "num_query_groups")
    elif groups is not None:
        facts.remarks.append("num_query_groups has no effect without --group-query-attention")
    norm = (arguments.word("normalization") or "LayerNorm").lower()
    if norm not in ("layernorm", "rmsnorm"):
        raise arguments.error("normalization", f"{norm} is not simulated; it must be LayerNorm or RMSNorm")
    arguments.give(facts, "model.normalization", norm, "normalization")
    _positions(arguments, facts)
    tied = not arguments.flag("untie_embeddings_and_output_weights")
    if arguments.path("share_embeddings_and_output_weights"):
        tied = arguments.flag("share_embeddings_and_output_weights")
    arguments.give(facts, "model.tie_embeddings", tied, "untie_embeddings_and_output_weights")
    bias = not arguments.flag("disable_bias_linear")
    if arguments.path("add_bias_linear"):
        bias = arguments.flag("add_bias_linear")
    arguments.give(facts, "model.add_bias_linear", bias, "disable_bias_linear")
    if arguments.flag("add_qkv_bias"):
        arguments.give(facts, "model.add_qkv_bias", True, "add_qkv_bias")
    if arguments.flag("qk_layernorm"):
        arguments.give(facts, "model.qk_norm", "per_head", "qk_layernorm")
    dropouts = [arguments.number(key) for key in ("hidden_dropout", "attention_dropout")]
    largest = max(0.1 if value is None else value for value in dropouts)
    arguments.give(facts, "model.dropout", largest, "hidden_dropout", "" if None not in dropouts else "0.1 by default")
    backend = arguments.word("attention_backend")
    arguments.flag("use_flash_attn")
    unfused = backend in ("unfused", "local", "AttnBackend.unfused", "AttnBackend.local")
    arguments.give(facts, "model.attention", "unfused" if unfused else "flash", "attention_backend")


def _positions(arguments: Arguments, facts: Facts) -> None:
    kind = arguments.word("position_embedding_type") or "learned_absolute"
    if arguments.flag("use_rotary_position_embeddings"):
        kind = "rope"
    if kind not in ("learned_absolute", "rope", "none"):
        raise arguments.error(
            "position_embedding_type", f"{kind} is not simulated; it must be learned_absolute, rope or none"
        )
    key = (
        "use_rotary_position_embeddings"
        if arguments.path("use_rotary_position_embeddings")
        else "position_embedding_type"
    )
    arguments.give(facts, "model.position_embedding_type", kind, key)


def _vocabulary(arguments: Arguments, facts: Facts) -> None:
    """Read the vocabulary, padded as Megatron does (training/tokenizer/tokenizer.py, ``_vocab_size_with_padding``)."""
    tokenizer = arguments.word("tokenizer_type")
    size, key = arguments.whole("vocab_size"), "vocab_size"
    if tokenizer == "NullTokenizer" and size is not None:
        size += 1  # NullTokenizer adds the end of a document
    elif size is None and tokenizer in (None, "GPT2BPETokenizer") and arguments.source.script:
        size, key = GPT2_VOCABULARY, "tokenizer_type"
        if tokenizer is None:
            facts.assumed.append(f"model.vocab_size: {size} of GPT2BPETokenizer, the default of pretrain_gpt.py")
    arguments.flag("should_pad_vocab")
    if size is None:
        return
    multiple = (arguments.whole("make_vocab_size_divisible_by") or 128) * (
        arguments.whole("tensor_model_parallel_size") or 1
    )
    padded = ceil(size / multiple) * multiple
    how = f"{size} padded to a multiple of {multiple}" if padded != size else ""
    arguments.give(facts, "model.vocab_size", padded, key, how)


def _training(arguments: Arguments, facts: Facts) -> None:
    """Read batches, precision, recomputation, optimizer and length."""
    for key, name in (
        ("micro_batch_size", "training.micro_batch_size"),
        ("global_batch_size", "training.global_batch_size"),
    ):
        arguments.give(facts, name, arguments.whole(key), key)
    precision = (
        arguments.word("mixed_precision")
        if not isinstance(arguments.source.data.get("mixed_precision"), dict)
        else None
    )
    bf16, fp16 = (
        arguments.flag("bf16") or "bf16" in (precision or ""),
        arguments.flag("fp16") or "fp16" in (precision or ""),
    )
    if bf16 and fp16:
        raise arguments.error("fp16", "Megatron refuses --bf16 and --fp16 together; give one of them")
    key = "mixed_precision" if precision else "bf16" if bf16 else "fp16"
    arguments.give(facts, "training.precision", "bf16" if bf16 else "fp16" if fp16 else "fp32", key)
    wide = arguments.flag("accumulate_allreduce_grads_in_fp32") or arguments.flag("grad_reduce_in_fp32")
    narrow = arguments.flag("grad_reduce_in_bf16")
    if bf16 or fp16:
        own = "bf16" if bf16 else "fp16"
        dtype = "fp32" if wide or (bf16 and not narrow) else own
        arguments.give(
            facts,
            "training.gradient_dtype",
            dtype,
            "grad_reduce_in_bf16" if narrow else "accumulate_allreduce_grads_in_fp32",
        )
    granularity = arguments.word("recompute_granularity")
    if arguments.flag("recompute_activations"):
        granularity = "selective"
    if granularity not in (None, "full", "selective", "none"):
        raise arguments.error("recompute_granularity", f"must be full or selective, not {granularity}")
    method, layers = arguments.word("recompute_method"), arguments.whole("recompute_num_layers")
    if granularity == "selective" and method:
        raise arguments.error("recompute_method", "Megatron refuses it with selective recomputation; leave it out")
    if method == "block" or (method == "uniform" and (layers or 1) > 1):
        facts.remarks.append(
            f"recompute_method {method} with {layers or 1} layers is taken as recomputation of every layer by itself"
        )
    arguments.give(facts, "training.recompute", granularity or "none", "recompute_granularity")
    optimizer = arguments.word("optimizer") if not isinstance(arguments.source.data.get("optimizer"), dict) else None
    if optimizer not in (None, "adam", "sgd"):
        raise arguments.error("optimizer", f"{optimizer} is not simulated; it must be adam or sgd")
    arguments.give(facts, "training.optimizer", "momentum" if optimizer == "sgd" else "adam", "optimizer")
    steps, samples = arguments.whole("train_iters", 0), arguments.whole("train_samples", 0)
    if steps and samples:
        raise arguments.error(
            "train_samples", "Megatron refuses --train-iters and --train-samples together; give one of them"
        )
    arguments.give(facts, "run.iterations", steps or None, "train_iters")
    arguments.give(facts, "training.samples", samples or None, "train_samples")


def _pipeline(arguments: Arguments, facts: Facts) -> None:
    """Read virtual stages and the layers of the stages."""
    pp, layers = arguments.whole("pipeline_model_parallel_size") or 1, arguments.whole("num_layers")
    virtual = arguments.whole("num_virtual_stages_per_pipeline_rank") or arguments.whole(
        "virtual_pipeline_model_parallel_size"
    )
    each = arguments.whole("num_layers_per_virtual_pipeline_stage")
    key = next(
        (
            one
            for one in (
                "num_layers_per_virtual_pipeline_stage",
                "num_virtual_stages_per_pipeline_rank",
                "virtual_pipeline_model_parallel_size",
            )
            if arguments.path(one)
        ),
        "",
    )
    if each and virtual:
        raise arguments.error(key, "Megatron refuses it together with --num-virtual-stages-per-pipeline-rank")
    embedding, loss = (arguments.flag(f"account_for_{part}_in_pipeline_split") for part in ("embedding", "loss"))
    shared = (layers or 0) + embedding + loss
    first, last = (arguments.whole(f"decoder_{end}_pipeline_num_layers") for end in ("first", "last"))
    if layers and shared % pp and not first and not last:
        raise arguments.error("num_layers", f"Megatron wants {shared} layers divisible by the {pp} pipeline ranks")
    if each and layers:
        if shared // pp % each:
            raise arguments.error(
                key, f"{each} does not divide the {shared // pp} layers of a pipeline rank, as Megatron wants"
            )
        virtual = shared // pp // each
    if virtual and virtual > 1:
        if pp == 1:
            raise arguments.error(key, "virtual stages need a pipeline, but pipeline_model_parallel_size is 1")
        arguments.give(facts, "parallelism.schedule", "interleaved", key)
        arguments.give(facts, "parallelism.virtual_stages", virtual, key)
    if pp > 1 and embedding and loss:
        arguments.give(facts, "parallelism.layout", "embedding_as_layer", "account_for_embedding_in_pipeline_split")
    elif pp > 1 and layers and (first or last) and not virtual:
        _uneven(arguments, facts, pp, layers, first, last)


def _uneven(arguments: Arguments, facts: Facts, pp: int, layers: int, first: int | None, last: int | None) -> None:
    middle = pp - bool(first) - bool(last)
    rest = layers - (first or 0) - (last or 0)
    if rest < 0 or (middle and rest % middle) or (not middle and rest):
        raise arguments.error(
            "decoder_first_pipeline_num_layers" if first else "decoder_last_pipeline_num_layers",
            f"leaves {rest} layers to {middle} pipeline ranks, which Megatron wants divisible",
        )
    split = [*([first] if first else []), *[rest // middle if middle else 0] * middle, *([last] if last else [])]
    key = "decoder_first_pipeline_num_layers" if first else "decoder_last_pipeline_num_layers"
    arguments.give(facts, "parallelism.layout", split, key)


def _data(arguments: Arguments, facts: Facts) -> None:
    """Read sequence parallelism, and how replicas exchange gradients."""
    tp = arguments.whole("tensor_model_parallel_size") or 1
    if arguments.flag("sequence_parallel"):
        if tp > 1:
            arguments.give(facts, "parallelism.sequence_parallel", True, "sequence_parallel")
        else:
            facts.remarks.append("Megatron disables --sequence-parallel with tensor_model_parallel_size 1")
    if arguments.flag("tp_comm_overlap"):
        if not arguments.flag("sequence_parallel"):
            raise arguments.error("tp_comm_overlap", "Megatron wants --sequence-parallel with --tp-comm-overlap")
        if tp > 1:
            arguments.give(facts, "parallelism.tp_overlap", True, "tp_comm_overlap")
    name = "parallelism.data"
    if arguments.path("deepspeed_config") or arguments.flag("deepspeed"):
        _deepspeed(arguments, facts)
    elif arguments.flag("use_torch_fsdp2"):
        arguments.give(facts, f"{name}.method", "fsdp", "use_torch_fsdp2")
    elif arguments.flag("use_megatron_fsdp") or arguments.flag("use_custom_fsdp"):
        strategy = arguments.word("data_parallel_sharding_strategy") or "no_shard"
        if strategy not in STAGES:
            raise arguments.error(
                "data_parallel_sharding_strategy", f"must be one of {', '.join(STAGES)}, not {strategy}"
            )
        arguments.give(facts, f"{name}.method", "zero", "data_parallel_sharding_strategy")
        arguments.give(facts, f"{name}.stage", STAGES[strategy], "data_parallel_sharding_strategy")
        arguments.give(facts, f"{name}.overlap", True, "use_megatron_fsdp")
    else:
        _reduction(arguments, facts, name)


def _deepspeed(arguments: Arguments, facts: Facts) -> None:
    """Read what Megatron-DeepSpeed has besides: the configuration of DeepSpeed, and ZeRO's stage."""
    source = arguments.source
    facts.give("run.program", "deepspeed", source, given=False)
    facts.found.pop("training.gradient_dtype", None)
    arguments.ignore(["deepspeed_activation_checkpointing", "deepspeed_mpi", "no_pipeline_parallel", "use_tutel"])
    stage = arguments.whole("zero_stage", 0)
    if stage is not None:
        arguments.give(facts, "parallelism.data.method", "zero", "zero_stage")
        arguments.give(facts, "parallelism.data.stage", stage, "zero_stage")
    named = arguments.word("deepspeed_config")
    if named is None:
        return
    if not (source.folder / named).is_file():
        facts.remarks.append(f"{source.name}: names {named}, which is not there; give it as a further file")
        return
    other = opened(str(source.folder / named))
    facts.follow(other)
    deepspeed.read(other, facts)


def _reduction(arguments: Arguments, facts: Facts, name: str) -> None:
    key = "use_distributed_optimizer"
    sharded, overlap = arguments.flag(key), arguments.flag("overlap_grad_reduce")
    arguments.give(facts, f"{name}.method", "zero" if sharded else "ddp", key)
    if sharded:
        arguments.give(facts, f"{name}.stage", 1, key)
    arguments.give(facts, f"{name}.overlap", overlap, "overlap_grad_reduce", "" if overlap else "off by default")
    if arguments.flag("overlap_param_gather") and not (overlap and sharded):
        raise arguments.error(
            "overlap_param_gather", "Megatron wants --use-distributed-optimizer and --overlap-grad-reduce with it"
        )
    arguments.give(facts, "run.bucket_elements", arguments.number("ddp_bucket_size"), "ddp_bucket_size")
    instances = arguments.whole("num_distributed_optimizer_instances")
    if instances and instances > 1:
        arguments.give(facts, "run.optimizer_instances", instances, "num_distributed_optimizer_instances")
