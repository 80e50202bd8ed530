"""A Python training script as a document: the arguments of calls that configure a run, read from its syntax tree.

Nothing is executed or imported. A value counts if it is a literal, arithmetic on numbers, a name that has one such
value in the whole script, or the default of an option of argparse. Others are listed with their line.

The document has the mappings ``arguments`` (TrainingArguments and its subclasses), ``accelerator``,
``deepspeed_plugin``, ``fsdp_plugin``, ``data_loader``, ``model`` and ``config`` (a configuration of transformers with
its class).
"""

from __future__ import annotations

import ast
import operator
from collections.abc import Callable, Iterator, Mapping
from typing import Any

from clustersim.simulator.reading.document import Document, Path, Position
from clustersim.simulator.reading.errors import ScenarioError

SECTIONS = {
    "TrainingArguments": "arguments",
    "Seq2SeqTrainingArguments": "arguments",
    "SFTConfig": "arguments",
    "Accelerator": "accelerator",
    "DeepSpeedPlugin": "deepspeed_plugin",
    "FullyShardedDataParallelPlugin": "fsdp_plugin",
    "DataLoader": "data_loader",
}
"""The section by the name of the class; SFTConfig is TRL's, a subclass of TrainingArguments."""

NAMED = ("from_pretrained", "from_config")
"""Methods of Auto classes and models that make a model."""

NOT_MODELS = ("tokenizer", "processor", "featureextractor", "config", "generationconfig")
"""What else has `from_pretrained`, by the end of the class's name in lower case."""

ARITHMETIC: Mapping[type, Callable[[Any, Any], Any]] = {
    ast.Add: operator.add,
    ast.Sub: operator.sub,
    ast.Mult: operator.mul,
    ast.FloorDiv: operator.floordiv,
    ast.Div: operator.truediv,
}

LARGEST = 1e18
"""Results of arithmetic at most."""

UNKNOWN = object()
"""The value of an expression that only the running script has."""


def python_script(text: str, name: str) -> Document:
    """Return the script *text* of the file *name*. Raises `ScenarioError` for text that is no Python."""
    try:
        return _document(ast.parse(text), text, name)
    except SyntaxError as error:
        raise ScenarioError(f"{name}:{error.lineno or 1}:{error.offset or 1}: not valid Python: {error.msg}") from None
    except (RecursionError, MemoryError, ValueError):
        raise ScenarioError(f"{name}: not valid Python: it is nested too deeply") from None


def _document(tree: ast.Module, text: str, name: str) -> Document:
    made = _Scenario(name, text.splitlines(), _Values(tree))
    for call in _calls(tree):
        made.read(call)
    return Document(made.data, made.positions)


def class_of(function: ast.expr) -> str:
    """The last part of the name that is called."""
    return (
        function.attr if isinstance(function, ast.Attribute) else function.id if isinstance(function, ast.Name) else ""
    )


def _calls(tree: ast.AST) -> list[ast.Call]:
    """All calls, in the order of the text."""
    found = [node for node in ast.walk(tree) if isinstance(node, ast.Call)]
    return sorted(found, key=lambda call: (call.lineno, call.col_offset))


class _Values:
    """What expressions of a script are worth without running it."""

    def __init__(self, tree: ast.AST) -> None:
        self._given: dict[str, list[ast.expr]] = {}
        self._options: dict[str, ast.expr] = {}
        self._within: set[str] = set()
        for node in ast.walk(tree):
            for name, value in _assigned(node):
                self._given.setdefault(name, []).append(value)
            if isinstance(node, ast.Call) and class_of(node.func) == "add_argument":
                self._options |= _option(node)

    def of(self, node: ast.expr) -> Any:
        """The value of *node*, `UNKNOWN` if only the running script has it."""
        value: Any = UNKNOWN
        match node:
            case ast.Constant():
                value = node.value if isinstance(node.value, str | int | float | bool | None) else UNKNOWN
            case ast.Name():
                value = self._named(node.id)
            case ast.Attribute():
                value = self._attribute(node)
            case ast.UnaryOp(op=ast.USub()):
                positive = self.of(node.operand)
                value = -positive if _is_number(positive) else UNKNOWN
            case ast.BinOp():
                value = self._arithmetic(node)
            case ast.List() | ast.Tuple():
                values = [self.of(one) for one in node.elts]
                value = UNKNOWN if UNKNOWN in values else values
            case ast.Dict():
                value = self.mapping({_text(key): one for key, one in zip(node.keys, node.values, strict=True)})
            case ast.Call() if class_of(node.func) == "dict" and not node.args:
                value = self.mapping({one.arg: one.value for one in node.keywords})
        return value

    def mapping(self, items: Mapping[str | None, ast.expr]) -> dict[str, Any]:
        """The entries whose keys and values are known."""
        found = {key: self.of(value) for key, value in items.items() if key is not None}
        return {key: value for key, value in found.items() if value is not UNKNOWN}

    def expression(self, node: ast.expr) -> ast.expr:
        """What the name *node* was given, if it is a name that was given one thing; else *node*."""
        given = self._given.get(node.id, ()) if isinstance(node, ast.Name) else ()
        return given[0] if len(given) == 1 else node

    def _named(self, name: str) -> Any:
        given = self._given.get(name, ())
        if len(given) != 1 or name in self._within:
            return UNKNOWN
        self._within.add(name)
        try:
            return self.of(given[0])
        finally:
            self._within.discard(name)

    def _attribute(self, node: ast.Attribute) -> Any:
        """The default of an option, such as ``args.batch``, or the name of an enumeration's member."""
        if isinstance(node.value, ast.Name) and node.attr in self._options:
            return self.of(self._options[node.attr])
        return node.attr if node.attr.isupper() else UNKNOWN

    def _arithmetic(self, node: ast.BinOp) -> Any:
        left, right, compute = self.of(node.left), self.of(node.right), ARITHMETIC.get(type(node.op))
        if compute is None or not _is_number(left) or not _is_number(right):
            return UNKNOWN
        try:
            value = compute(left, right)
        except (ArithmeticError, ValueError):
            return UNKNOWN
        return value if abs(value) < LARGEST else UNKNOWN


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and abs(value) < LARGEST


