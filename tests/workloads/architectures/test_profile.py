"""Profiles: totals of the measured file, topological order, what crosses a cut, and every way a file can be wrong."""

import csv
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from clustersim.simulator.hardware.accelerator import Accelerator
from clustersim.simulator.reading.errors import ScenarioError
from clustersim.workloads.architectures.timed_models import profile
from clustersim.workloads.operators.model import Model

MEASURED = Path(__file__).parents[3] / "scenarios/published/layer_profiles_v100.csv"
HEADER = "model,node,op,forward_ms,backward_ms,activation_bytes,parameter_bytes,preds\n"
SMALL = (
    "net,node10,Linear,3,6,30,400,node9;node2\n"
    "net,node2,Conv,1,2,10,40,node1\n"
    "net,node9,ReLU(inplace),0.5,0,20,0,node2\n"
    "net,node1,Input,99,0,8,0,\n"
)


def measured(name: str, batch_size: int | None = None) -> Model:
    return profile(MEASURED, name, batch_size)


def written(folder: Path, text: str) -> Path:
    path = folder / "layers.csv"
    path.write_text(text)
    return path


def seconds(made: Model, samples: int) -> tuple[float, float]:
    accelerator = Accelerator(peak_flops=1e12)
    return (
        sum(accelerator.seconds(layer.forward(samples)) for layer in made.layers),
        sum(accelerator.seconds(layer.backward(samples)) for layer in made.layers),
    )


@pytest.mark.parametrize("name", ["alexnet", "vgg16", "resnet50", "resnet101", "inception_v3", "gnmt"])
def test_totals_are_the_files_without_its_inputs(name: str) -> None:
    made = measured(name)
    with MEASURED.open() as file:
        rows = [r for r in csv.DictReader(file) if r["model"] == name and not r["op"].startswith("Input")]
    forward, backward = (sum(float(row[key]) for row in rows) / 1e3 for key in ("forward_ms", "backward_ms"))
    assert seconds(made, 32) == pytest.approx((forward, backward))
    assert made.parameters * 4 == sum(float(row["parameter_bytes"]) for row in rows)
    assert len(made.layers) == len(rows)


@pytest.mark.parametrize(("name", "count"), [("resnet50", 25_557_032), ("vgg16", 138_357_544)])
def test_parameters_are_the_models(name: str, count: int) -> None:
    assert measured(name).parameters == count


def test_one_image_is_one_image() -> None:
    assert measured("resnet50", 128).sample_bytes == measured("vgg16", 128).sample_bytes == 3 * 224 * 224 * 4


def test_a_cut_through_a_block_of_resnet_carries_both_branches() -> None:
    made = measured("resnet50", 128)
    narrow, wide = 64 * 56 * 56 * 4, 256 * 56 * 56 * 4
    cuts = {layer.output_bytes(1) for layer in made.layers}
    assert {narrow, wide, wide + narrow} <= cuts
    assert made.layers[0].output_bytes(1) == 64 * 112 * 112 * 4


def test_order_cuts_and_memory(tmp_path: Path) -> None:
    made = profile(written(tmp_path, HEADER + SMALL))
    assert [layer.name for layer in made.layers] == ["node2", "node9", "node10"]
    assert [layer.output_bytes(1) for layer in made.layers] == [10, 30, 0]
    assert [layer.activation_bytes(1) for layer in made.layers] == [10, 0, 30]
    assert [layer.parameters for layer in made.layers] == [10, 0, 100]
    assert seconds(made, 1) == pytest.approx((4.5e-3, 8e-3))


def test_the_weights_take_half_of_a_backward_pass(tmp_path: Path) -> None:
    conv, relu, linear = profile(written(tmp_path, HEADER + SMALL)).layers
    halves = [(layer.backward_input(1), layer.backward_weights(1)) for layer in (conv, linear)]
    assert [[kernel.seconds for part in pair for kernel in part] for pair in halves] == [[1e-3] * 2, [3e-3] * 2]
    assert relu.backward(1) == ()


def test_without_batch_size_durations_stand_as_measured(tmp_path: Path) -> None:
    path = written(tmp_path, HEADER + SMALL)
    fixed, scaled = profile(path), profile(path, batch_size=4)
    assert seconds(fixed, 1) == seconds(fixed, 64) == seconds(scaled, 4)
    assert seconds(scaled, 8) == pytest.approx((9e-3, 16e-3))
    assert scaled.layers[0].output_bytes(8) == 20
    assert scaled.sample_bytes == 2
    assert ["of any size" in note for note in (*fixed.notes, *scaled.notes)] == [True, False]


