"""The runs of a comparison as a table: CSV, LaTeX, Parquet and data frames."""

from __future__ import annotations

import csv
import importlib.util
import os
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ctmc.cells import csv_cell, latex_cell
from ctmc.comparison.runs import Comparison, Run
from ctmc.errors import PluginError, printable
from ctmc.storage.atomic import replace_file

if TYPE_CHECKING:
    import pandas

COLUMNS = {
    "model": "string", "family": "string", "states": "Int64", "entries": "Int64", "levels": "Int64",
    "solver": "string", "start": "string", "tolerance": "float64", "status": "string", "reason": "string",
    "certified": "bool", "disagrees": "bool", "defect": "float64", "distance": "float64", "measure_difference": "float64",
    "truncated_mass": "float64", "iterations": "Int64", "products": "Int64", "seconds": "float64", "spread": "float64",
    "first_seconds": "float64", "wall_seconds": "float64", "cpu_seconds": "float64", "allocated_bytes": "Int64",
    "peak_bytes": "Int64", "ran": "string", "message": "string", "session": "Int64", "content_hash": "string", "command": "string",
}  # fmt: skip
"""Columns and their types in a data frame; measures follow, each as ``measure:NAME``."""


def rows(comparison: Comparison) -> list[dict[str, Any]]:
    """Return a row for each run, nothing of it rounded; None stands for what is not known.

    Examples
    --------
    >>> run = Run("queue", "gth", 1e-8, status="CONVERGED", seconds=(3.0, 1.0, 2.0), measures={"jobs": 0.5})
    >>> row = rows(Comparison("", "stationary", {}, (run,)))[0]
    >>> row["seconds"], row["certified"], row["measure:jobs"]
    (2.0, True, 0.5)
    """
    measures = dict.fromkeys(name for run in comparison.runs for name in run.measures)
    return [
        {name: _value(comparison, run, name) for name in COLUMNS}
        | {f"measure:{name}": run.measures.get(name) for name in measures}
        for run in comparison.runs
    ]


def _value(comparison: Comparison, run: Run, column: str) -> Any:
    if column in ("family", "states", "entries", "levels", "content_hash"):
        model = comparison.models.get(run.model)
        return None if model is None else getattr(model, column)
    own = {"seconds": "median_seconds", "certified": "converged"}.get(column, column)
    return getattr(run, own)


def write_csv(path: str | os.PathLike[str], comparison: Comparison, *, overwrite: bool = False) -> None:
    """Write all columns as CSV; text that a spreadsheet would take for a formula stands behind an apostrophe.

    Parameters
    ----------
    path : path-like
    comparison : Comparison
    overwrite : bool

    Raises
    ------
    StorageError
        It cannot be written, or exists.
    """
    table = rows(comparison)

    def write(temporary: Path) -> None:
        with temporary.open("w", encoding="utf-8", newline="") as file:
            writer = csv.writer(file, lineterminator="\n")
            writer.writerow([csv_cell(name) for name in (table[0] if table else COLUMNS)])
            writer.writerows([csv_cell(value) for value in row.values()] for row in table)

    replace_file(path, write, overwrite=overwrite)


def latex(comparison: Comparison) -> str:
    r"""Return a table for LaTeX with the rules of booktabs, over as many pages as it needs; numbers are rounded.

    Examples
    --------
    >>> run = Run("a_b", "gth", 1e-8, status="CONVERGED", seconds=(0.25,), products=12, iterations=10)
    >>> print(latex(Comparison("Two", "stationary", {}, (run,))).splitlines()[-2])
    a\_b & gth & 1e-08 & CONVERGED & 10 & 12 & 0.25 &  &  \\
    """
    heads = ("model", "solver", "tolerance", "status", "iterations", "products", "seconds", "defect", "MiB")
    lines = [
        r"% \usepackage[T1]{fontenc}, \usepackage{booktabs}, \usepackage{longtable}",
        r"\begin{longtable}{llrlrrrrr}",
        rf"\caption{{{latex_cell(comparison.title)}}} \\",
        r"\toprule",
        " & ".join(heads) + r" \\",
        r"\midrule",
        r"\endhead",
        r"\bottomrule",
        r"\endfoot",
    ]
    for run in comparison.runs:
        memory = None if run.allocated_bytes is None else run.allocated_bytes / 2**20
        cells = (
            run.model, run.label, f"{run.tolerance:.0e}", run.status + (" (disagrees)" if run.disagrees else ""),
            *(_rounded(value, form) for value, form in (
                (run.iterations, "d"), (run.products, "d"), (run.median_seconds, ".3g"), (run.defect, ".2e"), (memory, ".1f"),
            )),
        )  # fmt: skip
        lines.append(" & ".join(map(latex_cell, cells)) + r" \\")
    return "\n".join([*lines, r"\end{longtable}", ""])


def _rounded(value: float | None, form: str) -> str:
    return "" if value is None else format(value, form)


def write_latex(path: str | os.PathLike[str], comparison: Comparison, *, overwrite: bool = False) -> None:
    """Write what `latex` returns.

    Raises
    ------
    StorageError
        It cannot be written, or exists.
    """
    content = latex(comparison).encode()

    def write(temporary: Path) -> None:
        temporary.write_bytes(content)

    replace_file(path, write, overwrite=overwrite)


def require(*libraries: str) -> None:
    """Complain about a library of the extra `dataframe` that is missing.

    Raises
    ------
    PluginError

    Examples
    --------
    >>> require("crystal_ball")
    Traceback (most recent call last):
    ctmc.errors.PluginError: the table needs crystal_ball: pip install 'ctmc-lab[dataframe]'.
    """
    for name in libraries:
        if importlib.util.find_spec(name) is None:
            raise PluginError(f"the table needs {name}: pip install 'ctmc-lab[dataframe]'.")


def to_dataframe(comparison: Comparison) -> pandas.DataFrame:
    """Return the runs as a pandas data frame, with the same types of columns whatever they hold.

    Parameters
    ----------
    comparison : Comparison

    Returns
    -------
    pandas.DataFrame
        The columns `COLUMNS`, and one for each measure.

    Raises
    ------
    PluginError
        pandas is not installed.
    """
    require("pandas")
    import pandas

    table = rows(comparison)
    names = list(table[0]) if table else list(COLUMNS)
    return pandas.DataFrame(
        {name: pandas.Series([row[name] for row in table], dtype=COLUMNS.get(name, "float64")) for name in names}
    )


def write_parquet(path: str | os.PathLike[str], comparison: Comparison, *, overwrite: bool = False) -> None:
    """Write all columns as Parquet, by pandas and pyarrow.

    Raises
    ------
    PluginError
        One of them is not installed.
    StorageError
        It cannot be written, or exists.
    """
    require("pandas", "pyarrow")
    frame = to_dataframe(comparison)
    for name in frame.columns:
        if frame[name].dtype == "string":  # Parquet holds Unicode only
            frame[name] = frame[name].map(lambda text: printable(text), na_action="ignore")
    replace_file(path, lambda temporary: frame.to_parquet(temporary, engine="pyarrow"), overwrite=overwrite)
