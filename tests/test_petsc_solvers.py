"""The solvers that stand on PETSc and SLEPc: on any number of ranks the answers of other methods on one process."""

import json
import os
from functools import cache
from pathlib import Path

import numpy as np
import pytest

import ctmc
from ctmc.model.shared import share
from ctmc.ranks import world
from tests.mpi import mpirun, needs_mpi

STATIONARY = ("slepc_krylov_schur", "petsc_krylov")
OVER_TIME = ("petsc_uniformization", "slepc_exponential", "uniformization", "chebyshev")
ACCURACY = 1e-10
COARSER = {"small discount": 1e-8, "spectral gap": 1e-8}
"""Where rounding over the discount, or the condition of an eigenvalue (1e4 and more for fork-join), leaves less."""


HERE = Path(__file__).parent

pytestmark = needs_mpi("petsc4py", "slepc4py")


# ---- what is asked of every solver, on one process and on ranks -----------------------------------------------------------


def models():
    """Return models by name: two colors and none, sparse and lattice, one with fewer states than ranks."""
    found = {
        "supermarket": ctmc.build(
            "supermarket", service_rates=[1.0, 1.5], arrival_rate=1.9, choices=2, capacity=8, selection="shortest_queue"
        ),
        "fork-join": ctmc.build(
            "fork_join", service_rates=[5.0, 2.0, 1.0], arrival_rate=1.0, tasks=3, thresholds=[1, 2, 8]
        ).truncate(25),
        "polling": ctmc.build("polling", stations=3),
        "kanban": ctmc.build("kanban", tickets=1),
        "three states": ctmc.Generator.from_matrix([[0, 1.0, 0.5], [2.0, 0, 1.0], [0.25, 3.0, 0]]),
        "two states": ctmc.Generator.from_matrix([[0, 1.0], [3.0, 0]]),
    }
    return {name: model.with_reward("total", lambda states: states.sum(axis=1)) for name, model in found.items()}


class _Far:
    """States whose coordinates sum to a number that some state has; the same on each rank."""

    def __init__(self, model):
        totals = model.space.states(np.arange(model.space.size)).sum(axis=1)
        self.first = int(np.argmin(totals))
        reached = np.unique(totals)
        self.least = int(reached[min(len(reached) - 1, 4)])

    def __call__(self, states):
        return states.sum(axis=1) >= self.least


def answers(model, whole, solvers):
    """Return numbers by question and solver.

    Parameters
    ----------
    model : Generator
        All of it, or the part of a rank.
    whole : Generator
    solvers : dict
        From 'stationary', 'time', 'discounted' and 'passage' to names of solvers.
    """
    ranks, found = model.ranks, {}
    target = _Far(whole)
    start = tuple(whole.space.states(target.first).tolist())
    begin = getattr(model, "begin", 0)
    weights = np.cos(np.arange(begin, begin + model.size))

    times = np.array([0.4, 6.0]) * min(1.0, 20 / model.uniformization_rate)

    def spread(values):
        return np.atleast_1d(ranks.total(values @ weights)).tolist()

    for name in solvers["stationary"]:
        solution = ctmc.solve(ctmc.Stationary(model, 1e-11), name)
        found["stationary", name] = [solution.expected("total"), *spread(solution.value)]
    for name in solvers["time"]:
        asked = {"reward": "total", "times": times, "tolerance": 1e-11}
        found["transient", name] = ctmc.solve(ctmc.Transient(model, initial=start, **asked), name).value.tolist()
        every = ctmc.solve(ctmc.Transient(model, initial=None, **asked), name).value
        found["every start", name] = spread(every / whole.size)
        # rounding in the terms of chebyshev is more than the second moment of polling allows
        moments = 1 if name == "chebyshev" else 2
        earned = ctmc.AccumulatedReward(model, initial=start, moments=moments, **asked)
        found["accumulated", name] = ctmc.solve(earned, name).value.ravel().tolist()
    for name in solvers["discounted"]:
        problem = ctmc.DiscountedReward(model, "total", initial=start, discount=0.3, moments=2, tolerance=1e-12)
        found["discounted", name] = ctmc.solve(problem, name).value.ravel().tolist()
        small = ctmc.DiscountedReward(model, "total", initial=None, discount=1e-5, tolerance=1e-12)
        found["small discount", name] = spread(ctmc.solve(small, name).value * (1e-5 / whole.size))
    for name in solvers["passage"]:
        problem = ctmc.FirstPassage(model, target, initial=start, moments=2, tolerance=1e-12)
        solution = ctmc.solve(problem, name)
        found["passage", name] = solution.value.tolist()
    return found


