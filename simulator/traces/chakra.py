"""One rank of a timeline as a Chakra execution trace, which ASTRA-sim reads.

A file is a series of messages, each behind its length: the metadata, then a node for each op (mlcommons/chakra,
schema/protobuf/et_def.proto; github.com/mlcommons/chakra, src/third_party/utils/protolib.py). The reader takes each
attribute from one field of its value, which is why the fields have exactly these types (src/feeder/et_feeder_node.cpp):
``is_cpu_op`` bool; ``num_ops``, ``comm_type``, ``comm_size`` int64; ``tensor_size`` uint64; ``comm_src``, ``comm_dst``,
``comm_tag`` int32; ``pg_name`` string. It follows data dependencies only, so the order of a stream is one too.
"""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Iterator, Sequence
from functools import cached_property

from clustersim.simulator.analysis.timeline import Timeline, op_names
from clustersim.simulator.schedule.dependencies import dependencies
from clustersim.simulator.schedule.ops import Collective, Compute, Copy, Delay, Op, Recv, Send
from clustersim.simulator.traces.protobuf import message, number, varint

VERSION = "0.0.4"
"""The version of the schema."""

LOAD, STORE, COMPUTE, SEND, RECEIVE, COLLECTIVE = 2, 3, 4, 5, 6, 7
"""Types of nodes: et_def.proto, NodeType."""

KINDS = {
    "all_reduce": 0,
    "reduce": 1,
    "all_gather": 2,
    "gather": 3,
    "scatter": 4,
    "broadcast": 5,
    "all_to_all": 6,
    "reduce_scatter": 7,
}
"""Kinds of collectives: et_def.proto, CollectiveCommType."""

INT32, INT64, UINT64, BOOL, STRING = 7, 9, 13, 27, 29
"""Fields of the value of an attribute: et_def.proto, AttributeProto."""


class Traces:
    """The execution traces of a *timeline*, one for each rank, with common groups and tags."""

    def __init__(self, timeline: Timeline) -> None:
        self.timeline = timeline
        self._matching = timeline.schedule.matching

    @cached_property
    def groups(self) -> dict[tuple[int, ...], int]:
        """The number of each group of ranks that communicates, from 1: ASTRA-sim takes 0 as all ranks."""
        mesh = self.timeline.schedule.mesh
        used = {op.over for _, op in self.timeline.schedule.ops() if isinstance(op, Collective)}
        found = (group for name, axis in mesh.axes.items() if name in used for group in axis.groups)
        return {group: place for place, group in enumerate(dict.fromkeys(found), 1)}

    def groups_file(self) -> str:
        """Return the ranks of each group as ASTRA-sim's ``--comm-group-configuration`` reads them."""
        return json.dumps({str(place): list(group) for group, place in self.groups.items()}, indent=1) + "\n"

    def trace(self, rank: int) -> bytes:
        """Return the trace of the first training step of *rank*."""
        metadata = message(1, VERSION)
        return b"".join(varint(len(one)) + one for one in (metadata, *self._nodes(rank)))

    def _nodes(self, rank: int) -> Iterator[bytes]:
        schedule = self.timeline.schedule
        program, own = schedule.program(rank), self.timeline.of(rank)
        keys = self._matching.key[schedule.program_of[rank]].tolist()
        first = own.step == own.step.min()
        seconds = dict(zip(own.op[first].tolist(), (own.end - own.begin)[first].tolist(), strict=True))
        awaited: dict[int, list[int]] = defaultdict(list)
        for waiting, one in zip(*(column.tolist() for column in dependencies(program)), strict=True):
            awaited[waiting].append(one)
        last: dict[str, int] = {}
        for place, (name, op) in enumerate(zip(op_names(program), program.ops, strict=True)):
            before = [*([last[op.stream]] if op.stream in last else []), *awaited[place]]
            last[op.stream] = place
            yield self._node(place, name, op, rank, seconds.get(place, 0.0), before, keys[place])

    def _node(self, place: int, name: str, op: Op, rank: int, seconds: float, before: Sequence[int], key: int) -> bytes:
        kind, attributes = self._attributes(op, rank, key)
        micros = max(1, round(seconds * 1e6)) if seconds else 0
        head = number(1, place) + message(2, name) + number(3, kind)
        waits = b"".join(number(5, one) for one in dict.fromkeys(before))
        return head + waits + number(7, micros) + b"".join(message(10, one) for one in attributes)

    def _attributes(self, op: Op, rank: int, key: int) -> tuple[int, list[bytes]]:
        """Return the type of the node of *op*, and its attributes. *key*: equal for ops that meet."""
        on_host = isinstance(op, Delay) or (isinstance(op, Compute) and op.on == "host")
        found = [_attribute("is_cpu_op", BOOL, int(on_host))]
        match op:
            case Compute():
                flops, nbytes = (sum(getattr(one, name) for one in op.kernels) for name in ("flops", "nbytes"))
                sizes = {"num_ops": (INT64, round(flops)), "tensor_size": (UINT64, round(nbytes))}
                return COMPUTE, found + [_attribute(name, *value) for name, value in sizes.items()]
            case Copy():
                size = _attribute("tensor_size", UINT64, round(op.nbytes))
                return LOAD if op.to == "gpu" else STORE, [*found, size]
            case Collective():
                return COLLECTIVE, found + self._collective(op, rank)
            case Send() | Recv():
                peer = self._group(op.over, rank)[op.peer]
                ends = (rank, peer) if isinstance(op, Send) else (peer, rank)
                values = {"comm_src": ends[0], "comm_dst": ends[1], "comm_tag": key}
                found += [_attribute("comm_size", INT64, round(op.nbytes))]
                found += [_attribute(name, INT32, value) for name, value in values.items()]
                return SEND if isinstance(op, Send) else RECEIVE, found
        return COMPUTE, found

    def _collective(self, op: Collective, rank: int) -> list[bytes]:
        group = self._group(op.over, rank)
        # ASTRA-sim counts an all-gather by the bytes of one rank (native_collectives/collective_algorithm/Ring.cc)
        nbytes = op.nbytes / len(group) if op.kind == "all_gather" else op.nbytes
        return [
            _attribute("comm_type", INT64, KINDS[op.kind]),
            _attribute("comm_size", INT64, round(nbytes)),
            _attribute("pg_name", STRING, str(self.groups[group])),
        ]

    def _group(self, axis: str, rank: int) -> tuple[int, ...]:
        place = self.timeline.schedule.mesh.axes[axis].place(rank)
        return self.timeline.schedule.mesh.axes[axis].groups[place[0]] if place else (rank,)


def _attribute(name: str, field: int, value: int | str) -> bytes:
    """Return the attribute *name* with *value* in the *field* of its type."""
    return message(1, name) + (message(field, value) if isinstance(value, str) else number(field, value))
