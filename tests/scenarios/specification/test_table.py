"""A table of a CSV file as variants: settings and expectations of its rows, and messages about faults."""

from pathlib import Path
from typing import Any

import pytest

from clustersim.scenarios import Scenario
from clustersim.scenarios.commands.command_line import run
from clustersim.scenarios.results.expectations import held
from clustersim.simulator.reading.errors import ScenarioError

SCENARIO = """\
version: 1
cluster: {preset: uniform, gpus: 8, hosts: 1, bandwidth: 1 GB/s, latency: 0 s}
model: {kind: unit, num_layers: 4, forward: 1 s, backward: 2 s, parameters: 0, activations: 0 B}
training: {precision: fp32}
network: {transport: ideal}
table:
  file: runs.csv
  name: pp {stages}, {batch} micro-batches
  where: {kept: yes}
  words: {order: {GPipe: gpipe, 1F1B: 1f1b}}
  set:
    parallelism: {pp: "{stages}", dp: 1, schedule: "{order}"}
    training.global_batch_size: "{batch}"
    training.micro_batch_size: 1
  expect:
    step_time_s: {value: "{ms} ms", tolerance: 1e-9, source: "{source}"}
"""

# the step is (micro-batches + stages - 1) (forward + backward) of the 4 / stages layers of a stage
ROWS = """\
stages,batch,order,ms,kept,source
1,2,1F1B,24000,yes,"one, alone"
2,3,GPipe,24000,yes,"two, GPipe"
4,5,1F1B,24001,yes,four
4,5,1F1B,1,no,left out
"""


@pytest.fixture(autouse=True)
def _here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


def table(scenario: str = SCENARIO, rows: str = ROWS) -> Scenario:
    Path("runs.csv").write_text(rows)
    Path("table.yaml").write_text(scenario)
    return Scenario.load("table.yaml")


def fault(scenario: str = SCENARIO, rows: str = ROWS) -> str:
    with pytest.raises(ScenarioError) as error:
        table(scenario, rows)
    return str(error.value)


def test_each_row_kept_is_a_variant() -> None:
    scenario = table()
    names = ["pp 1, 2 micro-batches", "pp 2, 3 micro-batches", "pp 4, 5 micro-batches"]
    assert list(scenario.variants) == names
    assert [one.derived.degree("pp") for one in scenario.variants.values()] == [1, 2, 4]
    assert scenario.variants[names[1]].specification.parallelism.schedule == "gpipe"


def test_what_a_row_expects_is_held_against_it_alone() -> None:
    scenario = table()
    outcomes = held(scenario, scenario.run().summary())
    assert [(one.variant[:4], one.expected, one.met, one.source) for one in outcomes] == [
        ("pp 1", 24.0, True, "one, alone"),
        ("pp 2", 24.0, True, "two, GPipe"),
        ("pp 4", 24.001, False, "four"),
    ]
    assert outcomes[2].error == pytest.approx(-0.001 / 24.001, rel=1e-4)


def test_a_value_that_the_source_does_not_tell_is_not_expected() -> None:
    scenario = table(rows=ROWS.replace("24001", "", 1))
    assert [list(one.specification.expect) for one in scenario.variants.values()] == [
        ["step_time_s"],
        ["step_time_s"],
        [],
    ]


def test_an_option_chooses_rows_and_a_list_of_values_several() -> None:
    table()
    few = Scenario.load("table.yaml", options=["table.where.stages=[1, 4]", "table.where.batch=5"])
    assert list(few.variants) == ["pp 4, 5 micro-batches"]


def test_variants_may_stand_beside_rows_and_be_what_they_are_measured_by() -> None:
    beside = SCENARIO.replace("value: ", "relative_to: alone, value: ").replace('"{ms} ms"', "2")
    alone = "variants: {alone: {training.global_batch_size: 1, parallelism.dp: 1}}\n"
    scenario = table(beside + alone)
    assert next(iter(scenario.variants)) == "alone"
    # 12 s alone, and 24 s each of the others
    outcomes = held(scenario, scenario.run().summary())
    assert [one.value for one in outcomes] == pytest.approx([2, 2, 2], rel=1e-8)
    assert all(one.met for one in outcomes)


