"""The layers of each stage of a pipeline.

The embedding is on the first stage and the head on the last one; a layout counts and divides the layers between them.
"""

from __future__ import annotations

from collections.abc import Sequence

from simulator.errors import ScenarioError
from workloads.model import Layer, Model

ENDS = ("embedding", "head")


def stages_of(model: Model, stages: int, layout: str | Sequence[int] | None = None) -> list[list[Layer]]:
    """The layers of each of *stages* stages (pipeline ranks times virtual stages), in order.

    *layout* None: the same number for each stage, as Megatron-LM requires; ``balanced``: as even as possible, one more
    on the earlier stages; ``embedding_as_layer``: embedding and head count as one layer each; or the number of layers
    of each stage. Raises `ScenarioError` for a count that does not fit, with the nearest ones that do.
    """
    first = [layer for layer in model.layers if layer.kind == ENDS[0]]
    last = [layer for layer in model.layers if layer.kind == ENDS[1]]
    between = [layer for layer in model.layers if layer.kind not in ENDS]
    if layout is None and len(between) % stages:
        raise ScenarioError(
            f"{stages} stages do not divide the {len(between)} layers of {model.name}; "
            f"try {_divisors(len(between), stages)} stages, or a layout"
        )
    if layout == "embedding_as_layer":
        sizes = _even(len(between) + 2, stages)
        if sizes[0] < 1 or sizes[-1] < 1:
            raise ScenarioError(f"{stages} stages are more than the {len(between)} layers, embedding and head")
        sizes[0], sizes[-1] = sizes[0] - 1, sizes[-1] - 1
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
