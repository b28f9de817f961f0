"""The reference: public names of `ctmc`, builders, commands, studies and measured figures, from what the code says itself."""

from __future__ import annotations

import enum
import inspect
import re
from pathlib import Path
from typing import Any

import click
import docstrings

import ctmc
from ctmc import registry
from ctmc.cli.app import cli

HOME = Path(__file__).resolve().parents[2]
_WIDTH = 100

GROUPS = {
    "questions": (
        "Questions and answers",
        ("Stationary", "Transient", "AccumulatedReward", "DiscountedReward", "FirstPassage", "solve", "advise", "Advice"),
        ("Solution", "PassageSolution", "Status", "Outcome", "Trace", "Checkpoint", "prove_interval", "Interval"),
        ("reach_probability", "expected_time_before", "quasi_stationary", "bias", "Bias", "sensitivity", "Sensitivity", "spectral_gap"),
        ("simulate", "Estimate"),
    ),
    "models": (
        "Models",
        ("build", "Generator", "QBD", "MatrixGeometric", "LevelDependentQBD", "LevelDistribution", "Reward", "builder"),
        ("structure", "condensation", "to_networkx", "from_networkx", "limited_memory", "limited_threads", "allowed_code"),
    ),
    "files": ("Files", ("save", "load", "open", "read", "write", "verify", "forecast")),
    "errors": (
        "Errors",
        ("CTMCError", "ModelError", "ReducibleError", "UnstableError", "UnsupportedProblemError", "UnknownNameError"),
        ("PluginError", "SolveError", "StorageError", "StudyError"),
    ),
}  # fmt: skip
"""Page -> title and names, in order; together they are all public names."""

INTRODUCTIONS = {
    "questions": "What can be asked of a model, `ctmc.solve`, which answers, and what an answer holds.",
    "models": "How models are made in Python, what they hold, and what is found out about them. Ready ones are listed under [Builders](builders.md).",
    "files": "Models are kept in files of this project ([file format](../storage.md)) and exchanged in [files of other programs](../formats.md).",
    "errors": "What is raised on purpose. Each is one sentence that names the field, its value and what is allowed.",
}


def grouped() -> dict[str, str]:
    """Return the page of every public name."""
    return {name: page for page, (_, *parts) in GROUPS.items() for names in parts for name in names}


def python_page(page: str) -> str:
    """Return a page of public names."""
    title, *parts = GROUPS[page]
    pages = grouped()

    def link(name: str) -> str | None:
        found = name.removeprefix("ctmc.").partition("(")[0]
        return f"{pages[found]}.md#ctmc.{found}" if found in pages else None

    out = [f"# {title}", INTRODUCTIONS[page]]
    for names in parts:
        for name in names:
            thing = getattr(ctmc, name)
            out.append(f"## ctmc.{name} {{ #ctmc.{name} }}")
            out.append(_signature(f"ctmc.{name}", thing))
            out.append(docstrings.markdown(thing, 4, link))
            if inspect.isclass(thing) and not issubclass(thing, BaseException):
                out += _members(thing, name, link)
    return "\n\n".join(filter(None, out)) + "\n"


def _members(kind: type, name: str, link: Any) -> list[str]:
    out = []
    for member, value in inspect.getmembers_static(kind):
        function = value.fget if isinstance(value, property) else getattr(value, "__func__", value)
        function = getattr(function, "func", function)  # a cached property
        if member.startswith("_") or not inspect.isfunction(function) or not function.__doc__:
            continue
        out.append(f"### {name}.{member}")
        if inspect.isfunction(value) or isinstance(value, classmethod | staticmethod):
            out.append(_signature(member, getattr(kind, member)))
        out.append(docstrings.markdown(function, 5, link))
    return out


def _signature(name: str, thing: Any) -> str:
    if inspect.isclass(thing) and issubclass(thing, BaseException | enum.Enum):
        return ""
    try:
        found = inspect.signature(thing)
    except (TypeError, ValueError):
        return ""
    empty = inspect.Parameter.empty
    parameters = [
        parameter.replace(annotation=empty)
        for key, parameter in found.parameters.items()
        if key != "self" and not key.startswith("_")
    ]
    shown = f"{name}{found.replace(parameters=parameters, return_annotation=empty)}"
    shown = re.sub(r"<(\w+\.\w+): .*?>", r"\1", shown)  # a member of an enumeration
    shown = re.sub(r"<factory>|<[^<>]* object at 0x\w+>", "..", shown)
    return f"```text\n{_wrapped(shown)}\n```"


def _wrapped(signature: str) -> str:
    """Return a signature in lines that are broken behind commas and not long."""
    lines = [""]
    for part in re.split(r"(?<=, )", signature):
        if lines[-1].strip() and len(lines[-1] + part.rstrip()) > _WIDTH:
            lines[-1:] = [lines[-1].rstrip(), "    "]
        lines[-1] += part
    return "\n".join(lines)


def builders_page() -> str:
    """Return the page of all builders."""
    out = [
        "# Builders",
        "The models that come with the package. A name is that of the command, `ctmc build NAME`, and of `ctmc.build(NAME, ..)`. What they are good for, "
        "with sizes and what is known about them, says the table of the README; [own models](../how-to/own-model.md) need no builder.",
    ]
    for name in registry.builder_names():
        out += [f"## {name}", docstrings.markdown(registry.builder(name), 3)]
    return "\n\n".join(out) + "\n"


def commands_page() -> str:
    """Return the help of every command."""
    out = [
        "# Commands",
        "What `ctmc COMMAND --help` prints, for each command; the parameters of models stand under [Builders](builders.md). "
        "Exit codes: 0 fine, 1 an answer that is not certified, 2 bad input, 70 an error inside the program.",
    ]
    with click.Context(cli, info_name="ctmc", terminal_width=100, max_content_width=100) as context:
        out.append(f"```text\n{cli.get_help(context)}\n```")
        for name in cli.list_commands(context):
            command = cli.get_command(context, name)
            assert command is not None
            out += _help(command, f"ctmc {name}", context)
    return "\n\n".join(out) + "\n"


def _help(command: click.Command, name: str, parent: click.Context) -> list[str]:
    with click.Context(command, info_name=name.split()[-1], parent=parent) as context:
        out = [f"## {name}", f"```text\n{command.get_help(context)}\n```"]
        if name == "ctmc store":  # those of builders stand with the builders
            assert isinstance(command, click.Group)
            for inner in command.list_commands(context):
                found = command.get_command(context, inner)
                assert found is not None
                out += _help(found, f"{name} {inner}", context)
    return out


def studies_page() -> str:
    """Return the studies that come with the package."""
    out = [
        "# Studies",
        "Studies that come with the package run by name, `ctmc run NAME`; a copy of one is the beginning of yours.",
    ]
    for path in sorted((HOME / "data" / "studies").glob("*.toml")):
        out += [f"## {path.stem}", f"```toml\n{path.read_text(encoding='utf-8').rstrip()}\n```"]
    return "\n\n".join(out) + "\n"


def relocated(path: str) -> str:
    """Return a page of the repository that stands outside of docs, its links changed to where pages are here."""
    text = (HOME / path).read_text(encoding="utf-8")
    places = {"../README.md#which-solver-when": "solvers/index.md#which-solver-when", "../README.md": "index.md"}
    for old, new in places.items():
        text = text.replace(f"]({old})", f"]({new})")
    return re.sub(r"\]\(docs/", "](", text)
