"""The application: exit statuses, commands, and arguments that several commands take.

The file of a command is imported when it is called. The signature of a command lists its options; a parameter that is
a dataclass stands for those that its fields are.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import fields, is_dataclass
from functools import cache, wraps
from inspect import Parameter, Signature, signature
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, TypeVar, cast

import typer
from typer.main import get_command
from typer.models import CommandInfo

from clustersim.simulator.reading.dataclass import dataclass
from clustersim.simulator.reading.errors import ScenarioError
from clustersim.simulator.reading.lookup import module

if TYPE_CHECKING:
    from clustersim.scenarios.estimates import PresetMachine
    from clustersim.scenarios.scenario import Scenario

BAD_INPUT, DEADLOCK, INTERRUPTED = 2, 4, 130


class InterruptedRunError(Exception):
    """The user has interrupted a command; the message says what of it is missing."""


app = typer.Typer(
    name="clustersim",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
    context_settings={"help_option_names": ["-h", "--help"]},
)

F = TypeVar("F", bound=Callable[..., Any])


def command(name: str | None = None) -> Callable[[F], F]:
    """Return the decorator that makes a function the command *name*, or that of its own name."""

    def made(function: F) -> F:
        app.command(name)(_with_options_in_groups(function))
        return function

    return made


def _with_options_in_groups(function: F) -> F:
    """Return *function* with the fields of each parameter that is a dataclass in place of it."""
    groups: dict[str, type[Any]] = {}
    flat: list[Parameter] = []
    for one, parameter in signature(function, eval_str=True).parameters.items():
        kind = parameter.annotation
        if isinstance(kind, type) and is_dataclass(kind):
            groups[one] = kind
            flat += signature(kind, eval_str=True).parameters.values()
        else:
            flat.append(parameter)

    @wraps(function)
    def call(**values: Any) -> Any:
        for one, group in groups.items():
            values[one] = group(**{field.name: values.pop(field.name) for field in fields(group)})
        return function(**values)

    # by keyword, so that an option without a default may follow one with a default
    keywords = [parameter.replace(kind=Parameter.KEYWORD_ONLY) for parameter in flat]
    call.__signature__ = Signature(keywords)  # type: ignore[attr-defined]
    call.__annotations__ = {parameter.name: parameter.annotation for parameter in keywords}
    return cast(F, call)


MODULES = {
    "accuracy": "accuracy",
    "calibrate": "calibrate",
    "campaign": "campaign",
    "check": "check",
    "compare": "compare",
    "explain": "explain",
    "init": "init",
    "list": "listing",
    "memory": "memory",
    "mfu": "mfu",
    "plan": "plan",
    "plot": "plot",
    "run": "run",
    "schema": "schema",
    "serve": "serve",
    "sensitivity": "sensitivity",
    "show": "show",
    "sweep": "sweep",
    "validate": "validate",
    "export": "export",
    "import": "importing",
    "report": "report",
}
"""The module of each command, below this package, in the order of the help."""


def register(name: str = "") -> None:
    """Import the command *name*, which registers it with the application; all commands if there is none of that name.

    Typer reads the signatures of all registered commands, which takes longer than many a command.
    """
    for one in [name] if name in MODULES else MODULES:
        module(f"{__package__}.{MODULES[one]}")
    order = list(MODULES)
    app.registered_commands.sort(key=lambda command: order.index(command.name or command.callback.__name__))  # type: ignore[union-attr]


def read() -> Callable[..., Any]:
    """Return the application with the signatures of its registered commands, which are read once."""
    return _read(app, tuple(app.registered_commands))


@cache
def _read(made: typer.Typer, commands: tuple[CommandInfo, ...]) -> Callable[..., Any]:
    return get_command(made)


def complete_scenarios(incomplete: str) -> list[str]:
    """Return the names of shipped scenarios, and the YAML files and folders, that begin with *incomplete*."""
    from clustersim.scenarios.specification.loading import FOLDERS, shipped

    names = [name for folder in ("", *FOLDERS) for name in shipped(folder) if name.startswith(incomplete)]
    typed = Path(incomplete)
    folder, begin = (typed, "") if incomplete.endswith("/") else (typed.parent, typed.name)
    if not folder.is_dir():
        return names
    there = sorted(path for path in folder.iterdir() if path.name.startswith(begin))
    return [
        *names,
        *(str(path) for path in there if path.suffix in (".yaml", ".yml")),
        *(f"{path}/" for path in there if path.is_dir() and not path.name.startswith(".")),
    ]


Scenarios = Annotated[
    list[str],
    typer.Argument(
        metavar="SCENARIO", help="Paths of scenario files, or names of shipped ones.", autocompletion=complete_scenarios
    ),
]
OneScenario = Annotated[
    str,
    typer.Argument(
        metavar="SCENARIO",
        help="Path of a scenario file, or the name of a shipped one.",
        autocompletion=complete_scenarios,
    ),
]
Settings = Annotated[
    list[str] | None,
    typer.Option("--set", metavar="KEY.PATH=VALUE", help="Set a value of the scenario; may be given several times."),
]
AsJson = Annotated[bool, typer.Option("--json", help="Print the result as JSON, and nothing else.")]
NumbersAsJson = Annotated[bool, typer.Option("--json", help="Print the numbers as JSON, and nothing else.")]
ModelName = Annotated[str, typer.Argument(metavar="MODEL", help="A model, or the path of a config.json.")]
SampleTokens = Annotated[int | None, typer.Option("--seq", min=1, help="Tokens of a sample.")]
Precision = Annotated[str | None, typer.Option(help="bf16, fp16 or fp32; by the GPU if not given.")]
Jobs = Annotated[int, typer.Option("-j", "--jobs", min=1, help="Processes of this machine that share the runs.")]
On = Annotated[
    str, typer.Option("--on", metavar="ADDRESS", help="Dask cluster that executes the runs, e.g. tcp://host:8786.")
]


@dataclass(frozen=True)
class OnMachine:
    """The options that say on which machine a model is, without a scenario."""

    cluster: Annotated[str | None, typer.Option(help="The cluster; dgx_h100 if not given.")] = None
    nodes: Annotated[int | None, typer.Option(min=1, help="Nodes of the cluster.")] = None
    gpus: Annotated[int | None, typer.Option(min=1, help="GPUs, in place of --nodes.")] = None

    def machine(self) -> PresetMachine:
        """Return the machine. Raises `ScenarioError`."""
        from clustersim.scenarios.estimates import machine

        return machine(self.cluster, self.nodes, self.gpus)


def load(scenario: str, settings: list[str] | None) -> Scenario:
    """Return the scenario at a path, or the shipped one of that name, with *settings*, texts ``key.path=value``."""
    from clustersim.scenarios.scenario import Scenario

    return Scenario.load(scenario, options=settings)


@contextmanager
def named_as_options(options: Mapping[str, tuple[str, object]]) -> Iterator[list[str]]:
    """Yield the settings ``key.path=value`` of the *options* that are given: (option, value) by key.

    An error about one of them names the option in place of the setting.
    """

    given = {f"{key}={value}": f"{name} {value}" for key, (name, value) in options.items() if value is not None}
    try:
        yield list(given)
    except ScenarioError as error:
        text = str(error)
        for setting, option in given.items():
            text = text.replace(f"--set {setting}", option)
        raise ScenarioError(text) from None


MOST_RANKS = 1_000_000
"""Ranks of a simulation at most: the GPUs that a cluster may have."""


def numbers(text: str) -> list[int]:
    """Return the ranks of a text such as ``0,8:16``: single ranks, and ranges without their end, each rank once."""

    chosen: dict[int, None] = {}
    for part in text.split(","):
        first, colon, last = part.partition(":")
        if not _is_number(first) or (colon and not _is_number(last)):
            raise ScenarioError(f'--ranks {text[:60]}: "{part[:40]}" is not a rank or a range; write e.g. 0,8:16')
        end = _number(last) if colon else _number(first) + 1
        if end > MOST_RANKS:
            raise ScenarioError(f"--ranks {text[:60]}: a cluster has at most {MOST_RANKS:,} ranks; write e.g. 0,8:16")
        chosen |= dict.fromkeys(range(_number(first), end))
    if not chosen:
        raise ScenarioError(f"--ranks {text}: names no rank; write e.g. 0,8:16")
    return list(chosen)


def _is_number(text: str) -> bool:
    return text.strip().isascii() and text.strip().isdigit()


def _number(text: str) -> int:
    digits = text.strip().lstrip("0")
    # Python reads a number of thousands of digits only on request
    return int(digits or "0") if len(digits) < 20 else 10**20
