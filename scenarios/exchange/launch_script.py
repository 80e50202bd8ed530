"""A launch script as a document: sbatch headers, options of the launcher, the program, and its arguments.

The document has the mappings ``sbatch``, ``launch`` (options of torchrun, deepspeed, srun or accelerate),
``arguments`` (flags of the program) and ``environment`` (variables), and the words ``launcher`` and ``program``. Flags
lose their ``--`` and have ``_`` in place of ``-``, as argparse names them.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from pathlib import PurePath
from typing import Any

from clustersim.scenarios.exchange.shell_commands import ShellWord, commands
from clustersim.simulator.reading.document import Document, Path, Position
from clustersim.simulator.reading.errors import ScenarioError

LAUNCHERS = {
    "torchrun": "torchrun",
    "deepspeed": "deepspeed",
    "srun": "srun",
    "torch.distributed.run": "torchrun",
    "torch.distributed.launch": "torchrun",
    "accelerate": "accelerate",
}
"""Programs, or modules of ``python -m``, that start the processes, and the launcher that each is."""

ALONE = (
    *("standalone", "no_python", "module", "m", "use_env", "no_local_rank", "save_pid", "force_multi"),
    *("multi_gpu", "cpu", "use_deepspeed", "use_fsdp", "use_megatron_lm", "debug", "quiet", "exclusive", "overlap"),
)
"""Options of launchers that take no value."""

SHORT = {"N": "nodes", "n": "ntasks", "c": "cpus_per_task", "G": "gpus", "H": "hostfile", "i": "include"}
"""Short options of Slurm's srun and sbatch, and of deepspeed, and their long names."""

ENVIRONMENT = ("CUDA_LAUNCH_BLOCKING",)
"""Variables of the environment that change how long a step takes."""

_NUMBER = re.compile(r"[-+]?\.?\d")
_SBATCH = re.compile(r"#SBATCH\s+(-\S.*)")


def script(text: str, name: str) -> Document:
    """Return the launch script *text* of the file *name*. Raises `ScenarioError` for a quote that is not closed."""
    made = _Made(name, text.splitlines())
    for number, line in enumerate(text.splitlines(), 1):
        if match := _SBATCH.match(line.strip()):
            words = [ShellWord(word, number) for word in match[1].partition(" #")[0].split()]
            made.options("sbatch", words)
    found, variables = commands(text, name)
    for variable in ENVIRONMENT:
        for value in variables.get(variable, [])[-1:]:
            made.put(("environment", variable), value.text, value)
    launched = [(words, place) for words in found if (place := _launcher(words)) is not None]
    for words, place in launched[:1]:
        _launch(made, words[place:])
    if len(launched) > 1:
        raise ScenarioError(f"{name}:{launched[1][0][0].line}: launches a second program; give a file with one")
    if not launched:
        alone = [words for words in found if words[0].text.startswith("--")]
        listed = [words for words in variables.values() if words and words[0].text.startswith("--")]
        for words in alone or [[part for word in words for part in _split(word)] for words in listed]:
            made.options("arguments", words)
    return Document(made.data, made.positions)


def _split(word: ShellWord) -> Iterable[ShellWord]:
    return (ShellWord(text, word.line) for text in word.text.split())


def _launcher(words: Sequence[ShellWord]) -> int | None:
    """Return the place of the launcher, or of python with a script, among *words*; None if there is none."""
    for place, word in enumerate(words):
        stem = PurePath(word.text).name
        if stem in LAUNCHERS and (stem != "accelerate" or [w.text for w in words[place + 1 : place + 2]] == ["launch"]):
            return place
        if re.fullmatch(r"python[\d.]*", stem) and any(
            other.text in LAUNCHERS or other.text.endswith(".py") for other in words[place + 1 : place + 4]
        ):
            return place
    return None


