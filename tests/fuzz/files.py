"""Damaged files through every reader: each is accepted or refused with a sentence, without a traceback, and quickly."""

from __future__ import annotations

import contextlib
import gzip
import io
import json
import re
import traceback
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from random import Random
from typing import Any

import networkx as nx

from clustersim.scenarios.commands.command_line import run
from clustersim.scenarios.specification import loading
from tests.fuzz.limit import cpu_limit
from tests.scenarios.accuracy.test_calibration_sources import SERVER, swept
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
from tests.topologies.test_graph_file import small
from tests.topologies.test_nccl_topology import dgx_a100

SECONDS = 20.0
"""Of processor time for one file that is read and not simulated."""

SHIPPED = (
    *("hello", "gpt2_one_v100", "lecture_3d_32gpus", "parameter_server_straggler", "background_traffic"),
    *("slow_network_compression", "allreduce_dgx_a100", "gpipe_vs_varuna", "llama3_70b_lora_8h100"),
    *("mixtral_8x7b_dgx_h100", "llama3_405b_campaign", "t5_11b_32a100", "tensor_grids", "vit_h_14_8a100"),
)
"""Scenarios that are damaged."""

EXPORTED = ("megatron", "deepspeed", "torchtitan", "accelerate", "slurm", "torch-csv")

PROFILE = """\
model,node,op,forward_ms,backward_ms,activation_bytes,parameter_bytes,preds
small,node1,Conv2d,1.5,3.25,4096,1024,
small,node2,ReLU,0.5,0.25,4096,0,node1
small,node3,Linear,2.0,4.0,1024,4096,node1;node2
"""

MODEL = "version: 1\ncluster: {preset: dgx_a100_80gb, nodes: 1}\ntraining: {global_batch_size: 8}\n"

CALIBRATION = b"""\
version: 1
library: gloo
transport:
  hop_latency: {NET: {ring: {tcp: 41.3 us}}}
uncertainty: {hop_latency.NET.ring.tcp: 0.02}
provenance: {date: 2026-01-31, backend: gloo, torch: 2.7.0, rows: 125, median_error: 0.03}
"""

WEIRD = (
    *("0", "-1", "1e308", "-1e308", ".nan", ".inf", "null", "true", "[]", "{}", "''", "[[[]]]", "9" * 25, "1e-320"),
    *(
        "100000000",
        "0.5",
        "~",
        "no",
        "1 GB",
        "-1 s",
        "../x",
        "\u00e9\u4e2d",
        "auto",
        '"',
        "a: b",
        "!!python/none",
        "&a",
    ),
)
"""Texts of values that are wrong at most places."""

VALUES: tuple[Any, ...] = (
    *(None, True, False, 0, -1, 0.5, 1e308, 10**30, 10**7, "", "x", [], {}, [1], [None], ["x"], {"x": 1}, [[1, 2]]),
)
"""Values of JSON that are wrong at most places."""


@dataclass(frozen=True)
class Reader:
    """What reads a kind of file: the *command*, in which ``{}`` is the file, and undamaged *seeds* by file name.

    *beside*: further files, by name.
    """

    name: str
    command: tuple[str, ...]
    seeds: Sequence[tuple[str, bytes]]
    beside: Mapping[str, bytes]


