"""Which answers a store has already, in what others differ, and how a stored answer becomes a solution again.

A stored answer stands for a new one where the content of the model and the whole question agree.  It is verified again: every
byte of its file, and the certificate of a long-run distribution, which takes one product.  Answers over time and about
passages keep the certificate that they were stored with, since what proved it (integrals, iterates of every moment) is not kept.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from ctmc import certificate
from ctmc.errors import ModelError, StorageError, printable, shown
from ctmc.passage_solution import PassageSolution
from ctmc.problem import PROBLEMS, AccumulatedReward, DiscountedReward, FirstPassage, Stationary, Transient
from ctmc.solution import Outcome, Solution, Status
from ctmc.solve import solve
from ctmc.storage import load_solution, read_info
from ctmc.storage.question import HASH_DIGITS, can_be_found, differences, question_hash
from ctmc.storage.solutions import StoredSolution, solution_folder
from ctmc.storage.store import Store, touch

_UNFINISHED = (Status.STOPPED, Status.TIME_LIMIT)
"""Ends that come from outside, and not from the question: there is more to come."""


@dataclass(frozen=True)
class Found:
    """What the store says about a question.

    Attributes
    ----------
    solution : Solution or None
    done : str
        ``reused``, ``failed before``, or why it is solved, in a few words.
    why : str
        The same in full.
    path : Path or None
        File of the solution.
    """

    solution: Solution | None
    done: str
    why: str
    path: Path | None = None


def answer_name(question: Mapping[str, Any]) -> str:
    """Return the name of a question's answer: problem, solver, and the first digits of the question's hash.

    Examples
    --------
    >>> answer_name({"problem": "stationary", "solver": "gmres(restart=50)"})
    'stationary-gmres-69b0c6d230'
    """
    return f"{question['problem']}-{question['solver'].partition('(')[0]}-{question_hash(question)[:HASH_DIGITS]}"


def questions_of(store: Store, model: Path) -> list[dict[str, Any]]:
    """Return the questions that the stored solutions of a model answer; files that cannot be read are left out."""
    found = []
    for path in store.solutions(model):
        try:
            question = read_info(path).get("question")
        except StorageError:
            continue
        if isinstance(question, dict):
            found.append(question)
    return found


def is_certified(path: Path) -> bool:
    """Return whether a file holds an answer that says to be certified."""
    try:
        return path.is_file() and bool(read_info(path).get("status") == Status.CONVERGED.name)
    except StorageError:
        return False


def find(
    store: Store,
    model: Path,
    problem: Any,
    question: Mapping[str, Any],
    known: Callable[[], list[dict[str, Any]]],
) -> Found:
    """Return the stored answer to a question, or why there is none.

    Parameters
    ----------
    store : Store
    model : Path
        File of the model.
    problem
        On the loaded model.
    question : mapping
    known : callable
        Returns what `questions_of` said before the run; called only where there is no answer.
    """
    if not can_be_found(question):
        return Found(None, "no source", "a function in the question has no source that could be compared.")
    name = f"{answer_name(question)}.h5"
    problems: list[Found] = []
    for folder in store.folders:
        path = solution_folder(folder / model.name) / name
        if not path.is_file():
            continue
        found = _restored(path, problem, question)
        if found.solution is not None:
            touch(path)
            return found
        problems.append(found)
    return problems[0] if problems else _reason(question, known())


def _restored(path: Path, problem: Any, question: Mapping[str, Any]) -> Found:
    try:
        if read_info(path).get("question") != dict(question):
            return Found(None, "new", "the stored answer of that name is of another question.")
        stored = load_solution(path)
    except StorageError as error:
        return Found(None, "the stored answer cannot be read", str(error))
    if stored.model_hash != problem.model.content_hash:
        return Found(None, "the model's content changed", "the stored answer is of another model.")
    if stored.status in _UNFINISHED:
        return Found(None, "unfinished before", f"{stored.status.name}: {stored.reason}")
    solution = solution_of(problem, stored)
    if stored.status is not Status.CONVERGED:
        return Found(solution, "failed before", f"{stored.status.name}: {stored.reason}", path)
    if not isinstance(problem, Stationary):
        return Found(solution, "reused", f"{path.name}, verified byte by byte.", path)
    proof = certificate.certify(problem, Outcome(stored.value))
    if proof.status is not Status.CONVERGED:
        return Found(None, "the stored answer is not certified", proof.reason)
    solution = replace(solution, defect=proof.defect, reason=proof.reason, error_bound=proof.error_bound)
    return Found(solution, "reused", f"{path.name}, its certificate recomputed: {proof.reason}", path)


def solution_of(problem: Any, stored: StoredSolution) -> Solution:
    """Return a stored answer as a solution of the problem that it is of; nothing is proved anew."""
    names = ("value", "status", "reason", "defect", "history", "seconds", "products", "solver", "error_bound")
    known = {name: getattr(stored, name) for name in (*names, "variances", "variance_bounds", "intervals", "warm")}
    if not isinstance(problem, FirstPassage):
        return Solution(problem, **known)
    return PassageSolution(
        problem,
        **known,
        reach_probability=stored.reach_probability,
        reach_error_bound=float("nan") if stored.reach_error_bound is None else stored.reach_error_bound,
        relative_error_bound=stored.relative_error_bound,
        solve=solve,
    )


def restored(model: Any, stored: StoredSolution) -> Solution:
    """Return a stored answer as a solution of its model again; nothing is proved anew.

    Parameters
    ----------
    model : Generator or QBD
    stored : StoredSolution

    Raises
    ------
    ModelError
        The answer is of another model, or its question has a function that is known by name only.

    Examples
    --------
    >>> import tempfile, ctmc
    >>> from ctmc.storage import load, load_solution, save, save_solution
    >>> queue = ctmc.build("birth_death", births=[1.0], deaths=[1.0])
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     _ = save(f"{folder}/queue.h5", queue)
    ...     stored = load_solution(save_solution(f"{folder}/queue.h5", ctmc.solve(ctmc.Stationary(queue))))
    ...     restored(load(f"{folder}/queue.h5"), stored).expected("jobs")
    0.5
    """
    where = printable(stored.path)
    if model.content_hash != stored.model_hash:
        raise ModelError(f"{where} is an answer of another model.")
    if stored.problem not in PROBLEMS:
        raise ModelError(f"{where} has the problem {shown(stored.problem)}; allowed are {', '.join(PROBLEMS)}.")
    if stored.functions:
        raise ModelError(
            f"{where} has a function as its {' and '.join(stored.functions)}, which is known by name only."
        )
    kind = PROBLEMS[stored.problem]
    asked: dict[str, Any] = {"tolerance": stored.tolerance, "initial": stored.initial}
    if kind in (Transient, AccumulatedReward):
        asked["times"] = stored.times
    if kind in (Transient, AccumulatedReward, DiscountedReward):
        asked["reward"] = stored.reward or None
    if kind in (AccumulatedReward, DiscountedReward, FirstPassage):
        asked["moments"] = stored.moments
    if kind is DiscountedReward:
        asked["discount"] = stored.discount
    if kind is FirstPassage:
        asked |= {"target": stored.target, "avoid": stored.avoid}
    return solution_of(kind(model, **asked), stored)


def _reason(question: Mapping[str, Any], known: list[dict[str, Any]]) -> Found:
    """Return in what a question differs from the one that is most like it among those answered by the same solver."""
    same = [
        other
        for other in known
        if other.get("problem") == question["problem"]
        and str(other.get("solver")).partition("(")[0] == question["solver"].partition("(")[0]
    ]
    compared = sorted((differences(question, other) for other in same), key=lambda names: (len(names), names))
    if not compared or not compared[0]:
        return Found(None, "new", "the store has no answer of this solver.")
    names = compared[0]
    other = next(other for other in same if differences(question, other) == names)
    full = "; ".join(f"{_word(name)}: {_shown(other.get(name))} -> {_shown(question.get(name))}" for name in names)
    return Found(None, f"{', '.join(map(_word, names))} changed", full)


def _word(name: str) -> str:
    return {"solver": "options", "source": "code of the solver", "version": "version of ctmc-lab"}.get(name, name)


def _shown(value: Any) -> str:
    text = "none" if value is None else printable(value)
    return text if len(text) <= 60 else f"{text[:57]}..."
