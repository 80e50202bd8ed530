"""Rows from published runs: the scenarios that evaluate the simulator also give the rows of fits of computation.

The name of a file of measurements says which scenario reads it or repeats its figures; each expectation of that
scenario is a row.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from scenarios.fitting.parameter import Parameter, Values
from scenarios.fitting.rerun import Rerun
from scenarios.fitting.row import Row
from scenarios.results.calibrated_range import Extent, calibrated_range, distinct, joined
from scenarios.results.expectations import is_duration
from scenarios.scenario import Scenario
from simulator.errors import CalibrationError


@dataclass(frozen=True)
class Publication:
    """The *scenario* that has the runs of a file, and the relative *noise* of the measurements.

    *left_out*: words in the names of runs that are not rows, and the reasons.
    """

    scenario: str
    noise: float
    left_out: Mapping[str, str]


PUBLICATIONS: Mapping[str, Publication] = {
    "korthikanti_table4_layer_timing_22B": Publication("korthikanti_22b_layer", 0.01, {}),
    "fsdp_mpt_llmfoundry": Publication("fsdp_mpt_a100_40gb", 0.03, {}),
    "vtrain_multi_node_measured": Publication(
        "vtrain_3_6b_64a100",
        0.03,
        {"tp16": "limited by the network between nodes, which the fit of the transport covers"},
    ),
    "vtrain_layer_times": Publication("vtrain_layers", 0.10, {}),
    "vtrain_single_node_steps": Publication("vtrain_single_node", 0.10, {}),
    "zero_bubble_table4": Publication(
        "zero_bubble",
        0.02,
        {
            "ZB-2p": "a searched order, simulated as another",
            **{f"{size}B": "in no file of measurements, evaluated only" for size in (6.2, 14.6, 28.3)},
        },
    ),
    "megatron_sc21_table1_weak_scaling": Publication(
        "megatron_sc21_weak_scaling",
        0.03,
        dict.fromkeys(("39.1B", "76.1B", "145.6B", "310.1B", "529.6B", "1008B"), "too large for a fit, evaluated only"),
    ),
    "dlperf_gpt_v100": Publication(
        "dlperf_gpt_v100",
        0.05,
        {
            **dict.fromkeys(("DP_16", "1x16", "PP"), "limited by the network between nodes"),
            "2D_8x1x1": "the same run as DP_8x1x1",
        },
    ),
    "dlperf_ddp_v100": Publication(
        "dlperf_ddp_v100",
        0.05,
        {
            "resnet50": "convolutions, which the layer profiles determine; evaluated only",
            "each of 32": "limited by the network between nodes",
        },
    ),
}
"""By the stem of the file's name. Noise: rounding to the printed digits (22B layer), otherwise the difference between
neighbouring runs; some of vTrain's layer times fall with the micro-batch where they must rise, and its single-node
steps are composed of such layer times."""

ON_V100 = ("dlperf_gpt_v100", "dlperf_ddp_v100")
"""The files that were measured on V100."""


def rows(file: Path, parameters: Sequence[Parameter]) -> list[Row]:
    """Return the rows of *file*. Raises `CalibrationError` if its name is unknown, `ScenarioError` if it is bad."""
    if file.stem not in PUBLICATIONS:
        raise CalibrationError(f"{file}: no published scenario reads it; there are those for {', '.join(PUBLICATIONS)}")
    publication = PUBLICATIONS[file.stem]
    scenario = _reading(publication.scenario, file)
    return list(_rows(scenario, file.stem, publication, tuple(parameters)))


def covered(file: Path) -> dict[str, Extent]:
    """Return the calibrated range of the rows of *file*."""
    publication = PUBLICATIONS[file.stem]
    extents: dict[str, Extent] = {}
    for variant in _runs(_reading(publication.scenario, file), publication).values():
        extents = joined(extents, calibrated_range(distinct(variant.schedule())))
    return extents


def _runs(scenario: Scenario, publication: Publication) -> dict[str, Scenario]:
    """Return the runs that are rows, by name."""
    runs = scenario.variants or {scenario.name: scenario}
    return {name: run for name, run in runs.items() if not any(word in name for word in publication.left_out)}


def _reading(name: str, file: Path) -> Scenario:
    """Return the scenario *name*; *file* replaces its table if the table is a file of the same stem."""
    from scenarios.specification.loading import located
    from simulator.document import read

    table = read(located(name)).data.get("table")
    outside = table is not None and Path(str(table["file"])).stem == file.stem
    return Scenario.load(name, {"table.file": str(file.resolve())} if outside else None)


def _rows(scenario: Scenario, data: str, publication: Publication, parameters: tuple[Parameter, ...]) -> Iterator[Row]:
    for name, variant in _runs(scenario, publication).items():
        rerun = Rerun(variant, parameters)
        for key, expectation in variant.specification.expect.items():
            if key.startswith("memory") or not isinstance(expectation.value, float | int):
                continue
            yield Row(
                f"{name}, {key}" if key.startswith("layer_s") else name,
                _time(key, expectation.value),
                _prediction(rerun, key),
                groups(variant, data),
                rerun.uses,
                publication.noise,
                None if key.startswith("layer_s") else rerun.ratio,
            )


def _prediction(rerun: Rerun, key: str) -> Callable[[Values], float]:
    def predicted(values: Values) -> float:
        return _time(key, rerun.value(key, values))

    return predicted


def _time(key: str, value: float) -> float:
    """Return *value* if it is a duration; 1 / *value* if it is a rate."""
    return value if is_duration(key) else 1.0 / value


def groups(scenario: Scenario, data: str) -> dict[str, str | int]:
    """Return the groups of a run in the report: data, degrees and micro-batch size."""
    derived = scenario.derived
    return {
        "data": data,
        "tp": derived.degree("tp"),
        "pp": derived.degree("pp"),
        "dp": derived.replicas,
        "micro-batch": derived.micro_batch_size,
    }
