"""One page for every solver: its docstring, its row of the README, its options, and its rows of the comparison."""

from __future__ import annotations

import dataclasses
import json
import re
from functools import cache
from pathlib import Path
from typing import Any

import docstrings

from ctmc import registry

HOME = Path(__file__).resolve().parents[2]
MEASURED = Path(__file__).with_name("which_solver.json")
_STATES, _ENTRIES = 10**6, 8 * 10**6
_QUESTIONS = {
    "Long run": {"stationary"},
    "Over time": {"transient", "accumulated-reward"},
    "Discounted": {"discounted-reward"},
    "Time until something happens": {"first-passage"},
}


@cache
def measured() -> dict[str, list[dict[str, Any]]]:
    """Return models, sums of solvers and runs of the comparison which_solver."""
    return json.loads(MEASURED.read_text(encoding="utf-8"))


@cache
def advised() -> dict[str, tuple[str, str]]:
    """Return when to take a solver, and when it fails, as the README has it; plain names."""
    section = (
        (HOME / "README.md").read_text(encoding="utf-8").partition("\n## Which solver when\n")[2].partition("\n## ")[0]
    )
    rows = re.findall(r"^\| ((?:`\w+`(?:, )?)+) \| [^|]+ \| ([^|]+) \| ([^|]+) \|$", section, re.MULTILINE)
    return {name: (take, fails) for names, take, fails in rows for name in re.findall(r"`(\w+)`", names)}


def solver_page(name: str) -> str:
    """Return the page of a solver."""
    kind: Any = registry.solver_class(name)
    text, heading, details = docstrings.markdown(kind, 2, _link(name)).partition("\n\n## ")
    parts = [f"# {name}", text, _facts(name, kind), (heading + details).strip(), _measured(name)]
    return "\n\n".join(filter(None, parts)) + "\n"


def _link(own: str) -> Any:
    names = {found: f"{found}.md" for found in registry.solver_names() if found != own}
    names |= {registry.solver_class(found).__name__: address for found, address in names.items()}
    return names.get


def _facts(name: str, kind: Any) -> str:
    needs = kind.needs if isinstance(kind.needs, tuple) else (kind.needs,)
    rows = [
        ("answers", ", ".join(f"`{registry.problem_name(problem)}`" for problem in kind.solves)),
        ("takes a", ", ".join(f"`{need.__name__}`" for need in needs)),
    ]
    if name in advised():
        rows += [("take it", advised()[name][0]), ("it fails", advised()[name][1])]
    if hasattr(kind, "memory"):
        each = kind().memory(_STATES, _ENTRIES) / _STATES
        rows.append(
            ("memory beside the model", f"{each:,.0f} bytes a state ({_STATES:,} states, {_ENTRIES:,} transitions)")
        )
    if library := getattr(kind, "library", None):
        rows.append(("library", f"`{library[0]}`: `pip install 'ctmc-lab[{library[1]}]'`"))
    rows.append(("command", f"`ctmc solve model.h5 --solver {name}`"))
    options = [
        f"`{field.name}={'' if field.default is dataclasses.MISSING else repr(field.default)}`"
        for field in dataclasses.fields(kind)
    ]
    if options:
        rows.append(("options", ", ".join(options)))
    lines = [f"| {head} | {cell} |" for head, cell in rows]
    return "\n".join(["## In short", "", lines[0], "| --- | --- |", *lines[1:]])


def _measured(name: str) -> str:
    runs = [run for run in measured()["runs"] if run["solver"] == name and run["status"] != "REFUSED"]
    if not runs:
        return (
            "## Measured\n\nThe comparison of all solvers asks for long-run distributions, with the libraries that were installed; this "
            "one is not in it. What else is measured stands under [Figures](../figures.md)."
        )
    models = {model["name"]: model for model in measured()["models"]}
    (sums,) = (row for row in measured()["solvers"] if row["solver"] == name)
    told = [f"A certified answer on {sums['certified']} of {sums['tried']} models, the fastest on {sums['wins'][0]}"]
    if sums["ratios"][0] is not None:
        told.append(f"in the median {sums['ratios'][0]:.3g} times the best time")
    if sums["ratios"][1] is not None:
        told.append(f"and {sums['ratios'][1]:.3g} times the fewest products")
    lines = [
        "## Measured",
        ", ".join(told)
        + ". `ctmc compare which_solver`: tolerance 1e-12, at most 10 s a solve, two cores; times move with the "
        "machine, products do not. *To the best* is relative to the fastest solver on that model.",
        "| model | states | status | seconds | to the best | products | defect |\n" + "| --- " * 7 + "|",
    ]
    for run in runs:
        model = models[run["model"]]
        states = f"{model['states']:,}" if model["states"] else "QBD"
        certified = run["status"] == "CONVERGED"
        seconds = f"{run['seconds']:.3g}" if run["seconds"] is not None and certified else ""
        ratio = f"{run['seconds'] / best(run['model']):.3g}" if certified else ""
        products = f"{run['products']:,}" if run["products"] and certified else ""
        defect = f"{run['defect']:.1e}" if certified else ""
        lines[-1] += f"\n| {run['model']} | {states} | {run['status']} | {seconds} | {ratio} | {products} | {defect} |"
    return "\n\n".join(lines)


@cache
def best(model: str) -> float:
    """Return the least seconds of a certified answer on a model."""
    return min(run["seconds"] for run in measured()["runs"] if run["model"] == model and run["status"] == "CONVERGED")


def index_page() -> str:
    """Return the page of all solvers: what the README says about them, and for each question a table with links."""
    out = [
        "# Solvers",
        "`ctmc solve` takes a default that suits the question, `--solver auto` what `ctmc advise` names, `--solver NAME` any of these; in Python the name is the "
        "second argument of `ctmc.solve`. [All solvers](#all-solvers) are listed by question below; first, what was measured.",
        _section(),
        "## All solvers",
    ]
    for title, problems in _QUESTIONS.items():
        out.append(f"### {title}")
        rows = ["| solver | takes a | method |", "| --- | --- | --- |"]
        for name in registry.solver_names():
            kind: Any = registry.solver_class(name)
            if not problems & {registry.problem_name(problem) for problem in kind.solves}:
                continue
            needs = kind.needs if isinstance(kind.needs, tuple) else (kind.needs,)
            text = docstrings.summary(kind).replace("|", "&#124;")
            rows.append(f"| [`{name}`]({name}.md) | {', '.join(need.__name__ for need in needs)} | {text} |")
        out.append("\n".join(rows))
    return "\n\n".join(out) + "\n"


def _section() -> str:
    """Return the section of the README, with links to the pages of the solvers that its table of all solvers names."""
    text = (HOME / "README.md").read_text(encoding="utf-8")
    section = text.partition("\n## Which solver when\n")[2].partition("\n## ")[0]
    for old, new in (("README.md", "figures.md"), ("which_solver.svg", "which_solver.svg")):
        section = section.replace(f"(benchmarks/{old})", f"(../{new})")
    names = set(registry.solver_names())

    def linked(row: re.Match[str]) -> str:
        return re.sub(r"`(\w+)`", lambda word: f"[{word[0]}]({word[1]}.md)" if word[1] in names else word[0], row[0])

    return (
        "## Which solver when\n"
        + re.sub(r"^\| `[^|]+\||^(?:- |Take ).*$", linked, section, flags=re.MULTILINE).rstrip()
    )
