"""What a kernel does: its elementary operation, the operator that it is part of, and the class of the operation.

The operator is what a layer is made of (attention, layer norm, GELU); its kernels are elementary operations (matmul,
softmax, dropout). Classes are those of Ivanov et al. 2021, "Data Movement Is All You Need" (arXiv:2007.00072, section
2.3), which divide kernels by their arithmetic intensity, and those that only some layers or the optimizer have.
"""

from __future__ import annotations

from dataclasses import dataclass

from simulator.errors import ScheduleError

CLASSES = (
    "product",
    "attention",
    "normalisation",
    "elementwise",
    "embedding",
    "loss",
    "optimizer",
    "measured",
)
"""*product*: matrix products and convolutions; *attention*: products and softmax in one kernel; *normalisation*: layer
norms, and softmaxes with scale, mask and dropout of the scores; *optimizer*: passes over parameters, gradients and
states; *measured*: a duration is given, and what runs in it is not known. To add a class, name it here."""


@dataclass(frozen=True, slots=True)
class Operation:
    """The elementary operation *name* of class *kind*, part of *operator* (default: an operator of the same name).

    >>> Operation("softmax", "normalisation", "attention")
    Operation(name='softmax', kind='normalisation', operator='attention')
    >>> Operation("layer norm", "normalisation").operator
    'layer norm'
    """

    name: str
    kind: str
    operator: str = ""

    def __post_init__(self) -> None:
        if self.kind not in CLASSES:
            raise ScheduleError(f'{self.name} is of the unknown class "{self.kind}"; there are: {", ".join(CLASSES)}')
        if not self.operator:
            object.__setattr__(self, "operator", self.name)


MEASURED = Operation("measured", "measured")
"""Of a kernel that stands for a measured duration."""
