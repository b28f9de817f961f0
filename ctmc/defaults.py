"""Which method is taken when none is named, and which one to try after another has failed."""

from __future__ import annotations

import numpy as np

from ctmc.model.generator import Generator
from ctmc.model.level_dependent import LevelDependentQBD
from ctmc.model.levels import elimination, levels
from ctmc.model.memory import memory_limit
from ctmc.model.qbd import QBD
from ctmc.model.streamed import StreamedTransitions
from ctmc.model.transitions import LatticeTransitions
from ctmc.problem import AccumulatedReward, DiscountedReward, FirstPassage, Problem, Stationary, Transient

SMALL = 3000
"""Up to this many states elimination is the default for a stationary distribution."""
VERY_SMALL = 1000
"""The same for discounted rewards, where each moment takes a factorisation of its own."""
LONG, LONGEST = 300, 20_000
"""Between so many levels Krylov methods take thousands of products, and elimination level by level is quick."""
QUICK = 1e10
"""Up to so many multiplications, if the levels are narrow."""
QUICK_CLASSES = 3e9
"""The same for passage times and discounted rewards."""
PATIENT_CLASSES = 1e12
"""The same for what is named after another method has failed."""
_LOOKED_AT = 500_000
FEW_EVENTS = 20
"""Up to this rate x time uniformization, which clears no negative numbers, takes about as many products as any method."""
MANY_EVENTS = 1e6
"""Above this rate x time implicit steps take over where a model is small enough to be factorised."""
FACTORISED = 10_000
ON_RANKS: dict[type, str] = {
    Stationary: "petsc_krylov",
    Transient: "petsc_uniformization",
    AccumulatedReward: "petsc_uniformization",
    DiscountedReward: "petsc_resolvent",
    FirstPassage: "petsc_passage",
}
"""Defaults where ranks share the model."""


def default_solver(problem: Problem) -> str:
    """Return the name of the solver that is taken when none is named.

    Stationary: `gth` up to 3000 states (it cannot be inaccurate), `bicgstab` above, `level_reduction` for long and narrow chains
    (from 300 levels on, up to 500,000 states), `logarithmic_reduction` for a QBD, `level_dependent` for one whose blocks depend on the level.  Questions about time: `uniformization` up to a rate x time
    of 20, `chebyshev` above, `rational` above 1e6 up to 10,000 states.  Discounted rewards: `resolvent_lu` up to 1000
    states, `resolvent_krylov` above.  First passage: `absorption_elimination` up to 3000 states, `absorption_krylov` above.  Of
    both, above: `class_elimination` where that takes few multiplications, as in chains without cycles and narrow ones.
    On several ranks: see `ON_RANKS`.
    """
    if getattr(problem.model, "shared", False):
        return next((name for kind, name in ON_RANKS.items() if isinstance(problem, kind)), "petsc_krylov")
    if isinstance(problem, DiscountedReward | FirstPassage):
        small, direct, iterative = (
            (VERY_SMALL, "resolvent_lu", "resolvent_krylov")
            if isinstance(problem, DiscountedReward)
            else (SMALL, "absorption_elimination", "absorption_krylov")
        )
        if problem.model.size <= small:
            return direct
        multiplications, size = class_work(problem)
        return "class_elimination" if multiplications <= QUICK_CLASSES and size <= memory_limit() else iterative
    if isinstance(problem, Transient | AccumulatedReward):
        events = problem.model.uniformization_rate * float(problem.times[-1])
        if events > MANY_EVENTS and problem.model.size <= FACTORISED:
            return "rational"
        return "uniformization" if events <= FEW_EVENTS else "chebyshev"
    if isinstance(problem.model, QBD):
        return "logarithmic_reduction"
    if isinstance(problem.model, LevelDependentQBD):
        return "level_dependent"
    if problem.model.size <= SMALL:
        return "gth"
    return "level_reduction" if _is_long_and_narrow(problem.model) else "bicgstab"


def _is_long_and_narrow(chain: Generator) -> bool:
    if chain.size > _LOOKED_AT or isinstance(chain.transitions, LatticeTransitions | StreamedTransitions):
        return False
    sizes = np.bincount(levels(chain))
    multiplications, size = elimination(sizes)
    return LONG <= len(sizes) <= LONGEST and multiplications <= QUICK and size <= memory_limit()


def class_work(problem: DiscountedReward | FirstPassage) -> tuple[float, float]:
    """Return about how many multiplications, and bytes, class elimination takes; infinitely many where that was not looked at.

    That is of classes if they are small, and else of levels.

    Examples
    --------
    >>> decay = Generator.from_matrix(np.diag(np.ones(9), -1))
    >>> class_work(FirstPassage(decay, "state == 0"))                            # nine classes of one state
    (18.0, 144.0)
    """
    chain = problem.model
    if isinstance(chain.transitions, StreamedTransitions):
        return np.inf, np.inf
    if isinstance(chain.transitions, LatticeTransitions):  # irreducible; nothing moves but one coordinate by one
        longest = int(chain.transitions.sides.max())
        sizes = np.full(longest, chain.size // longest)
    else:
        if not chain.classes.irreducible:
            sizes = class_sizes(problem).astype(np.float64)
            multiplications = 2 * float((sizes**3).sum())
            if multiplications <= QUICK_CLASSES:
                return multiplications, 16 * float((sizes**2).sum())
        if chain.size > _LOOKED_AT:
            return np.inf, np.inf
        sizes = np.bincount(levels(chain))
    return elimination(sizes)[0], 32.0 * chain.size * int(sizes.max())


def class_sizes(problem: DiscountedReward | FirstPassage) -> np.ndarray:
    """Return how many states each class has that the equations are about: for a passage none of the target, and of recurrent
    classes those with states of the target.
    """
    found = problem.model.classes
    if isinstance(problem, DiscountedReward):
        return np.bincount(found.class_of)
    target = problem.target_states
    leads = np.ones(found.count, dtype=bool)
    leads[found.recurrent] = False
    leads[found.class_of[target]] = True
    return np.bincount(found.class_of[~target & leads[found.class_of]], minlength=1)


def _by_class(problem: DiscountedReward | FirstPassage) -> list[str]:
    """Return class elimination where it takes some minutes at most and there is room."""
    multiplications, size = class_work(problem)
    return ["class_elimination"] if multiplications <= PATIENT_CLASSES and size <= memory_limit() else []


def next_method(problem: Problem, name: str) -> str:
    """Return the method to try after this one failed, or '' where there is none."""
    if getattr(problem.model, "shared", False):
        order = [default_solver(problem)]
    elif isinstance(problem, Stationary) and isinstance(problem.model, Generator):
        order = ["gth"] if problem.model.size <= SMALL else []
        order += ["bicgstab", "gmres", "gauss_seidel", "sparse_lu"]
    elif isinstance(problem, FirstPassage):
        order = ["absorption_elimination"] if problem.model.size <= SMALL else []
        order += [*_by_class(problem), "absorption_krylov", "absorption_lu"]
    elif isinstance(problem, DiscountedReward):
        order = ["resolvent_krylov", *_by_class(problem), "resolvent_lu", "value_iteration"]
    elif isinstance(problem, Transient | AccumulatedReward):
        order = ["chebyshev", "rational", "uniformization"]
    else:
        order = [default_solver(problem)]
    return next((other for other in order if other != name), "")
