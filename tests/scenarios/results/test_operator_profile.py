"""The profile of a step: what operators save, tables, numbers, charts, and the map of activations."""

import json
import re

import pytest

from clustersim.scenarios import Scenario
from clustersim.scenarios.commands.command_line import run as command
from clustersim.scenarios.results.activation_map import activations_chart, axes_of, most_activations
from clustersim.scenarios.results.operator_profile import profile, saved_bytes, summary
from clustersim.simulator.analysis import memory
from clustersim.simulator.reading.errors import ScenarioError
from clustersim.workloads.architectures.shape import Mlp, SelfAttention, Shape
from clustersim.workloads.architectures.transformer import transformer

S, B, H, A = 512, 8, 768, 12


@pytest.fixture(scope="module")
def profiles():
    result = Scenario.load("gpt2_one_v100").run()
    return {name: profile(run.scenario, run.timeline) for name, run in result.runs.items()}


def test_a_layer_saves_what_korthikanti_counts():
    """s b h (34 + 5 a s/h) bytes in 16 bits (arXiv:2205.05198, section 4.1), told by operator."""
    layer = transformer(Shape(12, H, S, 50257, SelfAttention(A, A), Mlp(4 * H), precision="fp16")).layers[1]
    saved = saved_bytes(layer, B)
    unit = S * B * H
    assert saved["linear"] == 2 * unit * (1 + 1 + 1 + 4)
    assert saved["attention"] == 6 * unit + 5 * A * S**2 * B
    assert saved["GELU"] == 8 * unit
    assert saved["layer norm"] == 4 * unit
    assert saved["residual sum"] == 2 * unit
    assert sum(saved.values()) == layer.activation_bytes(B) == unit * (34 + 5 * A * S / H)


def test_gelu_written_out_keeps_four_tensors_and_moves_more(profiles):
    eager, fused = (profiles[name].by_operator()["GELU"] for name in ("eager", "fused"))
    assert eager.saved == 4 * fused.saved == 4 * 12 * S * B * 4 * H * 4
    assert (eager.nbytes, eager.kernels) == (pytest.approx(46 / 5 * fused.nbytes), 12 * 19)
    assert eager.bound == fused.bound == "memory"
    assert {"power", "tanh"} <= set(profiles["eager"].by_operation())


def test_rows_sum_to_the_whole(profiles):
    for one in profiles.values():
        whole = one.whole()
        for rows in (one.by_operator(), one.by_operation(), one.by_class()):
            assert sum(row.seconds for row in rows.values()) == pytest.approx(one.seconds, rel=1e-9)
            assert sum(row.flops for row in rows.values()) == pytest.approx(whole.flops, rel=1e-9)
            assert sum(row.nbytes for row in rows.values()) == pytest.approx(whole.nbytes, rel=1e-9)
        layers = sum(row.seconds * one.held[kind] for kind, rows in one.of_one_layer().items() for row in rows.values())
        outside = sum(time.seconds for time in one.times if time.layer not in one.kinds)
        assert layers + outside == pytest.approx(one.seconds, rel=1e-9)


def test_a_stage_holds_a_share_of_the_layers():
    scenario = Scenario.load("gpt_6_7b_64a100")
    one = profile(scenario, scenario.run().timeline)
    stages = scenario.derived.degree("pp")
    assert one.held["transformer"] == pytest.approx(scenario.model.shape.num_layers / stages)
    assert one.held["head"] == pytest.approx(1 / stages)


def test_numbers_of_json(profiles):
    found = json.loads(json.dumps(summary(profiles["eager"]), allow_nan=False))
    assert sum(row["seconds"] for row in found["operators"]) == pytest.approx(found["computing_s"], rel=1e-9)
    for row in found["operators"]:
        assert sum(row["bound_s"].values()) == pytest.approx(row["seconds"], rel=1e-9)
        assert row["bound_s"][row["bound"]] == max(row["bound_s"].values())
    assert {row["class"] for row in found["operators"]} >= {
        "product",
        "normalisation",
        "embedding",
        "loss",
        "optimizer",
    }


def run(*arguments):
    return command([*arguments])


