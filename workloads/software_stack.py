"""A software stack is a file of `workloads/software`: what launching a kernel costs, whether kernels are fused, and the
time of the host beside kernels, of each optimizer step and of each message of a pipeline.

Other stacks are compositions of these, in ``workloads/software/_aliases.yaml``: a preset, groups of properties, keys.

Host time of the software stack, beside its kernels: of each optimizer step, and of each message of a pipeline.

An optimizer step handles parameter tensors one by one: DeepSpeed checks each for overflow and copies it
(runtime/utils.py, ``CheckOverflow``; runtime/fp16/fused_optimizer.py, ``step``), Megatron-LM casts gradients and lists
tensors for its multi-tensor kernels (megatron/optimizer/optimizer.py, clip_grads.py). Beside that the host loads data
and logs the loss. An asynchronous order pays this once for each global batch: its further optimizer steps are kernels
only. In a pipeline the host waits for messages (Megatron-LM, p2p_communication.py, synchronises after
``batch_isend_irecv``), so the GPU waits for launches.
"""

from collections.abc import Collection, Iterator, Mapping
from dataclasses import replace
from functools import lru_cache
from pathlib import Path
from typing import Annotated, Any, Literal, Self

from pydantic import BeforeValidator, Field, field_validator, model_validator

from clustersim.simulator.hardware.accelerator import Software
from clustersim.simulator.hardware.kernel import Operation, measured
from clustersim.simulator.reading.dataclass import dataclass
from clustersim.simulator.reading.document import Document, merged, part
from clustersim.simulator.reading.lookup import UnknownName, data_file, names, nearest, plain
from clustersim.simulator.reading.names_and_parameters import known
from clustersim.simulator.reading.quantities import Flag, Section, Time, made, number
from clustersim.simulator.reading.validation import Fault, validated
from clustersim.simulator.reading.yaml_and_json import read
from clustersim.simulator.schedule.ops import Compute, Delay, Op, Recv
from clustersim.simulator.schedule.program import Program
from clustersim.simulator.schedule.records import changed
from clustersim.simulator.schedule.schedule import Schedule
from clustersim.workloads.data_parallel.gradients import updated_stages, weights_by_stage
from clustersim.workloads.default_software_stack import AUTO, FRAMEWORKS
from clustersim.workloads.operators.model import Model
from clustersim.workloads.operators.operator import FUSIBLE, Fused, Fusible, fuses

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


class StackKeys(Section, of=Software, without=("name", "master_weights")):
    """What a software stack costs and how it works. As in `Software`, and:

    *torch_compile*: TorchInductor fuses pointwise operators, norms, softmax and loss into a kernel each; the kernels of
    matrix products and of fused attention stay (Ansel et al. 2024, "PyTorch 2", ASPLOS, section 4), unaligned products
    are padded (torch/_inductor/config.py, shape_padding), and a loss that is compiled with the model is recomputed from
    the logits.
    """

    fused: Flag | list[Fusible] | None = None
    """Operators other than products that have one kernel each: all (true), none (false), or a list."""
    torch_compile: Flag = False
    """TorchInductor fuses elementwise kernels, norms, softmax and loss; in place of fused."""
    fragmentation: Annotated[float, BeforeValidator(number(0.0, 0.9))] = FRAGMENTATION
    """Share of the memory reserved for activations that holds none, since blocks are split; by default 0.15."""


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
        stack = made(self, Software, fused=self._fused)
        if not self.torch_compile:
            return stack
        return replace(stack, padded=True, cross_entropy=stack.cross_entropy or "recomputed")

    def changed(self, keys: Mapping[str, Any]) -> Self:
        """The stack with the values of *keys*. Raises `Fault` for values that contradict each other."""
        values = dict(keys)
        # compiled and fused by hand exclude each other: the one that is given replaces the other
        if "fused" not in values and "torch_compile" in values:
            values["fused"] = None
        elif "torch_compile" not in values and "fused" in values:
            values["torch_compile"] = False
        other = self.model_copy(update=values)
        other._check()
        return other


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
    positions = {path: where for path, where in document.positions.items() if not path or path[0] not in keys}
    return Document({key: value for key, value in document.data.items() if key not in keys}, positions)


