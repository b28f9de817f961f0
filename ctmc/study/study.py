"""A study file: read, checked from end to end before anything is built, and turned into frozen objects."""

from __future__ import annotations

import math
import os
import re
import stat
import tomllib
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any, NoReturn

from ctmc import registry
from ctmc.errors import CTMCError, PluginError, StudyError, printable, unknown_name
from ctmc.model.recipe import code_is_allowed
from ctmc.problem import PROBLEMS
from ctmc.solver import Solver
from ctmc.study.lines import Lines
from ctmc.study.measures import check_measure
from ctmc.study.parameters import describe, fits, names_code, option_annotations

MAX_BYTES = 1_000_000
_TOP = ("title", "output", "models", "solve")
_SOLVE = ("models", "problem", "solvers", "tolerance", "measures", "initial", "times")

Table = tuple[str | int, ...]


@dataclass(frozen=True)
class StudyModel:
    """A model of a study.

    Attributes
    ----------
    name, builder : str
    parameters : mapping
        Of the builder.
    """

    name: str
    builder: str
    parameters: Mapping[str, Any]


@dataclass(frozen=True)
class Solve:
    """One ``[[solve]]``: a question that is asked of several models and answered by several solvers.

    Attributes
    ----------
    models : tuple of str
    problem : str
    solvers : tuple of Solver or None
        None stands for the problem's default solver.
    tolerance : float or None
        None stands for the problem's default.
    measures : tuple of str or None
        None stands for all measures of the model.
    initial : tuple of numbers, or None
    times : tuple of float
        Empty except for transient problems.
    """

    models: tuple[str, ...]
    problem: str
    solvers: tuple[Solver | None, ...]
    tolerance: float | None = None
    measures: tuple[str, ...] | None = None
    initial: tuple[float, ...] | None = None
    times: tuple[float, ...] = ()


@dataclass(frozen=True)
class Study:
    """What a study file asks for.

    Attributes
    ----------
    title : str
    output : str or None
        Name of the result file, as it stands in the study.
    models : mapping of str to StudyModel
    solves : tuple of Solve
    text : str
        The file's text.
    source : str
        Where it came from.
    """

    title: str
    output: str | None
    models: Mapping[str, StudyModel]
    solves: tuple[Solve, ...]
    text: str
    source: str


def read_study(path: str | os.PathLike[str]) -> Study:
    """Read and check a study file.

    Raises
    ------
    StudyError
        If it cannot be read, is not TOML, or asks for something that does not exist; names the key and, where it is known,
        the line.
    """
    source = str(path)
    if "\0" in source:
        raise StudyError(f"Cannot read {printable(source)}: a path has no NUL characters.")
    try:
        # O_NONBLOCK: opening a FIFO must not wait for a writer
        descriptor = os.open(path, os.O_RDONLY | getattr(os, "O_NONBLOCK", 0) | getattr(os, "O_CLOEXEC", 0))
        with os.fdopen(descriptor, "rb") as file:
            if not stat.S_ISREG(os.fstat(descriptor).st_mode):
                raise StudyError(f"Cannot read {printable(source)}: it is not a regular file.")
            content = file.read(MAX_BYTES + 1)
    except OSError as error:
        reason = printable(error.strerror or error)
        raise StudyError(f"Cannot read {printable(source)}: {reason}.") from None
    if len(content) > MAX_BYTES:
        raise StudyError(f"{printable(source)} has more than {MAX_BYTES:,} bytes; a study is a short text.")
    try:
        text = content.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        line = content[: error.start].count(b"\n") + 1
        raise StudyError(f"{printable(source)}, line {line}: the file is not UTF-8 text.") from None
    return parse_study(text, source)


def parse_study(text: str, source: str = "study") -> Study:
    """Check the text of a study file; see `read_study`."""
    try:
        content = tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        raise StudyError(_syntax(str(error), text, source)) from None
    except RecursionError:
        raise StudyError(f"{printable(source)}: values are nested too deeply.") from None
    return _Reader(text, source).study(content)


