"""Exact numbers about small and sparse chains, in decimals of 60 digits and more, which no exponent is too small for.

Nothing here comes from the project: rates are the binary numbers that a model stores, and their sums are those of the decimals.
"""

from decimal import Context, Decimal, localcontext

import numpy as np

DIGITS = 60
_WIDE = {"Emax": 10**15, "Emin": -(10**15)}


def precise(digits=DIGITS):
    """A context with so many digits, in which nothing underflows."""
    return localcontext(Context(prec=digits, **_WIDE))


def rows_of(begin, end, rates):
    """The rates by source and target, as decimals."""
    rows = {}
    for i, j, rate in zip(
        np.asarray(begin).tolist(), np.asarray(end).tolist(), np.asarray(rates).tolist(), strict=True
    ):
        rows.setdefault(i, {})[j] = rows.setdefault(i, {}).get(j, 0) + Decimal(rate)
        rows.setdefault(j, {})
    return rows


def _fold(rows, columns, k, into):
    """Take state k out: what comes in goes to where k leads; return its targets with their shares."""
    out = rows.pop(k)
    total = sum(out.values())
    shares = {j: rate / total for j, rate in out.items()}
    for j in out:
        columns[j].discard(k)
    for i in columns.pop(k):
        rate = rows[i].pop(k)
        for j, share in shares.items():
            if j != i:
                rows[i][j] = rows[i].get(j, 0) + rate * share
                columns[j].add(i)
        into.setdefault(k, {})[i] = rate
    return total, shares


def _columns(rows):
    columns = {i: set() for i in rows}
    for i, row in rows.items():
        for j in row:
            columns[j].add(i)
    return columns


def stationary(begin, end, rates, size):
    """The distribution of an irreducible chain, by elimination without a subtraction, least neighbours first."""
    with precise():
        rows = rows_of(begin, end, rates) or {0: {}}
        columns, into, order, totals = _columns(rows), {}, [], {}
        while len(rows) > 1:
            k = min(rows, key=lambda i: len(rows[i]) * len(columns[i]))
            totals[k], _ = _fold(rows, columns, k, into)
            order.append(k)
        weights = {next(iter(rows)): Decimal(1)}
        for k in reversed(order):
            weights[k] = sum(weights[i] * rate for i, rate in into[k].items()) / totals[k]
        whole = sum(weights.values())
        return [weights[i] / whole for i in range(size)]


def ends(begin, end, rates, initial, transient):
    """Where mass from the initial distribution enters the states that are not transient: a decimal of each state."""
    with precise():
        rows = rows_of(begin, end, rates)
        mass = {i: Decimal(0) for i in rows} | {int(i): Decimal(float(p)) for i, p in enumerate(initial)}
        inside = {i: dict(rows.get(i, {})) for i in mass}
        columns, into = _columns(inside), {}
        for k in transient:
            _, shares = _fold(inside, columns, int(k), into)
            for j, share in shares.items():
                mass[j] += mass[int(k)] * share
            mass[int(k)] = Decimal(0)
        return [mass[i] for i in range(len(initial))]


# ---- dense matrices of decimals --------------------------------------------------------------------------------------------


def decimals(array):
    """An array of decimals, exactly the binary numbers that are given."""
    given = np.asarray(array, dtype=float)
    return np.array([Decimal(x) for x in given.ravel().tolist()], dtype=object).reshape(given.shape)


def generator(rates):
    """Q as decimals, with rows that sum to zero exactly; to be used inside `precise`."""
    q = decimals(rates)
    for i in range(len(q)):
        q[i, i] = Decimal(0)
        q[i, i] = -q[i].sum()
    return q


def solved(matrix, right):
    """x with matrix x = right, by elimination with pivots."""
    rows = np.column_stack([matrix, right])
    n = len(rows)
    for k in range(n):
        best = k + max(range(n - k), key=lambda i: abs(rows[k + i, k]))
        rows[[k, best]] = rows[[best, k]]
        rows[k] = rows[k] / rows[k, k]
        for i in range(n):
            if i != k and rows[i, k]:
                rows[i] = rows[i] - rows[i, k] * rows[k]
    return rows[:, n:]


def exponential(matrix, time):
    """exp(matrix t) and its integral from 0 to t, by halving the time, a power series, and doubling."""
    n, span = len(matrix), Decimal(float(time))
    largest = max(sum(abs(x) for x in row) for row in matrix) * span
    halvings = max(0, int(largest).bit_length() + 4)
    step = span / 2**halvings
    term = whole = integral = np.array([[Decimal(int(i == j)) for j in range(n)] for i in range(n)], dtype=object)
    for k in range(1, 40):
        term = term @ matrix * (step / k)
        whole, integral = whole + term, integral + term / (k + 1)
    integral = integral * step
    for _ in range(halvings):
        integral = integral + whole @ integral
        whole = whole @ whole
    return whole, integral
