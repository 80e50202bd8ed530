"""Words of a shell script: enough of the shell's grammar for pasted command lines, launch scripts and sbatch files.

Understood are quotes, continued lines, comments, variables (``$A``, ``${A}``, ``${A:-default}``), arrays
(``A=(x y)``, ``${A[@]}``) and arithmetic of whole numbers (``$((A * B))``). Commands are not run: ``$(...)`` stays.

Branches of a shell script: conditions whose variables are known are evaluated, of others all branches are read.
"""

from __future__ import annotations

import ast
import operator
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import NamedTuple

from clustersim.simulator.reading.dataclass import dataclass
from clustersim.simulator.reading.errors import ScenarioError

CONTROL = ("if", "elif", "then", "else", "fi", "[", "[[")
"""Words with which a command begins that belongs to a branch."""

COMPARED_WORDS: Mapping[str, Callable[[str, str], bool]] = {"=": operator.eq, "==": operator.eq, "!=": operator.ne}
COMPARED_NUMBERS: Mapping[str, Callable[[int, int], bool]] = {
    "-eq": operator.eq,
    "-ne": operator.ne,
    "-gt": operator.gt,
    "-ge": operator.ge,
    "-lt": operator.lt,
    "-le": operator.le,
}
EMPTY: Mapping[str, bool] = {"-z": True, "-n": False}


def truth(words: Sequence[str]) -> bool | None:
    """Return the truth of a condition such as ``[ 8 -gt 1 ]``; None if it is not known.

    >>> truth(["[", "a", "=", "b", "]"]), truth(["[[", "8", "-gt", "1", "]]"]), truth(["[", "$A", "=", "b", "]"])
    (False, True, None)
    """
    if (
        words[:1] not in (["["], ["[["])
        or words[-1] not in ("]", "]]")
        or any("$" in one or "`" in one for one in words)
    ):
        return None
    match words[1:-1]:
        case ["!", *inner] if inner:
            found = truth(["[", *inner, "]"])
            return None if found is None else not found
        case [left, sign, right] if sign in COMPARED_WORDS and not {"*", "?"} & set(right):
            return COMPARED_WORDS[sign](left, right)
        case [left, sign, right] if sign in COMPARED_NUMBERS and left.isdecimal() and right.isdecimal():
            return COMPARED_NUMBERS[sign](int(left[:18]), int(right[:18]))
        case [sign, text] if sign in EMPTY:
            return (not text) == EMPTY[sign]
    return None


class Branches:
    """The branches around a command: of each, whether its condition holds, and whether it or one before it ran."""

    def __init__(self) -> None:
        self._open: list[tuple[bool | None, bool | None]] = []
        self._condition = False

    @property
    def skipped(self) -> bool:
        """True if a command here does not run."""
        return any(holds is False for holds, _ in self._open)

    def read(self, words: Sequence[str]) -> bool:
        """Take the *words* of a command into account; return whether it is a condition, or the end of a branch."""
        first, rest = words[0], words[1:]
        if first in ("if", "elif"):
            self._begin(first, truth(rest))
            return rest[:1] in (["["], ["[["])
        if self._condition and first in ("[", "[["):
            # a condition of several parts
            self._open[-1] = (None, None)
            return True
        self._condition = False
        if first == "else" and self._open:
            _, before = self._open[-1]
            self._open[-1] = (None if before is None else not before, True)
        elif first == "fi" and self._open:
            self._open.pop()
        return first == "fi"

    def _begin(self, first: str, holds: bool | None) -> None:
        """Begin a branch, if *holds*; a branch before it with the same end may have run."""
        before = self._open.pop()[1] if first == "elif" and self._open else False
        self._condition = True
        if before:
            holds = False
        elif before is None and holds:
            holds = None
        ran = True if before or holds else None if None in (before, holds) else False
        self._open.append((holds, ran))


LONGEST = 2**20
"""Characters that all words of a script may have together: variables in variables grow without end."""

TRANSPARENT = ("export", "local", "declare", "readonly", "then", "else", "do", "{", "exec", "time")
"""Words before an assignment or a command."""

_SEPARATORS = re.compile(r"&&|\|\||[;|&\n]")
_VARIABLE = re.compile(r"\$(?:\{(\w+)(\[[@*]\])?(?::?-([^{}]*))?\}|(\w+))")
_ARITHMETIC = re.compile(r"\$\(\(([^()]*(?:\([^()]*\)[^()]*)*)\)\)")
_BRACES = re.compile(r"\$\{[^{}\n]*\}")
_ASSIGNMENT = re.compile(r"([A-Za-z_]\w*)\+?=(.*)", re.DOTALL)
_OPERATORS: Mapping[type[ast.operator], Callable[[int, int], int]] = {
    ast.Add: operator.add,
    ast.Sub: operator.sub,
    ast.Mult: operator.mul,
    ast.FloorDiv: operator.floordiv,
    ast.Div: operator.floordiv,
    ast.Mod: operator.mod,
}
_LARGEST = 2**63


