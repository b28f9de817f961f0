"""Which solver when: tables from a comparison that `ctmc compare which_solver` has made.

python benchmarks/which_solver.py which_solver.h5               the table of the README, a row for each family of models
python benchmarks/which_solver.py which_solver.h5 --all         also a row for each solver and for each model
python benchmarks/which_solver.py which_solver.h5 --runs        also a line for each answer: its cost beside the best one and bicgstab
python benchmarks/which_solver.py which_solver.h5 --advice      what `ctmc advise` names for each model, beside the best time
python benchmarks/which_solver.py which_solver.h5 --json        all runs and sums, as docs/site/which_solver.json keeps them

In place of the comparison it takes what is kept, too: python benchmarks/which_solver.py docs/site/which_solver.json --all
"""

from __future__ import annotations

import contextlib
import io
import json
import math
import re
import shlex
import statistics
import sys
import tempfile
from pathlib import Path
from typing import Any

import ctmc
from ctmc.cli import main
from ctmc.comparison.files import load_comparison
from ctmc.comparison.runs import ComparedModel, Comparison, Run
from ctmc.comparison.standings import Rank, by_problem, cost, families, places, records

GOOD = 1.5
"""Advice is good within so many times the best time."""


def by_family(comparison: Comparison) -> list[str]:
    """Return the best two solvers of every family of models, and those that have failed, as lines of Markdown."""
    lines = ["| family | states | fastest | then | fewest products | then | no certified answer |", "| --- " * 7 + "|"]
    for family in families(comparison):
        sizes = sorted({comparison.models[name].states or 0 for name in family.models})
        states = "QBD" if not sizes[-1] else f"{sizes[0]:,}" + (f" to {sizes[-1]:,}" if len(sizes) > 1 else "")
        cells = [family.name, states]
        for ranks in family.ranks:
            cells += [
                _first(ranks, family.problems),
                f"`{ranks[1].label}` {ranks[1].ratio:.3g} times" if ranks[1:] else "",
            ]
        failed = [f"`{label}`" + (f" ({times})" if family.problems > 1 else "") for label, times in family.unsolved]
        lines.append("| " + " | ".join([*cells, ", ".join(failed)]) + " |")
    return lines


def _first(ranks: tuple[Rank, ...], problems: int) -> str:
    if not ranks:
        return ""
    return f"`{ranks[0].label}`" + (f", {ranks[0].wins} of {problems}" if problems > 1 else "")


def by_solver(comparison: Comparison) -> list[str]:
    """Return how every solver has done, as lines of Markdown."""
    lines = [
        "| solver | certified | fastest | seconds to the best | fewest products | products to the best |",
        "| --- " * 6 + "|",
    ]
    for one in records(comparison):
        ratios = ["" if ratio is None else f"{ratio:.3g} times" for ratio in one.ratios]
        lines.append(
            f"| `{one.label}` | {one.certified} of {one.tried} | {one.wins[0]} | {ratios[0]} | {one.wins[1]} | {ratios[1]} |"
        )
    return lines


def by_model(comparison: Comparison) -> list[str]:
    """Return the best solver of every model, as lines of Markdown."""
    lines = ["| model | states | certified | fastest | then | fewest products | then |", "| --- " * 7 + "|"]
    pairs = zip(places(comparison, "seconds"), places(comparison, "products"), strict=True)
    for fast, few in pairs:
        model = comparison.models[fast.model]
        runs = [run for run in comparison.runs if run.model == fast.model and run.status != "REFUSED"]
        states = f"{model.states:,}" if model.states is not None else "QBD" if model.kind == "QBD" else ""
        certified = f"{sum(run.converged for run in runs)} of {len(runs)}"
        cells = [fast.model, states, certified]
        for place, unit in ((fast, " s"), (few, "")):
            best = f"`{place.best}` {place.cost:,.3g}{unit}" if unit else f"`{place.best}` {place.cost:,.0f}"
            cells += [best if place.best else "", f"`{place.second}` {place.ratio:.3g} times" if place.second else ""]
        lines.append("| " + " | ".join(cells) + " |")
    return lines


def as_json(comparison: Comparison) -> str:
    """Return models, sums of each solver and runs as JSON, a line for each; every number is as it was measured."""
    models = [
        {"name": model.name, "family": model.family, "kind": model.kind, "states": model.states, "recipe": model.recipe}
        for model in comparison.models.values()
    ]
    sums = [
        {"solver": one.label, "certified": one.certified, "tried": one.tried, "wins": one.wins, "ratios": one.ratios}
        for one in records(comparison)
    ]
    runs = [
        {
            "solver": run.solver,
            "model": run.model,
            "status": run.status,
            "seconds": statistics.median(run.seconds) if run.seconds else None,
            "products": run.products,
            "iterated": bool(run.iterations),
            "defect": run.defect,
        }
        for run in comparison.runs
    ]
    parts = {"models": models, "solvers": sums, "runs": runs}
    texts = [
        f'"{name}": [\n' + ",\n".join(json.dumps(row, allow_nan=False) for row in rows) + "\n]"
        for name, rows in parts.items()
    ]
    return "{\n" + ",\n".join(texts) + "\n}"


