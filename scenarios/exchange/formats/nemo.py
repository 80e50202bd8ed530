"""NeMo's YAML: ``trainer`` and ``model`` (NeMo 1.23, examples/nlp/language_modeling/conf/megatron_gpt_config.yaml)."""

from __future__ import annotations

from clustersim.scenarios.exchange.facts import Facts
from clustersim.scenarios.exchange.formats._megatron_model import Arguments, read_experts
from clustersim.scenarios.exchange.formats.megatron import read_degrees
from clustersim.scenarios.exchange.megatron_keys import LENGTH, SIZES
from clustersim.scenarios.exchange.program_keys import Whole
from clustersim.scenarios.exchange.source_file import SourceFile

ACTIVATIONS = {
    "gelu": "gelu",
    "fast-swiglu": "swiglu",
    "swiglu": "swiglu",
    "geglu": "geglu",
    "fast-geglu": "geglu",
    "squared-relu": "squared_relu",
    "relu": "relu",
    "openai-gelu": "gelu_new",
}

NORMS = {
    "layernorm": "layernorm",
    "layernorm1p": "layernorm",
    "rmsnorm": "rmsnorm",
    "low_precision_layernorm": "layernorm",
}


def recognises(source: SourceFile) -> bool:
    """Return whether *source* is a configuration of NeMo."""
    data = source.data
    return not source.script and isinstance(data.get("trainer"), dict) and isinstance(data.get("model"), dict)


def read(source: SourceFile, facts: Facts) -> None:
    """Read the trainer's nodes, GPUs and precision, and the model's arguments, most of which are Megatron's."""
    source.ignore("nemo")
    source.ignore("nemo_trainer", "trainer")
    source.ignore("nemo_model", "model")
    facts.give("run.program", "megatron", source, given=False)
    arguments = Arguments(source)
    source.ignore("megatron", "model")
    facts.give("run.nodes", source.whole("trainer", "num_nodes"), source, "trainer", "num_nodes")
    facts.give("run.gpus_per_node", source.whole("trainer", "devices"), source, "trainer", "devices")
    if source.document.get(("trainer", "max_steps")) == -1:
        source.taken.add(("trainer", "max_steps"))
    else:
        facts.give("run.iterations", source.whole("trainer", "max_steps"), source, "trainer", "max_steps")
    accumulation = source.whole("trainer", "accumulate_grad_batches")
    if accumulation not in (None, 1):
        raise source.error(("trainer", "accumulate_grad_batches"), "NeMo wants 1: it accumulates by global_batch_size")
    _precision(source, facts)
    _model(arguments, facts)
    _parallelism(arguments, facts)


def _precision(source: SourceFile, facts: Facts) -> None:
    word = source.word("trainer", "precision")
    if word is None:
        return
    plain = word.removesuffix("-mixed").removesuffix("-true")
    known = {"bf16": "bf16", "16": "fp16", "32": "fp32"}
    if plain not in known:
        raise source.error(("trainer", "precision"), f"{word} is not simulated; it must be bf16, 16 or 32")
    facts.give("training.precision", known[plain], source, "trainer", "precision")


def _model(arguments: Arguments, facts: Facts) -> None:
    source, at = arguments.source, "model"
    for size in (*SIZES, Whole("encoder_seq_length", LENGTH.key)):
        arguments.take(facts, size)
    positions = (
        arguments.whole("max_position_embeddings") if source.document.get((at, "max_position_embeddings")) else None
    )
    arguments.give(facts, "run.positions", positions, "max_position_embeddings")
    hidden = arguments.whole("hidden_size") or 0
    ffn = arguments.whole("ffn_hidden_size")
    arguments.give(
        facts, "model.ffn_hidden_size", ffn or 4 * hidden or None, "ffn_hidden_size", "" if ffn else "by default"
    )
    arguments.give(facts, "model.num_key_value_heads", arguments.whole("num_query_groups"), "num_query_groups")
    for key, name, known, default in (
        ("activation", "activation", ACTIVATIONS, "gelu"),
        ("normalization", "normalization", NORMS, "layernorm"),
    ):
        word = arguments.word(key) or default
        if word not in known:
            raise arguments.error(key, f"{word} is not simulated; there are {', '.join(known)}")
        arguments.give(facts, f"model.{name}", known[word], key)
    read_experts(arguments, facts)
    _options(arguments, facts)
    _vocabulary(arguments, facts)


