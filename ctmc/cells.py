"""Text for the cells of tables that other programs open."""

from __future__ import annotations

from typing import Any

from ctmc.errors import printable

_FORMULA = ("=", "+", "-", "@", "\t", "\r")


def csv_cell(value: Any) -> str:
    """Return a cell that no spreadsheet takes for a formula: numbers as they are, such text behind an apostrophe.

    Examples
    --------
    >>> csv_cell("=1+1"), csv_cell(-1.5), csv_cell(None)
    ("'=1+1", '-1.5', '')
    """
    if value is None:
        return ""
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, int | float):
        return repr(value)
    text = printable(value)
    return f"'{text}" if str(value).startswith(_FORMULA) else text


_LATEX = {
    **{character: f"\\{character}" for character in "&%$#_{}"},
    "\\": r"\textbackslash{}",
    "~": r"\textasciitilde{}",
    "^": r"\textasciicircum{}",
    "<": r"\textless{}",
    ">": r"\textgreater{}",
    "|": r"\textbar{}",
    '"': r"\textquotedbl{}",
    # after the end of a row these two begin an argument of it
    "[": "{[}",
    "*": "{*}",
    "`": "{`}",
    "'": "{'}",
}


def latex_cell(text: object) -> str:
    r"""Return text for LaTeX, shown as it is wherever it stands; control characters are escaped.

    Examples
    --------
    >>> print(latex_cell("[a_b] 5%"), latex_cell("\\input{x}"))
    {[}a\_b] 5\% \textbackslash{}input\{x\}
    """
    cell = "".join(_LATEX.get(character, character) for character in printable(text))
    return cell.replace("--", "{-}{-}")  # else one dash
