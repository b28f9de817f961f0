"""Orderings for sparse factorisation, and the number of entries that the factors will have.

Without pivoting off the diagonal, the factors of a matrix A have their entries inside those of the Cholesky factor of the
pattern of A + A^T, ordered alike.  Their number is known before anything is factorised: it takes one pass over the entries of
A, by the elimination tree.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from scipy.sparse import csc_array, csr_array, eye_array
from scipy.sparse.linalg import spilu

from ctmc.model.products import compiled
from ctmc.model.state_space import StateSpace

SUPERLU_ORDERINGS = ("COLAMD", "MMD_AT_PLUS_A", "MMD_ATA")
ORDERINGS = ("auto", "planes", "level_sets", *SUPERLU_ORDERINGS, "NATURAL")
_FEW = 16
"""Parts of up to so many states are not cut any further."""


def symmetric_pattern(matrix: Any) -> csr_array:
    """Return the pattern of A + A^T, as ones, with a full diagonal; rows sorted."""
    ones = csr_array((np.ones(matrix.nnz), matrix.indices, matrix.indptr), shape=matrix.shape)
    pattern = csr_array(ones + ones.T + eye_array(matrix.shape[0]))
    pattern.data[:] = 1.0
    pattern.sort_indices()
    return pattern


def ordering(name: str, pattern: csr_array, states: np.ndarray | None = None) -> np.ndarray:
    """Return the rows of a pattern in the order in which they are to be eliminated.

    Parameters
    ----------
    name : str
        'planes': nested dissection of a lattice, cut across its longest side again and again (A. George, *Nested dissection
        of a regular finite element mesh*, SIAM J. Numer. Anal. 10 (1973), doi:10.1137/0710032).  'level_sets': nested
        dissection of any graph, cut at a level of a breadth-first search (A. George and J. W. H. Liu, *An automatic nested
        dissection algorithm for irregular finite element problems*, SIAM J. Numer. Anal. 15 (1978), doi:10.1137/0715069).
        'COLAMD', 'MMD_AT_PLUS_A', 'MMD_ATA': SuperLU's.  'NATURAL': as they stand.
    pattern : csr_array, shape (n, n)
        Of `symmetric_pattern`.
    states : ndarray of int, shape (n, coordinates)
        Where the rows lie in a lattice; 'planes' needs it.

    Returns
    -------
    ndarray of int64, shape (n,)

    Examples
    --------
    >>> path = symmetric_pattern(csr_array(np.diag(np.ones(34), 1)))
    >>> order = ordering("level_sets", path)
    >>> int(order[-1]), factor_entries(path, order)
    (17, 92)
    """
    n = pattern.shape[0]
    if name == "NATURAL":
        return np.arange(n)
    if name == "planes":
        assert states is not None
        return planes(states)
    if name == "level_sets":
        return np.asarray(level_sets(_unsigned(pattern.indptr), _unsigned(pattern.indices)))
    # SuperLU tells its ordering only together with factors; those that drop everything cost next to nothing
    dominant = csc_array(pattern * -1.0 + eye_array(n) * (2.0 * n + 2.0))
    factors = spilu(
        dominant, drop_tol=1.0, fill_factor=1.0, permc_spec=name, diag_pivot_thresh=0.0,
        options={"SymmetricMode": name == "MMD_AT_PLUS_A"},
    )  # fmt: skip
    return np.asarray(np.argsort(factors.perm_c), dtype=np.int64)


def least_fill(names: tuple[str, ...], pattern: csr_array, states: np.ndarray | None) -> tuple[str, np.ndarray, int]:
    """Return the ordering with the smallest forecast: its name, the order and the entries of one factor."""
    best: tuple[str, np.ndarray, int] | None = None
    for name in names:
        order = ordering(name, pattern, states)
        entries = factor_entries(pattern, order)
        if best is None or entries < best[2]:
            best = name, order, entries
    assert best is not None
    return best


def lattice_states(space: StateSpace, rows: np.ndarray) -> np.ndarray | None:
    """Return the coordinates of some states, or None where there are fewer than two coordinates to cut."""
    states = np.asarray(space.states(rows))
    return states if states.shape[1] > 1 else None


def planes(states: np.ndarray) -> np.ndarray:
    """Return the rows by nested dissection: the states on the middle plane of the longest side come after all others."""
    order = np.arange(len(states))
    work = [(0, len(states))]
    while work:
        begin, end = work.pop()
        if end - begin <= _FEW:
            continue
        part = order[begin:end]
        where = states[part]
        low, high = where.min(axis=0), where.max(axis=0)
        axis = int(np.argmax(high - low))
        if high[axis] - low[axis] < 2:
            continue
        along = where[:, axis]
        # the plane with half of the states below: with a cap on the total the middle of the side is not in the middle
        middle = int(np.clip(np.sort(along)[len(along) // 2], low[axis] + 1, high[axis] - 1))
        below, above = np.flatnonzero(along < middle), np.flatnonzero(along > middle)
        order[begin:end] = part[np.concatenate([below, above, np.flatnonzero(along == middle)])]
        work += [(begin, begin + len(below)), (begin + len(below), begin + len(below) + len(above))]
    return order


@compiled
def level_sets(indptr: Any, sources: Any) -> Any:
    """Return the rows by nested dissection of a graph with symmetric, unsigned rows.

    Each part is searched breadth-first from a state at its edge, and cut at the level with half of the part before it.
    """
    n = indptr.size - 1
    order, queue = np.arange(n), np.empty(n, dtype=np.int64)
    part, level = np.zeros(n, dtype=np.int64), np.full(n, -1, dtype=np.int64)
    work = [(0, n)]
    parts = 1
    while len(work) > 0:
        begin, end = work.pop()
        if end - begin <= _FEW:
            continue
        root = order[begin]
        own = part[root]
        found = 0
        # twice from the last state that the search before found: that is enough to come to the edge
        for _ in range(3):
            for k in range(found):
                root = queue[k]
                level[root] = -1
            queue[0], level[root], found, done = root, 0, 1, 0
            while done < found:
                i = np.uint64(queue[done])
                done += 1
                for k in range(indptr[i], indptr[i + np.uint64(1)]):
                    j = sources[k]
                    if part[j] == own and level[j] < 0:
                        level[j] = level[i] + 1
                        queue[found] = j
                        found += 1
        # queue: those before the cut, those on it, those behind it; where there are several components, one and the others
        before, on_cut = found, 0
        if found == end - begin:
            last = level[queue[found - 1]]
            cut = min(max(level[queue[found // 2]], 1), last - 1)
            before = 0
            for k in range(found):
                before += level[queue[k]] < cut
                on_cut += level[queue[k]] == cut
            if last < 2:
                before = -1
        else:
            rest = found
            for k in range(begin, end):
                if level[order[k]] < 0:
                    queue[rest] = order[k]
                    rest += 1
        for k in range(found):
            level[queue[k]] = -1
        if before < 0:
            continue
        middle = end - on_cut
        for k in range(end - begin):
            j = queue[k]
            if k < before:
                order[begin + k], part[j] = j, parts
            elif k < before + on_cut:
                order[middle + k - before], part[j] = j, -1
            else:
                order[begin + k - on_cut], part[j] = j, parts + 1
        parts += 2
        work.append((begin, begin + before))
        work.append((begin + before, middle))
    return order


def factor_entries(pattern: csr_array, order: np.ndarray) -> int:
    """Return the number of entries of the Cholesky factor of a pattern, ordered so, diagonal included.

    Examples
    --------
    >>> star = np.eye(9)
    >>> star[0] = star[:, 0] = 1
    >>> pattern = symmetric_pattern(csr_array(star))
    >>> factor_entries(pattern, np.arange(9)), factor_entries(pattern, np.arange(9)[::-1])
    (45, 17)
    """
    return int(column_counts(pattern, order).sum())


def column_counts(pattern: csr_array, order: np.ndarray) -> np.ndarray:
    """Return the entries in each column of the Cholesky factor of a pattern, ordered so, diagonal included.

    By the leaves of the row subtrees of the elimination tree: J. R. Gilbert, E. G. Ng and B. W. Peyton, *An efficient
    algorithm to compute row and column counts for sparse Cholesky factorization*, SIAM J. Matrix Anal. Appl. 15 (1994),
    doi:10.1137/S089547989223692.  Time about proportional to the entries of the pattern.

    Parameters
    ----------
    pattern : csr_array, shape (n, n)
        Of `symmetric_pattern`.
    order : ndarray of int, shape (n,)

    Returns
    -------
    ndarray of int64, shape (n,)
        By place in the order.
    """
    place = np.empty(len(order), dtype=np.int64)
    place[order] = np.arange(len(order))
    indptr, indices = _unsigned(pattern.indptr), _unsigned(pattern.indices)
    rows = np.ascontiguousarray(order, dtype=np.int64).view(np.uint64)
    parent = elimination_tree(indptr, indices, rows, place)
    return np.asarray(_column_counts(indptr, indices, rows, place, parent, _postorder(parent)))


@compiled
def elimination_tree(indptr: Any, sources: Any, rows: Any, place: Any) -> Any:
    """Return the parent of each place in the elimination tree, -1 at a root; by Liu's path compression."""
    n = rows.size
    parent, ancestor = np.full(n, -1, dtype=np.int64), np.full(n, -1, dtype=np.int64)
    for column in range(n):
        row = rows[column]
        for k in range(indptr[row], indptr[row + np.uint64(1)]):
            i = place[sources[k]]
            while i != -1 and i < column:
                above = ancestor[i]
                ancestor[i] = column
                if above == -1:
                    parent[i] = column
                i = above
    return parent


