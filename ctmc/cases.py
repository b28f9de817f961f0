"""Small problems of every kind with known answers, on which solvers are tried; they need no builder.

The known answers come from dense matrices: elimination, exponentials, and closed forms.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
from scipy.linalg import expm
from scipy.stats import poisson

from ctmc.evolution import reward_columns
from ctmc.model.elimination import gth
from ctmc.model.generator import Generator
from ctmc.model.impulses import impulse_matrix, impulse_rates
from ctmc.model.level_dependent import LevelDependentQBD
from ctmc.model.m_matrix import solve_m_matrix
from ctmc.model.qbd import QBD
from ctmc.model.reward import Reward
from ctmc.problem import AccumulatedReward, DiscountedReward, FirstPassage, Problem, Stationary, Transient, is_single


@dataclass(frozen=True, eq=False)
class Case:
    """A problem to try a solver on.

    Attributes
    ----------
    name : str
    problem : Stationary, Transient, AccumulatedReward, DiscountedReward or FirstPassage
    hard : bool
        Here a solver may answer "not converged" or INACCURATE, but never a wrong CONVERGED.
    answer : array, optional
        Known answer; by default elimination, or a matrix exponential, on the dense matrix.
    """

    name: str
    problem: Problem
    hard: bool = False
    answer: Any = None

    def known(self) -> np.ndarray | None:
        """Return the known answer, in the shape of the value; for a QBD the probabilities of the first levels, one after another.

        It is read-only and found once: one case serves all solvers.
        """
        return self._known

    @cached_property
    def _known(self) -> np.ndarray | None:
        found = self._find()
        if found is not None:
            found.flags.writeable = False
        return found

    def _find(self) -> np.ndarray | None:
        if self.answer is not None:
            return np.array(self.answer)
        if isinstance(self.problem, Transient | AccumulatedReward):
            return _over_time(self.problem)
        if isinstance(self.problem, FirstPassage):
            return _passage_moments(self.problem)
        if isinstance(self.problem, DiscountedReward):
            return _discounted(self.problem)
        model = self.problem.model
        if isinstance(model, LevelDependentQBD):
            return gth(model.truncate(200).to_scipy().toarray())
        if isinstance(model, QBD):
            levels = model.boundary_levels + max(4, 1200 // model.phase_count)
            return gth(model.truncate(levels).to_scipy().toarray())
        return gth(model.to_scipy().toarray()) if model.classes.irreducible else None


def cases() -> list[Case]:
    """Return small problems of every kind, the hard ones included; they need no builder."""
    rng = np.random.default_rng(20161)
    busy = rng.random((60, 60)) * (rng.random((60, 60)) < 0.2) + np.diag(np.full(59, 0.5), 1) + np.diag(np.ones(59), -1)
    np.fill_diagonal(busy, 0)
    ring = np.roll(np.diag(np.arange(1.0, 13.0)), 1, axis=1)
    two_blocks = np.zeros((8, 8))
    two_blocks[:4, :4], two_blocks[4:, 4:] = rng.random((4, 4)), rng.random((4, 4))
    np.fill_diagonal(two_blocks, 0)
    two_blocks[0, 4], two_blocks[4, 0] = 1e-14, 3e-14
    decades = np.diag(10.0 ** np.linspace(-5, 5, 11), 1) + np.diag(10.0 ** np.linspace(5, -5, 11), -1)
    absorbing = np.diag([1.0, 1.0, 1.0], 1)
    two_ends = np.zeros((5, 5))
    two_ends[2, [1, 3]], two_ends[1, 0], two_ends[3, 4], two_ends[4, 3] = (1.0, 2.0), 1.0, 1.0, 4.0
    from_matrix = Generator.from_matrix
    crawl = [[-0.5, 0.5], [0.1, -0.1]]
    rng = np.random.default_rng(20171)
    busy_rates = from_matrix(busy, rewards={"cost": Reward(rng.normal(size=60)), "pair": Reward(rng.random((60, 2)))})
    earning = Reward(rng.random(4), impulse=rng.random(3), self_loops=rng.random(4))
    earned = from_matrix(absorbing, rewards={"pay": earning})

    def paid(matrix: Any) -> Generator:
        return from_matrix(matrix).with_reward("pay", np.cos(np.arange(len(matrix))))

    queue = _queue(1.0, 2.0, 30).to_scipy().toarray()
    return [
        Case("random", Stationary(from_matrix(busy))),
        Case("queue", Stationary(_queue(1.0, 2.0, 30))),
        Case("two states", Stationary(from_matrix([[0, 1.0], [3.0, 0]]))),
        Case("one state", Stationary(from_matrix([[0.0]])), answer=[1.0]),
        Case("absorbing", Stationary(from_matrix(absorbing)), answer=[0, 0, 0, 1.0]),
        Case("two recurrent classes", Stationary(from_matrix(two_ends), initial=(2,)), answer=[1 / 3, 0, 0, 8 / 15, 2 / 15]),
        Case("period 12", Stationary(from_matrix(ring)), hard=True),
        Case("period 2", Stationary(from_matrix([[0, 1, 0, 2], [1, 0, 2, 0], [0, 3, 0, 0], [1, 0, 2, 0]])), hard=True),
        Case("nearly decomposable", Stationary(from_matrix(two_blocks)), hard=True),
        Case("rates over ten decades", Stationary(from_matrix(decades)), hard=True),
        Case("load .999", Stationary(_queue(0.999, 1.0, 120)), hard=True),
        Case("transient", Transient(from_matrix(busy), initial=(3,), times=[0.0, 0.3, 2.0])),
        Case("transient, absorbing", Transient(from_matrix(absorbing), initial=(0,), times=[1.0, 40.0])),
        Case("transient, slow", Transient(from_matrix(crawl), initial=(0,), times=[1e-8, 1e3]), hard=True),
        Case("expected rewards", Transient(busy_rates, (3,), [0.5, 2.0], reward=("cost", "pair"))),
        Case("expected reward from every state", Transient(busy_rates, None, [0.0, 2.0], reward="cost")),
        Case("earned reward", AccumulatedReward(busy_rates, "pair", {(3,): 0.5, (7,): 0.5}, [0.5, 20.0])),
        Case("moments of an earned reward", AccumulatedReward(busy_rates, "cost", (3,), [0.1, 2.0], 3)),
        Case("moments from every state", AccumulatedReward(busy_rates, "cost", None, [2.0], 2)),
        Case("moments with impulses", AccumulatedReward(earned, "pay", (0,), [0.3, 6.0], 3)),
        Case("moments with impulses from every state", AccumulatedReward(earned, "pay", None, [0.3, 6.0], 3)),
        Case("passage of a queue", FirstPassage(_queue(1.0, 1.5, 30), "state >= 12", moments=3)),
        Case("passage, random", FirstPassage(from_matrix(busy), "state >= 55", initial=(3,))),
        Case("passage, absorbing", FirstPassage(from_matrix(absorbing), "state == 3")),
        Case("passage, missed", FirstPassage(from_matrix(two_ends), "state == 0", moments=1),
             answer=[[0.0, 1.0, np.inf, np.inf, np.inf]]),
        Case("passage, rates over ten decades", FirstPassage(from_matrix(decades), "state == 11"), hard=True),
        Case("passage, nearly decomposable", FirstPassage(from_matrix(two_blocks), "state == 7"), hard=True),
        Case("discounted", DiscountedReward(paid(busy), "pay", discount=0.7, moments=2)),
        Case("discounted, two colors", DiscountedReward(paid(queue), "pay", discount=0.3)),
        Case("discounted, absorbing", DiscountedReward(paid(absorbing), "pay", discount=2.0, moments=3)),
        Case("discounted, much", DiscountedReward(paid(ring), "pay", discount=1e6)),
        Case("discounted, little", DiscountedReward(paid(busy), "pay", discount=1e-4), hard=True),
        Case("discounted, rates over ten decades", DiscountedReward(paid(decades), "pay", discount=0.1), hard=True),
        Case("M/M/1", Stationary(QBD.from_blocks([[1.0]], [[-3.0]], [[2.0]])), answer=0.5 ** np.arange(1, 200)),
        Case("queue in a random environment", Stationary(_environment())),
        Case("QBD at load .999", Stationary(QBD.from_blocks([[0.999]], [[-1.999]], [[1.0]])), hard=True,
             answer=0.001 * 0.999 ** np.arange(1000)),
        Case("M/M/infinity", Stationary(_retrials(0, 5.0, 1.0)), answer=poisson.pmf(np.arange(100), 5.0)),
        Case("retrial queue", Stationary(_retrials(2, 1.2, 0.7))),
        Case("retrial queue at load .98", Stationary(_retrials(1, 0.98, 0.5)), hard=True,
             answer=_one_server_retrials(0.98, 0.5)),
    ]  # fmt: skip


def distance(problem: Problem, value: Any, known: Any) -> float:
    """Return how far an answer is from the known one: L1 for distributions, relative for passage times, mixed for rewards."""
    if isinstance(problem, FirstPassage):
        return relative_distance(np.asarray(value), known)
    if getattr(problem, "reward", None) is not None:
        return float((np.abs(value - known) / np.maximum(np.abs(known), 1)).max())
    return float(np.abs(value - known).sum(axis=-1).max())


def _over_time(problem: Transient | AccumulatedReward) -> np.ndarray:
    """Return the answer to a question about time from matrix exponentials of dense matrices, without any scaling."""
    model, n = problem.model, problem.model.size
    dense = model.to_scipy().toarray()
    begin = None if problem.initial is None else problem.initial.dense(n)
    if problem.reward is None:
        return np.array([begin @ expm(dense * time) for time in problem.times])
    moments = problem.moments if isinstance(problem, AccumulatedReward) else 0
    columns = []
    for _, reward, rates in reward_columns(model, problem.reward):
        if moments:
            alone = rates - impulse_rates(model, reward) if reward.has_impulses else rates
            whole = np.kron(np.eye(moments + 1), dense)
            for k in range(1, moments + 1):
                for order in range(1, k + 1):
                    earns = impulse_matrix(model, reward, order).toarray() * math.comb(k, order)
                    earns += np.diag(alone) * k * (order == 1)
                    whole[k * n : (k + 1) * n, (k - order) * n : (k - order + 1) * n] = earns
            first = np.concatenate([np.ones(n), np.zeros(moments * n)])
            found = np.array([(expm(whole * time) @ first)[n:].reshape(moments, n) for time in problem.times]).swapaxes(
                0, 1
            )
        else:
            found = np.array([expm(dense * time) @ rates for time in problem.times])
        columns.append(found if begin is None else found @ begin)
    return np.array(columns[0] if is_single(problem) else columns)


def _passage_moments(problem: FirstPassage) -> np.ndarray:
    """Return the moments by an elimination; the target is reached from all states."""
    target, dense = problem.target_states, problem.model.to_scipy().toarray()
    stay, leave = dense[~target][:, ~target], dense[~target][:, target].sum(axis=1)
    found = np.zeros((problem.moments, len(dense)))
    moment = np.ones(len(stay))
    for k in range(problem.moments):
        moment = solve_m_matrix(stay, leave, (k + 1) * moment[:, None])[:, 0]
        found[k, ~target] = moment
    return found if problem.initial is None else np.asarray(found @ problem.initial.dense(len(dense)))


def relative_distance(value: np.ndarray, known: np.ndarray) -> float:
    """Return the largest difference relative to the known number; 0 and infinity have to be met exactly."""
    differ = value != known
    with np.errstate(invalid="ignore", divide="ignore"):
        return float((np.abs(value - known)[differ] / np.abs(known)[differ]).max(initial=0.0))


def _discounted(problem: DiscountedReward) -> np.ndarray:
    """Return the moments for every state, shape (moments, n), by elimination; of one reward that is given as numbers."""
    dense = problem.model.to_scipy().toarray()
    pay = np.asarray(problem.model.rewards[problem.reward[0]].rate)
    moments = [np.ones(len(dense))]
    for k in range(1, problem.moments + 1):
        moments.append(np.linalg.solve(k * problem.discount * np.eye(len(dense)) - dense, k * pay * moments[-1]))
    return np.array(moments[1:])


def _queue(arrival_rate: float, service_rate: float, capacity: int) -> Generator:
    return Generator.from_matrix(
        np.diag(np.full(capacity, arrival_rate), 1) + np.diag(np.full(capacity, service_rate), -1)
    )


def _environment() -> QBD:
    """M/M/1 whose rates change with a random environment of three phases."""
    arrivals, services = np.diag([0.2, 1.0, 3.0]), np.diag([2.0, 2.5, 3.0])
    environment = np.array([[0, 0.3, 0], [0.2, 0, 0.1], [0, 0.5, 0]])
    local = environment - np.diag((environment + arrivals + services).sum(axis=1))
    return QBD.from_blocks(arrivals, local, services)


def _retrials(servers: int, arrival_rate: float, retrial_rate: float) -> LevelDependentQBD:
    """M/M/c whose customers, when all servers are busy, come back from an orbit, the level, one by one; no server: M/M/infinity."""

    def blocks(orbit: int) -> tuple[np.ndarray | None, np.ndarray, np.ndarray]:
        again, up = np.zeros((servers + 1,) * 2), np.zeros((servers + 1,) * 2)
        np.fill_diagonal(again[:, 1:], orbit * retrial_rate)
        if servers == 0:
            again[0, 0] = orbit * retrial_rate
        up[-1, -1] = arrival_rate
        local = np.diag(np.full(servers, arrival_rate), 1) + np.diag(np.arange(1.0, servers + 1), -1)
        local -= np.diag((again + local + up).sum(axis=1))
        return (again if orbit else None), local, up

    return LevelDependentQBD(blocks)


def _one_server_retrials(load: float, retrial_rate: float) -> np.ndarray:
    """M/M/1 with retrials, service rate 1: G. Falin, J. Templeton, *Retrial Queues*, Chapman and Hall 1997, section 1.2."""
    orbit = np.arange(2500)
    steps = load * (1 + load / (orbit[:-1] * retrial_rate + retrial_rate) - 1 / (orbit[:-1] + 1.0))
    # p_{0j} and p_{1j} from the ratios of neighbours: (lambda + (j - 1) mu) / (j mu) and (lambda + j mu) / (j mu), times the load
    idle = np.cumprod([1.0, *steps])
    busy = load * np.cumprod([1.0, *(load * (1 + load / (orbit[1:] * retrial_rate)))])
    return np.asarray(np.column_stack([idle, busy]).ravel() * (1 - load) ** (1 + load / retrial_rate))
