"""The course of ``ctmc solve``: load, solve, store, show."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from shlex import join, quote
from typing import Any

from ctmc.cli.models import is_own, load_model, recipe_in
from ctmc.cli.output import Output, error_object
from ctmc.cli.question import (
    Question,
    check_certificate,
    check_extras,
    check_rewards,
    settings_of,
    start_vector,
)
from ctmc.errors import CTMCError, ModelError, StorageError, about, quoted


def answer(question: Question, output: Output) -> int:
    """Answer a question and return the exit code."""
    from ctmc import registry
    from ctmc.advise import chosen_solver
    from ctmc.cli.progress import Progress, monitor_for
    from ctmc.solve import solve
    from ctmc.study.measures import check_measure, check_names

    for text in question.conditions:
        check_measure(text, "--probability")
    for text in question.rewards if question.problem == "stationary" else ():
        check_measure(text, "--reward")
    settings = settings_of(question)
    check_extras(question)
    ranks = output.speaker.ranks
    if ranks.count > 1 and question.plot is not None:
        raise ModelError(f"plot is given, and {ranks.count} ranks were started; allowed is one process.")
    model = load_model(question.file, ranks)
    problem = registry.problem_class(question.problem)(model, **settings)
    solver, advised = chosen_solver(problem, question.solver)
    if question.options:
        solver = dataclasses.replace(solver, **question.options)  # type: ignore[type-var]  # solvers are dataclasses
    shown = registry.solver_name(solver)
    registry.check_takes(solver, problem)
    if question.problem == "stationary":
        check_rewards(model, question.rewards)
    for text in question.conditions:
        with about(f"--probability {quoted(text)}"):
            check_names(text, {*model.all_rewards, *getattr(model, "labels", ())})
    check_certificate(question.certify, problem, question.rewards)
    kept = _checkpoint(question, problem, shown)
    if kept is not None and not kept.resume and Path(kept.path).is_file():
        output.news(f"Note: {kept.path} is the checkpoint of an earlier solve; --resume goes on from there.")
    start = None if question.start is None else start_vector(question.start, model, output)
    if not (output.json or output.csv):
        default = f" (the default for this {question.problem} problem)" if question.solver is None else ""
        default = " (advised)" if advised else default
        output.write(f"Solver: {shown}{default}")
    elif question.solver is None:
        output.news(f"Solver: {shown} (the default for this {question.problem} problem)")
    for note in [*([advised] if advised else []), *model.notes]:
        output.news(f"Note: {note}")
    progress = Progress(output, shown, problem.tolerance)

    def announce() -> None:
        progress.clear()
        output.news("Stopping at the next step, what was reached will be stored; Ctrl-C again leaves at once.")

    with output.interrupts.gentle(announce):
        try:
            solution = solve(
                problem,
                solver,
                start=start,
                time_limit=question.time_limit,
                monitor=monitor_for(progress, output.interrupts.stopped, output.interrupts.wants_checkpoint),
                check=False,
                certify=question.certify,
                rewards=(question.rewards or None) if question.certify == "strict" else None,
                checkpoint=kept,
            )
        finally:
            progress.close()
        return _conclude(question, solution, output, advised)


def _conclude(question: Question, solution: Any, output: Output, advised: str) -> int:
    """Store, show, and return the exit code."""
    import numpy as np

    from ctmc.cli.models import solution_facts
    from ctmc.cli.numbers import csv_table, found_numbers, plain_numbers, tables
    from ctmc.solve import failure_message
    from ctmc.strict import width_notes
    from ctmc.study.numbers import keeps_numbers

    facts = solution_facts(solution, default=question.solver is None)
    counted = keeps_numbers(solution.problem)
    saved, save_error = _save(question, solution)
    code = 0 if solution.converged else 1
    errors = []
    if not solution.converged:
        errors.append(("SolveError", failure_message(solution)))
    if save_error is not None:
        errors.append((type(save_error).__name__, str(save_error)))
        code = code or 2
    found, picture, measures = None, None, {}
    if solution.converged:
        try:
            # a name that is not there must not cost the answer, which is stored by now
            measures = _measures(question, solution) if not counted else {}
            found = found_numbers(question, solution) if counted else None
            picture = _picture(question, solution)
        except CTMCError as error:
            errors.append((type(error).__name__, str(error)))
            code = code or 2
    if output.interrupts.stopped():
        code = output.interrupts.exit_code
    if output.json:
        document = {
            "file": question.file,
            "model_hash": solution.model_hash,
            **facts,
            **({"advice": advised} if advised else {}),
            **({"measures": measures} if found is None else plain_numbers(found)),
            "saved": saved,
            **({"checkpoint": str(solution.checkpoint)} if solution.checkpoint is not None else {}),
            **({"plot": picture} if question.plot is not None else {}),
        }
        if question.certify == "strict":
            document["intervals"] = {
                name: {"low": one.low, "high": one.high, "width": one.width} for name, one in solution.intervals.items()
            }
        if errors:
            document["error"] = error_object(*errors[0], code)
        output.document(document)
    elif output.csv:
        if found is None:
            _show_table(question, solution, measures, output)
        else:
            output.table(*csv_table(found))
    else:
        _show(solution, facts, measures, saved, output)
        for table in tables(found) if found is not None else ():
            output.write()
            output.table(*table, aligned=True)
        if found is not None and np.isinf(solution.value).any():
            output.write()
            output.write(f"Infinite: {solution.reason}")
    if picture is not None:
        output.news(f"Plot: {picture}")
    for note in (*width_notes(solution.intervals), *_notes(question, solution)):
        output.news(f"Note: {note}")
    for kind, message in errors:
        output.problem(kind, message, code)
    if solution.checkpoint is not None:
        output.news(f"What was reached stands in {solution.checkpoint}")
        resumed = [*output.arguments, *([] if question.resume else ["--resume"])]
        output.news(f"Go on with: ctmc {join(resumed)}")
    elif saved is not None and not solution.converged and question.problem == "stationary":
        given = question.solver or facts["solver"]
        output.news(f"Go on with: ctmc solve {quote(question.file)} --solver {quote(given)} --start {quote(saved)}")
    return code


def _checkpoint(question: Question, problem: Any, solver: str) -> Any:
    """Return where the solve is kept: as asked, or beside the model, where nothing is written before ten minutes are over."""
    from ctmc import registry
    from ctmc.checkpoint import Checkpoint
    from ctmc.model.level_dependent import LevelDependentQBD
    from ctmc.problem import AccumulatedReward, Transient
    from ctmc.storage.solutions import checkpoint_path

    settings: dict[str, Any] = {"resume": question.resume}
    if question.checkpoint_minutes is not None:
        settings["minutes"] = question.checkpoint_minutes
    if question.checkpoint is not None:
        return Checkpoint(question.checkpoint, **settings)
    over_time = isinstance(problem, Transient | AccumulatedReward)
    shared = getattr(problem.model, "shared", False)
    if question.no_checkpoint or isinstance(problem.model, LevelDependentQBD) or (shared and over_time):
        return None
    if recipe_in(question.file) is not None:
        return None
    name = f"{registry.problem_name(type(problem))}-{solver}"
    return Checkpoint(checkpoint_path(question.file, name), **settings)


def _notes(question: Question, solution: Any) -> tuple[str, ...]:
    """Return what there is to say about checkpoints; that a method has none only where one was asked for."""
    asked = question.checkpoint is not None or question.checkpoint_minutes is not None or question.resume
    return tuple(solution.notes) if asked or solution.checkpoint is not None else ()


def _show(solution: Any, facts: dict[str, Any], measures: dict[str, Any], saved: str | None, output: Output) -> None:
    bound = [("error bound", f"{facts['error_bound']:.3g}")] if facts["error_bound"] is not None else []
    names = [name for name in ("initial", "target", "avoid", "discount", "moments") if name in facts]
    output.facts(
        [
            *((name, facts[name]) for name in names),
            *([("times", _shown_times(facts["times"]))] if "times" in facts else []),
            ("status", facts["status"]),
            ("defect", f"{solution.defect:.3g} (tolerance {facts['tolerance']:g})"),
            *bound,
            ("iterations", facts["iterations"]),
            ("products", facts["products"]),
            ("seconds", f"{facts['seconds']:.3f}"),
            *([("saved", saved)] if saved is not None else []),
        ]
    )
    if not measures:
        return
    from ctmc.solution import flat_measures
    from ctmc.study.measures import at_time

    output.write()
    if solution.intervals:
        output.table(*_with_intervals(solution, measures))
        return
    if "times" not in facts:
        output.table(("measure", "value"), list(flat_measures(measures).items()))
        return
    columns = [flat_measures(at_time(measures, k)) for k in range(len(facts["times"]))]
    if len(columns) <= 6:
        heads = ["measure", *(f"t = {time:.10g}" for time in facts["times"])]
        output.table(heads, [[name, *(column[name] for column in columns)] for name in columns[0]])
    else:
        rows = [[time, *column.values()] for time, column in zip(facts["times"], columns, strict=True)]
        output.table(["time", *columns[0]], rows)


def _shown_times(times: list[float]) -> str:
    if len(times) <= 6:
        return ", ".join(f"{time:.10g}" for time in times)
    return f"{len(times):,} from {times[0]:.10g} to {times[-1]:.10g}"


def _with_intervals(solution: Any, measures: dict[str, Any]) -> tuple[list[str], list[list[Any]]]:
    """Return columns and rows of the measures with their proven intervals, empty where nothing is proven."""
    from ctmc.solution import flat_measures

    rows: list[list[Any]] = []
    for name, value in flat_measures(measures).items():
        one = solution.intervals.get(name)
        rows.append([name, value, *((None,) * 3 if one is None else (one.low, one.high, one.width))])
    return ["measure", "value", "low", "high", "width"], rows


def _show_table(question: Question, solution: Any, measures: dict[str, Any], output: Output) -> None:
    """Write the same columns as `ctmc run` does; with proven intervals, a line for each measure."""
    if solution.intervals:
        output.table(*_with_intervals(solution, measures))
        return
    from ctmc.cli.models import solution_facts
    from ctmc.study.measures import at_time
    from ctmc.study.run import Row, table

    facts = solution_facts(solution, default=False)
    kept = {
        name: facts[name] for name in ("problem", "solver", "status", "defect", "iterations", "products", "seconds")
    }
    times = facts.get("times", [None])
    rows = [
        Row(
            model=Path(question.file).stem,
            time=time,
            measures=measures if time is None else at_time(measures, k),
            **kept,
        )
        for k, time in enumerate(times)
    ]
    output.table(*table(tuple(rows)))


def _measures(question: Question, solution: Any) -> dict[str, Any]:
    from ctmc.study.measures import evaluate_measure

    asked = {}
    for flag, texts in (("--probability", question.conditions), ("--reward", question.rewards)):
        for text in texts:
            with about(f"{flag} {quoted(text)}"):
                asked[text] = evaluate_measure(solution, text)
    return {**solution.measures(), **asked}


def _picture(question: Question, solution: Any) -> str | None:
    """Draw the answer where --plot asks for it."""
    if question.plot is None:
        return None
    from ctmc.cli.question import parse_quantiles
    from ctmc.study.pictures import draw_answer

    quantiles = (0.5, 0.95) if question.quantiles is None else tuple(parse_quantiles(question.quantiles))
    draw_answer(solution, Path(question.plot), quantiles=quantiles)
    return question.plot


def _save(question: Question, solution: Any) -> tuple[str | None, CTMCError | None]:
    """Store the solution beside the model; an answer that is not certified never replaces one that is."""
    from ctmc.storage import can_be_saved, save_solution

    own = is_own(question.file)
    save = own if question.save is None else question.save
    if save and recipe_in(question.file) is not None:
        return None, StorageError(
            "save is asked for, but the model comes from a recipe; allowed is the file of a model."
        )
    if not save or not can_be_saved(solution):
        return None, None
    try:
        return str(save_solution(question.file, solution, foreign=not own)), None
    except CTMCError as error:
        return None, error
