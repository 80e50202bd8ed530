"""Arguments of Megatron-LM, and the model in them.

They stand in flags of a command line, or in sections of its YAML or of NeMo's. The model is sizes, activation,
attention, positions, vocabulary and experts.
"""

from __future__ import annotations

import ast
from collections.abc import Sequence
from math import ceil
from typing import Any

from clustersim.scenarios.exchange import megatron_keys as keys
from clustersim.scenarios.exchange.facts import Facts
from clustersim.scenarios.exchange.program_keys import Key
from clustersim.scenarios.exchange.source_file import SourceFile
from clustersim.workloads.architectures.attention_keys import pattern

SECTIONS = (
    *("arguments", "language_model", "model_parallel", "model", "train", "ddp"),
    *("optimizer", "mixed_precision", "tokenizer", "dataset", "dist", "comm_overlap"),
)
"""Where arguments stand, besides the top of a file."""

MOST_LAYERS = 10_000
"""Layers of a pattern at most."""


class Arguments:
    """The arguments of a *source*, wherever they stand in it."""

    def __init__(self, source: SourceFile) -> None:
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

    def several(self, key: str) -> list[str]:
        """Return the words of *key*, one or several; none if it is not given."""
        path = self.path(key)
        value = None if path is None else self.source.take(*path)
        listed = value if isinstance(value, list) else [] if value is None else str(value).split()
        return [str(one) for one in listed]

    def pattern(self, key: str) -> int | list[int] | None:
        """Return a number, or the list of 0 and 1 that a text such as ``([0]*3+[1]*58)`` means; None if not given."""
        path = self.path(key)
        value = None if path is None else self.source.take(*path)
        if value is None or isinstance(value, int | list):
            return value
        made = list_expression(str(value))
        if made is None:
            raise self.error(key, f"must be a number or a pattern such as ([0]*3+[1]*58), not {str(value)[:60]}")
        return made

    def give(self, facts: Facts, name: str, value: Any, key: str, how: str = "", *, over: bool = False) -> None:
        """Give *value* for *name* to *facts*, at the place of the argument *key*."""
        path = self.path(key) or ()
        facts.give(name, value, self.source, *path, how=how or ("" if path else "Megatron-LM's default"), over=over)

    def take(self, facts: Facts, key: Key) -> None:
        """Give *facts* what the argument *key* says, if it is given."""
        self.give(facts, key.key, key.read(self), key.flag)

    def ignore(self, keys: Sequence[str]) -> None:
        """Note that *keys* have no effect."""
        self.source.without_effect |= {(*place, key) for place in self._places for key in keys}

    def error(self, key: str, message: str) -> Exception:
        """Return an error at the argument *key*."""
        return self.source.error(self.path(key) or (), message)


def list_expression(text: str) -> int | list[int] | None:
    """Return the number, or the list, that *text* means; None if it means neither.

    >>> [list_expression(text) for text in ("2", "([0]*2+[1]*3)*2", "[0, 1]", "x")]
    [2, [0, 0, 1, 1, 1, 0, 0, 1, 1, 1], [0, 1], None]
    """
    try:
        return _value(ast.parse(text.strip(), mode="eval").body)
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return None


def _value(node: ast.expr) -> int | list[int]:
    match node:
        case ast.Constant(value=int() as value):
            return int(value)
        case ast.List(elts=items):
            listed = [_value(item) for item in items]
            if all(isinstance(one, int) for one in listed):
                return [one for one in listed if isinstance(one, int)]
        case ast.BinOp(left=left, op=ast.Add(), right=right):
            first, second = _value(left), _value(right)
            if isinstance(first, list) and isinstance(second, list):
                return first + second
        case ast.BinOp(left=left, op=ast.Mult(), right=right):
            first, times = _value(left), _value(right)
            if isinstance(first, list) and isinstance(times, int) and 0 <= len(first) * times <= MOST_LAYERS:
                return first * times
    raise ValueError


DEFAULT_LATENT_RANK = 32
"""``--kv-lora-rank`` by default."""

COUNTS = ("num_experts", "num_moe_experts")
"""The number of experts: Megatron-LM's argument, and that of NeMo and Bridge."""


