"""The questions that can be asked of a model.  A tolerance belongs to the question, whichever solver answers it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np

from ctmc.errors import ModelError, about, quoted, shown, unknown_name
from ctmc.model import predicate
from ctmc.model.absorption import class_weights
from ctmc.model.distribution import Distribution, distribution
from ctmc.model.generator import Generator
from ctmc.model.level_dependent import LevelDependentQBD
from ctmc.model.parameters import called, check_tolerance, checked_names, numbers, real_number, whole_number
from ctmc.model.qbd import QBD
from ctmc.model.summary import Rows, Summarised


@dataclass(frozen=True, eq=False, repr=False)
class Stationary(Summarised):
    """The long-run distribution: pi Q = 0, pi 1 = 1, pi >= 0.

    Parameters
    ----------
    model : Generator, QBD or LevelDependentQBD
    tolerance : float
        Largest accepted defect ||pi Q||_1 / sum_i pi_i q_i, relative to the probability flow; default 1e-12.
    initial : state, mapping, vector or Distribution, optional
        Where the chain starts; only needed where it has several recurrent classes.  Default: the model's own.
    """

    model: Generator | QBD | LevelDependentQBD
    tolerance: float = 1e-12
    initial: Any = None

    def __post_init__(self) -> None:
        _check_model(self.model, (Generator, QBD, LevelDependentQBD))
        check_tolerance(self.tolerance)
        if isinstance(self.model, Generator):
            _set_initial(self)
        elif self.initial is not None:
            raise ModelError(
                "initial is given for a QBD; allowed is none: its stationary distribution does not depend on it."
            )

    @cached_property
    def class_weights(self) -> tuple[np.ndarray, float, float]:
        """Probability to end in each recurrent class of a Generator, and bounds on the L1 error of these; found once."""
        assert isinstance(self.model, Generator)
        return class_weights(self.model, self.initial.dense(self.model.size))

    def _summary(self) -> tuple[str, Rows]:
        return "Stationary", [("tolerance", self.tolerance), *_model_rows(self.model)]


@dataclass(frozen=True, eq=False, repr=False)
class Transient(Summarised):
    """The distributions at given times, p(t) = p(0) exp(Q t), or expected rewards at these times only.

    Parameters
    ----------
    model : Generator
    initial : state, mapping, vector or Distribution
        Where the chain starts; default: the model's own initial distribution.  With rewards, None asks for *every* state
        as the start.
    times : sequence of float
        Ascending, >= 0, in the model's unit of time.
    tolerance : float
        Largest accepted defect max_k ||p(t_k) - p(0) - L(t_k) Q||_1, with L the integral of p; for every state as the
        start, of u(t) = exp(Q t) r in the largest norm, relative to the half range of r.  Default 1e-10.
    reward : str or sequence of str, optional
        Names of rewards, or of components such as ``queue_length[1]``; then only their expectations are kept, and no
        distribution.
    """

    model: Generator
    initial: Any = None
    times: Any = ()
    tolerance: float = 1e-10
    reward: Any = None

    def __post_init__(self) -> None:
        _check_model(self.model, (Generator,))
        check_tolerance(self.tolerance)
        _set_initial(self, own=self.reward is None)
        if self.reward is not None:
            _set_rewards(self)
        elif self.initial is None:
            raise ModelError("initial is missing and the model has none; give a state, e.g. initial=(0, 0, 0).")
        object.__setattr__(self, "times", checked_times(self.times))

    def _summary(self) -> tuple[str, Rows]:
        rewards = [] if self.reward is None else [("rewards", ", ".join(self.reward))]
        return "Transient", [_times_row(self.times), *rewards, ("tolerance", self.tolerance), *_model_rows(self.model)]


@dataclass(frozen=True, eq=False, repr=False)
class AccumulatedReward(Summarised):
    """Moments of what has been earned up to given times: Phi(t) = integral of r(X(s)) over [0, t], plus impulses.

    The moments m_k(t) = E[Phi(t)^k] satisfy m_k' = Q m_k + k r m_{k-1} + sum_l C(k, l) W_l m_{k-l}, where W_l has the entries
    rate(i, j) impulse(i, j)^l.

    Parameters
    ----------
    model : Generator
    reward : str or sequence of str
        Names of rewards.
    initial : state, mapping, vector or Distribution, optional
        Where the chain starts; None asks for every state.
    times : sequence of float
        Horizons: ascending, >= 0, in the model's unit of time.
    moments : int
        Number of moments, 1 to 8; with 2 and more there are variances.
    tolerance : float
        Largest accepted defect, relative to the largest rate of reward: ||u(t) - r - Q V(t)|| with V the integral of u; default
        1e-10.

    Notes
    -----
    The answer's `value` has the shape (moments, times) for one reward that is a number; (columns, moments, times) for several,
    or for vectors.  For every state as the start a last axis (n,) is added.
    """

    model: Generator
    reward: Any
    initial: Any = None
    times: Any = ()
    moments: int = 1
    tolerance: float = 1e-10

    def __post_init__(self) -> None:
        _check_moments_of_chain(self)
        object.__setattr__(self, "times", checked_times(self.times))

    def _summary(self) -> tuple[str, Rows]:
        rows: Rows = [("rewards", ", ".join(self.reward)), ("moments", self.moments), _times_row(self.times)]
        return "AccumulatedReward", [*rows, ("tolerance", self.tolerance), *_model_rows(self.model)]


@dataclass(frozen=True, eq=False, repr=False)
class DiscountedReward(Summarised):
    """Moments of the discounted reward: Psi = integral of exp(-gamma s) r(X(s)) over [0, inf), plus discounted impulses.

    The mean solves (gamma I - Q) m_1 = r, the k-th moment (k gamma I - Q) m_k = k r m_{k-1}, with impulses in both.

    Parameters
    ----------
    model : Generator
    reward : str or sequence of str
        Names of rewards.
    initial : state, mapping, vector or Distribution, optional
        Where the chain starts; None asks for every state.
    discount : float
        gamma > 0, per unit of time.
    moments : int
        Number of moments, 1 to 8; with 2 and more there are variances.
    tolerance : float
        Largest accepted defect ||(gamma I - Q) Psi - r|| / max |r|, a proven bound on the error relative to max |r| / gamma;
        default 1e-10.

    Notes
    -----
    The answer's `value` has the shape (moments,) for one reward that is a number; (columns, moments) for several, or for
    vectors.  For every state as the start a last axis (n,) is added.
    """

    model: Generator
    reward: Any
    initial: Any = None
    discount: float = 0.0
    moments: int = 1
    tolerance: float = 1e-10

    def __post_init__(self) -> None:
        _check_moments_of_chain(self)
        real_number(
            "discount", self.discount, lambda value: 0 < value < np.inf, "a positive, finite number, per unit of time"
        )

    def _summary(self) -> tuple[str, Rows]:
        rows: Rows = [("rewards", ", ".join(self.reward)), ("moments", self.moments), ("discount", self.discount)]
        return "DiscountedReward", [*rows, ("tolerance", self.tolerance), *_model_rows(self.model)]


@dataclass(frozen=True, eq=False, repr=False)
class FirstPassage(Summarised):
    """The time to enter a set of states, the target: -Q_TT m = 1 on the other states.

    Parameters
    ----------
    model : Generator
    target : str or callable
        A condition such as ``"jobs >= 10"``, or the name of a label; or a function of an (m, dimension) table of states that
        returns m truth values.
    initial : state, mapping, vector or Distribution, optional
        Where the chain starts; None asks for every state.
    avoid : str or callable, optional
        States that must not be entered before the target: the time is infinite on paths that do.
    moments : int
        Number of moments of the time, 1 to 8; default 2, which gives the variance.
    tolerance : float
        Largest accepted relative defect e = max |1 + Q_TT m|, which proves m / (1 + e) <= exact <= m / (1 - e); default 1e-10.

    Notes
    -----
    The answer's `value` has the shape (moments,), or (moments, n) for every state as the start: 0 in the target, infinite where
    the target may never be reached.
    """

    model: Generator
    target: Any
    initial: Any = None
    avoid: Any = None
    moments: int = 2
    tolerance: float = 1e-10

    def __post_init__(self) -> None:
        _check_moments_of_chain(self)

    @cached_property
    def target_states(self) -> np.ndarray:
        """Which states are in the target; shape (n,)."""
        found = states_where(self.model, "target", self.target)
        if not self.model.ranks.any(bool(found.any())):
            raise ModelError(
                f"target {_shown(self.target)} holds in no state; allowed is a condition that some state meets."
            )
        return found

    @cached_property
    def avoided_states(self) -> np.ndarray:
        """Which states must not be entered; those of the target are not among them; shape (n,)."""
        if self.avoid is None:
            return np.zeros(self.model.size, dtype=bool)
        return np.asarray(states_where(self.model, "avoid", self.avoid) & ~self.target_states)

    def _summary(self) -> tuple[str, Rows]:
        rows: Rows = [("target", _shown(self.target)), ("moments", self.moments)]
        return "FirstPassage", [*rows, ("tolerance", self.tolerance), *_model_rows(self.model)]


Problem = Stationary | Transient | AccumulatedReward | DiscountedReward | FirstPassage
PROBLEMS: dict[str, type[Any]] = {
    "stationary": Stationary,
    "transient": Transient,
    "accumulated-reward": AccumulatedReward,
    "discounted-reward": DiscountedReward,
    "first-passage": FirstPassage,
}
"""The problems by the names that studies and the command line use."""


def check_problem(given: Any, name: str = "problem", also: str = "") -> None:
    """Raise `ModelError` unless something is a problem."""
    if not isinstance(given, Problem):
        raise ModelError(
            f"{name} is {shown(given)}; allowed is a problem{also}, such as ctmc.Stationary(model): "
            f"{', '.join(kind.__name__ for kind in PROBLEMS.values())}."
        )


def checked_times(given: Any) -> np.ndarray:
    """Return times as an ascending, read-only vector; raise `ModelError` for anything else."""
    allowed = "one or more finite times >= 0, ascending"
    times = numbers("times", given, allowed).copy()
    if isinstance(given, bool) or not np.isfinite(times).all() or times[0] < 0 or (np.diff(times) <= 0).any():
        raise ModelError(f"times is {shown(given)}; allowed are {allowed}.")
    times.flags.writeable = False
    return times


def states_where(model: Generator, field: str, given: str | Callable[[np.ndarray], Any]) -> np.ndarray:
    """Return which states meet a condition, are in a label, or are chosen by a function of the states; shape (n,).

    Examples
    --------
    >>> chain = Generator.from_matrix([[0, 1, 0], [1, 0, 1], [0, 1, 0]])
    >>> states_where(chain, "target", "state >= 1").tolist()
    [False, True, True]
    """
    chosen = np.zeros(model.size, dtype=bool)
    if callable(given):
        for positions, states in model.state_slabs():
            try:
                found = np.asarray(called(field, given, states))
            except ModelError:
                raise
            except ValueError:
                found = np.asarray(None)
            if found.shape != (len(states),) or found.dtype != bool:
                raise ModelError(
                    f"{field} returns an array of shape {found.shape} and type {found.dtype} for {len(states)} states; allowed "
                    "is one truth value for each."
                )
            chosen[positions] = found
        return chosen
    if not isinstance(given, str):
        raise ModelError(
            f"{field} is {_shown(given)}; allowed is a condition, the name of a label, or a function of states."
        )
    parsed = predicate.parse(given, field)
    with about(f"{field} {quoted(given)}"):
        return _meeting(model, parsed, chosen)


def _meeting(model: Generator, parsed: predicate.Predicate, chosen: np.ndarray) -> np.ndarray:
    """Fill in which states meet a condition."""
    rewards = {}
    for name in parsed.names - model.labels.keys():
        if name not in model.all_rewards:
            raise unknown_name("reward, variable or label", name, {**model.all_rewards, **model.labels})
        rewards[name] = model.all_rewards[name]
        if rewards[name].averaged or rewards[name].has_impulses:
            why = "a mean over states that one state stands for" if rewards[name].averaged else "earned at events"
            raise ModelError(f"it reads the reward {name!r}, which is {why}; allowed are values of states.")
    for positions, states in model.state_slabs():
        values = {name: reward.evaluate(states, positions) for name, reward in rewards.items()}
        values |= {name: model.labels[name][positions] for name in parsed.names & model.labels.keys()}
        chosen[positions] = parsed.evaluate(values or {"": np.zeros(len(states))})
    return chosen


def _shown(given: Any) -> str:
    return str(given.__name__) if callable(given) and hasattr(given, "__name__") else shown(given)


def _times_row(times: np.ndarray) -> tuple[str, object]:
    return "times", ", ".join(f"{time:g}" for time in times[:8]) + (", .." if len(times) > 8 else "")


def _model_rows(model: Generator | QBD | LevelDependentQBD) -> Rows:
    title, rows = model._summary()
    return [("model", title), *rows]


def _check_model(model: Any, allowed: tuple[type, ...]) -> None:
    if not isinstance(model, allowed):
        names = " or ".join(kind.__name__ for kind in allowed)
        hint = "; queue.truncate(levels=..) makes one of a QBD" if isinstance(model, QBD | LevelDependentQBD) else ""
        raise ModelError(f"model is a {type(model).__name__}; allowed is a {names}{hint}.")


def _set_initial(problem: Any, *, own: bool = True) -> None:
    """Set the initial distribution; `own`: where none is given, that of the model."""
    given = problem.model.initial if problem.initial is None and own else problem.initial
    chosen: Distribution | None = None if given is None else distribution(problem.model.space, given)
    object.__setattr__(problem, "initial", chosen)


def _set_rewards(problem: Any) -> None:
    """Set the names of the rewards, as a tuple; they are looked up before anything is computed."""
    names = checked_names("reward", problem.reward, "reward")
    known = problem.model.all_rewards
    for name in names:
        if reward_name(name) not in known:
            raise unknown_name("reward", name, known)
    object.__setattr__(problem, "reward", names)


def column_lengths(problem: Any) -> list[int | None]:
    """Return for each reward of a problem how many columns it has in the answer; None for a number, which has one."""
    found: list[int | None] = []
    for name in problem.reward:
        reward = problem.model.all_rewards[reward_name(name)]
        values: Any = reward.rate
        if callable(values) or values is None:
            values = reward.evaluate(problem.model.space.states(np.arange(1)), slice(0, 1))
        found.append(None if "[" in name or values.ndim == 1 else values.shape[1])
    return found


def column_names(problem: Any) -> list[str]:
    """Return the names of the columns of an answer: a vector of rewards has one for each component.

    Examples
    --------
    >>> import ctmc
    >>> queue = ctmc.build("birth_death", births=[1.0], deaths=[1.0])
    >>> column_names(ctmc.Transient(queue, (0,), [1.0], reward="jobs"))
    ['jobs']
    """
    found: list[str] = []
    for name, length in zip(problem.reward, column_lengths(problem), strict=True):
        found += [name] if length is None else [f"{name}[{k}]" for k in range(length)]
    return found


def is_single(problem: Any) -> bool:
    """Return whether one reward that is a number was asked for, so that the answer has no axis of rewards."""
    return column_lengths(problem) == [None]


def reward_name(text: str) -> str:
    """Return ``name`` of ``name`` or ``name[index]``."""
    return text.partition("[")[0].strip()


def _check_moments_of_chain(problem: Any) -> None:
    """Check what all questions about moments share: the model, the tolerance, the start, the rewards, and how many moments."""
    _check_model(problem.model, (Generator,))
    check_tolerance(problem.tolerance)
    _set_initial(problem, own=False)
    if hasattr(problem, "reward"):
        _set_rewards(problem)
    given = whole_number("moments", problem.moments, 1, 8)
    for name in getattr(problem, "reward", ()):
        if given > 1 and problem.model.all_rewards[reward_name(name)].averaged:
            raise ModelError(
                f"moments is {given}, but reward {name!r} of a lumped model is a mean over states that one state stands for; "
                "allowed is 1."
            )
