"""The spectral gap: how fast a chain forgets where it began."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
from scipy.sparse.linalg import ArpackError, LinearOperator, eigs

from ctmc import registry
from ctmc.errors import ModelError, PluginError, ReducibleError, SolveError, unknown_name
from ctmc.model import shared_exchange
from ctmc.model.generator import Generator
from ctmc.model.memory import require_memory
from ctmc.model.parameters import check_tolerance, real_number
from ctmc.model.qbd import QBD
from ctmc.model.shared import SharedGenerator
from ctmc.model.summary import Rows, Summarised
from ctmc.problem import Stationary
from ctmc.solution import HISTORY, Solution, Status

METHODS = ("auto", "dense", "arnoldi", "slepc_krylov_schur")
DENSE = 500
"""Up to this many states all eigenvalues are computed."""
_VECTORS = 60
_RESTARTS = 2000
_SHARPER = 1e-4
"""How much smaller than accepted the residual is to be: the eigenvalue is farther off than it says."""


@dataclass(frozen=True, eq=False, repr=False)
class SpectralGap(Summarised):
    """The eigenvalue of Q that is next to 0, and what follows from it; its residual proves no bound on it.

    Attributes
    ----------
    eigenvalue : complex
        Of second largest real part; of a pair the one with positive imaginary part.
    vector : ndarray, shape (n,)
        v with v Q = eigenvalue v and ||v||_1 = 1; complex where the eigenvalue is, of own states on ranks.
    residual : float
        ||v Q - eigenvalue v||_1 / ||v||_1 / q, recomputed, q being the largest exit rate.
    method : str
    checked : float or None
        Distance from the same eigenvalue of a dense solver, over q, where there are few enough states and the method is another.
    """

    eigenvalue: complex
    vector: np.ndarray
    residual: float
    method: str
    checked: float | None = None

    @property
    def gap(self) -> float:
        """Minus the real part: differences from the long run fade as exp(-gap t) in the end."""
        return -self.eigenvalue.real

    @property
    def relaxation_time(self) -> float:
        """1 / gap."""
        return 1 / self.gap if self.gap > 0 else math.inf

    def mixing_time(self, distance: float = 0.25) -> float:
        """Return a time before which the chain is farther than `distance` from its long run, in total variation, for some start.

        log(1 / (2 distance)) / gap, from below: how much longer it takes depends on more than the gap.  Source: D. A. Levin, Y. Peres,
        *Markov Chains and Mixing Times*, 2nd edition, AMS 2017, theorem 12.5, whose proof needs no reversibility.

        Raises
        ------
        ModelError
            If the distance is not between 0 and 1/2.
        """
        real_number("distance", distance, lambda value: 0 < value < 0.5, "a number between 0 and 0.5")
        return -math.log(2 * distance) * self.relaxation_time

    def facts(self) -> dict[str, float | str | None]:
        """Return the numbers by name."""
        return {
            "eigenvalue": self.eigenvalue.real,
            "imaginary_part": self.eigenvalue.imag,
            "spectral_gap": self.gap,
            "relaxation_time": self.relaxation_time,
            "mixing_time_at_least": self.mixing_time(),
            "residual": self.residual,
            "off_dense": self.checked,
            "method": self.method,
        }

    def _summary(self) -> tuple[str, Rows]:
        rows = [
            (name.replace("_", " "), f"{value:.10g}" if isinstance(value, float) else value)
            for name, value in self.facts().items()
            if value is not None
        ]
        return "Spectral gap", rows


def spectral_gap(model: Generator | QBD, *, method: str = "auto", tolerance: float = 1e-10) -> SpectralGap:
    """Return the eigenvalue of Q of second largest real part, which says how long the chain remembers.

    Up to 500 states by a dense eigenvalue solver; above by Arnoldi's method (ARPACK) on I + Q / q, or by SLEPc's Krylov-Schur
    method, which also takes a model that is shared among ranks; what these two find is compared with the dense solver where
    that is possible.  The residual is recomputed.  As Q is not normal, a small residual means an exact eigenvalue of a matrix
    that is that near to Q, and bounds the distance from one of Q by nothing; nor does it prove that none lies between this one
    and 0.  Relaxation times beyond some thousands of 1 / q take many restarts.

    Parameters
    ----------
    model : Generator
        With one recurrent class, and at least two states.
    method : str
        'dense', 'arnoldi', 'slepc_krylov_schur' or 'auto'.
    tolerance : float
        Largest accepted residual; its root is the largest accepted distance from the dense solver, over q.

    Raises
    ------
    ModelError
        If the model is no generator of two states or more.
    ReducibleError
        If it has several recurrent classes.
    SolveError
        If the residual, or the distance, is too large.
    PluginError
        If SLEPc is asked for and not installed.

    Examples
    --------
    >>> queue = Generator.from_matrix(np.diag(np.ones(9), 1) + np.diag(np.full(9, 2.0), -1))
    >>> found = spectral_gap(queue)
    >>> round(found.gap, 9), round(3 - 2 * math.sqrt(2) * math.cos(math.pi / 10), 9)
    (0.310005952, 0.310005952)
    >>> round(found.relaxation_time, 6), round(found.mixing_time(), 6)
    (3.225745, 2.235916)
    """
    check_tolerance(tolerance)
    model, chosen = _checked(model, method)
    ranks, rate = model.ranks, model.uniformization_rate
    checked = None
    if chosen == "dense":
        value, vector = _dense(model)
    elif chosen == "arnoldi":
        value, vector = _arnoldi(model, tolerance)
    else:
        value, vector = _by_slepc(model, tolerance)
    if value.imag < 0:
        value, vector = value.conjugate(), vector.conjugate()
    vector = vector if value.imag else vector.real
    vector = vector / (ranks.total(float(np.abs(vector).sum())) or 1.0)
    flow = model.forward(vector.real) + (1j * model.forward(vector.imag) if value.imag else 0.0)
    residual = ranks.total(float(np.abs(flow - value * vector).sum())) / rate
    if chosen != "dense" and model.states <= DENSE:
        checked = abs(value - _dense(model)[0]) / rate
    found = SpectralGap(value, vector, residual, chosen, checked)
    reason = ""
    if math.isnan(value.real):
        reason = f"{chosen} found no second eigenvalue; the chain mixes too slowly for its restarts."
    elif not residual <= tolerance:
        reason = f"the residual {residual:.2g} of the eigenvalue {value:.6g} is not within {tolerance:g}."
    elif checked is not None and not checked <= math.sqrt(tolerance):
        reason = f"the eigenvalue {value:.6g} is {checked:.2g} x q away from that of a dense solver."
    if reason:
        failed = Solution(
            Stationary(model), found.vector, Status.INACCURATE, reason, residual, np.empty(0, HISTORY), 0.0, 0, chosen
        )
        raise SolveError(reason, failed)
    return found


def _checked(model: Generator | QBD, method: str) -> tuple[Generator, str]:
    """Return the model, which has a gap, and the method."""
    if not isinstance(method, str) or method not in METHODS:
        raise unknown_name("method", method, METHODS)
    if not isinstance(model, Generator):
        raise ModelError(f"model is a {type(model).__name__}; allowed is a Generator, such as a truncation of it.")
    if model.states < 2:
        raise ModelError("the model has one state; a spectral gap needs at least 2.")
    if isinstance(model, SharedGenerator):
        model.recurrent  # noqa: B018  # raises where there are several classes
    elif len(model.classes.recurrent) > 1:
        raise ReducibleError(
            f"the chain has {len(model.classes.recurrent)} recurrent classes, so 0 is an eigenvalue as many times; allowed is one."
        )
    small = model.states <= DENSE
    if method == "auto":
        method = "dense" if small else "slepc_krylov_schur" if model.shared else "arnoldi"
    if method == "arnoldi" and (model.shared or model.states < 5):
        raise ModelError(
            f"method is 'arnoldi', and the model has {model.states} states"
            f"{' on several ranks' if model.shared else ''}; allowed is a model of 5 states or more in one process."
        )
    if method == "dense" and not small:
        if model.shared:
            raise ModelError(
                f"method is 'dense', and the model has {model.states} states on ranks; allowed are {DENSE}."
            )
        require_memory("a dense eigenvalue solver", 64 * model.size**2, states=model.size)
    return model, method


def _dense(model: Generator) -> tuple[complex, np.ndarray]:
    """Return the second of all eigenvalues, and the own part of its vector."""
    whole = shared_exchange.gathered(model) if isinstance(model, SharedGenerator) else model
    values, vectors = np.linalg.eig(whole.to_scipy().toarray().T)
    place = np.lexsort((-values.imag, -values.real))[1]
    own = slice(model.begin, model.begin + model.size) if isinstance(model, SharedGenerator) else slice(None)
    return complex(values[place]), vectors[own, place]


def _arnoldi(model: Generator, tolerance: float) -> tuple[complex, np.ndarray]:
    n, rate = model.size, model.uniformization_rate

    def step(p: np.ndarray) -> np.ndarray:
        return model.recurrence(p.ravel(), factor=1 / rate, keep=1.0)

    # not constant: where the first vector is an eigenvector, the space is of one dimension
    first = 1.0 + np.arange(n) / n
    kernel = LinearOperator((n, n), matvec=step, dtype=np.float64)
    basis = min(_VECTORS, n)
    try:
        values, vectors = eigs(kernel, 2, which="LR", v0=first, ncv=basis, tol=_SHARPER * tolerance, maxiter=_RESTARTS)
    except ArpackError as error:
        values, vectors = getattr(error, "eigenvalues", np.empty(0)), getattr(error, "eigenvectors", None)
    if len(values) < 2 or vectors is None:
        return complex(math.nan), np.full(n, math.nan)
    place = int(np.argsort(-values.real)[1])
    return rate * (complex(values[place]) - 1), vectors[:, place]


def _by_slepc(model: Generator, tolerance: float) -> tuple[complex, np.ndarray]:
    solver = registry.make_solver("slepc_krylov_schur")
    missing = registry.missing_library(solver)
    if missing:
        raise PluginError(f"slepc_krylov_schur {missing}.")
    found: tuple[complex, np.ndarray] = solver.next_eigenvalue(model, max(_SHARPER * tolerance, 1e-15))  # type: ignore[attr-defined]  # of this solver alone
    return found
