"""The supermarket model with different servers, truncated.

Source: Q.-L. Li, F. Yang, N. Li, *Reward processes and performance simulation in supermarket models with different servers*,
IJSPM 11(3/4), 2016, arXiv:1504.08150.
"""

from __future__ import annotations

import inspect
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from fractions import Fraction
from functools import partial
from typing import Any, Literal

import numpy as np

import ctmc
from builders.supermarket.checks import checked_arrivals, checked_servers
from builders.supermarket.designs import YARDSTICK, preferences_design, split_design, weights_design
from builders.supermarket.lattice import lattice_transitions
from builders.supermarket.lumped_transitions import largest_entries, lumped_rows
from builders.supermarket.lumping import ServerClasses, class_means, lumped_space, server_classes
from builders.supermarket.rank import shared_probabilities, stability_notes
from builders.supermarket.rerating import check_alike, rates_that_may_change, rerated_rows
from builders.supermarket.response_time import response_time
from builders.supermarket.selection import Selection, held_decisions, preference_keys, selection_table, tie_rules
from builders.supermarket.transitions import BLOCK, transitions
from builders.supermarket.truncation import FOUND, find_capacity
from ctmc.errors import ModelError, shown
from ctmc.model.distribution import distribution
from ctmc.model.generator import Generator
from ctmc.model.memory import require_memory
from ctmc.model.parameters import check_truth, each, positive_rates, whole_number
from ctmc.model.recipe import code_is_allowed
from ctmc.model.rerating import on_the_structure_of
from ctmc.model.reward import Reward
from ctmc.model.state_space import Lattice, Variable
from ctmc.model.streamed import is_streaming, made
from ctmc.study.continuous import Ordering

_LEAST_GUESS = 1e-6
Capacity = int | Sequence[int] | Literal["auto"]


@dataclass(frozen=True)
class _Design:
    """The parameters, checked and completed; servers in the order of the coordinates."""

    rates: np.ndarray
    preferences: np.ndarray
    weights: np.ndarray
    limits: tuple[int, ...]
    arrival_rate: float
    probabilities: tuple[tuple[Fraction, ...], ...]
    portions: np.ndarray
    shares: np.ndarray
    space: Lattice
    classes: ServerClasses | None
    """Where exchangeable servers are lumped."""

    def arrivals(self, keys: np.ndarray, states: np.ndarray) -> np.ndarray:
        """Return the rate at which jobs choose each server in each state, whether full or not; shape (m, M)."""
        own = keys[np.arange(len(self.rates)), states]
        better, tied = np.zeros(own.shape, dtype=np.int16), np.zeros(own.shape, dtype=np.int16)
        for other in own.T:
            better += other[:, None] < own
            tied += other[:, None] == own
        return np.asarray(self.shares[better, tied])

    def full(self, states: np.ndarray) -> np.ndarray:
        """Return which servers take no job in each state; shape (m, M)."""
        full = states >= np.array(self.limits)
        if self.space.total is not None:
            full |= (states.sum(axis=1) >= self.space.total)[:, None]
        return np.asarray(full)


