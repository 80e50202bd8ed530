"""The keys that say which blocks each layer has (attention, feed-forward networks, blocks with a file of their own),
and what the blocks may have: a mixture of experts, low-rank adapters.

A block is a file of `workloads.blocks`, or a module of the user's own that declares a subclass of `Block`.

Keys of what the blocks of a transformer may have: a mixture of experts, and low-rank adapters.

Keys of experts are named as Megatron-LM and DeepSeek name them. The section `lora` is fine-tuning by adapters.
"""

from collections.abc import Iterator, Mapping
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal, get_args

from pydantic import BeforeValidator, Field, create_model

from clustersim.simulator.reading import lookup
from clustersim.simulator.reading.names_and_parameters import known
from clustersim.simulator.reading.quantities import BelongsTo, Count, Flag, Index, Quantity, Section, number
from clustersim.simulator.reading.validation import Fault, listed
from clustersim.workloads.architectures.model_keys import MOST_LAYERS, most

if TYPE_CHECKING:
    from clustersim.workloads.blocks._block import Block
    from clustersim.workloads.operators.experts import Experts, Shares
    from clustersim.workloads.operators.lora import Lora

PACKAGE = "clustersim.workloads.blocks"

ATTENTION, MLP = "attention", "mlp"
"""Blocks whose keys stand in the `model:` section itself; mlp is a mixture of experts where the layer has one."""

KIND = "kind"
"""The key below a name in ``blocks`` that says which block it is, if the name is none itself."""

Name = Annotated[str, Field(min_length=1)]


def block_class(name: str) -> "type[Block]":
    """The class of the block that the file *name* of `workloads.blocks`, or the user's module *name*, declares.

    Raises `Fault`.
    """
    from clustersim.workloads.blocks._block import Block

    module = lookup.find(PACKAGE, name)
    own = (one for one in vars(module).values() if isinstance(one, type) and one.__module__ == module.__name__)
    found = next((one for one in own if issubclass(one, Block)), None)
    if found is None:
        raise Fault((), f"{name} declares no subclass of Block")
    return found


@cache
def _keys_of(classes: "tuple[tuple[str, type[Block]], ...]") -> Any:
    """The model of a section whose ``blocks`` has, by name, the keys of each of *classes*."""
    fields: dict[str, Any] = {
        f"block{index}": (its, Field(default_factory=dict, alias=name, validate_default=True))
        for index, (name, its) in enumerate(classes)
    }
    keys: Any = create_model("Blocks", __base__=Section, **fields)
    # a second level, so that faults are told at their keys below blocks
    return create_model("Holder", __base__=Section, blocks=(keys, ...))


