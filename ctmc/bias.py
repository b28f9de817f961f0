"""Long-run average of a reward and the bias: how much more is earned, in all, from each start than in the long run.

With the gain g = pi r, the bias h solves the Poisson equation Q h = g - r, pi h = 0.  Then E_i[Phi(t)] = g t + h_i + o(1), and
of discounted rewards Psi = g / gamma + h + O(gamma).  Source: M. L. Puterman, *Markov Decision Processes*, Wiley 1994, chapter 8.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from ctmc.errors import ModelError, ReducibleError, SolveError, UnsupportedProblemError, shown, unknown_name
from ctmc.evolution import EPSILON, reward_columns
from ctmc.interval import SMALL, Interval, enclose, poisson_cycle, poisson_elimination
from ctmc.model.generator import Generator
from ctmc.model.memory import require_memory
from ctmc.model.parameters import check_tolerance, whole_number
from ctmc.model.summary import Rows, Summarised
from ctmc.problem import Stationary, reward_name
from ctmc.solution import Solution, Status
from ctmc.solve import solve


@dataclass(frozen=True, eq=False, repr=False)
class Bias(Summarised):
    """Gain and bias of one reward; arrays are read-only.

    Attributes
    ----------
    reward : str
    gain : float
        The long-run average g per unit of time.
    values : ndarray, shape (n,)
        The bias h of each state, in units of the reward; pi h = 0.
    residual : float
        Largest |Q h - (g - r)|, recomputed.
    interval : Interval
        Proven to contain the gain: min and max of r + Q h with all rounding added.
    solution : Solution
        The stationary solution behind it.
    """

    reward: str
    gain: float
    values: np.ndarray
    residual: float
    interval: Interval
    solution: Solution

    def _summary(self) -> tuple[str, Rows]:
        rows: Rows = [
            ("gain", f"{self.gain:.10g}"),
            ("proven gain", f"{self.interval.low:.10g} to {self.interval.high:.10g}"),
            ("bias", f"{self.values.min():.10g} to {self.values.max():.10g}"),
            ("residual", f"{self.residual:.3g}"),
        ]
        return f"Bias of {self.reward}", rows


def bias(
    source: Solution | Generator, reward: str, *, tolerance: float = 1e-10, largest_products: int = 20_000
) -> Bias:
    """Return the long-run average of a reward and its bias vector, with the residual of the Poisson equation recomputed.

    Sparse elimination up to 3000 states, restarted GMRES above, with about as many products as a stationary solve and 68 vectors
    of length n; the gain is taken anew from pi (r + Q h) after each correction.  What is earned at events counts with its mean
    rate.

    Parameters
    ----------
    source : Solution or Generator
        Of a stationary problem on a Generator; a model is solved first, with the default solver.
    reward : str
        A reward of the model, or a component such as "queue_length[1]".
    tolerance : float
        Largest accepted residual, relative to the half range of r; where it is larger, the rounding floor
        8 eps (largest exit rate) max |h| is accepted.
    largest_products : int
        Limit of the work.

    Returns
    -------
    Bias

    Raises
    ------
    UnsupportedProblemError
        If it is not a stationary problem on a Generator.
    ReducibleError
        If the chain has several recurrent classes: then the gain depends on the start.
    UnknownNameError, ModelError
        If there is no such reward, or it is a vector.
    SolveError
        If the residual does not get below the tolerance.

    Examples
    --------
    >>> chain = Generator.from_matrix([[-1, 1], [2, -2]])
    >>> found = bias(chain, "state")
    >>> round(found.gain, 9), found.values.round(9).tolist(), found.gain in found.interval
    (0.333333333, [-0.111111111, 0.222222222], True)
    """
    solution = stationary_solution(source)
    chain = solution.problem.model
    assert isinstance(chain, Generator)
    name, rates = one_column(chain, reward)
    return poisson(solution, name, rates, tolerance, largest_products)


def poisson(solution: Solution, name: str, rates: np.ndarray, tolerance: float, largest_products: int) -> Bias:
    """Return gain and bias of mean rates of reward, shape (n,); see `bias`."""
    chain, pi = solution.problem.model, solution.value
    assert isinstance(chain, Generator)
    check_tolerance(tolerance)
    whole_number("largest_products", largest_products, 1)
    require_memory("the bias", 48 * chain.size, states=chain.size)
    half = float(rates.max() / 2 - rates.min() / 2) or 1.0
    weights = pi / pi.sum()
    # where a state leaves the recurrent class only, any state in it may be fixed
    correct = poisson_elimination(chain, int(weights.argmax())) if 1 < chain.size <= SMALL else None
    h, value = np.zeros(chain.size), rates
    spent, best, poor = 0, np.inf, 0
    while True:
        gain = float(weights @ value)
        lacking = gain - value
        residual = float(np.abs(lacking).max())
        accepted = max(tolerance * half, _floor(chain, h))
        poor = 0 if residual < 0.5 * best else poor + 1
        best = min(best, residual)
        if residual <= accepted or spent >= largest_products or poor == 5 or not np.isfinite(residual):
            break
        if correct is not None:
            step, products = correct(lacking), 1
        else:
            step, products = poisson_cycle(chain, lacking, 0.3 * accepted / residual, largest_products - spent)
        spent += products
        h = h + step
        h -= weights @ h
        value = rates + chain.backward(h)
    if not residual <= accepted:
        raise SolveError(
            f"the residual of the Poisson equation of {name!r} is {residual:.3g} after {spent} products; accepted are "
            f"{accepted:.3g}. {Status.STAGNATED.advice}",
            solution,
        )
    interval = enclose(chain, rates, -h) if chain.size > 1 else Interval(gain, gain)
    h.flags.writeable = False
    return Bias(name, gain, h, residual, interval, solution)


def _floor(chain: Generator, h: np.ndarray) -> float:
    return float(8 * EPSILON * chain.uniformization_rate * np.abs(h).max())


def stationary_solution(source: Solution | Generator) -> Solution:
    """Return a converged stationary solution on a Generator with one recurrent class."""
    if isinstance(source, Generator):
        problem: object = Stationary(source)
    elif isinstance(source, Solution):
        problem = source.problem
    else:
        raise ModelError(f"source is {shown(source)}; allowed are a Solution and a Generator.")
    if not isinstance(problem, Stationary) or not isinstance(problem.model, Generator):
        raise UnsupportedProblemError(
            f"gain and bias are those of a stationary problem on a Generator; this is a {type(problem).__name__} problem on a "
            f"{type(problem.model).__name__}."  # type: ignore[attr-defined]  # every problem has one
        )
    count = len(problem.model.classes.recurrent)
    if count > 1:
        raise ReducibleError(
            f"the chain has {count} recurrent classes, so its gain depends on the start; allowed is one recurrent class."
        )
    solution = solve(problem) if isinstance(source, Generator) else source
    if not solution.converged:
        raise SolveError(f"the stationary solution is {solution.status.name}; allowed is one that converged.", solution)
    return solution


def one_column(chain: Generator, reward: str) -> tuple[str, np.ndarray]:
    """Return the name and the mean rates of a reward that is a number."""
    if not isinstance(reward, str):
        raise ModelError(f"reward is {shown(reward)}; allowed is the name of a reward.")
    known = chain.all_rewards
    if reward_name(reward) not in known:
        raise unknown_name("reward", reward, known)
    columns = reward_columns(chain, (reward,))
    if len(columns) > 1:
        raise ModelError(
            f"reward {reward!r} has {len(columns)} components; allowed is one of them, such as {reward.strip()}[0]."
        )
    return reward.strip(), columns[0][2]
