"""The errors of the framework.

Every message is one sentence that names the field or state, its value, and what is allowed.  All errors derive from
`CTMCError` and from the built-in class that fits, so both ``except ctmc.CTMCError`` and ``except ValueError`` work.
"""

from __future__ import annotations

import contextlib
import difflib
import reprlib
from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from ctmc.solution import Solution


class CTMCError(Exception):
    """Base class of all errors that the framework raises on purpose."""


class ModelError(CTMCError, ValueError):
    """Not a generator, or a bad parameter: names the first bad state or field, its value and what is allowed."""


class MemoryLimitError(ModelError):
    """What was asked for needs more memory than the limit."""


class ReducibleError(ModelError):
    """More than one recurrent class and no initial distribution."""


class UnstableError(ModelError):
    """The mean drift of the levels is not downward, so there is no stationary distribution."""


class UnsupportedProblemError(CTMCError, TypeError):
    """This solver does not take this problem or this model."""


class UnknownNameError(CTMCError, LookupError):
    """No builder, solver, reward, measure or parameter of this name; close names are listed."""


class PluginError(CTMCError, ImportError):
    """A name defined twice, a package that shadows ours, or a plug-in that fails to load."""


class SolveError(CTMCError, RuntimeError):
    """The answer is not certified; `solution` carries what was found.

    Attributes
    ----------
    solution : Solution
        The answer with its status, defect and history.
    """

    def __init__(self, message: str, solution: Solution) -> None:
        super().__init__(message)
        self.solution = solution


class StorageError(CTMCError, OSError):
    """Foreign, damaged, truncated or newer file, a hash that does not match, or no room to write."""


class StudyError(CTMCError, ValueError):
    """A study file with a wrong key, type or value; names the key, and the line where it is known."""


def printable(text: object) -> str:
    r"""Return text with control characters and undecodable bytes escaped, fit for any terminal.

    Examples
    --------
    >>> printable("a\x1b[31mb\n")
    'a\\x1b[31mb\\x0a'
    """
    return "".join(
        character
        if character.isprintable()
        else f"\\x{ord(character):02x}"
        if ord(character) < 256
        else f"\\u{ord(character):04x}"
        for character in str(text)
    )


def quoted(text: str) -> str:
    r"""Return text that a user gave in quotes: on one line, cut where it is long, and with its backslashes as they are.

    Examples
    --------
    >>> print(quoted("x \\ 2"), quoted("a\x1b[31mb"))
    'x \ 2' 'a\x1b[31mb'
    """
    text = printable(text)
    text = text if len(text) <= _LONGEST - 2 else text[: _LONGEST - 5] + "..."
    return f'"{text}"' if "'" in text and '"' not in text else f"'{text}'"


@contextlib.contextmanager
def about(field: str) -> Iterator[None]:
    """Have errors of a value say which field has it, inside a ``with`` block.

    Examples
    --------
    >>> with about("target"):
    ...     raise unknown_name("reward", "job", ["jobs"])
    Traceback (most recent call last):
    ctmc.errors.UnknownNameError: target: There is no reward 'job'; did you mean 'jobs'?
    """
    try:
        yield
    except (ModelError, UnknownNameError, StorageError) as error:
        raise type(error)(f"{field}: {error}") from error


_LONGEST = 80
_BRIEF = reprlib.Repr()
_BRIEF.maxlist = _BRIEF.maxtuple = _BRIEF.maxarray = _BRIEF.maxdict = _BRIEF.maxset = _BRIEF.maxfrozenset = 8
_BRIEF.maxstring = _BRIEF.maxother = _LONGEST


def shown(value: object) -> str:
    r"""Return a value that a user gave as it stands in a sentence: on one line, escaped, and cut where it is long.

    Examples
    --------
    >>> shown([1.5, None]), shown("a\x1b[31mb"), len(shown("x" * 1000))
    ('[1.5, None]', "'a\\x1b[31mb'", 80)
    """
    try:
        text = _BRIEF.repr(value)
    except ValueError:  # a whole number of more digits than Python writes
        text = f"a very large {type(value).__name__}"
    text = printable(" ".join(text.split()) if "\n" in text else text)
    return text if len(text) <= _LONGEST else text[: _LONGEST - 3] + "..."


def unknown_name(kind: str, name: object, known: Iterable[str]) -> UnknownNameError:
    """Return the error for a name that does not exist, with close names, or all of them when few.

    Examples
    --------
    >>> print(unknown_name("solver", "gmress", ["gmres", "gth"]))
    There is no solver 'gmress'; did you mean 'gmres'?
    """
    known = sorted(known)
    text = (printable(name) if isinstance(name, str) else shown(name))[:_LONGEST]
    close = difflib.get_close_matches(text, known, n=3, cutoff=0.6)
    if close:
        hint = "did you mean " + " or ".join(repr(match) for match in close) + "?"
    elif known:
        hint = "known are " + ", ".join(known[:30]) + (", ..." if len(known) > 30 else "") + "."
    else:
        hint = "none is known."
    return UnknownNameError(f"There is no {kind} {shown(name)}; {hint}")
