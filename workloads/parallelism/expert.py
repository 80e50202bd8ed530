"""Expert parallelism: ranks hold different experts, and tokens go to the ranks of their experts. A forward and a
backward of two micro-batches may run together.

Experts have a layout of their own over the ranks of a pipeline stage: ``expert_tp`` ranks share each expert, ``ep`` of
those groups hold different experts, and what is left are ranks with equal weights, which reduce gradients over the axis
``dp.expert`` (Liu et al. 2025, "MoE Parallel Folding", arXiv:2504.14960, section 3; Megatron-LM,
core/parallel_state.py, order tp-ep-dp-pp). Neither degree adds ranks.

The exchanges are in the model of one rank (`workloads.operators.experts`). If loads are unequal, each rank of a group
has a model of its own.

A forward and a backward of two micro-batches run together: orders with such pairs, and the ops of a pair.

Their computations alternate, and each exchange runs beside the computation of the other micro-batch: dispatch and
combine of one beside attention and experts of the other (DeepSeek-AI 2024, "DeepSeek-V3", arXiv:2412.19437, section
3.2.1, figure 4; Megatron-LM, ``--overlap-moe-expert-parallel-comm``). The parts between all-to-alls are issued in turn,
the backward's first, since it begins with an exchange. The results of both are sent when both are done
(deepseek-ai/DualPipe, dualpipe.py, ``_forward_backward_chunk``).

An order that pairs them itself, such as DualPipeV, keeps its pairs. Others get pairs by one more forward before the
first backward, as Megatron-LM has it.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import pairwise, zip_longest
from operator import itemgetter
from typing import TYPE_CHECKING, ClassVar, Literal

import numpy as np

from clustersim.simulator.reading.errors import ScenarioError, ScheduleError
from clustersim.simulator.reading.quantities import Count
from clustersim.simulator.reading.validation import Fault
from clustersim.simulator.schedule.mesh import Axis, Layout, Mesh
from clustersim.simulator.schedule.ops import Collective, Compute, Op
from clustersim.simulator.schedule.pipeline_order import Action, Order
from clustersim.simulator.schedule.program import Program, TemplatedOps
from clustersim.simulator.schedule.schedule import Schedule
from clustersim.workloads.data_parallel.gradients import actions
from clustersim.workloads.memory.compute import PIPELINE
from clustersim.workloads.operators.model import Model
from clustersim.workloads.operators.operator import REPLICAS
from clustersim.workloads.parallelism._parallelism import Choices, Chosen, Job, Parallelism, divisors, is_transformer
from clustersim.workloads.parallelism._tensor_grid import TENSOR

if TYPE_CHECKING:
    from clustersim.workloads.architectures.transformer import Transformer

EXPERT = "ep"
TENSOR_OF_EXPERTS, REPLICAS_OF_EXPERTS = "ep.tp", "dp.expert"


def _degrees(job: Job, chosen: Chosen) -> Sequence[int]:
    return divisors(job.experts, job.gpus) if job.experts else (1,)


def _tensor_of_experts(job: Job, chosen: Chosen) -> Sequence[int | None]:
    """Whole experts on a rank, or cut as the rest of the layer is."""
    return (1, None) if chosen["ep"] > 1 and chosen["tp"] != 1 else (None,)


class Expert(Parallelism):
    """Expert parallelism: ranks hold different experts of each layer."""

    axis: ClassVar[str] = EXPERT
    key: ClassVar[str] = "ep"
    searchable: ClassVar[Mapping[str, Choices]] = {"ep": _degrees, "expert_tp": _tensor_of_experts}

    ep: Count = 1
    """Ranks over which the experts are divided; ep * expert_tp must divide tp * cp * dp, and adds no ranks."""
    expert_tp: Count | None = None
    """Ranks that share every expert; by default tp, as in Megatron-LM."""
    ep_domain: Count | None = None
    """So many neighbours of an expert-parallel group have fast links: a token goes to each domain (node) once, and
    within it to its experts, as by DeepEP; 1 for DeepEP within one node: once to each rank. By default a copy of the
    token goes to each of its experts."""
    dispatch_precision: Literal["model", "fp8"] = "model"
    """In which tokens, and gradients, go to experts: that of the model, or fp8 with a scale for each 128 features.
    Results come back in that of the model."""
    moe_overlap: Literal["none", "shared_experts", "batch"] = "none"
    """What runs beside the exchanges of tokens: nothing, the shared expert, or another micro-batch; for that a forward
    and a backward run together. In dual_pipe and dual_pipe_v they always do."""

    def degrees(self, ranks: int) -> Mapping[str, int]:
        """None: experts are on the ranks of the other axes."""
        return {}

    @property
    def reduces_apart(self) -> bool:
        """Gradients of experts are reduced over the ranks with the same experts."""
        return self.ep > 1

    @property
    def described(self) -> str:
        """Its degrees, since they are no part of the product that gives the number of ranks."""
        shared = f" x expert_tp {self.expert_tp}" if self.expert_tp else ""
        return f"experts: ep {self.ep}{shared}" if self.ep > 1 or shared else ""

    def check(self, others: Mapping[str, Parallelism]) -> None:
        """A domain divides the group."""
        if self.ep_domain is not None and (self.ep_domain > self.ep or self.ep % self.ep_domain):
            from clustersim.workloads.architectures.shape import nearest_divisors

            good = " or ".join(map(str, nearest_divisors(self.ep, min(self.ep, self.ep_domain))))
            raise Fault("ep_domain", f"{self.ep_domain} does not divide ep = {self.ep}; try {good}")

    def share(self, model: Model) -> Model:
        """The model of the rank with most tokens."""
        if not is_transformer(model) or model.shape.experts is None:
            given = next((key for key, least in (("ep", 1), ("expert_tp", None)) if getattr(self, key) != least), None)
            if given:
                raise ScenarioError(f"{given} = {getattr(self, given)}: {model.name} has no experts; leave it out")
            return model
        from clustersim.workloads.operators.experts import ExpertCut

        experts, tensor = model.shape.experts, self.expert_tp or model.shape.cut.ranks
        _divides(EXPERT, self.ep, experts.count, f"experts of {model.name}")
        _divides("expert_tp", tensor, experts.width, "features of an expert")
        if self._folded(model):
            if model.shape.cut.ranks > 1 and not model.shape.cut.sequence:
                raise ScenarioError(
                    f"ep {self.ep} x expert_tp {tensor} with tp {model.shape.cut.ranks} needs sequence_parallel: true, "
                    "so that each rank sends tokens of its own"
                )
            cut = ExpertCut(self.ep, EXPERT, tensor, TENSOR_OF_EXPERTS, REPLICAS_OF_EXPERTS)
        else:
            cut = ExpertCut(tensor=tensor, tensor_over=TENSOR, reduced_over=REPLICAS)
        sent_fp8 = self.dispatch_precision == "fp8" and self.ep > 1
        cut = replace(cut, domain=self.ep_domain or 0, overlap=self.moe_overlap, sent_fp8=sent_fp8)
        cut_experts = replace(experts, cut=cut)
        return model.reshaped(experts=cut_experts.at(cut_experts.fullest()))

    def unequal_shares(self, share: Model) -> tuple[Model, ...]:
        """The model of each coordinate if the loads are unequal. Ranks with equal loads share one."""
        experts = share.shape.experts if is_transformer(share) else None
        if experts is None or experts.balanced or self.ep == 1:
            return ()
        assert is_transformer(share)
        known: dict[object, Model] = {}
        made: list[Model] = []
        for coordinate in range(self.ep):
            own = tuple(shares[experts.of_rank(coordinate)] for shares in experts.loads)
            key = own, coordinate // (self.ep_domain or self.ep)
            if key not in known:
                known[key] = share.reshaped(experts=experts.at(coordinate))
            made.append(known[key])
        return tuple(made)

    def ordered(self, order: Order) -> Order:
        """With pairs of a forward and a backward, if micro-batches overlap."""
        if self.moe_overlap != "batch":
            return order

        return paired(order)

    def check_stage(self, ranks: int, tensor: int) -> None:
        """Raise `ScheduleError` unless groups of experts divide the *ranks*."""
        width = self.expert_tp or tensor
        if (self.ep > 1 or width != tensor) and ranks % (self.ep * width):
            from clustersim.workloads.architectures.shape import nearest_divisors

            raise ScheduleError(
                f"ep x expert_tp = {self.ep} x {width} = {self.ep * width} does not divide the {ranks} "
                f"ranks of a pipeline stage; try ep = {nearest_divisors(max(1, ranks // width), self.ep)[0]}"
            )

    def holders(self, ranks: int, tensor: int) -> Mapping[str, int]:
        """The ranks with the same experts."""
        return {REPLICAS_OF_EXPERTS: max(1, ranks // (self.ep * (self.expert_tp or tensor)))}

    def further_axes(self, mesh: Mesh) -> Mapping[str, Axis]:
        """The layout of the experts over the ranks of each stage. Raises `ScheduleError` if it does not divide them."""
        tensor = self.expert_tp or _degree(mesh, TENSOR)
        if self.ep == 1 and tensor == _degree(mesh, TENSOR):
            return {}
        coordinates = mesh.axes[PIPELINE].places(mesh.world_size)[1]
        stages = [np.flatnonzero(coordinates == stage).tolist() for stage in np.unique(coordinates)]
        for ranks in stages:
            self.check_stage(len(ranks), _degree(mesh, TENSOR))
        replicas = [len(ranks) // (self.ep * tensor) for ranks in stages]
        grids = [
            Layout({TENSOR_OF_EXPERTS: tensor, EXPERT: self.ep, REPLICAS_OF_EXPERTS: count}, ranks)
            for ranks, count in zip(stages, replicas, strict=True)
        ]
        axes = Mesh.of(*grids).axes
        return {**axes, **self._domains(axes[EXPERT])}

    def _domains(self, axis: Axis) -> dict[str, Axis]:
        """The axes of two hops, if tokens take two."""
        from clustersim.workloads.operators.expert_routing import ACROSS, WITHIN

        size = self.ep_domain
        if not size or size == self.ep:
            return {}
        within = tuple(group[i : i + size] for group in axis.groups for i in range(0, self.ep, size))
        across = tuple(group[i::size] for group in axis.groups for i in range(size))
        return {f"{EXPERT}.{WITHIN}": Axis(within), f"{EXPERT}.{ACROSS}": Axis(across)}

    def _folded(self, model: "Transformer") -> bool:
        """True if experts have a layout of their own."""
        return self.ep > 1 or (self.expert_tp or model.shape.cut.ranks) != model.shape.cut.ranks


def _degree(mesh: Mesh, axis: str) -> int:
    return len(mesh.axes[axis].groups[0]) if axis in mesh.axes else 1


def _divides(key: str, degree: int, count: int, what: str) -> None:
    from clustersim.workloads.architectures.shape import nearest_divisors

    if count % degree:
        good = " or ".join(map(str, nearest_divisors(count, degree)))
        raise ScenarioError(f"{key} = {degree} does not divide the {count} {what}; try {good}")


def paired(order: Order) -> Order:
    """*order* with pairs of a forward and a backward that run together.

    Raises `ScheduleError` for an order that has neither pairs nor whole backwards only.

    >>> print(paired(Order.parse("0F0,0B0,0F1,0B1,0F2,0B2")).csv(), end="")
    0F0,0F1,(0F2;0B0)OVERLAP_F_B,0B1,0B2
    """
    if order.overlapped:
        return order
    if any(action.phase not in "FB" for row in order.rows for action in row):
        raise ScheduleError("pairs of a forward and a whole backward: take interleaved, dual_pipe_v, or no pipeline")
    rows = [_paired(row) for row in order.rows]
    pairs = frozenset(pair for _, pairs in rows for pair in pairs)
    return replace(order, rows=tuple(row for row, _ in rows), overlapped=pairs)


def _paired(row: Sequence[Action]) -> tuple[tuple[Action, ...], list[Action]]:
    forwards = [action for action in row if action.phase == "F"]
    backwards = [action for action in row if action.phase == "B"]
    first = next((n for n, action in enumerate(row) if action.phase == "B"), len(row))
    alone = min(len(forwards), first + 1)
    pairs = list(zip(forwards[alone:], backwards, strict=False))
    rest = backwards[len(pairs) :]
    return (*forwards[:alone], *(action for pair in pairs for action in pair), *rest), [pair[0] for pair in pairs]


MAIN = "compute"
"""The stream of computations, and of exchanges that block."""

Parts = tuple[tuple[Op, ...], ...]
"""The ops of a block: one part for each turn, and last what waits until both blocks of a pair are done."""


def in_pairs(schedule: Schedule, order: Order) -> Schedule:
    """*schedule* with the forwards that *order* overlaps beside the backwards that follow them.

    Applied after all passes that add ops. Where parameters are gathered layer by layer (FSDP, ZeRO-3), a gather stands
    ahead of the layer that needs it, whatever the action: there the two run one after the other, as they stand.
    """
    if not order.overlapped:
        return schedule
    return schedule.map_programs(lambda program: _in_pairs(program, order))


def _in_pairs(program: Program, order: Order) -> Program:
    ops = program.templated
    if any(map(_gathers_parameters, program.distinct())):
        return program
    pair_of = _pairs(program, order)
    parts: dict[int, Parts] = {}
    templates: dict[object, tuple[Op, ...]] = dict(enumerate(ops.templates))
    blocks: list[tuple[object, int]] = []
    for number, template in enumerate(ops.which.tolist()):
        if number in pair_of.values():
            continue
        if number not in pair_of:
            blocks.append((template, number))
            continue
        two = number, pair_of[number]
        for own in (int(ops.which[block]) for block in two):
            if own not in parts:
                parts[own] = _parts(ops.templates[own], f"{_action(ops.templates[own])}.joined")
                templates |= {(own, turn): part for turn, part in enumerate(parts[own])}
        blocks += _in_turn([(int(ops.which[block]), block, len(parts[int(ops.which[block])])) for block in two])
    place = {name: index for index, name in enumerate(templates)}
    which = np.array([place[name] for name, _ in blocks], np.int64)
    micro_batches = ops.micro_batches[np.array([block for _, block in blocks], np.int64)]
    return program.with_templated_ops(TemplatedOps.from_columns(list(templates.values()), which, micro_batches))


def _gathers_parameters(op: Op) -> bool:
    """True if *op* gathers parameters for a pass; a gather within a layer belongs to that layer."""
    return (
        isinstance(op, Collective)
        and op.kind == "all_gather"
        and bool(op.action and op.action.phase in "FRBI" and op.layer is None)
    )


def _pairs(program: Program, order: Order) -> dict[int, int]:
    """By the number of a backward's block, that of the forward that runs beside it."""
    rows = list(actions(program, "FB"))
    return {backward: forward for (forward, action), (backward, _) in pairwise(rows) if action in order.overlapped}


