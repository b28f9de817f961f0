"""Products with the lattice form of a generator: loops over runs of neighbouring states, without a stored column.

Along each coordinate all neighbours stand at one distance, so a run of states, contiguous in memory, takes its inflow from
whole runs.  The states are cut into runs by their outer coordinates; the inner ones, of a few hundred states together, stay
inside a run.  For an outer coordinate a departure rate is one number a run; for an inner one it stands in a table of the
length of a run, with zeros where there is no neighbour.  Loops over slices of one run are what the compiler turns into vector
instructions.

Two layouts share the loops.  In the *flat* one states are in their own order.  In the *halved* one the states of each parity
of the total are stored by themselves, state s at s / 2 rounded down (the side of the last coordinate is made even by one
empty value where it is odd): since every transition changes the parity, a product maps one half to the other.  The distance
along a coordinate is then half of what it was; along the last one it is 0 or 1, as the parity of the others has it.

Bytes moved per state: one or two for each weight, 8 for each of input, output and exit rate.
"""

from __future__ import annotations

from typing import Any

import numba
import numpy as np

from ctmc.model.lattice_runs import BackwardRuns, Runs

compiled = numba.njit(cache=True, nogil=True, fastmath={"contract"}, error_model="numpy")
compiled_parallel = numba.njit(cache=True, nogil=True, parallel=True)
summing = numba.njit(cache=True, nogil=True, fastmath={"contract", "reassoc", "nsz"}, error_model="numpy")
"""For sums in vector lanes, whose order depends on the length of the run only.  A test for division by zero, which Numba's own
error model makes, would keep a loop from becoming vector instructions."""

# ---- sums over one run -------------------------------------------------------------------------------------------------


@compiled
def _last(o: Any, w: Any, upper: Any, d: Any, xb: Any, x: Any, xa: Any, flat: bool, unit: float) -> None:
    for r in range(o.size):
        before, here, after = xb[r], x[r], xa[r]
        below = here if upper[r] and not flat else before
        above = after if upper[r] else here
        o[r] = (unit * w[r]) * below + d[r] * above


@compiled
def _last_and_inner(
    o: Any, w: Any, upper: Any, d: Any, xb: Any, x: Any, xa: Any, flat: bool,
    w1: Any, below1: Any, d1: Any, above1: Any, unit: float,
) -> None:  # fmt: skip
    for r in range(o.size):
        before, here, after = xb[r], x[r], xa[r]
        below = here if upper[r] and not flat else before
        above = after if upper[r] else here
        o[r] = unit * (w[r] * below + w1[r] * below1[r]) + (d[r] * above + d1[r] * above1[r])


@compiled
def _inner(o: Any, w: Any, below: Any, d: Any, above: Any, unit: float) -> None:
    for r in range(o.size):
        o[r] += (unit * w[r]) * below[r] + d[r] * above[r]


@compiled
def _one(o: Any, w: Any, below: Any, d: float, above: Any, unit: float) -> None:
    for r in range(o.size):
        o[r] += (unit * w[r]) * below[r] + d * above[r]


@compiled
def _two(
    o: Any, w0: Any, below0: Any, d0: float, above0: Any, w1: Any, below1: Any, d1: float, above1: Any, unit: float
) -> None:
    for r in range(o.size):
        o[r] += unit * (w0[r] * below0[r] + w1[r] * below1[r]) + (d0 * above0[r] + d1 * above1[r])


@compiled
def _three(
    o: Any, w0: Any, below0: Any, d0: float, above0: Any, w1: Any, below1: Any, d1: float, above1: Any,
    w2: Any, below2: Any, d2: float, above2: Any, unit: float,
) -> None:  # fmt: skip
    for r in range(o.size):
        o[r] += unit * (w0[r] * below0[r] + w1[r] * below1[r] + w2[r] * below2[r]) + (
            d0 * above0[r] + d1 * above1[r] + d2 * above2[r]
        )


