"""``ctmc info``: what a file holds, without taking it for granted that it fits into memory."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import click

from ctmc.cli.app import Command, output_of
from ctmc.cli.options import file_type, memory_option
from ctmc.errors import CTMCError

_LOADED_BYTES = 256 * 1024**2
"""A model up to this size is loaded for the names of its rewards, which its builder gives."""
_KINDS = {"generator": "Generator", "qbd": "QBD"}


def _info(file: str, memory_limit: str | None) -> int:
    from ctmc.cli.options import limits

    output = output_of(click.get_current_context())
    with limits(None, memory_limit):
        facts = _facts(file)
    if output.json:
        output.document(facts)
        return 0
    shown = {name: value for name, value in facts.items() if name not in ("solutions", "versions", "rows", "notes")}
    versions = ", ".join(f"{name} {value}" for name, value in facts["versions"].items())
    output.facts([*_rows(shown), *(("note", note) for note in facts.get("notes", ())), ("versions", versions)])
    columns = ("problem", "solver", "status", "defect", "seconds", "file")
    if "solutions" in facts:
        output.write()
        output.write(f"{len(facts['solutions'])} solutions" if facts["solutions"] else "No solutions yet.")
        if facts["solutions"]:
            output.table(columns, [[row.get(name) for name in columns] for row in facts["solutions"]])
    if "rows" in facts:
        output.write()
        columns = ("model", "problem", "solver", "status", "defect", "seconds")
        output.table(columns, [[row.get(name) for name in columns] for row in facts["rows"]])
    return 0


def _rows(facts: dict[str, Any]) -> Any:
    from ctmc.model.memory import format_size

    for name, value in facts.items():
        if name == "parameters":
            yield from ((f"parameter {key}", item) for key, item in value.items())
        elif name.startswith("bytes"):
            yield name.replace("bytes", "size").replace("_", " "), format_size(value)
        elif value is not None and value != []:
            yield name.replace("_", " "), value


def _facts(file: str) -> dict[str, Any]:
    from ctmc.storage import read_info

    info = read_info(file)
    kind = info["kind"]
    sizes = _array_sizes(file)
    about = info.get("about", {})
    facts: dict[str, Any] = {"file": file, "kind": _KINDS.get(kind, kind)}
    if kind in _KINDS:
        facts |= _model(file, info, sizes)
    else:
        facts |= {name: value for name, value in info.items() if name not in ("about", "kind", "study", "histories")}
    facts |= {
        "bytes_in_memory": sum(size for _, size in sizes.values()),
        "bytes_on_disk": os.stat(file).st_size,
        "content_hash": info["content_hash"],
        "created": about.get("created"),
        "versions": about.get("versions", {}),
    }
    if kind in _KINDS:
        facts["solutions"] = _solutions(file, info["content_hash"])
    return facts


def _array_sizes(file: str) -> dict[str, tuple[tuple[int, ...], int]]:
    """Return shape and bytes of each array, without reading one."""
    from ctmc.storage.gate import opened

    with opened(Path(file)) as stored:
        return {name: (array.shape, array.size) for name, array in stored.arrays().items()}


def _model(file: str, info: dict[str, Any], sizes: dict[str, tuple[tuple[int, ...], int]]) -> dict[str, Any]:
    from ctmc.cli.models import model_facts
    from ctmc.storage import load

    recipe = info.get("builder") or {}
    facts: dict[str, Any] = {
        "builder": recipe.get("name"),
        "builder_version": recipe.get("version"),
        "parameters": recipe.get("parameters", {}),
        "recipe_hash": recipe.get("recipe_hash"),
    }
    if sum(size for _, size in sizes.values()) <= _LOADED_BYTES:
        found = model_facts(load(file))
        return facts | {name: value for name, value in found.items() if name not in ("kind", "bytes")}
    if info["kind"] == "generator":
        facts |= {"states": sizes["exit_rates"][0][0], "entries": sizes["rates/data"][0][0]}
    return facts | {"labels": info.get("labels", []), "notes": info.get("notes", [])}


def _solutions(file: str, digest: str) -> list[dict[str, Any]]:
    """Return what is stored beside the model; a damaged file is a row that says so."""
    from ctmc.storage import read_info, solution_paths

    rows: list[dict[str, Any]] = []
    for path in solution_paths(file):
        try:
            info = read_info(path)
        except CTMCError as error:
            rows.append({"file": str(path), "status": str(error)})
            continue
        names = ("problem", "solver", "status", "defect", "tolerance", "iterations", "products", "seconds")
        row = {"file": str(path), **{name: info.get(name) for name in names}}
        if info.get("model_hash") != digest:
            row["status"] = "of another model"
        rows.append(row)
    return rows


command = Command(
    "info",
    callback=_info,
    params=[click.Argument(["file"], type=file_type(), metavar="FILE"), memory_option()],
    help="Tell what a file holds: a model with its parameters, size, rewards and solutions, a solution, or a study's result.",
)