def _in_turn(two: list[tuple[int, int, int]]) -> Iterator[tuple[object, int]]:
    """(template, block) of the parts of a pair, given as (template, block, number of parts), in turn.

    The ends are last, in the order of the blocks: their messages meet others that stand in this order.
    """
    turns = ([((template, turn), block) for turn in range(count - 1)] for template, block, count in two)
    for both in zip_longest(*turns):
        yield from (one for one in both if one)
    yield from (((template, count - 1), block) for template, block, count in sorted(two, key=itemgetter(1)))


def _parts(ops: tuple[Op, ...], joined: str) -> Parts:
    """*ops* with their blocking all-to-alls on streams of their own, cut where a computation waits for any all-to-all.

    The last part begins with an empty computation *joined*, for which everything after the last computation waits.
    """
    parts: list[list[Op]] = [[]]
    last, waits, beside = "", list[str](), set[str]()
    final = max(place for place, op in enumerate(ops) if op.stream == MAIN)
    for place, op in enumerate(ops[: final + 1]):
        if last and isinstance(op, Collective) and op.kind == "all_to_all" and op.stream == MAIN and place < final:
            parts[-1].append(replace(op, stream=op.over, after=(*op.after, last)))
            waits.append(op.name)
            continue
        if op.stream == MAIN:
            if waits or not beside.isdisjoint(op.after):
                parts.append([])
            parts[-1].append(replace(op, after=(*op.after, *waits)) if waits else op)
            waits.clear()
            last = op.name
        else:
            parts[-1].append(op)
            beside.update((op.name,) if isinstance(op, Collective) and op.kind == "all_to_all" else ())
    end = Compute(name=joined, kernels=())
    tail = [replace(op, after=tuple(joined if name == last else name for name in op.after)) for op in ops[final + 1 :]]
    return (*map(tuple, parts), (end, *tail))


def _action(ops: tuple[Op, ...]) -> Action:
    """The action that *ops* compute."""
    return next(op.action for op in ops if isinstance(op, Compute) and op.action and op.action.phase in "FB")
