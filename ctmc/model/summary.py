"""Short readable summaries, as text and as HTML for notebooks."""

from __future__ import annotations

import html
from collections.abc import Sequence

from ctmc.errors import printable

Rows = Sequence[tuple[str, object]]


def text_summary(title: str, rows: Rows) -> str:
    """Return a title and aligned rows.

    Examples
    --------
    >>> print(text_summary("Model", [("states", 3), ("largest exit rate", 2.5)]))
    Model
      states             3
      largest exit rate  2.5
    """
    rows = [(printable(name), value) for name, value in rows]
    width = max((len(name) for name, _ in rows), default=0)
    return "\n".join([printable(title), *(f"  {name:<{width}}  {printable(value)}" for name, value in rows)])


def html_summary(title: str, rows: Rows) -> str:
    """Return the same as an HTML table; everything is escaped."""
    cells = "".join(
        f"<tr><th style='text-align:left'>{html.escape(printable(name))}</th>"
        f"<td style='text-align:left'>{html.escape(printable(value))}</td></tr>"
        for name, value in rows
    )
    return f"<table><caption style='text-align:left'><b>{html.escape(printable(title))}</b></caption>{cells}</table>"


class Summarised:
    """Gives ``repr`` and the notebook's HTML from `_summary`."""

    def _summary(self) -> tuple[str, Rows]:
        raise AssertionError(f"{type(self).__name__} has no summary")

    def __repr__(self) -> str:
        return text_summary(*self._summary())

    def _repr_html_(self) -> str:
        return html_summary(*self._summary())
