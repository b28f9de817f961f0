"""Finds the numbers in the prose and the tables of a page, and ties each to where it comes from.

A *tie* of ``docs/site/numbers.toml`` has a ``page``, and ``words``: short passages as they stand there, with their numbers (only those
in braces where there are any: ``"0.06 s | {93} |"``); or a ``section`` (the beginning of its heading), for all numbers in it that no
words tie; or neither, for the rest of the page.  It says where they come from::

    run = "ctmc list solvers"          a command, which is run now: it prints the numbers exactly
    file = "benchmarks/results/x.txt"  what a command has printed, data, or code: the numbers stand in it, rounded perhaps
    section_of = "How fast are gener"  the same for a section of benchmarks/README.md, for pages that repeat its figures
    record = "python benchmarks/x.py"  a command that takes long, with the `date` when it printed the numbers, and their `digest`
    test = "tests/test_x.py::test_y"   a test that compares them
    given = "why"                      no claim: an example, a convention, a number of a publication

With `run`, `file` and `section_of` all numbers of a passage, or of a row of a table, stand in one line, which has `line` in it if that
is told (``[tie.words]`` has a line for each passage); ``scattered = true`` lets each have a line of its own, and ``rounded = true``
allows a rounded one after `run`, too.

No tie needs what claims nothing: code, links, names (HDF5, M/M/1), dates, numbers of lists, powers, and 0, 1 and 2 where no unit
follows.  A `given` without words covers no number with a unit.  Of Python files only docstrings are read, and in them numbers of
seconds, millions and percent.

    python tests/page_numbers.py       tells what has no tie or disagrees, and the digests
"""

from __future__ import annotations

import ast
import contextlib
import datetime
import hashlib
import io
import os
import re
import shlex
import subprocess
import sys
import tempfile
import tomllib
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from decimal import Decimal
from functools import cache
from pathlib import Path
from typing import Any

HOME = Path(__file__).resolve().parent.parent
LEDGER = "docs/site/numbers.toml"
MEASUREMENTS = "benchmarks/README.md"
SOURCES = ("run", "file", "section_of", "record", "test", "given")
FIELDS = {"page", "words", "section", "line", "scattered", "rounded", "date", "digest", *SOURCES}
PACKAGES = ("ctmc", "builders", "solvers", "benchmarks")

_DIGITS = r"(?:\d{1,3}(?:,\d{3})+(?!\d)|\d+)(?:\.\d+)?|(?<!\d)\.\d+"
_NUMBER = re.compile(rf"(?<![\w.])(?:(?<![^\s(|])[-\u2212])?(?:{_DIGITS})(?:e[-+]?\d{{1,3}})?")
_UNIT = re.compile(
    r"\s*%|[-\s]?(?:ns|ms|s|seconds?|minutes?|min|hours?|nanoseconds?|milliseconds?|bytes?|B|[KMGT]i?B|[MG]B/s|M/s|U|million|"
    r"times|states|transitions|entries|products|iterations|steps|models|runs|solvers|builders|tests|points)\b"
)
_TIMED = re.compile(r"\s?(?:ns|ms|s|seconds|minutes|hours|nanoseconds|milliseconds|million|%)(?![\w^])")
_ABOUT = re.compile(r"\b(?:some|about)\s+\Z")
_SILENT = re.compile(
    r"^```[^\n]*\n.*?^```$|<!--.*?-->|`[^`\n]+(?:\n[^`\n]+)?`|(?<=\])\([^)\n]*\)|https?://\S+"  # code, comments, links
    r"|\d{4}-\d\d-\d\d|^ *\d+\. "  # dates, numbers of lists
    r"|(?<![\w.])[A-Za-z_][A-Za-z_/+]*-?\d[\w./]*|\b\d+x\d+\b"  # names
    r"|\d+(?:\.\d+)?\^(?:\([^)]*\)|\w+)",  # powers
    re.DOTALL | re.MULTILINE,
)
_FENCED = re.compile(r"^```.*?^```$", re.DOTALL | re.MULTILINE)
_EXAMPLE = re.compile(r"``[^`]*``|^ *(?:>>>|\.\.\.).*(?:\n(?! *(?:>>>|\n)).*\S.*)*", re.MULTILINE)


