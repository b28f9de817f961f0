"""Which solvers are compared: names, options, and ranges of options."""

from __future__ import annotations

import itertools
import re
from collections.abc import Iterator, Sequence
from fractions import Fraction

from ctmc import registry
from ctmc.advise import AUTO, is_auto
from ctmc.errors import ModelError, printable, shown
from ctmc.problem import PROBLEMS
from ctmc.storage.question import solver_text

ALL = "all"
MAXIMUM = 1000
"""Most solvers, with their options, of a comparison."""
_FIVE = 5

_NUMBER = r"(\d+(?:\.\d*)?(?:[eE][+-]?\d{1,2})?)"
_RANGE = re.compile(rf"\s*{_NUMBER}\.\.{_NUMBER}(?::{_NUMBER})?\s*")


def solvers_of(given: str | Sequence[str], problem: str = "stationary") -> list[str]:
    """Return the solvers that a text asks for, each as ``NAME(option=value)``, in order and once.

    Parameters
    ----------
    given : str, or sequence of str
        Names separated by commas, with options in brackets; ``all``: every solver that takes such problems, those that lack a
        library included; ``auto``: the one that `ctmc.advise` recommends for each model.  An option may be a range: ``gmres(restart=20..100)`` doubles from 20 and ends at 100 (40 is the default),
        ``gauss_seidel(relaxation=0.8..1.2)`` takes five values, ``20..100:20`` has a step; ``20|50`` are single values.
    problem : str
        Which kind of problem ``all`` means.

    Raises
    ------
    ModelError, UnknownNameError
        A range that is none, or a solver or option that does not exist.

    Examples
    --------
    >>> solvers_of("gth, gmres(restart=20..100)")
    ['gth', 'gmres(restart=20)', 'gmres', 'gmres(restart=80)', 'gmres(restart=100)']
    >>> solvers_of("gauss_seidel(relaxation=0.8|1.2)")
    ['gauss_seidel(relaxation=0.8)', 'gauss_seidel(relaxation=1.2)']
    """
    texts = _split(given, ",") if isinstance(given, str) else [part for text in given for part in _split(text, ",")]
    found: dict[str, None] = {}
    for text in texts:
        if text == ALL:
            found |= dict.fromkeys(_every(problem))
            continue
        if is_auto(text):
            found[AUTO] = None
            continue
        for chosen in _expanded(text):
            solver = registry.make_solver(chosen)
            if registry.problem_class(problem) not in solver.solves:
                kinds = " and ".join(name for name, kind in PROBLEMS.items() if kind in solver.solves)
                raise ModelError(f"{registry.solver_name(solver)} does not take {problem} problems but {kinds} ones.")
            found[solver_text(solver)] = None
        if len(found) > MAXIMUM:
            raise ModelError(f"solvers asks for more than {MAXIMUM} methods with options; allowed are {MAXIMUM}.")
    if not found:
        raise ModelError(f"solvers is {shown(given)}; allowed is 'all', or names separated by commas.")
    return list(found)


def _every(problem: str) -> Iterator[str]:
    for name in registry.solver_names():
        if registry.problem_class(problem) in registry.solver_class(name).solves:
            yield name


def _expanded(text: str) -> Iterator[str]:
    """Yield a solver for each combination of the values of its options."""
    match = re.fullmatch(r"\s*([\w-]+)\s*\((.*)\)\s*", text, flags=re.DOTALL)
    if match is None:
        yield text
        return
    options = []
    for part in _split(match[2], ","):
        name, equals, value = part.partition("=")
        options.append([f"{name.strip()}{equals}{one}" for one in _values(name.strip(), value)])
    if _product(map(len, options)) > MAXIMUM:
        raise ModelError(f"the options of {match[1]} have more than {MAXIMUM} combinations; allowed are {MAXIMUM}.")
    for chosen in itertools.product(*options):
        yield f"{match[1]}({', '.join(chosen)})"


def _values(name: str, text: str) -> list[str]:
    match = _RANGE.fullmatch(text)
    if match is None:
        return _split(text, "|")
    begin, end = Fraction(match[1]), Fraction(match[2])
    step = None if match[3] is None else Fraction(match[3])
    if begin >= end or step == 0 or (step is None and begin == 0):
        raise ModelError(
            f"the option {printable(name)} is {printable(text.strip())}; allowed is a range such as 20..100 or 20..100:20 that begins below its end."
        )
    whole = begin.denominator == end.denominator == 1 and "." not in match[1] + match[2]
    values: list[Fraction] = []
    if step is not None:
        count = min(int((end - begin) // step) + 1, MAXIMUM + 1)
        values = [begin + k * step for k in range(count)]
    elif whole:
        while begin < end:
            values.append(begin)
            begin *= 2
        values.append(end)
    else:
        values = [begin + (end - begin) * k / (_FIVE - 1) for k in range(_FIVE)]
    return [str(value.numerator) if value.denominator == 1 and whole else repr(float(value)) for value in values]


def _product(numbers: Iterator[int]) -> int:
    total = 1
    for number in numbers:
        total *= number
    return total


def _split(text: str, mark: str) -> list[str]:
    """Split at a mark that stands outside brackets and quotes; empty parts are left out.

    Examples
    --------
    >>> _split("gth, gmres(restart=20, preconditioner='a,b')", ",")
    ['gth', "gmres(restart=20, preconditioner='a,b')"]
    """
    parts, depth, quote, begin = [], 0, "", 0
    for place, character in enumerate(text):
        if quote:
            quote = "" if character == quote else quote
        elif character in "'\"":
            quote = character
        elif character in "([{":
            depth += 1
        elif character in ")]}":
            depth -= 1
        elif character == mark and depth == 0:
            parts.append(text[begin:place].strip())
            begin = place + 1
    parts.append(text[begin:].strip())
    return [part for part in parts if part]
