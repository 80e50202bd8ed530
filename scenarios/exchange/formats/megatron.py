"""Arguments of Megatron-LM and Megatron Bridge: a command line, or their YAML.

Arguments and defaults are those of Megatron-LM core_v0.15.3 (megatron/training/arguments.py).
Argument names are those of argparse, with ``_``. Megatron's own YAML has them in ``language_model`` and
``model_parallel``; Bridge's in ``model``, ``train``, ``ddp``, ``optimizer`` and others.

The parallelisms in arguments of Megatron-LM: stages, sequence parallelism, exchange of gradients.
"""

from __future__ import annotations

from pathlib import PurePath

from clustersim.scenarios.exchange import megatron_keys as keys
from clustersim.scenarios.exchange.facts import Facts
from clustersim.scenarios.exchange.formats import deepspeed
from clustersim.scenarios.exchange.formats._megatron_model import Arguments, read_model, read_vocabulary
from clustersim.scenarios.exchange.program_keys import without_effect
from clustersim.scenarios.exchange.source_file import SourceFile, opened


def read_degrees(arguments: Arguments, facts: Facts) -> None:
    """Read the degrees, and how context parallelism gets at the other positions. The model is read before."""
    for key in keys.DEGREES:
        if key in (keys.TENSOR, keys.PIPELINE) or (key.read(arguments) or 1) > 1:
            arguments.take(facts, key)
    if keys.COUNT.key in facts.found:
        arguments.take(facts, keys.EXPERT_TENSOR)
    else:
        keys.EXPERT_TENSOR.read(arguments)
    method = keys.CONTEXT_METHOD
    kinds = set(arguments.several(method.flag)) or {"p2p"}
    if facts.whole(keys.CONTEXT.key):
        if len(kinds) > 1 or not kinds <= method.words.keys():
            shown = " ".join(sorted(kinds))[:60]
            raise arguments.error(method.flag, f"{shown} is not simulated; it must be one of {', '.join(method.words)}")
        arguments.give(facts, method.key, method.words[kinds.pop()], method.flag)


def read_pipeline(arguments: Arguments, facts: Facts) -> None:
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


def read_data(arguments: Arguments, facts: Facts) -> None:
    """Read sequence parallelism, and how replicas exchange gradients."""
    tp = arguments.whole("tensor_model_parallel_size") or 1
    if keys.SEQUENCE.read(arguments):
        if tp > 1:
            arguments.take(facts, keys.SEQUENCE)
        else:
            facts.remarks.append("Megatron disables --sequence-parallel with tensor_model_parallel_size 1")
    overlap = keys.TENSOR_OVERLAP
    if overlap.read(arguments):
        if not keys.SEQUENCE.read(arguments):
            raise arguments.error(overlap.flag, "Megatron wants --sequence-parallel with --tp-comm-overlap")
        if tp > 1:
            arguments.take(facts, overlap)
    name = "parallelism.data"
    if arguments.path("deepspeed_config") or arguments.flag("deepspeed"):
        _deepspeed(arguments, facts)
    elif arguments.flag("use_torch_fsdp2"):
        arguments.give(facts, f"{name}.method", "fsdp", "use_torch_fsdp2")
    elif arguments.flag("use_megatron_fsdp") or arguments.flag("use_custom_fsdp"):
        stage, stages = keys.STRATEGY, keys.STRATEGY.words
        strategy = arguments.word(stage.flag) or "no_shard"
        if strategy not in stages:
            raise arguments.error(stage.flag, f"must be one of {', '.join(stages)}, not {strategy}")
        arguments.give(facts, f"{name}.method", "zero", stage.flag)
        arguments.give(facts, stage.key, stages[strategy], stage.flag)
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


KEYS = {"num_layers", "tensor_model_parallel_size", "micro_batch_size"}
"""Arguments of which a file has at least two."""

OTHER_MODELS = ("bert", "t5", "vit", "vision", "retro", "ict", "mamba", "multimodal")
"""Parts of the names of Megatron-LM's programs that train other models than GPT."""


def recognises(source: SourceFile) -> bool:
    """Return whether *source* has arguments of Megatron-LM or a configuration of Megatron Bridge."""
    if "trainer" in source.data or "model_type" in source.data:
        return False
    return sum(Arguments(source).path(key) is not None for key in KEYS) >= 2


def read(source: SourceFile, facts: Facts) -> None:
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
