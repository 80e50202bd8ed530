"""Two ways to save the memory of a GPU: recomputation (`training.recompute`, a word or a section), and the section
`training.offload`, which names what lives in the memory of the host, or on its NVMe drives.

Activations are copied out in the forward pass and back before the backward pass. States are those of ZeRO-Offload (Ren
et al. 2021, arXiv:2101.06840), ZeRO-Infinity (Rajbhandari et al. 2021, arXiv:2104.07857), FSDP's ``CPUOffload`` and
Megatron Core's hybrid optimizer.
"""

from typing import Annotated, Any, Literal, Self

from pydantic import AfterValidator, BeforeValidator, Discriminator, Field, Tag, model_validator

from clustersim.simulator.reading.quantities import BelongsTo, Count, Flag, Fraction, Index, Section, Size
from clustersim.simulator.reading.validation import Fault, listed, near
from clustersim.workloads.operators.operator import RECOMPUTABLE, Recomputable, Rule

GROUPED = ("uniform", "block")
"""Methods that count layers."""

AUTO = "auto"


def _recompute_of_word(value: Any) -> Any:
    if value == "operators":
        raise ValueError("operators needs their names; write {method: operators, operators: [norm, swiglu]}")
    if value in GROUPED:
        raise ValueError(f"{value} counts layers; write {{method: {value}, num_layers: 1}}")
    return value


def _of_method(*methods: str) -> BelongsTo:
    return BelongsTo("method", *methods, to=f"method: {listed(methods)}, not to {{value}}")


class Recompute(Section):
    """Activations that are computed again in the backward pass."""

    method: Literal["none", "selective", "full", "uniform", "block", "operators", "optimal"]
    """none, selective (attention), full (each layer), uniform (groups of num_layers layers keep the input of the
    group), block (the first num_layers layers of each stage), operators (those that are named, or by every), optimal
    (the fastest within budget). Required."""
    num_layers: Annotated[Count | None, _of_method(*GROUPED)] = None
    """Of uniform, the layers of a group; of block, the layers that are recomputed; by default 1."""
    operators: Annotated[Annotated[list[Recomputable], Field(min_length=1)] | None, _of_method("operators")] = None
    """Of operators: attention (core attention), experts (a mixture and its exchanges), mla_up (what makes queries, keys
    and values of latent attention), mlp (dense feed-forward networks), norm, swiglu (activation functions), as
    Megatron-LM's --recompute-modules."""
    every: Annotated[Count | None, _of_method("operators")] = None
    """Of operators: each matrix product with a number that is a multiple of it, and all that is no product, runs again,
    as torchtitan's selective checkpoints by operator with 2."""
    budget: Annotated[Literal["auto"] | Size | None, _of_method("optimal")] = None
    """Of optimal, the bytes of activations on each GPU; by default auto: what states, buffers and reserves leave of its
    memory."""

    @model_validator(mode="after")
    def _consistent(self) -> Self:
        if self.method == "operators" and (self.operators is None) == (self.every is None):
            raise Fault(
                "operators", f"needs one of operators, a list of {', '.join(RECOMPUTABLE)}, and every, such as 2"
            )
        if self.every == 1:
            raise Fault("every", "must be 2 or more; take method: full for 1")
        return self

    def __str__(self) -> str:
        """In a title.

        >>> str(Recompute(method="block", num_layers=4))
        'block 4'
        """
        numbers = (str(one) for one in (self.num_layers, self.every) if one)
        return " ".join([self.method, *numbers, *(self.operators or ())])

    @property
    def rule(self) -> Rule | None:
        """What runs again by operator; None: nothing does. Activation functions have a rule of their own."""
        if self.method != "operators":
            return None
        return Rule(frozenset(self.operators or ()) - {"swiglu"}, self.every or 0)


Word = Literal["none", "selective", "full", "optimal"]

AnyRecompute = Annotated[
    Annotated[Word, BeforeValidator(_recompute_of_word), Tag("word")] | Annotated[Recompute, Tag("section")],
    Discriminator(lambda value: "section" if isinstance(value, dict | Recompute) else "word"),
]
"""One word, or a section."""


def _not_none(share: float) -> float:
    if not share:
        raise ValueError("must be above 0, not 0; optimizer: gpu offloads nothing")
    return share


PLANNED = "auto", "karma"
"""Words for which a programme chooses the activations that are copied."""

CHOICES = "none", "all", *PLANNED

OF_CHOSEN_LAYERS = BelongsTo(
    "activations", "all", among=("none", *PLANNED), to="layers that are chosen, but activations is {value}"
)
"""A list of layers allows them too."""

