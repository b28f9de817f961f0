"""One attempt, in a process of its own: load the model, solve, compare with the reference, leave a file with what came of it."""

from __future__ import annotations

import json
import math
import os
from collections.abc import Callable, Mapping
from contextlib import ExitStack
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from ctmc import registry
from ctmc.advise import chosen_solver
from ctmc.comparison.compiling import compiling
from ctmc.errors import CTMCError, MemoryLimitError, PluginError, UnsupportedProblemError, printable
from ctmc.model.generator import Generator
from ctmc.model.memory import limited_memory
from ctmc.model.qbd import QBD
from ctmc.model.recipe import allowed_code
from ctmc.problem import PROBLEMS, FirstPassage, Stationary
from ctmc.solution import HISTORY, Solution, Status, flat_measures
from ctmc.solve import solve
from ctmc.storage import load_fitting
from ctmc.storage.checksum import fletcher32
from ctmc.threads import limited_threads

WARM_UP = 5.0
"""Seconds; a solve that took less is done again, as the first one of a process also loads compiled loops; so is one that made some."""
_REHEARSALS = 5
"""At most; one that is ended by its limit may not have come to all that is to be compiled."""
_NUMBERS = 200
"""Most measures of an answer that are kept."""


def prepare() -> None:
    """Load what attempts need, before the process is forked for each."""
    import numba  # noqa: F401
    import scipy.sparse.linalg  # noqa: F401

    registry.load_own_solvers()
    # The first compiled loop of a process costs 0.2 s more; not one in parallel, whose threads would not stand a fork.
    fletcher32(np.frombuffer(b"first", dtype=np.uint8))


def attempt(request: Mapping[str, Any], tell: Callable[[str], None]) -> None:
    """Do what a request asks for and write the answer, a JSON document, to ``request["answer"]``.

    Parameters
    ----------
    request : mapping
        `model` (path of a file of our own format), `levels` (of a QBD, to truncate it), `problem` and `settings`, `solver`,
        `time_limit`, `memory_limit`, `threads`, `repeats`, `start` and `reference` (paths of vectors), `reference_measures`,
        `keep` (where to put the answer itself), `masses_beyond` (levels), `allow_code`, `answer`; `only_question` to see whether the
        model can be asked this at all, which `asked` in the answer says.
    tell : callable
        Told the name of each phase as it begins.
    """
    answer: dict[str, Any] = {}
    try:
        with ExitStack() as stack:
            stack.enter_context(limited_memory(request.get("memory_limit")))
            stack.enter_context(limited_threads(request.get("threads")))
            stack.enter_context(allowed_code(bool(request.get("allow_code"))))
            _attempt(request, tell, answer)
    except UnsupportedProblemError as error:
        answer |= {"status": "REFUSED", "message": str(error)}
    except PluginError as error:
        answer |= {"status": "NOT_INSTALLED" if " pip install " in str(error) else "ERROR", "message": str(error)}
    except (MemoryLimitError, MemoryError) as error:
        answer |= {"status": "MEMORY_LIMIT", "reason": "memory", "message": str(error) or "there is not enough memory."}
    except CTMCError as error:
        answer |= {"status": "ERROR", "message": str(error)}
    except Exception as error:  # a plug-in may raise anything
        answer |= {"status": "ERROR", "message": f"{type(error).__name__}: {printable(error)}."}
    place = Path(request["answer"])
    fresh = place.with_suffix(".part")
    fresh.write_text(json.dumps(answer), encoding="utf-8")
    os.replace(fresh, place)


