"""What a new user typed, and the message or the reading that helps."""

from pathlib import Path

import pytest

from clustersim.scenarios.commands.command_line import run
from clustersim.scenarios.commands.terminal import broken
from clustersim.scenarios.scenario import Scenario
from clustersim.scenarios.specification import loading
from clustersim.simulator.reading.quantities import COUNTED

TRANSFORMER = """\
version: 1
cluster: {preset: uniform, gpus: 100, bandwidth: 1 GB/s, latency: 1 us}
model: {preset: gpt2_xl}
training: {global_batch_size: 64}
"""

SERVERS = """\
version: 1
cluster:
  nodes: 2
  node: {accelerator: a100_80gb, accelerators: 8, nics: 1, nic: {kind: ib_hdr}}
model: {preset: gpt2_xl}
training: {global_batch_size: 64}
"""


@pytest.fixture(autouse=True)
def _in_a_folder_of_its_own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


def refusal(capsys: pytest.CaptureFixture[str], text: str, *arguments: str, command: str = "check") -> str:
    """The error of *command* for a file with *text*."""
    Path("bad.yaml").write_text(text)
    assert run([command, "bad.yaml", *arguments]) == 2
    out, err = capsys.readouterr()
    assert out == ""
    return err


def test_an_unknown_scenario_is_told_with_the_nearest_name_and_all_in_order(
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert run(["run", "helo"]) == 2
    first, *lines = capsys.readouterr().err.splitlines()
    assert first == 'unknown scenario "helo"; did you mean "hello"? Give the path of a file, or one of these names:'
    for line, folder in zip(lines, ("", *loading.FOLDERS), strict=True):
        names = line.strip().removeprefix(f"{folder}: ").split(", ")
        assert names == sorted(names) == loading.shipped(folder)


def test_a_tensor_degree_that_does_not_divide_the_gpus_is_told_as_that(capsys: pytest.CaptureFixture[str]) -> None:
    told = refusal(capsys, TRANSFORMER + "parallelism: {tp: 3}\n")
    assert told.splitlines()[0] == (
        "bad.yaml:5:19: parallelism.tp: tp 3 does not divide the 100 GPUs: dp would be 33, of which global_batch_size "
        "64 is no multiple; try tp = 2 or 4, or give dp"
    )
    told = refusal(capsys, TRANSFORMER + "parallelism: {tp: 5, pp: 3}\n")
    assert "bad.yaml:5:26: parallelism.pp: tp 5 x pp 3 does not divide the 100 GPUs: dp would be 6," in told
    assert "try tp x pp = 10 or 20, or give dp" in told


def test_a_batch_that_replicas_cannot_share_is_told_as_that(capsys: pytest.CaptureFixture[str]) -> None:
    assert "training.global_batch_size: 64 is not a multiple of dp 20;" in refusal(
        capsys, TRANSFORMER + "parallelism: {tp: 5}\n"
    )
    assert Scenario.load("bad.yaml", {"training.global_batch_size": 66, "parallelism.tp": 3}).derived.replicas == 33


def test_the_topology_is_shown_whatever_the_batch(capsys: pytest.CaptureFixture[str]) -> None:
    Path("odd.yaml").write_text(TRANSFORMER + "parallelism: {tp: 3, dp: 7}\n")
    assert run(["check", "odd.yaml"]) == 2
    capsys.readouterr()
    assert run(["show", "odd.yaml", "topology"]) == 0
    assert "100  gpu" in capsys.readouterr().out
    assert run(["show", "odd.yaml", "topology", "--set", "cluster.gpus=0"]) == 2
    assert capsys.readouterr().err == "--set cluster.gpus=0: must be at least 1, not 0\n"
    Path("none.yaml").write_text("version: 1\n")
    assert run(["show", "none.yaml", "topology"]) == 2
    assert capsys.readouterr().err.startswith("none.yaml:1:1: cluster: is required")


def test_the_topology_of_each_variant_is_shown(capsys: pytest.CaptureFixture[str]) -> None:
    Path("two.yaml").write_text(TRANSFORMER + "variants: {a: {cluster.gpus: 4}, b: {cluster.gpus: 6}}\n")
    assert run(["show", "two.yaml", "topology"]) == 0
    out = capsys.readouterr().out
    assert out.index("# a\n") < out.index("4  gpu") < out.index("# b\n") < out.index("6  gpu")


@pytest.mark.parametrize("link", ["", "bandwidth: 25 GB/s", "bandwidth: 25 GB/s, latency: 2 us"])
def test_a_nic_without_a_kind_is_told_the_kinds(link: str, capsys: pytest.CaptureFixture[str]) -> None:
    told = refusal(capsys, SERVERS.replace("kind: ib_hdr", link))
    assert "cluster.node.nic.kind: is required: one of efa_100, " in told
    assert "ib_hdr, ib_hdr100, ib_ndr" in told
    assert "or, beside a bandwidth and a latency, any word of your own, e.g. rdma or tcp" in told


def test_any_word_is_a_kind_beside_bandwidth_and_latency(capsys: pytest.CaptureFixture[str]) -> None:
    Path("own.yaml").write_text(SERVERS.replace("kind: ib_hdr", "kind: rdma, bandwidth: 25 GB/s, latency: 2 us"))
    assert run(["check", "own.yaml"]) == 0
    assert capsys.readouterr().out.startswith("own.yaml: ok, 16 GPUs")
    told = refusal(capsys, SERVERS.replace("ib_hdr", "rdma, bandwidth: 25 GB/s"))
    assert 'unknown link "rdma"' in told
    assert "or give it a bandwidth and a latency" in told


def test_both_batch_sizes_are_suggested(capsys: pytest.CaptureFixture[str]) -> None:
    told = refusal(capsys, TRANSFORMER.replace("global_batch_size", "batch_size"))
    hint = 'did you mean "global_batch_size", "micro_batch_size" or "critical_batch_size"?'
    assert f"training.batch_size: unknown key\n     help: {hint}" in told


@pytest.mark.parametrize(
    ("written", "tokens"), [("1T", 1e12), ("300B", 3e11), ("300 G", 3e11), ("1.1T", 1.1e12), ("2e3 k", 2e6)]
)
def test_tokens_have_the_suffixes_of_papers(written: str, tokens: float) -> None:
    Path("good.yaml").write_text(TRANSFORMER.replace("size: 64", f"size: 100, tokens: {written}"))
    scenario = Scenario.load("good.yaml")
    assert scenario.specification.training is not None
    assert scenario.specification.training.tokens == tokens
    assert COUNTED.fullmatch(written)


def test_tokens_that_are_no_number_are_told_the_suffixes(capsys: pytest.CaptureFixture[str]) -> None:
    told = refusal(capsys, TRANSFORMER.replace("size: 64", "size: 100, tokens: 1 trillion"))
    assert 'training.tokens: must be a number, e.g. 300e9 or "300B" (K, M, B or G, T), not "1 trillion"' in told


def test_lines_are_broken_at_the_width_of_a_terminal_and_whole_elsewhere() -> None:
    line = "a.yaml:1:1: cluster: " + "word " * 30
    assert broken(line, 0) == line
    lines = broken(line.strip(), 60).split("\n")
    assert all(len(one) <= 60 for one in lines)
    assert " ".join(one.strip() for one in lines) == line.strip()
    table = "ring   1.5   " + "x" * 80
    excerpt = "   4 |     " + "key: value " * 20
    assert broken(f"{table}\n{excerpt}", 60) == f"{table}\n{excerpt}"
