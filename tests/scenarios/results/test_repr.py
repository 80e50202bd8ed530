"""A result is one short line in a shell, and its report with its timeline in a notebook."""

from __future__ import annotations

import base64
import re

import pytest

from clustersim.scenarios import Scenario
from clustersim.scenarios.results.result import LONGEST_LINE


@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("hello", "<StepResult hello: 4 GPUs, step 135 ms, 3.3 GB a GPU>"),
        ("naive_vs_ddp", "<VariantsResult naive_vs_ddp: 4 runs; naive: 4 GPUs, step"),
        ("allreduce_dgx_a100", "<CollectiveResult allreduce_dgx_a100: all_reduce over 8 ranks, busbw up to"),
    ],
)
def test_a_result_is_one_line_and_html(name: str, said: str) -> None:
    scenario = Scenario.load(name)
    result = scenario.run()
    line = repr(result)
    assert line.startswith(said) and len(line) <= LONGEST_LINE and "\n" not in line
    assert all(len(repr(one)) <= LONGEST_LINE for one in (scenario, result.timeline))
    page = result._repr_html_()  # type: ignore[attr-defined]
    assert result.report().splitlines()[0].replace("'", "&#x27;") in page
    (data,) = re.findall(r'src="data:image/png;base64,([^"]+)"', page)
    assert base64.b64decode(data).startswith(b"\x89PNG")


def test_a_sweep_is_one_line() -> None:
    assert repr(Scenario.load("hello").sweep({"cluster.gpus": [2, 4]})) == "<Sweep of hello: 2 runs over 1 keys>"