@dataclass(frozen=True)
class Number:
    """A number of a page, by its place in the text."""

    text: str
    begin: int
    end: int
    unit: bool
    millions: bool = False
    about: bool = False


@dataclass(frozen=True)
class Page:
    """The text of a page as it stands, and its numbers that need a tie."""

    name: str
    text: str
    numbers: tuple[Number, ...]

    def where(self, place: int) -> str:
        """Return the file and line of a place in the text."""
        return f"{self.name}:{self.text.count(chr(10), 0, place) + 1}"

    def row(self, number: Number) -> tuple[int, bool]:
        """Return where the line of a number begins, and whether it is a row of a table."""
        begin = self.text.rfind("\n", 0, number.begin) + 1
        return begin, self.text[begin:].lstrip().startswith("|")


def read_page(name: str, text: str) -> Page:
    """Return a page with its numbers.

    >>> [number.text for number in read_page("page.md", "1. HDF5 takes `3` of 2^31, 1 or 2 s, -1e-6 and 4,096.5.").numbers]
    ['2', '-1e-6', '4,096.5']
    """
    python = name.endswith(".py")
    seen = _blank(_SILENT, _blank(_EXAMPLE, _docstrings(text)) if python else text)
    found = []
    for match in _NUMBER.finditer(seen):
        unit = (_TIMED if python else _UNIT).match(seen, match.end())
        if unit or (not python and match[0] not in ("0", "1", "2")):
            about = _ABOUT.search(seen, max(0, match.start() - 12), match.start())
            million = bool(unit and "million" in unit[0])
            found.append(Number(match[0], match.start(), match.end(), bool(unit), million, bool(about)))
    return Page(name, text, tuple(found))


def _blank(pattern: re.Pattern[str], text: str) -> str:
    return pattern.sub(lambda match: re.sub(r"[^\n]", "\0", match[0]), text)


def _docstrings(text: str) -> str:
    """Return a program without all but its docstrings; what stands where stays."""
    lines = text.splitlines(keepends=True)
    kept = set()
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant) and isinstance(node.value.value, str):
            kept.update(range(node.lineno, (node.end_lineno or node.lineno) + 1))
    return "".join(line if k in kept else re.sub(r"[^\n]", " ", line) for k, line in enumerate(lines, 1))


def pages() -> dict[str, Page]:
    """Return all pages, and the modules of the packages."""
    paths = [HOME / "README.md", HOME / "CONTRIBUTING.md", HOME / MEASUREMENTS, *sorted((HOME / "docs").rglob("*.md"))]
    paths += [path for package in PACKAGES for path in sorted((HOME / package).rglob("*.py"))]
    names = [str(path.relative_to(HOME)) for path in paths]
    return {name: read_page(name, path.read_text(encoding="utf-8")) for name, path in zip(names, paths, strict=True)}


# ---- where numbers come from --------------------------------------------------------------------------------------------------


@cache
def output_of(command: str) -> str:
    """Return what a command prints, run in an empty folder."""
    words = shlex.split(command)
    with tempfile.TemporaryDirectory() as folder:
        if words[0] == "ctmc":
            from ctmc.cli import main

            printed = io.StringIO()
            with contextlib.chdir(folder), contextlib.redirect_stdout(printed), contextlib.redirect_stderr(printed):
                code = main(words[1:])
            if code:
                raise ValueError(f"{command!r} ends with {code}")
            return printed.getvalue()
        words = [sys.executable, *(str(HOME / word) if (HOME / word).exists() else word for word in words[1:])]
        done = subprocess.run(words, cwd=folder, env={**os.environ, "COLUMNS": "160"}, capture_output=True, text=True)
        if done.returncode:
            raise ValueError(f"{command!r} ends with {done.returncode}: {done.stderr[-500:]}")
        return done.stdout


