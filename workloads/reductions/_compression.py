"""One file is one way to reduce gradients: a function of the file's name returns a `Reduction` (bucket -> ops).

A function with a first parameter *reduction* compresses: it wraps another reduction, and may shrink the bucket, add
kernels, or choose other collectives. Its further parameters are the keys of ``parallelism.data.compression``. With the
same parameters, a function ``gathering`` of the file says how sharded weights are gathered.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any, Self

from pydantic import ConfigDict, model_validator

from clustersim.simulator.reading import lookup
from clustersim.simulator.reading.errors import ScheduleError
from clustersim.simulator.reading.names_and_parameters import known, parameters
from clustersim.simulator.reading.quantities import Section
from clustersim.simulator.reading.validation import Fault
from clustersim.simulator.schedule.ops import Collective, Op, Recv, Send
from clustersim.workloads.data_parallel.buckets import Bucket, Reduction

if TYPE_CHECKING:
    from clustersim.workloads.data_parallel.parameter_gathers import Gathering

PACKAGE = "clustersim.workloads.reductions"

COMMUNICATIONS = Collective | Send | Recv


class CompressionKeys(Section):
    """How gradients are compressed: *method* is a file of this folder, or an import path; more keys are its own."""

    model_config = ConfigDict(extra="allow")

    method: str
    """fp16, quantise, sign, one_bit_adam, top_k, random_k, powersgd, atomo, gradzip or sketched, or an import path of
    your own; further keys are its parameters. Required."""

    @model_validator(mode="after")
    def _fits(self) -> Self:
        try:
            known(self.method, PACKAGE, only=methods())
        except Fault as fault:
            raise Fault("method", fault.message, fault.hint) from None
        self._parameters()
        return self

    def wrap(self, reduction: Reduction) -> Reduction:
        """*reduction* with compressed buckets."""
        made: Reduction = lookup.function(PACKAGE, self.method)(reduction, **self._parameters())
        return _exchanging(self.method, made) if "." in self.method else made

    @property
    def gathering(self) -> Gathering | None:
        """How a method that gathers parameters does so; None for one that compresses gradients alone."""
        made = lookup.attribute(lookup.function(PACKAGE, self.method), "gathering")
        return made(**self._parameters()) if made else None

    def _parameters(self) -> dict[str, Any]:
        return parameters(lookup.function(PACKAGE, self.method), self.model_extra or {}, ("method",))


def _exchanging(name: str, reduction: Reduction) -> Reduction:
    """The user's *reduction*, which must exchange something over the axis of each bucket that several ranks hold."""

    def checked(bucket: Bucket) -> Iterator[Op]:
        ops = list(reduction(bucket))
        if bucket.ranks > 1 and not any(isinstance(op, COMMUNICATIONS) and op.nbytes for op in ops):
            raise ScheduleError(
                f"{name} exchanges nothing: the gradients of {bucket.layer}, {bucket.nbytes:.0f} B, stay different on "
                f"the {bucket.ranks} ranks of {bucket.over}; yield a Collective, or the ops of the reduction it wraps"
            )
        yield from ops

    return checked


def methods() -> list[str]:
    """The names of the files whose function wraps another reduction."""
    return [name for name in lookup.names(PACKAGE) if _wraps(name)]


def _wraps(name: str) -> bool:
    function = lookup.function(PACKAGE, name)
    return "reduction" in function.__code__.co_varnames[: function.__code__.co_argcount]
