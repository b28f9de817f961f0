"""``ctmc info``: what a file holds, without taking it for granted that it fits into memory."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from ctmc.cli.app import Command, output_of
from ctmc.cli.models import is_own, load_model, model_facts
from ctmc.cli.options import file_type, memory_option
from ctmc.errors import CTMCError

if TYPE_CHECKING:
    from ctmc.cli.output import Output

_LOADED_BYTES = 256 * 1024**2
"""A model up to this size is loaded for the names of its rewards, which its builder gives, and for its structure."""
_KINDS = {"generator": "Generator", "qbd": "QBD", "variant": "variant"}


def _info(file: str, structure: bool, spectral_gap: bool, memory_limit: str | None) -> int:
    from ctmc.cli.options import limits

    output = output_of(click.get_current_context())
    with limits(None, memory_limit):
        facts = _facts(file, structure)
        if spectral_gap:
            from ctmc.spectral_gap import spectral_gap as gap_of

            facts["spectral_gap"] = gap_of(load_model(file)).facts()
    if output.json:
        output.document(facts)
        return 0
    shown = {
        name: value
        for name, value in facts.items()
        if name not in ("solutions", "versions", "rows", "notes", "structure", "spectral_gap", "question")
    }
    versions = ", ".join(f"{name} {value}" for name, value in facts["versions"].items())
    last = [("versions", versions)] if versions else []
    output.facts([*_rows(shown), *(("note", note) for note in facts.get("notes", ())), *last])
    if "structure" in facts:
        _show_structure(output, facts["structure"], facts["bytes_in_memory"])
    if "spectral_gap" in facts:
        output.write()
        output.write("Spectral gap")
        found = facts["spectral_gap"].items()
        output.facts([(name.replace("_", " "), value) for name, value in found if value is not None])
    columns = ("problem", "solver", "status", "defect", "seconds", "file")
    if "solutions" in facts:
        output.write()
        count = len(facts["solutions"])
        output.write(f"{count} solution{'s' * (count > 1)}" if count else "No solutions yet.")
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
        if name in ("parameters", "changes") and isinstance(value, dict):
            yield from ((f"{name[:-1]} {key}", item) for key, item in value.items())
        elif name.startswith("bytes"):
            yield name.replace("bytes", "size").replace("_", " "), format_size(value)
        elif value is not None and value != []:
            yield name.replace("_", " "), value


def _show_structure(output: Output, found: dict[str, Any] | None, size: int) -> None:
    from ctmc.model.memory import format_size

    output.write()
    if found is None:
        output.write(f"Structure: shown with --structure, which loads the model ({format_size(size)}).")
        return
    output.write("Structure")
    shown = {name: value for name, value in found.items() if name not in ("variables", "level_variables")}
    rows = [(name.replace("_", " "), _as_text(name, value)) for name, value in shown.items() if value is not None]
    if "level_variables" in found:
        rows.append(("changes by at most one", ", ".join(found["level_variables"]) or "no variable"))
    output.facts(rows)
    if "variables" in found:
        columns = ("variable", "levels", "widest_level", "largest_change")
        output.write()
        output.table(columns, [[row["name"], *(row[name] for name in columns[1:])] for row in found["variables"]])


def _as_text(name: str, value: Any) -> Any:
    """Return a fact as one cell of text."""
    if name == "periods":
        classes = ((period, "1 class" if count == 1 else f"{count} classes") for period, count in value.items())
        return ", ".join(f"{period} ({count})" for period, count in classes)
    if name == "colors":
        return f"{value[0]:,} and {value[1]:,} states"
    if isinstance(value, dict):
        return ", ".join(f"{key} {number:.6g}" for key, number in value.items())
    return ("yes" if value else "no") if isinstance(value, bool) else value


def _comparison(file: str) -> dict[str, Any]:
    from collections import Counter

    from ctmc.comparison.files import load_comparison

    found = load_comparison(file)
    ends = Counter(run.status for run in found.runs)
    return {
        "title": found.title,
        "problem": found.problem,
        "models": list(found.models),
        "solvers": list(found.labels),
        "runs": len(found.runs),
        "status": ", ".join(f"{number:,} {status}" for status, number in ends.most_common()),
        "disagreements": len(found.disagreements),
    }


def _facts(file: str, structure: bool) -> dict[str, Any]:
    from ctmc.interchange.formats import format_of
    from ctmc.storage import read_info
    from ctmc.storage.inventory import array_sizes
    from ctmc.storage.stored import loaded_bytes

    if not is_own(file):
        return _foreign(file, format_of(file).name)
    info = read_info(file)
    kind = info["kind"]
    sizes = array_sizes(file)
    about = info.get("about", {})
    facts: dict[str, Any] = {"file": file, "kind": _KINDS.get(kind, kind)}
    if kind in _KINDS:
        facts |= _model(file, info, sizes, structure)
    elif kind == "comparison":
        facts |= _comparison(file)
    else:
        facts |= {name: value for name, value in info.items() if name not in ("about", "kind", "study", "histories")}
    facts.setdefault("bytes_in_memory", loaded_bytes(_stored(file)))
    facts |= {
        "bytes_on_disk": os.stat(file).st_size,
        "content_hash": info["content_hash"],
        "created": about.get("created"),
        "versions": about.get("versions", {}),
    }
    if kind in _KINDS:
        facts["solutions"] = _solutions(file, info["content_hash"])
    return facts


def _foreign(file: str, name: str) -> dict[str, Any]:
    """Return what a model of another program's format is; it is read for that."""
    from ctmc.model.structure import structure as structure_of

    model = load_model(file)
    found = model_facts(model)
    size = found.pop("bytes")
    return {
        "file": file,
        "format": name,
        **found,
        "structure": structure_of(model),
        "bytes_in_memory": size,
        "bytes_on_disk": os.stat(file).st_size,
        "versions": {},
    }