def section(text: str, heading: str) -> tuple[int, int]:
    """Return where the section begins whose heading begins so, and where the next one of its rank or a higher one does."""
    seen = _blank(_FENCED, text)
    match = re.search(rf"^(#+) {re.escape(heading)}.*$", seen, re.MULTILINE)
    if match is None:
        raise ValueError(f"no section {heading!r}")
    following = re.compile(rf"^#{{1,{len(match[1])}}} ", re.MULTILINE).search(seen, match.end())
    return match.start(), following.start() if following else len(text)


def _value(text: str) -> tuple[Decimal, Decimal]:
    """Return a number and half a unit of its last digit."""
    number = Decimal(text.replace(",", "").replace("_", "").replace("\u2212", "-"))
    return number, Decimal((0, (5,), int(number.as_tuple().exponent) - 1))


def stands_in(shown: str, line: str, exactly: bool, millions: bool = False, about: bool = False) -> bool:
    """Return whether a number stands in a line of output, or one that is rounded to it; millions may be written out there.

    What is said to be *about* so much, or *some*, is right to five percent.

    >>> stands_in("1.3", "4 states, 1.28 s", False), stands_in("1.3", "1.28 s", True), stands_in("4,096", "4_096", True)
    (True, False, True)
    """
    number, half = _value(shown)
    printed = [_value(text)[0] for text in _PRINTED.findall(line)]
    printed += [other / 10**6 for other in printed if millions]
    allowed = abs(number) / 20 if about else 0 if exactly else half
    return any(abs(other - number) <= allowed for other in printed)


_PRINTED = re.compile(
    r"(?<![\d.])(?:(?<![^\s(|\[,])[-\u2212])?(?:\d{1,3}(?:[,_]\d{3})+(?!\d)|\d+)(?:\.\d+)?(?:e[-+]?\d{1,3})?|(?<!\d)\.\d+"
)


# ---- ties -------------------------------------------------------------------------------------------------------------------


Tie = dict[str, Any]


def read_ledger(text: str) -> list[Tie]:
    """Return the ties; raise ValueError for one that is not well-formed."""
    ties: list[Tie] = []
    for tie in tomllib.loads(text)["tie"]:
        about = f"tie {tie}"
        if set(tie) - FIELDS or "page" not in tie or sum(name in tie for name in SOURCES) != 1:
            raise ValueError(f"{about}: it has a page, and one of {', '.join(SOURCES)}")
        if "words" in tie and "section" in tie:
            raise ValueError(f"{about}: it has words or a section")
        if "record" in tie:
            datetime.date.fromisoformat(tie.get("date", ""))
        if isinstance(tie.get("words"), dict):
            ties += [{**tie, "words": [words], "line": line} for words, line in tie["words"].items()]
        else:
            ties.append(tie)
    return ties


def covered(page: Page, tie: Tie, free: set[Number]) -> Iterator[list[Number]]:
    """Yield the numbers that a tie covers, those together that must stand in one line; raise ValueError if it covers none."""
    if "words" in tie:
        for words in tie["words"]:
            told = r"\s+".join(map(re.escape, words.split()))
            pattern = re.compile(told.replace(r"\{", "(").replace(r"\}", ")"))
            found = [
                [match.span(k) for k in range(1 if pattern.groups else 0, pattern.groups + 1)]
                for match in pattern.finditer(page.text)
            ]
            groups = [
                [one for one in page.numbers if any(low <= one.begin and one.end <= high for low, high in spans)]
                for spans in found
            ]
            if not any(groups):
                told = "has no number that needs a tie" if found else "is not there any more"
                raise ValueError(f"{page.name}: {words!r} {told}: write in {LEDGER} what stands there, or take it out")
            yield from filter(None, groups)
        return
    low, high = section(page.text, tie["section"]) if "section" in tie else (0, len(page.text))
    rest = [
        one for one in page.numbers if one in free and low <= one.begin < high and not ("given" in tie and one.unit)
    ]
    if not rest:
        raise ValueError(f"{page.name}: the tie {tie} covers no number; take it out")
    rows: dict[int, list[Number]] = {}
    for one in rest:
        begin, table = page.row(one)
        rows.setdefault(begin if table else -one.begin, []).append(one)
    yield from rows.values()


def digest(groups: Sequence[Sequence[Number]]) -> str:
    """Return what changes when any of the numbers does."""
    return hashlib.sha256(" ".join(one.text for group in groups for one in group).encode()).hexdigest()[:8]


