"""What commands print and write, as text: `python -m tests.golden.text [NAME...]` stores it anew.

A refactoring keeps every character. Where a change of the text is meant, name its cases as arguments, read the diff,
and say in the commit what changed. A case is one call of the command line in an empty folder; what it prints and the
files that it writes are stored in `text/NAME.txt`. A binary file is stored as its digest.
"""

from __future__ import annotations

import contextlib
import gzip
import hashlib
import io
import os
import re
import sys
import tempfile
from pathlib import Path

FOLDER = Path(__file__).with_name("text")
ROOT = Path(__file__).parents[2]

EXPORTED = ("lecture_3d_32gpus", "llama3_8b_fsdp_dgx_h100", "mixtral_8x7b_dgx_h100")
"""Scenarios that are exported to every target: pipeline and tensor parallelism, FSDP, experts."""

TARGETS = ("accelerate", "deepspeed", "dot", "graphml", "megatron", "slurm", "torch-csv", "torchtitan")
"""Targets whose files are small. Traces (chakra, kineto, perfetto) are those of a short scenario."""

SEARCHED = ("--simulate", "all", "--search", "micro_batch_size=1,2,4", "--search", "recompute=none,full")

CASES: dict[str, list[str]] = (
    {
        f"run_{name}": ["run", name, "-o", "out"]
        for name in ("hello", "gpipe_vs_varuna", "gpt_6_7b_64a100", "llama3_70b_lora_8h100", "allreduce_dgx_a100")
    }
    | {
        f"advice_{name}": ["show", name, "advice"]
        for name in ("hello", "gpt_6_7b_64a100", "llama3_8b_131k_32h100", "mixtral_8x7b_dgx_h100", "gpt2_one_v100")
    }
    | {
        "plan_hello": ["plan", "hello", "--simulate", "all", "--search", "pp=1,2"],
        "plan_gpt2_one_v100": ["plan", "gpt2_one_v100", *SEARCHED],
        "plan_lecture_3d_32gpus": ["plan", "lecture_3d_32gpus", *SEARCHED, "--search", "tp=2,4", "--search", "pp=4"],
        "plan_llama3_8b_fsdp_dgx_h100": ["plan", "llama3_8b_fsdp_dgx_h100", *SEARCHED, "--search", "tp=1,2"],
        "plan_gpt2_xl_zero_zhores": ["plan", "gpt2_xl_zero_zhores", *SEARCHED, "--search", "tp=1", "--search", "pp=1"],
        "sensitivity_hello": ["sensitivity", "hello", "--json"],
        "sensitivity_gpt2_one_v100": ["sensitivity", "gpt2_one_v100", "--json"],
        "derived_llama3_8b_fsdp_dgx_h100": ["show", "llama3_8b_fsdp_dgx_h100", "derived"],
    }
    | {
        f"export_{name}_{target}": ["export", name, "--to", target, "-o", f"out.{target}"]
        for name in EXPORTED
        for target in TARGETS
    }
    | {
        f"export_hello_{target}": ["export", "hello", "--to", target, "-o", name]
        for target, name in (("chakra", "out"), ("kineto", "out.json.gz"), ("perfetto", "out.pftrace"))
    }
)

PLAIN_BYTES = 20_000
"""A larger file is stored as its digest."""

CHANGING = (
    (re.compile(r'("wall_s": )[\d.e-]+'), r"\1-"),
    (re.compile(r"\b\d+(\.\d+)? m?s of wall time"), "- s of wall time"),
)
"""What differs from run to run."""

SAMPLED = re.compile(r'("p\d+": )([\d.]+(?:e-?\d+)?)')
"""Percentiles of samples that are correlated by a product of matrices, whose last digits depend on the processor."""


def printed(name: str) -> str:
    """Run the case *name* in an empty folder; return its exit status, what it printed and the files that it wrote."""
    from scenarios.commands.command_line import run

    before = Path.cwd()
    out, err = io.StringIO(), io.StringIO()
    with tempfile.TemporaryDirectory() as folder:
        os.chdir(folder)
        try:
            with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
                status = run(CASES[name])
        finally:
            os.chdir(before)
        files = [_written(path, Path(folder)) for path in sorted(Path(folder).rglob("*")) if path.is_file()]
        text = "\n".join(
            [
                f"$ clustersim {' '.join(CASES[name])}",
                f"exit {status}",
                out.getvalue(),
                *lasting(err.getvalue()),
                *files,
            ]
        )
    text = text.replace(folder, ".").replace(f"{ROOT}/", "")
    for pattern, instead in CHANGING:
        text = pattern.sub(instead, text)
    text = SAMPLED.sub(lambda found: f"{found[1]}{float(found[2]):.9g}", text)
    return "\n".join(line.rstrip() for line in text.splitlines()).rstrip() + "\n"


def lasting(messages: str) -> list[str]:
    """Messages that do not depend on the machine: all but progress and compilation."""
    passing = re.compile(r"^compiling|so far|\r")
    return [line for line in messages.splitlines() if not passing.search(line)]


def _written(path: Path, folder: Path) -> str:
    content = path.read_bytes()
    if path.suffix == ".gz":
        content = gzip.decompress(content)
    head = f"--- {path.relative_to(folder)}"
    if path.suffix in (".png", ".csv") or path.name in ("scenario.yaml", "result.json"):
        # the numbers of a run have their own golden data, and pictures depend on fonts
        return head
    try:
        text = content.decode()
    except UnicodeDecodeError:
        text = ""
    if not text or len(content) > PLAIN_BYTES:
        return f"{head}: {len(content)} bytes, sha256 {hashlib.sha256(content).hexdigest()}"
    return f"{head}\n{text}"


def main(names: list[str]) -> None:
    """Store the text of the cases *names* (default: all)."""
    os.environ["COLUMNS"] = "120"
    FOLDER.mkdir(exist_ok=True)
    for name in names or CASES:
        print(name, flush=True)
        (FOLDER / f"{name}.txt").write_text(printed(name))


if __name__ == "__main__":
    main(sys.argv[1:])
