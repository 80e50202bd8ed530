"""The site: its commands, links and examples work, and its generated reference has every key."""

from __future__ import annotations

import json
import re
import shlex
from importlib import import_module
from pathlib import Path
from typing import Any

import pytest
import typer
from PIL import Image

import clustersim
from clustersim import Scenario
from clustersim.scenarios.commands.application import app, register
from clustersim.scenarios.commands.command_line import run
from clustersim.scenarios.results.titles import chart_title
from clustersim.scenarios.specification.loading import located
from clustersim.scenarios.specification.specification import Specification
from clustersim.simulator.reading.yaml_and_json import read_value
from tests.structure.sizes import modules_by_folder

ROOT = Path(__file__).parents[1]
DOCS = ROOT / "docs"
PAGES = sorted(DOCS.glob("*.md")) + [ROOT / name for name in ("CONTRIBUTING.md", "CHANGELOG.md", "SECURITY.md")]


def blocks(language: str) -> list[str]:
    """The code blocks of *language* of all pages."""
    return [block for page in PAGES for block in re.findall(rf"```{language}\n(.*?)```", page.read_text(), re.S)]


COMMANDS = sorted(
    {
        line[line.index("clustersim ") :].partition("  ")[0]
        for block in blocks("sh")
        for line in block.splitlines()
        if "clustersim " in line and not line.startswith("#")
    }
)
MADE_THERE = (
    "mine.yaml",
    "traces",
    "purchase.yaml",
    "plans.yaml",
    "runs/a",
    "runs/b",
    "SCENARIO",
    "all_reduce.txt",
    "topology.xml",
)
"""Files that the pages tell the reader to write."""


