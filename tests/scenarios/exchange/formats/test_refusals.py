"""What a training program refuses is refused with its rule, and what is wrong in a file with file, line and key."""

import json

import pytest

from clustersim.scenarios.commands.command_line import run
from clustersim.scenarios.exchange.importer import Options, imported
from clustersim.simulator.reading.errors import ScenarioError
from tests.scenarios.exchange.formats.configurations import MODELS, llama
from tests.scenarios.exchange.formats.test_programs import LLAMA3, TITAN, write

CONFIG = json.dumps(MODELS["gpt2"][0])
MODEL = "--num-layers 8 --hidden-size 512 --num-attention-heads 8 --seq-length 512 --max-position-embeddings 512"


def refused(files: list[str], **options: object) -> str:
    with pytest.raises(ScenarioError) as error:
        imported(files, Options(**options), "x")  # type: ignore[arg-type]
    return str(error.value)


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        ("--tensor-model-parallel-size 3", "tp 3 does not divide the 8 GPUs"),
        ("--tensor-model-parallel-size 16", "tp 16 does not divide the 8 GPUs"),
        (
            "--pipeline-model-parallel-size 8 --num-layers-per-virtual-pipeline-stage 3",
            "3 does not divide the 1 layers",
        ),
        ("--bf16 --fp16", "Megatron refuses --bf16 and --fp16 together"),
        ("--train-iters 5 --train-samples 5", "Megatron refuses --train-iters and --train-samples together"),
        ("--global-batch-size 12", "the global batch 12 is not a multiple of micro-batch 1 x 8 replicas"),
        ("--tp-comm-overlap", "Megatron wants --sequence-parallel with --tp-comm-overlap"),
        ("--overlap-param-gather", "Megatron wants --use-distributed-optimizer"),
        ("--recompute-granularity selective --recompute-method block", "Megatron refuses it with selective"),
        ("--num-layers eight", 'must be a whole number, 1 or above, not "eight"'),
        ("--max-position-embeddings 256", "512 tokens a sample, but the model has 256 positions"),
        ("--optimizer adafactor", "adafactor is not simulated; it must be adam or sgd"),
        ("--num-experts 8 --expert-model-parallel-size 3", "ep = 3 does not divide the 8 experts"),
        ("--num-experts 8 --moe-layer-freq __import__", "must be a number or a pattern such as ([0]*3+[1]*58)"),
        ("--num-experts 8 --moe-layer-freq ([1]*999999999)", "must be a number or a pattern"),
        ("--num-experts 8 --moe-layer-freq ([0]*8)", "has no 1, so that no layer has experts"),
        ("--num-experts 8 --moe-aux-loss-coeff x", "must be a number, or several"),
        ("--num-experts 8 --moe-enable-deepep", "Megatron wants --moe-token-dispatcher-type flex with it"),
        ("--num-experts 8 --moe-pad-expert-input-to-capacity", "Megatron wants --moe-expert-capacity-factor with it"),
        ("--multi-latent-attention --attention-backend unfused", "is not simulated with multi_latent_attention"),
        ("--bf16 --fp8-format hybrid --fp8-recipe rowwise", "rowwise is not simulated; it must be delayed"),
        ("--bf16 --fp8-format hybrid --fp4-format e2m1", "Megatron refuses --fp4-format and --fp8-format together"),
        ("--fp8-format hybrid", "is not simulated without --bf16 or --fp16"),
        ("--window-size 10,10", "must be the positions before each one and 0"),
        ("--context-parallel-size 2 --cp-comm-type a2a+p2p", "a2a+p2p is not simulated; it must be one of p2p"),
    ],
)
def test_rules_of_megatron(flags, message, tmp_path):
    line = f"torchrun --nnodes 1 --nproc_per_node 8 pretrain_gpt.py {MODEL} --micro-batch-size 1 {flags}\n"
    told = refused(write(tmp_path, run__sh=line))
    assert message in told
    assert told.startswith(f"{tmp_path / 'run.sh'}:1:")


def test_other_models_of_megatron(tmp_path):
    line = f"torchrun --nproc_per_node 8 pretrain_bert.py {MODEL} --micro-batch-size 1\n"
    assert "pretrain_bert.py trains no causal model" in refused(write(tmp_path, run__sh=line))


