"""Comparisons whose every number is known, for the tests of what is made of them."""

import numpy as np

from ctmc.comparison.runs import ComparedModel, Comparison, Run
from ctmc.solution import HISTORY

HOSTILE = (
    "<img src=x onerror=alert(1)>",
    "</script><script>alert(2)</script>",
    "=cmd|'/c calc'!A1",
    "[bold]red[/bold]",
    "\x1b[31mred\x1b[0m",
    "\"><svg onload=alert(3)> ' & {{ 7 * 7 }} {% raw %}",
    "a_b%$#&{}~^\\ --",
    "<!--<script>",
)
"""Names that are markup, a formula, an escape sequence or a template somewhere."""


def run(model, solver, seconds=None, products=None, status="CONVERGED", tolerance=1e-8, **more):
    """Return a run; with a time or products it is certified unless it is said how it ended."""
    iterations = None if products is None else max(products // 2, 1)
    facts = {"seconds": () if seconds is None else (seconds,), "products": products, "iterations": iterations}
    facts["defect"] = tolerance / 2 if status == "CONVERGED" else None
    return Run(model, solver, tolerance, status=status, **(facts | more))


def comparison(*runs, title="Compared", families=None, **more):
    """Return a comparison of these runs, one model for each name."""
    families = families or {}
    models = {
        one.model: ComparedModel(
            one.model, f"{one.model}.h5", "ab" * 32, families.get(one.model, one.model), states=100
        )
        for one in runs
    }
    session = {"created": "2026-01-02T03:04:05+00:00", "host": "here", "versions": {"numpy": "2.0"}}
    return Comparison(title, "stationary", models, runs, **({"sessions": (session,)} | more))


def history(products, defects):
    """Return the records of checks."""
    records = np.zeros(len(products), HISTORY)
    records["products"], records["defect"], records["iteration"] = products, defects, range(len(products))
    return records


def large(models=100, solvers=10, seed=20260107):
    """Return a comparison of many runs of all ends, with histories."""
    random = np.random.default_rng(seed)
    ends = ("CONVERGED",) * 8 + ("STAGNATED", "TIME_LIMIT", "REFUSED")
    runs = []
    for model in range(models):
        for solver in range(solvers):
            status = str(random.choice(ends))
            known = status == "CONVERGED"
            steps = np.arange(1, 200)
            runs.append(
                run(
                    f"model {model}", f"solver_{solver}", float(random.uniform(0.01, 100)) if known else None,
                    int(random.integers(10, 10**6)) if known else None, status, message="" if known else "It ended.",
                    history=history(steps, 10.0 ** (-8 * steps / 200)), command=f"ctmc compare model{model}.h5",
                )
            )  # fmt: skip
    return comparison(*runs, families={f"model {k}": f"family {k % 7}" for k in range(models)})


def hostile():
    """Return a comparison all of whose names and texts are hostile."""
    runs = [
        run(
            name, f"{name} {k}", 0.5 + k, 10, ("CONVERGED", "STAGNATED")[k], message=name, reason=name, ran=name, command=name,
            measures={name: 1.5}, distance=0.5,
        )
        for name in HOSTILE for k in range(2)
    ]  # fmt: skip
    found = comparison(*runs, title=HOSTILE[1], sessions=({name: name for name in HOSTILE},))
    return Comparison(found.title, HOSTILE[0], found.models, found.runs, found.sessions)