def _design(
    service_rates: Sequence[float],
    arrival_rate: float,
    choices: int,
    capacity: Capacity,
    preferences: Sequence[float] | None,
    weights: Sequence[float],
    sampling: str,
    overflow: str,
    total_capacity: int | None,
    lump: bool,
) -> _Design:
    rates, liked, parts = checked_servers(service_rates, preferences, weights)
    servers = len(rates)
    total_rate = checked_arrivals(servers, arrival_rate, choices, sampling, overflow, total_capacity)
    if isinstance(capacity, str):
        raise ModelError(f"capacity is {shown(capacity)}; allowed is a whole number >= 1, one per server, or 'auto'.")
    limits = tuple(
        whole_number("capacity", limit, 1) for limit in each("capacity", capacity, servers, f"the {servers} servers")
    )
    check_truth("lump", lump)
    classes = server_classes(rates, liked, limits) if lump else None
    lumped = None if classes is None or classes.trivial else lumped_space(limits, total_capacity, classes)
    # what spans too many states is told before the tables are made, which take long for thousands of servers
    space = Lattice(limits, total_capacity, (Variable("queue_length", servers),)) if lumped is None else lumped
    # exact fractions of numbers with choices x log2(servers) binary digits
    require_memory(
        f"the table of shares of {servers:,} servers and {choices:,} choices",
        (servers + 1) ** 2 * (160 + choices * servers.bit_length() // 4),
    )
    table = shared_probabilities(servers, int(choices), sampling)
    portions = np.array([[float(share) for share in row] for row in table])
    shares = total_rate * portions
    if lumped is not None and classes is not None:
        order = list(classes.order)
        return _Design(
            rates[order], liked[order], parts, lumped.limits, total_rate, table, portions, shares, lumped, classes
        )
    return _Design(rates, liked, parts, limits, total_rate, table, portions, shares, space, None)


def _keys(design: _Design, selection: Selection, ties: str | Sequence[str], overflow: str) -> np.ndarray:
    """Return the preference keys as one table, shape (M, largest limit + 1); full servers rank last where rerouted."""
    values = selection_table(selection, design.limits, design.rates, design.preferences, design.weights)
    keys = preference_keys(values, tie_rules(ties), design.rates, design.preferences)
    if overflow == "rerouted":
        worst = max(int(part.max()) for part in keys) + 1
        for part in keys:
            part[-1] = worst
    return _padded(keys)


def _padded(parts: Sequence[np.ndarray]) -> np.ndarray:
    table = np.zeros((len(parts), max(map(len, parts))), dtype=parts[0].dtype)
    for row, part in zip(table, parts, strict=True):
        row[: len(part)] = part
    return table


def _dress(
    model: Generator,
    service_rates: Sequence[float],
    arrival_rate: float,
    choices: int,
    capacity: Capacity,
    preferences: Sequence[float] | None,
    selection: Selection,
    weights: Sequence[float],
    sampling: str,
    ties: str | Sequence[str],
    overflow: str,
    total_capacity: int | None,
    measured_by: Selection | None,
    lump: bool,
    truncation_error: float | None,
    largest_capacity: int | None,
) -> Generator:
    design = _design(
        service_rates, arrival_rate, choices, capacity, preferences, weights, sampling, overflow, total_capacity, lump
    )
    rewards = {
        "jobs": Reward(lambda states: states.sum(axis=1), "jobs in the system"),
        "idle": Reward(lambda states: states == 0, "1 where the server is idle"),
        "busy": Reward(lambda states: states > 0, "1 where the server is busy"),
        "boundary": Reward(lambda states: design.full(states).any(axis=1), "1 where a queue, or the total, is full"),
        "boundary_mass": Reward(design.full, "1 where the server takes no job, its queue or the total being full"),
        "arrivals": Reward(None, "jobs that have come in", impulse=lambda before, after: after.sum(1) > before.sum(1)),
        "services": Reward(
            None, "jobs that have been served", impulse=lambda before, after: after.sum(1) < before.sum(1)
        ),
    }
    fixed, distributions = None, {}
    named = any(isinstance(rule, str) and ":" in rule for rule in (selection, measured_by))
    if code_is_allowed() or not named:  # else the stored values of these rewards serve: nothing is imported for them
        keys = _keys(design, selection, ties, overflow)
        yardstick = selection if measured_by is None else measured_by
        values = _padded(
            selection_table(yardstick, design.limits, design.rates, design.preferences, design.weights, "measured_by")
        )

        def refused(states: np.ndarray, keys: np.ndarray) -> np.ndarray:
            """Return the rate at which jobs choose each full server."""
            full = design.full(states)
            some = full.any(axis=1)
            flows = np.zeros(full.shape)
            flows[some] = np.where(full[some], design.arrivals(keys, states[some]), 0)
            return flows

        def lost(states: np.ndarray) -> np.ndarray:
            return refused(states, keys)

        def joins(states: np.ndarray) -> np.ndarray:
            """Return the rate at which jobs join each server."""
            return np.where(design.full(states), 0.0, design.arrivals(keys, states))

        distributions["response_time"] = lambda solution: response_time(solution, joins, design.rates, design.limits)
        # the keys without the rank of full servers: whom the job would have joined
        plain_keys = keys if overflow == "lost" else _keys(design, selection, ties, "lost")
        rewards |= {
            "loss_rate": Reward(lambda states: lost(states).sum(axis=1), "rate at which jobs are lost"),
            "losses": Reward(None, "jobs that have been lost", self_loops=lambda states: lost(states).sum(axis=1)),
            "loss_flow": Reward(lost, "rate at which jobs that chose the server are lost"),
            "boundary_flow": Reward(
                lambda states: refused(states, plain_keys),
                "rate at which jobs prefer the server while it is full, lost or rerouted",
            ),
            "imbalance": Reward(lambda states: 1 - _balance(values, states), "(largest - smallest) / largest value"),
            "balance": Reward(lambda states: _balance(values, states), "smallest / largest selection value"),
        }
        if selection == "weighted" and design.weights[0] == 0 and "shortest" not in tie_rules(ties):
            empty = np.zeros((1, len(design.rates)), dtype=np.int64)  # any state: the rule does not look at it
            fixed = design.arrivals(keys, empty)[0]
    rates = design.rates
    if design.classes is not None:
        rewards |= class_means(design.classes, rewards)
        rates = design.classes.given_order(rates)
        fixed = None if fixed is None else design.classes.given_order(fixed)
    notes = stability_notes(design.arrival_rate, rates, choices, sampling, fixed)
    rerouted = ("boundary_flow",) if overflow == "rerouted" else ()  # where jobs are lost it is the loss flow

    def measures(solution: ctmc.Solution) -> dict[str, Any]:
        names = ["busy", "queue_length", "jobs", "loss_rate", "imbalance", "boundary", "boundary_mass"]
        known = solution.problem.model.all_rewards
        # stored values may stand for the rewards of a user's rule, and older files have none of the flows
        names += [name for name in ("loss_flow", *rerouted) if name in known]
        found = solution.expectations(names)
        throughput = design.arrival_rate - found["loss_rate"]
        return {
            "throughput": throughput,
            "utilization": found["busy"],
            "queue_length": found["queue_length"],
            "jobs": found["jobs"],
            "response_time": found["jobs"] / throughput,
            "blocking_probability": found["loss_rate"] / design.arrival_rate,
            "imbalance": found["imbalance"],
            "boundary": found["boundary"],
            **{name: found[name] for name in ("boundary_mass", "loss_flow", *rerouted) if name in found},
        }

    return model.replace(
        rewards=rewards,
        measures=measures,
        distributions=distributions,
        notes=(*model.notes, *notes),
        guess=_guess(design, int(choices)),
    )


def _guess(design: _Design, choices: int) -> tuple[np.ndarray, ...] | None:
    """Return a rough distribution of each queue: that of infinitely many equal servers at the same load.

    There a queue has k and more jobs with probability load^((d^k - 1) / (d - 1)): N. D. Vvedenskaya, R. L. Dobrushin, F. I.
    Karpelevich, Problems of Information Transmission 32 (1996).  Its tail is too light for a few different servers, so it is
    kept above a geometric one.
    """
    load = design.arrival_rate / float(design.rates.sum())
    if load >= 1 or design.classes is not None:  # orbits have different sizes
        return None
    length = np.arange(max(design.limits) + 2)
    exponents = np.minimum(np.cumsum(float(choices) ** np.minimum(length, 60)) - 1, 1e6) if choices > 1 else length
    tails = load**exponents
    probabilities = np.maximum(tails[:-1] - tails[1:], _LEAST_GUESS * load ** (2.0 * length[:-1]))
    return tuple(probabilities[: limit + 1] for limit in design.limits)


def _balance(values: np.ndarray, states: np.ndarray) -> np.ndarray:
    own = values[np.arange(states.shape[1]), states]
    largest = own.max(axis=1)
    return np.divide(own.min(axis=1), largest, out=np.ones(len(states)), where=largest != 0)


def _ordering(**parameters: Any) -> Ordering | None:
    """Return which server a job prefers at which queue lengths, of parameters that are checked as for the model.

    None where something is missing, which the builder tells, or the capacities are not known yet.
    """
    given = {name: parameters.get(name, value) for name, value in _DEFAULTS.items()}
    if any(value is inspect.Parameter.empty for value in given.values()) or not parameters.keys() <= _DEFAULTS.keys():
        return None
    if isinstance(given["capacity"], str):
        return None
    design = _design(**{name: given[name] for name in _DESIGN})
    values = selection_table(given["selection"], design.limits, design.rates, design.preferences, design.weights)
    keys = preference_keys(values, tie_rules(given["ties"]), design.rates, design.preferences)
    order = range(len(values)) if design.classes is None else design.classes.order
    servers = sorted(zip(order, values, strict=True), key=lambda pair: pair[0])
    return Ordering(
        key=np.concatenate(keys).tobytes(),
        values=tuple(part for _, part in servers),
        covers=("selection", "weights", "preferences"),
    )


def _resolve(
    capacity: Capacity,
    truncation_error: float | None,
    largest_capacity: int | None,
    **parameters: Any,
) -> tuple[dict[str, Any], tuple[str, ...]]:
    """Find the capacities where they are left open; the model is then the one that has them."""
    if not isinstance(capacity, str) or capacity != "auto":
        for name, value in (("truncation_error", truncation_error), ("largest_capacity", largest_capacity)):
            if value is not None:
                raise ModelError(
                    f"{name} is {shown(value)}, but capacity is {shown(capacity)}; it goes with capacity 'auto'."
                )
        return {}, ()
    chosen = {"truncation_error": truncation_error, "largest_capacity": largest_capacity}
    found = find_capacity(**parameters, **{name: value for name, value in chosen.items() if value is not None})
    return {"capacity": list(found.capacity), **dict.fromkeys(chosen)}, (found.note,)


@ctmc.builder(version=2, dress=_dress, code=("selection", "measured_by"), resolve=_resolve)
def supermarket(
    service_rates: Sequence[float],
    arrival_rate: float,
    choices: int,
    capacity: Capacity,
    preferences: Sequence[float] | None = None,
    selection: Selection = "tandem",
    weights: Sequence[float] = (1 / 3, 1 / 3, 1 / 3),
    sampling: str = "without_replacement",
    ties: str | Sequence[str] = "random",
    overflow: str = "lost",
    total_capacity: int | None = None,
    measured_by: Selection | None = None,
    lump: bool = False,
    truncation_error: float | None = None,
    largest_capacity: int | None = None,
) -> Generator:
    """Supermarket model: an arriving job samples some servers and joins the one with the least selection value.

    Parameters
    ----------
    service_rates : sequence of float, length M
        Rate of each server, per unit of time.
    arrival_rate : float
        Total rate of arrivals, per unit of time.
    choices : int
        Number of servers d that a job samples.
    capacity : int, sequence of int, or 'auto'
        Largest queue length, the job in service included: one number, or one per server; 'auto' finds capacities that
        suffice for the truncation error, by solving truncations that grow, and the model is the one with these.
    preferences : sequence of float, optional
        Preference g of each server, in (0, 1], summing to 1; default 1/M each.
    selection : str or callable
        Selection value of a server with queue length x: 'tandem' x / (mu g), 'weighted' b1 x + b2 / mu + b3 / g,
        'shortest_queue' x, 'expected_delay' (x + 1) / mu, or a function f(x, mu, g), by name as module:function.
    weights : sequence of float
        (b1, b2, b3) of the rule 'weighted'; non-negative, summing to 1.
    sampling : str
        'without_replacement' (d different servers) or 'with_replacement'.
    ties : str or sequence of str
        What decides among the best sampled servers: 'random', 'fastest', 'shortest', 'preferred', or several in order;
        what still ties is split evenly.
    overflow : str
        'lost': a job that chose a full server leaves.  'rerouted': it goes to the best sampled server that is not full.
    total_capacity : int, optional
        Largest number of jobs in the system; when it is reached, every server is full.
    measured_by : str or callable, optional
        Selection rule by which `imbalance` and `balance` judge the states; default the model's own.
    lump : bool
        Whether servers with the same service rate, preference and capacity are exchangeable, and one state stands for all
        that differ by an exchange.  All measures stay what they are.
    truncation_error : float, optional
        Of capacity 'auto': the measures may be off by this part of themselves, as an estimate; default 1e-8.
    largest_capacity : int, optional
        Of capacity 'auto': no server's capacity grows beyond it; default 1000.

    Returns
    -------
    Generator
        States ``queue_length`` (x_0, .., x_{M-1}) in lexicographic order, the last server fastest, over the states that
        satisfy all limits.  Rewards: jobs, idle, busy, imbalance, balance, loss_rate, boundary, and per server
        boundary_mass, loss_flow, boundary_flow.  Measures: throughput, utilization, queue_length, jobs, response_time,
        blocking_probability, imbalance, boundary, and per server boundary_mass (probability that it is full) and loss_flow
        (rate at which jobs that chose it are lost; the sum is the loss rate); where jobs are rerouted also boundary_flow
        (rate at which jobs prefer it while it is full).  Distribution: response_time of an accepted job, as
        ``solution.distribution("response_time")``.

        With `lump`, the states are ``sorted_queue_length``: exchangeable servers stand side by side, classes in the order
        of their first server, and queue lengths are non-increasing inside a class.  The rewards and measures of single
        servers (queue_length, idle, busy, utilization) are class means, in the order in which the servers were given;
        conditions and marginals take ``sorted_queue_length``, or the answer that `builders.supermarket.lumping.lift` makes.
        Where no two servers are exchangeable the model is the same with and without.

    Raises
    ------
    ModelError
        If a parameter is out of range, or the model would not fit the memory limit.

    Examples
    --------
    >>> model = supermarket(service_rates=[3, 2, 1], arrival_rate=3, choices=2, capacity=9, preferences=[.2, .3, .5])
    >>> solution = ctmc.solve(ctmc.Stationary(model), "gth")
    >>> solution.expected("queue_length").round(10).tolist()
    [0.5817947978, 0.7935083628, 0.8683978543]

    Equal servers that are all sampled are joined where the queue is shortest:

    >>> model = supermarket([1, 1], arrival_rate=1.4, choices=2, capacity=40, selection="shortest_queue", lump=True)
    >>> round(ctmc.solve(ctmc.Stationary(model), "gth").measures()["response_time"], 9)
    2.108197274

    Twenty equal servers with up to two jobs each have 3^20 states, but only 231 orbits:

    >>> model = supermarket([1] * 20, arrival_rate=16, choices=2, capacity=2, lump=True)
    >>> model.size, round(ctmc.solve(ctmc.Stationary(model), "gth").measures()["blocking_probability"], 9)
    (231, 0.109546729)

    On the command line: ``ctmc build supermarket --service-rates 3,2,1 --arrival-rate 3 --choices 2 --capacity 9
    --preferences .2,.3,.5 -o model.h5``
    """
    design = _design(
        service_rates, arrival_rate, choices, capacity, preferences, weights, sampling, overflow, total_capacity, lump
    )
    space, size, begin, servers = design.space, design.space.size, [0] * len(design.rates), len(design.rates)
    lumped = design.classes is not None
    box = not lumped and space.total is None
    # in a box a share 1 / (K + 1) of the states lies on each face; a total cap only takes more away
    entries = largest_entries(space) if lumped else int(2 * size * sum(limit / (limit + 1) for limit in design.limits))
    if not is_streaming():
        need = (servers + 8) * size if box else (6 if lumped else 5) * entries + 40 * size
        require_memory(f"the {'lumped ' if lumped else ''}supermarket model", need, states=size, entries=entries)
    require_memory("the table of selection values", 100 * servers * (max(design.limits) + 1))
    keys = _keys(design, selection, ties, overflow)
    if measured_by is not None:
        selection_table(measured_by, design.limits, design.rates, design.preferences, design.weights, "measured_by")
    if lumped:
        rows, count = lumped_rows(space, keys, design.portions, design.rates, design.arrival_rate)
        return Generator(space, made(size, rows, count, block=BLOCK), initial=distribution(space, begin))
    if box:
        found = lattice_transitions(space, keys, design.probabilities, design.arrival_rate, design.rates)
        if found is not None:
            return Generator(space, found, initial=distribution(space, begin))
        if not is_streaming():
            require_memory("the supermarket model", 5 * entries + 40 * size, states=size, entries=entries)
    rows = partial(transitions, space, keys, design.shares, design.rates)
    return Generator(space, made(size, rows, block=BLOCK), initial=distribution(space, begin))


def _rerate(model: Generator, old: Mapping[str, Any], new: Mapping[str, Any]) -> Generator:
    """Return the model at other rates, or say what moves with them."""
    servers, given = (len(positive_rates("service_rates", given["service_rates"])) for given in (old, new))
    if given != servers:
        raise ModelError(f"service_rates has {given} numbers; at other rates the system keeps its {servers} servers.")
    before, after = (_design(**{name: given[name] for name in _DESIGN}) for given in (old, new))
    alike = before.classes == after.classes and before.space == after.space
    keys = [
        _keys(design, given["selection"], given["ties"], given["overflow"])
        for design, given in ((before, old), (after, new))
        if alike
    ]
    check_alike(new, alike, keys)
    kept = tuple(note for note in model.notes if FOUND not in note)  # found at other rates
    rows = rerated_rows(model.transitions, before, after)
    if rows is None:  # no table says which events the rates belong to
        return on_the_structure_of(model, inspect.unwrap(supermarket)(**new)).replace(notes=kept)
    return model.with_transition_rates(rows).replace(notes=kept)


supermarket.mean_field = "builders.supermarket.mean_field:mean_field"  # what `ctmc mean-field supermarket` shows
supermarket.simulation = "builders.supermarket.simulation:simulate"
supermarket.rates_that_may_change = rates_that_may_change
supermarket.rerate = _rerate  # what `with_rates` does in place of a build
supermarket.event_rates = ("arrival_rate", "service_rates")  # what `ctmc.sensitivity` differentiates by
supermarket.held_decisions = held_decisions
# what `ctmc optimize supermarket` takes and needs
supermarket.designs = {"preferences": preferences_design, "split": split_design, "weights": weights_design}
supermarket.ordering = _ordering
supermarket.yardstick = YARDSTICK
_DEFAULTS = {name: parameter.default for name, parameter in inspect.signature(supermarket).parameters.items()}
_DESIGN = tuple(inspect.signature(_design).parameters)