OF_STATES = BelongsTo("states", True, to="states off the GPU; copies of activations always run beside computation")

OF_HOST_OPTIMIZER = BelongsTo("optimizer", "host", "nvme", to="an optimizer on the host: add optimizer: host")


def _offload_of_word(value: Any) -> Any:
    if isinstance(value, str) and value not in CHOICES:
        hint = near(value, CHOICES)
        raise ValueError(
            f'must be {listed(CHOICES)}, or a list of layers, not "{value}"' + (f"; {hint}" if hint else "")
        )
    return value


class Offload(Section):
    """What is offloaded, and where to."""

    activations: Annotated[
        Literal["none", "all", "auto", "karma"] | list[Index | str], BeforeValidator(_offload_of_word)
    ] = "none"
    """Layers whose saved activations are copied to the host: none, all, karma (each layer is copied or computed again,
    after KARMA), auto (as few as let the step fit; with recompute: optimal the fastest combination), or a list of names
    or numbers of layers, counted from 0 with the embedding."""
    outstanding: Annotated[Count, OF_CHOSEN_LAYERS] = 1
    """Copies of activations to the host that may be under way when the forward pass of a layer begins; it waits for
    earlier ones. 1 is a double buffer."""
    ahead: Annotated[Count, OF_CHOSEN_LAYERS] = 1
    """How many layers before the backward pass of a layer the copy of its activations back begins. 1 is a double
    buffer."""
    budget: Annotated[
        Literal["auto"] | Size | None,
        BelongsTo("activations", *PLANNED, to="activations: auto or karma, but activations is {value}"),
    ] = None
    """Of auto and karma, the bytes of activations on each GPU; by default auto: what states, buffers and reserves leave
    of its memory. With recompute: optimal it is given there."""
    optimizer: Literal["gpu", "host", "nvme"] = "gpu"
    """Where the optimizer states live. Beside host or nvme, cores of the host update the parameters (CPU Adam)."""
    gradients: Literal["gpu", "host"] = "gpu"
    """Where gradients live: on the host each leaves the GPU as soon as its bucket is complete, in the backward pass."""
    parameters: Literal["gpu", "host", "nvme"] = "gpu"
    """Where parameters live: off the GPU every layer is fetched before its use (ZeRO-3 Offload, ZeRO-Infinity,
    CPUOffload of FSDP)."""
    optimizer_fraction: Annotated[Fraction, AfterValidator(_not_none), OF_HOST_OPTIMIZER] = 1.0
    """Share of the optimizer states that leaves the GPU, which updates the rest (ratio of DeepSpeed,
    optimizer_offload_fraction of Megatron Core)."""
    delayed_update: Annotated[Flag, OF_HOST_OPTIMIZER] = False
    """The host updates with the gradients of the step before, beside this step's forward and backward pass."""
    cpu_optimizer: Annotated[Literal["fused", "unfused"] | None, OF_HOST_OPTIMIZER] = None
    """Passes of the update on the host: one over all tensors (DeepSpeedCPUAdam), or one for each operation (torch); by
    default that of the method: unfused for fsdp."""
    overlap: Annotated[Flag | None, OF_STATES] = None
    """Copies of states run beside computation, else the GPU waits for each; by default as the exchanges of the method
    (overlap of data)."""

    @property
    def planned(self) -> bool:
        """True if a programme chooses the activations that are copied."""
        return self.activations in PLANNED

    @property
    def states(self) -> bool:
        """True if anything but activations is offloaded."""
        return {self.optimizer, self.gradients, self.parameters} != {"gpu"}

    @property
    def on_drives(self) -> tuple[str, ...]:
        """The keys of what is on NVMe drives."""
        return tuple(key for key in ("optimizer", "parameters") if getattr(self, key) == "nvme")

    @model_validator(mode="after")
    def _states(self) -> Self:
        updated = "on the host they are updated there, so their optimizer states too: add optimizer: host"
        if self.optimizer == "gpu":
            if self.gradients != "gpu":
                raise Fault("gradients", updated)
            if self.parameters != "gpu":
                raise Fault("parameters", updated.replace("on the host they", "off the GPU they"))
        if self.delayed_update and self.optimizer_fraction < 1.0:
            raise Fault("delayed_update", "needs all optimizer states on the host; drop optimizer_fraction")
        if self.delayed_update and self.parameters != "gpu":
            raise Fault("delayed_update", "needs the parameters on the GPU, as ZeRO-Offload has them")
        if self.gradients == "gpu" and self.parameters != "gpu":
            raise Fault("gradients", "are on the host wherever parameters are off the GPU: add gradients: host")
        return self