@compiled
def _postorder(parent: Any) -> Any:
    n = parent.size
    child, sibling = np.full(n, -1, dtype=np.int64), np.full(n, -1, dtype=np.int64)
    for j in range(n - 1, -1, -1):
        if parent[j] >= 0:
            sibling[j] = child[parent[j]]
            child[parent[j]] = j
    post, stack = np.empty(n, dtype=np.int64), np.empty(n, dtype=np.int64)
    done = 0
    for root in range(n):
        if parent[root] >= 0:
            continue
        stack[0], top = root, 0
        while top >= 0:
            j = stack[top]
            if child[j] == -1:
                post[done] = j
                done += 1
                top -= 1
            else:
                top += 1
                stack[top] = child[j]
                child[j] = sibling[child[j]]
    return post


@compiled
def _column_counts(indptr: Any, sources: Any, rows: Any, place: Any, parent: Any, post: Any) -> Any:
    n = parent.size
    first, ancestor = np.full(n, -1, dtype=np.int64), np.arange(n)
    last_leaf, neighbour = np.full(n, -1, dtype=np.int64), np.full(n, -1, dtype=np.int64)
    counts = np.zeros(n, dtype=np.int64)
    for k in range(n):
        j = post[k]
        counts[j] = 1 if first[j] == -1 else 0
        while j != -1 and first[j] == -1:
            first[j] = k
            j = parent[j]
    for k in range(n):
        j = post[k]
        if parent[j] != -1:
            counts[parent[j]] -= 1
        row = rows[j]
        for entry in range(indptr[row], indptr[row + np.uint64(1)]):
            i = place[sources[entry]]
            if i <= j or first[j] <= neighbour[i]:
                continue  # j is no leaf of the subtree of row i
            neighbour[i] = first[j]
            before = last_leaf[i]
            last_leaf[i] = j
            counts[j] += 1
            if before == -1:
                continue
            top = before  # the path of the leaf before is counted up to where the two meet
            while top != ancestor[top]:
                top = ancestor[top]
            while before != top:
                above = ancestor[before]
                ancestor[before] = top
                before = above
            counts[top] -= 1
        if parent[j] != -1:
            ancestor[j] = parent[j]
    for j in range(n):
        if parent[j] != -1:
            counts[parent[j]] += counts[j]
    return counts


def _unsigned(indices: np.ndarray) -> np.ndarray:
    return np.asarray(indices).astype(np.uint64)
