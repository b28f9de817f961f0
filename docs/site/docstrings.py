"""Docstrings in numpydoc form as Markdown."""

from __future__ import annotations

import html
import inspect
import re
from collections.abc import Callable
from typing import Any

_HEADING = re.compile(r"^(\w[\w ]*)\n-{3,}\s*$", re.MULTILINE)
_CODE = re.compile(r"(``.+?``|`[^`]+`)")
_DOI = re.compile(r"\bdoi:(10\.[^\s,;)]+[^\s,;).])")
_TABLES = ("Parameters", "Attributes", "Other Parameters", "Returns", "Raises", "Yields")


def markdown(thing: Any, level: int, link: Callable[[str], str | None] = lambda name: None) -> str:
    """Return the docstring of a function, class or module as Markdown.

    Parameters
    ----------
    thing : object
    level : int
        Of the headings of its sections.
    link : callable
        Returns the address of what a name in backticks names, or None.
    """
    text = inspect.cleandoc(inspect.unwrap(thing).__doc__ or "")
    parts = _HEADING.split(text)
    out = [prose(parts[0], link)]
    for heading, body in zip(parts[1::2], parts[2::2], strict=True):
        out.append(f"{'#' * level} {heading}")
        out.append(table(entries(body), link) if heading in _TABLES else prose(body, link))
    return "\n\n".join(filter(None, out))


def prose(text: str, link: Callable[[str], str | None] = lambda name: None) -> str:
    """Return paragraphs, sessions and indented blocks; paragraphs are single lines, so that none of theirs begins a list."""
    out = []
    for paragraph in re.split(r"\n[ ]*\n", text.strip("\n")):
        lines = paragraph.splitlines()
        if lines and lines[0].lstrip().startswith(">>>"):
            out.append("```pycon\n" + inspect.cleandoc("\n" + paragraph) + "\n```")
        elif lines and all(line.startswith("    ") for line in lines):
            out.append("```text\n" + inspect.cleandoc("\n" + paragraph) + "\n```")
        elif lines and lines[0].startswith(("- ", "* ")):
            items = re.split(r"\n(?=[-*] )", paragraph)
            out.append("\n".join("- " + inline(" ".join(item[2:].split()), link) for item in items))
        else:
            words = " ".join(paragraph.split())
            out.append(inline(words[:-1] if words.endswith("::") else words, link))
    return "\n\n".join(filter(None, out))


def entries(body: str) -> list[tuple[str, str]]:
    """Return heads and meanings of a section of parameters, results or errors."""
    found: list[tuple[str, list[str]]] = []
    for line in inspect.cleandoc("\n" + body).splitlines():
        if line and not line.startswith(" "):
            found.append((line, []))
        elif found:
            found[-1][1].append(line.strip())
    return [(head, " ".join(" ".join(lines).split())) for head, lines in found]


def table(rows: list[tuple[str, str]], link: Callable[[str], str | None] = lambda name: None) -> str:
    """Return names, types where there are some, and meanings as a table."""
    typed = any(" : " in head for head, _ in rows)
    lines = ["| name | type | meaning |", "| --- | --- | --- |"] if typed else ["| | meaning |", "| --- | --- |"]
    for head, meaning in rows:
        name, _, kind = head.partition(" : ")
        cells = [f"`{name}`", *([inline(kind, link)] if typed else []), inline(meaning, link)]
        lines.append("| " + " | ".join(cell.replace("|", "&#124;") for cell in cells) + " |")
    return "\n".join(lines)


def inline(text: str, link: Callable[[str], str | None] = lambda name: None) -> str:
    """Return a line with everything escaped that is neither code, emphasis of words, nor a DOI, which becomes a link."""
    out = []
    for part in _CODE.split(text):
        if part.startswith("`"):
            address = link(part.strip("`"))
            out.append(f"[{part}]({address})" if address else part)
        else:
            plain = html.escape(part, quote=False).replace("_", r"\_").replace("[", r"\[")
            out.append(_DOI.sub(lambda match: f"[{match[0]}](https://doi.org/{_plain(match[1])})", plain))
    return "".join(out)


def _plain(doi: str) -> str:
    return html.unescape(doi.replace("\\", ""))


def summary(thing: Any) -> str:
    """Return the first paragraph of a docstring as one line of Markdown."""
    return inline(" ".join((inspect.unwrap(thing).__doc__ or "").strip().split("\n\n")[0].split()))
