"""The parallelisms in arguments of Megatron-LM: stages, sequence parallelism, exchange of gradients."""

from __future__ import annotations

from scenarios.importing.facts import Facts
from scenarios.importing.formats import _megatron_keys as keys
from scenarios.importing.formats import deepspeed
from scenarios.importing.formats._megatron_arguments import Arguments
from scenarios.importing.source import opened


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