def faults(page: Page, tie: Tie, groups: list[list[Number]], measurements: Callable[[], str]) -> Iterator[str]:
    """Yield what is wrong with the numbers that a tie covers."""
    if "record" in tie:
        yield from _script(tie["record"])
        if tie.get("digest") != digest(groups):
            first = page.where(groups[0][0].begin)
            yield (
                f"{first}: numbers of {tie.get('section') or tie.get('words') or 'the page'} are not those that {tie['record']!r} "
                f'printed on {tie["date"]}: run it again, and write the date and digest = "{digest(groups)}" into {LEDGER}'
            )
    elif "test" in tie:
        file, _, test = tie["test"].partition("::")
        if not re.search(
            rf"^def {re.escape(test)}\(|^{re.escape(test)} =", (HOME / file).read_text("utf-8"), re.MULTILINE
        ):
            yield f"{LEDGER}: {file} has no {test}"
    elif "given" not in tie:
        if "run" in tie:
            source, text = f"{tie['run']!r} prints", output_of(tie["run"])
        elif "file" in tie:
            source, text = f"{tie['file']} has", (HOME / tie["file"]).read_text(encoding="utf-8")
        else:
            text = measurements()
            low, high = section(text, tie["section_of"])
            source, text = f"section {tie['section_of']!r} of {MEASUREMENTS} has", text[low:high]
        lines = [line for line in text.splitlines() if tie.get("line", "") in line]
        for group in groups:
            sought = [[one] for one in group] if tie.get("scattered") else [group]
            for several in sought:
                if not any(
                    all(
                        stands_in(one.text, line, "run" in tie and "rounded" not in tie, one.millions, one.about)
                        for one in several
                    )
                    for line in lines
                ):
                    shown = ", ".join(one.text for one in several)
                    yield f"{page.where(several[0].begin)}: {source} no line{_with(tie)} with {shown}: correct it, or its tie in {LEDGER}"


def _with(tie: Tie) -> str:
    return f" {tie['line']!r}" if "line" in tie else ""


def _script(command: str) -> Iterator[str]:
    """Yield what is wrong with a command that is not run: no such script or command, or an option that it does not know."""
    words = shlex.split(command)
    options = [word.partition("=")[0] for word in words if word.startswith("--")]
    try:
        script = next((HOME / word for word in words if word.endswith((".py", ".md")) or word.startswith(".ci/")), None)
        text = script.read_text(encoding="utf-8") if script else output_of(f"ctmc {words[1]} --help")
    except (OSError, ValueError):
        text, options = "", [command]
    for option in options:
        if option not in text:
            yield f"{LEDGER}: {command!r} cannot be run: there is no {option}"


def check(found: dict[str, Page], ties: list[Tie]) -> list[str]:
    """Return all that is wrong: numbers without a tie, ties without numbers, and numbers that are not what is printed."""
    wrong = []
    free = {name: set(page.numbers) for name, page in found.items()}
    # passages first, then sections, then what is left of a page
    for tie in sorted(ties, key=lambda one: ("words" not in one, "section" not in one)):
        try:
            page = found[tie["page"]]
            groups = list(covered(page, tie, free[page.name]))
            free[page.name].difference_update(one for group in groups for one in group)
            wrong += faults(page, tie, groups, lambda: found[MEASUREMENTS].text)
        except (ValueError, KeyError, OSError) as error:
            wrong.append(str(error) if isinstance(error, ValueError) else f"{LEDGER}: tie of {tie['page']}: {error!r}")
    for name, page in found.items():
        for one in sorted(free[name], key=lambda number: number.begin):
            around = " ".join(page.text[max(one.begin - 40, 0) : one.end + 30].split())
            wrong.append(
                f"{page.where(one.begin)}: {one.text} has no tie to what prints it, see the head of tests/page_numbers.py: .. {around} .."
            )
    return wrong


if __name__ == "__main__":
    told = check(pages(), read_ledger((HOME / LEDGER).read_text(encoding="utf-8")))
    print("\n".join(told) or "Every number has its tie.")
    sys.exit(bool(told))
