"""Docstrings in numpydoc form as Markdown."""

from __future__ import annotations

import ast
import builtins
import doctest
import html
import inspect
import re
import sys
from collections.abc import Callable
from types import ModuleType
from typing import Any

import ctmc

_HEADING = re.compile(r"^(\w[\w ]*)\n-{3,}\s*$", re.MULTILINE)
_CODE = re.compile(r"(``.+?``|`[^`]+`)")
_DOI = re.compile(r"\bdoi:(10\.[^\s,;)]+[^\s,;).])")
_TABLES = {
    "Parameters": "name",
    "Attributes": "name",
    "Other Parameters": "name",
    "Returns": "type",
    "Yields": "type",
    "Raises": "error",
}


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
        out.append(table(entries(body), link, _TABLES[heading]) if heading in _TABLES else prose(body, link))
    begin = "".join(f">>> {line}\n" for line in imports(thing))
    return "\n\n".join(filter(None, out)).replace("```pycon\n", f"```pycon\n{begin}", 1)


def imports(thing: Any) -> list[str]:
    """Return the imports that the examples of a docstring take from their module, so that they run where they are copied to."""
    thing = inspect.unwrap(thing)
    known: set[str] = set(vars(builtins))
    missing: dict[str, None] = {}
    for example in doctest.DocTestParser().get_examples(inspect.cleandoc(thing.__doc__ or "")):
        nodes = list(ast.walk(ast.parse(example.source)))
        known |= {node.id for node in nodes if isinstance(node, ast.Name) and not isinstance(node.ctx, ast.Load)}
        known |= {node.name for node in nodes if isinstance(node, ast.FunctionDef | ast.ClassDef)}
        known |= {node.arg for node in nodes if isinstance(node, ast.arg)}
        known |= {(node.asname or node.name).partition(".")[0] for node in nodes if isinstance(node, ast.alias)}
        missing |= {node.id: None for node in nodes if isinstance(node, ast.Name) and node.id not in known}
    module = sys.modules[thing.__module__]
    lines: dict[str, list[str]] = {}
    for name in missing:
        statement, member = _import(name, getattr(module, name), module.__name__)
        lines.setdefault(statement, []).append(member)
    found = [f"{statement} {', '.join(sorted(members))}".strip() for statement, members in lines.items()]
    return sorted(found, key=lambda line: line.startswith("from"))


def _import(name: str, value: Any, module: str) -> tuple[str, str]:
    """Return the statement that imports a name, and what stands at its end."""
    if isinstance(value, ModuleType):
        parent, _, last = value.__name__.rpartition(".")
        if parent and last == name:
            return f"from {parent} import", name
        return f"import {value.__name__}" + f" as {name}" * (name != value.__name__), ""
    if getattr(ctmc, name, None) is value:
        return "from ctmc import", name
    parts = (getattr(value, "__module__", None) or module).split(".")
    homes = [".".join(parts[: count + 1]) for count in range(len(parts))]  # the shortest is the public one
    home = next((home for home in homes if getattr(sys.modules.get(home), name, None) is value), module)
    return f"from {home} import", name


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


def table(
    rows: list[tuple[str, str]], link: Callable[[str], str | None] = lambda name: None, first: str = "name"
) -> str:
    """Return names, types where there are some, and meanings as a table; a line of names where nothing else is said."""
    typed = any(" : " in head for head, _ in rows)
    if not typed and not any(meaning for _, meaning in rows):
        return ", ".join(f"`{head}`" for head, _ in rows)
    lines = (
        ["| name | type | meaning |", "| --- | --- | --- |"] if typed else [f"| {first} | meaning |", "| --- | --- |"]
    )
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
