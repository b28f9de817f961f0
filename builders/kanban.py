"""Four cells with kanban tickets: the benchmark model `kanban` of PRISM and Storm."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

import ctmc
from builders._factors import BLOCK, Event, product_rows
from ctmc.errors import ModelError
from ctmc.model.distribution import distribution
from ctmc.model.generator import Generator
from ctmc.model.memory import require_memory
from ctmc.model.parameters import positive_rate, positive_rates, whole_number
from ctmc.model.reward import Reward
from ctmc.model.state_space import Lattice, Listed, Variable
from ctmc.model.streamed import is_streaming, made

CELLS = 4
_MOST_TICKETS = 100
"""Beyond, states can no longer be numbered with 64 bits."""
_REDO, _OK = (0.36, 0.42, 0.39, 0.33), (0.84, 0.98, 0.91, 0.77)
_ENTER, _LEAVE, _BACK = (1, 0, 0), (0, 0, -1), (1, -1, 0)
"""Changes of (processing, rework, finished) in a cell."""


def _dress(
    model: Generator,
    tickets: int,
    input_rate: float = 1.0,
    output_rate: float = 0.9,
    fork_rate: float = 0.4,
    join_rate: float = 0.5,
    redo_rates: Sequence[float] = _REDO,
    ok_rates: Sequence[float] = _OK,
    back_rate: float = 0.3,
) -> Generator:
    def parts(states: np.ndarray) -> np.ndarray:
        return np.asarray(states.reshape(len(states), 3, CELLS).sum(axis=1))

    def measures(solution: ctmc.Solution) -> dict[str, Any]:
        found = solution.expectations(["processing", "rework", "finished", "parts", "accepts"])
        throughput = input_rate * found["accepts"]
        return {
            "throughput": throughput,
            "parts": found["parts"],
            "processing": found["processing"],
            "rework": found["rework"],
            "finished": found["finished"],
            # parts of the two cells in the middle come from one part and become one again
            "production_time": float(found["parts"][[0, 1, 3]].sum()) / throughput,
        }

    return model.replace(
        rewards={
            "parts": Reward(parts, "per cell, parts in it, each with a ticket"),
            "accepts": Reward(lambda states: parts(states)[:, 0] < tickets, "1 while the first cell has a free ticket"),
        },
        measures=measures,
    )


@ctmc.builder(version=1, dress=_dress)
def kanban(
    tickets: int,
    input_rate: float = 1.0,
    output_rate: float = 0.9,
    fork_rate: float = 0.4,
    join_rate: float = 0.5,
    redo_rates: Sequence[float] = _REDO,
    ok_rates: Sequence[float] = _OK,
    back_rate: float = 0.3,
) -> Generator:
    """Four manufacturing cells, each with as many kanban tickets; two of them work in parallel.

    The model of G. Ciardo and M. Tilgner, "On the use of Kronecker operators for the solution of generalized stochastic Petri
    nets", ICASE report 96-35 (1996), known as `kanban` among the benchmarks of PRISM and Storm, whose rates are the
    defaults.  A part needs a free ticket to enter a cell.  There it is processed: it is found good and finished (`ok_rates`),
    or set aside (`redo_rates`) and later processed again (`back_rate`).  Parts enter cell 0 at `input_rate`; a
    finished part leaves it at `fork_rate`, once cells 1 and 2 have a ticket free, as two parts, one in each.  When both of
    these have a finished part and cell 3 a free ticket, they are joined at `join_rate`, and leave cell 3 at `output_rate`.
    Rates do not grow with the number of parts.

    Parameters
    ----------
    tickets : int
        Tickets of each cell.
    input_rate : float
        Rate at which parts enter cell 0.
    output_rate : float
        Rate at which finished parts leave cell 3.
    fork_rate : float
        Rate at which a part goes from cell 0 to the cells 1 and 2.
    join_rate : float
        Rate at which two parts go from the cells 1 and 2 to cell 3.
    redo_rates : sequence of float, length 4
        Rate, per cell, at which a part is set aside.
    ok_rates : sequence of float, length 4
        Rate, per cell, at which a part is found good.
    back_rate : float
        Rate at which a part that was set aside is processed again.

    Returns
    -------
    Generator
        States ``processing``, ``rework``, ``finished``, shape (4,) each.  Cells 1 and 2 hold the same number of
        parts, so there are C(t + 3, 3)^2 times the sum over w = 0 .. t of C(w + 2, 2)^2 states.  No transition leads back to
        its state and no two lead from one state to the same other one, so the numbers are those that PRISM counts: 454,475
        states and 3,979,850 transitions for 4 tickets, 11,261,376 and 115,708,992 for 6.  The table of the states is held
        in memory, 96 bytes each, even where transitions are streamed.  Rewards: parts (per cell), accepts.  Measures:
        throughput, parts, processing, rework, finished, production_time.

    Raises
    ------
    ModelError
        If tickets is not a positive whole number, there are not four of `redo_rates` or `ok_rates`, a rate is not positive and
        finite, or the model needs more than the memory limit.

    Examples
    --------
    >>> cells = kanban(tickets=1)
    >>> cells.size, cells.entries
    (160, 616)
    >>> round(ctmc.solve(ctmc.Stationary(cells), "gth").measures()["throughput"], 9)
    0.092584635

    On the command line: ``ctmc build kanban --tickets 4 -o kanban.h5``
    """
    most = whole_number("tickets", tickets, 1, _MOST_TICKETS)
    redo, ok = _four("redo_rates", redo_rates), _four("ok_rates", ok_rates)
    back = positive_rate("back_rate", back_rate)
    cell = Lattice((most,) * 3, total=most)
    within = np.array([(w + 1) * (w + 2) // 2 for w in range(most + 1)], dtype=object)  # states of a cell of w parts
    size = cell.size**2 * int((within**2).sum())
    require_memory("the table of states of kanban", 280 * size, states=size)

    configurations = cell.states(np.arange(cell.size))
    held = configurations.sum(axis=1)
    pairs = np.argwhere(held[:, None] == held)
    place = np.full((cell.size, cell.size), -1)
    place[tuple(pairs.T)] = np.arange(len(pairs))

    def alone(change: tuple[int, int, int]) -> np.ndarray:
        return cell.find(configurations - change)

    def together(first: np.ndarray, second: np.ndarray) -> np.ndarray:
        before = first[pairs[:, 0]], second[pairs[:, 1]]
        return np.where((before[0] >= 0) & (before[1] >= 0), place[before], -1)

    same, entered, left = np.arange(cell.size), alone(_ENTER), alone(_LEAVE)
    events = [
        Event(positive_rate("input_rate", input_rate), {0: entered}),
        Event(positive_rate("fork_rate", fork_rate), {0: left, 1: together(entered, entered)}),
        Event(positive_rate("join_rate", join_rate), {1: together(left, left), 2: entered}),
        Event(positive_rate("output_rate", output_rate), {2: left}),
    ]
    for rates, change in ((redo, (-1, 1, 0)), (ok, (-1, 0, 1)), (np.full(CELLS, back), _BACK)):
        moved = alone(change)
        befores = ({0: moved}, {1: together(moved, same)}, {1: together(same, moved)}, {2: moved})
        events += [Event(rate, before) for rate, before in zip(rates.tolist(), befores, strict=True)]
    sizes = [cell.size, len(pairs), cell.size]
    rows, entries = product_rows(sizes, events)
    wide = 4 if size <= np.iinfo(np.int32).max else 8
    if not is_streaming():
        require_memory("the kanban system", 120 * size + (8 + wide) * entries, states=size, entries=entries)
    space = _space(configurations, pairs)
    return Generator(
        space, made(size, rows, lambda: entries, block=BLOCK), initial=distribution(space, [0] * (3 * CELLS))
    )


def _space(configurations: np.ndarray, pairs: np.ndarray) -> Listed:
    """Return the states: cell 0, the pair of cells 1 and 2, and cell 3, the last the fastest."""
    cells, both = len(configurations), len(pairs)
    table = np.empty((cells, both, cells, 3, CELLS), dtype=np.int64)
    table[..., 0] = configurations[:, None, None]
    table[..., 1] = configurations[pairs[:, 0]][:, None]
    table[..., 2] = configurations[pairs[:, 1]][:, None]
    table[..., 3] = configurations
    names = ("processing", "rework", "finished")
    return Listed(table.reshape(-1, 3 * CELLS), tuple(Variable(name, CELLS) for name in names))


def _four(name: str, given: Any) -> np.ndarray:
    rates = positive_rates(name, given)
    if len(rates) != CELLS:
        raise ModelError(f"{name} has {len(rates)} numbers; allowed are {CELLS}, one for each cell.")
    return rates


_RATES = ("input_rate", "output_rate", "fork_rate", "join_rate", "redo_rates", "ok_rates", "back_rate")


kanban.rates_that_may_change = _RATES
kanban.event_rates = _RATES  # what `ctmc.sensitivity` differentiates by
