"""The generator of a finite continuous-time Markov chain."""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import TYPE_CHECKING, Any, TypeVar

import numpy as np
from scipy.sparse import csc_array, csr_array, dia_array

from ctmc.errors import ModelError, shown
from ctmc.model import communication, lattice_products, lattice_rates, lattice_runs, laws, products
from ctmc.model.carried import check_fields, set_carried
from ctmc.model.distribution import Distribution, distribution
from ctmc.model.entries import check_diagonal, checked_positions, entries_of, rows_of
from ctmc.model.forms import coded, written_out
from ctmc.model.memory import format_size
from ctmc.model.parameters import LARGEST_COUNT, check_mapping, check_name, real_numbers, whole_number
from ctmc.model.recipe import Recipe
from ctmc.model.rerating import checked_rates, rerated
from ctmc.model.reward import Reward, variable_rewards
from ctmc.model.state_space import Lattice, StateSpace, Variable
from ctmc.model.streamed import StreamedTransitions, sum_streamed_lattice
from ctmc.model.summary import Rows, Summarised
from ctmc.model.transitions import (
    CodedTransitions,
    FloatTransitions,
    LatticeTransitions,
    Slab,
    Transitions,
    nbytes,
)
from ctmc.ranks import ALONE, Ranks

if TYPE_CHECKING:
    from ctmc.model.phase_type import PhaseType
    from ctmc.solution import Solution

Found = TypeVar("Found")
Measures = Callable[["Solution"], Mapping[str, Any]]


_NO_MIX = np.empty(0)
_REPLACEABLE = ("initial", "labels", "rewards", "measures", "distributions", "notes", "recipe", "content_hash", "guess")


class ProductCounter:
    """Counts the products with the generator; a sweep over all entries counts as one."""

    def __init__(self) -> None:
        self.products = 0


class _ExitRates:
    """The field `exit_rates`: what was given, else found when it is first asked for; a lattice can do without for long."""

    def __get__(self, chain: Any, owner: Any = None) -> Any:
        if chain is None:
            return None  # the default of the field
        given = chain.__dict__["exit_rates"]
        return chain.once("exit_rates", chain._sum_rates) if given is None else given

    def __set__(self, chain: Any, value: Any) -> None:
        chain.__dict__["exit_rates"] = value


