"""Runs what a page of Markdown shows: commands, sessions with their output, programs, studies.

Blocks of one page run in order, in one folder and one Python namespace.  A block of commands has no language, ``bash`` or
``console``; lines that begin with ``$`` are commands, and those after them what they print.  A block ``python`` is a program,
``pycon`` a session, ``toml`` a study, ``text`` no code.  A comment in the line before a block says otherwise::

    <!-- not run: why -->
    <!-- run by: tests/test_file.py::test_name -->
    <!-- run with: --capacity 38 -> --capacity 8; 600MiB -> 100MiB -->
    <!-- file: sweep.toml -->
    <!-- exit code: 1 -->

and a comment that begins with ``<!-- before`` holds a program that is not shown.  In programs, and behind commands, every
number of a comment that has three decimals or more must be in the value of its line, or in what the command prints.
"""

from __future__ import annotations

import ast
import doctest
import glob
import io
import re
import shlex
import tokenize
import tomllib
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

HOME = Path(__file__).resolve().parent.parent
COMMANDS = ("", "bash", "console")
_BLOCK = re.compile(
    r"^(?:<!-- (?P<marks>[^\n]*) -->\n)?^```(?P<language>\w*)\n(?P<text>.*?)^```$|^<!-- before\n(?P<hidden>.*?)^-->$",
    re.DOTALL | re.MULTILINE,
)
_PRECISE = re.compile(r"(?<![\w.])-?\d+\.\d{3,}(?:e[-+]?\d+)?")
_NUMBER = re.compile(r"[-+]?(?:\d[\d,]*\.?\d*|\.\d+)(?:e[-+]?\d+)?")
_ALL_DIGITS = {"precision": 17, "threshold": 10**6, "floatmode": "unique", "suppress": False}


@dataclass(frozen=True)
class Block:
    """A block of code: its first line in the page, language, text and the marks before it."""

    line: int
    language: str
    text: str
    marks: dict[str, str] = field(default_factory=dict)


def blocks_of(page: str) -> list[Block]:
    """Return the blocks of a page in order; hidden programs have the language ``before``."""
    found = []
    for match in _BLOCK.finditer(page):
        line = page.count("\n", 0, match.start()) + 1
        if match["hidden"] is not None:
            found.append(Block(line, "before", match["hidden"]))
            continue
        name, _, value = (match["marks"] or "").partition(": ")
        found.append(Block(line, match["language"], match["text"], {name: value} if name else {}))
    return found


class PageError(AssertionError):
    """What a page shows is not what happens."""


def run_page(page: str, command: Callable[[list[str]], tuple[int, str]]) -> int:
    """Run the blocks of a page in the current folder, and return how many commands and statements were run."""
    names: dict[str, Any] = {"__name__": "page"}
    return sum(_run(block, names, command) for block in blocks_of(page))


def _run(block: Block, names: dict[str, Any], command: Callable[[list[str]], tuple[int, str]]) -> int:
    marks, text = block.marks, block.text
    unknown = set(marks) - {"not run", "run by", "run with", "file", "exit code"}
    if unknown:
        raise PageError(f"line {block.line}: no mark {unknown}")
    if "not run" in marks:
        return 0
    if "run by" in marks:
        file, _, test = marks["run by"].partition("::")
        if not re.search(rf"^def {re.escape(test)}\(", (HOME / file).read_text(encoding="utf-8"), re.MULTILINE):
            raise PageError(f"line {block.line}: {file} has no test {test}")
        return 0
    for change in filter(None, marks.get("run with", "").split("; ")):
        old, _, new = change.partition(" -> ")
        if old not in text:
            raise PageError(f"line {block.line}: {old!r} is not in the block")
        text = text.replace(old, new)
    if "file" in marks:
        Path(marks["file"]).parent.mkdir(parents=True, exist_ok=True)
        Path(marks["file"]).write_text(text, encoding="utf-8")
        if block.language == "python":  # later blocks import it
            return 0
    if block.language == "toml":
        tomllib.loads(text)
        return 1
    if block.language in ("python", "before"):
        return run_program(text, names, block.line)
    if block.language == "pycon":
        return _run_session(text, names, block.line)
    if block.language in COMMANDS:
        count = 0
        for line, shown in commands_of(text):
            _run_command(line, shown, int(marks.get("exit code", "0")), command, block.line)
            count += 1
        return count
    if block.language == "text" or "file" in marks:
        return 0
    raise PageError(f"line {block.line}: a block {block.language!r} cannot be run; mark it")