def _syntax(message: str, text: str, source: str) -> str:
    match = re.fullmatch(r"(.*) \(at line (\d+), column \d+\)", message)
    if match is None:
        return f"{printable(source)}: {printable(message)}; a study is a TOML file."
    number = int(match[2])
    line = (text.splitlines() or [""])[min(number, len(text.splitlines())) - 1].strip()
    where = f"{printable(source)}, line {number}"
    if match[1].startswith("Cannot declare") or line.startswith("["):
        if "twice" in match[1] or "Cannot" in match[1]:
            return f"{where}: the table {printable(line)!r} stands twice."
    elif match[1].startswith(("Cannot overwrite", "Duplicate", "Cannot mutate")):
        key = line.partition("=")[0].strip()
        inner = re.search(r"Duplicate inline table key '(.*)'", match[1])
        return f"{where}: the key {printable(inner[1] if inner else key)!r} stands twice."
    return f"{where}: {printable(match[1])}; a study is a TOML file."


class _Reader:
    """Turns the parsed file into a `Study`; every complaint names a key and its line."""

    def __init__(self, text: str, source: str) -> None:
        self.text, self.source = text, source
        self.lines = Lines(text)

    def fail(self, message: str, table: Table = (), key: str | None = None, within: str | None = None) -> NoReturn:
        number = self.lines.number(table, key, within)
        where = printable(self.source) + (f", line {number}" if number else "")
        raise StudyError(f"{where}: {message}")

    def unknown(
        self, kind: str, name: object, known: Iterable[str], table: Table, key: str | None, within: str | None = None
    ) -> NoReturn:
        message = str(unknown_name(kind, name, known))
        self.fail(message[0].lower() + message[1:], table, key, within)

    def check_keys(self, content: Mapping[str, Any], allowed: Iterable[str], kind: str, table: Table) -> None:
        for key in content:
            if key not in allowed:
                self.unknown(kind, key, allowed, table, key)

    def text_of(self, content: Mapping[str, Any], key: str, table: Table) -> str | None:
        value = content.get(key)
        if value is not None and not isinstance(value, str):
            self.fail(f"{key} is {printable(repr(value))}; allowed is text in quotes.", table, key)
        return value

    def study(self, content: dict[str, Any]) -> Study:
        for key in content:
            if key not in _TOP:
                # a misspelt table is found by its header
                table = next((t for t in ((key,), (key, 0)) if self.lines.number(t)), ())
                self.unknown("key of a study", key, _TOP, table, None if table else key)
        title = self.text_of(content, "title", ()) or Path(self.source).stem
        output = self.text_of(content, "output", ())
        models = self.models(content.get("models"))
        steps = content.get("solve")
        if not isinstance(steps, list) or not steps or not all(isinstance(step, dict) for step in steps):
            self.fail(
                "the table [[solve]] is missing; at least one says which solvers answer which problem.", (), "solve"
            )
        solves = tuple(self.solve(step, ("solve", k), models) for k, step in enumerate(steps))
        return Study(title, output, models, solves, self.text, self.source)

    def models(self, content: Any) -> dict[str, StudyModel]:
        if not isinstance(content, dict) or not content:
            self.fail(
                "the table [models.NAME] is missing; at least one names a builder and its parameters.", (), "models"
            )
        return {name: self.model(name, table) for name, table in content.items()}

    def model(self, name: str, content: Any) -> StudyModel:
        table: Table = ("models", name)
        if not isinstance(content, dict):
            self.fail(
                f"the model {printable(name)!r} is {printable(repr(content))}; allowed is a table with the key builder.",
                ("models",), name,
            )  # fmt: skip
        builder = self.text_of(content, "builder", table)
        if builder is None:
            self.fail(f"the model {printable(name)!r} has no key builder.", table)
        if builder not in registry.builder_names():
            self.unknown("builder", builder, registry.builder_names(), table, "builder")
        signature = registry.builder_parameters(builder)
        given = {key: value for key, value in content.items() if key != "builder"}
        for key, value in given.items():
            if key not in signature.parameters:
                self.unknown(f"parameter of {builder}", key, ["builder", *signature.parameters], table, key)
            self.check_code(key, value, table)
            annotation = signature.parameters[key].annotation
            if not fits(value, annotation):
                self.fail(f"{key} is {printable(repr(value))}; allowed is {describe(annotation)}.", table, key)
        for key, parameter in signature.parameters.items():
            if parameter.default is parameter.empty and key not in given:
                self.fail(f"the model {printable(name)!r} has no key {key}, which {builder} needs.", table)
        return StudyModel(name, builder, given)

    def check_code(self, key: str, value: Any, table: Table) -> None:
        code = names_code(value)
        if code is not None and not code_is_allowed():
            self.fail(
                f"{printable(key)} names the function {printable(code)!r}, whose code would run; allow it with --allow-code.",
                table, key,
            )  # fmt: skip

    def solve(self, content: dict[str, Any], table: Table, models: Mapping[str, StudyModel]) -> Solve:
        self.check_keys(content, _SOLVE, "key of [[solve]]", table)
        names = self.texts(content, "models", table)
        for name in names or ():
            if name not in models:
                self.unknown("model", name, models, table, "models", name)
        problem = self.text_of(content, "problem", table) or "stationary"
        if problem not in PROBLEMS:
            self.unknown("problem", problem, PROBLEMS, table, "problem")
        measures = self.texts(content, "measures", table)
        for measure in measures or ():
            try:
                check_measure(measure)
            except CTMCError as error:
                self.fail(str(error), table, "measures", measure)
        tolerance = content.get("tolerance")
        if tolerance is not None and not (fits(tolerance, float) and 0 < tolerance < 1):
            self.fail(
                f"tolerance is {printable(repr(tolerance))}; allowed is a number between 0 and 1.", table, "tolerance"
            )
        initial = self.numbers(content, "initial", table)
        times = self.numbers(content, "times", table)
        if problem == "transient" and not times:
            self.fail("a transient problem has no key times.", table)
        if problem != "transient" and times is not None:
            self.fail(f"times is given for a {problem} problem; only a transient one has times.", table, "times")
        ascending = all(left < right for left, right in pairwise(times or ()))
        if times and not (ascending and times[0] >= 0 and all(map(math.isfinite, times))):
            self.fail(f"times is {list(times)!r}; allowed are finite times >= 0, ascending.", table, "times")
        return Solve(
            models=tuple(dict.fromkeys(names)) if names is not None else tuple(models),
            problem=problem,
            solvers=self.solvers(content, problem, table),
            tolerance=tolerance,
            measures=measures,
            initial=initial,
            times=times or (),
        )

    def texts(self, content: Mapping[str, Any], key: str, table: Table) -> tuple[str, ...] | None:
        value = content.get(key)
        if value is None:
            return None
        if not isinstance(value, list) or not value or not all(isinstance(item, str) for item in value):
            self.fail(f"{key} is {printable(repr(value))}; allowed is a list of one or more texts.", table, key)
        return tuple(value)

    def numbers(self, content: Mapping[str, Any], key: str, table: Table) -> tuple[float, ...] | None:
        value = content.get(key)
        if value is None:
            return None
        if not isinstance(value, list) or not value or not fits(value, list[float]):
            self.fail(f"{key} is {printable(repr(value))}; allowed is a list of one or more numbers.", table, key)
        return tuple(value)

    def solvers(self, content: Mapping[str, Any], problem: str, table: Table) -> tuple[Solver | None, ...]:
        value = content.get("solvers")
        if value is None:
            return (None,)
        if not isinstance(value, list) or not value:
            self.fail(f"solvers is {printable(repr(value))}; allowed is a list of solvers.", table, "solvers")
        return tuple(self.solver(item, problem, table) for item in value)

    def solver(self, given: Any, problem: str, table: Table) -> Solver:
        if isinstance(given, dict):
            options = {key: value for key, value in given.items() if key != "name"}
            name, mark = given.get("name"), next(iter(options), "name")
        else:
            name, options, mark = given, None, str(given)
        if not isinstance(name, str):
            allowed = 'text such as "gmres(restart=30)", or a table with the key name'
            self.fail(f"solvers has the entry {printable(repr(given))}; allowed is {allowed}.", table, "solvers")
        self.check_code("solvers", options, table)
        try:
            solver = registry.make_solver(name) if options is None else registry.solver_with(name, options)
        except PluginError:
            raise
        except (CTMCError, TypeError, ValueError) as error:
            message = printable(error)
            self.fail(message[0].lower() + message[1:], table, "solvers", mark if options is None else name)
        for option, annotation in option_annotations(type(solver)).items():
            value = getattr(solver, option)
            if not fits(value, annotation):
                self.fail(
                    f"the option {option} of {printable(name)} is {printable(repr(value))}; allowed is {describe(annotation)}.",
                    table, "solvers", option,
                )  # fmt: skip
        if PROBLEMS[problem] not in solver.solves:
            kinds = [registry.snake_case(kind.__name__) for kind in solver.solves]
            self.fail(
                f"{registry.solver_name(solver)} does not take {problem} problems but {' and '.join(kinds)} ones.",
                table, "solvers", mark if options is None else name,
            )  # fmt: skip
        return solver