@compiled
def _inner_sums(cut: Runs, parity: Any, flat: bool, w: Any, a: Any, x: Any, at: Any, o: Any, unit: float) -> None:
    """Set o to the flow along the inner coordinates into a run that begins at a; x is read from `at` on."""
    length, outer, inner = cut.length[0], cut.outer_sides.size, cut.inner_strides.size
    b, to = a + length, at + length
    if inner == 0:
        _last(
            o, w[outer, a:b], cut.upper[parity], cut.last_departures[parity], x[at - 1 : to - 1], x[at:to],
            x[at + 1 : to + 1], flat, unit,
        )  # fmt: skip
        return
    h = cut.inner_strides[inner - 1]
    _last_and_inner(
        o, w[outer + inner, a:b], cut.upper[parity], cut.last_departures[parity], x[at - 1 : to - 1], x[at:to],
        x[at + 1 : to + 1], flat, w[outer + inner - 1, a:b], x[at - h : to - h], cut.inner_departures[parity, inner - 1],
        x[at + h : to + h], unit,
    )  # fmt: skip
    for i in range(inner - 1):
        h = cut.inner_strides[i]
        _inner(o, w[outer + i, a:b], x[at - h : to - h], cut.inner_departures[parity, i], x[at + h : to + h], unit)


@compiled
def _neighbours(cut: Runs, i: Any, digit: Any) -> Any:
    """Return the distances to the runs below and above along an outer coordinate, 0 for none, and the departure rate from above.

    Where there is none below the weights are 0, and any finite numbers do.
    """
    below = cut.outer_strides[i] if digit > 0 else 0
    above = cut.outer_strides[i] if digit + 1 < cut.outer_sides[i] else 0
    return below, above, cut.outer_departures[i, digit]


@compiled
def _gather(cut: Runs, run: Any, color: Any, flat: bool, w: Any, x: Any, out: Any, unit: float) -> Any:
    """Set a run of out to the flow into each of its states; `color` is the parity of the states, 0 in the flat layout.

    Returns where the run begins, the parity of its inner coordinates, and the rate of departures of the outer ones.
    """
    length, outer, inner = cut.length[0], cut.outer_sides.size, cut.inner_strides.size
    rest, parity, leaving = run, color, 0.0
    for i in range(outer - 1, -1, -1):
        digit = rest % cut.outer_sides[i]
        rest //= cut.outer_sides[i]
        parity += digit
        leaving += cut.outer_leaving[i, digit]
    parity &= 1
    a = run * length
    b = a + length
    o = out[a:b]
    if a > 0 and b < x.size:
        _inner_sums(cut, parity, flat, w, a, x, a, o, unit)
    else:  # neighbours of the first and the last run may lie outside the vector, where all is zero
        room = max(cut.inner_strides[0], 1) if inner > 0 else 1
        low, high = max(a - room, 0), min(b + room, x.size)
        wide = np.zeros(length + 2 * room)
        wide[low - (a - room) : high - (a - room)] = x[low:high]
        _inner_sums(cut, parity, flat, w, a, wide, room, o, unit)
    rest, i = run, outer
    while i > 0:
        i -= 1
        side = cut.outer_sides[i]
        below, above, d = _neighbours(cut, i, rest % side)
        rest //= side
        if i == 0:
            _one(o, w[i, a:b], x[a - below : b - below], d, x[a + above : b + above], unit)
            break
        i -= 1
        side = cut.outer_sides[i]
        below1, above1, d1 = _neighbours(cut, i, rest % side)
        rest //= side
        if i == 0:
            _two(
                o, w[i + 1, a:b], x[a - below : b - below], d, x[a + above : b + above],
                w[i, a:b], x[a - below1 : b - below1], d1, x[a + above1 : b + above1], unit,
            )  # fmt: skip
            break
        i -= 1
        side = cut.outer_sides[i]
        below2, above2, d2 = _neighbours(cut, i, rest % side)
        rest //= side
        _three(
            o, w[i + 2, a:b], x[a - below : b - below], d, x[a + above : b + above],
            w[i + 1, a:b], x[a - below1 : b - below1], d1, x[a + above1 : b + above1],
            w[i, a:b], x[a - below2 : b - below2], d2, x[a + above2 : b + above2], unit,
        )  # fmt: skip
    return a, parity, leaving


@compiled
def _combine(o: Any, exit_rates: Any, x: Any, previous: Any, factor: float, keep: float, weight: float) -> None:
    for r in range(o.size):
        o[r] = factor * (o[r] - exit_rates[r] * x[r]) + (keep * x[r] + weight * previous[r])


@compiled
def _add(mix: Any, x: Any, o: Any, first: Any, second: Any) -> None:
    if mix.size == 0:
        return
    a, b = mix[0], mix[1]
    if mix.size == 2:
        for r in range(o.size):
            first[r] += a * x[r] + b * o[r]
        return
    c, d = mix[2], mix[3]
    for r in range(o.size):
        before, after = x[r], o[r]
        first[r] += a * before + b * after
        second[r] += c * before + d * after


