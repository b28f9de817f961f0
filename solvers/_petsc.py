"""PETSc: loaded when it is needed, with matrices and vectors in which each rank has its own states."""

from __future__ import annotations

import ctypes
import shlex
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from typing import Any

import numpy as np
from scipy.sparse import csr_array

from ctmc.errors import MemoryLimitError, ModelError, shown
from ctmc.model.generator import Generator
from ctmc.model.products import compiled
from ctmc.model.shared import SharedGenerator, share
from ctmc.model.transitions import rate_at
from ctmc.ranks import ALONE, Ranks
from solvers._options import check_count, check_text

LIBRARY = ("petsc4py", "distributed")
SLEPC = ("slepc4py", "distributed")


def petsc() -> Any:
    """Return the module PETSc; signals stay with the program."""
    import petsc4py

    petsc4py.init(["ctmc", "-no_signal_handler"])
    from petsc4py import PETSc

    return PETSc


def slepc() -> Any:
    """Return the module SLEPc."""
    petsc()
    import slepc4py

    slepc4py.init(["ctmc", "-no_signal_handler"])
    from slepc4py import SLEPc

    return SLEPc


def part_of(chain: Generator) -> SharedGenerator:
    """Return this rank's part of a chain; of one that is not shared, all of it, with its rows written out."""
    if isinstance(chain, SharedGenerator):
        return chain
    part = chain.once("whole_part", lambda: share(chain, ALONE))
    return part if chain._counter is None else part.counted(chain._counter)


def communicator(ranks: Ranks) -> Any:
    """Return the communicator of the ranks, for PETSc."""
    return getattr(ranks, "communicator", None) or petsc().COMM_SELF


class Objects(ExitStack):
    """Destroys PETSc's objects in order at the end of a ``with`` block, on all ranks alike, which Python's garbage does not."""

    def keep(self, made: Any) -> Any:
        """Return the object, to be destroyed at the end."""
        self.callback(made.destroy)
        return made


def vector(objects: Objects, ranks: Ranks, own: np.ndarray) -> Any:
    """Return a vector of which this rank has these elements (a copy)."""
    module = petsc()
    found = objects.keep(module.Vec().createMPI((len(own), module.DECIDE), comm=communicator(ranks)))
    found.setArray(own)
    return found


def matrix(objects: Objects, ranks: Ranks, own: csr_array, columns: int) -> Any:
    """Return a matrix of which this rank has these rows, and, of a vector it is multiplied with, so many elements.

    Parameters
    ----------
    objects : Objects
    ranks : Ranks
    own : csr_array, shape (rows, all columns)
        Indices ascend in every row.
    columns : int
        Own elements of a vector.

    Raises
    ------
    MemoryLimitError
        Where PETSc counts in 32 bits and the matrix has more entries, or columns, than that.
    """
    return matrix_of_rows(objects, ranks, (own.indptr, own.indices, own.data), columns, own.shape[1])


def matrix_of_rows(objects: Objects, ranks: Ranks, rows: tuple[Any, Any, Any], columns: int, all_columns: int) -> Any:
    """Return the same of row pointers, columns and values; none is copied but by PETSc where they have its types."""
    module = petsc()
    pointers, places, values = rows
    require_indices(ranks, len(places), all_columns)
    kind = module.IntType
    size = ((len(pointers) - 1, module.DECIDE), (columns, all_columns))
    parts = (pointers.astype(kind, copy=False), places.astype(kind, copy=False), values.astype(np.float64, copy=False))
    return objects.keep(module.Mat().createAIJ(size, csr=parts, comm=communicator(ranks)))


def function_matrix(objects: Objects, like: Any, multiply: Any, counted: Generator | None = None) -> Any:
    """Return the matrix of a function.

    Parameters
    ----------
    objects : Objects
    like : PETSc.Vec
        Shared in the same way as what the matrix is multiplied with.
    multiply : callable
        ``multiply(x, out)``.
    counted : Generator, optional
        The chain with whose products these are counted.
    """
    context = _Function(multiply, counted)
    made = objects.keep(petsc().Mat().createPython((like.getSizes(),) * 2, context, like.getComm()))
    made.setUp()
    return made


