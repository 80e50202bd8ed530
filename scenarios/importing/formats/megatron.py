"""Arguments of Megatron-LM and Megatron Bridge: a command line, or their YAML.

Arguments and defaults are those of Megatron-LM core_v0.15.3 (megatron/training/arguments.py).
Argument names are those of argparse, with ``_``. Megatron's own YAML has them in ``language_model`` and
``model_parallel``; Bridge's in ``model``, ``train``, ``ddp``, ``optimizer`` and others.
"""

from __future__ import annotations

from pathlib import PurePath

from scenarios.importing.facts import Facts
from scenarios.importing.formats import _megatron_keys as keys
from scenarios.importing.formats._megatron_arguments import Arguments
from scenarios.importing.formats._megatron_model import read_model, read_vocabulary
from scenarios.importing.formats._megatron_parallelism import read_data, read_degrees, read_pipeline
from scenarios.importing.source import Source
from scenarios.importing.without_effect import without_effect

KEYS = {"num_layers", "tensor_model_parallel_size", "micro_batch_size"}
"""Arguments of which a file has at least two."""

OTHER_MODELS = ("bert", "t5", "vit", "vision", "retro", "ict", "mamba", "multimodal")
"""Parts of the names of Megatron-LM's programs that train other models than GPT."""


def recognises(source: Source) -> bool:
    """Return whether *source* has arguments of Megatron-LM or a configuration of Megatron Bridge."""
    if "trainer" in source.data or "model_type" in source.data:
        return False
    return sum(Arguments(source).path(key) is not None for key in KEYS) >= 2


def read(source: Source, facts: Facts) -> None:
    """Read model, batch, precision and parallelism."""
    arguments = Arguments(source)
    arguments.ignore(without_effect("megatron"))
    program = PurePath(str(source.data.get("program", ""))).name
    if any(kind in program for kind in OTHER_MODELS):
        raise source.error(("program",), f"{program} trains no causal model; give the model's config.json instead")
    facts.give("run.program", "megatron", source, given=False)
    read_model(arguments, facts)
    read_vocabulary(arguments, facts)
    read_degrees(arguments, facts)
    _training(arguments, facts)
    read_pipeline(arguments, facts)
    read_data(arguments, facts)


def _training(arguments: Arguments, facts: Facts) -> None:
    """Read batches, precision, recomputation, optimizer and length."""
    for key in (keys.MICRO_BATCH, keys.BATCH):
        arguments.take(facts, key)
    _precision(arguments, facts)
    _recomputation(arguments, facts)
    _offload(arguments, facts)
    optimizer = arguments.word("optimizer") if not isinstance(arguments.source.data.get("optimizer"), dict) else None
    known = keys.OPTIMIZER.words
    if optimizer not in (None, *known):
        raise arguments.error("optimizer", f"{optimizer} is not simulated; it must be {' or '.join(known)}")
    arguments.give(facts, keys.OPTIMIZER.key, known[optimizer or "adam"], keys.OPTIMIZER.flag)
    steps, samples = arguments.whole("train_iters", 0), arguments.whole("train_samples", 0)
    if steps and samples:
        raise arguments.error(
            "train_samples", "Megatron refuses --train-iters and --train-samples together; give one of them"
        )
    arguments.give(facts, "run.iterations", steps or None, "train_iters")
    arguments.give(facts, "training.samples", samples or None, "train_samples")


def _precision(arguments: Arguments, facts: Facts) -> None:
    """Read the formats of the computation and of gradients, which Megatron reduces in fp32 with bf16 by default."""
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
    _few_bits(arguments, facts, "bf16" if bf16 else "fp16" if fp16 else "fp32")
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


def _few_bits(arguments: Arguments, facts: Facts, rest: str) -> None:
    """Read products in 8 or 4 bits, how they are scaled, and whether parameters are gathered so."""
    given = [kind for kind in ("fp8", "fp4") if arguments.word(f"{kind}_format")]
    if not given:
        return
    kind, key = given[0], f"{given[0]}_format"
    if len(given) > 1:
        raise arguments.error("fp4_format", "Megatron refuses --fp4-format and --fp8-format together; give one of them")
    if rest == "fp32":
        raise arguments.error(key, "is not simulated without --bf16 or --fp16")
    recipes = ("nvfp4",) if kind == "fp4" else ("delayed", "tensorwise", "blockwise", "mxfp8")
    recipe = arguments.word(f"{kind}_recipe") or recipes[0]
    if recipe not in recipes:
        raise arguments.error(f"{kind}_recipe", f"{recipe} is not simulated; it must be {', '.join(recipes)}")
    value = {"matmul": kind, "rest": rest, "recipe": recipe}
    if arguments.flag("fp8_param_gather"):
        value["parameters"] = "fp8"
    arguments.give(facts, "training.precision", value, key, over=True)


def _recomputation(arguments: Arguments, facts: Facts) -> None:
    """Read what is recomputed."""
    granularity = arguments.word("recompute_granularity")
    if arguments.flag("recompute_activations"):
        granularity = "selective"
    if granularity not in (None, "full", "selective", "none"):
        raise arguments.error("recompute_granularity", f"must be full or selective, not {granularity}")
    method, layers = arguments.word("recompute_method"), arguments.whole("recompute_num_layers")
    if granularity == "selective" and method:
        raise arguments.error("recompute_method", "Megatron refuses it with selective recomputation; leave it out")
    if method not in (None, "uniform", "block"):
        raise arguments.error("recompute_method", f"must be uniform or block, not {method}")
    modules = [*arguments.several("recompute_modules")] if granularity == "selective" else []
    unknown = [name for name in modules if name not in keys.MODULES]
    if unknown:
        facts.remarks.append(f"recompute_modules {' '.join(unknown)}: is not recomputed here")
    known = [keys.MODULES[name] for name in modules if name in keys.MODULES]
    if known and known != ["attention"]:
        arguments.give(facts, "training.recompute", {"method": "operators", "operators": known}, "recompute_modules")
        return
    counted = method == "block" or (method == "uniform" and (layers or 1) > 1)
    value = {"method": method, "num_layers": layers or 1} if counted and granularity == "full" else granularity
    arguments.give(facts, "training.recompute", value or "none", "recompute_granularity")


def _offload(arguments: Arguments, facts: Facts) -> None:
    """Read which share of the optimizer states is on the host, and whether their copies overlap."""
    share, overlap = keys.HOST_SHARE.read(arguments), arguments.flag(keys.HOST_OVERLAP.flag)
    if keys.ON_HOST.read(arguments):
        arguments.take(facts, keys.ON_HOST)
        arguments.give(facts, keys.HOST_SHARE.key, share, keys.HOST_SHARE.flag)
        arguments.give(facts, keys.HOST_OVERLAP.key, overlap, keys.HOST_OVERLAP.flag)
