"""Chakra execution traces, one file a rank: nodes with durations and the nodes that they wait for.

The format is that of `simulator.traces.chakra`, which writes it: messages behind their lengths, the metadata first
(mlcommons/chakra, schema/protobuf/et_def.proto). The groups of collectives are in ``comm_group.json`` beside the files.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, NamedTuple

from clustersim.scenarios.real_traces.kernels_and_communications import OTHER, PRODUCT
from clustersim.scenarios.real_traces.pieces_of_work import COPY, HOST
from clustersim.scenarios.real_traces.work import RankWork, TracedExchange, TracedWork
from clustersim.simulator.reading.errors import TraceError
from clustersim.simulator.reading.plain_text import printable
from clustersim.simulator.traces import chakra
from clustersim.simulator.traces.protobuf import TruncatedMessageError, fields

SUFFIX = ".et"
GROUPS = "comm_group.json"
LARGEST = 2**31
"""Bytes of a file at most."""

_RANK = re.compile(r"\.(\d+)\.et$")
_KINDS = {number: kind for kind, number in chakra.KINDS.items()}


class Node(NamedTuple):
    """A node of the graph: its *number*, *name*, type, duration (s), what it waits for, and its attributes."""

    number: int
    name: str
    kind: int
    seconds: float
    after: tuple[int, ...]
    attributes: Mapping[str, Any]


def chakra_work(path: Path) -> RankWork:
    """Return the work of the rank of which *path* is the trace. Raises `TraceError`."""
    found = _RANK.search(path.name)
    if found is None:
        raise TraceError(f"{path}: its name does not end with the rank, as in NAME.0.et")
    rank, groups = int(found.group(1)), _groups(path.with_name(GROUPS))
    nodes = list(_nodes(path))
    if not nodes:
        raise TraceError(f"{path}: has no nodes")
    place = {node.number: number for number, node in enumerate(nodes)}
    works: list[TracedWork] = []
    chains = _NodeChains()
    for number, node in enumerate(nodes):
        if missing := [one for one in node.after if place.get(one, number) >= number]:
            raise TraceError(f"{path}: node {node.number} waits for node {missing[0]}, which does not come before it")
        after = tuple(place[one] for one in node.after)
        work = _work(path, node, after, rank, groups)
        works.append(work._replace(stream=chains.stream(number, after, work.stream)))
    return RankWork(rank, tuple(works))


class _NodeChains:
    """Streams of computation: the nodes have none, but each waits for the node before it on its stream."""

    def __init__(self) -> None:
        self._tails: dict[int, int] = {}
        self._last: list[int] = []
        self._chain: dict[int, int] = {}

    def stream(self, number: int, after: tuple[int, ...], given: str) -> str:
        """Return the stream of node *number*: the *given* one of a communication, or a chain that it can follow."""
        before = (self._last[one] for one in after)
        last = next((one for one in before if one >= 0 and self._tails[self._chain[one]] == one), -1)
        if given:
            # what waits for a communication may go on with the chain before it
            self._last.append(last)
            return given
        chain = self._chain[last] if last >= 0 else len(self._tails)
        self._tails[chain], self._chain[number] = number, chain
        self._last.append(number)
        return f"stream {chain}"


def _work(
    path: Path, node: Node, after: tuple[int, ...], rank: int, groups: Mapping[str, tuple[int, ...]]
) -> TracedWork:
    attributes = node.attributes
    name = node.name
    if node.kind == chakra.COLLECTIVE:
        exchange = _collective(path, node, rank, groups)
        stream = f"group {exchange.name}"
        return TracedWork(name, exchange.kind, stream, node.seconds, after, exchange=exchange)
    if node.kind in (chakra.SEND, chakra.RECEIVE):
        kind = "send" if node.kind == chakra.SEND else "recv"
        source, target, size, tag = (
            _whole(path, node, key) for key in ("comm_src", "comm_dst", "comm_size", "comm_tag")
        )
        group = tuple(sorted((source, target)))
        message = TracedExchange(kind, float(size), group, f"{group[0]}-{group[1]}", source, target, tag)
        return TracedWork(name, kind, f"{kind} {source} {target}", node.seconds, after, exchange=message)
    if node.kind in (chakra.LOAD, chakra.STORE):
        return TracedWork(name, COPY, "", node.seconds, after)
    if node.kind != chakra.COMPUTE:
        return TracedWork(name, HOST, "", node.seconds, after)
    part = HOST if attributes.get("is_cpu_op") else "compute"
    return TracedWork(name, part, "", node.seconds, after, kernel_class=PRODUCT if attributes.get("num_ops") else OTHER)


def _collective(path: Path, node: Node, rank: int, groups: Mapping[str, tuple[int, ...]]) -> TracedExchange:
    kind = _KINDS.get(_whole(path, node, "comm_type"))
    if kind is None:
        raise TraceError(
            f"{path}: node {node.number}, {node.name}: comm_type {node.attributes['comm_type']} is unknown"
        )
    name = str(node.attributes.get("pg_name", ""))
    if name not in groups:
        raise TraceError(
            f'{path}: node {node.number}, {node.name}: there is no group "{name}" in {path.with_name(GROUPS).name}'
        )
    group = groups[name]
    if rank not in group:
        raise TraceError(f'{path}: node {node.number}, {node.name}: rank {rank} is not in its group "{name}"')
    size = float(_whole(path, node, "comm_size"))
    # an all-gather is counted by the bytes of one rank
    return TracedExchange(kind, size * len(group) if kind == "all_gather" else size, group, name)


def _whole(path: Path, node: Node, key: str) -> int:
    value = node.attributes.get(key)
    if not isinstance(value, int):
        raise TraceError(f"{path}: node {node.number}, {node.name}: has no {key}; it is needed to simulate it")
    return value


def _groups(path: Path) -> dict[str, tuple[int, ...]]:
    if not path.is_file():
        return {}
    try:
        found = json.loads(path.read_text())
        return {str(name): tuple(int(rank) for rank in ranks) for name, ranks in found.items()}
    except (ValueError, TypeError, AttributeError, OSError):
        raise TraceError(f'{path}: must be an object of lists of ranks, as {{"1": [0, 1]}}') from None


def _nodes(path: Path) -> Iterator[Node]:
    """Yield the nodes of the file at *path*, which follow the metadata."""
    try:
        content = path.read_bytes()[:LARGEST]
        # each message follows its length, as a field of messages does its tag
        messages = [bytes(value) for _, value in fields(content, tagged=False)]
        for one in messages[1:]:
            yield _node(one)
    except OSError as error:
        raise TraceError(f"{path}: cannot be read: {error.strerror or error}") from None
    except TruncatedMessageError as fault:
        raise TraceError(f"{path}: {fault}; copy it again, or record it again") from None


def _node(content: bytes) -> Node:
    number, name, kind, micros = 0, "", 0, 0
    after: list[int] = []
    attributes: dict[str, Any] = {}
    for field, value in fields(content):
        if field == 1:
            number = int(value)
        elif field == 2:
            name = printable(bytes(value).decode(errors="replace")[:200])
        elif field == 3:
            kind = int(value)
        elif field in (4, 5):
            after += _numbers(value)
        elif field == 7:
            micros = int(value)
        elif field == 10:
            key, known = _attribute(bytes(value))
            attributes[key] = known
    return Node(number, name, kind, micros * 1e-6, tuple(after), attributes)


def _numbers(value: int | bytes) -> list[int]:
    """Return the numbers of a repeated field: one, or several that are packed."""
    return [value] if isinstance(value, int) else [int(one) for _, one in fields(value, packed=True)]


def _attribute(content: bytes) -> tuple[str, Any]:
    name, known = "", None
    for field, value in fields(content):
        if field == 1:
            name = bytes(value).decode(errors="replace")
        elif field != 2:
            known = value if isinstance(value, int) else bytes(value).decode(errors="replace")
    return name, known