def test_layers_that_stages_do_not_divide(tmp_path):
    line = (
        f"torchrun --nproc_per_node 3 pretrain_gpt.py {MODEL} --micro-batch-size 1 --pipeline-model-parallel-size 3\n"
    )
    assert "Megatron wants 8 layers divisible by the 3 pipeline ranks" in refused(write(tmp_path, run__sh=line))


def test_heads_that_tensor_parallelism_does_not_divide(tmp_path):
    line = LLAMA3.replace("--num-attention-heads 32", "--num-attention-heads 36").replace(
        "--num-query-groups 8", "--num-query-groups 36"
    )
    line = line.replace("--tensor-model-parallel-size 2", "--tensor-model-parallel-size 16")
    told = refused(write(tmp_path, run__sh=line))
    assert told.startswith(f"{tmp_path / 'run.sh'}:1:")
    assert "parallelism.tp" in told
    assert "36" in told


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"zero_optimization": {"stage": 4}}, "ZeRO has the stages 0 to 3, not 4"),
        ({"bf16": {"enabled": True}, "fp16": {"enabled": True}}, "DeepSpeed refuses bf16 and fp16 together"),
        ({"train_batch_size": 100}, "is not micro-batch 2 x accumulation 4 x 8 replicas"),
        (
            {"zero_optimization": {"stage": 2}, "pipeline": {"stages": 2}, "train_batch_size": 32},
            "DeepSpeed refuses ZeRO-2",
        ),
        ({"optimizer": {"type": "Muon"}}, "Muon is not simulated"),
        ({"train_micro_batch_size_per_gpu": 0}, "must be a whole number, 1 or above, not 0"),
        ({"zero_optimization": [3]}, "must be a mapping"),
        ({"fp16": {"enabled": "maybe"}}, 'must be true or false, not "maybe"'),
    ],
)
def test_rules_of_deepspeed(change, message, tmp_path):
    config = {
        "train_batch_size": 64,
        "train_micro_batch_size_per_gpu": 2,
        "gradient_accumulation_steps": 4,
        "zero_optimization": {"stage": 1},
    }
    files = write(tmp_path, ds__json=json.dumps(config | change, indent=1), config__json=CONFIG)
    told = refused(files, nodes=1)
    assert message in told
    assert told.startswith(f"{tmp_path / 'ds.json'}:")


def test_the_trainer_refuses_two_precisions(tmp_path):
    arguments = json.dumps({"per_device_train_batch_size": 1, "bf16": True, "fp16": True})
    files = write(tmp_path, arguments__json=arguments, config__json=CONFIG)
    assert "the Trainer refuses bf16 and fp16 together" in refused(files)


@pytest.mark.parametrize(
    ("lines", "message"),
    [
        ("pipeline_parallel_degree = 4\npipeline_parallel_layers_per_stage = 12", "torchtitan makes 3 stages"),
        ('pipeline_parallel_degree = 2\npipeline_parallel_schedule = "Wave"', "Wave is not simulated"),
        ("data_parallel_replicate_degree = 3\ndata_parallel_shard_degree = 2", "dp 6 needs 6 GPUs, not 8"),
    ],
)
def test_rules_of_torchtitan(lines, message, tmp_path):
    text = TITAN.replace("data_parallel_shard_degree = -1\n", f"{lines}\n")
    assert message in refused(write(tmp_path, t__toml=text), nodes=1)


