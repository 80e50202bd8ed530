"""The plan section: what `clustersim plan` may vary, how it searches, and what is best."""

from typing import Annotated, Any, Literal

from pydantic import BeforeValidator, Field, ValidationError, WithJsonSchema, field_validator

from clustersim.scenarios.specification.parallelism import ParallelismSection
from clustersim.scenarios.specification.training import Training
from clustersim.simulator.reading.names_and_parameters import known
from clustersim.simulator.reading.plain_text import written
from clustersim.simulator.reading.quantities import Count, Section, number
from clustersim.simulator.reading.validation import Fault, listed, near, reason
from clustersim.workloads.composition import PARALLELISMS

TRAINING = ("micro_batch_size", "recompute", "offload", "precision")
"""Keys of the training section that may vary."""

PLACED = ("placement",)
"""Keys of the parallelism section that may vary beside those that the parallelisms declare."""

SEARCHABLE = (*(key for cls in PARALLELISMS for key in cls.searchable), *PLACED, *TRAINING)
"""All keys that may vary, in the order in which values are chosen."""

ONLY_IF_NAMED = ("layout", "placement", "offload")
"""Keys that do not vary unless the user names them."""

KEPT = (*ONLY_IF_NAMED, "precision")
"""Keys that do not vary unless the section ``plan`` of a scenario names them."""

AUTO = "auto"

ALL = "all"
"""Simulate every candidate that fits."""

METHODS = "clustersim.scenarios.search.methods"

Objective = Literal["step_time", "cost", "energy", "memory", "tokens_per_currency"]


def _counted(value: Any) -> Any:
    if value in (ALL, AUTO) or (isinstance(value, int) and not isinstance(value, bool) and value > 0):
        return value
    raise ValueError(f'must be a whole number, at least 1, "{ALL}" or "{AUTO}", not {written(value)}')


Simulated = Annotated[
    int | Literal["all", "auto"],
    BeforeValidator(_counted),
    WithJsonSchema({"anyOf": [{"type": "integer", "minimum": 1}, {"enum": [ALL, AUTO]}]}),
]


class PlanSection(Section):
    """What `clustersim plan` searches: all keys are optional."""

    search: dict[str, Any] = Field(
        default_factory=dict,
        json_schema_extra={
            "propertyNames": {"enum": list(SEARCHABLE)},
            "additionalProperties": {"anyOf": [{"const": AUTO}, {"type": "array", "minItems": 1}]},
        },
    )
    """Values to try by key: a list, or auto. Keys are those of parallelism (tp, sequence_parallel, tp_overlap, cp, ep,
    expert_tp, pp, schedule, virtual_stages, layout, data, placement) and of training (micro_batch_size, recompute,
    precision, offload: a section, or the word of its activations). Without this key: auto for all but layout,
    placement, offload and precision. A key that is not named keeps the scenario's value."""
    method: str = "exhaustive"
    """How candidates are found: a file of scenarios/search/methods, or an import path of your own."""
    objective: Objective = "step_time"
    """What is best: the least step_time, cost, energy or memory, or the most tokens_per_currency. Cost, energy and
    tokens_per_currency need training.tokens and the prices in the section cost."""
    memory_margin: Annotated[float, BeforeValidator(number(0.0, 1.0))] = 0.0
    """Share of a GPU's memory that is left free, e.g. 0.1."""
    simulate: Simulated = "auto"
    """How many of the best candidates are simulated, or all. auto: as many as are listed, and up to 20 if more may be
    the best: their estimates are at most 3 % above the best simulation."""
    top: Count = 10
    """How many are listed."""

    @field_validator("method")
    @classmethod
    def _method(cls, name: str) -> str:
        return known(name, METHODS)

    @field_validator("search")
    @classmethod
    def _search(cls, search: dict[str, Any]) -> dict[str, Any]:
        return {key: _values(key, values) for key, values in search.items()}


def _values(key: str, values: Any) -> Any:
    """Return the *values* to try for *key*, validated. Raises `Fault`."""
    if key not in SEARCHABLE:
        raise Fault(key, f"cannot be searched; it must be {listed(SEARCHABLE)}", near(key, SEARCHABLE))
    if values == AUTO:
        return AUTO
    if not isinstance(values, list) or not values:
        raise Fault(key, f"must be auto or a list of values, not {written(values)}")
    found = []
    for place, value in enumerate(values):
        short = {"data": "method", "offload": "activations"}.get(key)
        given = {short: value} if short and isinstance(value, str) else value
        _check(key, place, given)
        if given in found:
            raise Fault((key, place), f"{written(value)} stands twice")
        found.append(given)
    return found


def _check(key: str, place: int, value: Any) -> None:
    """Raise `Fault` if *value* is no value of *key*; rules between keys are those of each candidate."""
    section: type[Section] = Training if key in TRAINING else ParallelismSection
    try:
        section.model_validate({"global_batch_size": 1, key: value} if section is Training else {key: value})
    except ValidationError as error:
        for detail in error.errors(include_url=False):
            if detail["loc"][:1] == (key,):
                raise Fault((key, place), reason(detail)) from None
