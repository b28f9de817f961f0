"""Where a run may write, and the result file it writes."""

from __future__ import annotations

import math
import os
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from ctmc.errors import StorageError, StudyError, printable, shown
from ctmc.study.content import Study

if TYPE_CHECKING:
    from ctmc.storage.store import Store
    from ctmc.study.run import StudyResult

KIND = "study"


def output_path(study: Study, given: str | Path | None) -> Path:
    """Return where the result goes.

    A study is somebody's file: what it names must lie below the current folder, whatever symbolic links say.  What the
    user gives may lie anywhere.

    Raises
    ------
    StudyError
        If the study's own output leads out of the current folder.
    """
    if given is not None:
        return Path(given)
    name = f"{Path(study.source).stem}.h5" if study.output is None else study.output
    path = Path(name)
    if not name or "\0" in name or path.name in ("", "..") or name.endswith("/"):
        raise StudyError(f"{printable(study.source)}: output is {shown(name)}; allowed is the name of a file.")
    if path.is_absolute() or ".." in path.parts:
        raise StudyError(
            f"{printable(study.source)}: output is {shown(name)}; allowed is a path below the current folder, "
            "or give another with --output."
        )
    here = Path.cwd().resolve()
    plots = [plot_path(path, number) for number in range(len(study.plots))]
    for place in (path.parent, path, store_path(path), picture_path(path), *plots):
        if not place.resolve().is_relative_to(here):
            raise StudyError(
                f"{printable(study.source)}: output is {shown(name)}, and {printable(place)} is a symbolic link that "
                "leads out of the current folder; remove it, or give another output with --output."
            )
    return path


def store_path(output: Path) -> Path:
    """Return the folder of the models and solutions."""
    return output.with_name(f"{output.stem}.store")


def picture_path(output: Path) -> Path:
    """Return the file of the convergence picture."""
    return output.with_name(f"{output.stem}.png")


def plot_path(output: Path, number: int) -> Path:
    """Return the file of a ``[[plot]]``, counted from 0 here and from 1 in the name."""
    return output.with_name(f"{output.stem}-plot{number + 1}.png")


def prepare(output: Path, *, trusted: bool) -> None:
    """Check that the result can be written later, and make its folder.

    Raises
    ------
    StudyError
        If something stands in the way that is not ours.
    """
    from ctmc.storage.container import read_container

    if os.path.lexists(output):
        try:
            read_container(output, (KIND,), only=())
        except StorageError as error:
            reason = str(error).partition(": ")[2] or str(error)
            raise StudyError(
                f"{printable(output)} exists and is not the result of a study ({reason.rstrip('.')}); it is never replaced."
            ) from None
    if not output.parent.is_dir():
        if trusted or output.parent.exists():
            raise StudyError(f"Cannot write {printable(output)}: there is no folder {printable(output.parent)}.")
        output.parent.mkdir(parents=True)


def open_store_of(output: Path, given: str | Path | None, news: Callable[[str], object]) -> Store:
    """Return the store of a run: the folder given, that of CTMC_STORE, or the one beside the output.

    Raises
    ------
    StorageError
        If it cannot be made; one that cannot be written is read only.
    """
    from ctmc.storage.store import open_store

    own = store_path(output)
    chosen = chosen_store(output, given)
    store = open_store(chosen, own)
    if store.others:
        news(
            f"The store {printable(chosen)} cannot be written; it is read, and what is new goes into {printable(own)}."
        )
    return store


def planned_store(output: Path, given: str | Path | None) -> Store:
    """Return the store that a run would have; nothing is made."""
    from ctmc.storage.store import Store

    own, chosen = store_path(output), chosen_store(output, given)
    return Store(chosen, () if chosen == own else (own,))


def chosen_store(output: Path, given: str | Path | None) -> Path:
    """Return the folder that the user names, by an option or by CTMC_STORE, or the one beside the output."""
    named = given or os.environ.get("CTMC_STORE")
    return Path(named) if named else store_path(output)


def write(study: Study, result: StudyResult) -> None:
    """Write the result file: the rows and measures, the histories, the text of the study, the versions."""
    from ctmc.storage.container import write_container
    from ctmc.storage.models import about

    arrays: dict[str, np.ndarray] = {}
    histories = []
    for number, history in enumerate(result.histories):
        histories.append(
            {
                "model": history.model,
                "problem": history.problem,
                "solver": history.solver,
                "tolerance": history.tolerance,
            }
        )
        for name in history.records.dtype.names or ():
            arrays[f"histories/{number}/{name}"] = np.ascontiguousarray(history.records[name])
    manifest = {
        "title": study.title,
        "study": study.text,
        "changes": list(study.changes),
        "stopped": result.stopped,
        "rows": [plain_row(row) for row in result.rows],
        "histories": histories,
        "about": about(),
    }
    write_container(result.output, KIND, manifest, arrays, overwrite=True)


def plain_row(row: Any) -> dict[str, Any]:
    """Return a row as JSON takes it: arrays as lists, numbers that are not finite as None."""
    import dataclasses

    return {item.name: _plain(getattr(row, item.name)) for item in dataclasses.fields(row)}


def _plain(value: Any) -> Any:
    if isinstance(value, dict):
        return {name: _plain(item) for name, item in value.items()}
    if isinstance(value, np.ndarray | np.generic):
        value = value.tolist()
    if isinstance(value, list | tuple):
        return [_plain(item) for item in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value
