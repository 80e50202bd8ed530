"""A software stack is a file of `workloads/software`: what launching a kernel costs, and whether kernels are fused.

Other stacks are compositions of these, in ``workloads/software/_aliases.yaml``: a preset, groups of properties, keys.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import lru_cache
from pathlib import Path
from typing import Annotated, Any, Literal, Self

from pydantic import BeforeValidator, Field, field_validator, model_validator

from clustersim.simulator.hardware.accelerator import Software
from clustersim.simulator.reading.document import Document, merged, part
from clustersim.simulator.reading.lookup import UnknownName, data_file, names, nearest, plain
from clustersim.simulator.reading.names_and_parameters import known
from clustersim.simulator.reading.quantities import Amount, Count, Flag, Index, Ratio, Section, Time, number
from clustersim.simulator.reading.validation import Fault, validated
from clustersim.simulator.reading.yaml_and_json import read
from clustersim.workloads.default_software_stack import AUTO, FRAMEWORKS
from clustersim.workloads.operators.operator_names import FUSIBLE, Fused, Fusible

FRAGMENTATION = 0.15
"""What stitching the blocks of PyTorch's caching allocator saves of its memory, the mean of eight language models on
A100; up to 0.33 (Guo et al. 2024, "GMLake", arXiv:2401.08156, abstract)."""


PACKAGE = "clustersim.workloads.software"
"""The folder of stacks, a file each; others are composed of them in `ALIASES`."""

ALIASES = Path(__file__).with_name("software") / "_aliases.yaml"

OWN = ("name", "description", "source", "preset")
"""Keys of a stack that those built on it do not take over."""

GROUPS = "with"
"""Key of the groups of properties that a stack takes, in order."""


Year = Annotated[int, BeforeValidator(number(2016, 2099))]
"""From the year of the first release of PyTorch."""


class StackKeys(Section):
    """What a software stack costs and how it works. As in `Software`, and:

    *torch_compile*: TorchInductor fuses pointwise operators, norms, softmax and loss into a kernel each; the kernels of
    matrix products and of fused attention stay (Ansel et al. 2024, "PyTorch 2", ASPLOS, section 4), and unaligned
    products are padded (torch/_inductor/config.py, shape_padding).
    """

    launch: Time = 0.0
    """Host time to launch a kernel, e.g. 5 us."""
    fused: Flag | list[Fusible] | None = None
    """Operators other than products that have one kernel each: all (true), none (false), or a list."""
    torch_compile: Flag = False
    """TorchInductor fuses elementwise kernels, norms, softmax and loss; in place of fused."""
    sharpness: Ratio = Software().sharpness
    """Exponent q of the smooth maximum of host time h and GPU time g, (h^q + g^q)^(1/q); by default 4."""
    operators: Index = 0
    """Operators that the optimizer step launches for each parameter tensor, one by one."""
    tensor: Time = 0.0
    """Further host time of each step for each parameter tensor."""
    load: Time = 0.0
    """Host time of each step for loading data and logging."""
    message_operators: Index = 0
    """Operators that the host launches after each message of a pipeline."""
    exchange: Time = 0.0
    """Further time that a stage of a pipeline loses with each message for which it waits."""
    context: Amount = 0.0
    """GPU memory of a process without tensors: CUDA's context and the loaded kernels."""
    fragmentation: Annotated[float, BeforeValidator(number(0.0, 0.9))] = FRAGMENTATION
    """Share of the memory reserved for activations that holds none; by default 0.15."""
    async_tensor: Flag = False
    """Backward passes overlap tensor-parallel exchanges of gradients with independent products."""
    unfused_update: Flag = False
    """The operations around an optimizer's update have kernels of their own."""
    flat_update: Flag = False
    """With unfused_update: fp32 copies of fp16 gradients are checked and copied flat too."""
    softmax_group: Count = 1
    """The fused softmax needs heads x samples to be a multiple of it."""
    wide_softmax: Flag = False
    """A softmax of several kernels runs in fp32."""
    slice: Time = 0.0
    """Host time for each rank's slice of each tensor of a list that ZeRO-3 communicates."""
    flash_forward: Ratio = 1.0
    """Speed of fused attention in the forward pass, relative to the first FlashAttention."""
    flash_backward: Ratio = 1.0
    """The same of the backward pass."""
    gather_ahead: Flag = False
    """Parameters of a sharded optimizer are gathered during the next forward pass."""
    fp32_gradients: list[Literal["bf16", "fp16"]] = Field(default_factory=list)
    """Precisions under which gradients are accumulated and reduced in fp32."""
    gradient_buffers: Literal["copies", "two", "half", "none", "averaged"] = "copies"
    """Memory of gradient buckets beside the gradients: copies of all, two buckets, half (16-bit copies of fp32), none,
    or averaged (none, and the reduction divides)."""
    scatter_gather: Flag = False
    """Ranks that hold the same boundary between stages send one part each, and the receivers gather."""
    cross_entropy: Literal["", "fused", "vocab_parallel", "eager", "shifted", "with_metrics", "chunked"] = ""
    """How the loss is computed; empty: as fused says."""
    gather_logits: Flag = False
    """Tensor-parallel ranks gather the logits, and each computes the whole loss."""
    grouped_product: Time = 0.0
    """Further host time for each product of a grouped one (an expert), if they are launched one by one."""
    keep_gathered: Flag = False
    """Inputs gathered from the shards of a sequence are kept whole, not gathered again."""
    separate_gate: Flag = False
    """The two products of SwiGLU's input are two kernels, each with exchanges of its own."""
    fp32_residual: Flag = False
    """A transformer of 16 bits keeps its residual stream in fp32."""
    padded: Flag = False
    """Products with unaligned rows are padded."""
    cudnn_attention: Flag = False
    """Fused attention is cuDNN's on GPUs for which cuDNN has one."""
    communication_sms: Index = 0
    """SMs that kernels of communication hold through the whole step."""
    early_stop: Flag = False
    """Recomputation of a layer ends as soon as its backward pass has what it needs."""
    keeps_casts: Flag = True
    """Operands cast to 8 bits are kept for the backward pass, and weights cast once a step."""
    accumulation: Literal["fused", "added", "cast", "autocast"] = "fused"
    """How gradients of micro-batches are added up."""
    zero_gradients: Literal["reduce_scatter", "all_reduce"] = "reduce_scatter"
    """How ZeRO's stages 1 and 2 reduce gradients."""
    zero_parameters: Literal["all_gather", "broadcast"] = "all_gather"
    """How ZeRO's ranks get updated parameters: equal shards (all_gather), or each rank's tensors (broadcast)."""
    graphs: Literal["none", "layers", "step"] = "none"
    """What CUDA graphs capture: none, the passes of each layer (layers), or the whole step. The host launches a graph
    as one."""


