"""The layers of each stage of a pipeline.

The embedding is on the first stage and the head on the last one; a layout counts and divides the layers between them.
Encoder and decoder share no stage (Megatron-LM, ``--pipeline-model-parallel-split-rank``).
"""

from __future__ import annotations

from collections.abc import Sequence

from clustersim.simulator.reading.errors import ScenarioError
from clustersim.workloads.operators.model import Layer, Model

ENDS = ("embedding", "head")

DECODER = "decoder"
"""The kind of the layers behind an encoder."""


def stages_of(
    model: Model, stages: int, layout: str | Sequence[int] | None = None, split: int | None = None
) -> list[list[Layer]]:
    """The layers of each of *stages* stages (pipeline ranks times virtual stages), in order.

    *layout* None: the same number for each stage, as Megatron-LM requires; ``balanced``: as even as possible, one more
    on the earlier stages; ``embedding_as_layer``: embedding and head count as one layer each, a module that predicts a
    further token as two; or the number of layers of each stage. *split*: how many stages the encoder has, if the model
    has one; by default the share of its layers.
    Raises `ScenarioError` for a count that does not fit, with the nearest ones that do.
    """
    first = [layer for layer in model.layers if layer.kind == ENDS[0]]
    last = [layer for layer in model.layers if layer.kind == ENDS[1]]
    between = [layer for layer in model.layers if layer.kind not in ENDS]
    decoding = sum(layer.kind == DECODER for layer in between)
    if split is not None and not decoding:
        raise ScenarioError(f"split_rank belongs to an encoder and a decoder, but {model.name} is one stack of layers")
    if decoding and stages > 1 and (layout is None or isinstance(layout, str)):
        layout = _split(model.name, len(between) - decoding, decoding, stages, layout, split)
    if layout is None and len(between) % stages:
        raise ScenarioError(
            f"{stages} stages do not divide the {len(between)} layers of {model.name}; "
            f"try {_divisors(len(between), stages)} stages, or a layout"
        )
    if layout == "embedding_as_layer":
        # a module that predicts a further token has a layer and logits
        ends = 1 + 2 * (len(last) - 1)
        sizes = _even(1 + len(between) + ends, stages)
        if sizes[0] < 1 or sizes[-1] < ends:
            raise ScenarioError(
                f"{stages} stages are too many for the {len(between)} layers, embedding and head of {model.name}; "
                "try layout: balanced"
            )
        sizes[0], sizes[-1] = sizes[0] - 1, sizes[-1] - ends
    elif layout is None or layout == "balanced":
        sizes = _even(len(between), stages)
    else:
        sizes = [int(size) for size in layout]
        if len(sizes) != stages or sum(sizes) != len(between):
            raise ScenarioError(
                f"layout has {len(sizes)} stages with {sum(sizes)} layers in all; "
                f"{model.name} has {len(between)} layers for {stages} stages"
            )
    cut: list[list[Layer]] = []
    begin = 0
    for size in sizes:
        cut.append(between[begin : begin + size])
        begin += size
    cut[0] = first + cut[0]
    cut[-1] = cut[-1] + last
    if not all(cut):
        raise ScenarioError(f"stage {cut.index([])} of {stages} has no layer; {model.name} has {len(model.layers)}")
    return cut


def _even(count: int, stages: int) -> list[int]:
    share, more = divmod(count, stages)
    return [share + (stage < more) for stage in range(stages)]


def _divisors(count: int, near: int) -> str:
    good = sorted((d for d in range(1, count + 1) if count % d == 0), key=lambda d: abs(d - near))[:2]
    return " or ".join(map(str, sorted(good)))


def _split(name: str, encoding: int, decoding: int, stages: int, layout: str | None, split: int | None) -> list[int]:
    """The layers of each stage of an encoder of *encoding* and a decoder of *decoding* layers."""
    if layout == "embedding_as_layer":
        raise ScenarioError("embedding_as_layer belongs to one stack of layers; an encoder and a decoder take balanced")
    if split is not None and not 0 < split < stages:
        raise ScenarioError(f"split_rank = {split} leaves the encoder or the decoder of {name} no stage of {stages}")
    wanted = stages * encoding / (encoding + decoding)
    choices = sorted(range(1, stages) if split is None else (split,), key=lambda one: abs(one - wanted))
    for first in choices:
        if layout == "balanced" or not (encoding % first or decoding % (stages - first)):
            return [*_even(encoding, first), *_even(decoding, stages - first)]
    given = f"split_rank = {split}" if split is not None else f"{stages} stages"
    raise ScenarioError(
        f"{given} does not divide the {encoding} encoder and {decoding} decoder layers of {name} into equal stages; "
        f"try {_divisors(encoding, stages // 2)} stages for the encoder, or layout: balanced"
    )