class ShellWord(NamedTuple):
    """A word of a command, and its *line* from 1."""

    text: str
    line: int


@dataclass(frozen=True)
class _Token:
    """A word before its variables are replaced: *parts*, (text, quote); the quote is empty without one."""

    parts: tuple[tuple[str, str], ...]
    line: int

    @property
    def plain(self) -> str:
        """The text without quotes."""
        return "".join(text for text, _ in self.parts)


def commands(text: str, name: str) -> tuple[list[list[ShellWord]], dict[str, list[ShellWord]]]:
    """Return the commands of *text*, a list of words each, and its variables, a list of words each.

    Raises `ScenarioError`, with the *name* of the file and the line, for a quote that is not closed.
    """
    variables: dict[str, list[ShellWord]] = {}
    found: list[list[ShellWord]] = []
    left = [LONGEST]
    branches = Branches()
    for tokens in _lines(text, name):
        if tokens[0].plain in CONTROL:
            control = [word.text for token in tokens for word in _expanded(token, variables, left, name)]
            if branches.read(control):
                continue
        if branches.skipped:
            continue
        rest = _assigned(tokens, variables, left, name)
        words = [word for token in rest for word in _expanded(token, variables, left, name)]
        if words:
            found.append(words)
    return found, variables


def _assigned(tokens: list[_Token], variables: dict[str, list[ShellWord]], left: list[int], name: str) -> list[_Token]:
    """Take assignments at the begin of a command into *variables*; return the other tokens."""
    place = 0
    while place < len(tokens):
        if tokens[place].plain in TRANSPARENT:
            place += 1
            continue
        match = _ASSIGNMENT.match(tokens[place].plain)
        name_part, quote = tokens[place].parts[0]
        # a quote in the name makes it a word
        if match is None or quote or "=" not in name_part:
            break
        variable, value = match.groups()
        appended = tokens[place].plain.startswith(f"{variable}+=")
        if value.startswith("(") and not tokens[place].parts[0][1]:
            last = len(tokens) - 1
            end = next((i for i in range(place, last) if _closed(tokens[i]).endswith(")")), last)
            inside = _inside(tokens[place : end + 1], variable)
            words = [word for token in inside for word in _expanded(token, variables, left, name)]
            place = end
        else:
            words = [
                ShellWord(
                    " ".join(w.text for w in _expanded(_value(tokens[place]), variables, left, name, split=False)),
                    tokens[place].line,
                )
            ]
        variables[variable] = [*variables.get(variable, ()), *words] if appended else words
        place += 1
    return tokens[place:] if place < len(tokens) and place else ([] if place else tokens)


def _value(token: _Token) -> _Token:
    """Return the part of an assignment after its ``=``."""
    (first, quote), *rest = token.parts
    return _Token(((first[first.index("=") + 1 :], quote), *rest), token.line)


def _inside(tokens: list[_Token], variable: str) -> Iterator[_Token]:
    """Yield the tokens of an array without its parentheses."""
    for number, token in enumerate(tokens):
        parts = list(token.parts)
        if number == 0:
            text, quote = parts[0]
            parts[0] = (text[text.index("(") + 1 :], quote)
        if number == len(tokens) - 1 and parts[-1][0].endswith(")"):
            parts[-1] = (parts[-1][0][:-1], parts[-1][1])
        if "".join(text for text, _ in parts) or any(quote for _, quote in parts):
            yield _Token(tuple(parts), token.line)


def _expanded(
    token: _Token, variables: Mapping[str, list[ShellWord]], left: list[int], name: str, *, split: bool = True
) -> Iterator[ShellWord]:
    """Yield the words that *token* stands for; without *split*, unquoted variables stay one word."""
    made = ""
    quoted = False
    for text, quote in token.parts:
        quoted = quoted or bool(quote)
        array = _VARIABLE.fullmatch(text) if quote != "'" else None
        alone = array and len(token.parts) == 1 and split and (array[1] or array[4]) in variables
        if array and alone and (array[2] or not quote):
            for word in variables[array[1] or array[4]]:
                _count(word.text, left, name, token.line)
                yield from [word] if quote else (ShellWord(one, word.line) for one in word.text.split())
            return
        made += text if quote == "'" else _replaced(text, variables)
        _count(made, left, name, token.line)
    if quoted or not split:
        yield ShellWord(made, token.line)
        return
    yield from (ShellWord(word, token.line) for word in made.split())


