"""``ctmc plot``: the figures of a comparison, or of one answer."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import click

from ctmc.cli.app import Command, output_of
from ctmc.cli.options import code_option, file_type, limits, memory_option, names_starting
from ctmc.errors import CTMCError, ModelError, StorageError, UnknownNameError, printable, shown, unknown_name

FORMATS = ("svg", "pdf", "png")
_SUFFIX = ".solutions"

Jobs = Iterator[tuple[str, Callable[[Path], Any]]]
"""Names of figures, and what draws each into a file."""


def _plot(
    source: str | None,
    target: str | None,
    figure: str | None,
    measure: str | None,
    names: tuple[str, ...],
    model: str | None,
    kind: str,
    listing: bool,
    memory_limit: str | None,
    allow_code: bool,
) -> int:
    from ctmc.study.pictures import check_picture

    output = output_of(click.get_current_context())
    if listing:
        rows = _listed()
        if output.json:
            output.document({"figures": [dict(zip(("figure", "of", "about"), row, strict=True)) for row in rows]})
        else:
            output.table(("figure", "of", "about"), rows)
        return 0
    if source is None or target is None:
        raise click.UsageError(
            f"Missing {'SOURCE' if source is None else '-o FILE'}; 'ctmc plot --list' names the figures."
        )
    if kind not in FORMATS:
        raise ModelError(f"--format is {shown(kind)}; allowed are {', '.join(FORMATS)}.")
    if figure is not None:
        check_picture(target)
    elif os.path.lexists(target) and not os.path.isdir(target):
        raise ModelError(f"-o is {shown(target)}, a file; all figures need a folder, one needs --figure NAME.")
    else:
        check_picture(f"figure.{kind}")
    drawn = []
    if figure is not None and figure not in _figure_names():
        raise unknown_name("figure", figure, _figure_names())
    with limits(None, memory_limit, allow_code):
        jobs = list(_jobs(source, figure, measure, list(names), model))
        if figure is None:
            _make_folder(Path(target))
        for name, draw in jobs:
            path = Path(target) if figure is not None else Path(target) / f"{name}.{kind}"
            draw(path)
            drawn.append({"figure": name, "file": str(path)})
    if output.json:
        output.document({"source": source, "figures": drawn})
    else:
        for row in drawn:
            output.write(f"Drawn: {row['file']}")
    return 0


def _make_folder(folder: Path) -> None:
    try:
        folder.mkdir(exist_ok=True)
    except OSError as error:
        raise StorageError(f"Cannot make the folder {printable(folder)}: {error.strerror}.") from error


def _listed() -> list[tuple[str, str, str]]:
    from ctmc.comparison.figures import FIGURES
    from ctmc.study.answer_figures import ANSWER_FIGURES

    rows = [(name, "a comparison", f"{one.about}  By {' or '.join(one.measures)}.") for name, one in FIGURES.items()]
    return rows + [(name, "an answer", one.about) for name, one in ANSWER_FIGURES.items()]


def _figure_names() -> list[str]:
    return [name for name, _, _ in _listed()]


def _jobs(source: str, figure: str | None, measure: str | None, names: list[str], model: str | None) -> Jobs:
    """Yield what is to be drawn; everything that is wrong with the request is found before the first figure."""
    from ctmc.comparison.files import KIND
    from ctmc.storage.container import read_container
    from ctmc.storage.models import MODEL_KINDS

    found = read_container(source, (KIND, "solution", *MODEL_KINDS), only=()).kind
    if found == KIND:
        if model is not None:
            raise ModelError(f"--model is given, but {printable(source)} is a comparison.")
        yield from _of_comparison(source, figure, measure, names)
    else:
        if measure is not None:
            raise ModelError(f"--measure belongs to comparisons, but {printable(source)} is none.")
        yield from _of_answer(_solution(source, found, model), figure, names)


def _of_comparison(source: str, figure: str | None, measure: str | None, names: list[str]) -> Jobs:
    from ctmc.comparison.figures import FIGURES
    from ctmc.comparison.files import load_comparison
    from ctmc.comparison.model_figures import PER_MODEL
    from ctmc.comparison.profiles import check_measure

    if figure is not None and figure not in FIGURES:
        raise _no_figure(figure, FIGURES)
    if measure is not None:
        check_measure(measure)
    if names and figure not in PER_MODEL:
        raise ModelError(f"--name chooses models for the figures {', '.join(PER_MODEL)} with --figure.")
    comparison = load_comparison(source)

    def job(name: str, by: str) -> Callable[[Path], Any]:
        chosen = {"models": names} if names else {}
        return lambda path: FIGURES[name].draw(comparison, path, measure=by, **chosen)

    for name, one in FIGURES.items():
        if figure is None:
            for by in one.measures if measure is None else (measure,):
                if by in one.allowed:
                    yield f"{name}-{by}", job(name, by)
        elif name == figure:
            by = measure or one.measures[0]
            if by not in one.allowed:
                raise ModelError(f"--measure is {shown(by)}; allowed are {', '.join(one.allowed)} for {name}.")
            yield f"{name}-{by}", job(name, by)


def _of_answer(solution: Any, figure: str | None, names: list[str]) -> Jobs:
    from ctmc.study.answer_figures import ANSWER_FIGURES

    fitting = {name: one for name, one in ANSWER_FIGURES.items() if one.fits(solution)}
    if figure is not None and figure not in ANSWER_FIGURES:
        raise _no_figure(figure, ANSWER_FIGURES)
    if figure is not None and figure not in fitting:
        raise ModelError(f"the figure {figure!r} does not fit this answer; these do: {', '.join(fitting) or 'none'}.")
    if names and figure is None:
        raise ModelError("--name chooses variables for one figure; add --figure NAME.")
    for name, one in fitting.items():
        if figure in (None, name):
            yield name, lambda path, one=one: one.draw(solution, path, names=names)  # type: ignore[misc]  # bound while it is made


def _no_figure(name: str, known: Any) -> UnknownNameError:
    return unknown_name("figure of this kind", name, known)


def _solution(source: str, kind: str, model: str | None) -> Any:
    """Return the answer in a file, or the long-run one that is kept beside a model."""
    from ctmc.storage import load, load_solution
    from ctmc.study.answers import restored

    if kind == "solution":
        path, of = Path(source), _model_of(Path(source), model)
    else:
        if model is not None:
            raise ModelError(f"--model is given, but {printable(source)} is a model itself.")
        path, of = _answer_beside(source), Path(source)
    stored = load_solution(path)
    if stored.status.name != "CONVERGED":
        raise ModelError(f"{printable(path)} is no certified answer: {stored.status.name}.")
    return restored(load(of), stored)


def _model_of(solution: Path, given: str | None) -> Path:
    if given is not None:
        return Path(given)
    folder = solution.absolute().parent
    path = folder.with_name(folder.name.removesuffix(_SUFFIX) + ".h5")
    if not folder.name.endswith(_SUFFIX) or not path.is_file():
        raise ModelError(f"the model of {printable(solution)} does not stand beside its folder; add --model FILE.")
    return path


def _answer_beside(source: str) -> Path:
    """Return a certified long-run answer of a model; of several the one with the smallest defect."""
    from ctmc.storage import read_info, solution_paths

    digest = read_info(source)["content_hash"]
    found = []
    for path in solution_paths(source):
        try:
            info = read_info(path)
        except CTMCError:
            continue  # what cannot be read is no answer
        if (info.get("problem"), info.get("status"), info.get("model_hash")) == ("stationary", "CONVERGED", digest):
            found.append((float(info.get("defect") or 0.0), str(path)))
    if not found:
        raise ModelError(
            f"there is no certified long-run answer beside {printable(source)}; solve it first, or name the file of a solution."
        )
    return Path(min(found)[1])


command = Command(
    "plot",
    callback=_plot,
    params=[
        click.Argument(["source"], type=file_type(), metavar="SOURCE", required=False),
        click.Option(
            ["-o", "--output", "target"], type=file_type(), metavar="FILE",
            help="A .svg, .pdf or .png with --figure, else a folder for all that fit.",
        ),
        click.Option(["--figure"], metavar="NAME", shell_complete=names_starting(_figure_names), help="One figure; --list names them."),
        click.Option(["--measure"], metavar="products|seconds|memory", help="Of a comparison: by what it is drawn."),
        click.Option(
            ["--name", "names"], multiple=True, metavar="NAME",
            help="Models of a comparison, or variables such as queue_length[0]; may be repeated.",
        ),
        click.Option(["--model"], type=file_type(), metavar="FILE", help="Of a solution that does not stand beside its model."),
        click.Option(["--format", "kind"], default="svg", show_default=True, metavar="|".join(FORMATS), help="In a folder.",
                     shell_complete=names_starting(lambda: FORMATS)),
        click.Option(["--list", "listing"], is_flag=True, help="Name the figures, with a sentence each."),
        memory_option(),
        code_option(),
    ],
    help="Draw the figures of a comparison, or of one answer.\n\nSOURCE is a comparison, a solution, or a model with a certified "
    "long-run answer beside it.  Files that were not drawn by ctmc are never replaced.\n\n\b\nExamples\n"
    "  ctmc plot comparison.h5 -o figures\n"
    "  ctmc plot comparison.h5 --figure profile --measure products -o profile.pdf\n"
    "  ctmc plot model.h5 --figure joint --name queue_length[0] --name queue_length[2] -o joint.svg\n"
    "  ctmc plot model.solutions/transient-uniformization.h5 -o figures",
)  # fmt: skip
