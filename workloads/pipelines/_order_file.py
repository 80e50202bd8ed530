"""An order in a CSV file, in the form of torch.distributed.pipelining: a row of actions for each pipeline rank."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from clustersim.simulator.reading.errors import ScheduleError
from clustersim.simulator.reading.files import UnreadableFile, read_text
from clustersim.simulator.schedule.pipeline_order import Order

SUFFIX = ".csv"

LARGEST = 64 * 2**20
"""Bytes of a file at most: an order of 64 ranks and 10,000 micro-batches has 10 MB."""


def is_file(name: str) -> bool:
    """Return whether the order *name* is a file."""
    return name.endswith(SUFFIX)


def read_order(name: str) -> Order:
    """Return the order in the file *name*. Raises `ScheduleError` for one that is not whole."""
    try:
        text = read_text(Path(name), LARGEST)
    except UnreadableFile as error:
        raise ScheduleError(str(error)) from None
    try:
        order = Order.parse(text)
        order.rank_of_stage()
        if other := next((one for row in order.rows for one in row if one.phase not in "FBIW"), None):
            raise ScheduleError(f"{other} is no action of a file; write forward (F) and backward (B, or I and W) ones")
        order.check_whole()
    except ScheduleError as error:
        raise ScheduleError(f"{name}: {error}") from None
    return order


def order_of_file(name: str) -> Callable[..., Order]:
    """Return a function as the files of this folder have one, which returns the order in the file *name*."""

    def order(stages: int, micro_batches: int) -> Order:
        """Return the order; raise `ScheduleError` if it is of other counts."""
        read = read_order(name)
        if len(read.rows) != stages:
            raise ScheduleError(f"{name} has {len(read.rows)} rows, one for each pipeline rank, but pp is {stages}")
        if read.micro_batches != micro_batches:
            raise ScheduleError(
                f"{name} runs {read.micro_batches} micro-batches, but a replica has {micro_batches} a step; "
                f"global_batch_size must be dp x micro_batch_size x {read.micro_batches}"
            )
        return read

    return order
