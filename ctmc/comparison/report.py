"""A comparison as one page of HTML that needs no network: failures first, who wins where, figures, and a table to sort and filter.

Everything that a file has brought is text: the template escapes it, the data stand in a block of JSON that no browser runs, and the
page's policy allows no script and no style but its own two, by their hashes.
"""

from __future__ import annotations

import base64
import hashlib
import json
import math
import os
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from importlib import resources
from pathlib import Path
from typing import Any

import numpy as np

from ctmc.comparison.charts import chart_of_costs
from ctmc.comparison.runs import OUTCOMES, Comparison, Run
from ctmc.comparison.standings import COSTS, families, places, records
from ctmc.errors import printable
from ctmc.model.memory import format_size
from ctmc.storage.atomic import replace_file

_HISTORY_POINTS = 48
"""Of each run, in the page: as many as a small picture shows."""
_LISTED = 200
"""Rows of a list that stands open in the page; the table has all of them."""


@dataclass(frozen=True)
class Figure:
    """A picture for the page.

    Attributes
    ----------
    title : str
        For those who cannot see it.
    description : str
        What it shows, as a sentence.
    svg : str
        Shown as an image, so that nothing in it runs.
    """

    title: str
    description: str
    svg: str

    @property
    def address(self) -> str:
        """The picture as a ``data:`` address."""
        return "data:image/svg+xml;base64," + base64.b64encode(self.svg.encode()).decode()


@dataclass(frozen=True)
class Trouble:
    """Runs of one solver that ended alike without a certified answer.

    Attributes
    ----------
    label, status, reason, message : str
        The message of the first.
    runs : tuple of Run
    families : mapping of str to str
        Of models.
    """

    label: str
    status: str
    reason: str
    message: str
    runs: tuple[Run, ...]
    families: Mapping[str, str] = field(default_factory=dict)

    @property
    def models(self) -> str:
        """The models, as far as there is room; several of one family by its name."""
        found: dict[str, list[str]] = {}
        for run in self.runs:
            names = found.setdefault(self.families.get(run.model, run.model), [])
            if run.model not in names:
                names.append(run.model)
        parts = [names[0] if len(names) == 1 else f"{len(names)} models of {family}" for family, names in found.items()]
        more = len(parts) - 4
        return ", ".join(parts) if more <= 1 else ", ".join(parts[:4]) + f" and {more} more"


def troubles(comparison: Comparison) -> tuple[Trouble, ...]:
    """Return the failures, those put together that end alike, the most frequent first.

    Examples
    --------
    >>> runs = tuple(Run(model, "gmres", 1e-8, status="STAGNATED") for model in ("a", "b", "c"))
    >>> [(one.status, one.models) for one in troubles(Comparison("", "stationary", {}, runs))]
    [('STAGNATED', 'a, b, c')]
    """
    families = {name: model.family or name for name, model in comparison.models.items()}
    found: dict[tuple[str, str, str], list[Run]] = {}
    for run in comparison.failures:
        found.setdefault((run.status, run.reason, run.label), []).append(run)
    grouped = [
        Trouble(label, status, reason, runs[0].message, tuple(runs), families)
        for (status, reason, label), runs in found.items()
    ]
    return tuple(sorted(grouped, key=lambda one: -len(one.runs)))


def report(comparison: Comparison, figures: Sequence[Figure] = ()) -> str:
    """Return the page.

    Parameters
    ----------
    comparison : Comparison
    figures : sequence of Figure
        Shown after the two charts that every page has.

    Returns
    -------
    str
        HTML.

    Examples
    --------
    >>> page = report(Comparison("<b>", "stationary", {}, (Run("<img>", "gth", 1e-8, status="CONVERGED"),)))
    >>> page.count("<title>&lt;b&gt;"), "<img" in page, "https:" in page
    (1, False, False)
    """
    import jinja2

    environment = jinja2.Environment(
        autoescape=True, undefined=jinja2.StrictUndefined, trim_blocks=True, lstrip_blocks=True, finalize=_shown
    )
    style, script = _part("report.css"), _part("report.js")
    environment.filters |= {"size": _size, "number": _number, "fragment": _fragment}
    by = {measure: places(comparison, measure) for measure in COSTS}
    return environment.from_string(_part("report.html")).render(
        comparison=comparison,
        style=_safe(style),
        script=_safe(script),
        style_hash=_hash(style),
        script_hash=_hash(script),
        data=_safe(_json(comparison)),
        certified=sum(run.converged for run in comparison.runs),
        not_run=sum(run.status == "NOT_RUN" for run in comparison.runs),
        disagreements=comparison.disagreements,
        troubles=troubles(comparison),
        places=list(zip(*(by[measure] for measure in COSTS), strict=True)),
        families=families(comparison),
        records=records(comparison),
        charts=[chart for chart in (chart_of_costs(comparison, measure) for measure in COSTS) if chart],
        figures=figures,
        outcomes={run.status: OUTCOMES[run.status] for run in comparison.runs},
        sessions=[list(_facts(session)) for session in comparison.sessions],
        listed=_LISTED,
    )