@cache
def readers() -> tuple[Reader, ...]:
    """Return the readers."""
    shipped = [(f"{name}.yaml", loading.located(name).read_bytes()) for name in SHIPPED]
    configs = [(f"{name}.json", json.dumps(config).encode()) for name, (config, *_) in MODELS.items()]
    config = {"config.json": configs[0][1]}
    texts = {"g.sh": GPT3, "l.sh": LLAMA3, "s.sh": SBATCH, "t.toml": TITAN, "n.yaml": NEMO, "b.yaml": BRIDGE}
    texts |= {"a.yaml": ACCELERATE, "d.json": json.dumps(DS), "r.json": json.dumps({**ARGUMENTS, "deepspeed": DS})}
    sweep = swept(2, [1e-5, 2e-5, 4e-5, 1e-4, 1e-3, 1e-2])
    graph = json.dumps(nx.node_link_data(small(), edges="links"))
    beside = {"topo.txt": SERVER.encode()}
    return (
        Reader("scenario", ("check", "{}"), shipped, {}),
        Reader("model", ("check", "{}"), configs, {}),
        Reader("model to import", ("import", "{}", "-o", "out.yaml"), configs, {}),
        Reader("program", ("import", "{}", "config.json", "-o", "out.yaml"), _encoded(texts), config),
        Reader("exported", ("import", "{}", "-o", "out.yaml"), exported(), config),
        Reader(
            "sweep",
            ("calibrate", "--from", "{}", "topo.txt", "--nic", "ib_hdr", "-o", "out.yaml"),
            [("s.txt", sweep.encode())],
            beside,
        ),
        Reader("matrix", ("calibrate", "--from", "{}", "-o", "out.yaml"), [("topo.txt", SERVER.encode())], {}),
        Reader("topology", ("calibrate", "--from", "{}", "-o", "out.yaml"), [("t.xml", dgx_a100().encode())], {}),
        Reader("inventory", ("import", "{}", "config.json"), _encoded({"t.txt": SERVER, "t.xml": dgx_a100()}), config),
        Reader("graph", ("check", "hello", "--set", "cluster={graph: {}}"), [("mine.json", graph.encode())], {}),
        Reader(
            "profile",
            ("check", "m.yaml", "--set", "model={profile: {}, model: small}"),
            [("p.csv", PROFILE.encode())],
            {"m.yaml": MODEL.encode()},
        ),
        Reader(
            "table",
            ("check", "hello", "--set", "table={file: {}, name: '{tp}', set: {parallelism.pp: '{tp}'}}"),
            [("t.csv", b"tp,x\n1,2\n2,3\n")],
            {},
        ),
        Reader("transport", ("check", "hello", "--set", "network.transport={}"), [("c.yaml", CALIBRATION)], {}),
        Reader(
            "result", ("compare", "run", "hello"), [("run/result.json", _result())], {"run/scenario.yaml": _hello()}
        ),
        Reader("trace", ("explain", "{}"), [("rank0.json", _trace())], {}),
        Reader("value", ("check", "hello", "--set", "{=}"), [("v.txt", key.encode()) for key in KEYS], {}),
    )


KEYS = (
    *("cluster.gpus=4", "cluster.bandwidth=10 GB/s", "training.global_batch_size=32", "parallelism.data={method: ddp}"),
    *("network.algorithms={all_reduce: ring}", "simulation.stragglers=[{rank: 1, slowdown: 2}]", "model.num_layers=4"),
    *(
        "training.recompute={method: uniform, num_layers: 2}",
        "network.background=[{from: gpu 0, to: gpu 1, rate: 1 GB/s}]",
    ),
)


def _encoded(texts: Mapping[str, str]) -> list[tuple[str, bytes]]:
    return [(name, text.encode()) for name, text in texts.items()]


def _hello() -> bytes:
    return loading.located("hello").read_bytes()


def _in_folder(command: Sequence[str], files: Mapping[str, bytes], read: str = "") -> bytes:
    """Run *command* in a folder with *files*; return what it wrote to *read*, or printed."""
    import tempfile

    with tempfile.TemporaryDirectory() as folder, contextlib.chdir(folder):
        for name, content in files.items():
            Path(name).write_bytes(content)
        out = io.StringIO()
        with contextlib.redirect_stdout(out):
            assert run(list(command)) == 0
        return Path(read).read_bytes() if read else out.getvalue().encode()


def _result() -> bytes:
    return _in_folder(("run", "hello", "--json"), {})


def _trace() -> bytes:
    """The first events of a trace, and what names its ranks."""
    path = Path(__file__).parents[2] / "scenarios" / "traced" / "ddp_sleep" / "rank0.json.gz"
    trace = json.loads(gzip.decompress(path.read_bytes()))
    return json.dumps({**trace, "traceEvents": trace["traceEvents"][:150]}).encode()


def exported() -> list[tuple[str, bytes]]:
    """Return a small scenario as other programs have it."""
    import tempfile

    made: list[tuple[str, bytes]] = []
    for target in EXPORTED:
        with tempfile.TemporaryDirectory() as folder, contextlib.chdir(folder):
            out = io.StringIO()
            with contextlib.redirect_stdout(out), contextlib.redirect_stderr(out):
                status = run(["export", "dgx_a100_gpt2_xl_ddp", "--to", target, "-o", "made"])
            made += [(path.name, path.read_bytes()) for path in sorted(Path("made").rglob("*")) if path.is_file()]
            made += [(f"made.{target}", Path("made").read_bytes())] if Path("made").is_file() else []
            assert status in (0, 2), out.getvalue()
    return made