def test_files_that_contradict_each_other(tmp_path):
    other = json.dumps({**MODELS["llama3_8b"][0], "num_hidden_layers": 40})
    told = refused(write(tmp_path, run__sh=LLAMA3, config__json=other))
    assert "gives model.num_layers = 32, but config.json:1 num_hidden_layers gives 40" in told or (
        "gives model.num_layers = 40, but run.sh:1 --num-layers gives 32" in told
    )


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("a.json", b'{"model_type": "llama"', "a.json:1:"),
        ("a.json", b'{"model_type": ["llama"]}', "model_type"),
        ("a.json", b"[1, 2]", "must be a mapping"),
        ("a.json", b"\xff\xfe\x00", "is not a text file"),
        ("a.toml", b"[training\nx = 1", "not valid TOML"),
        ("a.yaml", b"a: [1, 2", "not valid YAML"),
        ("a.sh", b"torchrun 'open", "the quote ' is not closed"),
        ("a.sh", b"torchrun a.py\ntorchrun b.py\n", "launches a second program"),
        ("a.xml", b"<system>", "a.xml"),
        ("a.csv", b"0F0,zzz", 'a.csv: "zzz" is not an action'),
        ("a.txt", b"hello", "is of no format that can be imported"),
        ("a.json", b'{"x": 1}', "is of no format that can be imported"),
        ("a.json", b"", "is empty"),
    ],
)
def test_bad_files_are_named(name, content, message, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    (tmp_path / name).write_bytes(content)
    assert run(["import", name]) == 2
    told = capsys.readouterr().err
    assert message in told
    assert name in told


def test_missing_parts_are_asked_for(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    write(tmp_path, t__json=json.dumps({"per_device_train_batch_size": 1}), config__json=CONFIG)
    assert run(["import", "t.json"]) == 2
    assert "the files give no model" in capsys.readouterr().err
    write(tmp_path, d__toml=TITAN.replace("8B", "debugmodel"))
    assert run(["import", "d.toml"]) == 2
    assert "the files give no model" in capsys.readouterr().err
    assert run(["import", "config.json", "--cluster", "dgx_h1000"]) == 2
    assert '--cluster dgx_h1000: unknown cluster "dgx_h1000"' in capsys.readouterr().err
    assert run(["import", "nothing.json"]) == 2
    assert "nothing.json: cannot be read" in capsys.readouterr().err
    assert run(["import", "config.json", "--set", "training.precison=bf16"]) == 2
    assert "precison" in capsys.readouterr().err


def test_a_vocabulary_that_only_the_tokenizer_knows(tmp_path):
    line = (
        f"torchrun --nproc_per_node 8 pretrain_gpt.py {MODEL} --micro-batch-size 1 --tokenizer-type Llama2Tokenizer\n"
    )
    told = refused(write(tmp_path, run__sh=line))
    assert told.startswith("the files give no size of the vocabulary")
    assert "--set model.vocab_size=N" in told


@pytest.mark.parametrize(
    ("family", "key", "value", "message"),
    [
        ("qwen3_moe", "mlp_only_layers", 7, "must be a list of layers, not '7'"),
        ("qwen3_moe", "mlp_only_layers", [None], "must be a list of layers"),
        ("qwen3_moe", "decoder_sparse_step", 1.5, "must be a whole number"),
        ("qwen3_moe", "num_hidden_layers", 10**11, "is absurd"),
        ("deepseek_v3", "n_shared_experts", "x", "must be a whole number, 0 or above, not 'x'"),
        ("deepseek_v3", "moe_intermediate_size", [1], "must be a whole number"),
        ("deepseek_v3", "moe_layer_freq", "x", "must be a whole number or a list"),
        ("gpt_oss", "attention_bias", "maybe", "must be true or false, not 'maybe'"),
        ("mixtral", "num_local_experts", "8", "must be a whole number"),
    ],
)
def test_configurations_of_experts_with_wrong_values(family, key, value, message, tmp_path):
    told = refused(
        write(tmp_path, c__json=json.dumps(llama(2, 64, 4, 4, 128, 64, 100, model_type=family) | {key: value}))
    )
    assert message in told
    assert told.startswith(f"{tmp_path / 'c.json'}:1:")


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ("[quantize.linear.float8]\nrecipe_name = 'rowwise'", "rowwise is not simulated; leave it out"),
        ("[parallelism]\nexpert_parallel_degree = 3", "ep = 3 does not divide the 128 experts"),
        ("[parallelism]\nexpert_parallel_degree = -4", "must be a whole number, 1 or above"),
        (
            "[parallelism]\ncontext_parallel_degree = 2\ncontext_parallel_rotate_method = 'x'",
            "it must be allgather or alltoall",
        ),
    ],
)
def test_wrong_settings_of_torchtitan(settings, message, tmp_path):
    model = '[model]\nname = "qwen3"\nflavor = "30B-A3B"\nconverters = ["quantize.linear.float8"]\n'
    text = f"{model}[training]\nseq_len = 2048\n[optimizer]\nlr = 1e-4\n{settings}\n"
    told = refused(write(tmp_path, t__toml=text))
    assert message in told
    assert told.startswith(f"{tmp_path / 't.toml'}:")


def test_stages_by_name_are_listed_as_not_read(tmp_path):
    text = '[model]\nname = "llama3"\nflavor = "8B"\n[training]\nseq_len = 2048\n[parallelism]\n'
    files = write(tmp_path, t__toml=f'{text}module_fqns_per_model_part = [["layers.0"]]\n')
    assert imported(files, Options(), "x").unread == {files[0]: ["parallelism.module_fqns_per_model_part"]}
