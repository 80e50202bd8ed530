"""The command, the topology's formats, and refusals of what a program does not have."""

import io
from pathlib import Path

import networkx as nx
import pytest

from clustersim.scenarios.commands.command_line import run
from clustersim.scenarios.exchange.export import Export, exporter, targets, write
from clustersim.scenarios.scenario import Scenario
from clustersim.simulator.reading.errors import ScenarioError
from clustersim.simulator.schedule.pipeline_order import Order


@pytest.fixture(autouse=True)
def _here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


def test_the_folder_is_the_registry(capsys):
    known = {"megatron", "deepspeed", "torchtitan", "accelerate", "slurm", "torch-csv", "graphml", "dot"}
    assert known <= set(targets())
    assert run(["export", "hello", "--to", "megatorn"]) == 2
    assert 'did you mean "megatron"?' in capsys.readouterr().err


def test_graphml_is_the_topology():
    scenario = Scenario.load("lecture_3d_32gpus")
    text = exporter("graphml")(scenario).files["lecture_3d_32gpus.graphml"]
    assert isinstance(text, str)
    graph = nx.read_graphml(io.BytesIO(text.encode()))
    own = scenario.cluster().graph
    assert set(graph.nodes) == set(own.nodes)
    assert graph.number_of_edges() == own.number_of_edges()
    for source, target, attributes in graph.edges(data=True):
        link = own.edges[source, target]["link"]
        assert (attributes["kind"], attributes["bandwidth"], attributes["latency"]) == (
            link.kind,
            link.bandwidth,
            link.latency,
        )


def test_dot_has_every_vertex_and_every_pair_of_links():
    scenario = Scenario.load("lecture_3d_32gpus")
    text = exporter("dot")(scenario).files["lecture_3d_32gpus.dot"]
    assert isinstance(text, str)
    graph = scenario.cluster().graph
    assert text.count(" [label=") - text.count(" -> ") == len(graph)
    pairs = {frozenset(edge) for edge in graph.edges}
    assert text.count(" -> ") == len(pairs)
    assert text.count("{") == text.count("}")


def test_an_order_is_written_and_read_again(capsys):
    assert run(["export", "lecture_3d_32gpus", "--to", "torch-csv", "-o", "order.csv"]) == 0
    assert Order.parse(Path("order.csv").read_text()).rows
    capsys.readouterr()
    assert run(["show", "lecture_3d_32gpus", "order", "--set", "parallelism.schedule=order.csv"]) == 0
    assert capsys.readouterr().out == Path("order.csv").read_text()


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ("0F0,0B0", "order.csv has 1 rows, one for each pipeline rank, but pp is 4"),
        ("0F0\n1F0\n2F0\n3F0", "stage 0 has no whole backward pass of micro-batch 0"),
        ("0F0,0F0,0B0\n1F0,1B0\n2F0,2B0\n3F0,3B0", "0F0 stands 2 times; each action must stand once"),
        ("0F0,0B0\n1F0,1B0\n2F0,2B0\n3F0,3B0", "runs 1 micro-batches, but a replica has 8 a step"),
        ("0F0,0B0\n0F1,0B1\n2F0,2B0\n3F0,3B0", "is in row 1, but stage 0 is in row 0"),
        ("0F0,0R0,0B0\n1F0,1B0", "0R0 is no action of a file"),
        ("", "the order is empty"),
    ],
)
def test_orders_that_are_not_whole(change, message, capsys):
    Path("order.csv").write_text(change)
    assert run(["check", "lecture_3d_32gpus", "--set", "parallelism.schedule=order.csv"]) in (0, 2)
    assert run(["run", "lecture_3d_32gpus", "--json", "--set", "parallelism.schedule=order.csv"]) == 2
    told = capsys.readouterr().err
    assert message in told
    assert "--set parallelism.schedule=order.csv" in told


