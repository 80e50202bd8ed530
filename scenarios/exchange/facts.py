"""What the imported files say of one training run: facts by key, each with the place where it stands.

Keys are those of a scenario (``training.precision``), and those of `RUN`, from which keys of a scenario follow (the
number of GPUs, gradient accumulation, epochs). The scenario that follows is written as YAML with the place of each
value beside it.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import field, replace
from typing import Any

from clustersim.scenarios.exchange.source_file import SourceFile
from clustersim.simulator.reading.dataclass import dataclass
from clustersim.simulator.reading.document import Path, Position
from clustersim.simulator.reading.errors import ScenarioError
from clustersim.simulator.reading.plain_text import printable, written

RUN: Mapping[str, str] = {
    "run.program": "the training program",
    "run.gpus": "GPUs in all",
    "run.nodes": "nodes",
    "run.gpus_per_node": "GPUs of a node",
    "run.inventory": "the parts of a server",
    "run.accumulation": "micro-batches of a replica and step",
    "run.sync_each_batch": "gradients of each micro-batch are reduced",
    "run.micro_batches": "micro-batches of a pipeline order",
    "run.replica_batch_size": "samples of a replica and step, without accumulation",
    "run.epochs": "passes over the data set",
    "run.dataset_samples": "samples of the data set",
    "run.iterations": "steps of the whole run",
    "run.positions": "rows of a learned table of positions",
    "run.bucket_elements": "elements of a bucket of gradients",
    "run.dp": "replicas",
    "run.replicated": "groups of replicas that each shard all states",
    "run.shards_in_node": "the replicas of a node shard all states",
    "run.optimizer_instances": "groups of replicas that each share the optimizer states",
    "run.layers_per_stage": "layers of a virtual stage, embedding and logits counted as one each",
    "run.compiled": "torch.compile is on",
}
"""Facts that are no keys of a scenario."""


@dataclass(frozen=True)
class Fact:
    """A *value*, the *position* where it stands, and where it is *from* in words.

    *given*: False for a default of the program, or a limit, which gives way to what another file says.
    """

    value: Any
    position: Position
    source: str
    given: bool = True


@dataclass
class Facts:
    """*found*: the facts by key. *assumed*: sentences about what no file says. *remarks*: what the user should know
    besides. *followed*: files that other files name. *nested*: they are
    those of a file that another one names. *sweeps*: measured collectives."""

    found: dict[str, Fact] = field(default_factory=dict)
    assumed: list[str] = field(default_factory=list)
    remarks: list[str] = field(default_factory=list)
    followed: list[SourceFile] = field(default_factory=list)
    nested: bool = False
    sweeps: list[SourceFile] = field(default_factory=list)

    def follow(self, source: SourceFile) -> None:
        """Note that another file names *source*, so that what is not read of it is listed too."""
        self.followed.append(source)

    def give(
        self,
        key: str,
        value: Any,
        source: SourceFile,
        *path: str,
        how: str = "",
        given: bool = True,
        over: bool = False,
    ) -> None:
        """Take *value* for *key*, which stands at *path* of *source*; None is no value. *how* it follows, in words.

        A fact that is given takes the place of one that is not; *over*: also of one that is. Raises `ScenarioError` if
        two facts are given and differ.
        """
        if value is None:
            return
        position = source.document.position(path)
        fact = Fact(value, position, source.cited(path, how), given)
        known = self.found.get(key)
        if known is None or over or (given and not known.given):
            self.found[key] = fact
        elif given and known.given and known.value != value:
            raise source.error(
                path, f"gives {key} = {_short(value)}, but {known.source} gives {_short(known.value)}", _CONTRADICTION
            )

    def default(self, key: str, value: Any, source: SourceFile, program: str) -> None:
        """Take *value* for *key* as the default of the *program* that *source* configures, unless a file gives it."""
        if key not in self.found:
            self.found[key] = Fact(
                value, replace(source.document.position(()), source=""), f"default of {program}", False
            )

    def assume(self, key: str, value: Any, why: str) -> None:
        """Take *value* for *key*, which no file gives, and say *why*."""
        self.found[key] = Fact(value, Position(), f"assumed: {why}", False)
        self.assumed.append(f"{key}: {_short(value)}; {why}")

    def option(self, key: str, value: Any, option: str) -> None:
        """Take *value* for *key* from the command line's *option*, whatever the files say."""
        if value is not None:
            self.found[key] = Fact(value, Position(option=f"{option} {value}", key=tuple(key.split("."))), option)

    def follows(self, source: str, key: str, value: Any, how: str) -> None:
        """Take *value* for *key*; *how* it follows from the fact *source*, in words."""
        known = self.found[source]
        self.found[key] = replace(known, value=value, source=f"{known.source}, {how}" if how else known.source)

    def drop(self, key: str, why: str) -> None:
        """Leave out the fact *key*, which the scenario cannot say, and remark *why*."""
        fact = self.found.pop(key)
        self.remarks.append(f"{fact.source}: {why}")

    def value(self, key: str) -> Any:
        """Return the value of *key*; None if there is none."""
        fact = self.found.get(key)
        return None if fact is None else fact.value

    def whole(self, key: str) -> int | None:
        """Return the whole number of *key*; None if there is none."""
        value = self.value(key)
        return value if isinstance(value, int) else None

    def below(self, prefix: str) -> Mapping[str, Fact]:
        """Return the facts with keys that begin with *prefix* and a dot, without these."""
        return {key[len(prefix) + 1 :]: fact for key, fact in self.found.items() if key.startswith(f"{prefix}.")}

    def error(self, key: str, message: str, hint: str = "") -> ScenarioError:
        """Return an error at the place of *key*."""
        from_file = self.found.get(key)
        position = from_file.position if from_file else Position()
        place = f"{position.file}:{position.line}:{position.column}: " if position.file else ""
        place = f"{position.option}: " if position.option else place
        shown = f"\n{position.line:>4} | {position.source}" if position.file and position.source.strip() else ""
        return ScenarioError(f"{place}{message}{shown}" + (f"\n     help: {hint}" if hint else ""))


