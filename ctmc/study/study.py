"""A study file: read, checked from end to end before anything is built, and turned into frozen objects."""

from __future__ import annotations

import os
import re
import stat
import tomllib
from collections.abc import Iterable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any, NoReturn

from ctmc import registry
from ctmc.advise import AUTO, is_auto
from ctmc.errors import CTMCError, PluginError, StudyError, UnstableError, printable, shown, unknown_name
from ctmc.model.recipe import code_is_allowed
from ctmc.problem import PROBLEMS
from ctmc.solver import Solver
from ctmc.study import sweep
from ctmc.study.compare_table import COMPARE_KEYS, Compare, read_compare
from ctmc.study.content import Optimize, Plot, Solve, Study, StudyModel
from ctmc.study.design import design_for
from ctmc.study.lines import Lines
from ctmc.study.measures import check_measure
from ctmc.study.optimize import METHODS, Cost
from ctmc.study.overrides import overridden
from ctmc.study.parameters import describe, fits, names_code, option_annotations
from ctmc.study.questions import QUESTION_KEYS, WrongKey, read_question

MAX_BYTES = 1_000_000
_TOP = ("title", "output", "models", "optimize", "solve", "plot", "compare")
_OPTIMIZE = ("models", "over", "minimize", "maximum", "method")
_TOGETHER = "together"
_PLOT = ("x", "y", "models", "title", "problem", "time", "panels", "labels")

Table = tuple[str | int, ...]