@dataclass(frozen=True, eq=False, repr=False)
class Generator(Summarised):
    """A finite continuous-time Markov chain: states, rates, exit rates, and what is known about them.

    The off-diagonal rates are stored once, by destination; exit rates are stored apart, so rows of the generator Q sum to
    zero by construction.  Distributions are rows.  Models are immutable: arrays are read-only, changes make copies.

    Parameters
    ----------
    space : StateSpace
        The states and their order.
    transitions : FloatTransitions, CodedTransitions, LatticeTransitions or StreamedTransitions
        The positive rates by destination, per the user's unit of time, in one of the stored forms of
        `ctmc.model.transitions`, or as rows that are never all in memory.
    exit_rates : ndarray of float64, shape (n,), optional
        Total rate out of each state; computed when not given.
    initial : Distribution, optional
        Initial distribution.
    labels : mapping of str to ndarray of bool, shape (n,)
        Named sets of states.
    rewards : mapping of str to Reward
        Named rewards; every variable of the states is one by itself.
    measures : callable, optional
        Maps a `Solution` to named numbers, or arrays per server.
    distributions : mapping of str to callable
        Named random times: each a function of a `Solution` that returns a `PhaseType`.
    notes : tuple of str
        What a reader of any answer should know.
    recipe : Recipe, optional
        Builder and parameters that make this model again.
    content_hash : str, optional
        Hash of the stored model, where it was loaded or saved.
    guess : tuple of ndarray, optional
        A rough distribution of each coordinate of a lattice, positive; iterative methods begin with their product.

    Raises
    ------
    ModelError
        If the arrays are not a generator; the message names the first bad state or transition.

    Examples
    --------
    >>> chain = Generator.from_matrix([[-1, 1], [2, -2]])
    >>> chain.forward(np.array([.5, .5])).tolist(), chain.uniformization_rate
    ([0.5, -0.5], 2.0)
    """

    space: StateSpace
    transitions: Transitions | StreamedTransitions
    exit_rates: np.ndarray = _ExitRates()  # type: ignore[assignment]  # found when first read
    initial: Distribution | None = None
    labels: Mapping[str, np.ndarray] = field(default_factory=dict)
    rewards: Mapping[str, Reward] = field(default_factory=dict)
    measures: Measures | None = None
    notes: tuple[str, ...] = ()
    recipe: Recipe | None = None
    content_hash: str | None = None
    guess: tuple[np.ndarray, ...] | None = None
    distributions: Mapping[str, Callable[[Solution], PhaseType]] = field(default_factory=dict)
    _counter: ProductCounter | None = None
    _found: dict[str, Any] = field(
        default_factory=dict
    )  # structure found once, shared by copies with the same transitions

    def __post_init__(self) -> None:
        _check_space(self.space)
        if not isinstance(
            self.transitions, FloatTransitions | CodedTransitions | LatticeTransitions | StreamedTransitions
        ):
            raise ModelError(
                f"transitions is a {type(self.transitions).__name__}; allowed are FloatTransitions, CodedTransitions, "
                "LatticeTransitions and StreamedTransitions."
            )
        n = self.space.size
        if isinstance(self.transitions, LatticeTransitions):
            if not isinstance(self.space, Lattice) or self.space.total is not None or self.space.classes:
                raise ModelError(
                    "lattice transitions need a state space that is a box without a cap on the total and without ordered classes."
                )
            self.transitions.check(self.space.limits, n)
        elif isinstance(self.transitions, StreamedTransitions):
            self.transitions.check(n)
        else:
            laws.check_rows(self, self.transitions)
        self._found.setdefault("checked", True)
        given = self.__dict__["exit_rates"]
        if given is not None:
            if not isinstance(given, np.ndarray) or given.shape != (n,) or given.dtype != np.float64:
                raise ModelError(f"exit_rates is {shown(given)}; allowed is a vector of {n} numbers of float64.")
            if not isinstance(self.transitions, StreamedTransitions):  # looked at by who reads or makes the rows
                laws.check_exit_rates(self, self._sum_rates())
            given.flags.writeable = False
        elif not isinstance(self.transitions, LatticeTransitions | StreamedTransitions):
            self.exit_rates  # noqa: B018  # found now, and whether they are finite
        self._check_names()
        for array in self.transitions:
            array.flags.writeable = False

    @np.errstate(over="ignore")  # told below, with loops compiled or not
    def _sum_rates(self) -> np.ndarray:
        """Return the total rate out of each state."""
        sums = np.zeros(self.size)
        if isinstance(self.transitions, LatticeTransitions):
            lattice_rates.sum_rates(*self.transitions, sums)
        elif isinstance(self.transitions, StreamedTransitions) and self.transitions.lattice is not None:
            sum_streamed_lattice(self.transitions, sums)
        else:
            for slab in self.transitions.slabs():
                products.exit_sums(*slab, sums)
        if not np.isfinite(sums).all():
            raise ModelError(
                f"the rates out of state {self.name_of(int(np.argmin(np.isfinite(sums))))} sum to infinity."
            )
        sums.flags.writeable = False
        return sums

    def _check_names(self) -> None:
        labels = {}
        check_mapping("labels", self.labels, "truth values, one for each state")
        for name, states in self.labels.items():
            try:
                member = np.array(None if np.ma.is_masked(states) else states)
            except ValueError:
                member = np.array(None)
            if member.shape != (self.size,) or member.dtype != bool:
                raise ModelError(
                    f"label {shown(name)} is {shown(states)}, of shape {member.shape} and type {member.dtype}; allowed are "
                    f"{self.size} truth values, one for each state."
                )
            member.flags.writeable = False
            labels[name] = member
        object.__setattr__(self, "labels", labels)
        set_carried(self, self.size)
        if self.initial is not None and not isinstance(self.initial, Distribution):
            raise ModelError(
                f"initial is {shown(self.initial)}; allowed is a Distribution, or from_matrix(.., initial=..)."
            )
        guess = self.guess
        if guess is not None and not (isinstance(guess, tuple) and all(isinstance(one, np.ndarray) for one in guess)):
            raise ModelError(f"guess is {shown(guess)}; allowed is a tuple with a vector for each coordinate, or None.")

    def name_of(self, position: int) -> str:
        """Return position and coordinates of a state, for messages."""
        position = whole_number("position", position, 0, LARGEST_COUNT) + self.begin
        return f"{position} {tuple(self.space.states(position).tolist())}"

    # ---- construction -------------------------------------------------------------------------------------------

    @classmethod
    def from_matrix(cls, matrix: Any, space: StateSpace | None = None, **known: Any) -> Generator:
        """Make a model from a square matrix, dense or sparse.

        Parameters
        ----------
        matrix : array or sparse matrix, shape (n, n)
            Entry (i, j) is the rate from i to j.  With a diagonal, rows must sum to zero (within 1e-9 of the exit rate;
            the diagonal is then recomputed from the rates); with an all-zero diagonal, it holds the rates alone.
        space : StateSpace, optional
            By default the states are 0 .. n - 1, variable ``state``.
        **known
            Other fields of the class: `initial` (in any form that `distribution` takes), `labels`, `rewards`, `notes`.

        Raises
        ------
        ModelError
            If the matrix is not square, has negative or non-finite rates, or a row that does not sum to zero.
        """
        rows, columns, rates, n = entries_of(matrix)
        if space is not None:
            _check_space(space)
            if space.size != n:
                raise ModelError(f"the matrix has {n} rows; allowed are {space.size}, as the state space has.")
        model = cls.from_transitions(
            rows, columns, rates, space or Lattice((n - 1,), variables=(Variable("state"),)), **known
        )
        check_diagonal(model, np.bincount(rows[rows == columns], weights=rates[rows == columns], minlength=n))
        return model

    @classmethod
    def from_transitions(cls, sources: Any, targets: Any, rates: Any, space: StateSpace, **known: Any) -> Generator:
        """Make a model from a list of transitions; doubled ones add up, those from a state to itself are left out.

        Parameters
        ----------
        sources, targets : array of int, shape (entries,)
            Positions in `space`.
        rates : array of float, shape (entries,)
            Non-negative; zeros are left out.
        space : StateSpace
        **known
            Other fields of the class.
        """
        _check_space(space)
        check_fields(cls, known, _REPLACEABLE)
        if known.get("initial") is not None:
            known["initial"] = distribution(space, known["initial"])
        return cls(space, rows_of(sources, targets, rates, space.size), **known)

    def replace(self, **changes: Any) -> Generator:
        """Return a copy with other fields, all but the states and transitions; arrays are shared."""
        check_fields(type(self), changes, _REPLACEABLE)
        if changes.get("initial") is not None:
            changes["initial"] = distribution(self.space, changes["initial"])
        changed = copy.copy(self)
        changed.__dict__.pop("all_rewards", None)
        for name, value in changes.items():
            object.__setattr__(changed, name, value)
        changed._check_names()
        return changed

    def with_rates(self, **changes: Any) -> Generator:
        """Return this model at other rates; what does not depend on rates, such as sources and codes, is shared.

        It is the model that the builder would make of the recipe's parameters with these changes, array for array.  Labels,
        rewards and notes that do not come from the builder are kept.

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
        >>> queue = ctmc.build("supermarket", service_rates=[2, 1], arrival_rate=1, choices=2, capacity=9)
        >>> busy = queue.with_rates(arrival_rate=1.25)
        >>> busy.transitions.weights is queue.transitions.weights, busy.uniformization_rate
        (True, 4.25)
        """
        return rerated(self, changes)

    def with_transition_rates(self, transitions: Transitions | StreamedTransitions) -> Generator:
        """Return these states and transitions at other rates, without what follows from rates; builders use it.

        Raises
        ------
        ModelError
            If an array other than rates is not the model's own, or a transition would appear or vanish.
        """
        checked_rates(self.transitions, transitions)
        changed = self._with_transitions(transitions)
        changed._found.pop("exit_rates", None)
        changed.__dict__["exit_rates"] = None
        if not isinstance(transitions, LatticeTransitions | StreamedTransitions):
            changed.exit_rates  # noqa: B018  # found now, and whether they are finite
        return changed.replace(guess=None, content_hash=None)

    def with_reward(self, name: str, values: Any, description: str = "") -> Generator:
        """Return a copy with one more reward: an array of shape (n,) or (n, length), or a function of the states."""
        check_name("name", name)
        return self.replace(rewards={**self.rewards, name: Reward(values, description)})

    # ---- what solvers see -----------------------------------------------------------------------------------------

    @property
    def size(self) -> int:
        """Number of states."""
        return self.space.size

    @property
    def states(self) -> int:
        """Number of states of all ranks, where the model is shared; else the same as `size`."""
        return self.size

    @property
    def shared(self) -> bool:
        """Whether ranks share the model, so that vectors have the own states only."""
        return False

    @property
    def ranks(self) -> Ranks:
        """The processes that share the model: one."""
        return ALONE

    @property
    def begin(self) -> int:
        """Position of the first state of this rank among all."""
        return 0

    @property
    def held(self) -> int:
        """Number of states that `row_slabs` speak of: those of this rank, and sources that others have."""
        return self.size

    def positions_of(self, sources: np.ndarray) -> np.ndarray:
        """Return the positions among all states of sources as `row_slabs` number them."""
        return sources

    def collected(self, held: np.ndarray) -> np.ndarray:
        """Return what was added up for each state of `held`, where it belongs; shape (n,)."""
        return held

    def state_slabs(self) -> Iterator[tuple[slice, np.ndarray]]:
        """Yield (slice of positions, states there), a slab at a time, in order."""
        return self.space.slabs()

    def own(self, initial: Distribution) -> Distribution:
        """Return the part of a distribution that is on the states of this rank: all of it."""
        return initial

    def once(self, name: str, find: Callable[[], Found]) -> Found:
        """Return what was found about the transitions under this name, or find it now; copies of the model share it."""
        if name not in self._found:
            self._found[name] = find()
        found: Found = self._found[name]
        return found

    @property
    def entries(self) -> int:
        """Number of transitions."""
        return self.once("entries", self._count_entries)

    def _count_entries(self) -> int:
        if isinstance(self.transitions, LatticeTransitions):
            departures = sum(self.size // (limit + 1) * limit for limit in self.transitions.sides - 1)
            return int(departures) + int(sum(np.count_nonzero(row) for row in self.transitions.weights))
        if isinstance(self.transitions, StreamedTransitions):
            return self.transitions.count()
        return len(self.transitions.sources)

    def most_transitions_out(self) -> np.ndarray:
        """Return the number of transitions out of each state, shape (n,); for a lattice the most that there can be."""
        if isinstance(self.transitions, LatticeTransitions):
            return np.broadcast_to(2 * len(self.transitions.sides), self.size)
        return self.added_up(products.count_sources)

    def added_up(self, loop: Callable[..., Any], *vectors: np.ndarray) -> np.ndarray:
        """Return what a loop over the transitions adds to the elements of their sources; shape (n,).

        Parameters
        ----------
        loop : callable
            ``loop(*slab, *vectors, out)`` of `ctmc.model.products`.
        *vectors : ndarray, shape (n,)
            What it reads.
        """
        found = np.zeros(self.size)
        for slab in self.row_slabs():
            loop(*slab, *vectors, found)
        return found

    def most_transitions_in(self) -> np.ndarray:
        """Return the number of transitions into each state, shape (n,); for a lattice the most that there can be."""
        if isinstance(self.transitions, LatticeTransitions):
            return np.broadcast_to(2 * len(self.transitions.sides), self.size)
        return np.concatenate([np.diff(slab.indptr.astype(np.int64)) for slab in self.row_slabs()])

    @property
    def representation(self) -> str:
        """The stored form: 'float64 CSR', 'value-coded CSR', 'lattice', or how rows are streamed."""
        return self.transitions.name

    @property
    def uniformization_rate(self) -> float:
        """The largest exit rate; 1 where there is none."""
        return self.once("uniformization_rate", lambda: float(self.exit_rates.max()) or 1.0)

    def row_slabs(self, *, reverse: bool = False) -> Iterator[Slab]:
        """Yield the transitions slab by slab, in the order of the states or from the last to the first.

        Loops in `ctmc.model.products` take a slab as their first five arguments.  A slab is valid until the next one.
        """
        return self.transitions.slabs(reverse=reverse)

    @property
    def expanded(self) -> FloatTransitions:
        """The transitions as float64 compressed rows, written out where they are stored in another form.

        Raises
        ------
        ModelError
            If they do not fit the memory limit.
        """
        return self.once("expanded", self._expand)

    def _expand(self) -> FloatTransitions:
        return written_out(self.transitions, self.size, self.entries)

    @property
    def indptr(self) -> np.ndarray:
        """Entries ``indptr[j]:indptr[j + 1]`` lead into state j; of the `expanded` transitions."""
        return np.asarray(self.expanded.indptr)

    @property
    def sources(self) -> np.ndarray:
        """Where each entry comes from; of the `expanded` transitions."""
        return np.asarray(self.expanded.sources)

    @property
    def rates(self) -> np.ndarray:
        """Rate of each entry; of the `expanded` transitions."""
        return np.asarray(self.expanded.rates)

    def written_out(self) -> Generator:
        """Return this model with its transitions as float64 compressed rows, whatever form they are stored in."""
        self.exit_rates  # noqa: B018  # the same in every form
        return self._with_transitions(self._found.get("expanded") or self._expand())

    def coded(self) -> Generator:
        """Return this model with a small code in place of each rate, or itself where it has too many different rates.

        Examples
        --------
        >>> chain = Generator.from_matrix([[-1, 1], [2, -2]]).coded()
        >>> chain.representation, chain.transitions.values.tolist()
        ('value-coded CSR', [1.0, 2.0])
        """
        if isinstance(self.transitions, CodedTransitions):
            return self
        rows = coded(self._found.get("expanded") or self._expand())
        if rows is None:
            return self
        self.exit_rates  # noqa: B018  # the same in every form
        return self._with_transitions(rows)

    def _with_transitions(self, transitions: Transitions | StreamedTransitions) -> Generator:
        changed = copy.copy(self)
        kept = {
            name: self._found[name]
            for name in ("checked", "classes", "coloring", "entries", "exit_rates")
            if name in self._found
        }
        object.__setattr__(changed, "transitions", transitions)
        object.__setattr__(changed, "_found", kept)
        for array in transitions:
            array.flags.writeable = False
        return changed

    def count_products(self, number: int = 1) -> None:
        """Add to the count of products; a no-op outside `solve`."""
        if self._counter is not None:
            self._counter.products += number

    def counted(self, counter: ProductCounter) -> Generator:
        """Return a view of this model that counts its products."""
        view = copy.copy(self)
        object.__setattr__(view, "_counter", counter)
        return view

    def forward(self, p: np.ndarray, out: np.ndarray | None = None) -> np.ndarray:
        """Return p Q, the change of a distribution per unit of time; shape (n,)."""
        return self.recurrence(p, out)

    def backward(self, v: np.ndarray, out: np.ndarray | None = None) -> np.ndarray:
        """Return Q v, the change of the expectation of v per unit of time; shape (n,)."""
        return self.recurrence(v, out, backward=True)

    def recurrence(
        self,
        x: np.ndarray,
        out: np.ndarray | None = None,
        *,
        factor: float = 1.0,
        keep: float = 0.0,
        previous: np.ndarray | None = None,
        weight: float = 0.0,
        backward: bool = False,
        sums: tuple[np.ndarray, np.ndarray, np.ndarray] | None = None,
    ) -> np.ndarray:
        """Return factor x Q + keep x + weight previous (Q x in place of x Q if backward), in one pass; shape (n,).

        `out` is another array than x and `previous`.  With sums = (mix, first, second) the same pass adds mix[0] x + mix[1] out
        to `first` and, where mix has four numbers, mix[2] x + mix[3] out to `second`.
        """
        x, out = self._vectors(x, out)
        mix, first, second = (_NO_MIX, out, out) if sums is None else sums
        before = x if previous is None else previous
        self._multiply(backward, self.exit_rates, x, before, factor, keep, weight, mix, first, second, out)
        return out

    def _multiply(self, backward: bool, *others: Any) -> None:
        """Make the pass of `recurrence`; the other arguments are those of the loops of `ctmc.model.products`."""
        if isinstance(self.transitions, LatticeTransitions):
            rows = self.transitions
            if backward:
                cut = self.once("backward_runs", lambda: lattice_runs.backward_runs(rows))
                lattice_products.flat_backward(cut, rows.weights, float(rows.unit[0]), *others)
            else:
                runs = self.once("runs", lambda: lattice_runs.runs(rows, halved=False))
                lattice_products.flat_product(runs, rows.weights, float(rows.unit[0]), *others)
        elif backward:
            products.backward(self.row_slabs(), *others)
        elif isinstance(self.transitions, StreamedTransitions):
            self.transitions.gather(
                lambda slab: products.forward_on_one_thread(*slab, *others),
                lambda slab: products.forward(*slab, *others),
            )
        else:
            kernel = products.forward_on_one_thread if self.entries <= products.FEW_ENTRIES else products.forward
            kernel(*next(self.row_slabs()), *others)

    def _vectors(self, x: np.ndarray, out: np.ndarray | None) -> tuple[np.ndarray, np.ndarray]:
        x = np.ascontiguousarray(real_numbers("the vector", x, f"{self.size} numbers"))
        if x.shape != (self.size,):
            raise ModelError(f"the vector has shape {x.shape}; allowed is ({self.size},).")
        if out is None:
            out = np.empty(self.size)
        elif type(out) is not np.ndarray or out.shape != x.shape or out.dtype != x.dtype or not out.flags.writeable:
            # loops that are compiled write where they are told, wherever that is
            raise ModelError(f"out is {shown(out)}; allowed is a writable vector of {self.size} numbers of float64.")
        self.count_products()
        return x, out

    def to_scipy(self) -> csr_array:
        """Return Q as a csr_array, diagonal included."""
        indptr, sources, values = self._found.get("expanded") or self._expand()  # not kept: it may be large
        rates = csc_array((values, sources, indptr), shape=(self.size, self.size))
        diagonal = dia_array((-self.exit_rates[None], [0]), shape=(self.size, self.size))
        return csr_array(rates + csc_array(diagonal))

    # ---- structure ------------------------------------------------------------------------------------------------

    @property
    def classes(self) -> communication.Classes:
        """The communicating classes, found once."""
        return self.once("classes", lambda: communication.classes(self))

    @property
    def coloring(self) -> np.ndarray | None:
        """A 2-coloring of the states that every transition changes, or None; found once."""
        return self.once("coloring", lambda: communication.two_coloring(self))

    def restricted(self, positions: np.ndarray) -> Generator:
        """Return the chain on some states only, transitions out of them dropped; no rewards, labels or measures."""
        positions = checked_positions("positions", positions, self.size)
        number = np.full(self.size, -1, dtype=np.int64)
        number[positions] = np.arange(len(positions))
        if not 0 < len(positions) == np.count_nonzero(number >= 0):
            raise ModelError(f"positions are {shown(positions)}; allowed are one or more, each once.")
        target = number[np.repeat(np.arange(self.size), np.diff(self.indptr))]
        source = number[self.sources]
        keep = (target >= 0) & (source >= 0)
        space = Lattice((len(positions) - 1,), variables=(Variable("state"),))
        return Generator.from_transitions(source[keep], target[keep], self.rates[keep], space)

    # ---- rewards --------------------------------------------------------------------------------------------------

    @cached_property
    def all_rewards(self) -> dict[str, Reward]:
        """Rewards by name: those given, and the variables of the states."""
        return {**variable_rewards(self.space), **self.rewards}

    def weighted_slabs(self, value: np.ndarray) -> Iterator[tuple[slice, np.ndarray, np.ndarray]]:
        """Yield (positions, states, probabilities) slab by slab; probabilities (m,) or (times, m) as `value` is."""
        for positions, states in self.state_slabs():
            yield positions, states, value[..., positions]

    @property
    def nbytes(self) -> int:
        """Bytes of the arrays that are held."""
        held = (
            self.transitions.nbytes if isinstance(self.transitions, StreamedTransitions) else nbytes(self.transitions)
        )
        return held + 8 * self.size

    def _summary(self) -> tuple[str, Rows]:
        if "checked" not in self._found:  # a traceback shows what was refused, and no loop may run over that
            return "Generator", (("note", "refused: its transitions are no rows of a generator"),)
        recipe = self.recipe
        rows: list[tuple[str, object]] = [
            ("states", f"{self.size:,} ({self.space.describe()})"),
            ("transitions", f"{self.entries:,}"),
            ("largest exit rate", f"{self.exit_rates.max():.6g}"),
            ("memory", f"{format_size(self.nbytes)} ({self.representation})"),
            ("rewards", ", ".join(self.all_rewards)),
        ]
        if self.labels:
            rows.append(("labels", ", ".join(self.labels)))
        if recipe:
            rows += [(name, value) for name, value in recipe.parameters.items() if value is not None]
        rows += [("note", note) for note in self.notes]
        return f"Generator{': ' + recipe.builder if recipe else ''}", rows


def _check_space(space: Any) -> None:
    if not isinstance(space, StateSpace):
        raise ModelError(f"space is {shown(space)}; allowed are Lattice and Listed.")