def _attempt(request: Mapping[str, Any], tell: Callable[[str], None], answer: dict[str, Any]) -> None:
    tell("loading")
    model: Any = load_fitting(request["model"])
    if request.get("levels") is not None:
        model = model.truncate(request["levels"])
    answer |= facts_of(model)
    settings: dict[str, Any] = {}
    for name, value in request["settings"].items():
        settings[name] = tuple(value) if isinstance(value, list) else value
    if isinstance(settings.get("initial"), dict):  # JSON has no keys that are states
        states = settings["initial"]
        settings["initial"] = {tuple(map(int, state.split(","))): chance for state, chance in states.items()}
    problem = PROBLEMS[request["problem"]](model, **settings)
    if isinstance(problem, FirstPassage):
        problem.target_states, problem.avoided_states  # noqa: B018, as the conditions are read when they are first needed
    answer["asked"] = True
    if request.get("only_question"):
        return
    solver, _ = chosen_solver(problem, request["solver"] or None)
    registry.check_takes(solver, problem)
    start = None if request.get("start") is None else np.load(request["start"], allow_pickle=False)
    if request.get("warm") and (start is None or start.shape != (answer["states"],)):
        why = "has no certified answer" if start is None else f"has {len(start):,} states"
        answer |= {"status": "REFUSED", "message": f"there is nothing to begin from: the model before it {why}."}
        return
    seconds: list[float] = []
    rehearsals = 0  # these come first and are not counted: they have loaded or made compiled loops
    while True:
        phase = f"solve-{len(seconds) + 1}"
        tell(phase)
        with compiling(partial(tell, "compiling"), partial(tell, phase)) as compiled:
            solution = solve(problem, solver, start=start, time_limit=request.get("time_limit"), check=False)
        seconds.append(solution.seconds)
        quick = len(seconds) == 1 and solution.seconds < WARM_UP
        rehearsals += (quick or compiled.seconds > 0) and rehearsals == len(seconds) - 1 < _REHEARSALS
        late = solution.status is Status.TIME_LIMIT and compiled.seconds > 0 and rehearsals == len(seconds)
        if not late and (len(seconds) - rehearsals >= request.get("repeats", 1) or not solution.converged):
            break
    tell("comparing")
    counted = seconds[rehearsals:] or seconds[-1:]
    answer |= {
        "status": solution.status.name,
        "reason": "walltime" if solution.status is Status.TIME_LIMIT else "",
        "message": _message(solution, request),
        "ran": solution.solver,
        "defect": _number(solution.defect),
        "iterations": solution.iterations,
        "products": solution.products,
        "seconds": counted,
        "first_seconds": seconds[0],
        "history": {
            name: [_number(value) for value in solution.history[name].tolist()] for name in HISTORY.names or ()
        },
        "tolerance": float(problem.tolerance),
    }
    answer |= _compared(solution, request)


def _message(solution: Solution, request: Mapping[str, Any]) -> str:
    if solution.converged:
        return ""
    if solution.status is Status.TIME_LIMIT:
        return f"the limit of {request['time_limit']:g} s came first; {solution.reason}"
    return solution.reason


def facts_of(model: Any) -> dict[str, Any]:
    """Return what a table says about a model: its kind, the numbers of states and transitions, its largest and smallest rates."""
    if isinstance(model, Generator):
        return {"kind": "Generator", "states": int(model.size), "entries": int(model.entries)}
    if isinstance(model, QBD):
        entries = sum(int(getattr(model, block).nnz) for block in ("up", "local", "down"))
        return {"kind": "QBD", "states": None, "phases": int(model.phase_count), "entries": entries}
    return {"kind": type(model).__name__, "states": None, "entries": None}


def _compared(solution: Solution, request: Mapping[str, Any]) -> dict[str, Any]:
    """Return the measures, and how far the answer is from the reference."""
    found: dict[str, Any] = {}
    is_vector = isinstance(solution.value, np.ndarray)
    if request.get("keep") is not None and is_vector and solution.converged:
        np.save(request["keep"], solution.value, allow_pickle=False)
    if request.get("reference") is not None and is_vector:
        reference = np.load(request["reference"], mmap_mode="r", allow_pickle=False)
        difference = np.abs(np.asarray(solution.value) - reference)
        if isinstance(solution.problem, Stationary):
            found["distance"] = _number(float(difference.sum()))
        else:
            scale = float(np.abs(reference).max()) or 1.0
            found["distance"] = _number(float(difference.max()) / scale)
    if isinstance(solution.problem, Stationary) and solution.converged:
        measures = flat_measures(solution.measures())
        kept = {name: measures[name] for name in list(measures)[:_NUMBERS] if math.isfinite(measures[name])}
        found["measures"] = kept
        others = request.get("reference_measures") or {}
        shared = [name for name in kept if name in others]
        if shared:
            found["measure_difference"] = max(
                abs(kept[name] - others[name]) / max(abs(others[name]), 1.0) for name in shared
            )
        if request.get("masses_beyond") and isinstance(solution.problem.model, QBD):
            found["masses_beyond"] = {str(k): float(solution.value.tail(k)) for k in request["masses_beyond"]}
    return found


def _number(value: Any) -> Any:
    """Return a number as JSON takes it."""
    return None if isinstance(value, float) and not math.isfinite(value) else value
