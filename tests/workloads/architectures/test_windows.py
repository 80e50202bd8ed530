"""Windows of attention by layer: FLOPs of each layer, configurations, Megatron-LM, context parallelism."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from clustersim.scenarios import Scenario
from clustersim.scenarios.exchange.export import exporter, write
from clustersim.scenarios.exchange.importer import Options, imported
from clustersim.simulator.reading.errors import ScenarioError
from clustersim.simulator.reading.lookup import names
from clustersim.workloads.architectures.attention_keys import Window, pattern, windows_of
from clustersim.workloads.architectures.specification import model
from clustersim.workloads.architectures.transformer import Transformer
from clustersim.workloads.operators.model import Model

LENGTH, WINDOW = 4096, 512


def given_window(window: Any, **more: Any) -> Model:
    scenario = Scenario.model_validate(
        {
            "version": 1,
            "cluster": {"preset": "dgx_h100", "nodes": 1},
            "model": {"preset": "llama3_8b", "num_layers": 6, "seq_length": LENGTH, "attention_window": window, **more},
            "training": {"global_batch_size": 8, "precision": "bf16"},
        }
    )
    assert scenario.model is not None
    return scenario.model


def flops(window: Any, **more: Any) -> list[float]:
    """Return the forward FLOPs of each layer for one sample."""
    return [sum(kernel.flops for kernel in layer.forward(1)) for layer in given_window(window, **more).layers[1:-1]]


def test_each_layer_has_the_flops_of_its_own_window() -> None:
    narrow, wide = flops(WINDOW)[0], flops(None)[0]
    # 4 h s^2 of the whole square by convention; of the half that a mask leaves, a window keeps (w - w (w - 1) / 2 s)
    kept = (WINDOW - WINDOW * (WINDOW - 1) / (2 * LENGTH)) / (LENGTH / 2)
    assert wide - narrow == pytest.approx(4 * 4096 * LENGTH**2 * (1 - kept), rel=1e-3)
    assert flops({"size": WINDOW, "every": "5 of 6"}) == [narrow] * 5 + [wide]
    assert flops({"size": WINDOW, "every": "1 of 2"}) == [narrow, wide] * 3
    assert flops([0, WINDOW, WINDOW]) == [wide, narrow, narrow] * 2
    assert flops({"size": WINDOW}) == flops(WINDOW) == [narrow] * 6


def test_chunks_are_documents_of_their_length() -> None:
    chunked, whole = flops(None, document_length=WINDOW)[0], flops(None)[0]
    assert flops({"size": WINDOW, "every": "3 of 4", "chunked": True}) == [chunked] * 3 + [whole] + [chunked] * 2
    assert flops({"size": LENGTH, "chunked": True}) == [whole] * 6


@given(st.lists(st.sampled_from([0, 128, 512]), min_size=1, max_size=24))
def test_a_pattern_gives_each_layer_its_window(sizes: list[int]) -> None:
    found: Any = pattern(sizes)
    made = Scenario.model_validate(
        {
            "version": 1,
            "cluster": {"preset": "dgx_h100", "nodes": 1},
            "model": {"preset": "llama3_8b", "attention_window": found},
            "training": {"global_batch_size": 8},
        }
    ).specification.model
    windows = windows_of(made.attention_window) or (Window(0),)  # type: ignore[union-attr]
    assert [windows[number % len(windows)].size for number in range(len(sizes))] == sizes


CONFIGURATIONS = {
    "gemma2_9b": {"model_type": "gemma2", "num_hidden_layers": 42, "sliding_window": 4096},
    "gemma3_1b": {"model_type": "gemma3_text", "num_hidden_layers": 26, "sliding_window": 512},
    "olmo3_7b": {"model_type": "olmo3", "num_hidden_layers": 32, "sliding_window": 4096},
}


@pytest.mark.parametrize("name", CONFIGURATIONS)
def test_configurations_have_the_windows_of_the_catalogue(name: str, tmp_path: Path) -> None:
    """By the default of the family, and by the kinds of its layers."""
    own = CONFIGURATIONS[name]
    shape = _shape(model(name))
    sizes = {"hidden_size": 1024, "num_attention_heads": 8, "intermediate_size": 4096, "vocab_size": 1000}
    config = {**own, **sizes, "max_position_embeddings": 8192, "head_dim": 128}
    kinds = [
        "sliding_attention" if shape.of_layer(n).attention.windows[0].size else "full_attention" for n in range(42)
    ]
    for more in ({}, {"layer_types": kinds[: int(str(own["num_hidden_layers"]))]}):
        (tmp_path / "config.json").write_text(json.dumps({**config, **more}))
        made = imported([str(tmp_path / "config.json")], Options(nodes=1), "x", ["training.precision=bf16"])
        assert made.scenario.model is not None
        assert _shape(made.scenario.model).attention.windows == shape.attention.windows
        assert made.unread == {}


def _shape(of: Model) -> Any:
    assert isinstance(of, Transformer)
    return of.shape


@pytest.mark.parametrize("kinds", [["full_attention"], ["linear_attention", "full_attention"], "sliding_attention"])
def test_kinds_of_layers_that_are_wrong_are_refused(kinds: Any, tmp_path: Path) -> None:
    sizes = {"hidden_size": 64, "num_attention_heads": 8, "intermediate_size": 64, "vocab_size": 99}
    config = {"model_type": "gemma2", "num_hidden_layers": 2, "max_position_embeddings": 8192, **sizes}
    (tmp_path / "config.json").write_text(json.dumps({**config, "layer_types": kinds}))
    with pytest.raises(ScenarioError, match="layer_types: must be a list of sliding_attention and full_attention"):
        imported([str(tmp_path / "config.json")], Options(nodes=1), "x")


@pytest.mark.parametrize(
    "window", [1024, {"size": 1024, "every": "3 of 4"}, {"size": 1024, "every": "1 of 4"}, [0, 256]], ids=str
)
def test_megatron_has_them_too(window: Any, tmp_path: Path) -> None:
    changes = {"model.attention_window": window, "parallelism.data": {"method": "ddp"}}
    scenario = Scenario.load("llama3_8b_fsdp_dgx_h100", changes)
    written = write(exporter("megatron")(scenario), tmp_path / "run.sh")
    again = imported([str(path) for path in written], Options(nodes=1), "x").scenario
    assert windows_of(again.specification.model.attention_window) == windows_of(  # type: ignore[union-attr]
        scenario.specification.model.attention_window  # type: ignore[union-attr]
    )


def test_megatron_has_no_chunks() -> None:
    changes = {"model.attention_window": {"size": 1024, "chunked": True}, "parallelism.data": {"method": "ddp"}}
    with pytest.raises(ScenarioError, match="one window for its layers, and no chunks"):
        exporter("megatron")(Scenario.load("llama3_8b_fsdp_dgx_h100", changes))


@pytest.mark.parametrize(
    ("window", "message"),
    [
        ({"size": 512, "every": "7 of 6"}, 'must say how many layers of how many have the window, such as "5 of 6"'),
        ({"size": 512, "every": 5}, 'must say how many layers of how many have the window, such as "5 of 6", not 5'),
        ([], "must not be empty"),
        ([128, -1], "attention_window.1: must be at least 0, not -1"),
        ({"every": "1 of 2"}, "attention_window.size: is required"),
    ],
)
def test_what_is_no_window_is_refused(window: Any, message: str) -> None:
    with pytest.raises(ScenarioError) as error:
        given_window(window)
    assert message in str(error.value)


def test_context_parallelism_cuts_each_layer_by_its_window() -> None:
    """Ranks that gather keys compute together what one computes; a ring has no windows, but chunks."""
    every = {"size": WINDOW, "every": "5 of 6"}

    def computed(cp: int, method: str, window: Any) -> float:
        """Attention's FLOPs of a rank in the mean: cp ranks have 1/cp of each of as many samples."""
        scenario = Scenario.model_validate(
            {
                "version": 1,
                "cluster": {"preset": "dgx_h100", "nodes": 1},
                "model": {"preset": "llama3_8b", "num_layers": 6, "seq_length": LENGTH, "attention_window": window},
                "training": {"global_batch_size": 8, "precision": "bf16"},
                "parallelism": {"cp": cp, "cp_method": method} if cp > 1 else {},
            }
        )
        programs = scenario.schedule().programs  # those of ranks that compute the same are one
        ops = (op for program in programs for op in program.ops)
        kernels = (kernel for op in ops for kernel in getattr(op, "kernels", ()))
        return sum(kernel.flops for kernel in kernels if kernel.attention) / len(programs)

    assert computed(2, "all_gather", every) == pytest.approx(computed(1, "", every), rel=1e-3)
    assert computed(2, "ulysses", every) == pytest.approx(computed(1, "", every), rel=1e-3)
    chunked = {**every, "chunked": True}
    assert computed(2, "ring", chunked) == pytest.approx(computed(1, "", chunked), rel=1e-3)
    with pytest.raises(ScenarioError, match="attention_window; take all_gather"):
        computed(2, "ring", every)


def test_presets_with_windows_by_layer() -> None:
    several = {
        name: _shape(model(name)).attention.windows
        for name in names("clustersim.workloads.models")
        if name.startswith(("gem", "olmo3"))
    }
    assert {len(windows) for name, windows in several.items() if "gemma3" in name} == {6}
    assert {len(windows) for name, windows in several.items() if "olmo3" in name} == {4}
