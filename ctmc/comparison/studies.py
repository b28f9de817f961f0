"""Models to compare on: those of a study, which are built once and kept in its store, and files of any format."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from shlex import quote

from ctmc import registry
from ctmc.comparison.settings import Entry
from ctmc.errors import CTMCError, printable
from ctmc.interchange.formats import OWN, format_of
from ctmc.storage.store import Store
from ctmc.study.content import Study, StudyModel
from ctmc.study.models import Supply
from ctmc.study.sweep import shown


def entries_of_study(
    study: Study,
    store: Store,
    *,
    news: Callable[[str], object] = lambda text: None,
    stopped: Callable[[], bool] = lambda: False,
    rebuild: bool = False,
    dry: bool = False,
) -> Iterator[Entry]:
    """Yield the models that a study compares on; one that cannot be built is an entry that says why.

    Parameters
    ----------
    study : Study
        With a table ``[compare]``.
    store : Store
        Where models are found, or go.
    news, stopped : callable
        As `ctmc.study.models.Supply` takes them.
    rebuild : bool
    dry : bool
        Build and read nothing; what the store does not have is then an entry without a file.
    """
    supply = Supply(store, rebuild=rebuild, news=news, stopped=stopped)
    for name in study.compare.models if study.compare is not None else ():
        model = study.models[name]
        family, recipe = model.group or name, build_command(model)
        try:
            if stopped():
                yield Entry(
                    name, None, family, recipe, model.point, "the comparison was interrupted before it was built."
                )
                continue
            if model.file is not None:
                source = Path(study.source)
                path = (source.parent if source.is_file() else Path()) / model.file
                if dry and format_of(path).name != OWN:
                    yield Entry(name, None, family, recipe, model.point, unbuilt=True)
                    continue
                supplied = supply.given(path)
            else:
                prepared = registry.prepare(model.builder, **model.parameters)
                if dry and supply.plan(prepared).path is None:
                    yield Entry(
                        name, None, family, recipe, model.point, kind=_kind_built_by(model.builder), unbuilt=True
                    )
                    continue
                supplied = supply.get(name, model.builder, prepared)
            assert supplied.path is not None
            yield Entry(name, supplied.path.resolve(), family, recipe, model.point)
        except CTMCError as error:
            yield Entry(name, None, family, recipe, model.point, str(error))


def entries_of_files(paths: Sequence[str], store: Callable[[], Store], *, dry: bool = False) -> Iterator[Entry]:
    """Yield entries for model files of any format; those of other programs are read once, into a store.

    Parameters
    ----------
    paths : sequence of str
    store : callable
        Returns the store; asked only if a file is not of our own format.
    dry : bool
        Read no file of another format; it is then an entry without a file.
    """
    names: set[str] = set()
    for path in map(Path, paths):
        name = path.stem if path.stem not in names else str(path)
        names.add(name)
        try:
            if format_of(path).name == OWN:
                yield Entry(name, path.resolve())
                continue
            if dry:
                yield Entry(name, None, unbuilt=True)
                continue
            supply = Supply(store(), rebuild=False, news=lambda text: None, stopped=lambda: False)
            supplied = supply.given(path)
            assert supplied.path is not None
            yield Entry(name, supplied.path.resolve())
        except CTMCError as error:
            yield Entry(name, None, message=str(error))


def _kind_built_by(builder: str) -> str:
    """Return the class of the models of a builder as it is declared, '' where that leaves it open."""
    declared = inspect.signature(registry.builder(builder)).return_annotation
    name = declared if isinstance(declared, str) else getattr(declared, "__name__", "")
    return name if name in ("Generator", "QBD") else ""


def build_command(model: StudyModel) -> str:
    """Return the command that builds a model of a study, '' for one that is read from a file.

    Examples
    --------
    >>> build_command(StudyModel("queue", "birth_death", {"births": [1.0, 2.0], "deaths": [3.0, 3.0]}))
    'ctmc build birth_death --births 1,2 --deaths 3,3'
    """
    if not model.builder:
        return ""
    parts = [f"ctmc build {model.builder}"]
    for name, value in model.parameters.items():
        flag = name.replace("_", "-")
        if isinstance(value, bool):
            parts.append(f"--{flag}" if value else f"--no-{flag}")
        else:
            parts.append(f"--{flag} {quote(printable(shown(value)))}")
    return " ".join(parts)