class SoftwareSpecification(StackKeys):
    """A file of `workloads/software`."""

    preset: str | None = None
    """The stack whose values the keys beside it override."""
    name: str
    """Name in reports. Required."""
    description: str = ""
    """What the stack is, in a sentence."""
    source: str
    """Where its values are from. Required."""
    launch: Time
    """Host time to launch a kernel, e.g. 5 us. Required without a preset."""
    offers: list[Literal["fp8", "tp_overlap"]] = Field(default_factory=list)
    """What `plan` tries with it: products in fp8, and tensor-parallel exchanges that overlap with products."""

    @model_validator(mode="after")
    def _sound(self) -> Self:
        self._check()
        return self

    def _check(self) -> None:
        if self.fused is None and not self.torch_compile:
            raise Fault("fused", "is missing; true, false or a list of operators, or torch_compile: true, which fuses")
        if self.fused not in (None, True) and self.torch_compile:
            given = "false" if self.fused is False else "a list"
            raise Fault("fused", f"{given} contradicts torch_compile: true, which fuses elementwise kernels")

    @property
    def _fused(self) -> Fused:
        if isinstance(self.fused, list):
            return frozenset(self.fused)
        # torch runs ring attention outside of the compiled graph (torch, distributed/tensor/experimental/_attention.py)
        return frozenset(FUSIBLE) - {"block_sum"} if self.torch_compile else bool(self.fused)

    def build(self) -> Software:
        """The parameter set that an accelerator takes."""
        return Software(
            self.name,
            self.launch,
            self._fused,
            self.sharpness,
            tensor_operators=self.operators,
            tensor_seconds=self.tensor,
            load_seconds=self.load,
            message_operators=self.message_operators,
            exchange_seconds=self.exchange,
            context_bytes=self.context,
            fragmentation=self.fragmentation,
            async_tensor=self.async_tensor,
            unfused_update=self.unfused_update,
            flat_update=self.flat_update,
            slice_seconds=self.slice,
            flash_forward=self.flash_forward,
            flash_backward=self.flash_backward,
            gather_ahead=self.gather_ahead,
            softmax_group=self.softmax_group,
            wide_softmax=self.wide_softmax,
            fp32_gradients=tuple(self.fp32_gradients),
            gradient_buffers=self.gradient_buffers,
            scatter_gather=self.scatter_gather,
            cross_entropy=self.cross_entropy,
            gather_logits=self.gather_logits,
            keep_gathered=self.keep_gathered,
            separate_gate=self.separate_gate,
            fp32_residual=self.fp32_residual,
            padded=self.padded or self.torch_compile,
            cudnn_attention=self.cudnn_attention,
            communication_sms=self.communication_sms,
            early_stop=self.early_stop,
            keeps_casts=self.keeps_casts,
            accumulation=self.accumulation,
            zero_gradients=self.zero_gradients,
            zero_parameters=self.zero_parameters,
            graphs=self.graphs,
            product_seconds=self.grouped_product,
        )

    def changed(self, keys: Mapping[str, Any]) -> Self:
        """The stack with the values of *keys*. Raises `Fault` for values that contradict each other."""
        values = dict(keys)
        # compiled and fused by hand exclude each other: the one that is given replaces the other
        if "fused" not in values and "torch_compile" in values:
            values["fused"] = None
        elif "torch_compile" not in values and "fused" in values:
            values["torch_compile"] = False
        made = self.model_copy(update=values)
        made._check()
        return made