@compiled
def _over_exits(o: Any, accepted: Any, unit: float, inner: Any, outer: float) -> None:
    for r in range(o.size):
        o[r] /= unit * accepted[r] + (inner[r] + outer)


@compiled
def _flat_run(
    cut: Runs, run: Any, w: Any, unit: float, exit_rates: Any, x: Any, previous: Any, factor: float, keep: float,
    weight: float, mix: Any, first: Any, second: Any, out: Any,
) -> None:  # fmt: skip
    a, _, _ = _gather(cut, run, 0, True, w, x, out, unit)
    b = a + cut.length[0]
    _combine(out[a:b], exit_rates[a:b], x[a:b], previous[a:b], factor, keep, weight)
    _add(mix, x[a:b], out[a:b], first[a:b], second[a:b])


@compiled
def _halved_run(cut: Runs, run: Any, color: Any, w: Any, unit: float, accepted: Any, x: Any, out: Any) -> None:
    a, parity, leaving = _gather(cut, run, color, False, w, x, out, unit)
    b = a + cut.length[0]
    _over_exits(out[a:b], accepted[a:b], unit, cut.leaving[parity], leaving)


@summing
def _subtract(o: Any, accepted: Any, unit: float, inner: Any, outer: float, x: Any, shadow: Any, dots: Any) -> None:
    """Set o to x - o / exit rates, and write four inner products of this run; summed in vector lanes."""
    with_shadow, with_x, square, both = 0.0, 0.0, 0.0, 0.0
    for r in range(o.size):
        value = x[r] - o[r] / (unit * accepted[r] + (inner[r] + outer))
        o[r] = value
        with_shadow += shadow[r] * value
        with_x += x[r] * value
        square += value * value
        both += shadow[r] * x[r]
    dots[0], dots[1], dots[2], dots[3] = with_shadow, with_x, square, both


@compiled
def _difference_run(
    cut: Runs, run: Any, w: Any, unit: float, accepted: Any, other: Any, x: Any, shadow: Any, out: Any, dots: Any
) -> None:
    a, parity, leaving = _gather(cut, run, 0, False, w, other, out, unit)
    b = a + cut.length[0]
    _subtract(out[a:b], accepted[a:b], unit, cut.leaving[parity], leaving, x[a:b], shadow[a:b], dots[run])


