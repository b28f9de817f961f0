"""``ctmc solve``: the command, with the flags of the solver that --solver names."""

from __future__ import annotations

import copy
import dataclasses
from typing import Any

import click

from ctmc.cli.app import Command, output_of
from ctmc.cli.docstring import read_docstring
from ctmc.cli.options import (
    CERTIFICATE_NAMES,
    PROBLEM_NAMES,
    code_option,
    file_type,
    given_values,
    limits,
    memory_option,
    names_starting,
    solver_names,
    threads_option,
    value_option,
)
from ctmc.cli.question import Question
from ctmc.errors import CTMCError


def _solve(
    file: str,
    solver: str | None,
    tolerance: float | None,
    problem: str,
    initial: str | None,
    times: str | None,
    start: str | None,
    time_limit: float | None,
    probability: tuple[str, ...],
    reward: tuple[str, ...],
    moments: int | None,
    discount: float | None,
    target: str | None,
    avoid: str | None,
    cdf_times: str | None,
    quantile: str | None,
    plot: str | None,
    certify: str,
    save: bool | None,
    checkpoint: str | None,
    checkpoint_minutes: float | None,
    resume: bool,
    no_checkpoint: bool,
    threads: int | None,
    memory_limit: str | None,
    allow_code: bool,
    **values: Any,
) -> int:
    from ctmc.cli.answer import answer

    output = output_of(click.get_current_context())
    question = Question(
        file, solver, given_values(values), tolerance, problem, initial, times, start, time_limit, probability, reward,
        save, certify, moments, discount, target, avoid, cdf_times, quantile, plot,
        checkpoint, checkpoint_minutes, resume, no_checkpoint,
    )  # fmt: skip
    with limits(threads, memory_limit, allow_code):
        return answer(question, output)


def _solver_in(arguments: list[str]) -> str | None:
    """Return the value of --solver, before click reads the arguments: it decides which flags there are."""
    found = None
    for position, argument in enumerate(arguments):
        if argument == "--":
            break
        if argument.startswith("--solver="):
            found = argument.partition("=")[2]
        elif argument == "--solver" and position + 1 < len(arguments):
            found = arguments[position + 1]
    return found


def solver_options(text: str, taken: list[str]) -> list[click.Parameter]:
    """Return a flag for each option of a solver, given as NAME or NAME(option=value)."""
    from ctmc import registry
    from ctmc.advise import is_auto
    from ctmc.study.parameters import option_annotations

    if is_auto(text):
        return []  # which solver it will be is not known yet
    kind: Any = registry.solver_class(text.partition("(")[0].strip())
    parts = read_docstring(kind)
    annotations = option_annotations(kind)
    flags: list[click.Parameter] = []
    for field in dataclasses.fields(kind):
        flag = value_option(
            field.name,
            annotations[field.name],
            parts.parameters.get(field.name, ("", "")),
            default=field.default,
            required=False,
            taken=taken,
            kind="solver",
        )
        flag.help = f"{registry.snake_case(kind.__name__)}: {flag.help}"
        flags.append(flag)
    return flags


class SolveCommand(Command):
    """``ctmc solve``, which has the flags of the solver that --solver names."""

    def make_context(
        self, info_name: str | None, args: list[str], parent: click.Context | None = None, **extra: Any
    ) -> click.Context:
        """Add the solver's flags to a copy of the command, then read the arguments."""
        text = _solver_in(args)
        chosen = copy.copy(self)
        if text is not None:
            taken = [flag for parameter in self.params for flag in parameter.opts]
            try:
                chosen.params = [*self.params, *solver_options(text, taken)]
            except CTMCError:
                if not extra.get("resilient_parsing"):
                    raise
        try:
            return click.Command.make_context(chosen, info_name, args, parent, **extra)
        except click.NoSuchOption as error:
            if text is not None:
                raise
            hint = "the options of a solver need its name, as in --solver gmres --restart 50"
            raise click.UsageError(f"{error.format_message().rstrip('.')}; {hint}", error.ctx) from None


