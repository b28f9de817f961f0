"""``ctmc store``: what a store of models and answers holds, whether it is whole, and what of it may go."""

from __future__ import annotations

import datetime
import os
import re
from pathlib import Path
from typing import Any

import click

from ctmc.cli.app import Command, output_of
from ctmc.cli.options import file_type, folder_type
from ctmc.errors import ModelError, about, printable

_UNITS = {"h": 1 / 24, "d": 1.0, "w": 7.0, "y": 365.0}


def _folder(given: str | None) -> Path:
    from ctmc.storage.inventory import checked_folder

    folder = given or os.environ.get("CTMC_STORE")
    if not folder:
        raise click.UsageError("Missing the folder of the store; name it, or set CTMC_STORE.")
    return checked_folder(folder)


def days(text: str) -> float:
    """Return an age in days, such as '30d', '12h', '2w', '1y'.

    Examples
    --------
    >>> days("2w"), days("12h")
    (14.0, 0.5)
    """
    match = re.fullmatch(r"(\d{1,6}(?:\.\d+)?)([hdwy])", text.strip())
    if match is None:
        raise ModelError(f"--older-than is {printable(text)!r}; allowed is a number with h, d, w or y, such as 30d.")
    return float(match[1]) * _UNITS[match[2]]


def _list(folder: str | None) -> int:
    from ctmc.model.memory import format_size
    from ctmc.storage.inventory import entries
    from ctmc.study.sweep import shown

    out = output_of(click.get_current_context())
    rows: list[dict[str, Any]] = [
        {
            "name": entry.path.name,
            "builder": entry.builder,
            "parameters": dict(entry.parameters),
            "states": entry.states,
            "bytes": entry.bytes,
            "solutions": entry.solutions,
            "last_used": datetime.datetime.fromtimestamp(entry.used, datetime.UTC).isoformat(timespec="seconds"),
            "problem": entry.problem,
        }
        for entry in entries(_folder(folder))
    ]
    if out.json:
        out.document({"models": rows})
        return 0
    columns = ["name", "builder", "parameters", "states", "size", "solutions", "last_used"]
    cells: list[list[Any]] = [
        [
            row["name"],
            row["builder"] or ("damaged" if row["problem"] else ""),
            " ".join(f"{key}={shown(value)}" for key, value in row["parameters"].items()),
            row["states"],
            row["bytes"] if out.csv else format_size(row["bytes"]),
            row["solutions"],
            row["last_used"][:16].replace("T", " "),
        ]
        for row in rows
    ]
    out.table(columns, cells)
    for row in rows:
        if row["problem"]:
            out.line(f"ctmc: {printable(row['problem'])}")
    return 0


def _verify(folder: str | None) -> int:
    from ctmc.cli.verify import verifying
    from ctmc.storage.inventory import verify
    from ctmc.verify import Verifier

    out = output_of(click.get_current_context())
    place = _folder(folder)
    files: list[dict[str, str]] = []

    def told(path: Path, problem: str) -> None:
        files.append({"name": path.relative_to(place).as_posix(), "problem": problem})

    look = Verifier()
    with verifying(out) as shown:
        damaged = verify(place, lambda path: look(path, progress=shown(path)).problem, told)
    if out.json:
        out.document({"files": files, "damaged": damaged})
    elif out.csv:
        out.table(["name", "problem"], [list(file.values()) for file in files])
    else:
        for file in files:
            if file["problem"]:
                out.write(f"{file['name']}: {file['problem']}")
        out.write(f"{len(files)} files read, {damaged} damaged.")
    return 1 if damaged else 0


def _kept(results: tuple[str, ...]) -> set[str]:
    """Return the files that the rows of results name."""
    from ctmc.storage.container import read_container

    names = set()
    for result in results:
        with about("--keep"):
            rows = read_container(result, ("study",), only=()).manifest["rows"]
        for row in rows:
            names |= {name for name in (row.get("model_file"), row.get("solution_file")) if name}
    return names


def _prune(
    folder: str | None,
    older_than: str | None,
    larger_than: str | None,
    keep: tuple[str, ...],
    damaged: bool,
    dry_run: bool,
) -> int:
    from ctmc.model.memory import format_size, parse_size
    from ctmc.storage.inventory import prune
    from ctmc.verify import Verifier

    out = output_of(click.get_current_context())
    place, look = _folder(folder), Verifier()
    found = prune(
        place,
        older_than=None if older_than is None else days(older_than),
        larger_than=None if larger_than is None else parse_size(larger_than, "--larger-than"),
        keep=_kept(keep) if keep else None,
        damaged=(lambda path: look(path).problem) if damaged else None,
        dry_run=dry_run,
    )
    rows: list[dict[str, Any]] = [
        {"name": item.path.relative_to(place).as_posix(), "kind": item.what, "bytes": item.bytes, "stays": item.reason}
        for item in found
    ]
    size = sum(row["bytes"] for row in rows if not row["stays"])
    if out.json:
        out.document({"dry_run": dry_run, "removed": rows, "bytes": size})
        return 0
    out.table(["name", "kind", "size", "stays"], [[row["name"], row["kind"], format_size(row["bytes"]), row["stays"]] for row in rows])  # fmt: skip
    removed = sum(not row["stays"] for row in rows)
    out.news(f"{'Would remove' if dry_run else 'Removed'} {removed} files, {format_size(size)}.")
    return 0


def _argument() -> click.Argument:
    return click.Argument(["folder"], type=folder_type(), metavar="[FOLDER]", required=False)


def _without_command(context: click.Context) -> int:
    if context.invoked_subcommand is None:
        click.echo(context.get_help())
    return 0


command = click.Group(
    "store",
    callback=click.pass_context(_without_command),
    invoke_without_command=True,
    help="Look after a store: the folder of models and answers that 'ctmc run' keeps, FOLDER or that of CTMC_STORE.",
    commands=[
        Command("list", csv=True, callback=_list, params=[_argument()], help="List the models of a store."),
        Command(
            "verify",
            csv=True,
            callback=_verify,
            params=[_argument()],
            help="Look at every file of a store as 'ctmc verify' does; exit code 1 if one is damaged.",
        ),
        Command(
            "prune",
            csv=True,
            callback=_prune,
            params=[
                _argument(),
                click.Option(["--older-than"], metavar="AGE", help="Last used longer ago than 30d, 12h, 2w or 1y."),
                click.Option(["--larger-than"], metavar="SIZE", help="Files above 500MB, 2GiB, .."),
                click.Option(
                    ["--keep"],
                    type=file_type(),
                    multiple=True,
                    metavar="RESULT",
                    help="Files that this result of 'ctmc run' does not name; may be given several times.",
                ),
                click.Option(
                    ["--damaged"], is_flag=True, help="Also the files that 'ctmc store verify' complains about."
                ),
                click.Option(["--dry-run"], is_flag=True, help="Show what would be removed, and remove nothing."),
            ],
            help="Remove what killed writers left behind, and the models and answers that meet all conditions given.  Without a "
            "condition only the former goes.  Nothing is asked.",
        ),
    ],
)
