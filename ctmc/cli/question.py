"""What ``ctmc solve`` is asked: its options, turned into the arguments of a problem."""

from __future__ import annotations

import dataclasses
import math
from fractions import Fraction
from itertools import pairwise
from typing import Any

from ctmc.cli.output import Output
from ctmc.errors import ModelError, about, printable, quoted, shown, unknown_name

_MOST_TIMES = 1_000_000


@dataclasses.dataclass(frozen=True)
class Question:
    """What the command line asks, apart from limits."""

    file: str
    solver: str | None
    options: dict[str, Any]
    tolerance: float | None
    problem: str
    initial: str | None
    times: str | None
    start: str | None
    time_limit: float | None
    conditions: tuple[str, ...]
    rewards: tuple[str, ...]
    save: bool | None  # None: beside a file of our own, not beside one of another program
    certify: str = "defect"
    moments: int | None = None
    discount: float | None = None
    target: str | None = None
    avoid: str | None = None
    cdf_times: str | None = None
    quantiles: str | None = None
    plot: str | None = None
    checkpoint: str | None = None
    checkpoint_minutes: float | None = None
    resume: bool = False
    no_checkpoint: bool = False


_TAKES = {
    "times": ("transient", "accumulated-reward"),
    "moments": ("accumulated-reward", "discounted-reward", "first-passage"),
    "discount": ("discounted-reward",),
    "target": ("first-passage",),
    "avoid": ("first-passage",),
    "cdf_times": ("first-passage",),
    "quantiles": ("first-passage",),
    "plot": ("transient", "accumulated-reward", "discounted-reward", "first-passage"),
    "reward": ("stationary", "transient", "accumulated-reward", "discounted-reward"),
    "probability": ("stationary", "transient"),
    "start": ("stationary",),
}
"""Which problems an option belongs to."""
_NEEDS = {
    "transient": ("times",),
    "accumulated-reward": ("reward", "times"),
    "discounted-reward": ("reward", "discount"),
    "first-passage": ("target",),
}
_EXAMPLES = {
    "times": "--times 0.5,2 or --times 0:50:1",
    "reward": "--reward jobs",
    "discount": "--discount 0.5",
    "target": "--target 'jobs >= 10'",
}


def check_question(question: Question) -> None:
    """Complain about options that do not fit the problem, or are missing, before anything is loaded.

    Raises
    ------
    ModelError
        One sentence that names the option.
    """
    if question.problem not in {*_NEEDS, "stationary"}:
        return  # the registry refuses its name, with those that there are
    given = {
        "times": question.times, "moments": question.moments, "discount": question.discount, "target": question.target,
        "avoid": question.avoid, "cdf_times": question.cdf_times, "quantiles": question.quantiles, "plot": question.plot,
        "reward": question.rewards or None, "probability": question.conditions or None, "start": question.start,
    }  # fmt: skip
    article = "an" if question.problem.startswith("a") else "a"
    for name, value in given.items():
        allowed = _TAKES[name]
        if value is not None and question.problem not in allowed:
            have = " and ".join(f"--problem {problem}" for problem in allowed)
            has = "has" if len(allowed) == 1 else "have"
            raise ModelError(f"{_flag(name)} is given for {article} {question.problem} problem; only {have} {has} it.")
    for name in _NEEDS.get(question.problem, ()):
        if given[name] is None:
            raise ModelError(f"{article} {question.problem} problem needs --{name}, such as {_EXAMPLES[name]}.")
    if question.problem == "transient" and question.rewards and question.conditions:
        raise ModelError(
            "--probability is given with --reward; with rewards a transient problem keeps no distribution, so ask for one of both."
        )
    if question.problem == "first-passage" and question.initial is None:
        for name in ("quantiles", "plot"):
            if given[name] is not None:
                raise ModelError(f"{_flag(name)} needs --initial, such as --initial 0,0,0: each state has its own.")
    for name, value in (
        ("--checkpoint", question.checkpoint),
        ("--checkpoint-minutes", question.checkpoint_minutes),
        ("--resume", question.resume or None),
    ):
        if question.no_checkpoint and value is not None:
            raise ModelError(f"{name} is given with --no-checkpoint; allowed is one of both.")
    if question.resume and question.start is not None:
        raise ModelError("--start is given with --resume, which goes on from a checkpoint; allowed is one of both.")
    if question.discount is not None and not 0 < question.discount < math.inf:
        raise ModelError(f"--discount is {question.discount:g}; allowed is a positive number, per unit of time.")
    if question.checkpoint_minutes is not None and not 0 <= question.checkpoint_minutes < math.inf:
        raise ModelError(
            f"--checkpoint-minutes is {question.checkpoint_minutes:g}; allowed is a finite number of minutes >= 0."
        )
    if question.moments is not None and not 1 <= question.moments <= 8:
        raise ModelError(f"--moments is {question.moments}; allowed is a whole number from 1 to 8.")


def _flag(name: str) -> str:
    return "--quantile" if name == "quantiles" else "--" + name.replace("_", "-")


def settings_of(question: Question) -> dict[str, Any]:
    """Return the arguments of the problem's class, apart from the model."""
    check_question(question)
    settings: dict[str, Any] = {}
    for name in ("tolerance", "moments", "discount", "target", "avoid"):
        if getattr(question, name) is not None:
            settings[name] = getattr(question, name)
    if question.rewards and question.problem != "stationary":
        settings["reward"] = question.rewards
    if question.initial is not None:
        settings["initial"] = parse_initial(question.initial)
    if question.times is not None:
        settings["times"] = parse_times(question.times)
    return settings


