"""The batch of an imported run, from two of its parts: micro-batch, accumulation, replicas, global batch.

DeepSpeed's rule (deepspeed/runtime/config.py, ``_batch_assertion``) is that of all: the global batch is micro-batch x
accumulation x replicas.
"""

from __future__ import annotations

from math import prod

from scenarios.importing.facts import Facts

INNER = ("tp", "pp", "cp")
"""Axes whose ranks share a replica."""

MICRO, BATCH, ACCUMULATION = "training.micro_batch_size", "training.global_batch_size", "run.accumulation"


PARTS = (ACCUMULATION, "run.replica_batch_size", "run.micro_batches")
"""Facts from which a batch follows."""


def replicas(facts: Facts) -> int:
    """Return the number of replicas. Raises `ScenarioError` if the degrees do not divide the GPUs."""
    gpus = facts.whole("run.gpus") or 1
    degrees = {axis: facts.whole(f"parallelism.{axis}") or 1 for axis in INNER}
    inner = prod(degrees.values())
    key = next((f"parallelism.{axis}" for axis, degree in degrees.items() if degree > 1), "run.gpus")
    shown = " x ".join(f"{axis} {degree}" for axis, degree in degrees.items() if degree > 1)
    if gpus % inner:
        shown = shown if shown == f"{key.partition('.')[2]} {inner}" else f"{shown} = {inner}"
        raise facts.error(key, f"{shown} does not divide the {gpus} GPUs; give --nodes, or change a degree")
    given = facts.whole("run.dp")
    if given is not None and given * inner != gpus:
        needed = f"{shown + ' x ' if shown else ''}dp {given}"
        raise facts.error(
            "run.dp", f"{needed} needs {given * inner} GPUs, not {gpus}; give --nodes, or change a degree"
        )
    return gpus // inner


def settle(facts: Facts, dp: int) -> None:
    """Give *facts* both batch sizes for *dp* replicas. Raises `ScenarioError` if they contradict each other."""
    _of_local(facts)
    micro, steps, batch = facts.whole(MICRO), facts.whole(ACCUMULATION), facts.whole(BATCH)
    accumulates = ACCUMULATION in facts.found and facts.found[ACCUMULATION].given
    if batch is not None and micro is not None and accumulates and steps is not None and micro * steps * dp != batch:
        raise facts.error(
            BATCH,
            f"the global batch {batch} is not micro-batch {micro} x accumulation {steps} x {dp} replicas, "
            f"{micro * steps * dp}",
            "the rule of DeepSpeed, Megatron-LM and the Trainer; change one of them, or the number of GPUs (--nodes)",
        )
    if batch is not None and micro is not None and batch % (micro * dp):
        raise facts.error(
            BATCH, f"the global batch {batch} is not a multiple of micro-batch {micro} x {dp} replicas = {micro * dp}"
        )
    if batch is None and micro is not None:
        how = f"{micro} x {steps or 1} accumulation x {dp} replicas"
        facts.follows(MICRO, BATCH, micro * (steps or 1) * dp, how)
    elif batch is not None and micro is None:
        if batch % (dp * (steps or 1)):
            raise facts.error(
                BATCH, f"the global batch {batch} is not a multiple of {dp} replicas x accumulation {steps or 1}"
            )
        facts.follows(BATCH, MICRO, batch // (dp * (steps or 1)), f"/ ({dp} replicas x {steps or 1} accumulation)")
    elif batch is None:
        facts.assume(MICRO, 1, "no file gives a batch; --set training.micro_batch_size=N does")
        accumulation = steps or facts.whole("parallelism.pp") or 1
        facts.assume(BATCH, accumulation * dp, f"{accumulation} micro-batches for each of {dp} replicas")


def _of_local(facts: Facts) -> None:
    """Take the samples of a replica, torchtitan's local batch, apart: with a pipeline it has several micro-batches."""
    local, micro = facts.whole("run.replica_batch_size"), facts.whole(MICRO)
    orders = facts.whole("run.micro_batches")
    if local is None:
        if orders is not None and ACCUMULATION not in facts.found:
            facts.follows("run.micro_batches", ACCUMULATION, orders, "")
        return
    if micro is None:
        facts.follows("run.replica_batch_size", MICRO, local, "")
        return
    if local % micro:
        raise facts.error(
            "run.replica_batch_size", f"the local batch {local} is not a multiple of the micro-batch {micro}"
        )
    if facts.whole(BATCH) is None and ACCUMULATION not in facts.found:
        facts.follows("run.replica_batch_size", ACCUMULATION, local // micro, f"/ {micro}")