def _text(node: ast.expr | None) -> str | None:
    return node.value if isinstance(node, ast.Constant) and isinstance(node.value, str) else None


def _assigned(node: ast.AST) -> Iterator[tuple[str, ast.expr]]:
    """The names that *node* gives a value; a loop or an augmented assignment gives one that is not known."""
    match node:
        case ast.Assign(targets=targets, value=value):
            yield from ((one.id, value) for one in targets if isinstance(one, ast.Name))
        case ast.AnnAssign(target=ast.Name(id=name), value=ast.expr() as value):
            yield name, value
        case ast.AugAssign(target=ast.Name(id=name) as target) | ast.For(target=ast.Name(id=name) as target):
            yield name, target


def _option(call: ast.Call) -> dict[str, ast.expr]:
    """The default of ``add_argument("--name", default=...)``, by its name in the namespace."""
    long = [text for one in call.args if (text := _text(one)) and text.startswith("--")]
    default = next((one.value for one in call.keywords if one.arg == "default"), None)
    return {long[0][2:].replace("-", "_"): default} if long and default is not None else {}


class _Scenario:
    """The data and positions that are being made of the file *name* with its *lines*."""

    def __init__(self, name: str, lines: list[str], values: _Values) -> None:
        self.name, self.lines, self.values = name, lines, values
        self.data: dict[str, Any] = {}
        self.positions: dict[Path, Position] = {(): Position(name)}

    def read(self, call: ast.Call) -> None:
        """Put what *call* configures."""
        kind = class_of(call.func)
        if kind in SECTIONS:
            self._keywords(SECTIONS[kind], call)
        elif kind.endswith("Config") and any(one.arg in ("hidden_size", "n_embd", "d_model") for one in call.keywords):
            self._keywords("config", call)
            self._put(("config", "class"), kind, call)
        elif kind in NAMED and isinstance(call.func, ast.Attribute) and call.args:
            if class_of(call.func.value).lower().endswith(NOT_MODELS):
                return
            named = self.values.of(call.args[0])
            if isinstance(named, str):
                self._put(("model", "name"), named, call.args[0])

    def _keywords(self, section: str, call: ast.Call) -> None:
        """Put the keywords of *call*, those of ``**name`` included; the last call of a kind holds."""
        for one in call.keywords:
            whole = self.values.expression(one.value)
            if one.arg is None and isinstance(whole, ast.Dict):
                for key, value in zip(whole.keys, whole.values, strict=True):
                    if (name := _text(key)) is not None:
                        self._give(section, name, value)
            elif one.arg is not None:
                self._give(section, one.arg, one.value)

    def _give(self, section: str, key: str, node: ast.expr) -> None:
        value = self.values.of(node)
        if value is UNKNOWN:
            self._put(("unknown", f"{section}.{key}"), ast.unparse(node)[:60], node)
            return
        self._put((section, key), value, node)
        self._within((section, key), self.values.expression(node))

    def _within(self, path: Path, node: ast.expr) -> None:
        """Give the values inside a mapping their own lines."""
        items: list[tuple[str | None, ast.expr]] = []
        if isinstance(node, ast.Dict):
            items = [(_text(key), value) for key, value in zip(node.keys, node.values, strict=True)]
        elif isinstance(node, ast.Call):
            items = [(one.arg, one.value) for one in node.keywords]
        for key, value in items:
            if key is not None:
                self.positions[*path, key] = self._position(value, key)
                self._within((*path, key), value)

    def _put(self, path: tuple[str, str], value: Any, node: ast.expr) -> None:
        self.data.setdefault(path[0], {})[path[1]] = value
        self.positions[path] = self._position(node, path[1])

    def _position(self, node: ast.expr, key: str) -> Position:
        line, column = node.lineno, node.col_offset + 1
        source = self.lines[line - 1] if 0 < line <= len(self.lines) else ""
        return Position(self.name, line, column, line, column, source, key)
