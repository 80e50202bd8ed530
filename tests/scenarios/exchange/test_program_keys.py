"""Tables of arguments: what is written is read back, key by key and in scenarios that are drawn from the tables."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from clustersim.scenarios.exchange import megatron_keys as megatron
from clustersim.scenarios.exchange import torchtitan_keys as torchtitan
from clustersim.scenarios.exchange.export import exporter
from clustersim.scenarios.exchange.facts import RUN
from clustersim.scenarios.exchange.formats._megatron_model import Arguments
from clustersim.scenarios.exchange.formats.torchtitan import TorchtitanSettings
from clustersim.scenarios.exchange.importer import Options, imported
from clustersim.scenarios.exchange.program_keys import Flag, Key, Number, Whole, argument, setting
from clustersim.scenarios.exchange.source_file import parsed
from clustersim.scenarios.scenario import Scenario


def values(key: Key) -> st.SearchStrategy[Any]:
    """Values of the scenario's *key* that are written."""
    match key:
        case Whole():
            return st.integers(key.least, 10**9)
        case Number():
            return st.integers(0, 10**6).map(lambda number: number / 1000)
        case Flag():
            return st.just(key.means)
        case _:
            return st.sampled_from(list(key.words.values()))


WRITTEN = [key for key in megatron.KEYS if not (isinstance(key, Flag) and not key.written)]


@pytest.mark.parametrize("table", [megatron.KEYS, torchtitan.KEYS])
def test_an_argument_stands_in_a_table_once(table):
    flags = [key.flag for key in table]
    assert len(set(flags)) == len(flags)
    assert all(key.key.startswith(("model.", "training.", "parallelism.")) or key.key in RUN for key in table)


@settings(deadline=None, max_examples=150)
@given(data=st.data(), key=st.sampled_from(WRITTEN))
def test_an_argument_of_megatron_is_read_as_it_is_written(data, key):
    value = data.draw(values(key))
    source = parsed("x.sh", f"torchrun pretrain_gpt.py --bf16 {' '.join(argument(key, value))}\n", ".sh")
    assert key.read(Arguments(source)) == value


@settings(deadline=None, max_examples=80)
@given(data=st.data(), key=st.sampled_from(torchtitan.KEYS))
def test_a_setting_of_torchtitan_is_read_as_it_is_written(data, key):
    value = data.draw(values(key))
    lines = [f"{name} = {json.dumps(written)}" for name, written in setting(key, value).items()]
    section = key.flag.rpartition(".")[0]
    assert key.read(TorchtitanSettings(parsed("x.toml", "\n".join([f"[{section}]", *lines, ""]), ".toml"))) == value


def at(scenario: Scenario, key: str) -> Any:
    """The value of the dotted *key*; None if a section on the way is not given."""
    value: Any = scenario.specification
    for part in key.split("."):
        value = getattr(value, part, None)
    return value


Values = dict[str, Any]


def before_and_after(scenario: Scenario, target: str, table: tuple[Key, ...], folder: Any) -> tuple[Values, Values]:
    """Return the values of the keys of *table* in *scenario*, and after an export to *target* and an import."""
    made = exporter(target)(scenario)
    for name, content in made.files.items():
        assert isinstance(content, str)
        (folder / name).write_text(content)
    files = [str(folder / name) for name in made.files if target == "megatron" or name.endswith(".toml")]
    again = imported(files, Options(cluster="dgx_h100", nodes=4), "again").scenario
    keys = {key.key for key in table if key.key not in RUN}
    return {key: at(scenario, key) for key in keys}, {key: at(again, key) for key in keys}


def one_of(*options: Any) -> st.SearchStrategy[Any]:
    return st.sampled_from(options)


