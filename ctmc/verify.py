"""Whether a file can be trusted: every byte against its hashes, models against their laws, answers against their equations.

Models are read slab by slab in one pass, so that those larger than memory are verified, too.  What was looked at, and what could
not be, stands in the rows of a `Report`.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ctmc.errors import CTMCError, StorageError, printable
from ctmc.model.generator import Generator
from ctmc.model.memory import format_size, memory_limit
from ctmc.model.qbd import QBD
from ctmc.recheck import RIGHT, UNCHECKED, WRONG, Row, check_answer
from ctmc.storage import variants
from ctmc.storage.atomic import checked_path
from ctmc.storage.container import OpenContainer, open_container
from ctmc.storage.fields import field, fields
from ctmc.storage.models import MODEL_KINDS, about_file
from ctmc.storage.solutions import load_solution
from ctmc.storage.stored import load_or_open, open_model

OTHER_KINDS = {
    "checkpoint": ("question", "runs"),
    "study": ("study", "rows", "histories"),
    "search": ("search", "best"),
    "comparison": ("title", "problem", "sessions"),
}
"""What the manifests of files that hold neither a model nor an answer must have."""

Progress = Callable[[int, int], None]


@dataclass(frozen=True)
class Report:
    """What was found about a file.

    Attributes
    ----------
    path : Path
    kind : str
        'generator', 'qbd', 'variant', 'solution', 'checkpoint', 'study', 'search' or 'comparison'; '' where it cannot be read.
    rows : tuple of Row
        In the order in which things were looked at; the first that is wrong is the last.
    """

    path: Path
    kind: str
    rows: tuple[Row, ...]

    @property
    def problem(self) -> str:
        """What is wrong, as one sentence; '' where nothing is."""
        wrong = next((row.detail for row in self.rows if row.result == WRONG), "")
        named = printable(self.path)
        return wrong if not wrong or named in wrong else f"{named}: {wrong}"

    @property
    def trusted(self) -> bool:
        """Whether nothing is wrong."""
        return not self.problem


def verify(path: str | os.PathLike[str], *, progress: Progress | None = None) -> Report:
    """Read a file with all its hashes, and prove again what it says as far as that is possible from what it keeps.

    Parameters
    ----------
    path : path-like
        A file that ctmc wrote, of any kind.  The model of a solution is looked for beside the folder of the solution.
    progress : callable, optional
        Called with what is done and what is to do, in bytes or transitions.

    Returns
    -------
    Report
        A file that cannot be trusted is no error: `Report.problem` names what is wrong with it.

    Examples
    --------
    >>> import tempfile, ctmc
    >>> queue = ctmc.build("birth_death", births=[1.0], deaths=[2.0])
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     digest = ctmc.save(f"{folder}/queue.h5", queue)
    ...     report = verify(f"{folder}/queue.h5")
    >>> report.problem, len(report.rows), report.rows[1].detail
    ('', 2, '2 states and 2 transitions are a generator, every byte read.')
    """
    return Verifier()(path, progress=progress)


class Verifier:
    """Does the same for several files; the model of the last solution stays open, as the next may be about it too."""

    def __init__(self) -> None:
        self._kept: tuple[tuple[Any, ...], Generator | QBD] | None = None

    def __call__(self, path: str | os.PathLike[str], *, progress: Progress | None = None) -> Report:
        """Return the report on a file."""
        path, rows, kind = checked_path(path), list[Row](), ""
        try:
            file = open_container(path, (*MODEL_KINDS, "solution", *OTHER_KINDS))
            kind = file.kind
            rows.append(Row("manifest", RIGHT, f"content hash {file.content_hash[:12]}.."))
            look = self._model if kind in MODEL_KINDS else self._solution if kind == "solution" else self._other
            for row in look(file, progress):
                rows.append(row)
                if row.result == WRONG:
                    break
        except CTMCError as error:
            rows.append(Row("file", WRONG, str(error)))
        return Report(path, kind, tuple(rows))

    def _model(self, file: OpenContainer, progress: Progress | None) -> Iterator[Row]:
        if file.kind != variants.KIND:
            yield Row("model", RIGHT, _described(open_model(file.path, progress=progress)))
            return
        with about_file(file.path):
            origin = variants.origin_of(file.manifest)
        model = load_or_open(file.path, progress)
        parent = printable(origin.beside(file.path))
        yield Row("parent", RIGHT, f"{parent} is the model with the hash {origin.parent_hash[:12]}..")
        yield Row("model", RIGHT, f"{_described(model)[:-1]}; its rates and its hash are those stored.")

    def _solution(self, file: OpenContainer, progress: Progress | None) -> Iterator[Row]:
        yield _bytes_read(file, progress)
        if sum(array.size for array in file.stored.values()) > memory_limit():
            yield Row("certificate", UNCHECKED, "its vectors do not fit the memory limit.")
            return
        stored = load_solution(file.path)
        folder = file.path.absolute().parent
        place = folder.with_name(folder.name.removesuffix(".solutions") + ".h5")
        if not folder.name.endswith(".solutions") or not place.is_file():
            yield Row("model", UNCHECKED, "hash only: no model stands beside its folder.")
            return
        model = self._model_at(place, progress)
        if model.content_hash != stored.model_hash:
            yield Row("model", WRONG, f"it is an answer about another model than {printable(place.name)} holds.")
            return
        yield Row("model", RIGHT, f"{printable(place.name)}, verified as well.")
        yield from check_answer(stored, model)

    def _other(self, file: OpenContainer, progress: Progress | None) -> Iterator[Row]:
        yield _bytes_read(file, progress)
        with about_file(file.path):
            missing = [name for name in OTHER_KINDS[file.kind] if name not in file.manifest]
            if missing:
                raise StorageError(f"its manifest has no {missing[0]!r}")
            if file.kind == "study":
                _check_study(file)
            if file.kind == "comparison":
                _check_comparison(file)
        if file.kind == "checkpoint":
            yield Row("vectors", UNCHECKED, "they are claims, which the solve that goes on from them certifies.")

    def _model_at(self, place: Path, progress: Progress | None) -> Generator | QBD:
        status = os.stat(place)
        key = (place, status.st_ino, status.st_mtime_ns, status.st_size)
        if self._kept is None or self._kept[0] != key:
            self._kept = None  # before the next takes room
            self._kept = key, load_or_open(place, progress)
        return self._kept[1]


def _bytes_read(file: OpenContainer, progress: Progress | None) -> Row:
    size = file.verify(progress)
    return Row("arrays", RIGHT, f"{len(file.stored)} arrays, {format_size(size)}, match their digests.")


def _check_study(file: OpenContainer) -> None:
    """Check that the histories of a study have what their list says, and its rows are rows."""
    fields(file.manifest, "rows", dict)
    field(file.manifest, "study", str)
    for number, _ in enumerate(fields(file.manifest, "histories", dict)):
        names = [name for name in file.stored if name.startswith(f"histories/{number}/")]
        if len({file.stored[name].shape for name in names}) != 1:
            raise StorageError(f"history {number} has no columns, or columns of different lengths")


def _check_comparison(file: OpenContainer) -> None:
    """Check that the lists of runs and models, and the histories, are there."""
    fields(file.manifest, "sessions", dict)
    for name in ("runs", "models", "history/begins"):
        if name not in file.stored:
            raise StorageError(f"it has no array {name!r}")


def _described(model: Generator | QBD) -> str:
    if isinstance(model, QBD):
        return f"{model.boundary_levels} boundary levels and {model.phase_count} phases are a QBD, every byte read."
    return f"{model.size:,} states and {model.entries:,} transitions are a generator, every byte read."


__all__ = ["Report", "Row", "Verifier", "verify"]