def kept(text: str) -> Comparison:
    """Return the comparison that `as_json` has written: all that the tables need."""
    found = json.loads(text)
    models = {}
    for one in found["models"]:
        cut = re.search(r" \((\d+) levels\)$", one["name"])
        models[one["name"]] = ComparedModel(
            one["name"],
            kind=one["kind"],
            states=one["states"],
            family=one["family"],
            recipe=one["recipe"],
            levels=int(cut[1]) if cut else None,
        )
    runs = [
        Run(
            one["model"], one["solver"], 1e-12, status=one["status"], defect=one["defect"], products=one["products"],
            seconds=() if one["seconds"] is None else (one["seconds"],), iterations=int(one["iterated"]),
        )
        for one in found["runs"]
    ]  # fmt: skip
    return Comparison("", "stationary", models, tuple(runs))


def in_all(comparison: Comparison) -> list[str]:
    """Return how much was compared, as lines."""
    sizes = [model.states for model in comparison.models.values() if model.states]
    certified = sum(run.converged and not run.disagrees for run in comparison.runs)
    return [
        f"{len(comparison.models)} models, {min(sizes):,} to {max(sizes):,} states",
        f"{certified} of {len(comparison.runs)} runs gave a certified answer, {sum(run.disagrees for run in comparison.runs)} disagree",
    ]


def by_run(comparison: Comparison) -> list[str]:
    """Return the cost of every answer beside the best one, and in time beside bicgstab, as lines."""
    lines = []
    for runs in by_problem(comparison).values():
        seconds, products = ({run.label: cost(run, measure) for run in runs} for measure in ("seconds", "products"))
        for run in runs:
            if math.isfinite(seconds[run.label]):
                states = comparison.models[run.model].states
                size = f" on {states:,} states" if states else ""
                text = f"{run.model} | {run.label} | {seconds[run.label]:.2g} s{size}"
                text += f", {_times(seconds[run.label], min(seconds.values()))} the best time"
                if math.isfinite(seconds.get("bicgstab", math.inf)):
                    text += f", {_times(seconds[run.label], seconds['bicgstab'])} that of bicgstab"
                if math.isfinite(products[run.label]):
                    text += f", {products[run.label]:,.0f} products, {_times(products[run.label], min(products.values()))} the fewest"
                lines.append(text)
    return lines


def by_advice(comparison: Comparison) -> list[str]:
    """Return the solver that is advised for each model, and its time beside the best one, as lines."""
    lines, good = [], 0
    for runs in by_problem(comparison).values():
        model = comparison.models[runs[0].model]
        with tempfile.TemporaryDirectory() as folder:
            path = str(Path(folder) / "model.h5")
            with contextlib.redirect_stdout(io.StringIO()):
                failed = main([*shlex.split(model.recipe)[1:], "-o", path])
            if failed:
                raise ValueError(f"{model.recipe!r} failed")
            built: Any = ctmc.load(path)
        advised = ctmc.advise(
            built if model.levels is None else built.truncate(levels=model.levels), timed=False
        ).solver
        seconds = {run.label: cost(run, "seconds") for run in runs}
        best = min(seconds, key=seconds.__getitem__)
        ratio = seconds.get(advised, math.inf) / seconds[best]
        good += ratio <= GOOD
        lines.append(
            f"{model.name} | {advised} | {ratio:.2g} times the best time, {1e3 * seconds[best]:.1f} ms of {best}"
        )
    return [*lines, f"within {GOOD} times the best time on {good} of {len(lines)}"]


def _times(one: float, other: float) -> str:
    return f"{one / other:.2g} times" if one >= other else f"1/{other / one:.2g} of"


if __name__ == "__main__":
    source = Path(sys.argv[1])
    found = kept(source.read_text(encoding="utf-8")) if source.suffix == ".json" else load_comparison(source)
    if "--json" in sys.argv[2:]:
        print(as_json(found))
        sys.exit()
    tables = [by_family(found)]
    if "--all" in sys.argv[2:]:
        tables += [by_solver(found), by_model(found), in_all(found)]
    if "--advice" in sys.argv[2:]:
        tables.append(by_advice(found))
    if "--runs" in sys.argv[2:]:
        tables.append(by_run(found))
    print("\n\n".join("\n".join(lines) for lines in tables))
