"""The keys that say which blocks each layer has: attention, feed-forward networks, and blocks with a file of their own.

A block is a file of `workloads.blocks`, or a module of the user's own that declares a subclass of `Block`.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Annotated, Any

from pydantic import Field, create_model

from clustersim.simulator.reading import lookup
from clustersim.simulator.reading.names_and_parameters import known
from clustersim.simulator.reading.quantities import Section
from clustersim.simulator.reading.validation import Fault
from clustersim.workloads.architectures.model_keys import MOST_LAYERS, most

if TYPE_CHECKING:
    from clustersim.workloads.blocks._block import Block

PACKAGE = "clustersim.workloads.blocks"

ATTENTION, MLP = "attention", "mlp"
"""Blocks whose keys stand in the `model:` section itself; mlp is a mixture of experts where the layer has one."""

KIND = "kind"
"""The key below a name in ``blocks`` that says which block it is, if the name is none itself."""

Name = Annotated[str, Field(min_length=1)]


def block_class(name: str) -> type[Block]:
    """The class of the block that the file *name* of `workloads.blocks`, or the user's module *name*, declares.

    Raises `Fault`.
    """
    from clustersim.workloads.blocks._block import Block

    module = lookup.find(PACKAGE, name)
    own = (one for one in vars(module).values() if isinstance(one, type) and one.__module__ == module.__name__)
    found = next((one for one in own if issubclass(one, Block)), None)
    if found is None:
        raise Fault((), f"{name} declares no subclass of Block")
    return found


class LayerKeys(Section):
    """Keys of layers that are not all attention and then an MLP."""

    layers: Annotated[list[Name | Annotated[list[Name], Field(min_length=1)]], Field(min_length=1)] | None = None
    """Blocks of the layers, in turn over them, each block with a norm and a residual sum: attention, mlp, mamba2,
    mamba, gated_delta_net, or the import path of your own. A layer of several is a list: [[mamba2, mlp], [attention,
    mlp]]. By default every layer is [attention, mlp]."""
    blocks: dict[str, dict[str, Any]] | None = None
    """Keys of blocks by their names, such as mamba2: {state_size: 128, chunk_size: 256}. Those of attention and mlp
    stand in this section itself. A name of your own says its kind: wide: {kind: feed_forward, width: 28672}."""

    @property
    def patterns(self) -> tuple[tuple[str, ...], ...]:
        """The names of the blocks of each layer of a turn; none: every layer is attention and MLP."""
        return tuple((one,) if isinstance(one, str) else tuple(one) for one in self.layers or ())

    @property
    def made_layers(self) -> tuple[tuple[str | Block, ...], ...]:
        """The blocks of each layer of a turn. Raises `Fault`, or pydantic's `ValidationError`, for keys of a block."""
        named = self._named()
        return tuple(tuple(named.get(one, one) for one in pattern) for pattern in self.patterns)

    def kind_of(self, name: str) -> str:
        """The block that *name* in ``layers`` stands for: that of its key ``kind``, or the block of that name."""
        keys = (self.blocks or {}).get(name, {})
        return str(keys.get(KIND, name))

    def _check_names(self) -> None:
        """Raise `Fault` for a name in ``layers`` that is no block."""
        for number, one in enumerate(self.layers or ()):
            for name in [one] if isinstance(one, str) else one:
                own = KIND in (self.blocks or {}).get(name, {})
                place = ("blocks", name, KIND) if own else ("layers", number)
                try:
                    known(self.kind_of(name), PACKAGE, extra=() if own else (ATTENTION, MLP))
                except Fault as fault:
                    raise Fault(place, fault.message, fault.hint) from None

    def _named(self) -> Mapping[str, Block]:
        names = sorted({name for pattern in self.patterns for name in pattern} - {ATTENTION, MLP})
        fields: dict[str, Any] = {}
        for number, name in enumerate(names):
            try:
                fields[f"block{number}"] = (
                    block_class(self.kind_of(name)),
                    Field(default_factory=dict, alias=name, validate_default=True),
                )
            except Fault as fault:
                raise Fault(("layers", *fault.path), fault.message, fault.hint) from None
        keys: Any = create_model("Blocks", __base__=Section, **fields)
        # a second level, so that faults are told at their keys below blocks
        holder: Any = create_model("Holder", __base__=Section, blocks=(keys, ...))
        given = {
            name: {key: one for key, one in keys.items() if key != KIND} for name, keys in (self.blocks or {}).items()
        }
        made: Any = holder.model_validate({"blocks": given})
        made = made.blocks
        return {name: getattr(made, f"block{number}") for number, name in enumerate(names)}

    def check_layers(self, features: int, others: Mapping[str, bool]) -> None:
        """Raise `Fault` for blocks that no layer has, whose keys are wrong, or that stand beside *others*."""
        if self.layers is None:
            if self.blocks:
                raise Fault("blocks", f"belongs to layers, which have {' and '.join(self.blocks)}; give layers too")
            return
        most("layers", len(self.layers), MOST_LAYERS)
        self._check_names()
        used = {name for pattern in self.patterns for name in pattern}
        for name in self.blocks or ():
            if name in (ATTENTION, MLP):
                raise Fault(("blocks", name), "has its keys in the model section itself")
            if name not in used:
                raise Fault(("blocks", name), f"no layer has it; layers have {', '.join(sorted(used))}")
        for what in (what for what, given in others.items() if given):
            raise Fault("layers", f"is not modelled with {what}; leave one of them out")
        for name, block in self._named().items():
            for fault in _faults(block, features):
                raise Fault(("blocks", name, *fault.path), fault.message, fault.hint)


def _faults(block: Block, features: int) -> Iterator[Fault]:
    try:
        block.counts(features)
    except Fault as fault:
        yield fault
