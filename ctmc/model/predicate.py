"""Conditions on states, such as ``"jobs >= 10 and queue_length[0] < 3"``: a small parser, nothing is ever executed.

Grammar, loosest first: ``or``, ``and``, ``not``, comparisons (``< <= > >= == !=``, chains such as ``1 <= jobs < 4``),
``+ -``, ``* /``, unary ``-``, and numbers, names, ``name[index]``, ``true``, ``false`` and parentheses.  Names are rewards,
variables of the state, or labels (which are true or false).
"""

from __future__ import annotations

import operator
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from ctmc.errors import ModelError, quoted, shown, unknown_name

_TOKEN = re.compile(
    r"\s*(?:(?P<number>(?:\d+\.?\d*|\.\d+)(?:[eE][+-]?\d+)?)|(?P<name>[^\W\d]\w*)|(?P<symbol><=|>=|==|!=|[-+*/<>()\[\]])|(?P<end>$))"
)
_COMPARISONS: dict[str, Callable[[Any, Any], Any]] = {
    "<": operator.lt, "<=": operator.le, ">": operator.gt, ">=": operator.ge, "==": operator.eq, "!=": operator.ne,
}  # fmt: skip
_ARITHMETIC: dict[str, Callable[[Any, Any], Any]] = {
    "+": operator.add, "-": operator.sub, "*": operator.mul, "/": operator.truediv,
}  # fmt: skip
_MAXIMUM_LENGTH = 4096
_MAXIMUM_DEPTH = 64

Lookup = Mapping[str, np.ndarray]
_Evaluate = Callable[[Lookup], np.ndarray]


@dataclass(frozen=True)
class Predicate:
    """A parsed condition; `names` are the names that it reads.

    Examples
    --------
    >>> condition = parse("x >= 2 and not y[0] < 1")
    >>> condition.evaluate({"x": np.array([1, 2, 3]), "y": np.array([[1, 0], [0, 5], [4, 4]])}).tolist()
    [False, False, True]
    """

    text: str
    names: frozenset[str]
    _evaluate: _Evaluate

    def evaluate(self, values: Lookup) -> np.ndarray:
        """Return the truth value per state.

        Parameters
        ----------
        values : mapping of str to array
            For each name, its values, shape (m,) or (m, length).
        """
        with np.errstate(all="ignore"):
            return _condition(self._evaluate(values))


@dataclass(frozen=True)
class Formula:
    """Parsed arithmetic over numbers with names, such as ``response_time + 0.1 * busy_servers``.

    Examples
    --------
    >>> formula = parse_formula("jobs + 2 * utilization[1]")
    >>> formula.evaluate({"jobs": 1.5, "utilization": np.array([0.5, 0.25])}), sorted(formula.names)
    (2.0, ['jobs', 'utilization'])
    """

    text: str
    names: frozenset[str]
    _evaluate: _Evaluate

    def evaluate(self, values: Mapping[str, Any]) -> float:
        """Return the number; `values` are numbers, or vectors whose components the text picks."""
        with np.errstate(all="ignore"):
            columns = {name: np.asarray(value, dtype=np.float64)[None] for name, value in values.items()}
            return float(_number(self._evaluate(columns))[0])


def parse_formula(text: str) -> Formula:
    """Parse arithmetic over names; raises as `parse` does."""
    parser = _Parser(text, "formula")
    evaluate = parser.sum()
    if parser.kind != "end":
        raise parser.error("+, -, * or /")
    return Formula(text, frozenset(parser.names), evaluate)


def parse(text: str, field: str = "condition") -> Predicate:
    """Parse a condition.

    Parameters
    ----------
    text : str
    field : str
        What the condition is for, as messages name it.

    Raises
    ------
    ModelError
        If the text is not a condition; the message points at the first place that does not fit.
    """
    parser = _Parser(text, field)
    evaluate = parser.disjunction()
    if parser.kind != "end":
        raise parser.error("an operator")
    return Predicate(text, frozenset(parser.names), evaluate)


