"""``ctmc list``: what there is by name."""

from __future__ import annotations

import importlib
import sys
from typing import Any

import click

from ctmc.cli.app import Command, output_of
from ctmc.cli.docstring import read_docstring
from ctmc.cli.options import PROBLEM_NAMES, builder_names, names_starting, solver_names
from ctmc.errors import PluginError, printable, unknown_name

KINDS = ("builders", "solvers", "problems", "formats")
_COLUMNS = {
    "builders": ("name", "parameters", "description"),
    "solvers": ("name", "problem", "needs", "options", "description"),
    "problems": ("name", "default_solver", "description"),
    "formats": ("name", "extensions", "description"),
}


def _list(names: tuple[str, ...]) -> int:
    output = output_of(click.get_current_context())
    kinds = [name for name in names if name in KINDS] or list(KINDS)
    wanted = [name for name in names if name not in KINDS]
    if wanted:
        found = [_detail(name, kinds) for name in wanted]
        if output.json:
            output.document({kind: [item for k, item in found if k == kind] for kind in {k for k, _ in found}})
            return 0
        for _, item in found:
            sys.stdout.write("\n".join(map(printable, [item["name"], "", *item["text"].splitlines()])) + "\n")
        return 0
    rows = {kind: _ROWS[kind]() for kind in kinds}
    if output.json:
        output.document(rows)
        return 0
    for kind in kinds:
        columns = _COLUMNS[kind]
        if not output.csv and len(kinds) > 1:
            output.write(kind.upper())
        if output.csv and len(kinds) > 1:
            continue
        output.table(columns, [[_joined(row[column]) for column in columns] for row in rows[kind]])
        if not output.csv and len(kinds) > 1:
            output.write()
    if output.csv and len(kinds) > 1:
        output.table(
            ("kind", "name", "description"),
            [(k[:-1], row["name"], row["description"]) for k in kinds for row in rows[k]],
        )
    return 0


def _joined(value: Any) -> Any:
    return ", ".join(f"{name}={default}" for name, default in value.items()) if isinstance(value, dict) else value


def _builders() -> list[dict[str, Any]]:
    from ctmc import registry

    rows: list[dict[str, Any]] = []
    for name in registry.builder_names():
        try:
            signature = registry.builder_parameters(name)
            text = read_docstring(registry.builder(name)).summary
            rows.append({"name": name, "parameters": ", ".join(signature.parameters), "description": text})
        except PluginError as error:
            rows.append({"name": name, "parameters": "", "description": f"cannot be used: {error}"})
    return rows


def _solvers() -> list[dict[str, Any]]:
    import dataclasses

    from ctmc import registry

    rows: list[dict[str, Any]] = []
    for name in registry.solver_names():
        try:
            kind: Any = registry.solver_class(name)
        except PluginError as error:
            rows.append(
                {"name": name, "problem": "", "needs": "", "options": {}, "description": f"cannot be used: {error}"}
            )
            continue
        needs = kind.needs if isinstance(kind.needs, tuple) else (kind.needs,)
        missing, summary = registry.missing_library(kind), read_docstring(kind).summary
        options = {
            field.name: None if field.default is dataclasses.MISSING else _option(field.default)
            for field in dataclasses.fields(kind)
        }
        rows.append(
            {
                "name": name,
                "problem": ", ".join(registry.problem_name(problem) for problem in kind.solves),
                "needs": ", ".join(need.__name__ for need in needs),
                "options": options,
                "description": f"({missing}) {summary}" if missing else summary,
            }
        )
    return rows


def _option(default: Any) -> Any:
    return default if default is None or isinstance(default, bool | int | float | str) else repr(default)


def _problems() -> list[dict[str, Any]]:
    from ctmc.problem import PROBLEMS

    over_time = "uniformization up to a rate x time of 20, chebyshev above, rational above 1e6 up to 10,000 states"
    defaults = {
        "stationary": "gth up to 3000 states, bicgstab above, level_reduction for 300 and more levels that are narrow; logarithmic_reduction for a "
        "QBD, level_dependent where its blocks depend on the level",
        "transient": over_time,
        "accumulated-reward": over_time,
        "discounted-reward": "resolvent_lu up to 1000 states, class_elimination above where that is quick, else resolvent_krylov",
        "first-passage": "absorption_elimination up to 3000 states, class_elimination above where that is quick, else absorption_krylov",
    }
    return [
        {"name": name, "default_solver": defaults.get(name, ""), "description": read_docstring(kind).summary}
        for name, kind in PROBLEMS.items()
    ]


def _formats() -> list[dict[str, Any]]:
    from ctmc.interchange.formats import FORMATS

    return [
        {"name": entry.name, "extensions": ", ".join(entry.extensions), "description": f"Holds {entry.carries}."}
        for entry in FORMATS.values()
    ]


_ROWS = {"builders": _builders, "solvers": _solvers, "problems": _problems, "formats": _formats}


def _detail(name: str, kinds: list[str]) -> tuple[str, dict[str, Any]]:
    from ctmc import registry
    from ctmc.interchange.formats import FORMATS
    from ctmc.problem import PROBLEMS

    places: dict[str, tuple[Any, Any]] = {
        "builders": (registry.builder_names(), registry.builder),
        "solvers": (registry.solver_names(), registry.solver_class),
        "problems": (PROBLEMS, PROBLEMS.__getitem__),
        "formats": (FORMATS, lambda name: importlib.import_module(FORMATS[name].module)),
    }
    for kind in kinds:
        names, find = places[kind]
        if name in names:
            return kind, {"name": name, "text": read_docstring(find(name)).text}
    known = [known for kind in kinds for known in places[kind][0]]
    raise unknown_name(
        kinds[0][:-1] if len(kinds) == 1 else "builder, solver, problem or format", name, [*known, *KINDS]
    )


command = Command(
    "list",
    csv=True,
    callback=_list,
    params=[
        click.Argument(
            ["names"],
            nargs=-1,
            metavar="[builders|solvers|problems|formats] [NAME]...",
            shell_complete=names_starting(lambda: [*KINDS, *builder_names(), *solver_names(), *PROBLEM_NAMES]),
        )
    ],
    help="List builders, solvers, problems and file formats, or tell all about one: 'ctmc list solvers', 'ctmc list gmres'.",
)
