"""Flags that make themselves from a builder's signature or a solver's fields, and those that several commands share."""

from __future__ import annotations

import contextlib
import os
import sys
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import click

from ctmc.errors import ModelError, PluginError, printable
from ctmc.study.parameters import describe, from_text, is_switch

PREFIX = "option_of_plugin_"
"""Keeps the names of builders' parameters and solvers' options apart from those of our own options."""


class Value(click.ParamType):  # type: ignore[type-arg]  # generic since click 8.4 only
    """Text that becomes the value of an annotated parameter."""

    def __init__(self, name: str, annotation: Any) -> None:
        self.parameter, self.annotation = name, annotation
        self.name = describe(annotation)

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        """Return the value; text that does not fit is bad usage."""
        if not isinstance(value, str):
            return value
        try:
            return from_text(self.parameter, value, self.annotation)
        except ModelError as error:
            # the message names the parameter already, so click's "Invalid value for .." would say it twice
            raise click.UsageError(str(error), ctx) from None


def value_option(
    name: str,
    annotation: Any,
    meaning: tuple[str, str],
    *,
    default: Any,
    required: bool,
    taken: Sequence[str],
    kind: str,
) -> click.Option:
    """Return the flag for one parameter or option.

    Parameters
    ----------
    name : str
        Underscores become dashes.
    annotation : type
    meaning : (str, str)
        Type and description from the docstring.
    default : object
        Shown in the help; the value is only passed on where the flag was given.
    required : bool
    taken : sequence of str
        Flags of the command itself; on a clash the new one becomes ``--KIND-NAME``.
    kind : str
        "builder" or "solver".
    """
    flag = "--" + name.replace("_", "-")
    if flag in taken:
        flag = f"--{kind}-{name.replace('_', '-')}"
    description = (meaning[1] or meaning[0]).rstrip(".")
    shown = "" if required or default is None else f"  [default: {_shown(default)}]"  # click adds [required] itself
    settings: dict[str, Any] = {"help": f"{description}{shown}".strip(), "required": required}
    if is_switch(annotation):
        return click.Option([PREFIX + name, f"{flag}/--no-{flag[2:]}"], **settings)
    return click.Option([PREFIX + name, flag], type=Value(name, annotation), metavar=describe(annotation), **settings)


def _shown(default: Any) -> str:
    if isinstance(default, list | tuple):
        return ",".join(map(_shown, default))
    return f"{default:.10g}" if isinstance(default, float) else printable(default)


def given_values(values: dict[str, Any]) -> dict[str, Any]:
    """Return the parameters that were given on the command line, by their own names."""
    return {
        name.removeprefix(PREFIX): value
        for name, value in values.items()
        if name.startswith(PREFIX) and value is not None
    }


def names_starting(
    names: Callable[[], Sequence[str]], *, listed: bool = False, files: bool = False
) -> Callable[..., list[Any]]:
    """Return a completion function over names that are found when needed.

    Parameters
    ----------
    names : function
    listed : bool
        Several names may follow each other, separated by commas; the last one is completed.
    files : bool
        Where no name fits, files are completed.
    """

    def complete(context: click.Context, parameter: click.Parameter, incomplete: str) -> list[Any]:
        from click.shell_completion import CompletionItem

        before, comma, last = incomplete.rpartition(",") if listed else ("", "", incomplete)
        try:
            found = [CompletionItem(before + comma + name) for name in names() if name.startswith(last)]
        except PluginError:
            found = []
        return found or ([CompletionItem(incomplete, type="file")] if files else [])

    return complete


def builder_names() -> list[str]:
    """Return the builders' names, without importing one."""
    from ctmc import registry

    return registry.builder_names()


def solver_names() -> list[str]:
    """Return the solvers' names, without importing one."""
    from ctmc import registry

    return registry.solver_names()


def study_names() -> list[str]:
    """Return the names of the studies that come with the package."""
    from ctmc.study.shipped import shipped_studies

    return shipped_studies()


PROBLEM_NAMES = ("stationary", "transient", "accumulated-reward", "discounted-reward", "first-passage")
"""As in `ctmc.problem.PROBLEMS`, which is too slow to import for --help; a test compares them."""
CERTIFICATE_NAMES = ("defect", "strict")
"""As in `ctmc.solve.CERTIFICATES`; a test compares them."""


def threads_option() -> click.Option:
    """Return --threads."""
    return click.Option(["--threads"], type=int, metavar="N", help="Threads of all compiled loops and of BLAS.")


def memory_option() -> click.Option:
    """Return --memory-limit."""
    return click.Option(
        ["--memory-limit"], metavar="SIZE", help="For instance 2GiB or 800MB; default 80 % of what is free."
    )


def code_option() -> click.Option:
    """Return --allow-code."""
    return click.Option(
        ["--allow-code"],
        is_flag=True,
        help="Import functions that are named as module:function; the current folder is searched last.",
    )


@contextlib.contextmanager
def limits(threads: int | None, memory_limit: str | None, allow_code: bool = False) -> Iterator[None]:
    """Set threads, memory limit, and whether code may be imported, inside a ``with`` block."""
    from ctmc.model.memory import limited_memory
    from ctmc.model.recipe import allowed_code
    from ctmc.threads import limited_threads

    here = os.getcwd() if allow_code else None
    with limited_memory(memory_limit), limited_threads(threads), allowed_code(allow_code):
        if here is not None:
            sys.path.append(here)
        try:
            yield
        finally:
            if here is not None:
                sys.path.remove(here)


class _FilePath(click.Path):
    def convert(self, value: Any, parameter: click.Parameter | None, context: click.Context | None) -> Any:
        if not value or value.endswith("/"):
            self.fail(f"{printable(value)!r} names no file; allowed is the name of one.", parameter, context)
        return super().convert(value, parameter, context)


class _FolderPath(click.Path):
    def convert(self, value: Any, parameter: click.Parameter | None, context: click.Context | None) -> Any:
        if not value:
            self.fail("'' names no folder; allowed is the name of one.", parameter, context)
        return super().convert(value, parameter, context)


def folder_type() -> click.Path:
    """Return the type of a path to a folder, which need not be there."""
    return _FolderPath(path_type=str, file_okay=False)


def file_type() -> click.Path:
    """Return the type of a path to a file; whether it can be read is said by who reads it."""
    return _FilePath(path_type=str)