class _Function:
    """What PETSc calls for a product."""

    def __init__(self, multiply: Any, counted: Generator | None) -> None:
        self._multiply, self._counted = multiply, counted

    def mult(self, matrix: Any, x: Any, out: Any) -> None:
        if self._counted is not None:
            self._counted.count_products()
        self._multiply(x, out)


def require_indices(ranks: Ranks, entries: int, columns: int) -> None:
    """Raise `MemoryLimitError`, before anything is put together, where PETSc's numbers are too narrow; on all ranks alike."""
    most = int(np.iinfo(petsc().IntType).max)
    largest = int(ranks.largest(float(max(entries, columns))))
    if largest > most:
        raise MemoryLimitError(
            f"this PETSc numbers entries with {8 * petsc().IntType().itemsize} bits, and {largest:,} are needed; allowed are "
            f"{most:,}: take more ranks, or a PETSc with 64-bit indices."
        )


def neighbours(chain: SharedGenerator, values: np.ndarray, columns: np.ndarray) -> np.ndarray:
    """Return, of values of the own states, those of some states, own ones or ghosts, by position; all ranks together."""
    everywhere, positions = chain.ghosts.extended(values), state_numbers(chain)
    order = np.argsort(positions)
    return np.asarray(everywhere[order[np.searchsorted(positions[order], columns)]])


def generator_rows(chain: SharedGenerator) -> csr_array:
    """Return the own rows of diag(q) - (rates by destination), the transpose of -Q, with columns of all states."""
    pointers, columns, values = written_rows(
        chain, np.ones(chain.size, dtype=bool), state_numbers(chain), np.full(chain.size, -1.0), chain.exit_rates
    )
    return csr_array((values, columns, pointers), shape=(chain.size, chain.states))


def state_numbers(chain: SharedGenerator) -> np.ndarray:
    """Return the positions among all states of the own states and the ghosts."""
    return np.concatenate([np.arange(chain.begin, chain.begin + chain.size), chain.ghosts.wanted])