def test_commands(capsys, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert run("show", "gpt2_one_v100", "operators") == 0
    out = capsys.readouterr().out
    assert out.count("# ") == 3
    assert re.search(r"^GELU +14\.\d+ ms +22\.\d+ ms .* 2\.42 GB +228  memory$", out, re.M)
    assert re.search(r"^of one transformer layer \(12 a GPU\)", out, re.M)
    assert run("show", "gpt2_one_v100", "operators", "--json") == 0
    assert [one["name"] for one in json.loads(capsys.readouterr().out)] == ["eager", "fused", "eager in fp16"]
    assert run("plot", "hello", "operators", "-o", "o.svg") == 0
    drawn = (tmp_path / "o.svg").read_text()
    assert all(text in drawn for text in ("by operator", "by elementary operation", "100.0%", "computing time"))
    assert run("plot", "gpt2_one_v100", "activations", "--over", "batch=4,8", "--over", "sequence=512,1024") == 0
    assert capsys.readouterr().out.split() == [
        "o.svg", "eager_activations.png", "fused_activations.png", "eager_in_fp16_activations.png"]  # fmt: skip


def test_the_map_marks_what_does_not_fit():
    """GPT-2's activations by the formula; a V100 of 16 GiB beside states of 16 bytes a parameter."""
    scenario = Scenario.load("gpt2_one_v100").variants["fused"]
    figure = activations_chart(scenario, axes_of(scenario, ["batch=1,8,32", "sequence=512,1024"]))
    texts = {text.get_text() for text in figure.axes[0].texts}
    legend = {text.get_text() for text in figure.legends[0].texts}
    assert len(texts) == 6 and "does not fit in memory" in legend
    red = [
        patch
        for patch in figure.axes[0].patches
        if patch.get_facecolor()[:3] == pytest.approx((0.839, 0.153, 0.157), abs=0.01)
    ]
    fits = []
    for batch in (1, 8, 32):
        for length in (512, 1024):
            sizes = {
                "training.global_batch_size": batch,
                "training.micro_batch_size": batch,
                "model.seq_length": length,
            }
            run = Scenario.load("gpt2_one_v100", sizes).variants["fused"].run()
            fits.append(run.summary()["memory"]["fits"])
    assert len(red) == fits.count(False) == 3


@pytest.mark.parametrize(
    ("over", "message"),
    [
        (["bath"], '--over bath: activations go over batch and sequence; did you mean "batch"?'),
        (["batch=2", "batch"], "--over batch: is given twice"),
        (["batch=0"], "--over batch=0: 0 is no whole number above 0; write e.g. batch=1,2,4"),
        (["sequence=1,1"], "--over sequence=1,1: has a value twice"),
    ],
)
def test_faults_of_axes(over, message):
    scenario = Scenario.load("gpt2_one_v100").variants["fused"]
    with pytest.raises(ScenarioError, match=re.escape(message)):
        axes_of(scenario, over)


def test_images_have_no_sequences():
    scenario = Scenario.load("zhores_resnet50_ddp")
    with pytest.raises(ScenarioError, match="are no sequences; take --over batch"):
        axes_of(scenario, ["batch,sequence"])
    assert [axis.values for axis in axes_of(scenario, ["batch"])] == [(0,), (8, 16, 32, 64, 128, 256, 512)]


def test_what_has_no_operators(capsys):
    assert run("show", "allreduce_dgx_a100", "operators") == 2
    assert "measures a collective; it has no operators" in capsys.readouterr().err
    assert run("show", "hello", "order", "--json") == 2
    assert "--json: order is text only" in capsys.readouterr().err
    assert run("plot", "hello", "operators", "--over", "batch") == 2
    assert "--over belongs to activations" in capsys.readouterr().err
    assert run("plot", "hello", "activations") == 2
    assert "nothing to draw: hello keeps no activations" in capsys.readouterr().err


def test_the_most_activations_are_told_where_the_peak_is_elsewhere():
    """Full recomputation: the peak of all memory is in the optimizer step, when no activations are held."""
    scenario = Scenario.load("gpt_6_7b_64a100", {"training.recompute": "full"})
    result = scenario.run()
    most = max(
        float(memory.curve(result.timeline, rank).by_category["activations"].max(initial=0.0))
        for rank in result.timeline.columns
    )
    assert most_activations(scenario.schedule()) == pytest.approx(most, rel=1e-9)