def _options(arguments: Arguments, facts: Facts) -> None:
    """Read positions, biases, dropout and the kernel of the attention."""
    kind = arguments.word("position_embedding_type") or "learned_absolute"
    if kind not in ("learned_absolute", "rope", "alibi", "none"):
        raise arguments.error(
            "position_embedding_type", f"{kind} is not simulated; it must be learned_absolute, rope or alibi"
        )
    arguments.give(facts, "model.position_embedding_type", kind, "position_embedding_type")
    tied = (
        arguments.flag("share_embeddings_and_output_weights")
        if arguments.path("share_embeddings_and_output_weights")
        else True
    )
    arguments.give(facts, "model.tie_embeddings", tied, "share_embeddings_and_output_weights")
    bias = arguments.flag("bias") if arguments.path("bias") else True
    arguments.give(facts, "model.add_bias_linear", bias, "bias")
    arguments.flag("do_layer_norm_weight_decay")
    dropouts = [arguments.number(key) for key in ("hidden_dropout", "attention_dropout", "ffn_dropout")]
    arguments.give(facts, "model.dropout", max(value or 0.0 for value in dropouts), "hidden_dropout")
    unfused = arguments.path("use_flash_attention") is not None and not arguments.flag("use_flash_attention")
    arguments.give(facts, "model.attention", "unfused" if unfused else "flash", "use_flash_attention")


def _vocabulary(arguments: Arguments, facts: Facts) -> None:
    """Read the vocabulary, padded as Megatron-LM does."""
    size = arguments.whole("vocab_size") or arguments.whole("override_vocab_size")
    multiple = (arguments.whole("make_vocab_size_divisible_by") or 128) * (
        arguments.whole("tensor_model_parallel_size") or 1
    )
    if size is not None:
        padded = -(-size // multiple) * multiple
        key = "vocab_size" if arguments.path("vocab_size") else "override_vocab_size"
        arguments.give(
            facts, "model.vocab_size", padded, key, f"padded to a multiple of {multiple}" if padded != size else ""
        )


def _parallelism(arguments: Arguments, facts: Facts) -> None:
    read_degrees(arguments, facts)
    for key in ("micro_batch_size", "global_batch_size"):
        arguments.give(facts, f"training.{key}", arguments.whole(key), key)
    tp, pp = arguments.whole("tensor_model_parallel_size") or 1, arguments.whole("pipeline_model_parallel_size") or 1
    if arguments.flag("sequence_parallel") and tp > 1:
        arguments.give(facts, "parallelism.sequence_parallel", True, "sequence_parallel")
    if arguments.flag("ub_tp_comm_overlap") and tp > 1:
        arguments.give(facts, "parallelism.tp_overlap", True, "ub_tp_comm_overlap")
    virtual = arguments.whole("virtual_pipeline_model_parallel_size")
    if virtual and virtual > 1 and pp > 1:
        arguments.give(facts, "parallelism.schedule", "interleaved", "virtual_pipeline_model_parallel_size")
        arguments.give(facts, "parallelism.virtual_stages", virtual, "virtual_pipeline_model_parallel_size")
    granularity = arguments.word("activations_checkpoint_granularity")
    if granularity not in (None, "full", "selective"):
        raise arguments.error("activations_checkpoint_granularity", f"must be full or selective, not {granularity}")
    arguments.give(facts, "training.recompute", granularity or "none", "activations_checkpoint_granularity")
    method = arguments.word("activations_checkpoint_method")
    layers = arguments.whole("activations_checkpoint_num_layers", 0)
    if granularity == "full" and (method == "block" or (layers or 1) > 1):
        facts.remarks.append(
            f"activations_checkpoint_method {method} with {layers} layers is taken as recomputation of each layer"
        )
    _optimizer(arguments, facts)


def _optimizer(arguments: Arguments, facts: Facts) -> None:
    source = arguments.source
    if not isinstance(source.document.get(("model", "optim")), dict):
        return
    source.without_effect |= {("model", "optim", key) for key in ("lr", "weight_decay", "betas", "sched", "eps")}
    name = source.word("model", "optim", "name") or "fused_adam"
    if "adam" not in name:
        raise source.error(
            ("model", "optim", "name"), f"{name} is not simulated; it must be fused_adam or distributed_fused_adam"
        )
    sharded = name.startswith(("distributed", "mcore_distributed"))
    facts.give("parallelism.data.method", "zero" if sharded else "ddp", source, "model", "optim", "name")
    if sharded:
        facts.give("parallelism.data.stage", 1, source, "model", "optim", "name")
    for key in ("overlap_grad_sync", "overlap_grad_reduce"):
        if source.has("model", "optim", key):
            facts.give("parallelism.data.overlap", source.flag("model", "optim", key), source, "model", "optim", key)
    dtype = source.word("model", "optim", "grad_sync_dtype")
    if dtype in ("bf16", "fp32", "fp16"):
        facts.give("training.gradient_dtype", dtype, source, "model", "optim", "grad_sync_dtype")