def damaged(content: bytes, random: Random) -> bytes:
    """Return *content* with one to three faults."""
    for _ in range(random.randint(1, 3)):
        ways = [_bytes, _lines, _words, _words, _cut]
        content = (
            _json(content, random)
            if _is_json(content) and random.random() < 0.6
            else random.choice(ways)(content, random)
        )
    return content


def _is_json(content: bytes) -> bool:
    return content[:1] in (b"{", b"[")


def _bytes(content: bytes, random: Random) -> bytes:
    """A few bytes are replaced."""
    place = random.randint(0, len(content))
    inserted = bytes(random.choice(b"{}[]:,\"'-\n\t #&*!%@`\x00\xff09aeE.") for _ in range(random.randint(0, 4)))
    return content[:place] + inserted + content[place + random.randint(0, 4) :]


def _cut(content: bytes, random: Random) -> bytes:
    """A part is lost, or stands twice."""
    begin, end = sorted(random.randint(0, len(content)) for _ in range(2))
    return content[:begin] + content[end:] if random.random() < 0.5 else content[:end] + content[begin:]


def _lines(content: bytes, random: Random) -> bytes:
    """Lines are lost, doubled, moved or indented."""
    lines = content.split(b"\n")
    one, other = random.randrange(len(lines)), random.randrange(len(lines))
    way = random.randrange(4)
    if way == 0:
        del lines[one]
    elif way == 1:
        lines.insert(other, lines[one])
    elif way == 2:
        lines[one], lines[other] = lines[other], lines[one]
    else:
        lines[one] = b" " * random.randint(1, 4) + lines[one]
    return b"\n".join(lines)


def _words(content: bytes, random: Random) -> bytes:
    """A word or a number is another one."""
    words = list(re.finditer(rb"[\w.+-]+", content))
    if not words:
        return content
    word = random.choice(words)
    other = random.choice(WEIRD).encode() if random.random() < 0.7 else random.choice(words)[0]
    return content[: word.start()] + other + content[word.end() :]


def _json(content: bytes, random: Random) -> bytes:
    """A value is another one, a key is lost or has another name."""
    try:
        data = json.loads(content)
    except ValueError:
        return content
    places = list(_places(data))
    if not places:
        return content
    holder, key = random.choice(places)
    if isinstance(holder, dict) and random.random() < 0.2:
        moved = holder.pop(key)
        if random.random() < 0.5:
            holder[f"{key}x"] = moved
    else:
        holder[key] = random.choice(VALUES)
    return json.dumps(data).encode()


def _places(data: Any) -> Iterator[tuple[Any, Any]]:
    for key, value in data.items() if isinstance(data, dict) else enumerate(data) if isinstance(data, list) else ():
        yield data, key
        yield from _places(value)


def generated(seed: int, count: int, only: str = "") -> Iterator[tuple[Reader, str, bytes]]:
    """Yield *count* damaged files, all readers in turn or that of the name *only*."""
    random, every = Random(seed), [reader for reader in readers() if only in ("", reader.name)]
    for number in range(count):
        reader = every[number % len(every)]
        name, content = random.choice(list(reader.seeds))
        yield reader, name, damaged(content, random)


def fault(reader: Reader, name: str, content: bytes, folder: Path) -> str:
    """Return what is wrong with how *reader* reads *content*; empty if it accepts or refuses it."""
    for other, text in {**reader.beside, name: content}.items():
        path = folder / other
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(text)
    given = content.decode("utf-8", "surrogateescape").replace("\x00", "") or "="
    command = [word.replace("{=}", given).replace("{}", name) for word in reader.command]
    out, err = io.StringIO(), io.StringIO()
    try:
        with (
            contextlib.chdir(folder),
            cpu_limit(SECONDS),
            contextlib.redirect_stdout(out),
            contextlib.redirect_stderr(err),
        ):
            status = run(command)
    except Exception as error:
        return "".join(traceback.format_exception(error)[-6:])
    if status == 2 and not err.getvalue().strip():
        return "refused without a word"
    return "" if status in (0, 1, 2, 3) else f"status {status}"
