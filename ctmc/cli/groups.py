"""Groups of commands with one for each builder that offers something."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import click


def needs_name(sentence: str) -> Callable[[], int]:
    """Return the callback of a group that complains where no name follows it."""

    def callback(context: click.Context) -> int:
        if context.invoked_subcommand is None:
            raise click.UsageError(sentence, context)
        return 0

    return click.pass_context(callback)


class SomeBuilders(click.Group):
    """A group such as ``ctmc policy``.

    Parameters
    ----------
    name : str
    names : callable
        Returns the names of the builders that fit.
    make : callable
        Returns the command of a builder, or raises a `CTMCError` for one that is unknown or does not fit.
    fitting : str
        What they have, for messages.
    """

    def __init__(
        self,
        name: str,
        names: Callable[[], list[str]],
        make: Callable[[str], click.Command],
        fitting: str,
        **extra: Any,
    ) -> None:
        missing = f"Missing the name of a builder; 'ctmc {name} --help' shows those with {fitting}."
        super().__init__(
            name, callback=needs_name(missing), invoke_without_command=True, params=[],
            subcommand_metavar="BUILDER [PARAMETERS]...", **extra,
        )  # fmt: skip
        self.names, self.make = names, make

    def list_commands(self, context: click.Context) -> list[str]:
        """Return the names of the builders that fit."""
        return self.names()

    def get_command(self, context: click.Context, name: str) -> click.Command | None:
        """Return the command of a builder; one that is unknown or does not fit is an error with those that do."""
        from ctmc.errors import CTMCError

        try:
            return self.make(name)
        except CTMCError:
            if context.resilient_parsing or name.startswith("-"):
                return None
            raise