def _launch(made: _Made, words: Sequence[ShellWord]) -> None:
    """Read a command that begins with a launcher; srun may start another one."""
    first, rest = words[0], list(words[1:])
    stem = PurePath(first.text).name
    launcher = LAUNCHERS.get(stem, "")
    if stem.startswith("python"):
        if rest and rest[0].text == "-m" and len(rest) > 1 and rest[1].text in LAUNCHERS:
            launcher, rest = LAUNCHERS[rest[1].text], rest[2:]
        else:
            rest = [word for word in rest if word.text not in ("-u", "-m")]
    rest = rest[1:] if launcher == "accelerate" else rest
    if launcher and "launcher" not in made.data:
        made.put(("launcher",), launcher, first)
    options, program = _until_program(rest)
    made.options("sbatch" if launcher == "srun" else "launch", options)
    if not program:
        return
    again = _launcher(program)
    if launcher == "srun" and again is not None:
        made.data.pop("launcher", None)
        _launch(made, program[again:])
        return
    made.put(("program",), program[0].text, program[0])
    made.options("arguments", program[1:])


def _until_program(words: Sequence[ShellWord]) -> tuple[Sequence[ShellWord], Sequence[ShellWord]]:
    """Return the options of a launcher, and what follows them."""
    place = 0
    while place < len(words):
        text = words[place].text
        if not text.startswith("-"):
            break
        key = text.lstrip("-").replace("-", "_")
        value = place + 1 < len(words) and not words[place + 1].text.startswith("-")
        alone = "=" in text or key in ALONE or not value or (len(text) > 2 and text[1] != "-" and text[1] in SHORT)
        place += 1 if alone else 2
    return words[:place], words[place:]


class _Made:
    """The data and positions that are being made of the file *name* with its *lines*."""

    def __init__(self, name: str, lines: Sequence[str]) -> None:
        self.name, self.lines = name, lines
        self.data: dict[str, Any] = {}
        self.positions: dict[Path, Position] = {(): Position(name)}

    def options(self, section: str, words: Sequence[ShellWord]) -> None:
        """Add flags and their values to *section*; a flag without a value is true, one with several a list."""
        place = 0
        while place < len(words):
            word = words[place]
            place += 1
            if not _is_flag(word.text):
                self._several(("other", section), [word])
                continue
            flag, equals, value = word.text.partition("=")
            key = _key(flag)
            values = [ShellWord(value, word.line)] if equals else []
            if not equals and len(flag) > 2 and flag[0] == "-" != flag[1] and flag[1] in SHORT and flag[2:].isdigit():
                key, values = SHORT[flag[1]], [ShellWord(flag[2:], word.line)]
            while not equals and place < len(words) and not _is_flag(words[place].text):
                values.append(words[place])
                place += 1
            texts = [one.text for one in values]
            known = self.data.get(section, {}).get(key)
            given: Any = texts[0] if len(texts) == 1 else texts or True
            if known is not None and known != given:
                # the last one holds, as in argparse
                self.positions.pop((section, key), None)
            self.put((section, key), given, word, flag)

    def _several(self, path: tuple[str, str], words: Sequence[ShellWord]) -> None:
        section = self.data.setdefault(path[0], {})
        section.setdefault(path[1], []).extend(word.text for word in words)
        self.positions.setdefault(path, self._position(words[0], words[0].text))

    def put(self, path: tuple[str, ...], value: Any, word: ShellWord, flag: str = "") -> None:
        """Put *value* at *path*; it stands at *word*."""
        if len(path) == 1:
            self.data[path[0]] = value
        else:
            self.data.setdefault(path[0], {})[path[1]] = value
        self.positions[path] = self._position(word, flag)

    def _position(self, word: ShellWord, flag: str) -> Position:
        line = self.lines[word.line - 1] if 0 < word.line <= len(self.lines) else ""
        column = max(0, line.find(flag or word.text)) + 1
        return Position(self.name, word.line, column, word.line, column, line, flag)


def _is_flag(text: str) -> bool:
    return text.startswith("-") and len(text) > 1 and not _NUMBER.match(text)


def _key(flag: str) -> str:
    plain = flag.lstrip("-")
    return SHORT.get(plain, plain) if len(flag) == 2 else plain.replace("-", "_")