_CONTRADICTION = "the files are of different runs, or one is out of date; leave one of them out"


def _short(value: Any) -> str:
    return written(value) if isinstance(value, str) else f"{value}"[:60]


def path_of(key: str) -> Path:
    """Return the path of a dotted *key* of a scenario."""
    return tuple(key.split("."))


_WORD = re.compile(r"[A-Za-z_.][\w./+-]*( [\w./+-]+)*")
_RESERVED = ("true", "false", "null", "yes", "no", "on", "off", "y", "n", ".inf", ".nan")


def yaml_with_sources(data: Mapping[str, Any], sources: Mapping[tuple[str, ...], str], heading: Sequence[str]) -> str:
    """Return *data* as YAML with a comment from *sources* on each value, below the lines of *heading*."""
    lines = [f"# {printable(one)}".rstrip() for text in heading for one in text.splitlines() or [""]]
    for number, (key, value) in enumerate(data.items()):
        lines += [""] if number != 1 else []
        lines += _lines((key,), value, sources)
    return "\n".join(lines) + "\n"


def _lines(path: tuple[str, ...], value: Any, sources: Mapping[tuple[str, ...], str]) -> Iterator[str]:
    indent = "  " * (len(path) - 1)
    if isinstance(value, dict) and value and path not in sources:
        yield f"{indent}{path[-1]}:"
        for key, inner in value.items():
            yield from _lines((*path, key), inner, sources)
        return
    line = f"{indent}{path[-1]}: {scalar(value)}"
    source = printable(" ".join(sources.get(path, "").split()))
    yield f"{line}   # {source}" if source else line


def scalar(value: Any) -> str:
    """Return *value* as YAML on one line.

    >>> scalar("1f1b"), scalar("no"), scalar([1, 2]), scalar({"kind": "ib_ndr"}), scalar(0.1)
    ('"1f1b"', '"no"', '[1, 2]', '{"kind": "ib_ndr"}', '0.1')
    """
    if isinstance(value, str) and _WORD.fullmatch(value) and value.lower() not in _RESERVED:
        return value
    if isinstance(value, float) and value.is_integer() and abs(value) < 1e15:
        return str(int(value))
    return json.dumps(value, ensure_ascii=False)