def written_rows(
    chain: SharedGenerator, chosen: np.ndarray, numbers: np.ndarray, factors: np.ndarray, diagonal: np.ndarray
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Return row pointers, columns, ascending in every row, and values of the transitions into some own states.

    Parameters
    ----------
    chain : SharedGenerator
    chosen : ndarray of bool, shape (n,)
        The states whose rows are written.
    numbers : ndarray of int64, shape (n + ghosts,)
        Column of each source; that of a state itself where `diagonal` is given.
    factors : ndarray, shape (n,)
        What the rates into each state are multiplied with.
    diagonal : ndarray, shape (n,) or (0,)
        One more entry in the row of each state.
    """
    (slab,) = chain.row_slabs()
    lengths = np.diff(slab.indptr.view(np.int64))[chosen] + (len(diagonal) > 0)
    kind = np.dtype(f"i{petsc().IntType().itemsize}")
    pointers = np.concatenate([[0], np.cumsum(lengths)]).astype(kind, copy=False)
    require_indices(chain.ranks, int(pointers[-1]), chain.states)
    columns = np.empty(int(pointers[-1]), dtype=kind)
    values = np.empty(len(columns))
    _write_rows(*slab[1:], chosen, numbers, factors, diagonal, columns, values)
    return pointers, columns, values


@compiled
def _write_rows(
    indptr: Any, sources: Any, codes: Any, rates: Any, chosen: Any, numbers: Any, factors: Any, diagonal: Any,
    columns: Any, values: Any,
) -> None:  # fmt: skip
    """Write rows one after the other, each put in order as it grows."""
    done = 0
    for row in range(np.uint64(chosen.size)):
        if not chosen[row]:
            continue
        begin = done
        for k in range(indptr[row], indptr[row + np.uint64(1)]):
            _put(numbers[sources[k]], factors[row] * rate_at(codes, rates, k), begin, done, columns, values)
            done += 1
        if diagonal.size > 0:
            _put(numbers[row], diagonal[row], begin, done, columns, values)
            done += 1


@compiled
def _put(column: Any, value: Any, begin: Any, place: Any, columns: Any, values: Any) -> None:
    while place > begin and columns[place - 1] > column:
        columns[place], values[place] = columns[place - 1], values[place - 1]
        place -= 1
    columns[place], values[place] = column, value


class Given:
    """Options of PETSc that are in force.

    Attributes
    ----------
    applied : bool
        Whether a solver has run with them, which is when PETSc reads the last of them.
    """

    applied = False


@contextmanager
def options(text: str, prefix: str) -> Iterator[Given]:
    """Put PETSc options such as "-pc_type asm -sub_pc_type ilu" under a prefix, inside a ``with`` block.

    Raises
    ------
    ModelError
        If the text is no list of options, or PETSc did not read one of them.
    """
    named = parsed_options(text)
    database, given = petsc().Options(), Given()
    for name, value in named.items():
        database.setValue(prefix + name, value)
    try:
        yield given
        unread = [name for name in named if given.applied and not _was_read(prefix + name)]
        if unread:
            raise ModelError(f"options has -{unread[0]}, which PETSc did not read; allowed are options of what runs.")
    finally:
        for name in named:
            database.delValue(prefix + name)


def _was_read(name: str) -> bool:
    """Return whether PETSc has read an option; where petsc4py cannot tell, as in 3.18, its library is asked."""
    module = petsc()
    if hasattr(module.Options, "used"):
        return bool(module.Options().used(name))
    found = ctypes.c_int(1)
    ctypes.CDLL(module.__file__).PetscOptionsUsed(None, name.encode(), ctypes.byref(found))
    return bool(found.value)


def parsed_options(text: str) -> dict[str, str]:
    """Return names and values of PETSc options.

    Examples
    --------
    >>> parsed_options("-pc_type asm -pc_asm_overlap 2 -ksp_converged_reason")
    {'pc_type': 'asm', 'pc_asm_overlap': '2', 'ksp_converged_reason': ''}
    """
    found: dict[str, str] = {}
    name = None
    try:
        words = shlex.split(text)
    except ValueError:
        words = ["?"]
    for word in words:
        is_name = word.startswith("-") and word[1:2].isalpha()
        if is_name:
            name = word[1:]
            found[name] = ""
        elif name is not None and not found[name]:
            found[name] = word
        else:
            raise ModelError(
                f"options is {shown(text)}; allowed are PETSc options such as '-pc_type asm -sub_pc_type ilu'."
            )
    return found


def krylov_solver(objects: Objects, prefix: str, method: str, restart: int, operators: tuple[Any, Any]) -> Any:
    """Return a KSP of this type for a matrix, and what preconditioners are made from; the GMRES family from the right.

    Its options are not read yet.
    """
    module = petsc()
    solver = objects.keep(module.KSP().create(operators[0].getComm()))
    solver.setOptionsPrefix(prefix)
    solver.setOperators(*operators)
    solver.setType(method)
    solver.setNormType(module.KSP.NormType.DEFAULT)
    if "gmres" in method:
        solver.setGMRESRestart(restart)
        solver.setPCSide(module.PC.Side.RIGHT)
    return solver


def check_krylov(solver: Any) -> None:
    """Raise `ModelError` unless the options that all Krylov solvers have are of their kinds; the names are looked up when it runs."""
    check_count("restart", solver.restart)
    check_count("max_iterations", solver.max_iterations)
    for name in ("method", "preconditioner", "options"):
        check_text(name, getattr(solver, name))
    parsed_options(solver.options)


def check_type(field: str, given: str, kind: Any) -> None:
    """Raise `ModelError` unless a name is one of PETSc's types of solvers or preconditioners."""
    known = sorted({value for name, value in vars(kind).items() if name.isupper() and isinstance(value, str)})
    if given not in known:
        raise ModelError(f"{field} is {shown(given)}; allowed are {', '.join(known)}.")
