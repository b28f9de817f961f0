"""Systems (shift / span I - A) x = b for a few complex shifts: factorised, or solved by GMRES."""

from __future__ import annotations

from typing import Any

import numpy as np
from scipy.sparse import csc_array, eye_array
from scipy.sparse.linalg import LinearOperator, gmres, splu
from threadpoolctl import threadpool_limits

from ctmc.evolution import Evolution
from ctmc.model.memory import memory_limit, require_memory
from solvers._ordering import lattice_states, least_fill, symmetric_pattern

LINEAR_SOLVERS = ("auto", "lu", "gmres")
_ORDERINGS = ("NATURAL", "level_sets", "planes", "MMD_AT_PLUS_A")
_BYTES_PER_ENTRY = {False: 16, True: 24}
"""Of a real and of a complex factor, with the rows and what the arrays have outgrown."""
_RESTART = 60
_CYCLES = 5


class ShiftedSystems:
    """(shift / span I - A) x = b on one block, for each of some shifts with positive real parts.

    Parameters
    ----------
    evolution : Evolution
    shifts : ndarray of complex, shape (shifts,)
    """

    def __init__(self, evolution: Evolution, shifts: np.ndarray) -> None:
        self.shifts = shifts
        self.chain = evolution.model
        self.backward = evolution.backward
        self.span = 0.0

    def prepare(self, span: float) -> None:
        """Get ready for steps of this length."""
        self.span = span

    def solve(self, number: int, right: np.ndarray, wanted: float) -> np.ndarray:
        """Return x for one shift, complex (n,), with a residual of about `wanted` where the method has a choice."""
        raise NotImplementedError


class _Factorised(ShiftedSystems):
    """By SuperLU without pivoting: the diagonal dominates, row by row or column by column."""

    def __init__(self, evolution: Evolution, shifts: np.ndarray, order: np.ndarray, matrix: csc_array) -> None:
        super().__init__(evolution, shifts)
        self._order, self._matrix = order, matrix
        self._factors: list[Any] = []

    def prepare(self, span: float) -> None:
        """Factorise, unless the span is that of the last time."""
        if span == self.span:
            return
        self._factors = []  # the memory is needed
        identity = eye_array(len(self._order), format="csc")
        for shift in self.shifts:
            number = shift.real if shift.imag == 0 else shift
            system = csc_array(identity * (number / span) - self._matrix)
            self._factors.append(
                splu(system, permc_spec="NATURAL", diag_pivot_thresh=0.0, options={"SymmetricMode": True})
            )
        self.span = span

    def solve(self, number: int, right: np.ndarray, wanted: float) -> np.ndarray:
        right = right[self._order]
        if self.shifts[number].imag == 0:
            right = np.ascontiguousarray(right.real)
        x = np.empty(len(self._order), dtype=np.complex128)
        x[self._order] = self._factors[number].solve(right)
        return x


class _Iterated(ShiftedSystems):
    """By GMRES, with the diagonal from the left."""

    def solve(self, number: int, right: np.ndarray, wanted: float) -> np.ndarray:
        multiply = self.chain.backward if self.backward else self.chain.forward
        shift = self.shifts[number] / self.span
        scale = 1 / (shift + self.chain.exit_rates)
        n = len(right)

        def system(x: np.ndarray) -> np.ndarray:
            x = x.ravel()
            changed = multiply(np.ascontiguousarray(x.real)) + 1j * multiply(np.ascontiguousarray(x.imag))
            return np.asarray(scale * (shift * x - changed))

        # the diagonal brings residuals into the size of x; they are wanted in that of b, summed up
        target = wanted * float(np.abs(scale).min()) / (1.0 if self.backward else n**0.5)
        with threadpool_limits(limits=1, user_api="blas"):
            x, _ = gmres(
                LinearOperator((n, n), matvec=system, dtype=np.complex128), scale * right, rtol=1e-12, atol=target,
                restart=min(_RESTART, n), maxiter=_CYCLES,
            )  # fmt: skip
        return np.asarray(x)


def shifted_systems(evolution: Evolution, shifts: np.ndarray, choice: str, largest: int) -> ShiftedSystems:
    """Return the systems of an equation, factorised or iterated.

    Parameters
    ----------
    evolution : Evolution
    shifts : ndarray of complex, shape (shifts,)
    choice : str
        'lu', 'gmres', or 'auto': factorised where that takes at most `largest` entries a factor, and the memory is enough.
    largest : int

    Raises
    ------
    ModelError
        If the factors do not fit the memory limit and the choice is 'lu'.
    """
    chain = evolution.model
    size = 40 * (chain.entries + chain.size)
    if choice == "gmres" or (choice == "auto" and (size > memory_limit() // 4 or chain.entries > 2 * largest)):
        require_memory("rational with gmres", 16 * (_RESTART + 8) * chain.size, states=chain.size)
        return _Iterated(evolution, shifts)
    require_memory("rational, for the matrix alone,", size, states=chain.size)
    generator = chain.to_scipy()
    matrix = csc_array(generator if evolution.backward else generator.T)
    pattern = symmetric_pattern(matrix)
    states = lattice_states(chain.space, np.arange(chain.size))
    names = tuple(name for name in _ORDERINGS if name != "planes" or states is not None)
    name, order, entries = least_fill(names, pattern, states)
    both = 2 * entries - len(order)
    needed = both * sum(_BYTES_PER_ENTRY[bool(shift.imag)] for shift in shifts)
    if choice == "auto" and (entries > largest or needed > memory_limit()):
        return _Iterated(evolution, shifts)
    require_memory(
        f"rational with {both:,} entries forecast in each of its factors (ordering {name})", needed, states=chain.size
    )
    return _Factorised(evolution, shifts, order, csc_array(matrix[order][:, order]))
