"""The model in arguments of Megatron-LM: sizes, activation, attention, positions, vocabulary."""

from __future__ import annotations

from math import ceil

from scenarios.importing.facts import Facts
from scenarios.importing.formats import _megatron_keys as keys
from scenarios.importing.formats._megatron_arguments import Arguments
from scenarios.importing.formats._megatron_experts import read_experts, read_latent
from workloads.windows import pattern

GPT2_VOCABULARY = 50257
"""Tokens of GPT2BPETokenizer, the default of pretrain_gpt.py."""


def read_model(arguments: Arguments, facts: Facts) -> None:
    """Read the sizes of the model; other parts have Megatron's defaults."""
    latent = read_latent(arguments, facts)
    for key in keys.SIZES:
        if not (latent and key == keys.CHANNELS):
            arguments.take(facts, key)
    arguments.give(facts, "run.positions", arguments.whole("max_position_embeddings"), "max_position_embeddings")
    if keys.NEXT_TOKENS.read(arguments):
        arguments.take(facts, keys.NEXT_TOKENS)
    read_experts(arguments, facts)
    _mlp(arguments, facts)
    _attention(arguments, facts, latent)
    _positions(arguments, facts)
    _options(arguments, facts, latent)


def _mlp(arguments: Arguments, facts: Facts) -> None:
    """Read the width of the MLP and its activation."""
    hidden = arguments.whole("hidden_size")
    given = next((key for key in keys.ACTIVATIONS if key.read(arguments)), None)
    activation = given.flag if given else None
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
    name = given.means if given else "swiglu" if gated else "gelu"
    arguments.give(facts, "model.activation", name, activation or "gated_linear_unit")


def _attention(arguments: Arguments, facts: Facts, latent: bool) -> None:
    """Read heads of keys and values, norms, and the kernel."""
    groups = arguments.whole("num_query_groups")
    if latent:
        pass
    elif arguments.flag("group_query_attention") or (groups and not arguments.source.script):
        arguments.give(facts, "model.num_key_value_heads", groups or 1, "num_query_groups")
    elif groups is not None:
        facts.remarks.append("num_query_groups has no effect without --group-query-attention")
    norm = (arguments.word("normalization") or "LayerNorm").lower()
    if norm not in keys.NORMALIZATION.words.values():
        raise arguments.error("normalization", f"{norm} is not simulated; it must be LayerNorm or RMSNorm")
    arguments.give(facts, "model.normalization", norm, "normalization")
    backend = arguments.word("attention_backend")
    arguments.flag("use_flash_attn")
    attention = keys.BACKEND.read(arguments) or "flash"
    if attention == "unfused" and latent:
        raise arguments.error(
            "attention_backend", f"{backend} is not simulated with multi_latent_attention; take flash"
        )
    _window(arguments, facts)
    arguments.give(facts, keys.BACKEND.key, attention, keys.BACKEND.flag)


def _window(arguments: Arguments, facts: Facts) -> None:
    """Read the window of attention, positions before and after each one, and which layers have it."""
    given = " ".join(arguments.several("window_size")).strip("()").replace(",", " ").split()
    if not given:
        return
    if len(given) != 2 or not given[0].isdigit() or given[1] not in ("0", "-1"):
        raise arguments.error("window_size", "must be the positions before each one and 0, such as 4095,0")
    size, skipped = int(given[0]) + 1, arguments.pattern("window_attn_skip_freq")
    if isinstance(skipped, int) and skipped > 1:
        skipped = [1] * (skipped - 1) + [0]
    found = pattern(size if one else 0 for one in skipped) if isinstance(skipped, list) else size
    if found is not None:
        arguments.give(facts, "model.attention_window", found, "window_size")


def _options(arguments: Arguments, facts: Facts, latent: bool) -> None:
    """Read what is shared, biased, normalised or dropped."""
    tied = not arguments.flag("untie_embeddings_and_output_weights")
    if arguments.path("share_embeddings_and_output_weights"):
        tied = arguments.flag("share_embeddings_and_output_weights")
    arguments.give(facts, "model.tie_embeddings", tied, "untie_embeddings_and_output_weights")
    bias = not arguments.flag("disable_bias_linear")
    if arguments.path("add_bias_linear"):
        bias = arguments.flag("add_bias_linear")
    arguments.give(facts, "model.add_bias_linear", bias, "disable_bias_linear")
    arguments.take(facts, keys.QKV_BIAS)
    if not latent:
        arguments.take(facts, keys.QK_NORM)
    dropouts = [arguments.number(key) for key in ("hidden_dropout", "attention_dropout")]
    largest = max(0.1 if value is None else value for value in dropouts)
    arguments.give(facts, "model.dropout", largest, "hidden_dropout", "" if None not in dropouts else "0.1 by default")


def _positions(arguments: Arguments, facts: Facts) -> None:
    kind = arguments.word("position_embedding_type") or "learned_absolute"
    if arguments.flag("use_rotary_position_embeddings"):
        kind = "rope"
    if kind not in keys.POSITIONS.words:
        raise arguments.error(
            "position_embedding_type", f"{kind} is not simulated; it must be learned_absolute, rope or none"
        )
    if kind == "rope":
        arguments.ignore(["no_position_embedding"])
    key = (
        "use_rotary_position_embeddings"
        if arguments.path("use_rotary_position_embeddings")
        else "position_embedding_type"
    )
    arguments.give(facts, "model.position_embedding_type", kind, key)


def read_vocabulary(arguments: Arguments, facts: Facts) -> None:
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