OWN = {
    "stationary": STATIONARY,
    "time": OVER_TIME,
    "discounted": ("petsc_resolvent",),
    "passage": ("petsc_passage",),
}
OTHERS = {
    "stationary": ("gth",),
    "time": ("rational",),
    "discounted": ("resolvent_lu",),
    "passage": ("absorption_elimination",),
}


def all_answers():
    """Print, on rank 0, the answers to every question about every model, as JSON, with the spectral gaps."""
    ranks, found = world(), []
    for title, model in models().items():
        part = share(model, ranks)
        for (question, name), values in answers(part, model, OWN).items():
            found.append((title, question, name, values))
        if part.states == 3:  # more steps than it is worth elsewhere
            solution = ctmc.solve(ctmc.Stationary(part, 1e-12), "power_iteration")
            found.append((title, "stationary", "power_iteration", [solution.expected("total")]))
        for method in ("dense", "slepc_krylov_schur"):
            gap = ctmc.spectral_gap(part, method=method)
            found.append((title, "spectral gap", method, [gap.eigenvalue.real, gap.eigenvalue.imag, gap.residual]))
    _one_rank_stops(ranks, found)
    if ranks.rank == 0:
        print(json.dumps(found))


def _one_rank_stops(ranks, found):
    """Note how a solve ends which the monitor of the last rank alone stops."""
    part = share(models()["supermarket"], ranks)

    def monitor(iteration, defect):
        return ranks.rank == ranks.count - 1 and iteration >= 1

    for problem, solver in (
        (ctmc.Stationary(part, 1e-11), "slepc_krylov_schur(vectors=4)"),
        (ctmc.Transient(part, initial=(0, 0), times=[50.0]), "slepc_exponential(step=5.0)"),
        (ctmc.DiscountedReward(part, "total", discount=0.01), "petsc_resolvent"),
    ):
        solution = ctmc.solve(problem, solver, monitor=monitor, check=False)
        found.append(("supermarket", "stopped", solver, ranks.gathered(solution.status.name)))


@cache
def known():
    """Return the answers of other methods on one process, by model and question."""
    found = {}
    for title, model in models().items():
        for (question, _), values in answers(model, model, OTHERS).items():
            found[title, question] = values
        values = np.linalg.eigvals(model.to_scipy().toarray())
        second = values[np.argsort(-values.real)[1]]
        found[title, "spectral gap"] = [second.real, abs(second.imag), 0.0]
    return found


# ---- in one process -----------------------------------------------------------------------------------------------------------


def test_rewards_at_events():
    """Impulses couple the blocks of moments by matrices."""
    earning = ctmc.Reward(
        lambda states: states[:, 0] + 0.5, impulse=lambda sources, targets: 0.25 * np.abs(targets - sources)[:, 0]
    )
    model = models()["supermarket"].replace(rewards={"pay": earning})
    problem = ctmc.AccumulatedReward(model, "pay", initial=(0, 0), times=[1.0, 4.0], moments=3, tolerance=1e-11)
    known = ctmc.solve(problem, "rational").value
    for name in ("petsc_uniformization", "slepc_exponential", "slepc_exponential(method='expokit')"):
        np.testing.assert_allclose(ctmc.solve(problem, name).value, known, rtol=1e-9, err_msg=name)


def test_times_spent_before_a_passage():
    """The equation of a row, x (-Q) = right, takes the matrix as it is stored."""
    model = models()["fork-join"]
    target = _Far(model)
    start = tuple(model.space.states(target.first).tolist())
    known = ctmc.expected_time_before(model, target, start, solver="absorption_elimination")
    found = ctmc.expected_time_before(model, target, start, solver="petsc_passage")
    np.testing.assert_allclose(found.times, known.times, rtol=1e-9, atol=1e-11)


def test_steps_are_repeated_until_their_defect_is_small(monkeypatch):
    """Whatever SLEPc takes for accurate, a step counts when its own defect is small."""
    from solvers.transient import slepc_exponential

    model = models()["supermarket"]
    problem = ctmc.Transient(model, initial=(0, 0), times=[3.0], reward="total", tolerance=1e-11)
    known = ctmc.solve(problem, "uniformization").value
    asked = []
    original = slepc_exponential._Steps._step

    def careless(self, y, span, tolerance):
        asked.append((span, tolerance))
        return original(self, y, span, 1e-3 if len(asked) < 3 else tolerance)

    monkeypatch.setattr(slepc_exponential._Steps, "_step", careless)
    solution = ctmc.solve(problem, "slepc_exponential(vectors=4)")
    assert len(asked) > 2
    assert asked[2][1] < asked[0][1]
    assert solution.value == pytest.approx(known, abs=1e-10)
    assert solution.error_bound is None  # nothing is proven