@compiled_parallel
def halved_difference(
    cut: Runs, w: Any, unit: float, accepted: Any, other: Any, x: Any, shadow: Any, out: Any, dots: Any
) -> None:
    """Set out_j = x_j - sum_i other_i rate(i, j) / exit_j for the states j of color 0.

    Row k of `dots` (runs, 4) gets the inner products of run k: shadow with out, x with out, out with out, shadow with x.  Fusing
    them here saves reading the vectors again.
    """
    for run in numba.prange(out.size // cut.length[0]):
        _difference_run(cut, np.int64(run), w, unit, accepted, other, x, shadow, out, dots)


@compiled_parallel
def flat_product(
    cut: Runs, w: Any, unit: float, exit_rates: Any, x: Any, previous: Any, factor: float, keep: float, weight: float,
    mix: Any, first: Any, second: Any, out: Any,
) -> None:  # fmt: skip
    """Set out = factor x Q + keep x + weight previous in the flat layout, and add to sums as `Generator.recurrence` says."""
    for run in numba.prange(x.size // cut.length[0]):
        _flat_run(cut, np.int64(run), w, unit, exit_rates, x, previous, factor, keep, weight, mix, first, second, out)


@compiled_parallel
def halved_step(cut: Runs, color: Any, w: Any, unit: float, accepted: Any, x: Any, out: Any) -> None:
    """Set out_j = sum_i x_i rate(i, j) / q_j for the states j of one color; x is over those of the other.

    `accepted` has the weight of all arrivals out of each state, from which the exit rate q_j follows: one or two bytes, not eight.
    """
    for run in numba.prange(x.size // cut.length[0]):
        _halved_run(cut, np.int64(run), color, w, unit, accepted, x, out)


@compiled
def _last_backward(o: Any, w: Any, ahead: Any, xa: Any, d: Any, xb: Any, unit: float) -> None:
    for r in range(o.size):
        o[r] = (unit * w[r]) * (ahead[r] * xa[r]) + d[r] * xb[r]


@compiled
def _inner_backward(o: Any, w: Any, ahead: Any, xa: Any, d: Any, xb: Any, unit: float) -> None:
    for r in range(o.size):
        o[r] += (unit * w[r]) * (ahead[r] * xa[r]) + d[r] * xb[r]


@compiled
def _backward_run(
    cut: BackwardRuns, run: Any, w: Any, unit: float, exit_rates: Any, v: Any, previous: Any, factor: float, keep: float,
    weight: float, mix: Any, first: Any, second: Any, out: Any,
) -> None:  # fmt: skip
    length, outer, inner = cut.length[0], cut.outer_sides.size, cut.strides.size - cut.outer_sides.size
    a = run * length
    b = a + length
    o = out[a:b]
    if a == 0 or b == v.size:  # slices would leave the vector
        o[:] = 0.0
        for i in range(inner):
            h, ahead, d = cut.strides[outer + i], cut.ahead[i], cut.departures[i]
            for r in range(length):
                if ahead[r] > 0.0:
                    o[r] += (unit * w[outer + i, a + r + h]) * v[a + r + h]
                if d[r] > 0.0:
                    o[r] += d[r] * v[a + r - h]
    else:
        for i in range(inner - 1, -1, -1):
            h = cut.strides[outer + i]
            if i == inner - 1:
                _last_backward(
                    o,
                    w[outer + i, a + h : b + h],
                    cut.ahead[i],
                    v[a + h : b + h],
                    cut.departures[i],
                    v[a - h : b - h],
                    unit,
                )
            else:
                _inner_backward(
                    o,
                    w[outer + i, a + h : b + h],
                    cut.ahead[i],
                    v[a + h : b + h],
                    cut.departures[i],
                    v[a - h : b - h],
                    unit,
                )
    rest = run
    for i in range(outer - 1, -1, -1):
        digit = rest % cut.outer_sides[i]
        rest //= cut.outer_sides[i]
        above = cut.strides[i] if digit + 1 < cut.outer_sides[i] else 0
        below = cut.strides[i] if digit > 0 else 0
        departure = cut.outer_departures[i, digit] if digit > 0 else 0.0
        _one(
            o, w[i, a + above : b + above], v[a + above : b + above], departure, v[a - below : b - below],
            unit if above > 0 else 0.0,
        )  # fmt: skip
    _combine(o, exit_rates[a:b], v[a:b], previous[a:b], factor, keep, weight)
    _add(mix, v[a:b], o, first[a:b], second[a:b])


@compiled_parallel
def flat_backward(
    cut: BackwardRuns, w: Any, unit: float, exit_rates: Any, v: Any, previous: Any, factor: float, keep: float,
    weight: float, mix: Any, first: Any, second: Any, out: Any,
) -> None:  # fmt: skip
    """Set out = factor Q v + keep v + weight previous in the flat layout, and add to sums."""
    for run in numba.prange(v.size // cut.length[0]):
        _backward_run(
            cut, np.int64(run), w, unit, exit_rates, v, previous, factor, keep, weight, mix, first, second, out
        )


@compiled_parallel
def halved_weights(cut: Runs, unit: float, accepted: Any, residual: Any, p: Any, sums: Any) -> None:
    """Write sum |residual| q and sum |p| q over the states of color 0, run by run."""
    for run in numba.prange(sums.shape[0]):
        _weigh_run(cut, np.int64(run), unit, accepted, residual, p, sums[run])


@compiled
def _weigh_run(cut: Runs, run: Any, unit: float, accepted: Any, residual: Any, p: Any, sums: Any) -> None:
    rest, parity, leaving = run, 0, 0.0
    for i in range(cut.outer_sides.size - 1, -1, -1):
        digit = rest % cut.outer_sides[i]
        rest //= cut.outer_sides[i]
        parity += digit
        leaving += cut.outer_leaving[i, digit]
    a = run * cut.length[0]
    b = a + cut.length[0]
    _weigh(accepted[a:b], unit, cut.leaving[parity & 1], leaving, residual[a:b], p[a:b], sums)


@summing
def _weigh(accepted: Any, unit: float, inner: Any, outer: float, residual: Any, p: Any, sums: Any) -> None:
    imbalance, flow = 0.0, 0.0
    for r in range(p.size):
        exit_rate = unit * accepted[r] + (inner[r] + outer)
        imbalance += abs(residual[r]) * exit_rate
        flow += abs(p[r]) * exit_rate
    sums[0], sums[1] = imbalance, flow