def read_experts(arguments: Arguments, facts: Facts) -> None:
    """Read a mixture of experts, if there is one."""
    key = next((key for key in COUNTS if arguments.path(key)), COUNTS[0])
    experts = arguments.whole(key, 0) or 0
    if experts < 2:
        return
    arguments.give(facts, "model.num_experts", experts, key)
    for size in keys.EXPERTS:
        arguments.take(facts, size)
    if keys.TOPK.key not in facts.found:
        arguments.give(facts, keys.TOPK.key, 2, keys.TOPK.flag)
    _layers(arguments, facts)
    arguments.take(facts, keys.ROUTER_BIAS)
    _loss(arguments, facts)
    _capacity(arguments, facts)
    _exchange(arguments, facts)


def _layers(arguments: Arguments, facts: Facts) -> None:
    """Read which layers have experts."""
    key = "moe_layer_freq"
    pattern = arguments.pattern(key)
    if not isinstance(pattern, list):
        arguments.give(facts, f"model.{key}", pattern, key)
        return
    dense = pattern.index(1) if 1 in pattern else 0
    if len(pattern) == arguments.whole("num_layers") and all(pattern[dense:]):
        arguments.give(facts, "model.first_k_dense_replace", dense, key)
    else:
        arguments.give(facts, f"model.{key}", pattern, key)


def _loss(arguments: Arguments, facts: Facts) -> None:
    """Read whether a loss for equal loads is computed: there is none with the default coefficient of 0."""
    kinds = arguments.several("moe_router_load_balancing_type") or ["aux_loss"]
    try:
        coefficients = [float(one) for one in arguments.several("moe_aux_loss_coeff")]
    except ValueError:
        raise arguments.error("moe_aux_loss_coeff", "must be a number, or several") from None
    used = any(kind.endswith("aux_loss") for kind in kinds) and any(coefficients)
    key = "moe_aux_loss_coeff" if coefficients else "moe_router_load_balancing_type"
    arguments.give(facts, "model.moe_aux_loss", used, key, "" if coefficients else "moe_aux_loss_coeff is 0 by default")


def _capacity(arguments: Arguments, facts: Facts) -> None:
    """Read how many tokens an expert takes."""
    arguments.take(facts, keys.CAPACITY)
    if keys.PADDED.read(arguments) and keys.CAPACITY.read(arguments) is None:
        raise arguments.error(keys.PADDED.flag, "Megatron wants --moe-expert-capacity-factor with it")
    arguments.take(facts, keys.PADDED)


def _exchange(arguments: Arguments, facts: Facts) -> None:
    """Read how tokens go to their experts, and what runs beside."""
    dispatcher = arguments.word("moe_token_dispatcher_type")
    deep = arguments.flag("moe_enable_deepep")
    if deep and dispatcher != "flex":
        raise arguments.error("moe_enable_deepep", "Megatron wants --moe-token-dispatcher-type flex with it")
    shared, batch = keys.OVERLAP_SHARED, keys.OVERLAP_BATCH
    if (keys.EXPERT.read(arguments) or 1) == 1:
        arguments.ignore([shared.flag, batch.flag])
        return
    if deep:
        arguments.give(facts, "run.expert_domains", True, "moe_enable_deepep")
    if dispatcher in (None, "allgather"):
        how = "allgather" if dispatcher else "allgather, its default,"
        facts.remarks.append(f"--moe-token-dispatcher-type {how} is simulated as alltoall: tokens go to their experts")
    if batch.read(arguments):
        arguments.take(facts, batch)
    elif shared.read(arguments) and arguments.whole("moe_shared_expert_intermediate_size", least=0):
        arguments.take(facts, shared)


def read_latent(arguments: Arguments, facts: Facts) -> bool:
    """Read multi-head latent attention; return whether there is one."""
    if not arguments.flag("multi_latent_attention"):
        return False
    for size in keys.LATENT:
        arguments.take(facts, size)
    if keys.LATENT_RANK.key not in facts.found:
        arguments.give(facts, keys.LATENT_RANK.key, DEFAULT_LATENT_RANK, keys.LATENT_RANK.flag)
    if not arguments.flag("qk_layernorm"):
        facts.remarks.append("the norms of latent vectors are simulated, which Megatron has with --qk-layernorm")
    # heads are those of the latent sizes
    arguments.ignore(["kv_channels", "group_query_attention", "num_query_groups"])
    return True


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
