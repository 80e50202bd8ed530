"""What reports say of a scenario: the names of its model and its cluster, and notes on how its model, order and
parallelism were made.

A preset of a model is told with its changed sizes, so that it is not taken for the preset.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from clustersim.scenarios.build.built import BuiltScenario
from clustersim.scenarios.build.schedule import pipeline_order
from clustersim.scenarios.specification import loading
from clustersim.simulator.reading.document import Document
from clustersim.workloads.parallelism.pipeline import Pipeline

SIZES = {
    "num_layers": "{} layers",
    "hidden_size": "hidden size {}",
    "num_attention_heads": "{} heads",
    "num_key_value_heads": "{} key-value heads",
    "ffn_hidden_size": "feed-forward size {}",
    "seq_length": "sequences of {}",
    "vocab_size": "{} tokens of vocabulary",
    "attention": "{} attention",
}
"""How a changed key of the model section is told; any other is told as *key value*."""

MOST_TOLD = 3
"""Changed keys that are told one by one; of more only the number is."""

UNNAMED = "cluster"
"""The name of a cluster without a preset."""

NOT_SIZES = ("preset", "name", "description", "source", "sources", "kind")


def model_title(scenario: BuiltScenario) -> str:
    """Return the name of the model of *scenario*, with the keys in which it differs from its preset.

    For example ``gpt3-175b with 24 layers``. A model with a name of its own keeps that name alone.
    """
    assert scenario.model is not None
    given = scenario.source.data["model"]
    if not isinstance(given, dict) or not given.get("preset") or given.get("name"):
        return scenario.model.name
    changed = _changed(scenario, given)
    if not changed:
        return scenario.model.name
    told = [SIZES.get(key, f"{key} {{}}").format(_words(value)) for key, value in changed.items()]
    what = " and ".join(filter(None, (", ".join(told[:-1]), told[-1])))
    if len(told) > MOST_TOLD:
        what = f"{len(told)} keys changed ({', '.join(changed)})"
    return f"{scenario.model.name} with {what}"


def _words(value: Any) -> Any:
    """Return the values of a section or a list in words.

    >>> _words({"rank": 16, "targets": ["qkv", "projection"]}), _words(24)
    ('(rank 16, targets qkv + projection)', 24)
    """
    if isinstance(value, dict):
        return f"({', '.join(f'{key} {_words(inner)}' for key, inner in value.items())})"
    return " + ".join(map(str, value)) if isinstance(value, list) else value


def _changed(scenario: BuiltScenario, given: dict[str, Any]) -> dict[str, Any]:
    """Return the keys of the model section *given* that differ from the preset, with their values."""
    bare = Document({**scenario.source.data, "model": {"preset": given["preset"]}})
    preset = loading.expanded(bare).data["model"]
    return {
        key: value
        for key, value in scenario.document.data["model"].items()
        if key in given and key not in NOT_SIZES and preset.get(key) != value
    }


def cluster_title(scenario: BuiltScenario, number: int) -> str:
    """Return *number* GPUs of *scenario*: ``100 GPUs of zhores``, or ``28 GPUs (16 h100, 12 l40s)``.

    A cluster without a preset has no name; its kinds of GPU are told instead.
    """
    cluster = scenario.cluster()
    gpus = f"{number:,} GPU{'s' if number != 1 else ''}"
    if cluster.name != UNNAMED:
        return f"{gpus} of {cluster.name}"
    counts = cluster.count(cluster.gpus)
    told = [f"{count:,} {gpu.name}" if len(counts) > 1 else gpu.name for gpu, count in counts.items()]
    return f"{gpus} ({', '.join(told)})"


def notes(scenario: BuiltScenario) -> list[str]:
    """The notes of *scenario*, a sentence each; none where it measures a collective."""
    if scenario.model is None:
        return []
    order = pipeline_order(scenario.specification, scenario.derived, scenario.document)
    return [
        *_software(scenario),
        *([str(scenario.grid_choice)] if scenario.grid_choice else []),
        *scenario.model.notes,
        *order.notes,
        *_update(scenario),
        *_tied(scenario, asynchronous=order.asynchronous),
        *_library(scenario),
        *recompute_note(scenario),
    ]


def _library(scenario: BuiltScenario) -> Iterator[str]:
    """That another library's rules stand for RCCL's, HCCL's and Neuron's, and that TPUs have no NCCL."""
    kinds = {link.kind for link in scenario.cluster().links.distinct}
    if any(kind.startswith("neuronlink") for kind in kinds):
        yield "network: Neuron's collectives are priced as XLA's on a torus of TPUs; its own choices are not modelled"
    if scenario.specification.network.transport != "nccl":
        return
    if any(kind.startswith("gaudi") for kind in kinds):
        yield "network: Intel's HCCL is priced as NCCL, whose calls it has; its own algorithms are not published"
    if any(kind.startswith("infinity_fabric") for kind in kinds):
        yield "network: AMD's RCCL is priced as NCCL, from which it is made; its own tuning tables are not modelled"
    if any(kind.startswith("ici") for kind in kinds):
        yield "network: TPUs have no NCCL; network.transport: ici has collectives along all dimensions of a torus"


LEAST_SAVING = 0.01
"""Share of a layer's activations below which selective recomputation is said to save next to nothing."""