def parse_initial(text: str) -> tuple[int, ...] | dict[tuple[int, ...], float]:
    """Return the state of ``0,0,0``, or the states and probabilities of ``0,0,0:0.5;1,0,0:0.5``.

    Examples
    --------
    >>> parse_initial("0,2"), parse_initial("0,0:0.25; 1,0:0.75")
    ((0, 2), {(0, 0): 0.25, (1, 0): 0.75})
    """
    problem = (
        f"--initial is {shown(text)}; allowed are a state such as 0,0,0, and states with probabilities such as "
        "'0,0,0:0.5;1,0,0:0.5'."
    )
    try:
        if ":" not in text:
            return tuple(int(part) for part in text.split(","))
        chances: dict[tuple[int, ...], float] = {}
        for part in text.split(";"):
            state, mark, chance = part.partition(":")
            key = tuple(int(number) for number in state.split(","))
            if key in chances or not mark:
                raise ValueError
            chances[key] = float(chance)
    except ValueError:
        raise ModelError(problem) from None
    if not (all(chance >= 0 for chance in chances.values()) and abs(sum(chances.values()) - 1) <= 1e-9):
        total = sum(chances.values())
        raise ModelError(f"--initial has probabilities that sum to {total:.12g}; allowed are ones >= 0 that sum to 1.")
    return chances


def parse_quantiles(text: str) -> list[float]:
    """Return the probabilities of ``0.5,0.95``, each from 0 to 1.

    Examples
    --------
    >>> parse_quantiles("0.5,0.95")
    [0.5, 0.95]
    """
    try:
        found = [float(part) for part in text.split(",")]
    except ValueError:
        found = [math.nan]
    if not all(0 <= p <= 1 for p in found):
        raise ModelError(f"--quantile is {shown(text)}; allowed are probabilities from 0 to 1 such as 0.5,0.95.")
    return found


def parse_numbers(text: str, flag: str, kind: type) -> list[Any]:
    """Return the numbers of ``50,100``, whole ones where `kind` is int.

    Examples
    --------
    >>> parse_numbers("1e-8,1e-12", "--tolerances", float)
    [1e-08, 1e-12]
    """
    try:
        return [kind(part) for part in text.split(",")]
    except ValueError:
        what = "whole numbers such as 50,100" if kind is int else "numbers such as 1e-8,1e-12"
        raise ModelError(f"{flag} is {shown(text)}; allowed are {what}.") from None


def parse_times(text: str, flag: str = "--times") -> list[float]:
    """Return the times of ``0.5,2`` or of ``begin:end:step``, the end included.

    Examples
    --------
    >>> parse_times("0.5,2"), parse_times("0:1:0.25")
    ([0.5, 2.0], [0.0, 0.25, 0.5, 0.75, 1.0])
    """
    problem = f"{flag} is {shown(text)}; allowed are numbers such as 0.5,2 or begin:end:step such as 0:50:1."
    try:
        if ":" not in text:
            times = [float(part) for part in text.split(",")]
            if times[0] < 0 or not all(map(math.isfinite, times)) or any(a >= b for a, b in pairwise(times)):
                raise ModelError(f"{flag} is {shown(text)}; allowed are finite times >= 0, ascending.")
            return times
        begin, end, step = (Fraction(str(float(part))) for part in text.split(":"))  # exact: 3 * 0.1 is 0.3 here
    except ValueError as error:
        if isinstance(error, ModelError):
            raise
        raise ModelError(problem) from None
    if not (step > 0 and 0 <= begin <= end):
        raise ModelError(problem)
    count = (end - begin) / step
    if not count < _MOST_TIMES:
        raise ModelError(f"{flag} {printable(text)} are {float(count):.3g} times; allowed are {_MOST_TIMES:,}.")
    return [float(begin + k * step) for k in range(math.floor(count) + 1)]


def check_extras(question: Question) -> None:
    """Complain before the solve about what is asked of its answer: quantiles, times of the distribution function, the picture."""
    if question.quantiles is not None:
        parse_quantiles(question.quantiles)
    if question.cdf_times is not None:
        parse_times(question.cdf_times, "--cdf-times")
    if question.plot is not None:
        from ctmc.study.pictures import check_picture

        check_picture(question.plot)


def check_rewards(model: Any, names: tuple[str, ...]) -> None:
    """Complain before the solve, not after it; measures of a stationary answer are only known then."""
    for name in names:
        if name not in model.all_rewards and model.measures is None:
            with about(f"--reward {quoted(name)}"):
                raise unknown_name("reward", name, model.all_rewards)


def check_certificate(name: str, problem: Any, rewards: tuple[str, ...]) -> None:
    """Complain before the solve about intervals that cannot be proven after it."""
    from ctmc import strict
    from ctmc.solve import CERTIFICATES

    if name not in CERTIFICATES:
        raise unknown_name("certificate", name, CERTIFICATES)
    if name == "strict":
        strict.check(problem, rewards or None)


def start_vector(path: str, model: Any, output: Output) -> Any:
    """Return the vector of a stored solution; that of another model may serve as well, and is pointed out."""
    from ctmc.storage import load_solution

    stored = load_solution(path)
    if getattr(stored, "model_hash", None) not in (None, model.content_hash):
        output.news("Note: the start is a solution of another model.")
    if getattr(model, "shared", False) and getattr(stored.value, "shape", None) == (model.states,):
        return stored.value[model.begin : model.begin + model.size]
    return stored.value