@pytest.mark.parametrize(
    ("solver", "sentence"),
    [
        ("petsc_resolvent(method='jacobian')", "method is 'jacobian'; allowed are"),
        ("petsc_resolvent(preconditioner='ilu2')", "preconditioner is 'ilu2'; allowed are"),
        ("petsc_resolvent(options='-no_such_option 3')", "-no_such_option, which PETSc did not read"),
        ("petsc_resolvent(options=3)", "options is 3; allowed is text"),
        ("petsc_resolvent(restart=0)", "restart is 0"),
    ],
)
def test_wrong_options_of_equations(solver, sentence):
    problem = ctmc.DiscountedReward(models()["two states"], "total", discount=0.5)
    with pytest.raises(ctmc.CTMCError, match=sentence):
        ctmc.solve(problem, solver)


@pytest.mark.parametrize(
    ("solver", "sentence"),
    [
        ("slepc_exponential(method='lanczos')", "lanczos"),
        ("slepc_exponential(vectors=2)", "vectors is 2; allowed is a whole number >= 4"),
        ("slepc_exponential(step=-1.0)", "step is -1.0"),
        ("slepc_exponential(options='-mfn_no_such 3')", "-mfn_no_such, which PETSc did not read"),
        ("slepc_exponential(options='ncv 30')", "options is 'ncv 30'"),
    ],
)
def test_wrong_options_of_exponentials(solver, sentence):
    problem = ctmc.Transient(models()["two states"], initial=(0,), times=[1.0])
    with pytest.raises(ctmc.CTMCError, match=sentence):
        ctmc.solve(problem, solver)


@pytest.mark.parametrize(
    ("solver", "sentence"),
    [
        ("slepc_krylov_schur(form='half')", "half"),
        ("slepc_krylov_schur(vectors=0)", "vectors is 0"),
        ("slepc_krylov_schur(options='-eps_no_such 3')", "-eps_no_such, which PETSc did not read"),
    ],
)
def test_wrong_options_of_eigensolvers(solver, sentence):
    with pytest.raises(ctmc.CTMCError, match=sentence):
        ctmc.solve(ctmc.Stationary(models()["two states"]), solver)


def test_one_color_takes_half_the_products():
    """Two jumps for the price of one: the square of the spectrum."""
    problem = ctmc.Stationary(models()["supermarket"], 1e-11)
    assert problem.model.coloring is not None
    half, full = (ctmc.solve(problem, f"slepc_krylov_schur(vectors=12, form='{form}')") for form in ("reduced", "full"))
    assert half.products < 0.75 * full.products


# ---- on ranks ---------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("count", [*(pytest.param(few, marks=pytest.mark.slow) for few in (1, 2, 4)), 3])
def test_answers_on_ranks_are_those_of_other_methods(count):
    code = "import test_petsc_solvers as checks; checks.all_answers()"
    done = mpirun(count, "-c", code, seconds=200, PYTHONPATH=f"{HERE}{os.pathsep}{HERE.parent}")
    assert done.code == 0, done.err
    found = json.loads(done.out)
    stopped = [values for _, question, _, values in found if question == "stopped"]
    assert stopped == [["STOPPED"] * count] * 3
    rest = [row for row in found if row[1] != "stopped"]
    assert len(rest) == 6 * (len(STATIONARY) + 3 * len(OVER_TIME) + 2 + 1 + 2) + 1
    for title, question, name, values in rest:
        expected, accuracy = known()[title, question][: len(values)], COARSER.get(question, ACCURACY)
        np.testing.assert_allclose(
            values, expected, rtol=accuracy, atol=accuracy, err_msg=f"{title}: {question} by {name}"
        )


def test_a_reward_of_nothing_is_nothing_at_all_times():
    """SLEPc's exponential takes no vector of zeros."""
    queue = ctmc.build("birth_death", births=[1.0, 1.0], deaths=[2.0, 2.0]).with_reward("nothing", np.zeros(3))
    problem = ctmc.AccumulatedReward(queue, "nothing", times=[0.5, 2.0], moments=2)
    solution = ctmc.solve(problem, "slepc_exponential", check=False)
    assert solution.value.tolist() == np.zeros_like(solution.value).tolist()
    assert "error code" not in solution.reason
