"""``ctmc compare``: solvers against each other on models, one table with what came of every run."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click

from ctmc.cli.app import Command, output_of
from ctmc.cli.options import (
    PROBLEM_NAMES,
    code_option,
    file_type,
    folder_type,
    memory_option,
    names_starting,
    solver_names,
    study_names,
    threads_option,
)
from ctmc.cli.output import Output
from ctmc.errors import CTMCError, ModelError, StudyError, printable, shown, unknown_name


def _compare(files: tuple[str, ...], **given: Any) -> int:
    from ctmc.comparison.compare import compare
    from ctmc.model.recipe import allowed_code

    out = output_of(click.get_current_context())
    with allowed_code(bool(given["allow_code"])):
        output, title, solvers, how, entries = _asked(files, given, out)
        watcher = _watcher(out)
        rules = given.pop("fail_if")
        if given["dry_run"]:
            if given["against"] is not None or rules:
                raise click.UsageError("--dry-run makes no runs that --against could look at")
            return _show_plan(list(entries(watcher)), solvers, output, how, given["again"], out)
        before = _before(given["against"], rules)
        with out.interrupts.gentle(watcher.announce):
            try:
                found = compare(
                    list(entries(watcher)), solvers, output, title=title, watcher=watcher, again=given["again"], **how
                )
            finally:
                watcher.close()
    return _show(found, output, before, rules, out)


def _asked(files: tuple[str, ...], given: dict[str, Any], out: Output) -> tuple[Path, str, Any, dict[str, Any], Any]:
    """Return output, title, solvers, settings, and a function that makes the entries; from a study or from files."""
    from ctmc.comparison.studies import entries_of_files, entries_of_study
    from ctmc.study import results
    from ctmc.study.shipped import find_study, shipped_studies
    from ctmc.study.study import read_study

    how = _settings(given)
    studies = [
        file for file in files if file.endswith(".toml") or (file in shipped_studies() and not Path(file).exists())
    ]
    if given["solvers"] is not None and not given["solvers"].strip():
        raise ModelError("--solvers is empty; allowed are names separated by commas, such as gth,gmres.")
    if not studies:
        if given["changes"]:
            raise ModelError(
                f"--set is {shown(given['changes'][0])}, but there is no study among the files that it could change."
            )
        wrong = [error for file in files if (error := _unreadable(file)) is not None]
        if len(wrong) == len(files):  # beside others, one that cannot be read is a row
            raise wrong[0]
        output = Path(given["output"] or "comparison.h5")

        def from_files(watcher: Any) -> Any:
            return entries_of_files(files, lambda: _store(output, given, out), dry=given["dry_run"])

        return output, "", given["solvers"] or "all", how, from_files
    if len(files) > 1:
        raise StudyError(
            f"{printable(studies[0])} is a study, and stands beside other files; allowed is one study, or model files."
        )
    study = read_study(find_study(studies[0]), tuple(given["changes"]))
    if study.compare is None:
        raise StudyError(f"{printable(study.source)} has no table [compare]; 'ctmc run' runs it.")
    output = results.output_path(study, given["output"])
    how = {**study.compare.how, **how}
    solvers = given["solvers"] or study.compare.solvers

    def from_study(watcher: Any) -> Any:
        store = _store(output, given, out)
        return entries_of_study(study, store, news=out.news, stopped=watcher.stopped, dry=given["dry_run"])

    return output, study.title, solvers, how, from_study


def _unreadable(file: str) -> CTMCError | None:
    """Return what is wrong with a file that can be no model, None where it may be one."""
    from ctmc.interchange.formats import first_bytes, format_of
    from ctmc.study.shipped import shipped_studies

    if not Path(file).suffix and not Path(file).exists():
        return unknown_name("model file or study", file, shipped_studies())
    try:
        first_bytes(file)
        format_of(file)
    except CTMCError as error:
        return error
    return None


def _store(output: Path, given: dict[str, Any], out: Output) -> Any:
    """Return where models are, or go; in a dry run nothing is made."""
    from ctmc.study import results

    if given["dry_run"]:
        return results.planned_store(output, given["store"])
    return results.open_store_of(output, given["store"], out.news)


def _settings(given: dict[str, Any]) -> dict[str, Any]:
    """Return what the flags say of how it is done; what was not given is left to the study, or to the defaults."""
    from ctmc.cli.question import Question, parse_numbers, settings_of
    from ctmc.model.predicate import parse

    how: dict[str, Any] = {}
    for name in ("time_limit", "memory_limit", "threads", "jobs", "repeats"):
        if given[name] is not None:
            how[name] = given[name]
    if given["tolerances"] is not None:
        how["tolerances"] = tuple(parse_numbers(given["tolerances"], "--tolerances", float))
    if given["levels"] is not None:
        how["levels"] = tuple(parse_numbers(given["levels"], "--levels", int))
    if given["warm"]:
        how["warm"] = True
    if given["allow_code"]:
        how["allow_code"] = True
    asked = {name: given[name] for name in ("initial", "times", "moments", "discount", "target", "avoid")}
    if given["problem"] is not None or given["reward"] or any(value is not None for value in asked.values()):
        problem = given["problem"] or "stationary"
        question = Question(
            file="", solver=None, options={}, tolerance=None, problem=problem, start=None, time_limit=None, conditions=(),
            rewards=given["reward"], save=None, **asked,
        )  # fmt: skip
        for name in ("target", "avoid"):
            if given[name] is not None:
                parse(given[name], f"--{name}")  # each model knows its own names, but all must be able to read it
        how["problem"], how["question"] = problem, settings_of(question)
    return how


def _before(against: str | None, rules: tuple[str, ...]) -> Any:
    """Return the older comparison; it and the rules are looked at before anything is run."""
    if against is None:
        if rules:
            raise click.UsageError("--fail-if needs --against OLD.h5, which it compares with")
        return None
    from ctmc.comparison.against import read_rule
    from ctmc.comparison.files import load_comparison

    for rule in rules:
        read_rule(rule)
    return load_comparison(against)


def _watcher(out: Output) -> Any:
    from ctmc.cli.live import LiveTable
    from ctmc.comparison.compare import Watcher
    from ctmc.comparison.runs import NOT_APPLICABLE

    class Terminal(Watcher):
        """Shows the runs as they go."""

        def __init__(self) -> None:
            self.live = LiveTable(out, "runs")

        def announce(self) -> None:
            self.live.clear()
            out.news("Stopping; what is done is stored, and the same command goes on from there.")

        def planned(self, total: int, known: int) -> None:
            self.live.planned(total, known)

        def began(self, number: int, label: str) -> None:
            self.live.began(number, label)

        def ended(self, number: int, run: Any) -> None:
            good = run.converged or run.status in NOT_APPLICABLE
            self.live.ended(number, good, _line(run))

        def referenced(self, name: str) -> None:
            self.live.running.pop(-1, None)

        def news(self, text: str) -> None:
            out.news(text)

        def look(self) -> None:
            self.live.look()

        def stopped(self) -> bool:
            return out.interrupts.stopped()

        def close(self) -> None:
            self.live.close()

    return Terminal()


def _line(run: Any) -> str:
    parts = [f"{run.model}, {run.label}, {run.tolerance:.0e}: {run.status}"]
    if run.products is not None:
        parts.append(f"{run.products:,} product{'s' if run.products != 1 else ''}")
    if run.median_seconds is not None:
        parts.append(f"{run.median_seconds:.3g} s")
    return ", ".join(parts) + (f" ({run.reason})" if run.reason else "")


def _show_plan(entries: list[Any], solvers: Any, output: Path, how: dict[str, Any], again: bool, out: Output) -> int:
    """Write what would be run, what is there already, and how long it can take at most."""
    from ctmc.cli.progress import duration
    from ctmc.comparison.plan import plan

    found = plan(entries, solvers, output, again=again, **how)
    missing = set(found.missing)

    def done(place: int) -> str:
        run = found.runs[place]
        if place not in missing:
            return run.status
        if run.status == "NO_MODEL":
            return "no model"
        return "to build and run" if run.model in found.unbuilt else "to run"

    rows = [[run.model, run.label, run.tolerance, done(place)] for place, run in enumerate(found.runs)]
    to_run = sum(map(found.to_make, found.missing))
    counts = {
        "models": len(found.models), "solvers": len({run.label for run in found.runs}), "runs": len(rows),
        "known": len(rows) - len(missing), "to_run": to_run, "longest_seconds": found.longest_seconds,
    }  # fmt: skip
    if out.json:
        names = ("model", "solver", "tolerance", "done")
        out.document({"output": str(output), **counts, "plan": [dict(zip(names, row, strict=True)) for row in rows]})
    else:
        out.table(["model", "solver", "tolerance", "done"], rows)
    for name, model in found.models.items():
        if model.message:
            out.line(f"ctmc: {name}: {model.message}")
    longest = (
        f"  Their solves take at most {duration(found.longest_seconds)}; building, loading and references come on top."
    )
    out.news(
        f"{counts['models']} models, {counts['solvers']} solvers, {len(rows)} runs: {counts['known']} done already, {to_run} to run."
        + (longest if to_run else "")
    )
    open_kinds = [name for name in found.unbuilt if not found.models[name].kind]
    if open_kinds:
        out.news(f"Whether these are QBDs is known once they are built: {', '.join(sorted(open_kinds))}.")
    return 0


COLUMNS = (
    "model",
    "solver",
    "tolerance",
    "status",
    "defect",
    "distance",
    "iterations",
    "products",
    "seconds",
    "spread",
    "memory_MiB",
)


def _row(run: Any) -> list[Any]:
    memory = None if run.allocated_bytes is None else run.allocated_bytes / 2**20
    return [
        run.model, run.label, run.tolerance, run.status, run.defect, run.distance, run.iterations, run.products,
        run.median_seconds, run.spread, memory,
    ]  # fmt: skip


def _show(found: Any, output: Path, before: Any, rules: tuple[str, ...], out: Output) -> int:
    """Write the table, what failed and what disagrees; return the exit code."""
    worse: list[Any] = []
    if before is not None:
        from ctmc.comparison.against import regressions

        worse = list(regressions(found, before, rules))
    columns = list(COLUMNS)
    rows = [_row(run) for run in found.runs]
    if any(run.truncated_mass is not None for run in found.runs):
        columns += ["measure_difference", "truncated_mass"]
        rows = [[*row, run.measure_difference, run.truncated_mass] for row, run in zip(rows, found.runs, strict=True)]
    if out.json:
        from ctmc.comparison.files import plain_run

        out.document(
            {
                "title": found.title,
                "output": str(output),
                "complete": found.complete,
                "runs": [plain_run(run) for run in found.runs],
                "disagreements": [run.key for run in found.disagreements],
                "worse": [str(finding) for finding in worse],
            }
        )
    else:
        out.table(columns, rows)
    for run in found.disagreements:
        far = max(value for value in (run.distance, run.measure_difference) if value is not None)
        out.line(f"ctmc: {_line(run)}: certified, but {far:.1e} away from the reference.")
    told: set[tuple[str, str]] = set()
    for run in found.failures:
        if run.message and (run.model, run.message) not in told:
            told.add((run.model, run.message))
            out.line(f"ctmc: {_line(run)}: {run.message}")
    for finding in worse:
        out.line(f"ctmc: {'worse' if finding.fails else 'note'}: {finding}")
    done = sum(run.converged for run in found.runs)
    kept = "" if found.unsaved else f"  Results: {output}; 'ctmc report {output}' makes a page of them."
    out.news(f"{done} of {len(found.runs)} runs have a certified answer.{kept}")
    if found.unsaved:
        out.line(f"ctmc: {found.unsaved}")
        return 2
    if found.stopped and not found.complete:
        return out.interrupts.exit_code or 1
    return 1 if not found.complete or any(finding.fails for finding in worse) else 0


command = Command(
    "compare",
    csv=True,
    callback=_compare,
    params=[
        click.Argument(["files"], nargs=-1, required=True, type=file_type(), metavar="FILES...",
                       shell_complete=names_starting(study_names, files=True)),
        click.Option(["--solvers"], metavar="NAMES", shell_complete=names_starting(lambda: ["auto", *solver_names()], listed=True),
                     help="Names separated by commas, with options or ranges of them: 'gth,gmres(restart=20..100)'; default all."),
        click.Option(["--tolerances"], metavar="LIST", help="Such as 1e-8,1e-12; default that of the problem."),
        click.Option(["--levels"], metavar="LIST", help="Also cut each QBD at these numbers of levels: 50,100."),
        click.Option(["--warm"], is_flag=True, help="Also begin from the answer of the model before: a method of its own."),
        click.Option(["--repeats"], type=int, metavar="N", help="Solves to take the median time of; default 1."),
        click.Option(["--time-limit"], type=float, metavar="SECONDS", help="Of one solve; default 60."),
        memory_option(),
        threads_option(),
        click.Option(["--jobs"], type=int, metavar="N", help="Runs at once; default 1, as others disturb the times."),
        click.Option(["--problem"], metavar="|".join(PROBLEM_NAMES), help="The question; default stationary.",
                     shell_complete=names_starting(lambda: PROBLEM_NAMES)),
        click.Option(["--initial"], metavar="STATE", help="State at the start, such as 0,0,0."),
        click.Option(["--times"], metavar="TIMES", help="Of transient and accumulated-reward: 0.5,2 or begin:end:step."),
        click.Option(["--reward"], multiple=True, metavar="NAME", help="A reward; may be repeated."),
        click.Option(["--moments"], type=int, metavar="INT", help="How many moments."),
        click.Option(["--discount"], type=float, metavar="RATE", help="Of discounted-reward."),
        click.Option(["--target"], metavar="CONDITION", help="Of first-passage: what is waited for."),
        click.Option(["--avoid"], metavar="CONDITION", help="Of first-passage: what must not happen before."),
        click.Option(["-o", "--output"], type=file_type(), metavar="FILE",
                     help="Where everything is kept, raw; default comparison.h5, or what the study names."),
        click.Option(["--store"], type=folder_type(), metavar="FOLDER",
                     help="Where a study's models are kept; default CTMC_STORE, or a folder beside the output."),
        click.Option(["--set", "changes"], multiple=True, metavar="KEY=VALUE", help="Change a study's parameter; see 'ctmc run --help'."),
        click.Option(["--dry-run"], is_flag=True,
                     help="Show what would be run, what is done already and the longest time it can take, and do nothing."),
        click.Option(["--again"], is_flag=True, help="Repeat those of these runs that the output has already."),
        click.Option(["--against"], type=file_type(), metavar="OLD", help="An older comparison; tell what has become worse."),
        click.Option(["--fail-if"], multiple=True, metavar="RULE",
                     help="With --against: exit code 1 if a count rose by more, such as products:+5%; seconds only warn."),
        code_option(),
    ],
    help="Compare solvers: model files of any format, or a study with a table [compare].\n\n"
    "Every run has a process of its own: a crash, a time-out and a model that does not fit in memory are rows like any other.  Each "
    "answer is certified, and compared with a reference: elimination up to 3000 states, else the tightest certified answer.  Runs "
    "that the output has already are not repeated, so an interrupted comparison goes on with the same command.  The exit code is 0 when every "
    "run was attempted, whatever came of it; where no model can be asked the question nothing is run or written.\n\n\b\n"
    "Examples\n"
    "  ctmc compare model.h5\n"
    "  ctmc compare *.h5 --solvers 'gth,bicgstab,gmres(restart=20..80)' --time-limit 30 -o which.h5\n"
    "  ctmc compare queue.h5 --levels 50,100 --tolerances 1e-8,1e-12\n"
    "  ctmc compare new.h5 --against old.h5 --fail-if products:+5%\n"
    "  ctmc compare which_solver",
)  # fmt: skip
