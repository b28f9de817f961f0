"""What the command line takes from a numpydoc docstring: the first sentence, the parameters' meaning, the examples."""

from __future__ import annotations

import inspect
import re
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

_HEADING = re.compile(r"^(\w[\w ]*)\n-{3,}\s*$", re.MULTILINE)
_EXAMPLE = re.compile(r"``(ctmc [^`]+)``|^[ ]*(?:\$ )?(ctmc (?:build|solve) .+)$", re.MULTILINE)


@dataclass(frozen=True)
class Docstring:
    """Parts of a docstring.

    Attributes
    ----------
    summary : str
        First paragraph, in one line.
    parameters : dict of str to (str, str)
        Type and meaning of each parameter.
    examples : tuple of str
        Command lines.
    text : str
        All of it, without indentation.
    """

    summary: str
    parameters: dict[str, tuple[str, str]]
    examples: tuple[str, ...]
    text: str


def read_docstring(thing: Callable[..., Any] | type) -> Docstring:
    """Return the parts of a function's or class's docstring.

    Examples
    --------
    >>> def example(rate):
    ...     '''One line.
    ...
    ...     Parameters
    ...     ----------
    ...     rate : float
    ...         Per unit
    ...         of time.
    ...     '''
    >>> read_docstring(example).parameters
    {'rate': ('float', 'Per unit of time.')}
    """
    text = inspect.cleandoc(inspect.unwrap(thing).__doc__ or "")
    parts = _HEADING.split(text)
    summary = " ".join(parts[0].split("\n\n")[0].split())
    parameters: dict[str, tuple[str, str]] = {}
    for heading, body in zip(parts[1::2], parts[2::2], strict=True):
        if heading in ("Parameters", "Attributes", "Other Parameters"):
            parameters.update(_parameters(body))
    examples = [" ".join((match[1] or match[2]).replace("\\\n", " ").split()) for match in _EXAMPLE.finditer(text)]
    return Docstring(summary, parameters, tuple(dict.fromkeys(examples)), text)


def _parameters(body: str) -> dict[str, tuple[str, str]]:
    found: dict[str, tuple[str, str]] = {}
    names: list[str] = []
    kind, lines = "", list[str]()

    def keep() -> None:
        found.update({name: (kind, " ".join(" ".join(lines).split())) for name in names})

    for line in body.splitlines():
        if line and not line.startswith(" "):
            keep()
            left, _, kind = line.partition(" : ")
            names, lines = [name.strip().strip("*`") for name in left.split(",")], []
        else:
            lines.append(line)
    keep()
    return found