class LayerKeys(Section):
    """Keys of layers that are not all attention and then an MLP."""

    layers: Annotated[list[Name | Annotated[list[Name], Field(min_length=1)]], Field(min_length=1)] | None = None
    """Blocks of the layers, in turn over them, each block with a norm and a residual sum: attention, mlp, mamba2,
    mamba, gated_delta_net, or the import path of your own. A layer of several is a list: [[mamba2, mlp], [attention,
    mlp]]. By default every layer is [attention, mlp]."""
    blocks: dict[str, dict[str, Any]] | None = None
    """Keys of blocks by their names, such as mamba2: {state_size: 128, chunk_size: 256}. Those of attention and mlp
    stand in this section itself. A name of your own says its kind: wide: {kind: feed_forward, width: 28672}."""

    @property
    def patterns(self) -> tuple[tuple[str, ...], ...]:
        """The names of the blocks of each layer of a turn; none: every layer is attention and MLP."""
        return tuple((one,) if isinstance(one, str) else tuple(one) for one in self.layers or ())

    @property
    def made_layers(self) -> "tuple[tuple[str | Block, ...], ...]":
        """The blocks of each layer of a turn. Raises `Fault`, or pydantic's `ValidationError`, for keys of a block."""
        named = self._named()
        return tuple(tuple(named.get(one, one) for one in pattern) for pattern in self.patterns)

    def kind_of(self, name: str) -> str:
        """The block that *name* in ``layers`` stands for: that of its key ``kind``, or the block of that name."""
        keys = (self.blocks or {}).get(name, {})
        return str(keys.get(KIND, name))

    def _check_names(self) -> None:
        """Raise `Fault` for a name in ``layers`` that is no block."""
        for layer, one in enumerate(self.layers or ()):
            for name in [one] if isinstance(one, str) else one:
                own = KIND in (self.blocks or {}).get(name, {})
                place = ("blocks", name, KIND) if own else ("layers", layer)
                try:
                    known(self.kind_of(name), PACKAGE, extra=() if own else (ATTENTION, MLP))
                except Fault as fault:
                    raise Fault(place, fault.message, fault.hint) from None

    def _named(self) -> "Mapping[str, Block]":
        names = sorted({name for pattern in self.patterns for name in pattern} - {ATTENTION, MLP})
        if not names and not self.blocks:
            return {}
        try:
            classes = tuple((name, block_class(self.kind_of(name))) for name in names)
        except Fault as fault:
            raise Fault(("layers", *fault.path), fault.message, fault.hint) from None
        given = {
            name: {key: one for key, one in keys.items() if key != KIND} for name, keys in (self.blocks or {}).items()
        }
        made = _keys_of(classes).model_validate({"blocks": given}).blocks
        return {name: getattr(made, f"block{index}") for index, name in enumerate(names)}

    def check_layers(self, features: int, others: Mapping[str, bool]) -> None:
        """Raise `Fault` for blocks that no layer has, whose keys are wrong, or that stand beside *others*."""
        if self.layers is None:
            if self.blocks:
                raise Fault("blocks", f"belongs to layers, which have {' and '.join(self.blocks)}; give layers too")
            return
        most("layers", len(self.layers), MOST_LAYERS)
        self._check_names()
        used = {name for pattern in self.patterns for name in pattern}
        for name in self.blocks or ():
            if name in (ATTENTION, MLP):
                raise Fault(("blocks", name), "has its keys in the model section itself")
            if name not in used:
                raise Fault(("blocks", name), f"no layer has it; layers have {', '.join(sorted(used))}")
        for what in (what for what, given in others.items() if given):
            raise Fault("layers", f"is not modelled with {what}; leave one of them out")
        for name, block in self._named().items():
            for fault in _faults(block, features):
                raise Fault(("blocks", name, *fault.path), fault.message, fault.hint)


def _faults(block: "Block", features: int) -> Iterator[Fault]:
    try:
        block.counts(features)
    except Fault as fault:
        yield fault


MOST_EXPERTS = 100_000
"""More is a slipped digit: the largest published mixture has 2,048 (Fedus et al. 2022, arXiv:2101.03961, table 9)."""

STEEPEST = 10.0
"""A Zipf exponent above sends all tokens to the first experts."""

Exponent = Annotated[float, BeforeValidator(number(0.0, STEEPEST))]


class Zipf(Section):
    """Loads as Zipf has them: expert i gets a share in proportion to 1 / (i + 1)^s."""

    zipf: Exponent
    """The exponent s; 0 is balanced. Required."""


def _capacity(value: Any) -> Any:
    return value if value == "dropless" else number(0.0, 1000.0)(value)


def _load(value: Any) -> Any:
    if isinstance(value, str) and value != "balanced" and not value.endswith(".csv"):
        raise ValueError(f'must be balanced, {{zipf: s}} or a .csv file, not "{value}"')
    return value