# ---- commands ---------------------------------------------------------------------------------------------------------------


def commands_of(text: str) -> Iterator[tuple[str, list[str]]]:
    """Yield the commands of a block, each with the lines that it prints; lines are joined where they end with a backslash."""
    lines = text.replace("\\\n", " ").splitlines()
    session = any(line.startswith("$ ") for line in lines)
    found: list[tuple[str, list[str]]] = []
    for line in lines:
        if line.startswith("$ ") or (not session and line.strip() and not line.startswith("#")):
            found.append((line.removeprefix("$ "), []))
        elif session and found:
            found[-1][1].append(line)
    yield from found


def _run_command(
    line: str, shown: list[str], code: int, command: Callable[[list[str]], tuple[int, str]], at: int
) -> None:
    words = [found for word in shlex.split(line, comments=True) for found in (sorted(glob.glob(word)) or [word])]
    if not words or words[0] != "ctmc":
        raise PageError(f"line {at}: {line!r} is no command of ctmc; mark it")
    ended, output = command(words[1:])
    if ended != code:
        raise PageError(f"line {at}: {line!r} ends with {ended} in place of {code}:\n{output}")
    comment = line.partition(" # ")[2]
    _check_numbers(comment, output, f"line {at}: {line}")
    printed = [_words(text) for text in output.splitlines()]
    for text in shown:
        if _words(text) and not any(_same(_words(text), other) for other in printed):
            raise PageError(f"line {at}: {line!r} does not print {text!r}, but\n{output}")


def _words(line: str) -> list[str]:
    """Return the words of a line of output, without rules; of times only that they are told."""
    words = line.replace("─", " ").split()
    return words[:1] if words[:1] == ["seconds"] else words


def _same(shown: list[str], printed: list[str]) -> bool:
    return len(shown) == len(printed) and all(map(_agree, shown, printed))


def _agree(shown: str, printed: str) -> bool:
    """Return whether two words are the same, or numbers that differ by rounding; tiny ones may differ more."""
    if shown == printed or shown == "..":
        return True
    try:
        one, other = (float(word.strip("()").replace(",", "")) for word in (shown, printed))
    except ValueError:
        return False
    if max(abs(one), abs(other)) < 1e-6:
        return min(abs(one), abs(other)) > 0.01 * max(abs(one), abs(other))
    return abs(one - other) <= 1e-8 * abs(one)


def _check_numbers(comment: str, value: str, where: str) -> None:
    found = [float(text.replace(",", "")) for text in _NUMBER.findall(value)]
    for text in _PRECISE.findall(comment):
        digits, _, power = text.partition("e")
        unit = 10.0 ** (int(power or 0) - len(digits.partition(".")[2]))
        if not any(abs(float(text) - number) <= 0.51 * unit for number in found):
            raise PageError(f"{where}: {text} is not in {value}")


# ---- programs ---------------------------------------------------------------------------------------------------------------


def run_program(text: str, names: dict[str, Any], at: int = 0) -> int:
    """Run the statements of a program, and compare the value of each expression with the numbers of its comment."""
    comments = {
        token.start[0]: token.string
        for token in tokenize.generate_tokens(io.StringIO(text).readline)
        if token.type == tokenize.COMMENT
    }
    statements = ast.parse(text).body
    for statement in statements:
        where = f"line {at + statement.lineno}: {ast.unparse(statement)}"
        try:
            if isinstance(statement, ast.Expr):
                value = eval(compile(ast.Expression(statement.value), "page", "eval"), names)
                with np.printoptions(**_ALL_DIGITS):
                    _check_numbers(comments.get(statement.end_lineno or 0, ""), repr(value), where)
            else:
                exec(compile(ast.Module([statement], []), "page", "exec"), names)
        except PageError:
            raise
        except Exception as error:
            raise PageError(f"{where} raises {type(error).__name__}: {error}") from error
    return len(statements)


def _run_session(text: str, names: dict[str, Any], at: int) -> int:
    flags = doctest.NORMALIZE_WHITESPACE | doctest.ELLIPSIS
    test = doctest.DocTestParser().get_doctest(text, names, f"line {at}", None, 0)
    test.globs = names  # what a session defines is there for the next block
    told: list[str] = []
    result = doctest.DocTestRunner(optionflags=flags).run(test, out=told.append, clear_globs=False)
    if result.failed:
        raise PageError(f"line {at}: {''.join(told)}")
    return result.attempted
