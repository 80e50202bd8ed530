"""Hostile files end in one clear error or a scenario, never in a traceback, and never take long."""

import json
import re
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from clustersim.scenarios.exchange.importer import Options, imported
from clustersim.scenarios.exchange.shell_commands import commands
from clustersim.scenarios.exchange.source_file import parsed
from clustersim.simulator.reading.errors import SimulatorError
from tests.scenarios.exchange.formats.configurations import MODELS
from tests.scenarios.exchange.formats.test_programs import (
    ACCELERATE,
    ARGUMENTS,
    BRIDGE,
    DS,
    GPT3,
    LLAMA3,
    NEMO,
    SBATCH,
    TITAN,
)

QUICK = settings(max_examples=40, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
CONFIG = MODELS["gpt2"][0]

VALUES = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(-(10**30), 10**30),
    st.floats(),
    st.text(max_size=5),
    st.lists(st.integers(), max_size=2),
    st.dictionaries(st.text(max_size=3), st.integers(), max_size=2),
)


NO_MODEL = "the files give no model"

PLACE = re.compile(r"\S+: |the files ")
"""What a refusal begins with: a file or a key, or all files."""


def refusal(folder: Path, *files: tuple[str, bytes]) -> str:
    """Return why *files* are refused; empty if they are imported, to a scenario that has GPUs."""
    paths = []
    for name, content in files:
        (folder / name).write_bytes(content)
        paths.append(str(folder / name))
    try:
        made = imported(paths, Options(nodes=2), "x", ["training.steps=1"])
    except SimulatorError as error:
        assert str(error)
        return str(error)
    assert made.scenario.derived.gpus
    return ""


@QUICK
@given(content=st.binary(max_size=200), suffix=st.sampled_from(["json", "yaml", "toml", "sh", "txt", "xml", "csv"]))
def test_any_bytes(content, suffix, tmp_path):
    assert f"a.{suffix}" in refusal(tmp_path, (f"a.{suffix}", content))


@QUICK
@given(data=st.data())
def test_values_of_wrong_types(data, tmp_path):
    base = data.draw(st.sampled_from([CONFIG, DS, {**ARGUMENTS, "deepspeed": DS}]))
    keys = st.sampled_from(sorted(base))
    changed = {**base, **data.draw(st.dictionaries(keys, VALUES, min_size=1, max_size=3))}
    content = json.dumps(changed, allow_nan=False) if _finite(changed) else "{}"
    told = refusal(tmp_path, ("a.json", content.encode()), ("config.json", json.dumps(CONFIG).encode()))
    assert not told or PLACE.match(told)


def _finite(value: object) -> bool:
    try:
        json.dumps(value, allow_nan=False)
    except ValueError:
        return False
    return True


@QUICK
@given(data=st.data())
def test_damaged_texts(data, tmp_path):
    name, text = data.draw(
        st.sampled_from(
            [
                ("a.sh", GPT3),
                ("a.sh", LLAMA3),
                ("a.sh", SBATCH),
                ("a.toml", TITAN),
                ("a.yaml", NEMO),
                ("a.yaml", BRIDGE),
                ("a.yaml", ACCELERATE),
            ]
        )
    )
    place = data.draw(st.integers(0, len(text)))
    cut = data.draw(st.integers(0, 30))
    inserted = data.draw(st.text(alphabet="$(){}[]\"'\\\n =-,:0123456789aF#", max_size=8))
    damaged = text[:place] + inserted + text[place + cut :]
    told = refusal(tmp_path, (name, damaged.encode()), ("config.json", json.dumps(CONFIG).encode()))
    assert not told or PLACE.match(told)


@pytest.mark.exhaustive
@pytest.mark.parametrize(
    ("name", "content"),
    [
        ("deep.json", b'{"a":' * 5000 + b"1" + b"}" * 5000),
        ("deep.toml", b"a = " + b"[" * 5000 + b"]" * 5000),
        ("deep.yaml", b"a: " + b"[" * 5000 + b"]" * 5000),
        ("deep.xml", b"<system>" * 3000),
        ("big.json", b'{"model_type": "' + b"x" * 5_000_000 + b'"}'),
        ("wide.sh", b"torchrun " + b"--a b " * 100_000),
        ("grows.sh", b"A=aaaaaaaaaa\n" + b'A="$A$A$A$A$A$A$A$A"\n' * 30 + b"torchrun x.py --num-layers $A\n"),
        ("arith.sh", b"A=$((9**9**9**9))\nB=$((((((1))))))\ntorchrun x.py --num-layers $A\n"),
        ("paren.sh", b"(" * 50_000),
        ("digits.json", b'{"train_batch_size": ' + b"9" * 5000 + b', "zero_optimization": {}}'),
        (
            "alias.yaml",
            b"a: &a [1,1,1,1,1,1,1,1]\nb: &b [*a,*a,*a,*a,*a,*a]\nc: [*b,*b,*b,*b,*b,*b]\ntrainer: {}\nmodel: {}\n",
        ),
        ("null.json", b'{"model_type": "gpt2\\u0000"}'),
        ("surrogate.json", b'{"model_type": "\\ud800"}'),
    ],
)
def test_large_and_deep_files(name, content, tmp_path):
    told = refusal(tmp_path, (name, content))
    assert name in told or told.startswith(NO_MODEL)


def test_a_quoted_name_is_no_variable():
    found, variables = commands("''a=1\nb=2", "x")
    assert [[word.text for word in words] for words in found] == [["a=1"]]
    assert list(variables) == ["b"]


@given(st.text(alphabet="ab$(){}[]\"'\\\n =-#;|&", max_size=60))
@settings(max_examples=200, deadline=None)
def test_words_of_any_text(text):
    try:
        found, _ = commands(text, "x")
    except SimulatorError as error:
        assert "is not closed" in str(error)
    else:
        assert all(words for words in found)


def test_what_follows_a_file_follows_it_once(tmp_path):
    (tmp_path / "loop.sh").write_text(
        "torchrun -m torchtitan.train --job.config_file loop.sh --training.seq_len 8 --model.flavor 8B"
    )
    assert refusal(tmp_path, ("b.sh", (tmp_path / "loop.sh").read_bytes())).startswith(NO_MODEL)


def test_the_form_is_told_by_the_text_alone():
    assert parsed("-", GPT3, "").script
    assert parsed("-", TITAN, "").data["model"]["flavor"] == "8B"
    assert parsed("-", ACCELERATE, "").data["num_machines"] == 4
    assert parsed("-", json.dumps(CONFIG), "").data["n_layer"] == 12