class ExpertKeys(Section):
    """Keys of a mixture of experts. Without num_experts there is none."""

    num_experts: Count | None = None
    """Experts of a layer; by default none. Also num_local_experts, n_routed_experts."""
    moe_router_topk: Count = 2
    """Experts of each token; 2 by default, as in Megatron-LM. Also num_experts_per_tok."""
    moe_ffn_hidden_size: Count | None = None
    """Features inside an expert; by default ffn_hidden_size. Also moe_intermediate_size."""
    moe_shared_expert_intermediate_size: Index = 0
    """Features inside the shared expert, which every token passes; 0: there is none."""
    moe_shared_expert_gate: Flag = False
    """A gate scales the result of the shared expert, as in Qwen 2."""
    first_k_dense_replace: Index = 0
    """So many layers at the begin have a dense MLP in place of experts."""
    moe_layer_freq: Count | list[Literal[0, 1]] = 1
    """One in so many layers has experts, the first of them; or a list of 1 (experts) and 0 (dense), repeated."""
    n_group: Count = 1
    """Groups of experts; each token chooses experts in topk_group of them (node-limited routing)."""
    topk_group: Count | None = None
    """Groups in which the experts of a token are; by default all."""
    capacity_factor: Annotated[float | Literal["dropless"], BeforeValidator(_capacity)] = "dropless"
    """Tokens that an expert takes at most, relative to its equal share; others are dropped. dropless: it takes all."""
    pad_to_capacity: Flag = False
    """Each expert computes its whole capacity, as in Switch."""
    router_load: Annotated[Literal["balanced"] | Zipf | str, BeforeValidator(_load)] = "balanced"
    """How tokens spread over experts: balanced, {zipf: s}, or a CSV file with the columns expert and tokens, and layer
    if layers differ."""
    moe_router_bias: Flag = False
    """The router has a bias."""
    moe_aux_loss: Flag = True
    """A loss for equal loads is computed."""
    moe_latent_size: Index = 0
    """Features of a token that experts take and give, and that are sent to them, made from the hidden state by a
    product (Nemotron 3 Super); 0: those of the hidden state."""
    moe_own_norms: Flag = False
    """Norms stand before and after the experts, and after the shared expert; experts have scales, too (Gemma 4)."""

    def experts(self, ffn_hidden_size: int, layers: int, folder: Path | None) -> "Experts | None":
        """The mixture of a model of *layers* layers; a file of loads lies in *folder*. Raises `Fault`."""
        from clustersim.workloads.operators.experts import Experts

        if self.num_experts is None:
            return None
        freq = self.moe_layer_freq
        pattern = tuple(freq) if isinstance(freq, list) else (1, *(0,) * (freq - 1))
        made = Experts(
            self.num_experts,
            self.moe_router_topk,
            self.moe_ffn_hidden_size or ffn_hidden_size,
            shared=self.moe_shared_expert_intermediate_size,
            shared_gate=self.moe_shared_expert_gate,
            groups=self.n_group,
            chosen_groups=self.topk_group or self.n_group,
            capacity_factor=0.0 if isinstance(self.capacity_factor, str) else self.capacity_factor,
            padded=self.pad_to_capacity,
            dense_first=self.first_k_dense_replace,
            pattern=pattern,
            router_bias=self.moe_router_bias,
            aux_loss=self.moe_aux_loss,
            latent=self.moe_latent_size,
            own_norms=self.moe_own_norms,
        )
        sparse = sum(made.is_sparse(layer) for layer in range(layers))
        return replace(made, loads=self._loads(sparse, folder))

    def _loads(self, layers: int, folder: Path | None) -> "tuple[Shares, ...]":
        from clustersim.workloads.operators.experts import read_load, zipf

        assert self.num_experts is not None
        match self.router_load:
            case "balanced":
                return ((),)
            case Zipf(zipf=exponent):
                return (zipf(self.num_experts, exponent, self.moe_router_topk) if exponent else (),)
            case str() as file:
                return read_load((folder or Path()) / file, self.num_experts, self.moe_router_topk, layers)
        raise AssertionError(self.router_load)

    def check_experts(self, layers: int) -> None:
        """Raise `Fault` for keys of experts that contradict one another, or stand without experts."""
        if self.num_experts is None:
            own = [key for key, field in ExpertKeys.model_fields.items() if getattr(self, key) != field.default]
            if own:
                raise Fault(own[0], "belongs to a mixture of experts; give num_experts too")
            return
        count, topk = self.num_experts, self.moe_router_topk
        if count > MOST_EXPERTS:
            raise Fault("num_experts", f"{count} is absurd; the most that is taken is {MOST_EXPERTS}")
        if topk > count:
            raise Fault("moe_router_topk", f"{topk} is more than the {count} experts")
        self._check_groups(count, topk)
        if self.first_k_dense_replace >= layers:
            raise Fault(
                "first_k_dense_replace", f"{self.first_k_dense_replace} leaves no layer of {layers} for experts"
            )
        if isinstance(self.moe_layer_freq, list) and not any(self.moe_layer_freq):
            raise Fault("moe_layer_freq", "has no 1, so that no layer has experts; leave out num_experts")
        if self.capacity_factor == 0:
            raise Fault("capacity_factor", "0 drops every token; give a number above 0, or dropless")
        if self.pad_to_capacity and self.capacity_factor == "dropless":
            raise Fault("pad_to_capacity", "belongs to a capacity_factor, but no token is dropped")
        if self.moe_shared_expert_gate and not self.moe_shared_expert_intermediate_size:
            raise Fault(
                "moe_shared_expert_gate", "belongs to a shared expert; give moe_shared_expert_intermediate_size"
            )

    def _check_groups(self, count: int, topk: int) -> None:
        chosen = self.topk_group or self.n_group
        if count % self.n_group:
            raise Fault("n_group", f"{self.n_group} groups do not divide the {count} experts")
        if chosen > self.n_group:
            raise Fault("topk_group", f"{chosen} is more than the {self.n_group} groups of n_group")
        if chosen * count // self.n_group < topk:
            raise Fault(
                "topk_group", f"{chosen} groups have {chosen * count // self.n_group} experts; each token has {topk}"
            )