def write_report(
    path: str | os.PathLike[str], comparison: Comparison, figures: Sequence[Figure] = (), *, overwrite: bool = False
) -> None:
    """Write the page.

    Parameters
    ----------
    path : path-like
    comparison : Comparison
    figures : sequence of Figure
    overwrite : bool

    Raises
    ------
    StorageError
        It cannot be written, or exists.
    """
    content = report(comparison, figures).encode()

    def write(temporary: Path) -> None:
        temporary.write_bytes(content)

    replace_file(path, write, overwrite=overwrite)


def _part(name: str) -> str:
    return (resources.files("ctmc.comparison") / "page" / name).read_text(encoding="utf-8")


def _hash(text: str) -> str:
    return f"sha256-{base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()}"


def _safe(text: str) -> Any:
    import markupsafe

    return markupsafe.Markup(text)  # our own files, and JSON without a "<"


def _shown(value: Any) -> Any:
    """Return what the template shows: text without control characters."""
    if value is None:
        return ""
    return printable(value) if type(value) is str else value


def _size(value: int | None) -> str:
    return "" if value is None else format_size(value)


def _number(value: float | None) -> str:
    if value is None or not math.isfinite(value):
        return ""
    if float(value).is_integer() and abs(value) < 1e15:
        return f"{value:,.0f}"
    mantissa, e, exponent = f"{value:.3g}".partition("e")
    return f"{mantissa}{e}{int(exponent)}" if e else mantissa


def _fragment(state: Mapping[str, Any]) -> str:
    from urllib.parse import urlencode

    return "#" + urlencode({name: printable(value) for name, value in state.items()})


def _facts(content: Mapping[str, Any], prefix: str = "") -> Iterator[tuple[str, str]]:
    for name, value in content.items():
        label = prefix + str(name).replace("_", " ")
        if isinstance(value, Mapping):
            yield from _facts(value, f"{label}: ")
        elif value is not None:
            if str(name).endswith(("_bytes", "memory_limit")) and isinstance(value, int):
                value = f"{format_size(value)} ({value} bytes)"
            yield label, ", ".join(map(str, value)) if isinstance(value, list | tuple) else str(value)


def _json(comparison: Comparison) -> str:
    """Return the runs as JSON that can stand inside HTML: without a character that could end its block."""
    models = {
        printable(name): {"family": printable(model.family), "states": model.states, "entries": model.entries}
        for name, model in comparison.models.items()
    }
    content = {"models": models, "runs": [_plain(run) for run in comparison.runs]}
    text = json.dumps(content, separators=(",", ":"), allow_nan=False)
    return text.replace("<", "\\u003c").replace(">", "\\u003e").replace("&", "\\u0026")


def _plain(run: Run) -> dict[str, Any]:
    # also the command, which somebody pastes into a terminal, has no control characters
    texts = {
        name: printable(getattr(run, name))
        for name in ("model", "label", "status", "reason", "message", "ran", "command")
    }
    numbers = {
        name: getattr(run, name)
        for name in (
            "tolerance", "defect", "distance", "measure_difference", "truncated_mass", "iterations", "products", "spread",
            "first_seconds", "wall_seconds", "cpu_seconds", "allocated_bytes", "peak_bytes",
        )
    }  # fmt: skip
    content: dict[str, Any] = texts | {
        **numbers, "seconds": run.median_seconds, "repeats": list(run.seconds), "session": run.session + 1,
        "disagrees": run.disagrees,
        "measures": {printable(name): value for name, value in run.measures.items()}, "history": _thinned(run.history),
    }  # fmt: skip
    # a zero is known, too
    return {name: _finite(value) for name, value in content.items() if value is not None and value not in ("", [], {})}


def _finite(value: Any) -> Any:
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if isinstance(value, dict):
        return {name: _finite(item) for name, item in value.items()}
    if isinstance(value, list):
        return [_finite(item) for item in value]
    return value


def _thinned(history: np.ndarray) -> list[list[float]]:
    """Return (products, log10 of the defect) at some of the checks, the first and the last among them."""
    known = history[np.isfinite(history["defect"]) & (history["defect"] > 0)]
    if len(known) < 2:
        return []
    chosen = known[np.unique(np.linspace(0, len(known) - 1, _HISTORY_POINTS).round().astype(np.int64))]
    exponents = np.round(np.log10(chosen["defect"]), 2).tolist()
    return [[products, exponent] for products, exponent in zip(chosen["products"].tolist(), exponents, strict=True)]
