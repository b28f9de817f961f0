"""Stationary solves at scale: our solvers beside those that pip installs, in units of SciPy's products.

    python benchmarks/stationary_scale.py [--models 4,20,.8 6,11,.8] [--solver bicgstab ...] [--peers "scipy bicgstab" ...]
                                          [--products 6,11,.8] [--scaling] [--large 8,9] [--readme] [--quick]

U is the time of 100 products y = Q^T x by SciPy's CSR matrix with the same generator in the same process, measured before and
after the solve.  "Processor U" is the same ratio of processor times, in which our two threads count twice: what to look at
where other processes are busy, too.  `stationary_methods.py` says which model it is, how each method is run, and what stops it.  Every method has
a process of its own and a time limit; what is not installed or fails is a line that says so.  Defect, least entry and the
largest relative error of any state are found by the benchmark itself, the last against a long computation that only adds,
multiplies and divides; such references are kept in --folder.  Peak memory counts the form of the generator that the method
works on: ours for our solvers, SciPy's or Storm's matrix for the peers.

Sections: the table of targets (always); --products, one product in every representation against SciPy and a copy of memory;
--scaling, time per product and products per solve against the number of states; --large, single solves of models for which
nothing but our own form fits.  The report (Markdown, rewritten after each row) and the figure (defect against time) go to
--output; with --readme the report also replaces the section between the two marks in benchmarks/README.md.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from stationary_methods import PEERS

from ctmc import registry

HERE = Path(__file__).parent
MODELS = ("4,20,.8", "4,20,.95", "5,11,.8", "6,8,.8", "6,11,.8")
TARGETS = {  # units U that ours should take at most
    (4, 20, 0.8): 0.3, (4, 20, 0.95): 0.45, (5, 11, 0.8): 0.25, (6, 8, 0.8): 0.2, (6, 11, 0.8): 0.18,
}  # fmt: skip
SCALING = ("4,9,.8", "4,17,.8", "6,9,.8", "7,9,.8", "7,11,.8")
"""From 1e4 to 3.6e7 states."""
BEGIN, END = "<!-- stationary_scale: begin -->", "<!-- stationary_scale: end -->"
Model = tuple[int, int, float]


def model_of(text: str) -> Model:
    """Return (M, K, load) from text; the load is .8 where it is left out."""
    parts = text.split(",")
    if len(parts) not in (2, 3):
        raise argparse.ArgumentTypeError(f"{text!r} is no model; allowed is M,K or M,K,load.")
    return int(parts[0]), int(parts[1]), float(parts[2]) if len(parts) == 3 else 0.8


def name_of(model: Model) -> str:
    return f"({model[0]}, {model[1]}), load {model[2]:g}"


def child(limit: float, **asked: Any) -> dict[str, Any]:
    """Run one task in a process of its own; what went wrong is under "failed"."""
    environment = {**os.environ, "PYTHONUNBUFFERED": "1"}
    try:
        done = subprocess.run(
            [sys.executable, HERE / "stationary_methods.py", json.dumps(asked)],
            capture_output=True, text=True, timeout=limit, env=environment, check=False,
        )  # fmt: skip
    except subprocess.TimeoutExpired:
        return {"failed": f"not done in {limit:g} s"}
    try:
        return dict(json.loads(done.stdout.strip().splitlines()[-1]))
    except (IndexError, ValueError):
        last = done.stderr.strip().splitlines()
        return {"failed": f"exit code {done.returncode}: {last[-1] if last else 'no message'}"}


class Report:
    """The Markdown so far; the file is rewritten after every line, so that a killed run leaves what it found."""

    def __init__(self, path: Path) -> None:
        self.path, self.lines = path, []

    def add(self, *lines: str) -> None:
        """Add lines, print them, and write the file."""
        self.lines += lines
        for line in lines:
            print(line, flush=True)
        temporary = self.path.with_name(self.path.name + ".part")
        temporary.write_text("\n".join(self.lines) + "\n", encoding="utf-8")
        temporary.replace(self.path)


def number(value: Any, form: str) -> str:
    return "" if value is None else format(value, form)


def table_of_targets(options: argparse.Namespace, report: Report) -> dict[str, dict[str, Any]]:
    """Measure every method on every model; return the results on the first model, for the figure."""
    shown: dict[str, dict[str, Any]] = {}
    for model in options.models:
        # found first, so that no method's time limit pays for it
        made = child(
            10 * options.time_limit, task="reference", model=model, folder=str(options.folder), quick=options.quick
        )
        if "failed" in made:
            report.add(f"{name_of(model)}: no reference, {made['failed']}.", "")
            continue
        target = TARGETS.get(model)
        report.add(
            f"{name_of(model)}: {made['states']:,} states, {made['entries']:,} transitions, built in {made['building']:.3g} s "
            f"({made['states'] / made['building'] / 1e6:.3g} million states a second)"
            + (f"; target {target:g} U." if target else "."),
            "", "| method | U | processor U | seconds | products | peak MiB | defect | least entry | worst state | |",
            "| --- " * 10 + "|",
        )  # fmt: skip
        units = []
        for method in [*options.solver, *options.peers]:
            label = f"**`{method}`**" if method not in PEERS else method
            found = child(
                options.time_limit, task="solve", method=method, model=model, folder=str(options.folder),
                quick=options.quick,
            )  # fmt: skip
            if "skipped" in found or "failed" in found:
                report.add(f"| {label} | | | | | | | | | {found.get('skipped') or found['failed']} |")
                continue
            units.append(found["unit"])
            if found["unit_spread"] > 0.3:
                found["note"] += f"; U moved by {found['unit_spread']:.0%}"
            processor = f"{found['processor'] / found['unit_processor']:.2f}" if "processor" in found else ""
            report.add(
                f"| {label} | {found['seconds'] / found['unit']:.2f} | {processor} "
                f"| {found['seconds']:.3g} | {number(found['products'], 'd')} "
                f"| {found['peak'] / 2**20:.0f} | {found['defect']:.1e} | {found['least']:.1e} | {found['worst']:.0e} "
                f"| {found['note']} |"
            )
            if model == options.models[0]:
                shown[method] = found
                figure(shown, model, options.output / "stationary_scale.png")
        if units:
            report.add("", f"U = {min(units):.3g} to {max(units):.3g} s.", "")
    return shown


def figure(found: dict[str, dict[str, Any]], model: Model, path: Path) -> None:
    """Draw the defect against time in units U, a line for each method and a marker for its answer."""
    try:
        import matplotlib
    except ImportError:
        print("(matplotlib is not installed: no figure)", flush=True)
        return
    matplotlib.use("Agg")
    from matplotlib import pyplot

    drawing, axes = pyplot.subplots(figsize=(7.5, 5), layout="constrained")
    for (method, row), marker in zip(found.items(), "os^vDP*X<>hdp8" * 3, strict=False):
        end = (row["seconds"] / row["unit"], max(row["defect"], 1e-17))
        points = [(seconds / row["unit"], max(defect, 1e-17)) for seconds, defect in row["curve"] if seconds > 0]
        points = [point for point in points if point[0] < end[0]] + [end]
        axes.plot(*zip(*points, strict=True), marker=marker, markevery=[len(points) - 1], linewidth=1.2, label=method)
    axes.axhline(1e-12, color="gray", linewidth=0.8, linestyle=":")
    axes.set(xscale="log", yscale="log", xlabel="time in units of 100 SciPy products", ylabel="defect")
    axes.set_title(f"Supermarket {name_of(model)}")
    axes.legend(fontsize=8)
    drawing.savefig(path, dpi=110)
    pyplot.close(drawing)


def section_of_products(options: argparse.Namespace, report: Report) -> None:
    for model in options.products:
        found = child(options.time_limit, task="products", model=model, quick=options.quick)
        if "failed" in found:
            report.add(f"One product, {name_of(model)}: {found['failed']}.", "")
            continue
        bandwidth = ", ".join(f"{value / 1e9:.1f} GB/s on {n}" for n, value in found["bandwidth"].items())
        report.add(
            f"One product p Q, {name_of(model)} ({found['states']:,} states); copy of memory: {bandwidth} threads:",
            "", "| form | threads | milliseconds | ns a transition | ns a state | U | GB/s of its arrays and two vectors |",
            "| --- " * 7 + "|",
        )  # fmt: skip
        scipy = found["rows"][0]["seconds"]
        for row in found["rows"]:
            if "note" in row:
                report.add(f"| {row['form']} | | {row['note']} | | | | |")
                continue
            moved = "" if "bytes" not in row else f"{(row['bytes'] + 16 * found['states']) / row['seconds'] / 1e9:.1f}"
            report.add(
                f"| {row['form']} | {row['threads']} | {1e3 * row['seconds']:.3g} | {1e9 * row['seconds'] / found['entries']:.2f} "
                f"| {1e9 * row['seconds'] / found['states']:.2f} | {row['seconds'] / (100 * scipy):.4f} | {moved} |"
            )
        report.add("")


def section_of_single_solves(options: argparse.Namespace, report: Report, models: list[Model], title: str) -> None:
    if not models:
        return
    report.add(
        f"{title}, by `{options.solver[0]}`, defect recomputed with the model's own product:", "",
        "| model | states | build s | form | held B a state | peak B a state | seconds | products | ms a product "
        "| ns a state | defect | least entry | |",
        "| --- " * 13 + "|",
    )  # fmt: skip
    for model in models:
        found = child(
            options.large_time_limit, task="large", method=options.solver[0], model=model, quick=options.quick
        )
        if "failed" in found:
            report.add(f"| {name_of(model)} |" + " |" * 11 + f" {found['failed']} |")
            continue
        n = found["states"]
        report.add(
            f"| {name_of(model)} | {n:,} | {found['building']:.3g} | {found['representation']} | {found['held'] / n:.0f} "
            f"| {found['peak'] / n:.0f} | {found['seconds']:.3g} | {found['products']} | {1e3 * found['product']:.3g} "
            f"| {1e9 * found['product'] / n:.2f} | {found['defect']:.1e} | {found['least']:.1e} | {found['note']} |"
        )
    report.add("")


def into_readme(text: str, folder: Path) -> None:
    """Put the report between the marks in the README beside this script; the figure must be there, too."""
    path = HERE / "README.md"
    before, _, rest = path.read_text(encoding="utf-8").partition(BEGIN)
    _, found, after = rest.partition(END)
    if not found:
        raise SystemExit(f"{path} has no marks {BEGIN} and {END}.")
    picture = folder / "stationary_scale.png"
    if picture.exists() and picture.parent.resolve() != HERE.resolve():
        (HERE / picture.name).write_bytes(picture.read_bytes())
    path.write_text(f"{before}{BEGIN}\n{text.strip()}\n{END}{after}", encoding="utf-8")


def main() -> None:
    arguments = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    arguments.add_argument("--models", nargs="*", type=model_of, default=[model_of(text) for text in MODELS])
    arguments.add_argument("--solver", nargs="+", default=None, help="names of ours; bicgstab, or the default solver")
    arguments.add_argument("--peers", nargs="*", default=list(PEERS), choices=list(PEERS))
    arguments.add_argument("--products", nargs="*", type=model_of, default=[])
    arguments.add_argument("--scaling", action="store_true")
    arguments.add_argument("--large", nargs="*", type=model_of, default=[])
    arguments.add_argument("--time-limit", type=float, default=150.0, help="seconds for a method on a model, all told")
    arguments.add_argument("--large-time-limit", type=float, default=3600.0, help="the same for --scaling and --large")
    arguments.add_argument("--folder", type=Path, default=Path(tempfile.gettempdir()) / "ctmc-benchmark-references")
    arguments.add_argument("--output", type=Path, default=Path(), help="folder of the report and the figure")
    arguments.add_argument("--readme", action="store_true")
    arguments.add_argument("--quick", action="store_true", help="a tiny model, to see that everything runs")
    options = arguments.parse_args()
    if options.solver is None:
        options.solver = ["bicgstab" if "bicgstab" in registry.solver_names() else "gmres"]
    if options.quick:
        options.models, options.products = [(3, 3, 0.8)], [(3, 3, 0.8)]
    options.folder.mkdir(parents=True, exist_ok=True)
    options.output.mkdir(parents=True, exist_ok=True)
    report = Report(options.output / "stationary_scale.md")
    report.add(f"Measured on {time.strftime('%Y-%m-%d')}, {os.cpu_count()} cores.", "")
    table_of_targets(options, report)
    section_of_products(options, report)
    scaling = [(3, 3, 0.8)] if options.quick else [model_of(text) for text in SCALING]
    section_of_single_solves(options, report, scaling if options.scaling or options.quick else [], "Against size")
    section_of_single_solves(options, report, options.large, "Single solves")
    if options.readme:
        into_readme("\n".join(report.lines), options.output)


if __name__ == "__main__":
    main()