Target = Literal["qkv", "query", "key", "value", "projection", "gate", "up", "down"]


def _word(value: Any) -> Any:
    if isinstance(value, str) and value != "all":
        raise ValueError(f'must be all, or a list of {listed(get_args(Target))}, not "{value}"')
    return value


Targets = Annotated[Literal["all"] | Annotated[list[Target], Field(min_length=1)], BeforeValidator(_word)]

PAPER: Targets = ["query", "value"]
"""Hu et al. 2021, arXiv:2106.09685, section 7.1."""


class LoraKeys(Section):
    """Low-rank adapters beside a frozen model (LoRA), whose weights may be in 4 bits (QLoRA)."""

    rank: Count = 8
    """Rank of the adapters; 8 by default, as in PEFT and torchtune."""
    alpha: Quantity | None = None
    """Scale of the adapters, which changes neither time nor memory."""
    targets: Targets = Field(default_factory=lambda: PAPER)
    """Linear maps with an adapter: qkv (one adapter if the model holds it in one tensor, as GPT-2 does), query, key,
    value, projection, gate, up, down, or all. By default query and value, as in the paper."""
    dropout: Annotated[float, BeforeValidator(number(0.0, 1.0))] = 0.0
    """Probability of dropout before an adapter, 0 to 1; above 0 its kernels and masks count."""
    quantised: Literal["nf4", "fp4", "gptq"] | None = None
    """Format of the frozen weights of the layers, 4 bits; by default that of the model. nf4: QLoRA, by bitsandbytes, as
    fp4; gptq: AutoGPTQ's."""
    double_quantisation: Annotated[Flag, BelongsTo("quantised", to="quantised weights; give quantised: nf4 too")] = True
    """The scales of nf4 and fp4 are quantised too, as in QLoRA."""
    modules_to_save: list[Literal["embedding", "head"]] = Field(default_factory=list)
    """Tables of the vocabulary that are trained whole beside the adapters, as PEFT's key of that name."""

    def lora(self) -> "Lora":
        """The adapters."""
        from clustersim.workloads.operators.frozen_weights import Gptq, Quantisation
        from clustersim.workloads.operators.lora import EVERY, Lora

        targets = EVERY if self.targets == "all" else tuple(self.targets)
        packed = Gptq() if self.quantised == "gptq" else Quantisation(self.double_quantisation)
        whole = tuple(dict.fromkeys(self.modules_to_save))
        return Lora(self.rank, targets, bool(self.dropout), packed if self.quantised else None, whole)

    def check_experts(self) -> None:
        """Raise `Fault` for what experts do not have: adapters, and weights in 4 bits."""
        if self.targets == "all" or {"gate", "up", "down"} & {*self.targets}:
            given = self.targets if self.targets == "all" else ", ".join(self.targets)
            raise Fault(
                ("lora", "targets"), f"{given}: experts have no adapters; take qkv, query, key, value, projection"
            )
        if self.quantised:
            raise Fault(("lora", "quantised"), f"{self.quantised} is not modelled with experts; leave it out")

    def check(self, *, gated: bool, hidden_size: int, tied: bool) -> None:
        """Raise `Fault` for what the model does not have: a target, a rank so large, tables of its own if *tied*."""
        if self.modules_to_save and tied:
            raise Fault(
                ("lora", "modules_to_save"),
                f"{', '.join(self.modules_to_save)}: a trained copy is no longer tied; give tie_embeddings: false too",
            )
        if self.quantised == "gptq" and "double_quantisation" in self.model_fields_set:
            raise Fault(("lora", "double_quantisation"), "belongs to nf4 and fp4; gptq has scales of 16 bits")
        if "gate" in self.targets and self.targets != "all" and not gated:
            raise Fault(("lora", "targets"), "gate belongs to an activation with two products, such as swiglu")
        if self.rank > hidden_size:
            raise Fault(("lora", "rank"), f"{self.rank} is more than the hidden_size of {hidden_size}")
