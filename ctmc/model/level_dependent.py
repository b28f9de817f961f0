"""Quasi-birth-and-death processes whose blocks depend on the level, with infinitely many levels, and their distributions.

Source: L. Bright, P. G. Taylor, *Calculating the equilibrium distribution in level dependent quasi-birth-and-death
processes*, Stochastic Models 11 (1995) 497-525, doi:10.1080/15326349508807357.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import TYPE_CHECKING, Any

import numpy as np

from ctmc.errors import ModelError, printable, shown
from ctmc.model.carried import check_fields, set_carried
from ctmc.model.generator import Generator
from ctmc.model.memory import require_memory
from ctmc.model.parameters import called, real_number, whole_number
from ctmc.model.qbd import QBD, Level, _block, _checked_row, _checked_variables, _without_diagonal
from ctmc.model.recipe import Recipe
from ctmc.model.reward import Reward, variable_rewards
from ctmc.model.state_space import SLAB, Listed, Variable
from ctmc.model.summary import Rows, Summarised

if TYPE_CHECKING:
    from ctmc.solution import Solution

_OVERHEAD = 2000
"""Bytes that a level takes beside its entries."""


@dataclass(frozen=True, eq=False, repr=False)
class LevelDependentQBD(Summarised):
    """A quasi-birth-and-death process given by a function of the level; there are infinitely many levels.

    Parameters
    ----------
    blocks : callable
        Maps a level k = 0, 1, .. to its blocks (down, local, up), dense or sparse, with shapes (m_k, m_{k-1}), (m_k, m_k) and
        (m_k, m_{k+1}); `down` of level 0 is None.  `local` carries its diagonal, and rows of down + local + up sum to zero.
        It is asked once per level, when the level is needed first, and must know every level.
    phases : callable, optional
        Maps a level to the coordinates of its states after the level itself, shape (m_k, ..); by default 0 .. m_k - 1.
    variables : tuple of Variable
        Names of the coordinates, the level first; by default (level, phase).
    rewards : mapping of str to Reward
        Functions of the states, the level being coordinate 0.
    measures, notes, recipe, content_hash
        As in `Generator`.  The model is a function and cannot be stored, so its hash stays None.

    Raises
    ------
    ModelError
        When a level is asked for whose shapes do not fit, that has a negative rate or one that is not finite, or a row
        that does not sum to zero; the level is named.

    Examples
    --------
    >>> def infinitely_many_servers(k):
    ...     return (None if k == 0 else [[1.0 * k]]), [[-2.0 - k]], [[2.0]]
    >>> queue = LevelDependentQBD(infinitely_many_servers)
    >>> queue.level(3).local.toarray().tolist(), queue.truncate(levels=4).size
    ([[-5.0]], 4)
    """

    blocks: Callable[[int], Sequence[Any]]
    phases: Callable[[int], Any] | None = None
    variables: tuple[Variable, ...] = (Variable("level"), Variable("phase"))
    rewards: Mapping[str, Reward] = field(default_factory=dict)
    measures: Callable[[Solution], Mapping[str, Any]] | None = None
    notes: tuple[str, ...] = ()
    recipe: Recipe | None = None
    content_hash: str | None = None

    def __post_init__(self) -> None:
        for name, given in (("blocks", self.blocks), ("phases", self.phases)):
            if not callable(given) and not (name == "phases" and given is None):
                raise ModelError(f"{name} is {shown(given)}; allowed is a function of the level.")
        object.__setattr__(self, "variables", _checked_variables(self.variables))
        set_carried(self, None)

    @cached_property
    def _levels(self) -> list[Level]:
        # what the function has told so far, checked
        return []

    @cached_property
    def _held(self) -> list[int]:
        # bytes of the levels up to each of them
        return [0]

    def level(self, k: int) -> Level:
        """Return the checked blocks of level k >= 0; those of all levels up to k are kept."""
        whole_number("level", k, 0)
        while len(self._levels) <= k:
            number = len(self._levels)
            made = self._made(number)
            size = 12 * _entries(made) + 12 * made.local.shape[0] + _OVERHEAD
            self._held.append(self._held[-1] + size)
            # asked every now and then: the answer of the operating system takes longer than a small level
            if number % 256 == 255 or size > 1 << 20:
                require_memory(f"keeping the blocks of levels 0 to {number}", self._held[-1])
            self._levels.append(made)
        return self._levels[k]

    def _made(self, k: int) -> Level:
        try:
            given = self.blocks(k)
        except Exception as error:  # the user's function: the sentence must name the level
            raise ModelError(f"blocks({k}) raised {type(error).__name__}: {printable(error)}.") from error
        if not isinstance(given, list | tuple) or len(given) != 3:
            raise ModelError(f"blocks({k}) is {shown(given)}; allowed are the blocks (down, local, up) of level {k}.")
        if (given[0] is None) != (k == 0):
            raise ModelError(
                f"block down of level {k} is {'None' if k else 'given'}; allowed is None at level 0 and nowhere else."
            )
        down = None if k == 0 else _block(f"down of level {k}", given[0])
        local, up = _block(f"local of level {k}", given[1]), _block(f"up of level {k}", given[2])
        size = local.shape[0] if k == 0 else self._levels[-1].up.shape[1]
        below = 0 if k == 0 else self._levels[-1].local.shape[0]
        if (
            not size
            or local.shape != (size, size)
            or up.shape[0] != size
            or (down is not None and down.shape != (size, below))
        ):
            raise ModelError(
                f"the blocks of level {k} have shapes down {None if down is None else down.shape}, local {local.shape}, "
                f"up {up.shape}; allowed are {None if down is None else (size, below)}, ({size}, {size}), ({size}, any)."
            )
        return _checked_row(f"of level {k}", down, local, up)

    def level_states(self, level: int) -> np.ndarray:
        """Return the states of a level, shape (phases, dimension), the level being coordinate 0."""
        size = self.level(level).local.shape[0]
        table = np.arange(size)[:, None]
        if self.phases is not None:
            given = called(f"phases({level})", self.phases, level)
            try:
                table = np.asarray(None if np.ma.is_masked(given) else given)
            except ValueError:
                table = np.asarray(None)
        width = sum(variable.width for variable in self.variables) - 1
        if table.dtype.kind not in "iu" or table.shape not in ((size, width), (size,) * (width == 1)):
            raise ModelError(
                f"the phases of level {level} have shape {table.shape} and type {table.dtype}; allowed are whole numbers of shape ({size}, {width})."
            )
        return np.column_stack([np.full(size, level), table.reshape(size, width)])

    def truncate(self, levels: int) -> Generator:
        """Return the finite chain on levels 0 .. levels - 1; steps up from the last one are dropped.

        Parameters
        ----------
        levels : int
            Number of levels, at least 1.
        """
        whole_number("levels", levels, 1)
        chosen = [self.level(k) for k in range(levels)]
        size = sum(level.local.shape[0] for level in chosen)
        entries = sum(_entries(level) for level in chosen)
        width = sum(variable.width for variable in self.variables)
        require_memory("the truncation", 60 * entries + 8 * size * (3 * width + 4), states=size, entries=entries)
        return Generator.from_matrix(
            _without_diagonal(QBD._assemble(chosen)),
            Listed(np.concatenate([self.level_states(k) for k in range(levels)]), self.variables),
            rewards=self.rewards,
            measures=self.measures,
            notes=(*self.notes, f"The QBD cut at {levels} levels: steps up from level {levels - 1} are dropped."),
        )

    @cached_property
    def all_rewards(self) -> dict[str, Reward]:
        """Rewards by name: those given, and the variables of the states."""
        return {**variable_rewards(Listed(self.level_states(0), self.variables)), **self.rewards}

    @property
    def labels(self) -> dict[str, np.ndarray]:
        """A QBD has infinitely many states and no labels."""
        return {}

    def replace(self, **changes: Any) -> LevelDependentQBD:
        """Return a copy with other fields, such as rewards or measures; blocks that are known are shared."""
        check_fields(LevelDependentQBD, changes)
        changed = copy.copy(self)
        for known in ("all_rewards", *(("_levels", "_held") if "blocks" in changes else ())):
            changed.__dict__.pop(known, None)
        for name, value in changes.items():
            object.__setattr__(changed, name, value)
        changed.__post_init__()
        return changed

    def weighted_slabs(self, value: LevelDistribution) -> Iterator[tuple[slice, np.ndarray, np.ndarray]]:
        """Yield (positions, states, probabilities) of the kept levels."""
        begin, first, count = 0, 0, 0
        last = len(value.levels) - 1
        for k, weights in enumerate(value.levels):
            count += len(weights)
            if count >= SLAB or k == last:
                states = np.concatenate([self.level_states(level) for level in range(first, k + 1)])
                yield slice(begin, begin + count), states, np.concatenate(value.levels[first : k + 1])
                begin, first, count = begin + count, k + 1, 0

    def _summary(self) -> tuple[str, Rows]:
        sizes = ", ".join(str(self.level(k).local.shape[0]) for k in range(4))
        rows: list[tuple[str, object]] = [
            ("phases of levels 0, 1, ..", f"{sizes}, .."),
            ("state", ", ".join(v.name if v.length is None else f"{v.name}[0..{v.length - 1}]" for v in self.variables)),
        ]  # fmt: skip
        return "Level-dependent QBD", [*rows, *(("note", note) for note in self.notes)]


@dataclass(frozen=True, eq=False, repr=False)
class LevelDistribution(Summarised):
    """A stationary distribution on the levels that were kept, 0 .. N, together of mass 1; what is beyond counts as zero.

    Attributes
    ----------
    levels : tuple of ndarray, shape (phases of the level,)
        pi_0 .. pi_N.

    Examples
    --------
    >>> answer = LevelDistribution(tuple(np.array([0.5 ** (k + 1)]) for k in range(65)))      # M/M/1 at load 1/2
    >>> float(answer.tail(3)), answer.mean_level, answer.quantile(0.99), answer.beyond < 1e-14
    (0.125, 1.0, 6, True)
    """

    levels: tuple[np.ndarray, ...]

    def __post_init__(self) -> None:
        for vector in self.levels:
            if isinstance(vector, np.ndarray):  # what else it may be is the certificate's business
                vector.flags.writeable = False

    @cached_property
    def masses(self) -> np.ndarray:
        """Mass of each kept level, shape (N + 1,)."""
        return np.array([vector.sum() for vector in self.levels])

    @cached_property
    def _tails(self) -> np.ndarray:
        # summed from the small ones
        return np.cumsum(self.masses[::-1])[::-1]

    @cached_property
    def beyond(self) -> float:
        """The mass of the levels that were not kept, as `mass_beyond` estimates it."""
        return mass_beyond(self.masses)

    @property
    def mass(self) -> float:
        """The total probability of the kept levels, 1 up to rounding."""
        return float(self._tails[0])

    def level(self, k: int) -> np.ndarray:
        """Return the probabilities of the states of a kept level, shape (phases,)."""
        whole_number("level", k, 0, len(self.levels) - 1, "the kept levels")
        return self.levels[k]

    def tail(self, k: int) -> float:
        """Return the probability of levels k, k + 1, .. for k >= 0; beyond the kept levels it is 0."""
        whole_number("level", k, 0)
        return float(self._tails[k]) if k < len(self.levels) else 0.0

    @property
    def mean_level(self) -> float:
        """The mean level."""
        return float(self._tails[1:].sum())

    def quantile(self, probability: float) -> int:
        """Return the least kept level k with P(level <= k) >= probability.

        Parameters
        ----------
        probability : float
            At least 0 and below 1.
        """
        real_number("probability", probability, lambda value: 0 <= value < 1, "a number >= 0 and < 1")
        above = np.append(self._tails[1:], 0.0)
        return int(np.argmax(above <= 1 - probability))

    def _summary(self) -> tuple[str, Rows]:
        rows: list[tuple[str, object]] = [
            ("mean level", f"{self.mean_level:.10g}"),
            ("kept levels", f"0 to {len(self.levels) - 1}"),
            ("mass beyond", f"about {self.beyond:.2g}"),
        ]
        rows += [(f"level {k}", f"{mass:.6g}") for k, mass in enumerate(self.masses[:6])]
        return "Distribution over levels", rows


def _entries(level: Level) -> int:
    return int(level.local.nnz + level.up.nnz + (0 if level.down is None else level.down.nnz))


def mass_beyond(masses: np.ndarray) -> float:
    """Estimate the mass beyond the last level from the masses a of levels N/4 .. N/2 and b of N/2 .. N: b q / (1 - q), q = b/a.

    This is exact where masses fall as a power of the level, since each doubling then multiplies by the same q, and too large
    where they fall faster, geometrically for instance.  Where they do not fall it is 1.

    Parameters
    ----------
    masses : ndarray, shape (N + 1,)
        Of levels 0 .. N.

    Examples
    --------
    >>> masses = 1 / (1.0 + np.arange(4001)) ** 2
    >>> round(mass_beyond(masses) * 4001, 2)                                 # the sum of 1 / k^2 from there is 1 / 4001
    1.0
    """
    last = len(masses) - 1
    low, high = (float(masses[begin + 1 : end + 1].sum()) for begin, end in ((last // 4, last // 2), (last // 2, last)))
    if high == 0 and last >= 4:
        return 0.0
    if not high < low:
        return 1.0
    ratio = high / low
    return min(1.0, high * ratio / (1 - ratio))