MODEL = {
    "kind": st.just("transformer"),
    "num_layers": one_of(4, 8),
    "hidden_size": one_of(512, 1024),
    "num_attention_heads": st.just(8),
    "head_dim": one_of(32, 64),
    "seq_length": one_of(256, 1024),
    "vocab_size": st.just(32768),
    "activation": one_of("gelu", "swiglu", "squared_relu", "gelu_new"),
    "normalization": one_of("layernorm", "rmsnorm"),
    "position_embedding_type": one_of("learned_absolute", "rope"),
    "attention": one_of("flash", "unfused"),
    "tie_embeddings": st.booleans(),
    "add_bias_linear": st.booleans(),
    "qk_norm": one_of("none", "per_head"),
    "dropout": st.just(0.1),
}
EXPERTS = {
    "num_experts": one_of(8, 16),
    "moe_router_topk": one_of(1, 2),
    "moe_ffn_hidden_size": one_of(256, 512),
    "moe_router_bias": st.booleans(),
    "capacity_factor": one_of("dropless", 1.25),
}
TRAINING = {
    "micro_batch_size": one_of(1, 2),
    "global_batch_size": one_of(128, 256),
    "precision": st.just("bf16"),
    "gradient_dtype": st.just("fp32"),
}


@settings(deadline=None, max_examples=15)
@given(
    model=st.fixed_dictionaries(MODEL),
    experts=st.one_of(st.just({}), st.fixed_dictionaries(EXPERTS)),
    training=st.fixed_dictionaries({**TRAINING, "optimizer": one_of("adam", "momentum")}),
    degrees=st.fixed_dictionaries({"tp": one_of(1, 2), "pp": one_of(1, 2), "cp": one_of(1, 2)}),
    method=one_of("ring", "all_gather", "ulysses"),
    overlap=st.booleans(),
)
def test_scenarios_of_megatron(model, experts, training, degrees, method, overlap, tmp_path_factory):
    shared = {"sequence_parallel": True, "tp_overlap": overlap} if degrees["tp"] > 1 else {}
    shared |= {"ep": 2} if experts else {}
    if degrees["cp"] > 1:
        # a ring and gathers need a kernel that never holds all scores
        shared["cp_method"], model = method, {**model, "attention": "flash"}
    data = {
        "version": 1,
        "cluster": {"preset": "dgx_h100", "nodes": 4},
        "model": {**model, **experts},
        "training": training,
        "parallelism": {**degrees, **shared, "data": {"method": "zero", "stage": 1}},
    }
    before, after = before_and_after(
        Scenario.model_validate(data), "megatron", WRITTEN, tmp_path_factory.mktemp("megatron")
    )
    assert after == before


@settings(deadline=None, max_examples=10)
@given(
    training=st.fixed_dictionaries({**TRAINING, "recompute": one_of("none", "selective", "full")}),
    degrees=st.fixed_dictionaries({"tp": one_of(1, 2), "pp": one_of(1, 2, 4), "cp": one_of(1, 2)}),
    order=one_of("1f1b", "gpipe", "interleaved"),
    method=one_of("ring", "all_gather"),
    reshard=st.booleans(),
    length=one_of(2048, 4096),
)
def test_scenarios_of_torchtitan(training, degrees, order, method, reshard, length, tmp_path_factory):
    shared = {"sequence_parallel": True} if degrees["tp"] > 1 else {}
    shared |= {"cp_method": method} if degrees["cp"] > 1 else {}
    shared |= {"schedule": order} if degrees["pp"] > 1 else {}
    shared |= {"virtual_stages": 2} if degrees["pp"] > 1 and order == "interleaved" else {}
    data = {
        "version": 1,
        "cluster": {"preset": "dgx_h100", "nodes": 4},
        "training": training,
        "model": {"preset": "llama3_8b", "num_layers": 32, "seq_length": length},
        "parallelism": {**degrees, **shared, "data": {"method": "fsdp", "reshard": reshard}},
    }
    before, after = before_and_after(
        Scenario.model_validate(data), "torchtitan", torchtitan.KEYS, tmp_path_factory.mktemp("titan")
    )
    assert after == before
