"""Uniformization with the products of PETSc."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np

from ctmc.evolution import Evolution
from ctmc.model import products
from ctmc.model.generator import Generator
from ctmc.model.memory import require_memory
from ctmc.model.shared import SharedGenerator
from ctmc.problem import AccumulatedReward, Transient
from ctmc.solution import Outcome
from ctmc.trace import Trace
from solvers._options import check_between, check_count
from solvers._petsc import LIBRARY, Objects, generator_rows, matrix, part_of, vector
from solvers.transient._powers import Powers


@dataclass(frozen=True, kw_only=True)
class PetscUniformization:
    """Sum p(t) = sum_k P{N(t) = k} p(0) P^k with P = I + Q / q, the products being those of a PETSc matrix.

    The sums, their bounds and the end at a steady state are those of `uniformization`: the weights' tails are bounded before the
    first product by a tenth of the tolerance in L1 (backward in the largest norm), and steady-state detection adds its own bound.
    It stops where both are reached; the reported error bound is proven.

    Costs about q t + 8 sqrt(q t) products; the matrix, 16 bytes an entry beside the model, and 8 + 3 x times vectors.  `uniformization`
    runs on ranks as well and needs neither; take this one where PETSc's products are the faster ones (``-mat_type aijkokkos`` or
    ``aijcusparse`` on graphics processors), or to compare the two.  For q t beyond some ten thousands it takes as long as q t
    says.  Needs the extra 'distributed'.  Source: A. Jensen, *Markoff chains as an aid in the study of Markoff processes*, Skand.
    Aktuarietidskr. 36 (1953); S. Balay et al., *PETSc/TAO users manual*, ANL-21/39, Argonne National Laboratory, doi:10.2172/2205494.

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
    >>> solve(Transient(chain, initial=(0,), times=[.5]), PetscUniformization()).value.round(12).tolist()
    [[0.741043386716, 0.258956613284]]
    """

    solves: ClassVar = (Transient, AccumulatedReward)
    needs: ClassVar = Generator
    library: ClassVar = LIBRARY
    shared: ClassVar = True
    rate_factor: float = 1.02
    max_iterations: int = 100_000_000

    def __post_init__(self) -> None:
        check_between("rate_factor", self.rate_factor, 1, 100)
        check_count("max_iterations", self.max_iterations)

    def run(self, problem: Evolution, trace: Trace) -> Outcome:
        """Have the witness see each time."""
        chain = part_of(problem.model)
        require_memory("petsc_uniformization", 48 * chain.entries, states=chain.size, entries=chain.entries)
        with Objects() as objects:
            view = dataclasses.replace(problem, model=_Products.of(chain, objects))
            return Powers("petsc_uniformization", self.rate_factor, self.max_iterations).run(view, trace)


class _Products(SharedGenerator):
    """A view of a shared chain that multiplies by a PETSc matrix, -Q^T."""

    products: Any
    pair: Any

    @classmethod
    def of(cls, chain: SharedGenerator, objects: Objects) -> _Products:
        """Return the view, whose matrix lives as long as the objects."""
        view = object.__new__(cls)
        view.__dict__.update(chain.__dict__)
        made = matrix(objects, chain.ranks, generator_rows(chain), chain.size)
        vectors = [vector(objects, chain.ranks, np.zeros(chain.size)) for _ in range(2)]
        view.__dict__.update(products=made, pair=vectors)
        return view

    def _multiply(self, backward: bool, *others: Any) -> None:
        """Do what `Generator._multiply` does with PETSc's product."""
        _, x, *rest = others
        given, found = self.pair
        given.setArray(x)
        (self.products.multTranspose if backward else self.products.mult)(given, found)
        np.negative(found.getArray(readonly=True), out=rest[-1])
        products.end_backward(x, *rest)
