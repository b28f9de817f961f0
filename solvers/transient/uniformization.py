"""Uniformization: Poisson mixtures of the powers of a stochastic kernel."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from ctmc.evolution import Evolution
from ctmc.model.generator import Generator
from ctmc.problem import AccumulatedReward, Transient
from ctmc.solution import Outcome
from ctmc.trace import Trace
from solvers._options import check_between, check_count
from solvers.transient._powers import Powers


@dataclass(frozen=True, kw_only=True)
class Uniformization:
    """Sum p(t) = sum_k P{N(t) = k} p(0) P^k with P = I + Q / q and N(t) Poisson with mean q t.

    The integrals of p come from the same powers: L(t) = (1/q) sum_k P{N(t) >= k + 1} p(0) P^k.  The weights are computed in
    log space; their tails are bounded before the first product by a tenth of the tolerance, in L1.  Since P contracts, all
    later powers stay within (steps to come) x ||p P^{k+1} - p P^k||_1 of the current one: once that is below another tenth
    of the tolerance (or half the rounding floor) the rest of the sum needs no products: steady-state detection, with this
    bound added to the reported one.  Backward, for every initial state, all of this holds in the largest norm.  With moments
    the kernel grows by couplings of known size, which enter the tails; there is no steady state then.

    Costs about q t + 8 sqrt(q t) products, fewer once the chain is steady; 8 + 3 x times vectors, up to 8 times being made at
    once.  The right choice up to q t of some thousands, and the yardstick beyond; for stiff chains on long horizons its cost
    grows with q t.  Source: A. Jensen, *Markoff chains as an aid in the study of Markoff processes*, Skand. Aktuarietidskr. 36
    (1953); B. L. Fox and P. W. Glynn, *Computing Poisson probabilities*, CACM 31 (1988), doi:10.1145/42404.42409.

    Parameters
    ----------
    rate_factor : float
        q over the largest exit rate; above 1, so that no chain is periodic and the steady state is seen.
    max_iterations : int
        Largest number of products.

    Examples
    --------
    >>> from ctmc.solve import solve
    >>> chain = Generator.from_matrix([[-1, 1], [2, -2]])
    >>> solve(Transient(chain, initial=(0,), times=[.5]), Uniformization()).value.round(12).tolist()
    [[0.741043386716, 0.258956613284]]
    >>> spent = AccumulatedReward(chain, reward="state", initial=(0,), times=[.5], moments=2)
    >>> solve(spent, Uniformization()).value.round(10).ravel().tolist()
    [0.0803477956, 0.0237970608]
    """

    solves: ClassVar = (Transient, AccumulatedReward)
    needs: ClassVar = Generator
    shared: ClassVar = True
    rate_factor: float = 1.02
    max_iterations: int = 100_000_000

    def __post_init__(self) -> None:
        check_between("rate_factor", self.rate_factor, 1, 100)
        check_count("max_iterations", self.max_iterations)

    def run(self, problem: Evolution, trace: Trace) -> Outcome:
        """Have the witness see each time."""
        return Powers("uniformization", self.rate_factor, self.max_iterations).run(problem, trace)
