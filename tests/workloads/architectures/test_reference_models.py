"""Parameters of shipped models and of imported configurations are those that transformers and diffusers count."""

from importlib.util import find_spec
from typing import Any

import pytest
from pydantic import TypeAdapter

from clustersim.simulator.reading.document import Document
from clustersim.simulator.reading.errors import ScenarioError
from clustersim.workloads.architectures.huggingface_config import keys_read, model_section
from clustersim.workloads.architectures.specification import ModelSpecification, specification
from clustersim.workloads.operators.model import Model
from tests.workloads.architectures.reference_models import counted, references

REFERENCES = references()
INSTALLED = all(find_spec(name) for name in ("torch", "transformers", "diffusers"))


SPECIFICATION: TypeAdapter[ModelSpecification] = TypeAdapter(ModelSpecification)


def imported(config: dict[str, Any]) -> Model:
    section = model_section(Document(config, {})).data
    return SPECIFICATION.validate_python(section).build()


@pytest.mark.parametrize("name", REFERENCES["presets"])
def test_presets_have_as_many_parameters(name: str) -> None:
    """diffusers' DiT has an embedding of time steps and classes in each layer, the paper's has one for all."""
    made = specification(name)
    if name == "dit_xl":
        made = made.model_copy(update={"condition_per_layer": True})
    assert made.build().parameters == REFERENCES["presets"][name]["count"]


@pytest.mark.parametrize("name", REFERENCES["families"])
def test_imported_configurations_have_as_many_parameters(name: str) -> None:
    stored = REFERENCES["families"][name]
    assert imported(stored["config"]).parameters == stored["count"]
    assert "num_hidden_layers" in keys_read(Document(stored["config"], {}))


@pytest.mark.parametrize("name", REFERENCES["kinds"])
def test_other_kinds_and_keys_have_as_many_parameters(name: str) -> None:
    stored = REFERENCES["kinds"][name]
    assert imported(stored["config"]).parameters == stored["count"]
    assert "model_type" in keys_read(Document(stored["config"], {}))


@pytest.mark.exhaustive
@pytest.mark.skipif(not INSTALLED, reason="needs transformers and diffusers, which no extra has")
@pytest.mark.parametrize("part, name", [(part, name) for part, every in REFERENCES.items() for name in every])
def test_stored_counts_are_those_of_the_libraries(part: str, name: str) -> None:
    stored = REFERENCES[part][name]
    assert counted(stored["config"]) == stored["count"]


def test_layers_of_a_nemotron_may_be_counted_by_their_blocks() -> None:
    config = {key: one for key, one in REFERENCES["families"]["nemotron_h"]["config"].items() if key != "head_dim"}
    without = {key: one for key, one in config.items() if key != "num_hidden_layers"}
    assert imported(without).parameters == imported(config).parameters


def test_a_puzzle_has_the_heads_and_widths_of_each_layer() -> None:
    attention, none = {"n_heads_in_group": 8}, {"no_op": True}
    blocks = [
        {"attention": attention, "ffn": {"ffn_mult": 5.25}},
        {"attention": none, "ffn": {"ffn_mult": 2.625}},
        {"attention": attention, "ffn": none},
    ]
    config = {"model_type": "nemotron-nas", "num_hidden_layers": 3, "hidden_size": 8192, "num_attention_heads": 64}
    config |= {"vocab_size": 1000, "max_position_embeddings": 4096, "block_configs": blocks}
    heads, hidden = 8192 * (8192 + 2 * 1024) + 8192 * 8192, 8192
    networks = 3 * hidden * (28672 + 14336)
    assert imported(config).parameters == 2 * heads + networks + 4 * hidden + 2 * 1000 * hidden + hidden


@pytest.mark.parametrize(
    "name, change, message",
    [
        ("mimo_v2_flash", {"hybrid_layer_pattern": [0, 1]}, "must be a list of 0 and 1 for each of the 7 layers"),
        ("glm_moe_dsa", {"indexer_types": ["full"]}, "must be a list of full and shared for each of the 7 layers"),
        ("gemma4_text", {"num_kv_shared_layers": 2}, "keys and values of other layers are not modelled"),
        ("minimax_m3_vl_text", {"sparse_attention_config": 3}, "must be a mapping, not '3'"),
        ("step3p7", {"moe_layers_enum": "3,x"}, "must be numbers of layers with commas"),
        ("gpt_oss", {"partial_rotary_factor": 2}, "rotates '2' of a head"),
    ],
)
def test_faults_name_the_key(name: str, change: dict[str, Any], message: str) -> None:
    config = REFERENCES["families"][name]["config"] | change
    with pytest.raises(ScenarioError) as error:
        imported(config)
    assert next(iter(change)) in str(error.value)
    assert message in str(error.value)