class _Parser:
    """Recursive descent; every rule returns a function of the values."""

    def __init__(self, text: str, kind: str = "condition") -> None:
        self.what = kind
        if not isinstance(text, str):
            raise ModelError(f"{kind} is {shown(text)}; allowed is text, such as 'jobs >= 10'.")
        if len(text) > _MAXIMUM_LENGTH:
            raise ModelError(f"{kind} has {len(text)} characters; allowed are {_MAXIMUM_LENGTH}.")
        self.text, self.begin, self.end, self.depth = text, 0, 0, 0
        self.kind, self.token = "", ""
        self.names: set[str] = set()
        self.advance()

    def advance(self) -> str:
        """Step to the next token and return the one left behind."""
        left, self.begin = self.token, self.end
        match = _TOKEN.match(self.text, self.end)
        if match is None:
            self.token = self.text[self.end :].lstrip()[:1]
            raise self.error("a name, a number or an operator")
        self.kind, self.end = str(match.lastgroup), match.end()
        self.token = match[self.kind]
        if self.token in ("and", "or", "not", "true", "false"):
            self.kind = "word"
        return left

    def error(self, wanted: str) -> ModelError:
        found = quoted(self.token) if self.token else "the end"
        found += "; equality is '=='" if self.token == "=" else ""
        return ModelError(
            f"{self.what} {quoted(self.text)}: expected {wanted} at position {self.begin}, found {found}."
        )

    def take(self, *tokens: str) -> str | None:
        return self.advance() if self.kind in ("word", "symbol") and self.token in tokens else None

    def expect(self, token: str) -> None:
        if self.take(token) is None:
            raise self.error(repr(token))

    def disjunction(self) -> _Evaluate:
        left = self.conjunction()
        while self.take("or"):
            left = _on_conditions(np.logical_or, left, self.conjunction())
        return left

    def conjunction(self) -> _Evaluate:
        left = self.negation()
        while self.take("and"):
            left = _on_conditions(np.logical_and, left, self.negation())
        return left

    def negation(self) -> _Evaluate:
        if not self.take("not"):
            return self.comparison()
        inner = self.nested(self.negation)
        return lambda values: np.logical_not(_condition(inner(values)))

    def comparison(self) -> _Evaluate:
        left = self.sum()
        result: _Evaluate | None = None
        while symbol := self.take(*_COMPARISONS):
            right = self.sum()
            step = _on_numbers(_COMPARISONS[symbol], left, right)
            result = step if result is None else _on_conditions(np.logical_and, result, step)
            left = right
        return left if result is None else result

    def sum(self) -> _Evaluate:
        left = self.product()
        while symbol := self.take("+", "-"):
            left = _on_numbers(_ARITHMETIC[symbol], left, self.product())
        return left

    def product(self) -> _Evaluate:
        left = self.factor()
        while symbol := self.take("*", "/"):
            left = _on_numbers(_ARITHMETIC[symbol], left, self.factor())
        return left

    def factor(self) -> _Evaluate:
        if self.take("-"):
            inner = self.nested(self.factor)
            return lambda values: -_number(inner(values))
        if self.take("("):
            inner = self.nested(self.disjunction)
            self.expect(")")
            return inner
        if self.kind == "number":
            number = np.float64(self.advance())
            return lambda values: _like_states(number, values)
        if word := self.take("true", "false"):
            return lambda values: _like_states(np.bool_(word == "true"), values)
        if self.kind != "name":
            raise self.error("a name or a number")
        name = self.advance()
        self.names.add(name)
        index: int | None = None
        if self.take("["):
            if self.kind != "number" or not self.token.isdigit():
                raise self.error("an index 0, 1, ..")
            index = int(self.advance())
            self.expect("]")
        return lambda values: _column(name, index, values)

    def nested(self, rule: Callable[[], _Evaluate]) -> _Evaluate:
        self.depth += 1
        if self.depth > _MAXIMUM_DEPTH:
            raise ModelError(f"{self.what} is nested more than {_MAXIMUM_DEPTH} deep.")
        result = rule()
        self.depth -= 1
        return result


def _on_numbers(operation: Callable[[Any, Any], Any], left: _Evaluate, right: _Evaluate) -> _Evaluate:
    return lambda values: np.asarray(operation(_number(left(values)), _number(right(values))))


def _on_conditions(operation: Callable[[Any, Any], Any], left: _Evaluate, right: _Evaluate) -> _Evaluate:
    return lambda values: np.asarray(operation(_condition(left(values)), _condition(right(values))))


def _number(column: np.ndarray) -> np.ndarray:
    if column.dtype == bool:
        raise ModelError("a condition stands where a number is needed; labels and comparisons are true or false.")
    return column


def _condition(column: np.ndarray) -> np.ndarray:
    if column.dtype != bool:
        raise ModelError("a number stands where a condition is needed; compare it, as in 'jobs >= 10'.")
    return column


def _like_states(value: Any, values: Lookup) -> np.ndarray:
    """A constant in the shape of the states, so that 'true' alone is a condition on each of them."""
    return np.full(next((len(column) for column in values.values()), 1), value)


def _column(name: str, index: int | None, values: Lookup) -> np.ndarray:
    try:
        column = np.asarray(values[name])
    except KeyError:
        raise unknown_name("reward, variable or label", name, values) from None
    if index is None and column.ndim == 2:
        raise ModelError(
            f"{name!r} has {column.shape[1]} components; write {name}[0] to {name}[{column.shape[1] - 1}]."
        )
    if index is None:
        return column
    if column.ndim != 2 or index >= column.shape[1]:
        allowed = f"0 to {column.shape[1] - 1}" if column.ndim == 2 else "none: it is one number per state"
        raise ModelError(f"index {index} of {name!r} is out of range; allowed is {allowed}.")
    return column[:, index]
