"""A candidate is one algorithm with one protocol for a communication: its steps on the links, with their latencies."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from math import inf

from simulator.network.plan import Flow
from simulator.network.step import Step
from simulator.network.transport.group_properties import NET
from simulator.network.transport.group_topology import GroupTopology
from simulator.network.transport.transport import Transport

GROUPED = "all_to_all", "gather", "scatter"
"""Collectives that are sends and receives of one group."""


@dataclass(frozen=True, slots=True)
class PlacedStep:
    """A *step* on the links: *latency* seconds, then *flows*, which take *busy* seconds on idle links."""

    step: Step
    latency: float
    flows: tuple[Flow, ...]
    busy: float


@dataclass(frozen=True, slots=True)
class Candidate:
    """The *placed* steps of *algorithm* by *protocol*.

    *base*: seconds paid once. *latency_factor* applies to all latency.
    """

    algorithm: str
    protocol: str
    placed: tuple[PlacedStep, ...]
    base: float
    latency_factor: float

    @property
    def seconds(self) -> float:
        """Duration on idle links."""
        latency = self.base + sum(one.latency for one in self.placed)
        return self.latency_factor * latency + sum(one.busy for one in self.placed)

    @property
    def sent_bytes(self) -> float:
        """Bytes of all transfers together."""
        return sum(one.step.nbytes * one.step.repeat * len(one.step.transfers) for one in self.placed)


def candidates(
    transport: Transport, topology: GroupTopology, kind: str, choices: Mapping[str, Sequence[Step]], nbytes: float
) -> Iterator[Candidate]:
    """Yield each of *choices* (steps by algorithm) with each protocol that *transport* may use."""
    for algorithm, steps in choices.items():
        protocols = transport.usable_protocols(algorithm, topology.properties)
        if algorithm == "direct":
            protocols = transport.sized(protocols, max((step.nbytes for step in steps), default=0.0))
        for protocol in protocols:
            yield candidate(transport, topology, kind, algorithm, protocol, steps, nbytes)


def candidate(
    transport: Transport,
    topology: GroupTopology,
    kind: str,
    algorithm: str,
    protocol: str,
    steps: Sequence[Step],
    nbytes: float,
) -> Candidate:
    """Return the *steps* of a collective of *nbytes* by *algorithm* and *protocol*, with the costs of *transport*."""
    properties = topology.properties
    if transport.chains_by_rank and algorithm == "tree" and properties.servers != 2:
        # NCCL judges a tree by half its bus bandwidth, but for two servers by what they carry inside
        # (ncclTopoTuneModel)
        steps = [part for step in steps for part in step.passes()]
    correction = transport.correction(algorithm, protocol, nbytes)
    share = transport.share(kind, algorithm, protocol, properties) * correction
    pipelined = transport.pipeline_share(
        algorithm, sum(step.repeat for step in steps if not (step.pipelined or step.continues))
    )
    ceiling = transport.ceiling(kind, algorithm, protocol, properties) * correction * pipelined

    def placed(step: Step) -> PlacedStep:
        load, flows = topology.link_load(step), topology.flows(transport, step, share, ceiling)
        round_busy = topology.busy(flows) * step.nbytes
        if transport.chains_by_rank and algorithm == "ring" and step.pipelined:
            return PlacedStep(
                step, transport.chain_estimate(algorithm, protocol, properties), flows, round_busy * step.repeat
            )
        seconds = {hop: transport.message(*hop, algorithm, protocol, properties) for hop in load.distinct_hops}
        alphas = [seconds[hop] for hop in load.hops]
        segments = transport.segments if properties.tcp else 0
        if (transport.overlapped_latency or segments) and step.coupled and not step.pipelined:
            chunk = transport.round_bytes.get((algorithm, protocol), inf) * max(1, transport.blocks)
            betas = topology.seconds_per_byte(step, flows[0])
            ready = [alpha + wire for alpha, (wire, _) in zip(alphas, load.hops, strict=True)] if segments else None
            latency = step.exposed(alphas, betas, chunk, segments or transport.slices.get(algorithm, 1), ready)
        else:
            latency = step.latency(alphas)
        if step.pipelined and transport.fills:
            # the first chunks go up a tree before any comes down, so each way they have the links to themselves
            for part in step.passes() if algorithm == "tree" else [step]:
                flow = topology.flows(transport, part, share, ceiling)[0]
                latency += _filling(transport, topology, algorithm, protocol, part, flow)
        if kind in GROUPED and transport.fills and not step.continues:
            latency += round_busy * _in_flight(transport, topology, algorithm, protocol, step)
        if kind == "all_to_all" and (algorithm, protocol) in transport.own_rate:
            latency += step.nbytes * step.repeat / transport.own_rate[algorithm, protocol]
        return PlacedStep(step, latency, flows, round_busy * step.repeat)

    latency_factor = transport.latency_factor(kind, algorithm, protocol, nbytes, properties)
    return Candidate(
        algorithm,
        protocol,
        tuple(map(placed, steps)),
        transport.base(algorithm, protocol, properties.link),
        latency_factor,
    )


def _filling(
    transport: Transport, topology: GroupTopology, algorithm: str, protocol: str, step: Step, flow: Flow
) -> float:
    """The seconds until a pipelined *step* has chunks on all its hops, and those that its rounds of chunks add.

    A ring of the group stands for all its channels, which fill at once; a tree is one channel.
    """
    key, whole = (algorithm, protocol), step.nbytes * step.repeat
    channels = max(1, transport.blocks * len(topology.group.channels) // step.lanes)
    inside = across = step.nbytes
    if key in transport.chunk_bytes:
        inside = across = channels * transport.chunk(*key, whole / channels, step.rounds)
    if key in transport.net_chunk_bytes:
        across = channels * transport.chunk(*key, whole / channels, topology.properties.tree_steps, net=True)
    hops = zip(topology.link_load(step).hops, topology.seconds_per_byte(step, flow), strict=True)
    busy = [(across if hop == NET else inside) * beta for (_, hop), beta in hops]
    rounds = whole / inside
    filling = step.fill(busy) + transport.copies.get((algorithm, protocol), 0) * max(busy)
    return filling + transport.round_latency.get((algorithm, protocol), 0.0) * rounds


def _in_flight(transport: Transport, topology: GroupTopology, algorithm: str, protocol: str, step: Step) -> float:
    """The share of a rank's bytes that fill its channels' buffers before the first of them is copied out.

    Grouped sends and receives have a power of two of channels.
    """
    key, across = (algorithm, protocol), topology.properties.servers > 1
    copies, sizes = transport.copies.get(key, 0), transport.net_chunk_bytes if across else transport.chunk_bytes
    if not copies or key not in sizes:
        return 0.0
    chunk = sizes[key][0]
    channels = 1 << (topology.channels - 1).bit_length()
    return copies * min(1.0, chunk * channels / (step.nbytes * topology.most(step)))