@pytest.mark.parametrize("command", COMMANDS)
def test_commands_have_existing_options_and_names(
    command: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(ROOT)
    words = shlex.split(command)[1:]
    if words == ["--version"]:
        return
    assert run([words[0], "--help"]) == 0
    page = capsys.readouterr().out
    for word in words:
        assert not word.startswith("-") or re.search(rf"(^|[ ,]){re.escape(word)}[ ,]", page, re.M), word
    if words[:2] != ["show", "constants"] and words[0] in (
        "run",
        "plot",
        "compare",
        "check",
        "show",
        "sweep",
        "validate",
    ):
        first = next(word for word in words[1:] if not word.startswith("-"))
        if first not in MADE_THERE:
            assert located(first).is_file()


@pytest.mark.parametrize("text", [block for block in blocks("yaml") if block.startswith("version:")])
def test_scenarios_are_valid(text: str) -> None:
    scenario = Scenario.model_validate(read_value(text))
    assert all(one.derived.replicas > 1 for one in scenario.jobs.values() or [scenario])


@pytest.mark.parametrize("text", [block for block in blocks("python") if not block.startswith("# ")])
def test_examples_run(text: str, capsys: pytest.CaptureFixture[str]) -> None:
    exec(compile(text, "example", "exec"), {})
    assert capsys.readouterr().out


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_links_have_a_target(page: Path) -> None:
    for target in re.findall(r"\]\(([^)#]+?)\)", page.read_text()):
        made = target.removeprefix("generated/notebooks/")
        if target == "generated/scenario.md" or target in labels():
            continue
        folder = ROOT / "notebooks" if made != target else page.parent
        assert (folder / made).is_file(), target


def labels() -> set[str]:
    """The labels of pages; a link may name one instead of a file."""
    return {label for page in PAGES for label in re.findall(r"^\(([a-z-]+)\)=$", page.read_text(), re.M)}


def test_the_examples_of_the_page_about_extending_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    text = (DOCS / "extend.md").read_text().replace("mylab", "lab_of_the_site")  # a name that no other test imports
    files = re.findall(r"```(?:python|yml)\n# (lab_of_the_site/\S+)\n(.*?)```", text, re.S)
    assert len(files) == 9
    for name, content in files:
        path = tmp_path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(content)
    monkeypatch.syspath_prepend(str(tmp_path))
    node = {"accelerator": "LAB.gpus.chip", "accelerators": 4, "intra": {"shape": "LAB.nodes.daisy"}}
    data: dict[str, Any] = {
        "version": 1,
        "cluster": {"nodes": 1, "node": node},
        "model": {"preset": "LAB.models.tiny", "attention": "LAB.operators.ring"},
        "training": {"global_batch_size": 8, "micro_batch_size": 2},
        "parallelism": {
            "pp": 2,
            "schedule": "LAB.orders.patient",
            "LAB.axes.context": {"degree": 2},
            "data": {"method": "ddp", "compression": {"method": "LAB.reductions.half", "share": 0.25}},
        },
        "network": {"transport": "ideal", "algorithms": {"all_reduce": "LAB.algorithms.centre"}},
    }
    layers = [["LAB.blocks.decay", "mlp"], ["attention", "mlp"]]
    blocks = {
        **data,
        "model": {"preset": "LAB.models.tiny", "layers": layers, "blocks": {"LAB.blocks.decay": {"state_size": 32}}},
        "parallelism": {"tp": 2, "sequence_parallel": True},
    }
    for each in (data, blocks):
        named = json.loads(json.dumps(each).replace("LAB", "lab_of_the_site"))
        assert Scenario.model_validate(named).run().timeline.step_time > 0


def test_the_format_of_the_page_about_extending_is_imported(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    text = (DOCS / "extend.md").read_text()
    file = re.search(r"```python\n# scenarios/exchange/formats/(small_lm.py)\n(.*?)```", text, re.S)
    assert file
    (tmp_path / file[1]).write_text(file[2])
    folder = import_module("clustersim.scenarios.exchange.formats").__path__
    folder.append(str(tmp_path))
    sizes = {"layers": 12, "width": 768, "heads": 12, "tokens": 50304, "context": 1024, "batch": 4}
    (tmp_path / "run.json").write_text(json.dumps({"small_lm": {**sizes, "seed": 7}}))
    try:
        assert run(["import", str(tmp_path / "run.json"), "--cluster", "dgx_a100_80gb"]) == 0
    finally:
        folder.remove(str(tmp_path))
    out, err = capsys.readouterr()
    made = read_value(out)
    assert (
        made["model"] | {"num_layers": 12, "hidden_size": 768, "vocab_size": 50304, "seq_length": 1024} == made["model"]
    )
    assert made["training"]["micro_batch_size"] == 4
    assert re.search(r"hidden_size: 768 .*# .*width", out), out
    assert "seed" in out + err


def test_the_reference_has_every_key(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(DOCS))
    page = import_module("scenario_reference").page()
    schema = Specification.model_json_schema()
    for section in (schema, *schema["$defs"].values()):
        for key in section.get("properties", {}):
            assert f"| `{key}` |" in page
    for name in schema["$defs"]:
        assert page.count(f"(section-{name.lower()})=\n") == 1
    assert "Key: `cluster.node.host`, `cluster.node.socket_link`, `cluster.node.nic_bus`" in page


def test_the_command_reference_has_every_command_and_option(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.syspath_prepend(str(DOCS))
    page = import_module("command_reference").page()
    register()
    commands = typer.main.get_group(app).commands
    assert {"run", "campaign", "sensitivity", "init", "import"} <= set(commands)
    for name, command in commands.items():
        assert page.count(f"### clustersim {name}\n") == 1
        section = page.partition(f"### clustersim {name}\n")[2].partition("\n### ")[0]
        for option in command.params:
            if option.name != "help" and option.param_type_name == "option":
                assert any(one in section for one in option.opts), (name, option.opts)


def test_titles_of_pictures_have_the_numbers_of_a_run() -> None:
    title = chart_title(Scenario.load("zhores_resnet50_ddp").run())
    for name in ("timeline", "links"):
        drawn = Image.open(DOCS / f"{name}.png").info["Title"]
        assert drawn == title, "draw it anew: make pictures PICTURES='timeline links'"


def test_every_page_stands_in_the_index_once() -> None:
    listed = [
        line
        for tree in re.findall(r"```{toctree}\n(.*?)```", (DOCS / "index.md").read_text(), re.S)
        for line in tree.splitlines()
        if line and not line.startswith(":")
    ]
    own = {page.stem for page in DOCS.glob("*.md")} - {"index"}
    assert len(listed) == len(set(listed))
    assert {one for one in listed if not one.startswith("generated/")} == own


def test_words_of_the_glossary_are_in_order_and_those_of_a_purchase_are_there() -> None:
    words = re.findall(r"^\| ([^|]+?) \|", (DOCS / "glossary.md").read_text(), re.M)[2:]
    assert words == sorted(words, key=str.lower)
    assert {"oversubscription", "rail", "bubble", "busbw"} <= set(words)


def test_the_api_page_has_all_public_names(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(DOCS))
    page = import_module("api_reference").page()
    documented = re.findall(r"^\.\. auto(?:class|function|exception):: (\S+)$", page, re.M)
    types = "Bandwidth Count FabricRouter Flag Fraction Number Reduction Size Time"
    values = {"BYTES", "NET", "NVLINK", "PCI", "SHIFT", *types.split()}
    assert set(documented) == {f"clustersim.{name}" for name in {*clustersim.__all__} - values}
    assert len(documented) == len(set(documented))


def listed_folders(text: str) -> set[str]:
    """The folders of an indented list. A line begins with one or several names that end with a slash."""
    found, above = set(), dict[int, str]()  # above: by indentation the folder that the next lines are in
    for line in text.splitlines():
        indentation = len(line) - len(line.lstrip())
        above = {depth: folder for depth, folder in above.items() if depth < indentation}
        parent = above[max(above)] if above else ""
        names = re.match(r"(?:\w+/ )*(?:\w+/)?", line.lstrip() + " ")
        for name in names[0].split() if names else ():
            found.add(f"{parent}{name}".rstrip("/"))
            above[indentation] = parent + name
    return found


def test_the_architecture_page_lists_all_folders() -> None:
    section = (DOCS / "architecture.md").read_text().partition("## Folders")[2].partition("##")[0]
    listed = listed_folders("\n".join(line for line in section.splitlines() if line.startswith("    ")))
    assert [folder for folder in sorted(listed) if not (ROOT / folder).is_dir()] == []
    folders = {folder for folder in modules_by_folder() if not folder.startswith("tests")}
    assert folders <= listed


def test_every_picture_is_drawn_by_make_pictures(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(DOCS))
    pictures = import_module("pictures")
    drawn = {*pictures.PICTURES, "ptd_p_against_zero_3"}  # the accuracy command draws that too
    assert {path.stem for path in DOCS.glob("*.png")} == drawn
    assert pictures.main(["nothing"]) == 2