def _count(text: str, left: list[int], name: str, line: int) -> None:
    left[0] -= len(text)
    if left[0] < 0:
        raise ScenarioError(f"{name}:{line}: variables expand to more than {LONGEST} characters")


def _replaced(text: str, variables: Mapping[str, list[ShellWord]]) -> str:
    """Return *text* with variables and arithmetic replaced; what has no value stays."""

    def variable(match: re.Match[str]) -> str:
        words = variables.get(match[1] or match[4])
        if words is None:
            return match[3] if match[3] is not None else match[0]
        return " ".join(word.text for word in words)

    def arithmetic(match: re.Match[str]) -> str:
        inner = re.sub(r"(?<![\w$])([A-Za-z_]\w*)", r"${\1}", match[1])
        value = _value_of(_VARIABLE.sub(variable, inner))
        return match[0] if value is None else str(value)

    return _VARIABLE.sub(variable, _ARITHMETIC.sub(arithmetic, text))


def _value_of(expression: str) -> int | None:
    """Return the value of an *expression* of whole numbers; None if it is none."""
    try:
        return _computed(ast.parse(expression.strip(), mode="eval").body)
    except (SyntaxError, ValueError, ZeroDivisionError, RecursionError, MemoryError):
        return None


def _computed(node: ast.expr) -> int:
    match node:
        case ast.Constant(value=int() as value):
            result = int(value)
        case ast.UnaryOp(op=ast.USub(), operand=operand):
            result = -_computed(operand)
        case ast.BinOp(left=left, op=sign, right=right) if type(sign) in _OPERATORS:
            result = _OPERATORS[type(sign)](_computed(left), _computed(right))
        case _:
            raise ValueError
    if abs(result) > _LARGEST:
        raise ValueError
    return result


def _lines(text: str, name: str) -> Iterator[list[_Token]]:
    """Yield the tokens of each command of *text*."""
    tokens: list[_Token] = []
    depth = 0
    for token in _tokens(text, name):
        if token is None:
            if depth == 0:
                if tokens:
                    yield tokens
                tokens = []
            continue
        unquoted = _closed(token)
        depth = max(0, depth + unquoted.count("(") - unquoted.count(")"))
        tokens.append(token)
    if tokens:
        yield tokens


def _closed(token: _Token) -> str:
    """Return the unquoted text of *token* without arithmetic and commands, whose parentheses are closed."""
    unquoted = "".join(part for part, quote in token.parts if not quote)
    return re.sub(r"\$\([^()]*\)", "", _ARITHMETIC.sub("", unquoted))


def _tokens(text: str, name: str) -> Iterator[_Token | None]:
    """Yield each token of *text*, and None at the end of each command."""
    place, line, begun, end = 0, 1, 1, len(text)
    parts: list[tuple[str, str]] = []
    plain = ""
    while place < end:
        character = text[place]
        begun = begun if plain or parts else line
        if character == "$" and (match := _ARITHMETIC.match(text, place) or _BRACES.match(text, place)):
            # quotes around a default, "${A:-"1"}", do not end the word
            plain, place = plain + match[0].replace('"', "").replace("'", ""), match.end()
        elif text.startswith("\\\n", place):
            place, line = place + 2, line + 1
        elif character == "\\" and place + 1 < end:
            plain, place = plain + text[place + 1], place + 2
        elif character in "'\"":
            closing = _closing(text, place)
            if closing < 0:
                raise ScenarioError(f"{name}:{line}: the quote {character} is not closed")
            parts += [(plain, "")] if plain else []
            inside = text[place + 1 : closing]
            parts.append((inside if character == "'" else _unescaped(inside), character))
            plain, line, place = "", line + text.count("\n", place, closing), closing + 1
        elif character in " \t\r\n;|&" or (character == "#" and not plain and not parts):
            if plain or parts:
                yield _Token((*parts, *([(plain, "")] if plain else [])), begun)
            parts, plain = [], ""
            if character == "#":
                newline = text.find("\n", place)
                place = end if newline < 0 else newline
                continue
            if match := _SEPARATORS.match(text, place):
                yield None
                place = match.end() - 1
            line += character == "\n"
            place += 1
        else:
            plain, place = plain + character, place + 1
    if plain or parts:
        yield _Token((*parts, *([(plain, "")] if plain else [])), begun)
    yield None


def _closing(text: str, place: int) -> int:
    """Return the place of the quote that closes the one at *place*; -1 if there is none."""
    quote = text[place]
    at = text.find(quote, place + 1)
    while quote == '"' and at > 0 and text[at - 1] == "\\":
        at = text.find(quote, at + 1)
    return at


def _unescaped(text: str) -> str:
    return re.sub(r"\\([\"\\$`\n])", lambda match: "" if match[1] == "\n" else match[1], text)
