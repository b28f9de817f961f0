"""Quasi-birth-and-death processes: levels of phases, homogeneous from some level on, and their matrix-geometric answers.

`up`, `local` and `down` name the blocks that lead one level up, stay, and lead one level down; books disagree on A_0, A_1,
A_2.  Source: M. F. Neuts, *Matrix-Geometric Solutions in Stochastic Models*, 1981, chapter 3; G. Latouche and V. Ramaswami,
*Introduction to Matrix Analytic Methods in Stochastic Modeling*, SIAM 1999, doi:10.1137/1.9780898719734.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import TYPE_CHECKING, Any

import numpy as np
from scipy.sparse import block_array, csr_array, dia_array

from ctmc.errors import ModelError, shown
from ctmc.model.carried import check_fields, set_carried
from ctmc.model.elimination import gth
from ctmc.model.generator import Generator
from ctmc.model.matrix_geometric import MatrixGeometric as MatrixGeometric
from ctmc.model.memory import require_memory
from ctmc.model.parameters import LARGEST_COUNT, check_function, real_matrix, whole_number
from ctmc.model.phase_type import PhaseType
from ctmc.model.recipe import Recipe
from ctmc.model.rerating import rerated
from ctmc.model.reward import Reward, variable_rewards
from ctmc.model.state_space import SLAB, Listed, Variable, check_different
from ctmc.model.summary import Rows, Summarised

if TYPE_CHECKING:
    from ctmc.solution import Solution

NEGLIGIBLE = 1e-20
"""Mass of the levels beyond which sums over all levels stop."""
_MOST_LEVELS = 10_000_000
_REPLACEABLE = ("rewards", "measures", "notes", "recipe", "content_hash", "checks", "distributions")


@dataclass(frozen=True, eq=False)
class Level:
    """The blocks of one boundary level.

    Attributes
    ----------
    down : csr_array, shape (m, phases of the level below), or None for level 0
    local : csr_array, shape (m, m)
        Off-diagonal rates and, on its diagonal, minus the exit rates.
    up : csr_array, shape (m, phases of the level above)
    """

    down: csr_array | None
    local: csr_array
    up: csr_array


@dataclass(frozen=True, eq=False, repr=False)
class QBD(Summarised):
    """A quasi-birth-and-death process with a level-dependent boundary.

    Levels 0 .. b are the boundary, each with its own blocks; level b has as many phases as every level above, and its `up`
    is the repeating one.  Levels above b have the repeating blocks.

    Parameters
    ----------
    up, local, down : csr_array, shape (m, m)
        Repeating blocks; `local` carries its diagonal.
    boundary : tuple of Level
        Levels 0 .. b.
    phases : tuple of ndarray of int, shape (phases of the level, k)
        Coordinates of the states of levels 0 .. b after the level itself; the last serves all levels above.
    variables : tuple of Variable
        Names of the coordinates, the level first.
    rewards : mapping of str to Reward
        Functions of the states, the level being coordinate 0.
    measures, notes, recipe, content_hash
        As in `Generator`; `measures` is asked about answers for the QBD and for its truncations, which keep it.
    checks : callable, optional
        Maps an answer to deviations by name, relative numbers that are 0 but for rounding in a right answer: what is known
        of the model beside its equations.  The certificate of every answer asks for them.
    distributions : mapping of str to callable
        Each maps a `Solution` to the distribution of a random time, by name; see `Solution.distribution`.

    Examples
    --------
    >>> queue = QBD.from_blocks([[1.0]], [[-3.0]], [[2.0]])      # M/M/1 at load 1/2
    >>> queue.drift, queue.truncate(levels=4).size
    (-1.0, 4)
    """

    up: csr_array
    local: csr_array
    down: csr_array
    boundary: tuple[Level, ...]
    phases: tuple[np.ndarray, ...]
    variables: tuple[Variable, ...]
    rewards: Mapping[str, Reward] = field(default_factory=dict)
    measures: Callable[[Solution], Mapping[str, Any]] | None = None
    notes: tuple[str, ...] = ()
    recipe: Recipe | None = None
    content_hash: str | None = None
    checks: Callable[[MatrixGeometric], Mapping[str, float]] | None = None
    distributions: Mapping[str, Callable[[Solution], PhaseType]] = field(default_factory=dict)

    def __post_init__(self) -> None:
        set_carried(self, None)
        check_function("checks", self.checks, "a function of an answer")

    @classmethod
    def from_blocks(
        cls,
        up: Any,
        local: Any,
        down: Any,
        boundary: Sequence[Sequence[Any]] | None = None,
        *,
        phases: Sequence[Any] | None = None,
        variables: tuple[Variable, ...] | None = None,
        **known: Any,
    ) -> QBD:
        """Make a QBD from dense or sparse blocks.

        Parameters
        ----------
        up, local, down : array or sparse matrix, shape (m, m)
            Repeating blocks; `local` carries its diagonal, and rows of up + local + down sum to zero.
        boundary : sequence of (down, local, up), optional
            Blocks of levels 0, 1, .., b; `down` of level 0 is None.  `up` of level b must be the repeating one, or None.
            Without it level 0 has the local block ``local + down``: a step down at level 0 changes the phase only.
        phases, variables, **known
            Other fields of the class; by default a state is (level, phase).

        Raises
        ------
        ModelError
            If shapes do not fit, a rate is negative or not finite, or a row does not sum to zero.
        """
        blocks = {"up": _block("up", up), "local": _block("local", local), "down": _block("down", down)}
        m = blocks["local"].shape[0]
        for name, block in blocks.items():
            if block.shape != (m, m) or not m:
                raise ModelError(f"block {name} has shape {block.shape}; allowed is ({m}, {m}), the shape of local.")
        repeating = _checked_row("of the repeating part", blocks["down"], blocks["local"], blocks["up"])
        assert repeating.down is not None
        if boundary is None:
            # not local + down as they stand: where a step down keeps the phase, rounding would fill the diagonal
            rates = _without_diagonal(csr_array(repeating.local + repeating.down))
            boundary = [(None, _with_exits(rates, rates.sum(axis=1) + repeating.up.sum(axis=1)), None)]
        boundary = _triples(boundary)
        levels: list[Level] = []
        for number, given in enumerate(boundary):
            last = number == len(boundary) - 1
            own = _block(f"local of boundary level {number}", given[1])
            size = own.shape[0]
            below = levels[-1].local.shape[0] if levels else 0
            above = m if last else np.shape(_block("local", boundary[number + 1][1]))[0]
            step_up = repeating.up if last and given[2] is None else _block(f"up of boundary level {number}", given[2])
            step_down = None if number == 0 else _block(f"down of boundary level {number}", given[0])
            if number == 0 and given[0] is not None:
                raise ModelError("boundary level 0 has a block down; allowed is None: there is no level below.")
            if (
                own.shape != (size, size)
                or step_up.shape != (size, above)
                or (step_down is not None and step_down.shape != (size, below))
            ):
                raise ModelError(
                    f"the blocks of boundary level {number} have shapes down {None if step_down is None else step_down.shape}, "
                    f"local {own.shape}, up {step_up.shape}; allowed are ({size}, {below}), ({size}, {size}), ({size}, {above})."
                )
            levels.append(_checked_row(f"of boundary level {number}", step_down, own, step_up))
        if not levels:
            raise ModelError("boundary is empty; allowed are the blocks of levels 0, 1, .. or None.")
        if levels[-1].local.shape[0] != m or abs(levels[-1].up - repeating.up).max() > 0:
            raise ModelError(
                f"the last boundary level has {levels[-1].local.shape[0]} phases or an up block of its own; "
                f"allowed are {m} phases and the repeating up block, so that the levels above are homogeneous."
            )
        variables = _checked_variables((Variable("level"), Variable("phase")) if variables is None else variables)
        width = sum(variable.width for variable in variables) - 1
        if phases is None:
            tables = [np.arange(level.local.shape[0])[:, None] for level in levels]
        elif isinstance(phases, list | tuple):
            tables = [_phase_table(number, table) for number, table in enumerate(phases)]
        else:
            raise ModelError(f"phases is {shown(phases)}; allowed are {len(levels)} tables, one per boundary level.")
        if len(tables) != len(levels):
            raise ModelError(f"phases has {len(tables)} tables; allowed are {len(levels)}, one per boundary level.")
        for number, (table, level) in enumerate(zip(tables, levels, strict=True)):
            if table.shape != (level.local.shape[0], width):
                raise ModelError(
                    f"the phases of level {number} have shape {table.shape}; allowed is ({level.local.shape[0]}, {width})."
                )
            table.flags.writeable = False
        check_fields(cls, known)
        return cls(repeating.up, repeating.local, repeating.down, tuple(levels), tuple(tables), variables, **known)

    @classmethod
    def from_discrete_time(
        cls, up: Any, local: Any, down: Any, boundary: Sequence[Sequence[Any]] | None = None, **known: Any
    ) -> QBD:
        """Make a QBD from transition probabilities per step: local blocks lose the identity, one step is the unit of time.

        Stationary distribution, G and R are those of the chain in discrete time.  Nothing guesses which kind blocks are of.

        Parameters
        ----------
        up, local, down, boundary, **known
            As of `from_blocks`, but rows of up + local + down sum to 1.

        Examples
        --------
        >>> QBD.from_discrete_time([[0.2]], [[0.5]], [[0.3]]).local.toarray().tolist()
        [[-0.5]]
        """
        levels = (
            None if boundary is None else [(low, _less_identity(own), high) for low, own, high in _triples(boundary)]
        )
        return cls.from_blocks(up, _less_identity(local), down, levels, **known)

    @property
    def phase_count(self) -> int:
        """Number of phases of every level from the last boundary level on."""
        return int(self.local.shape[0])

    @property
    def boundary_levels(self) -> int:
        """Number of boundary levels, b + 1."""
        return len(self.boundary)

    @cached_property
    def drift(self) -> float:
        """Mean number of levels gained per unit of time far from the boundary; negative where the QBD is stable.

        With x the stationary distribution of up + local + down, the drift is x up 1 - x down 1.  Where the phases fall into
        several recurrent classes, the largest of their drifts.
        """
        m = self.phase_count
        require_memory("the drift test", 3 * 8 * m * m)
        # without the diagonal, where the rates of slow phases would drown in those of the levels
        phase_chain = Generator.from_matrix(_without_diagonal(csr_array(self.up + self.local + self.down)))
        gain = self.up.sum(axis=1) - self.down.sum(axis=1)
        found = phase_chain.classes
        drifts = []
        for number in found.recurrent:
            members = found.members(number)
            chain = phase_chain.restricted(members)
            drifts.append(float(gth(chain.to_scipy().toarray()) @ gain[members]))
        return max(drifts)

    def level_states(self, level: int) -> np.ndarray:
        """Return the states of a level, shape (phases, dimension), the level being coordinate 0."""
        whole_number("level", level, 0, LARGEST_COUNT)
        table = self.phases[min(level, len(self.phases) - 1)]
        return np.column_stack([np.full(len(table), level), table])

    def truncate(self, levels: int, last: Sequence[Any] | None = None) -> Generator:
        """Return the finite chain on levels 0 .. levels - 1; steps up from the last one are dropped.

        Parameters
        ----------
        levels : int
            Number of levels, at least the boundary's.
        last : (down, local), optional
            Blocks of the last level, above the boundary, if it has its own, shapes (m, m).
        """
        whole_number("levels", levels, self.boundary_levels, LARGEST_COUNT, "the boundary at least")
        size = sum(map(len, self.phases)) + (levels - self.boundary_levels) * self.phase_count
        entries = sum(level.local.nnz + level.up.nnz for level in self.boundary)
        entries += (levels - self.boundary_levels) * (self.up.nnz + self.local.nnz + self.down.nnz)
        width = sum(variable.width for variable in self.variables)
        # the table of states stands three times while it is put together, copied and sorted
        require_memory("the truncation", 60 * entries + 8 * size * (3 * width + 4), states=size, entries=entries)
        chosen = [*self.boundary, *[Level(self.down, self.local, self.up)] * (levels - self.boundary_levels)]
        note = f"The QBD cut at {levels} levels: steps up from level {levels - 1} are dropped."
        if last is not None:
            chosen[-1] = self._last_level(levels, last)
            note = f"The QBD with {levels} levels, the last with blocks of its own."
        matrix = self._assemble(chosen)
        states = np.concatenate([self.level_states(level) for level in range(levels)])
        return Generator.from_matrix(
            _without_diagonal(matrix),
            Listed(states, self.variables),
            rewards=self.rewards,
            measures=self.measures,
            notes=(*self.notes, note),
        )

    def _last_level(self, levels: int, last: Sequence[Any]) -> Level:
        if levels == self.boundary_levels or not isinstance(last, list | tuple) or len(last) != 2:
            raise ModelError(
                f"last is {shown(last)} and levels is {levels}; allowed are two blocks, (down, local), and levels "
                f"above the boundary ({self.boundary_levels + 1} or more)."
            )
        down, local = _block("down of the last level", last[0]), _block("local of the last level", last[1])
        if down.shape != self.down.shape or local.shape != self.local.shape:
            raise ModelError(
                f"the blocks of the last level have shapes {down.shape} and {local.shape}; allowed is {self.local.shape}."
            )
        return _checked_row("of the last level", down, local, csr_array(self.up.shape))

    def censored_boundary(self, g: np.ndarray) -> Generator:
        """Return the chain watched only while it is on the boundary levels, a finite generator.

        Above the boundary the chain comes back to level b in the phases that G tells, so the local block of level b gains
        up G.  Its stationary vector is proportional to the boundary part of the QBD's.

        Parameters
        ----------
        g : ndarray, shape (m, m)
            First passage probabilities G to the level below.
        """
        return self.watched_boundary(self.up @ _square("g", g, self.phase_count))

    def watched_boundary(self, returns: np.ndarray) -> Generator:
        """Return the chain watched only on the boundary, from the rates of its returns: up G, which is also R down.

        Parameters
        ----------
        returns : ndarray, shape (m, m)
            Rate at which level b is left upwards in one phase to come back, in the end, in the other.
        """
        last = self.boundary[-1]
        levels = [
            *self.boundary[:-1],
            Level(last.down, csr_array(last.local + _square("returns", returns, self.phase_count)), last.up),
        ]
        return Generator.from_matrix(_without_diagonal(self._assemble(levels)))

    @staticmethod
    def _assemble(levels: Sequence[Level]) -> csr_array:
        count = len(levels)
        grid: list[list[csr_array | None]] = [[None] * count for _ in range(count)] if count <= 64 else []
        if grid:
            for i, level in enumerate(levels):
                grid[i][i] = level.local
                if i:
                    grid[i][i - 1] = level.down
                if i + 1 < count:
                    grid[i][i + 1] = level.up
            return csr_array(block_array(grid))
        # block_array is quadratic in the number of blocks; far from the diagonal there is nothing to look at
        offsets = np.cumsum([0, *(level.local.shape[0] for level in levels)])
        rows, columns, data = [], [], []
        for i, level in enumerate(levels):
            for block, target in ((level.down, i - 1), (level.local, i), (level.up, i + 1)):
                if block is not None and 0 <= target < count:
                    entries = block.tocoo()
                    rows.append(entries.coords[0] + offsets[i])
                    columns.append(entries.coords[1] + offsets[target])
                    data.append(entries.data)
        place = (np.concatenate(rows), np.concatenate(columns))
        return csr_array((np.concatenate(data), place), shape=(offsets[-1], offsets[-1]))

    @cached_property
    def all_rewards(self) -> dict[str, Reward]:
        """Rewards by name: those given, and the variables of the states."""
        space = Listed(self.level_states(0), self.variables)
        return {**variable_rewards(space), **self.rewards}

    @property
    def labels(self) -> dict[str, np.ndarray]:
        """A QBD has infinitely many states and no labels."""
        return {}

    def replace(self, **changes: Any) -> QBD:
        """Return a copy with other fields, all but the states and blocks, which are shared."""
        check_fields(QBD, changes, _REPLACEABLE)
        changed = copy.copy(self)
        changed.__dict__.pop("all_rewards", None)
        for name, value in changes.items():
            object.__setattr__(changed, name, value)
        changed.__post_init__()
        return changed

    def with_rates(self, **changes: Any) -> QBD:
        """Return this model at other rates: what the builder makes of the recipe's parameters with these changes.

        Phases and the places of the entries are shared, rewards and notes that do not come from the builder are kept.

        Parameters
        ----------
        **changes
            Parameters of the builder that its ``rates_that_may_change`` names, such as ``arrival_rate=1.2``.

        Raises
        ------
        ModelError
            If no builder made the model, a rate is out of range, or the change needs a rebuild; the message tells why.

        Examples
        --------
        >>> import ctmc
        >>> queue = ctmc.build("fork_join", service_rates=[5, 2, 1], arrival_rate=1, tasks=3)
        >>> busy = queue.with_rates(arrival_rate=2)
        >>> busy.phases[0] is queue.phases[0], round(busy.drift, 9)
        (True, -0.666666667)
        """
        return rerated(self, changes)

    def weighted_slabs(self, value: MatrixGeometric) -> Iterator[tuple[slice, np.ndarray, np.ndarray]]:
        """Yield (positions, states, probabilities) of all levels until the mass beyond is below 1e-20."""
        begin = 0
        for number, weights in enumerate(value.boundary):
            yield slice(begin, begin + len(weights)), self.level_states(number), weights
            begin += len(weights)
        m, at_once = self.phase_count, max(1, SLAB // self.phase_count)
        level, weights = self.boundary_levels, value.boundary[-1] @ value.r
        while value.mass_from(weights) > NEGLIGIBLE:
            if level > _MOST_LEVELS:
                raise ModelError(
                    f"more than {_MOST_LEVELS:,} levels carry mass above {NEGLIGIBLE:g}; the decay rate is {value.decay_rate!r}."
                )
            # levels by doubling: near load 1 there are hundreds of thousands
            rows, power = weights[None], value.r
            while len(rows) < at_once and value.mass_from(rows[-1]) > NEGLIGIBLE:
                rows = np.concatenate([rows, rows @ power])
                power = power @ power
            rows = rows[rows @ value._sums[0] > NEGLIGIBLE]
            states = np.column_stack(
                [np.repeat(np.arange(level, level + len(rows)), m), np.tile(self.phases[-1], (len(rows), 1))]
            )
            yield slice(begin, begin + len(states)), states, rows.ravel()
            begin += len(states)
            level += len(rows)
            weights = rows[-1] @ value.r

    def _summary(self) -> tuple[str, Rows]:
        rows: list[tuple[str, object]] = [
            ("boundary levels", f"{self.boundary_levels} (phases {', '.join(str(len(table)) for table in self.phases[:12])}"
             f"{', ..' if len(self.phases) > 12 else ''})"),
            ("phases above", self.phase_count),
            ("state", ", ".join(v.name if v.length is None else f"{v.name}[0..{v.length - 1}]" for v in self.variables)),
            ("mean drift", f"{self.drift:.6g} levels per unit of time"),
        ]  # fmt: skip
        if self.recipe:
            rows += [(name, value) for name, value in self.recipe.parameters.items() if value is not None]
        rows += [("note", note) for note in self.notes]
        return f"QBD{': ' + self.recipe.builder if self.recipe else ''}", rows


def _block(name: str, given: Any) -> csr_array:
    block = real_matrix(f"block {name}", given)
    if not np.isfinite(block.data).all():
        raise ModelError(
            f"block {name} has the entry {float(block.data[~np.isfinite(block.data)][0])!r}; allowed are finite rates."
        )
    block.sum_duplicates()
    block.eliminate_zeros()
    return block


def _triples(boundary: Any) -> Sequence[Sequence[Any]]:
    """Return the blocks of the boundary levels, if they are triples."""
    if not isinstance(boundary, list | tuple):
        raise ModelError(f"boundary is {shown(boundary)}; allowed are the blocks of levels 0, 1, .. or None.")
    for number, given in enumerate(boundary):
        if not isinstance(given, list | tuple) or len(given) != 3:
            raise ModelError(f"boundary level {number} is {shown(given)}; allowed are three blocks: (down, local, up).")
    return boundary


def _square(name: str, given: Any, size: int) -> csr_array:
    matrix = real_matrix(name, given)
    if matrix.shape != (size, size):
        raise ModelError(f"{name} has shape {matrix.shape}; allowed is ({size}, {size}), one row for each phase.")
    return matrix


def _phase_table(number: int, given: Any) -> np.ndarray:
    """Return the phases of a level as a table of whole numbers, a copy."""
    try:
        table = np.array(None if np.ma.is_masked(given) else given)
    except ValueError:
        table = np.array(None)
    if table.dtype.kind not in "iu" or table.ndim not in (1, 2):
        raise ModelError(f"the phases of level {number} are {shown(given)}; allowed is a table of whole numbers.")
    return table.astype(np.int64).reshape(len(table), -1)


def _checked_variables(given: Any) -> tuple[Variable, ...]:
    if not isinstance(given, list | tuple) or not all(isinstance(one, Variable) for one in given):
        raise ModelError(f"variables is {shown(given)}; allowed is a tuple of Variable, the level first.")
    if len(given) < 2 or given[0].width != 1:
        raise ModelError(f"variables is {shown(given)}; allowed are one for the level, and then those of the phases.")
    check_different(given)
    return tuple(given)


def _less_identity(given: Any) -> csr_array:
    block = _block("local", given)
    if block.shape[0] != block.shape[1]:
        raise ModelError(f"block local has shape {block.shape}; allowed is a square one.")
    return csr_array(block - dia_array((np.ones((1, len(block.indptr) - 1)), [0]), shape=block.shape))


def _checked_row(where: str, down: csr_array | None, local: csr_array, up: csr_array) -> Level:
    """Check signs and row sums of a level's blocks and recompute the diagonal from the rates."""
    rates = _without_diagonal(local)
    for name, block in (("down", down), ("local", rates), ("up", up)):
        if block is not None and block.nnz and block.data.min() < 0:
            entry = block.tocoo()
            k = int(np.argmin(entry.data))
            row, column = int(entry.coords[0][k]), int(entry.coords[1][k])
            raise ModelError(
                f"block {name} {where} has the rate {float(entry.data[k])!r} at ({row}, {column}); allowed are rates >= 0."
            )
    exits = rates.sum(axis=1) + up.sum(axis=1) + (0 if down is None else down.sum(axis=1))
    diagonal = local.diagonal()
    bad = ~(np.abs(diagonal + exits) <= 1e-9 * np.maximum(exits, np.abs(diagonal)))
    if bad.any():
        i = int(np.argmax(bad))
        one = bool((np.abs(diagonal + exits - 1) <= 1e-9).all())
        raise ModelError(
            f"row {i} of the blocks {where} sums to {diagonal[i] + exits[i]:.6g}; rows of up + local + down sum to zero"
            + ("; blocks of probabilities, which sum to one, go to QBD.from_discrete_time." if one else ".")
        )
    return Level(down, _with_exits(rates, exits), up)


def _with_exits(rates: csr_array, exits: np.ndarray) -> csr_array:
    return csr_array(rates - dia_array((exits[None], [0]), shape=rates.shape))


def _without_diagonal(matrix: csr_array) -> csr_array:
    entries = matrix.tocoo()
    off = entries.coords[0] != entries.coords[1]
    return csr_array((entries.data[off], (entries.coords[0][off], entries.coords[1][off])), shape=matrix.shape)