def read_study(path: str | os.PathLike[str], changes: tuple[str, ...] = ()) -> Study:
    """Read and check a study file.

    Parameters
    ----------
    path : path-like
    changes : tuple of str
        Such as ``"arrival_rate=1,2"``; see `ctmc.study.overrides`.

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
    return parse_study(text, source, changes)


def parse_study(text: str, source: str = "study", changes: tuple[str, ...] = ()) -> Study:
    """Check the text of a study file; see `read_study`."""
    try:
        content = tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        raise StudyError(_syntax(str(error), text, source)) from None
    except RecursionError:
        raise StudyError(f"{printable(source)}: values are nested too deeply.") from None
    if changes:
        content = overridden(content, changes)
    return replace(_Reader(text, source).study(content), changes=changes)


def _syntax(message: str, text: str, source: str) -> str:
    match = re.fullmatch(r"(.*) \(at line (\d+), column \d+\)", message)
    if match is None:
        return f"{printable(source)}: {printable(message)}; a study is a TOML file."
    number = int(match[2])
    line = (text.splitlines() or [""])[min(number, len(text.splitlines())) - 1].strip()
    where = f"{printable(source)}, line {number}"
    if match[1].startswith("Cannot declare") or line.startswith("["):
        if "twice" in match[1] or "Cannot" in match[1]:
            return f"{where}: the table {shown(line)} stands twice."
    elif match[1].startswith(("Cannot overwrite", "Duplicate", "Cannot mutate")):
        key = line.partition("=")[0].strip()
        inner = re.search(r"Duplicate inline table key '(.*)'", match[1])
        return f"{where}: the key {shown(inner[1] if inner else key)} stands twice."
    return f"{where}: {printable(match[1])}; a study is a TOML file."


class _Reader:
    """Turns the parsed file into a `Study`; every complaint names a key and its line."""

    def __init__(self, text: str, source: str) -> None:
        self.text, self.source = text, source
        self.lines = Lines(text)
        self.searched: dict[
            str, str | None
        ] = {}  # the parameter that is searched for, by model; None where it is not known

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
            self.fail(f"{key} is {shown(value)}; allowed is text in quotes.", table, key)
        return value

    def study(self, content: dict[str, Any]) -> Study:
        for key in content:
            if key not in _TOP:
                # a misspelt table is found by its header
                table = next((t for t in ((key,), (key, 0)) if self.lines.number(t)), ())
                self.unknown("key of a study", key, _TOP, table, None if table else key)
        title = self.text_of(content, "title", ()) or Path(self.source).stem
        output = self.text_of(content, "output", ())
        models = self.optimized(content.get("optimize"), self.models(content.get("models")))
        self.check_complete(models)
        compared = self.compare(content.get("compare"), models)
        steps = content.get("solve", [] if compared is not None else None)
        if not isinstance(steps, list) or not all(isinstance(step, dict) for step in steps) or not (steps or compared):
            self.fail(
                "the table [[solve]] is missing; at least one says which solvers answer which problem.", (), "solve"
            )
        solves = tuple(self.solve(step, ("solve", k), models) for k, step in enumerate(steps))
        plots = content.get("plot", [])
        if not isinstance(plots, list) or not all(isinstance(plot, dict) for plot in plots):
            self.fail("plot is no table; allowed is [[plot]] with the keys x and y.", (), "plot")
        return Study(
            title, output, models, solves, self.text, self.source,
            tuple(self.plot(plot, ("plot", k), models, solves) for k, plot in enumerate(plots)), compare=compared,
        )  # fmt: skip

    def compare(self, content: Any, models: Mapping[str, StudyModel]) -> Compare | None:
        if content is None:
            return None
        table: Table = ("compare",)
        if not isinstance(content, dict):
            self.fail(
                "compare is no table; allowed is [compare] with keys such as solvers and time_limit.", (), "compare"
            )
        self.check_keys(content, COMPARE_KEYS, "key of [compare]", table)
        names = self.names(content, table, tuple(dict.fromkeys(model.group for model in models.values())))
        try:
            solvers, how = read_compare(content)
        except WrongKey as wrong:
            self.fail(str(wrong), table, wrong.key)
        return Compare(tuple(name for name, model in models.items() if model.group in names), solvers, how)

    def models(self, content: Any) -> dict[str, StudyModel]:
        if not isinstance(content, dict) or not content:
            self.fail(
                "the table [models.NAME] is missing; at least one names a builder and its parameters.", (), "models"
            )
        found: dict[str, StudyModel] = {}
        for name, table in content.items():
            for model in self.model(name, table, sweep.MAXIMUM_POINTS - len(found)):
                if model.name in found:
                    self.fail(f"the name {shown(model.name)} also comes from a sweep.", ("models", name))
                found[model.name] = model
        return found

    def model(self, name: str, content: Any, room: int) -> list[StudyModel]:
        table: Table = ("models", name)
        if not isinstance(content, dict):
            self.fail(
                f"the model {shown(name)} is {shown(content)}; allowed is a table with the key builder or file.",
                ("models",), name,
            )  # fmt: skip
        file = self.text_of(content, "file", table)
        builder = self.text_of(content, "builder", table)
        if file is not None:
            others = [key for key in content if key != "file"]
            if others:
                self.fail(
                    f"{printable(others[0])} stands beside file; a model that is read has no other key.",
                    table,
                    others[0],
                )
            return [StudyModel(name, "", {}, name, file=file)]
        if builder is None:
            self.fail(f"the model {shown(name)} has no key builder, and no key file.", table)
        if builder not in registry.builder_names():
            self.unknown("builder", builder, registry.builder_names(), table, "builder")
        signature = registry.builder_parameters(builder)
        given = {key: value for key, value in content.items() if key not in ("builder", "sweep")}
        swept, together = self.sweep(name, builder, content.get("sweep", {}), given, room)
        for key, value in given.items():
            if key not in signature.parameters:
                self.unknown(f"parameter of {builder}", key, ["builder", *signature.parameters], table, key)
            self.check_code(key, value, table)
            annotation = signature.parameters[key].annotation
            if not fits(value, annotation):
                self.fail(f"{key} is {shown(value)}; allowed is {describe(annotation)}.", table, key)
        if not swept:
            return [StudyModel(name, builder, given, name)]
        found = []
        for point in sweep.points(swept, together):
            label = ", ".join(f"{key}={sweep.shown(value)}" for key, value in point.items())
            found.append(StudyModel(f"{name} ({label})", builder, {**given, **point}, name, point))
        return found

    def sweep(
        self, name: str, builder: str, content: Any, given: Mapping[str, Any], room: int
    ) -> tuple[dict[str, sweep.Values], tuple[tuple[str, ...], ...]]:
        """Return the values of each parameter, and which advance together; the number of models is known before one is made."""
        table: Table = ("models", name, "sweep")
        if not isinstance(content, dict):
            self.fail(
                f"sweep is {shown(content)}; allowed is a table of parameters and values.",
                ("models", name),
                "sweep",
            )
        if not self.lines.number(table):
            table = ("models", name)  # written inline
        signature = registry.builder_parameters(builder).parameters
        found: dict[str, sweep.Values] = {}
        for key, values in content.items():
            if key == _TOGETHER:
                continue
            if key not in signature:
                self.unknown(f"parameter of {builder}", key, [*signature, _TOGETHER], table, key)
            if key in given:
                self.fail(f"{key} is given and swept; allowed is one of both.", table, key)
            try:
                found[key] = sweep.read_values(values)
            except CTMCError as error:
                self.fail(f"{key} {error}", table, key)
        together: tuple[tuple[str, ...], ...] = ()
        if _TOGETHER in content:
            try:
                together = sweep.read_together(content[_TOGETHER], found)
            except CTMCError as error:
                self.fail(f"{_TOGETHER} {error}", table, _TOGETHER)
        total = sweep.total(found, together)
        if total > room:
            points = f"{total:,}" if total < 10**15 else "more than 10^15"
            self.fail(
                f"the sweep of {shown(name)} makes {points} models; allowed are {sweep.MAXIMUM_POINTS:,} in a study.",
                table, next(iter(found)),
            )  # fmt: skip
        for key, chosen in found.items():
            for value in sweep.listed(chosen):
                self.check_code(key, value, table)
                annotation = signature[key].annotation
                if not fits(value, annotation):
                    self.fail(
                        f"{key} takes {shown(value)} in the sweep; allowed is {describe(annotation)}.",
                        table,
                        key,
                    )
        return found, together

    def optimized(self, content: Any, models: dict[str, StudyModel]) -> dict[str, StudyModel]:
        """Return the models, those of ``[optimize]`` with their search; the design is tried on the first of each sweep."""
        if content is None:
            return models
        several = isinstance(content, list)
        for number, step in enumerate(content if several else [content]):
            table: Table = ("optimize", number) if several else ("optimize",)
            if not isinstance(step, dict):
                self.fail(
                    "optimize is no table; allowed is [optimize] with the keys over and minimize.", (), "optimize"
                )
            self.check_keys(step, _OPTIMIZE, "key of [optimize]", table)
            groups = tuple(dict.fromkeys(model.group for model in models.values()))
            names = self.names(step, table, groups)
            over, minimize = (self.text_of(step, key, table) for key in ("over", "minimize"))
            if over is None or minimize is None:
                self.fail(f"the table [optimize] has no key {'over' if over is None else 'minimize'}.", table)
            method = self.text_of(step, "method", table) or METHODS[0]
            if method not in METHODS:
                self.unknown("method", method, METHODS, table, "method")
            maximum = step.get("maximum")
            if maximum is not None and not (fits(maximum, int) and maximum > 0):
                self.fail(f"maximum is {shown(maximum)}; allowed is a whole number >= 1.", table, "maximum")
            try:
                Cost(minimize)
            except CTMCError as error:
                self.fail(str(error), table, "minimize")
            search = Optimize(names, over, minimize, maximum, method)
            for name, model in models.items():
                if model.group not in names:
                    continue
                if model.file is not None:
                    self.fail(f"the model {shown(model.group)} is read from a file; nothing of it is optimised.", table)
                if model.optimize is not None:
                    self.fail(f"the model {shown(model.group)} is optimised twice.", table, "models")
                models[name] = replace(model, optimize=search)
                if model.group in self.searched:
                    continue
                self.searched[model.group] = None
                try:
                    self.searched[model.group] = design_for(model.builder, model.parameters, over, maximum).parameter
                except UnstableError:
                    continue  # of this point; it is told in its row
                except CTMCError as error:
                    message = str(error)
                    self.fail(message[0].lower() + message[1:], table, "over")
        return models

    def check_complete(self, models: Mapping[str, StudyModel]) -> None:
        for model in {model.group: model for model in models.values() if model.file is None}.values():
            for key, parameter in registry.builder_parameters(model.builder).parameters.items():
                given = key in model.parameters or self.searched.get(model.group, "") in (key, None)
                if parameter.default is parameter.empty and not given:
                    self.fail(
                        f"the model {shown(model.group)} has no key {key}, which {model.builder} needs.",
                        ("models", model.group),
                    )

    def names(self, content: Mapping[str, Any], table: Table, known: tuple[str, ...]) -> tuple[str, ...]:
        """Return the names of models under the key models, all without it."""
        names = self.texts(content, "models", table)
        for name in names or ():
            if name not in known:
                self.unknown("model", name, known, table, "models", name)
        return known if names is None else tuple(dict.fromkeys(names))

    def plot(
        self, content: dict[str, Any], table: Table, models: Mapping[str, StudyModel], solves: tuple[Solve, ...]
    ) -> Plot:
        self.check_keys(content, _PLOT, "key of [[plot]]", table)
        groups = tuple(dict.fromkeys(model.group for model in models.values()))
        names = self.names(content, table, groups)
        chosen = [model for model in models.values() if model.group in names]
        swept = {key for model in chosen for key in model.point}
        axes = []
        for key in ("x", "y"):
            text = self.text_of(content, key, table)
            if text is None:
                self.fail(f"the table [[plot]] has no key {key}.", table)
            try:
                check_measure(text)
            except CTMCError as error:
                self.fail(str(error), table, key)
            axes.append(text)
        problem, panels = (self.text_of(content, key, table) for key in ("problem", "panels"))
        if problem is not None and problem not in PROBLEMS:
            self.unknown("problem", problem, PROBLEMS, table, "problem")
        if panels is not None and panels not in (*swept, "time"):
            self.unknown("swept parameter", panels, [*swept, "time"], table, "panels")
        asked = {model.name for model in chosen}
        answers = [step for step in solves if asked.intersection(step.models) and problem in (None, step.problem)]
        times = {time for step in answers for time in step.times}
        time = content.get("time")
        if time is not None and (not fits(time, float) or time not in times):
            allowed = (
                ", ".join(f"{one:g}" for one in sorted(times)[:20]) or "none, as no question of the models has times"
            )
            self.fail(f"time is {shown(time)}; allowed is one of the times asked for: {allowed}.", table, "time")
        if axes[0] == "time":
            if not times:
                self.fail("x is 'time', but no question of the plot's models has times.", table, "x")
            if time is not None or panels == "time":
                self.fail(f"x is 'time', and {'time' if time is not None else 'panels'} chooses times as well; allowed is one "
                          "of both.", table, "x")  # fmt: skip
        elif not swept:
            self.fail("none of the plot's models has a sweep, so a line would be a point.", table)
        title = self.text_of(content, "title", table) or f"{axes[1]} against {axes[0]}"
        labels = self.texts(content, "labels", table) or ()
        return Plot(axes[0], axes[1], names, title, problem, None if time is None else float(time), panels, labels)

    def check_code(self, key: str, value: Any, table: Table) -> None:
        code = names_code(value)
        if code is not None and not code_is_allowed():
            self.fail(
                f"{printable(key)} names the function {shown(code)}, whose code would run; allow it with --allow-code.",
                table, key,
            )  # fmt: skip

    def solve(self, content: dict[str, Any], table: Table, models: Mapping[str, StudyModel]) -> Solve:
        self.check_keys(content, QUESTION_KEYS, "key of [[solve]]", table)
        members: dict[str, list[str]] = {}
        for name, model in models.items():
            members.setdefault(model.group, []).append(name)
        names = self.names(content, table, tuple(members))
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
            self.fail(f"tolerance is {shown(tolerance)}; allowed is a number between 0 and 1.", table, "tolerance")
        warm = content.get("warm", False)
        if not isinstance(warm, bool):
            self.fail(f"warm is {shown(warm)}; allowed is true or false.", table, "warm")
        if warm and problem != "stationary":
            self.fail(f"warm is given for a problem of the kind {problem}; only stationary ones begin from a neighbour's answer.",
                      table, "warm")  # fmt: skip
        try:
            asked = read_question(content, problem)
        except WrongKey as wrong:
            self.fail(str(wrong), table, wrong.key)
        return Solve(
            models=tuple(name for group in names for name in members[group]),
            problem=problem,
            solvers=self.solvers(content, problem, table),
            tolerance=tolerance,
            measures=measures,
            warm=warm,
            **asked,
        )

    def texts(self, content: Mapping[str, Any], key: str, table: Table) -> tuple[str, ...] | None:
        value = content.get(key)
        if value is None:
            return None
        if not isinstance(value, list) or not value or not all(isinstance(item, str) for item in value):
            self.fail(f"{key} is {shown(value)}; allowed is a list of one or more texts.", table, key)
        return tuple(value)

    def solvers(self, content: Mapping[str, Any], problem: str, table: Table) -> tuple[Solver | str | None, ...]:
        value = content.get("solvers")
        if value is None:
            return (None,)
        if not isinstance(value, list) or not value:
            self.fail(f"solvers is {shown(value)}; allowed is a list of solvers.", table, "solvers")
        return tuple(self.solver(item, problem, table) for item in value)

    def solver(self, given: Any, problem: str, table: Table) -> Solver | str:
        if isinstance(given, dict):
            options = {key: value for key, value in given.items() if key != "name"}
            name, mark = given.get("name"), next(iter(options), "name")
        else:
            name, options, mark = given, None, str(given)
        if not isinstance(name, str):
            allowed = 'text such as "gmres(restart=30)", or a table with the key name'
            self.fail(f"solvers has the entry {shown(given)}; allowed is {allowed}.", table, "solvers")
        self.check_code("solvers", options, table)
        try:
            if not options and is_auto(name):
                return AUTO
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
                    f"the option {option} of {printable(name)} is {shown(value)}; allowed is {describe(annotation)}.",
                    table, "solvers", option,
                )  # fmt: skip
        if PROBLEMS[problem] not in solver.solves:
            kinds = [name for name, kind in PROBLEMS.items() if kind in solver.solves]
            self.fail(
                f"{registry.solver_name(solver)} does not take {problem} problems but {' and '.join(kinds)} ones.",
                table, "solvers", mark if options is None else name,
            )  # fmt: skip
        return solver