@pytest.mark.parametrize(
    ("target", "scenario", "changes", "message"),
    [
        (
            "megatron",
            "llama3_8b_fsdp_dgx_h100",
            {"model.activation": "geglu"},
            "has no geglu here; it has gelu, swiglu",
        ),
        (
            "megatron",
            "gpt_6_7b_64a100",
            {"parallelism.schedule": "gpipe"},
            "has no gpipe here; it has 1f1b, interleaved",
        ),
        (
            "megatron",
            "gpt_6_7b_64a100",
            {"model.num_layers": 33},
            "Megatron-LM wants the 33 layers divisible by 4 pipeline ranks",
        ),
        ("megatron", "hello", {}, "trains transformers only"),
        ("megatron", "allreduce_dgx_a100", {}, "measures a collective"),
        ("deepspeed", "llama3_8b_fsdp_dgx_h100", {}, "DeepSpeed has no fsdp here; it has ddp, zero"),
        ("torchtitan", "gpt_6_7b_64a100", {}, "torchtitan has no flavor with these sizes; it has llama3 8B"),
        (
            "torchtitan",
            "llama3_8b_fsdp_dgx_h100",
            {"training.precision": "fp16"},
            "has no fp16 here; it has bf16, fp32",
        ),
        ("accelerate", "gpt_6_7b_64a100", {}, "accelerate shares no layers: tp must be 1"),
        ("deepspeed", "mixtral_8x7b_dgx_h100", {}, "DeepSpeed shares no experts here"),
        ("accelerate", "mixtral_8x7b_dgx_h100", {}, "accelerate shares no experts here"),
        ("megatron", "t5_11b_32a100", {}, "model.num_decoder_layers: Megatron-LM's pretrain_gpt.py has no argument"),
        ("megatron", "mixtral_8x7b_dgx_h100", {"model.attention_sinks": True}, "has no argument for it here"),
        (
            "megatron",
            "mixtral_8x7b_dgx_h100",
            {"parallelism.dispatch_precision": "fp8"},
            "Megatron-LM has no fp8 here; it has model",
        ),
        ("megatron", "gpt_6_7b_64a100", {"parallelism.placement": "round_robin"}, "places ranks node by node"),
        (
            "megatron",
            "llama3_8b_fsdp_dgx_h100",
            {"parallelism.cp": 2, "parallelism.cp_layout": "contiguous"},
            "has no contiguous here; it has zigzag",
        ),
        *(
            (
                target,
                "llama3_8b_fsdp_dgx_h100",
                {"training.precision": {"matmul": "fp8", "recipe": "blockwise"}, "training.gradient_dtype": "fp32"},
                '{"matmul": "fp8", "rest": "bf16", "recipe": "blockwise"} here; it has',
            )
            for target in ("accelerate", "torchtitan")
        ),
        (
            "torchtitan",
            "llama3_8b_fsdp_dgx_h100",
            {"model.attention_window": 1024},
            "torchtitan's llama3 8B has no 1024 here; it has None",
        ),
        ("torch-csv", "lecture_3d_32gpus", {"parallelism.schedule": "varuna"}, "torch's orders have"),
    ],
)
def test_what_a_program_does_not_have_is_refused(target, scenario, changes, message):
    loaded = Scenario.load(scenario, changes)
    with pytest.raises(ScenarioError) as error:
        exporter(target)(loaded)
    assert message in str(error.value)


def test_files_lie_where_they_are_wanted(capsys):
    assert run(["export", "llama3_8b_fsdp_dgx_h100", "--to", "torchtitan", "-o", "titan"]) == 0
    assert sorted(path.name for path in Path("titan").iterdir()) == ["launch.sh", "llama3_8b_fsdp_dgx_h100.toml"]
    Path("file").write_text("")
    assert run(["export", "llama3_8b_fsdp_dgx_h100", "--to", "torchtitan", "-o", "file"]) == 2
    assert "file is a file; several files are written: give a folder" in capsys.readouterr().err
    assert run(["export", "gpt2_xl_zero_zhores", "--to", "deepspeed"]) == 2
    assert "has 4 variants; give one of them: --variant zero_0" in capsys.readouterr().err
    assert run(["export", "gpt2_xl_zero_zhores", "--to", "deepspeed", "--variant", "zero_2", "-o", "ds"]) == 0
    assert '"stage": 2' in Path("ds/ds_config.json").read_text()


def test_content_may_be_bytes_or_a_function(tmp_path):
    made = Export({"a": b"\x00", "b": lambda path: path.write_text("late") and None}, folder=True)
    assert [path.read_bytes() for path in write(made, tmp_path / "x")] == [b"\x00", b"late"]


def test_keys_that_a_program_is_not_told_are_listed():
    changes = {"parallelism.moe_overlap": "none", "parallelism.optimizer_sync": False}
    told = exporter("megatron")(Scenario.load("mixtral_8x7b_dgx_h100", changes)).notes
    assert "parallelism.optimizer_sync: false is not said" in told
    told = exporter("deepspeed")(Scenario.load("gpt_6_7b_64a100", {"parallelism.sequence_parallel": True})).notes
    assert "parallelism.sequence_parallel: true is not said" in told
