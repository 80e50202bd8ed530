"""Pieces of work of a rank: kernels, copies, and communications of NCCL, RCCL and gloo in one vocabulary."""

from __future__ import annotations

import re
from collections.abc import Mapping
from math import nan, prod
from typing import Any, NamedTuple

from clustersim.scenarios.real_traces.trace_file import Event

PHASES = ("forward", "backward", "optimizer", "compute")
"""Parts of computation; ``compute`` if the trace does not tell the phase."""

COPY, WAITING, LOADING, HOST = "copy", "waiting", "loading", "host"
"""Other parts: copies; waits of a communication for its partners; loading of samples; work of the host alone."""

Shape = tuple[int, int, int, int]
"""(batch, m, n, k) of a matrix product."""


class Call(NamedTuple):
    """A communication: its *kind*, the bytes of the full vector (None: not known), its group and *ranks* there.

    The *group* is equal on all of its members.
    """

    kind: str
    nbytes: float | None
    group: str
    ranks: int


class Piece(NamedTuple):
    """Work from *begin* to *end* (s) on *stream*; *part*: a phase, ``copy`` or the kind of communication.

    *launched*: when the host launched it; nan if that is not known. *op*: the operator that launched it, with *shape*
    and *precision* if it is a matrix product. *wait*: seconds at its begin in which a communication waits for partners.
    *nbytes*: what an elementwise operator reads and writes; 0 if unknown.
    """

    name: str
    part: str
    stream: str
    begin: float
    end: float
    launched: float = nan
    op: str = ""
    layer: str = ""
    shape: Shape | None = None
    precision: str = ""
    call: Call | None = None
    wait: float = 0.0
    nbytes: float = 0.0

    @property
    def seconds(self) -> float:
        """Its duration, s."""
        return self.end - self.begin


KINDS = {
    "allreduce": "all_reduce",
    "allgather": "all_gather",
    "reducescatter": "reduce_scatter",
    "alltoall": "all_to_all",
    "broadcast": "broadcast",
    "reduce": "reduce",
    "gather": "gather",
    "scatter": "scatter",
    "sendrecv": "send_recv",
    "send": "send",
    "recv": "recv",
    "barrier": "barrier",
}
"""Kinds of communication by the letters of their names in NCCL's kernels, in torch and in gloo; the longest first."""

BYTES = {
    "float": 4, "bfloat16": 2, "half": 2, "double": 8, "byte": 1, "char": 1, "int": 4, "long": 8, "bool": 1,
    "c10::bfloat16": 2, "c10::half": 2, "unsigned char": 1, "signed char": 1, "long int": 8, "float8_e4m3fn": 1,
    "float8_e5m2": 1, "c10::float8_e4m3fn": 1, "c10::float8_e5m2": 1,
}  # fmt: skip
"""Bytes of an element by torch's names of types, in lower case."""

MOST = 2**50
"""Elements of a tensor, or of one of its dimensions; more are a damaged file."""

DIMENSIONS = 16
"""Dimensions of a tensor at most; torch allows 64 and uses few."""

_KERNEL = re.compile(r"^(?:nccl(?:Dev)?Kernel_?|mscclKernel|rccl\w*Kernel_?)(\w+)", re.IGNORECASE)
_PAIRS = ("send", "recv", "send_recv")


def kind_of(name: str) -> str | None:
    """Return the kind of communication in *name*; None if there is none.

    >>> kind_of("_reduce_scatter_base"), kind_of("AllReduce_Sum_f32_RING_LL"), kind_of("aten::add")
    ('reduce_scatter', 'all_reduce', None)
    """
    letters = re.sub(r"[^a-z]", "", name.lower())
    return next((kind for key, kind in KINDS.items() if key in letters), None)


def kernel_kind(name: str) -> str | None:
    """Return the kind of the communication kernel *name*; None for another kernel.

    >>> kernel_kind("ncclDevKernel_AllGather_RING_LL(ncclDevKernelArgsStorage<4096ul>)"), kernel_kind("gemm")
    ('all_gather', None)
    """
    found = _KERNEL.match(name)
    return (kind_of(found.group(1)) or "other") if found else None


def call(kind: str, args: Mapping[str, Any], issued: Event | None, world: int) -> Call:
    """Return the call of a communication kernel with *args*, which *issued* launched; *world*: ranks of the job."""
    if kind in ("other", "send_recv"):
        # NCCL has one kernel for all exchanges of messages, RCCL one for all communications
        named = args.get("Collective name")
        by_torch = named if isinstance(named, str) else issued.name if issued is not None else ""
        kind = kind_of(by_torch) or kind
    size = args.get("Group size")
    ranks = size if isinstance(size, int) and 0 < size < 2**24 else world
    group = f"{args.get('Process Group Name', '')} {args.get('Process Group Ranks', '')}".strip()
    nbytes = _message(args)
    if nbytes is None and issued is not None:
        nbytes = vector(kind, tensor_bytes(issued.args), ranks)
    return Call(kind, nbytes, group, 2 if kind in _PAIRS else ranks)


def _message(args: Mapping[str, Any]) -> float | None:
    """Return the bytes of the full vector by torch's "In msg nelems" and "Out msg nelems"."""
    width = BYTES.get(str(args.get("dtype", "")).lower())
    counts = [args.get(key) for key in ("In msg nelems", "Out msg nelems")]
    known = [
        float(one) for one in counts if isinstance(one, int | float) and not isinstance(one, bool) and 0 <= one < MOST
    ]
    return width * max(known) if width and known else None


def vector(kind: str, nbytes: float | None, ranks: int) -> float | None:
    """Return the bytes of the full vector of *kind* with an input of *nbytes* on each rank, as nccl-tests count."""
    return nbytes * ranks if nbytes is not None and kind == "all_gather" else nbytes


def tensor_bytes(args: Mapping[str, Any]) -> float | None:
    """Return the bytes of the first tensor, or list of tensors, of an operator; None if it was not recorded.

    >>> tensor_bytes({"Input Dims": [[[256, 1024]], []], "Input type": ["TensorList", ""]}) is None
    True
    >>> tensor_bytes({"Input Dims": [[256, 1024]], "Input type": ["float"]})
    1048576.0
    """
    dims, types = args.get("Input Dims"), args.get("Input type")
    if not isinstance(dims, list) or not isinstance(types, list) or not dims or not types:
        return None
    width, shape = BYTES.get(str(types[0]).lower()), dims[0]
    if (
        width is None
        or not isinstance(shape, list)
        or len(shape) > DIMENSIONS
        or not all(isinstance(n, int) and 0 <= n < MOST for n in shape)
    ):
        return None
    return float(width * prod(shape))


def gloo_kind(name: str) -> str | None:
    """Return the kind of the operation of gloo *name*, such as ``gloo:all_reduce``; None for another event."""
    return kind_of(name.removeprefix("gloo:")) if name.startswith("gloo:") else None
