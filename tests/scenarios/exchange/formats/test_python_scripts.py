"""Training scripts in Python are read from their syntax tree, never run; each value has its line."""

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from clustersim.scenarios.commands.command_line import run
from clustersim.scenarios.exchange.importer import Imported, Options, imported
from clustersim.scenarios.exchange.python_script import python_script
from clustersim.simulator.reading.errors import ScenarioError

TRAINER = """\
import argparse
from transformers import AutoModelForCausalLM, AutoTokenizer, Trainer, TrainingArguments

open("executed", "w").write("x")
BATCH = 4
parser = argparse.ArgumentParser()
parser.add_argument("--epochs", type=int, default=3)
args = parser.parse_args()
model = AutoModelForCausalLM.from_pretrained("openai-community/gpt2-xl")
tokenizer = AutoTokenizer.from_pretrained("gpt2")
settings = dict(zero_optimization={"stage": 2}, train_micro_batch_size_per_gpu="auto")
arguments = TrainingArguments(
    output_dir="out",
    per_device_train_batch_size=BATCH,
    gradient_accumulation_steps=2 * BATCH,
    num_train_epochs=args.epochs,
    bf16=True,
    gradient_checkpointing=True,
    deepspeed=settings,
    learning_rate=rate(),
    mystery=7,
)
Trainer(model=model, args=arguments, train_dataset=None, tokenizer=tokenizer).train()
"""

ACCELERATE = """\
from accelerate import Accelerator, DeepSpeedPlugin
from torch.utils.data import DataLoader
from transformers import LlamaConfig, LlamaForCausalLM

config = LlamaConfig(hidden_size=2048, num_hidden_layers=22, num_attention_heads=32, num_key_value_heads=4,
                     intermediate_size=5632, vocab_size=32000, max_position_embeddings=2048)
plugin = DeepSpeedPlugin(zero_stage=3)
accelerator = Accelerator(mixed_precision="bf16", gradient_accumulation_steps=4, deepspeed_plugin=plugin)
loader = DataLoader(data, batch_size=2, shuffle=True)
"""


def read(folder: Path, *more: str, **files: str) -> Imported:
    names = []
    for name, text in files.items():
        path = folder / f"{name}{'.sh' if text.startswith('deepspeed ') else '.py'}"
        path.write_text(text)
        names.append(str(path))
    return imported(names, Options(cluster="dgx_a100_80gb"), "imported", list(more))


def test_a_script_of_the_trainer(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    made = read(tmp_path, train=TRAINER)
    assert not (tmp_path / "executed").exists()
    specification = made.scenario.specification
    assert specification.training is not None
    assert specification.training.global_batch_size == 4 * 8 * 8
    assert specification.training.precision == "bf16"
    assert specification.training.recompute_method == "full"
    data = specification.parallelism.data
    assert (data.method, getattr(data, "stage", None)) == ("zero", 2)
    assert "preset: gpt2_xl   # train.py:9 " in made.text
    assert "micro_batch_size: 4   # train.py:14 per_device_train_batch_size" in made.text
    assert "stage: 2   # train.py:11 " in made.text
    assert list(made.unread.values()) == [["mystery"]]


def test_a_script_of_accelerate(tmp_path: Path) -> None:
    made = read(tmp_path, train=ACCELERATE)
    specification = made.scenario.specification
    assert specification.training is not None
    assert specification.training.global_batch_size == 2 * 4 * 8
    assert specification.parallelism.data.model_dump()["stage"] == 3
    assert made.scenario.model is not None
    # TinyLlama 1.1B, as its card has it
    assert made.scenario.model.parameters == 1_100_048_384
    assert made.unread == {}


def test_what_only_the_running_script_knows_is_told_with_its_line(tmp_path: Path) -> None:
    text = TRAINER.replace("2 * BATCH", "steps_for(BATCH)").replace("BATCH = 4", "BATCH = 4\nBATCH += 1")
    made = read(tmp_path, train=text)
    told = [one.partition("train.py:")[2] for one in made.remarks]
    assert "15: per_device_train_batch_size is BATCH, which only the running script knows" in told
    assert "16: gradient_accumulation_steps is steps_for(BATCH), which only the running script knows" in told
    assert not any("learning_rate" in one for one in told)


@pytest.mark.parametrize("flags", ["--deepspeed --deepspeed_config ds.json", "--deepspeed ds.json"])
def test_a_configuration_that_was_read_is_not_told_to_be_unread(flags: str, tmp_path: Path) -> None:
    (tmp_path / "ds.json").write_text('{"train_micro_batch_size_per_gpu": 4, "zero_optimization": {"stage": 2}}')
    made = read(tmp_path, launch=f"deepspeed --num_gpus 8 train.py {flags} --model_name_or_path gpt2\n")
    assert made.unread == {}
    assert made.scenario.specification.parallelism.data.method == "zero"


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("TrainingArguments(\n", "bad.py:1:18: not valid Python"),
        ('TrainingArguments(\n    per_device_train_batch_size="four")\n', 'bad.py:2:33: arguments.per_device_train_b'),
        ("print(1)\n", "is of no format that can be imported"),
        ('DeepSpeedPlugin(zero_stage=4)\n', "ZeRO has the stages 0 to 3, not 4"),
        ('Accelerator(mixed_precision="fp8")\n', "fp8 is not simulated"),
        ("MysteryConfig(hidden_size=3)\n", "MysteryConfig is of no family"),
        ("x = " + "-" * 100_000 + "1\nTrainingArguments(per_device_train_batch_size=x)", "bad.py: "),
    ],
)  # fmt: skip
def test_bad_scripts_are_told(
    text: str, told: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("bad.py").write_text(text)
    assert run(["import", "bad.py"]) == 2
    assert told in capsys.readouterr().err


@given(st.integers(0, 10**6), st.integers(1, 10**4), st.sampled_from(["+", "-", "*", "//"]))
def test_arithmetic_on_names_is_that_of_python(one: int, other: int, sign: str) -> None:
    text = f"A = {one}\nB: int = {other}\nTrainingArguments(max_steps=A {sign} B, warmup_steps=-B)\n"
    expected = {"+": one + other, "-": one - other, "*": one * other, "//": one // other}[sign]
    assert python_script(text, "t.py").data["arguments"] == {"max_steps": expected, "warmup_steps": -other}


def test_names_that_refer_to_each_other_are_unknown() -> None:
    data = python_script("A = B\nB = A\nTrainingArguments(max_steps=A)\n", "t.py").data
    assert data == {"unknown": {"arguments.max_steps": "A"}}


def test_nesting_is_bounded() -> None:
    with pytest.raises(ScenarioError, match="nested too deeply"):
        python_script("x = " + "(" * 100 + "1 + " * 90_000 + "1" + ")" * 100, "t.py")
    with pytest.raises(ScenarioError, match="nested too deeply"):
        python_script("TrainingArguments(max_steps=" + "1 + " * 900 + "1)", "t.py")
