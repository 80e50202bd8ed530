"""The wrong scenarios of bad_input.txt: each gives one sentence with its position, and status 2."""

import re
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from clustersim.scenarios.commands.command_line import run

Told = Callable[[str], str]

GOOD = """\
version: 1
cluster:
  nodes: 2
  node:
    accelerator: v100_16gb
    accelerators: 4
    intra: {kind: nvlink2, shape: full_mesh}
    nics: 1
    nic:
      kind: ib_edr
      bandwidth: 100 Gb/s
      latency: 1.5 us
  fabric: {kind: fat_tree, oversubscription: 1.0}
model: {preset: resnet50}
training:
  global_batch_size: 64
  micro_batch_size: 4
parallelism:
  data: {method: ddp, bucket: 25 MB}
network: {transport: nccl}
"""

BASES = {
    "collectives": "version: 1\ncluster: {preset: dgx1}\ncollective: {kind: all_reduce, size: 1 MB}\n",
    "clusters": "version: 1\ncluster: {preset: dgx1}\ncollective: {kind: all_reduce, size: 1 MB}\n",
}
"""The scenario that a group of cases changes, where it is not GOOD."""


def cases() -> Iterator[Any]:
    """(scenario, message) of every block of the table."""
    text = Path(__file__).with_name("bad_input.txt").read_text()
    for group in re.split(r"^# ", text, flags=re.MULTILINE)[1:]:
        title, _, blocks = group.partition("\n")
        for block in blocks.split("## ")[1:]:
            change, _, expected = block.strip("\n").partition("\n")
            old, new = change.replace("\\n", "\n").split(" => ")
            base = BASES.get(title, GOOD)
            assert old in base, old
            yield pytest.param(base.replace(old, new, 1), expected + "\n", id=f"{title}: {change}")


@pytest.fixture
def told(capsys: pytest.CaptureFixture[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Told:
    """The stderr of `clustersim check bad.yaml`, whose status is 2, for a file with a text."""
    monkeypatch.chdir(tmp_path)

    def check(text: str) -> str:
        (tmp_path / "bad.yaml").write_text(text)
        status = run(["check", "bad.yaml"])
        out, err = capsys.readouterr()
        assert (status, out) == (2, "")
        return err

    return check


def matches(expected: str, actual: str) -> None:
    pattern = re.escape(expected).replace(re.escape("[...]"), "[^\n]+")
    assert re.fullmatch(pattern, actual), f"expected\n\n{expected}\nbut was told\n\n{actual}"


@pytest.mark.parametrize(("text", "expected"), list(cases()))
def test_one_fault(text: str, expected: str, told: Told) -> None:
    matches(expected, told(text))


def test_the_good_ones_are_good(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    for number, text in enumerate({GOOD, *BASES.values()}):
        (tmp_path / f"good{number}.yaml").write_text(text)
        assert run(["check", f"good{number}.yaml"]) == 0
        out, err = capsys.readouterr()
        assert out.startswith(f"good{number}.yaml: ok, 8 GPUs")
        assert err == ""


def test_the_form_of_the_contract(told: Told) -> None:
    err = told("cluster:\n  node:\n   nic:\n    bandwidth: 25\n    latncy: 3 us\n")
    assert (
        'bad.yaml:4:16: cluster.node.nic.bandwidth: needs a unit, e.g. "25 GB/s" (bytes) or "200 Gb/s" (bits)\n'
        "   4 |     bandwidth: 25\n"
        "bad.yaml:5:5: cluster.node.nic.latncy: unknown key\n"
        '     help: did you mean "latency"?\n'
    ) in err


def test_all_faults_at_once_in_order_of_lines(told: Told) -> None:
    text = GOOD.replace("nodes: 2", "nodes: 0").replace("latency: 1.5 us", "latncy: 1.5 us").replace("25 MB", "25")
    matches(
        "bad.yaml:3:10: cluster.nodes: must be at least 1, not 0\n"
        "   3 |   nodes: 0\n"
        "bad.yaml:12:7: cluster.node.nic.latncy: unknown key\n"
        '     help: did you mean "latency"?\n'
        'bad.yaml:19:31: parallelism.data.bucket: needs a unit, e.g. "40 MB" or "25 MiB"\n'
        "  19 |   data: {method: ddp, bucket: 25}\n",
        told(text),
    )
