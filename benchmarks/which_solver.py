"""Which solver when: the tables of the README, from a comparison that `ctmc compare which_solver` has made.

python benchmarks/which_solver.py which_solver.h5
"""

from __future__ import annotations

import sys

from ctmc.comparison.files import load_comparison
from ctmc.comparison.runs import Comparison
from ctmc.comparison.standings import places, records


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
    print("\n".join([*by_solver(found), "", *by_model(found)]))
