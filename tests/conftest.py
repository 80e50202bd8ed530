"""Settings of all tests, and the short suite: `pytest --short` leaves out whole sweeps and generates fewer examples."""

from __future__ import annotations

import gc
import signal
from typing import Any

import pytest
from hypothesis import settings

from clustersim.scenarios.commands import terminal
from clustersim.scenarios.commands.command_line import GC_THRESHOLD

# no test fails because the machine is busy
settings.register_profile("unhurried", deadline=None)
settings.register_profile("short", deadline=None, derandomize=True, database=None)
settings.load_profile("unhurried")

# what a command prints on stderr does not depend on how long it takes
terminal.LINES = 1e6

# a shell starts background processes with interrupts ignored; commands that tests start would inherit that
signal.signal(signal.SIGINT, signal.default_int_handler)

collect_ignore = ["benchmarks", "scenarios/real_traces/recording.py"]
"""Without tests and examples; they import torch and compile the event loop."""

SHARE, FEWEST = 5, 6
"""The short suite generates one in `SHARE` of the examples that a test asks for, and `FEWEST` at least."""

WITH_TORCH = (
    "tests/scenarios/exchange/exporting/test_rules.py",
    "tests/simulator/replay/test_accelerator_fit.py",
    "tests/workloads/data_parallel/test_weight_casts.py",
    "tests/workloads/memory/test_reentrant_checkpoints.py",
    "tests/workloads/memory/test_update.py",
    "tests/workloads/operators/test_elementwise.py",
    "tests/workloads/operators/test_lora_against_torch.py",
    "tests/workloads/operators/test_saved.py",
    "tests/workloads/parallelism/test_ddp.py",
    "tests/workloads/pipelines/test_torch.py",
    "tests/workloads/reductions/test_torch_hooks.py",
)
"""Files that import torch into the process of the tests, which takes more than a second."""

TOGETHER = {
    "tests/test_exactness.py": "tests/test_conservation.py",
    "tests/scenarios/test_shipped.py": "tests/test_golden.py",
    **dict.fromkeys(WITH_TORCH, WITH_TORCH[0]),
}
"""Files that read simulations of another file, or import the same. They run in one process, so that it is done once."""

LONG = (
    "tests/scenarios/accuracy/test_nccl_tests.py",
    "tests/scenarios/exchange/formats/test_programs.py",
    "tests/scenarios/search/test_advice.py",
    "tests/simulator/engine/folding/test_folding.py",
    "tests/simulator/replay/test_transport_fit.py",
)
"""Files whose few tests take half a minute or more. They are dealt first: files of many tests would be, and these end
last."""


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--short", action="store_true", help="skip tests marked exhaustive, generate fewer examples")


def pytest_configure(config: pytest.Config) -> None:
    if config.getoption("--short"):
        settings.load_profile("short")


@pytest.hookimpl(trylast=True)
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Leave out what the short suite does not run. `trylast`: marks that other hooks add are seen."""
    if not config.getoption("--short"):
        return
    left_out = [item for item in items if item.get_closest_marker("exhaustive")]
    items[:] = [item for item in items if not item.get_closest_marker("exhaustive")]
    config.hook.pytest_deselected(items=left_out)
    for test in {function for item in items if (function := getattr(item, "function", None))}:
        shorten(test)


@pytest.hookimpl(trylast=True)
def pytest_collection_finish() -> None:
    """Leave modules and tests, which stay, out of garbage collections, and collect as seldom as the command line.

    With Python's default thresholds they take 7 % of the time, and what hypothesis does beside each of them 2 %.
    """
    gc.freeze()
    gc.set_threshold(GC_THRESHOLD, 50, 50)


def shorten(test: Any) -> None:
    """Let hypothesis generate fewer examples for *test*; a test without hypothesis stays as it is."""
    asked = getattr(test, "_hypothesis_internal_use_settings", None)  # hypothesis has no public name for it
    if asked is not None:
        fewer = max(FEWEST, asked.max_examples // SHARE)
        test._hypothesis_internal_use_settings = settings(
            asked, max_examples=min(fewer, asked.max_examples), derandomize=True, database=None
        )


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: Any, log: Any) -> Any:
    """Deal whole files to the workers, `LONG` ones first, and files that are `TOGETHER` to one of them."""
    from xdist.scheduler import LoadFileScheduling

    class Files(LoadFileScheduling):  # type: ignore[misc]
        def _split_scope(self, nodeid: str) -> str:
            file = nodeid.partition("::")[0]
            return TOGETHER.get(file, file)

        def _assign_work_unit(self, node: Any) -> None:
            first = next((file for file in LONG if file in self.workqueue), None)
            if first is not None:
                self.workqueue.move_to_end(first, last=False)
            super()._assign_work_unit(node)

    return Files(config, log) if config.getoption("dist") == "loadfile" else None


def pytest_runtest_setup() -> None:
    """Forget when commands of earlier tests printed their progress."""
    terminal.Due.restart()