@pytest.mark.parametrize(
    ("old", "new", "told"),
    [
        (
            "pp {stages}",
            "pp {stage}",
            'table.yaml:8:9: table.name: the table has no column "stage"; there are stages, batch, order, ms, kept, '
            'source\n   8 |   name: pp {stage}, {batch} micro-batches\n     help: did you mean "stages"?',
        ),
        (
            '"{ms} ms"',
            '"{s} s"',
            'table.yaml:16:26: table.expect.step_time_s.value: the table has no column "s"; there are stages, batch, '
            "order, ms, kept, source\n"
            '  16 |     step_time_s: {value: "{s} s", tolerance: 1e-9, source: "{source}"}\n'
            '     help: did you mean "ms"?',
        ),
        (
            "{kept: yes}",
            "{keep: yes}",
            'table.yaml:9:17: table.where.keep: the table has no column "keep"; there are stages, batch, order, ms, '
            'kept, source\n   9 |   where: {keep: yes}\n     help: did you mean "kept"?',
        ),
        (
            "{kept: yes}",
            "{kept: perhaps}",
            "table.yaml:9:10: table.where: leaves none of the 4 rows of runs.csv\n   9 |   where: {kept: perhaps}",
        ),
        (
            "file: runs.csv",
            "file: run.csv",
            "table.yaml:7:9: table.file: run.csv: no such file\n   7 |   file: run.csv",
        ),
        (
            "  file: runs.csv\n",
            "",
            "table.yaml:6:1: table.file: is required",
        ),
        (
            "name: pp {stages}, {batch} micro-batches",
            "name: a run",
            'table.yaml:8:9: table.name: gives lines 2 and 3 of runs.csv the same name "a run"\n   8 |   name: a run',
        ),
        (
            "training.micro_batch_size: 1",
            "training.micro_batch: 1",
            'table.yaml:14:5: training.micro_batch: unknown key\n     help: did you mean "micro_batch_size"?',
        ),
    ],
)
def test_faults_of_the_scenario(old: str, new: str, told: str) -> None:
    assert fault(SCENARIO.replace(old, new, 1)) == told


@pytest.mark.parametrize(
    ("old", "new", "told"),
    [
        (
            "2,3,GPipe",
            "two,3,GPipe",
            'runs.csv:3:1: parallelism.pp: must be a whole number, not "two"\n'
            '   3 | two,3,GPipe,24000,yes,"two, GPipe"',
        ),
        (
            "2,3,GPipe",
            "2,3,Varuma",
            'runs.csv:3:5: parallelism.schedule: must be [...], not "Varuma"\n'
            '   3 | 2,3,Varuma,24000,yes,"two, GPipe"\n     help: did you mean "varuna"?',
        ),
        ("2,3,GPipe,24000", "2,3,GPipe", "runs.csv:3: has 5 cells for 6 columns"),
        (
            "24001",
            "long",
            'runs.csv:4:10: expect.step_time_s.value: must be a number, or one with its unit, e.g. "31.5 s" or "52 %", '
            'not "long ms"\n   4 | 4,5,1F1B,long,yes,four',
        ),
    ],
)
def test_faults_of_a_row_are_told_where_it_stands(old: str, new: str, told: str) -> None:
    begin, _, end = told.partition("[...]")
    text = fault(rows=ROWS.replace(old, new, 1))
    assert text.startswith(begin)
    assert text.endswith(end)


def test_a_table_that_is_none() -> None:
    assert fault(rows="") == (
        "table.yaml:7:9: table.file: runs.csv: has no row below its header\n   7 |   file: runs.csv"
    )


def test_a_table_that_is_not_there(capsys: pytest.CaptureFixture[str]) -> None:
    Path("table.yaml").write_text(SCENARIO.replace("runs.csv", "../nowhere/runs.csv"))
    assert run(["run", "table.yaml"]) == 2
    assert capsys.readouterr().err == (
        "table.yaml:7:9: table.file: ../nowhere/runs.csv: no such file\n   7 |   file: ../nowhere/runs.csv\n"
    )


@pytest.mark.parametrize(("written", "value"), [("31.5 s", 31.5), ("52 %", 0.52), ("25 GB/s", 25e9), (3, 3.0)])
def test_an_expectation_may_have_its_unit(written: Any, value: float) -> None:
    scenario = Scenario.model_validate(
        {
            "version": 1,
            "cluster": {"preset": "uniform", "gpus": 2, "hosts": 1, "bandwidth": "1 GB/s", "latency": "0 s"},
            "collective": {"kind": "all_reduce", "size": "1 MB"},
            "expect": {"collective.0.time_s": {"value": written}},
        }
    )
    assert scenario.specification.expect["collective.0.time_s"].value == value