def without_master_weights(stack: Software) -> Software:
    """*stack* for a model that is cast to 16 bits and trained as it is: no autocast, no gradients or copies in fp32.

    The loss is one of 16-bit logits, unless the stack itself casts them or has a fused one. Adapters are trained in the
    16 bits of the model, beside 4-bit weights too (PEFT casts them and the norms to fp32 only for training in fp32).
    """
    loss = stack.cross_entropy or ("" if fuses(stack.fused, "cross_entropy") else "plain")
    own = replace(stack, fp32_gradients=(), fp32_residual=False, fp32_scores=(), cross_entropy=loss)
    return replace(own, unfused_update=False, flat_update=False, adapters="model")


def with_adapters_as_held(stack: Software) -> Software:
    """*stack* where adapters in 16 bits are all that is trained, and torch's optimizer updates them as they are.

    Autograd makes their gradients in their own format, and torch the states of Adam (torch/optim/adam.py,
    ``_init_group``): 8 bytes a parameter in all. Only DeepSpeed and Megatron-LM hold copies in fp32 beside them.
    """
    return replace(stack, fp32_gradients=(), master_weights=False)


def with_uniform_units(stack: Software) -> Software:
    """*stack* where parameters are sharded in units of one type: nothing is cast to fp32 beside weights of 4 bits.

    TRL, trainer/sft_trainer.py, ``is_sharded_qlora``: FSDP and ZeRO-3 load a model without
    ``prepare_model_for_kbit_training`` and without ``autocast_adapter_dtype``.
    """
    adapters = "model" if stack.adapters == "fp32_beside_4_bits" else stack.adapters
    return replace(stack, kbit_training=False, adapters=adapters)


EXCHANGE = Operation("host time of messages", "measured")


@dataclass(frozen=True, slots=True)
class HostTime:
    """Seconds of the host in each optimizer step: *tensor* for each parameter tensor of a rank, *load* once."""

    tensor: float = 0.0
    load: float = 0.0

    @classmethod
    def of(cls, software: Software) -> Self:
        """That of *software*."""
        return cls(software.host_seconds_per_tensor, software.load_seconds)


def fixed_costs(schedule: Schedule, model: Model, host: HostTime, exchange: float) -> Schedule:
    """*schedule* with the time of the *host* after each optimizer step of a batch, and *exchange* for each message.

    *model* has its layers as one rank holds them. *exchange*: seconds before each op that waits for a message. Apply it
    last: programs then end with an op that has no other meaning.
    """
    if exchange:
        schedule = schedule.map_programs(lambda program: _with_exchange(program, exchange))
    if not (host.tensor or host.load):
        return schedule
    return schedule.map_programs(lambda program: _with_host(program, model, host, schedule.batches))


def _with_exchange(program: Program, seconds: float) -> Program:
    messages = {op.name for op in program.distinct(Recv) if not _is_notice(op)}
    waiting = {op.name for op in program.computations() if not messages.isdisjoint(op.after)}

    def change(op: Op) -> Iterator[Op]:
        assert isinstance(op, Compute)
        yield changed(op, kernels=(measured(seconds, operation=EXCHANGE), *op.kernels))

    return program.map_ops(change, waiting) if waiting else program


def _with_host(program: Program, model: Model, host: HostTime, batches: int) -> Program:
    """*program* with a delay after each update; of several *batches*, after the last update of each."""
    if program.on != "gpu":
        return program
    updates = updated_stages(program)
    names = list(updates)
    tensors = tensors_by_stage(program, model)
    if batches > 1:
        each = max(1, len(names) // batches)
        names = names[each - 1 :: each]
        updates = dict.fromkeys(names, frozenset(tensors))
    seconds = {name: host.tensor * _sum(tensors, updates[name]) for name in names}
    for name in names if batches > 1 else names[-1:]:
        seconds[name] += host.load

    def change(op: Op) -> Iterator[Op]:
        yield op
        if seconds[op.name]:
            yield Delay(name=f"{op.name}.host", action=op.action, stream=op.stream, seconds=seconds[op.name])

    return program.map_ops(change, seconds)


def tensors_by_stage(program: Program, model: Model) -> dict[int, int]:
    """The number of trained tensors that *program* holds of each of its stages of *model*."""
    return {
        stage: sum(len(one.trained.tensors) for one in own) for stage, own in weights_by_stage(program, model).items()
    }


def _sum(tensors: dict[int, int], stages: Collection[int]) -> int:
    return sum(tensors.get(stage, 0) for stage in stages)


def _is_notice(op: Op) -> bool:
    """True if *op* stands for the clock of a scheduler that recomputes late: no host waits for it."""
    return op.action is not None and op.action.phase == "R"