class SoftwareKeys(StackKeys):
    """A software stack in a scenario: any key of a stack's file beside its preset."""

    preset: str = AUTO
    """The stack whose values the keys beside it override; auto: the one that a scenario without a name would take. Or a
    framework, torch, torch_compile or jax: its stack for the method of data parallelism."""
    version: Year | None = None
    """The year of the software, e.g. 2023: the stack of that year where the framework has several; by default that of
    the GPU."""

    @field_validator("preset")
    @classmethod
    def _known(cls, name: str) -> str:
        return known_stack(name)

    @property
    def keys(self) -> dict[str, Any]:
        """The changed values."""
        own = set(self.model_fields_set) - {"preset", "version"}
        return self.model_dump(include=own)


def software(name: str) -> Software:
    """The stack *name*, or a dotted name of the user's own. Raises `SimulatorError` for one that there is not.

    >>> software("ideal").launch_seconds
    0.0
    """
    return specification(name).build()


def specification(name: str) -> SoftwareSpecification:
    """The stack *name*. Raises `SimulatorError`."""
    return _read(name, (_located(name) or ALIASES).stat().st_mtime_ns)


@lru_cache(maxsize=16)
def _read(name: str, changed: int) -> SoftwareSpecification:
    return validated(described(name), SoftwareSpecification)


def described(name: str) -> Document:
    """The document of the stack *name*: its keys over those of its groups, and these over those of its preset.

    *name* is a stack, an alias, an import path, or a calibration file with a section ``software``. Raises
    `SimulatorError`.
    """
    entry = _entry(name)
    below, groups = entry.data.get("preset"), entry.data.get(GROUPS, [])
    base = Document({})
    if isinstance(below, str):
        try:
            base = described(below)
        except UnknownName as error:
            raise entry.error(("preset",), str(error)) from None
    for one in groups if isinstance(groups, list) else [None]:
        if one not in _shared()["groups"].data:
            known_groups = ", ".join(_shared()["groups"].data)
            raise entry.error((GROUPS,), f"must be a list of {known_groups}, not {one or groups}")
        base = merged(_without(base, OWN), part(_shared()["groups"], one))
    return merged(_without(base, OWN), _without(entry, (GROUPS,)))


@lru_cache(maxsize=256)
def holds(place: str, spot: str) -> bool:
    """Return whether an entry of the catalogue, *place*, has its value from *spot*, ``package.file:key``.

    A stack that does not have the key itself, or in a group, has it from its preset.

    >>> holds("clustersim.workloads.software.megatron_2021", "clustersim.workloads.software.megatron:launch")
    True
    """
    where, _, key = spot.partition(":")
    package, _, name = place.rpartition(".")
    while where != place and package == PACKAGE:
        entry = _entry(name).data
        given = [entry, *(_shared()["groups"].data[one] for one in entry.get(GROUPS, []))]
        if "preset" not in entry or any(key in one for one in given):
            return False
        name = entry["preset"]
        place = f"{PACKAGE}.{name}"
    return where == place


def aliases() -> Mapping[str, Any]:
    """The stacks of the file `ALIASES`, by name: compositions of those that have a file of their own."""
    return _shared()["aliases"].data


def plain_stack(name: str) -> str:
    """Return the name of a stack that is given by its import path; any other *name* as it is.

    >>> plain_stack("clustersim.workloads.software.megatron_2021"), plain_stack("mylab.stacks.x")
    ('megatron_2021', 'mylab.stacks.x')
    """
    name = plain(PACKAGE, name)
    bare = name.removeprefix(f"{PACKAGE}.")
    return bare if bare != name and bare in aliases() else name


def known_stack(name: str) -> str:
    """Return *name* without the package if there is such a stack, or if it can be imported. Raises `Fault`."""
    if name in (AUTO, *FRAMEWORKS, *names(PACKAGE)):
        return name
    return known(plain_stack(name), PACKAGE, extra=(AUTO, *FRAMEWORKS), only=[*names(PACKAGE), *aliases()])


def _located(name: str) -> Path | None:
    """Return the file of the stack *name*; None if it is an alias. Raises `UnknownName`."""
    try:
        return data_file(PACKAGE, name)
    except UnknownName:
        if plain_stack(name) in aliases():
            return None
        every = [*names(PACKAGE), *aliases()]
        raise UnknownName(name, nearest(name, every)) from None


def _entry(name: str) -> Document:
    """The document of the stack *name* as it is written, without its preset."""
    path = _located(name)
    if path is not None:
        return part(read(path), "software")
    name = plain_stack(name)
    return merged(Document({"name": name}), part(_shared()["aliases"], name))


def _shared() -> Mapping[str, Document]:
    return _sections(ALIASES.stat().st_mtime_ns)


@lru_cache(maxsize=1)
def _sections(changed: int) -> Mapping[str, Document]:
    document = read(ALIASES)
    return {key: part(document, key) for key in ("groups", "aliases")}


def _without(document: Document, keys: tuple[str, ...]) -> Document:
    return Document({key: value for key, value in document.data.items() if key not in keys}, document.positions)
