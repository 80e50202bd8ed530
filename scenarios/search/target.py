"""A target of a training run: at most so many days or so much money, or at least so many tokens/s of each GPU."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from math import isfinite
from typing import Any, Literal

from clustersim.scenarios.build.built import BuiltScenario
from clustersim.scenarios.cost.cost import SECONDS_PER_DAY, SECONDS_PER_HOUR
from clustersim.simulator.reading.errors import ScenarioError
from clustersim.simulator.reading.units import UNITS, parse, show_long

EXAMPLES = '"30 days" (also h and years), "$2M" or "50 tokens/s/GPU"'

_MONEY = re.compile(r"([$€£¥₽])\s*([\d_,.]*\d(?:\.|e[+-]?\d+)?)\s*([KMBT]?)", re.IGNORECASE)
_RATE = re.compile(r"([\d_,.]*\d(?:e[+-]?\d+)?)\s*([KM]?)\s*tokens/s/GPU", re.IGNORECASE)
_TIME = re.compile(r"[-+.\d][\d_,.]*(?:e[+-]?\d+)?\s*([^\d\s].*)", re.IGNORECASE)

_FACTORS = {"": 1.0, "K": 1e3, "M": 1e6, "B": 1e9, "T": 1e12}

Kind = Literal["days", "cost", "tokens_per_s_per_gpu"]


@dataclass(frozen=True)
class Target:
    """At most *amount* days or money of the whole run, or at least *amount* tokens/s/GPU, by *kind*.

    *currency*: the sign before an amount of money. Nothing is converted: it is that of ``cost.gpu_hour``.
    """

    kind: Kind
    amount: float
    currency: str = ""

    @property
    def is_least(self) -> bool:
        """True if *amount* is the least that is wanted, not the most."""
        return self.kind == "tokens_per_s_per_gpu"

    def is_met(self, value: float) -> bool:
        """Return whether *value* meets the target."""
        return value >= self.amount if self.is_least else value <= self.amount

    def loss(self, value: float) -> float:
        """Return a number that is less the better *value* is."""
        return -value if self.is_least else value

    def of(self, result: Mapping[str, Any], gpus: int) -> float:
        """Return the value of a simulated *result* on *gpus* GPUs."""
        if self.is_least:
            return float(result["tokens_per_s"]) / gpus
        return float(result["training"][self.kind])

    def of_step(self, seconds: float, gpus: int, scenario: BuiltScenario) -> float:
        """Return the value of steps of *seconds* on *gpus* GPUs."""
        training, cost, model = scenario.specification.training, scenario.specification.cost, scenario.model
        assert training is not None
        assert model is not None
        if self.is_least:
            return training.global_batch_size * model.tokens_per_sample / (seconds * gpus)
        samples = training.samples or (training.tokens or 0.0) / (model.tokens_per_sample or 1)
        whole = samples / training.global_batch_size * seconds
        if self.kind == "days":
            return whole / SECONDS_PER_DAY
        assert cost is not None
        return whole / SECONDS_PER_HOUR * gpus * cost.gpu_hour

    def show(self, value: float) -> str:
        """Return *value* with its unit.

        >>> Target("cost", 2e6, "$").show(1.5e6), Target("days", 30).show(30)
        ('$1,500,000', '30 days')
        """
        if self.kind == "cost":
            return f"{self.currency}{value:,.0f}" if value >= 100 else f"{self.currency}{value:.3g}"
        if self.kind == "days":
            return show_long(value * SECONDS_PER_DAY)
        return f"{value:,.0f} tokens/s/GPU" if value >= 1000 else f"{value:.3g} tokens/s/GPU"

    @property
    def words(self) -> str:
        """The target in words."""
        return f"{'at least' if self.is_least else 'at most'} {self.show(self.amount)}"

    def fault(self, scenario: BuiltScenario) -> tuple[tuple[str, ...], str] | None:
        """Return the path of the section of *scenario* that lacks what the target counts, and what; else None."""
        training, cost, model = scenario.specification.training, scenario.specification.cost, scenario.model
        if self.is_least:
            known = model is not None and model.tokens_per_sample
            return None if known else (("model",), "has no tokens, so there are no tokens/s/GPU: give days")
        if training is None or not (training.tokens or training.samples):
            return ("training",), "gives no length of the run: give tokens, or samples"
        if self.kind == "cost" and (cost is None or not cost.gpu_hour):
            why = "a target in money needs the price of a GPU: give cost.gpu_hour, e.g. --set cost.gpu_hour=2"
            return ("cost",) if cost else (), why
        return None


def target(text: str) -> Target:
    """Return the target that *text* names. Raises `ScenarioError`, with examples.

    >>> target("36 h"), target("$2.5M")
    (Target(kind='days', amount=1.5, currency=''), Target(kind='cost', amount=2500000.0, currency='$'))
    >>> target("50 tokens/s/GPU")
    Target(kind='tokens_per_s_per_gpu', amount=50.0, currency='')
    """
    found = _read(text.strip())
    if found is None or not isfinite(found.amount):
        raise ScenarioError(f'--target "{text[:40]}": {_wrong(text.strip())}; write {EXAMPLES}')
    if found.amount <= 0:
        raise ScenarioError(f'--target "{text[:40]}": must be above 0; write {EXAMPLES}')
    return found


def _read(text: str) -> Target | None:
    """Return the target that *text* names; None if it names none."""
    try:
        if money := _MONEY.fullmatch(text):
            return Target("cost", _number(money[2], money[3]), money[1])
        if rate := _RATE.fullmatch(text):
            return Target("tokens_per_s_per_gpu", _number(rate[1], rate[2]))
        return Target("days", parse(text, "time") / SECONDS_PER_DAY)
    except ValueError:
        return None


def _number(digits: str, suffix: str) -> float:
    return float(digits.replace(",", "").replace("_", "")) * _FACTORS[suffix.upper()]


def _wrong(text: str) -> str:
    unit = _TIME.fullmatch(text)
    if unit and unit[1] not in UNITS["time"]:
        return f'"{unit[1]}" is not a unit of a target'
    return "has no unit" if re.fullmatch(r"[\d_,.]+", text) else "is not a target"