def selective_saves(scenario: BuiltScenario) -> bool:
    """True if selective recomputation saves at least `LEAST_SAVING` of the activations of some layer."""
    layers = scenario.model.layers if scenario.model else ()
    return any(layer.recomputable_bytes(1) > LEAST_SAVING * layer.activation_bytes(1) for layer in layers)


def recompute_note(scenario: BuiltScenario) -> Iterator[str]:
    """That selective recomputation costs time and saves nothing, where it does."""
    training = scenario.specification.training
    if training is not None and training.recompute_method == "selective" and not selective_saves(scenario):
        assert scenario.model is not None
        runs = any(layer.recomputable_forward(1) for layer in scenario.model.layers)
        cost = "costs time and saves next to no memory" if runs else "changes nothing"
        why = "flash attention keeps no scores" if runs else "no layer has attention"
        yield f"recompute: selective {cost}, since {why}; take none or full"


def _software(scenario: BuiltScenario) -> Iterator[str]:
    """Which software stack was taken, if the scenario names none and its model's durations are not given."""
    stack, reason, others = scenario.stack_choice
    if reason and scenario.model is not None and scenario.model.optimizer_seconds is None:
        also = f"clustersim show SCENARIO software compares it with {' and '.join(others)}"
        listed = "clustersim list software shows the others"
        yield f"software: {stack}, {reason}; {also if others else listed}, software: NAME takes one"


def _update(scenario: BuiltScenario) -> Iterator[str]:
    """What is missing for the gain of an order whose optimizer must not wait for the norm of all gradients."""
    pipeline, training = scenario.specification.parallelism, scenario.specification.training
    if pipeline.pp == 1 or not pipeline.updates_early or training is None:
        return
    missing = []
    if pipeline.synchronous_update:
        missing.append("parallelism.optimizer_sync: false (post-validation, arXiv:2401.10241, section 4)")
    if training.steps == 1:
        missing.append("training.steps: 3 (its ranks end a step one after the other, as they begin the next)")
    if missing:
        yield f"{pipeline.schedule} shows its full gain only with {' and '.join(missing)}"


def _tied(scenario: BuiltScenario, *, asynchronous: bool) -> Iterator[str]:
    """How the copies of tied embeddings are kept equal in an asynchronous order."""
    pipeline: Pipeline = scenario.specification.parallelism
    if asynchronous and pipeline.pp > 1 and scenario.model is not None and scenario.model.tied_parameters:
        yield (
            f"{pipeline.schedule} with tied embeddings: gradients are summed at each update beside the pipeline, and "
            "the last stage applies a sum as many updates later as it is ahead of the first; an assumption, no paper "
            "tells"
        )
