"""Which solver when: tables from a comparison that `ctmc compare which_solver` has made.

python benchmarks/which_solver.py which_solver.h5               the table of the README, a row for each family of models
python benchmarks/which_solver.py which_solver.h5 --all         also a row for each solver and for each model
"""

from __future__ import annotations

import sys

from ctmc.comparison.files import load_comparison
from ctmc.comparison.runs import Comparison
from ctmc.comparison.standings import Rank, families, places, records


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


if __name__ == "__main__":
    found = load_comparison(sys.argv[1])
    tables = [by_family(found)]
    if "--all" in sys.argv[2:]:
        tables += [by_solver(found), by_model(found)]
    print("\n\n".join("\n".join(lines) for lines in tables))