command = SolveCommand(
    "solve",
    csv=True,
    callback=_solve,
    params=[
        click.Argument(["file"], type=file_type(), metavar="FILE"),
        click.Option(
            ["--solver"],
            metavar="NAME",
            shell_complete=names_starting(lambda: ["auto", *solver_names()]),
            help="A solver, also with options: 'gmres(restart=50)', or 'auto': the one that 'ctmc advise' recommends; default: the one that 'ctmc list problems' names.",
        ),
        click.Option(["--problem"], default="stationary", metavar="|".join(PROBLEM_NAMES), show_default=True,
                     shell_complete=names_starting(lambda: PROBLEM_NAMES), help="The question."),
        click.Option(["--tolerance"], type=float, metavar="FLOAT",
                     help="Largest accepted defect; default 1e-12 (stationary), 1e-10 (the others)."),
        click.Option(["--initial"], metavar="STATE",
                     help="State at the start, such as 0,0,0, or several with probabilities, '0,0,0:0.5;1,0,0:0.5'; default: the "
                     "model's own for distributions, every state for rewards and passage times."),
        click.Option(["--times"], metavar="TIMES", help="Of transient and accumulated-reward: 0.5,2 or begin:end:step."),
        click.Option(["--reward"], multiple=True, metavar="NAME",
                     help="A reward, such as jobs or queue_length[1]: its expectation; with a transient problem distributions "
                     "are not kept then; may be repeated."),
        click.Option(["--moments"], type=int, metavar="INT",
                     help="Of accumulated-reward, discounted-reward (default 1) and first-passage (default 2): how many; 2 and "
                     "more give variances."),
        click.Option(["--discount"], type=float, metavar="RATE", help="Of discounted-reward: rate of discounting, > 0."),
        click.Option(["--target"], metavar="CONDITION",
                     help="Of first-passage: what is waited for, a condition such as 'jobs >= 10' or a label."),
        click.Option(["--avoid"], metavar="CONDITION", help="Of first-passage: what must not happen before."),
        click.Option(["--cdf-times"], metavar="TIMES", help="Of first-passage: show P{T <= t} at these times."),
        click.Option(["--quantile"], metavar="P,..", help="Of first-passage: show quantiles, such as 0.5,0.95."),
        click.Option(["--plot"], type=file_type(), metavar="FILE",
                     help="Draw the answer: .png, .svg or .pdf; not for stationary problems."),
        click.Option(["--start"], type=file_type(), metavar="SOLUTION",
                     help="Begin with a stored solution, for instance of a solve that was interrupted."),
        click.Option(["--time-limit"], type=float, metavar="SECONDS", help="Stop after this time."),
        click.Option(["--probability"], multiple=True, metavar="CONDITION",
                     help="Add the probability of a condition such as 'jobs >= 10'; may be repeated."),
        click.Option(["--certify"], default="defect", metavar="|".join(CERTIFICATE_NAMES), show_default=True,
                     shell_complete=names_starting(lambda: CERTIFICATE_NAMES),
                     help="'strict' also proves intervals: for each --reward if given, else for what the measures need."),
        click.Option(["--save/--no-save"], default=None,
                     help="Store the solution beside the model; default: only beside a file of ctmc's own format."),
        click.Option(["--checkpoint"], type=file_type(), metavar="FILE",
                     help="Where a long solve keeps what it has reached; default: beside the model.  Removed once converged."),
        click.Option(["--checkpoint-minutes"], type=float, metavar="MINUTES", help="Between two checkpoints; default 10."),
        click.Option(["--resume"], is_flag=True, help="Go on from the checkpoint; everything else must be as it was."),
        click.Option(["--no-checkpoint"], is_flag=True, help="Keep no checkpoint."),
        threads_option(),
        memory_option(),
        code_option(),
    ],
    help="Solve a stored model, of any format that 'ctmc list formats' shows, and certify the answer.\n\n"
    "The options of a solver are flags as well once --solver names it: 'ctmc solve model.h5 --solver gmres --restart 50'; "
    "'ctmc solve --solver gmres --help' lists them.  Nothing is retried: if the answer is not certified the exit code is 1 "
    "and the message names the method to try next.  Ctrl-C, SIGTERM and SIGHUP stop at the next step and leave a checkpoint, SIGUSR1 "
    "writes one and goes on; --resume goes on from there.\n\n"
    "Measures are shown for certified answers only, with bounds on their errors (+-) where these are proven.\n\n\b\n"
    "Examples\n"
    "  ctmc solve model.h5\n"
    "  ctmc solve model.umb\n"
    "  ctmc solve model.h5 --checkpoint-minutes 5 --resume\n"
    "  ctmc solve model.h5 --probability 'jobs >= 10'\n"
    "  ctmc solve model.h5 --problem transient --initial 0,0,0 --times 0:50:1 --reward queue_length --plot course.png\n"
    "  ctmc solve model.h5 --problem accumulated-reward --initial 0,0,0 --times 2 --reward imbalance --moments 2\n"
    "  ctmc solve model.h5 --problem discounted-reward --discount 0.5 --reward imbalance\n"
    "  ctmc solve model.h5 --problem first-passage --initial 0,0,0 --target 'jobs >= 10' --quantile 0.5,0.95",
)  # fmt: skip