def _stored(file: str) -> dict[str, Any]:
    from ctmc.storage.gate import opened

    with opened(Path(file)) as stored:
        return stored.arrays()


def _entries(sizes: dict[str, tuple[tuple[int, ...], int]]) -> int | None:
    """Return the number of transitions, None where the file does not say it."""
    from ctmc.storage.inventory import array_length

    data = array_length(sizes, "rates/data")
    return array_length(sizes, "rates/codes") if data is None else data


def _model(
    file: str, info: dict[str, Any], sizes: dict[str, tuple[tuple[int, ...], int]], structure: bool
) -> dict[str, Any]:
    from ctmc.model.structure import structure as structure_of
    from ctmc.storage import load, read_info
    from ctmc.storage.inventory import array_length, array_sizes
    from ctmc.storage.stored import loaded_bytes
    from ctmc.storage.variants import KIND, origin_of

    recipe = info.get("builder") or {}
    facts: dict[str, Any] = {
        "builder": recipe.get("name"),
        "builder_version": recipe.get("version"),
        "parameters": recipe.get("parameters", {}),
        "recipe_hash": recipe.get("recipe_hash"),
    }
    whole = file
    if info["kind"] == KIND:
        parent = origin_of(info).beside(file)
        facts |= {"parent": str(parent), "changes": info["changes"]}
        if not parent.exists():
            return facts | {"notes": [f"The parent {parent} is missing, so this variant cannot be loaded."]}
        read_info(parent)  # verifies it, and says what is wrong with it
        whole = str(parent)
        sizes = array_sizes(whole)
    if structure or loaded_bytes(_stored(whole)) <= _LOADED_BYTES:
        model = load(file)
        found = model_facts(model)
        size = found.pop("bytes")
        del found["kind"]
        return facts | found | {"bytes_in_memory": size, "structure": structure_of(model)}
    if "exit_rates" in sizes or "exit_rates.codes" in sizes:
        facts |= {"states": array_length(sizes, "exit_rates"), "entries": _entries(sizes)}
    return facts | {"labels": info.get("labels", []), "notes": info.get("notes", []), "structure": None}


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
    params=[
        click.Argument(["file"], type=file_type(), metavar="FILE"),
        click.Option(
            ["--structure"],
            is_flag=True,
            help="Show the structure of a model above 256 MiB, too; the model is loaded for it.",
        ),
        click.Option(
            ["--spectral-gap"],
            is_flag=True,
            help="Show how fast the chain forgets its start: the next eigenvalue, relaxation time, mixing time from below.",
        ),
        memory_option(),
    ],
    help="Tell what a file holds: a model with its parameters, size, structure, rewards and solutions, a solution, or a study's "
    "result.",
)