@settings(max_examples=30, deadline=None)
@given(data=st.data(), size=st.integers(1, 12))
def test_every_layer_follows_those_it_needs(
    tmp_path_factory: pytest.TempPathFactory, data: st.DataObject, size: int
) -> None:
    before = [data.draw(st.lists(st.integers(0, number - 1), unique=True)) if number else [] for number in range(size)]
    lines = [f"m,n{n},op,1,1,1,0,{';'.join(f'n{b}' for b in needs)}\n" for n, needs in enumerate(before)]
    path = written(tmp_path_factory.mktemp("profile"), HEADER + "".join(data.draw(st.permutations(lines))))
    order = [layer.name for layer in profile(path).layers]
    assert all(order.index(f"n{b}") < order.index(f"n{n}") for n, needs in enumerate(before) for b in needs)
    last: dict[int, int] = {}
    for at, name in enumerate(order):
        last |= dict.fromkeys(before[int(name[1:])], at)
    for at, layer in enumerate(profile(path).layers):
        crossing = [b for b, end in last.items() if order.index(f"n{b}") <= at < end]
        assert layer.output_bytes(1) == len(crossing)


LINE = "m,a,op,1,1,1,0,\n"
FAULTS = {
    "model,node\n": ":1: a profile needs the columns model, node, op, forward_ms, backward_ms, activation_bytes, "
    "parameter_bytes, preds; no op",
    "": ":1: a profile needs the columns model, node, op, forward_ms, backward_ms, activation_bytes, "
    "parameter_bytes, preds; no model",
    HEADER: ": has no layers, only a header",
    HEADER + "m,a,op,1,x,1,0,\n": ':2: backward_ms: must be a number, not "x"',
    HEADER + LINE + "m,b,op,1,1,-4,0,\n": ":3: activation_bytes: must be finite and at least 0, not -4",
    HEADER + "m,a,op,nan,1,1,0,\n": ":2: forward_ms: must be finite and at least 0, not nan",
    HEADER + "m,a,op,1,1\n": ":2: has fewer fields than the header",
    "node,op,forward_ms,backward_ms,activation_bytes,parameter_bytes,preds,model\n"
    "a,op,1,1,1,0,,m\nb,op,1,1,1,0,a\n": ":3: has fewer fields than the header",
    HEADER + "m,,op,1,1,1,0,\n": ":2: node: a layer needs a name",
    HEADER + LINE + LINE: ":3: a stands in line 2 already",
    HEADER + "m,a,op,1,1,1,0,z\n": ':2: preds: there is no layer "z"',
    HEADER + "m,a,op,1,1,1,0,b\nm,b,op,1,1,1,0,a\n": ":2: layers wait for each other: a -> b -> a",
    HEADER + LINE + "n,a,op,1,1,1,0,\n": ": holds several models; choose one with model: m, n",
    HEADER + "m,a,Input,1,0,1,0,\n": ": the model has no layers beside its inputs",
}


@pytest.mark.parametrize(("text", "message"), FAULTS.items(), ids=range(len(FAULTS)))
def test_faults_name_file_and_line(tmp_path: Path, text: str, message: str) -> None:
    path = written(tmp_path, text)
    with pytest.raises(ScenarioError) as error:
        profile(path)
    assert str(error.value) == f"{path}{message}"


def test_faults_of_the_whole_file(tmp_path: Path) -> None:
    binary = tmp_path / "binary.csv"
    binary.write_bytes(b"\x93NUMPY\xff\x00")
    cases = {
        tmp_path / "none.csv": "there is no such profile",
        tmp_path: "is a directory; a profile is a CSV file",
        binary: "is not a CSV file in UTF-8",
    }
    for path, message in cases.items():
        with pytest.raises(ScenarioError) as error:
            profile(path)
        assert str(error.value) == f"{path}: {message}"


def test_an_unknown_model_is_answered_with_those_there_are(tmp_path: Path) -> None:
    path = written(tmp_path, HEADER + "alexnet,a,op,1,1,1,0,\nvgg16,a,op,1,1,1,0,\n")
    with pytest.raises(ScenarioError) as error:
        profile(path, "vgg19")
    assert str(error.value) == f'{path}: has no model "vgg19"; there are: vgg16, alexnet'
