"""Keys that every kind of model has, checks of sizes, and Hugging Face's names of keys of the `model:` section.

>>> document = Document({"model": {"num_hidden_layers": 32, "hidden_act": "silu"}})
>>> with_plain_keys(document, ("model",)).data
{'model': {'num_layers': 32, 'activation': 'swiglu'}}
"""

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from pydantic import BeforeValidator

from clustersim.simulator.reading.document import Document, Path
from clustersim.simulator.reading.quantities import Section
from clustersim.simulator.reading.validation import Fault, listed

if TYPE_CHECKING:
    import pathlib

    from clustersim.workloads.operators.model import Model
    from clustersim.workloads.operators.operator import Fused

HERE = __name__.rpartition(".")[0]

KINDS: Mapping[str, str] = {
    "transformer": f"{HERE}.transformer_keys:TransformerSpecification",
    "vision": f"{HERE}.image_model_keys:VisionSpecification",
    "convolutional": f"{HERE}.image_model_keys:ConvolutionalSpecification",
    "diffusion": f"{HERE}.image_model_keys:DiffusionSpecification",
    "unet": f"{HERE}.image_model_keys:UNetSpecification",
    "towers": f"{HERE}.tower_keys:TowersSpecification",
    "speech": f"{HERE}.tower_keys:SpeechSpecification",
    "profile": f"{HERE}.timed_models:ProfileSpecification",
    "unit": f"{HERE}.timed_models:UnitSpecification",
}
"""The section of each kind of model, as ``module:class``."""

MOST_LAYERS = 10_000
"""More is a slipped digit: DeepNet, very deep, has 1,000 (Wang et al. 2022, arXiv:2203.00555)."""

MOST_FEATURES = 1_000_000
"""More features of a hidden layer are a slipped digit: PaLM has 18,432 (Chowdhery et al. 2022, arXiv:2204.02311)."""


def _known(kind: Any) -> Any:
    if kind not in KINDS:
        raise ValueError(f'must be {listed(KINDS)}, not "{kind}"')
    return kind


KNOWN = BeforeValidator(_known)
"""Validator of a kind."""


class Named(Section):
    """Keys of every kind of model; *source*: where the figures of a preset come from."""

    if TYPE_CHECKING:
        kind: str
    preset: str = ""
    """A file of workloads/models, or the path of a .yaml file or of Hugging Face's config.json; keys beside it override
    it."""
    name: str = ""
    """Name of the model in reports."""
    description: str = ""
    """What the model is."""
    source: str = ""
    """Where its figures are from."""

    @property
    def title(self) -> str:
        """The name in reports: as given, that of the preset, or the kind."""
        return self.name or self.preset or getattr(self, "model", None) or self.kind

    def build(self, precision: str = "fp32", fused: "Fused" = True, folder: "pathlib.Path | None" = None) -> "Model":
        """The model with products in *precision*, its elementwise kernels *fused* or not; paths are below *folder*."""
        raise NotImplementedError


def most(key: str, value: int, limit: int) -> None:
    """Raise `Fault` if *value* is above *limit*."""
    if value > limit:
        raise Fault(key, f"{value} is absurd; the most that is taken is {limit}")


def divides(key: str, value: int, whole: str, total: int) -> None:
    """Raise `Fault` unless *value* divides *total*, the value of the key *whole*."""
    from clustersim.workloads.architectures.shape import nearest_divisors

    if total % value:
        good = " or ".join(map(str, nearest_divisors(total, value)))
        raise Fault(key, f"{value} does not divide {whole} = {total}; try {good}")


ALIASES: Mapping[str, str] = {
    "num_hidden_layers": "num_layers",
    "n_layer": "num_layers",
    "n_embd": "hidden_size",
    "d_model": "hidden_size",
    "n_head": "num_attention_heads",
    "intermediate_size": "ffn_hidden_size",
    "n_inner": "ffn_hidden_size",
    "mtp_num_layers": "num_nextn_predict_layers",
    "d_ff": "ffn_hidden_size",
    "d_kv": "head_dim",
    "num_heads": "num_attention_heads",
    "feed_forward_proj": "activation",
    "max_position_embeddings": "seq_length",
    "n_positions": "seq_length",
    "hidden_act": "activation",
    "activation_function": "activation",
    "tie_word_embeddings": "tie_embeddings",
    "sliding_window": "attention_window",
    "hidden_dropout_prob": "dropout",
    "resid_pdrop": "dropout",
    "num_local_experts": "num_experts",
    "n_routed_experts": "num_experts",
    "num_experts_per_tok": "moe_router_topk",
    "moe_intermediate_size": "moe_ffn_hidden_size",
    "shared_expert_intermediate_size": "moe_shared_expert_intermediate_size",
}
"""Keys of the configurations of Llama, Mistral, BERT, GPT-2 and T5 in Hugging Face's transformers, and keys here."""

LIMITS = ("max_position_embeddings", "n_positions")
"""Keys that bound the sequence: a ``seq_length`` beside them is the length of a training sample, and holds."""

ACTIVATIONS: Mapping[str, str] = {
    "silu": "swiglu",
    "gelu_pytorch_tanh": "gelu_new",
    "relu2": "squared_relu",
    "gated-gelu": "geglu",
    "gated-silu": "swiglu",
}
"""Names of activations. Models with ``silu``, such as Llama's, multiply it by a second product: SwiGLU."""


def plain_path(path: Path) -> Path:
    """Return *path* in a scenario with a key of `ALIASES` in its model section replaced by that for which it stands."""
    if len(path) > 1 and path[0] == "model":
        return ("model", ALIASES.get(str(path[1]), path[1]), *path[2:])
    return path


def with_plain_keys(document: Document, at: Path) -> Document:
    """Return *document* with the keys and values of Hugging Face in the section at *at* replaced.

    Raises `ScenarioError` if a key and one that stands for it are both given.
    """
    section = document.get(at)
    if not isinstance(section, dict):
        return document
    made: dict[Any, Any] = {}
    moved: dict[Any, Any] = {}
    for key, value in section.items():
        name = ALIASES.get(key, key)
        if key in LIMITS and name in section:
            continue
        if name in made or (name != key and name in section):
            raise document.error((*at, key), f"stands for {name}, which is given too; give one of them", at_key=True)
        made[name] = ACTIVATIONS.get(value, value) if name == "activation" and isinstance(value, str) else value
        moved[key] = name
    if list(section.items()) == list(made.items()):
        return document
    positions = {
        _moved(path, at, moved): position for path, position in document.positions.items() if _kept(path, at, moved)
    }
    return Document(_with(document.data, at, made), positions)


def _kept(path: Path, at: Path, moved: Mapping[Any, Any]) -> bool:
    return len(path) <= len(at) or path[: len(at)] != at or path[len(at)] in moved


def _moved(path: Path, at: Path, moved: Mapping[Any, Any]) -> Path:
    inside = len(path) > len(at) and path[: len(at)] == at
    return (*at, moved[path[len(at)]], *path[len(at) + 1 :]) if inside else path


def _with(data: dict[Any, Any], at: Path, section: dict[Any, Any]) -> dict[Any, Any]:
    return {**data, at[0]: _with(data[at[0]], at[1:], section)} if at else section


def is_config(document: Document) -> bool:
    """Return whether *document* is a model configuration of Hugging Face."""
    return "model_type" in document.data
