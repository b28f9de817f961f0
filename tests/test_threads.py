"""One switch for all thread pools, and the same bits whatever it says."""

from __future__ import annotations

import numba
import numpy as np
import pytest
import threadpoolctl

import ctmc
from ctmc.errors import ModelError
from ctmc.model import products
from ctmc.model.generator import Generator
from ctmc.problem import Stationary, Transient
from ctmc.threads import limited_threads, usable_threads

MOST = int(numba.config.NUMBA_NUM_THREADS)


def lattice_chain(side=60):
    """A walk on a square whose rates differ everywhere: 14,000 entries, beyond what stays on one thread when copied."""
    rng = np.random.default_rng(907)
    n = side * side
    number = np.arange(n).reshape(side, side)
    sources, targets = [], []
    for begin, end in ((number[:-1], number[1:]), (number[:, :-1], number[:, 1:])):
        sources += [begin.ravel(), end.ravel()]
        targets += [end.ravel(), begin.ravel()]
    sources, targets = np.concatenate(sources), np.concatenate(targets)
    space = ctmc.model.state_space.Lattice((side - 1, side - 1))
    return Generator.from_transitions(sources, targets, rng.random(len(sources)) + 0.1, space)


def blas_threads():
    return {pool["num_threads"] for pool in threadpoolctl.threadpool_info() if pool["user_api"] == "blas"}


def test_limit_is_set_inside_and_given_back():
    before, pools = numba.get_num_threads(), blas_threads()
    with limited_threads(1):
        assert numba.get_num_threads() == 1
        assert blas_threads() == {1}
    assert numba.get_num_threads() == before
    assert blas_threads() == pools
    with pytest.raises(ZeroDivisionError), limited_threads(1):
        raise ZeroDivisionError
    assert numba.get_num_threads() == before


def test_none_changes_nothing():
    before = numba.get_num_threads()
    with limited_threads(None):
        assert numba.get_num_threads() == before


@pytest.mark.parametrize("number", [0, -1, 1.5, "2", True, MOST + 1, np.nan])
def test_bad_numbers_of_threads(number):
    with pytest.raises(ModelError, match=rf"threads is .*; allowed is 1 to {MOST}"), limited_threads(number):
        pass


def test_usable_threads():
    assert 1 <= usable_threads() <= 4096


@pytest.mark.skipif(MOST < 2, reason="one processor")
def test_products_have_the_same_bits_for_any_number_of_threads(monkeypatch):
    chain = lattice_chain()
    vector = np.random.default_rng(911).random(chain.size)
    alone = chain.forward(vector)
    monkeypatch.setattr(products, "FEW_ENTRIES", 0)
    for threads in (1, 2):
        with limited_threads(threads):
            assert chain.forward(vector).tobytes() == alone.tobytes()


@pytest.mark.skipif(MOST < 2, reason="one processor")
def test_answers_have_the_same_bits_for_any_number_of_threads(monkeypatch):
    monkeypatch.setattr(products, "FEW_ENTRIES", 0)
    chain = lattice_chain(25)
    problems = [
        (Stationary(chain, tolerance=1e-6), "power_iteration"),
        (Stationary(chain), "gauss_seidel"),
        (Transient(chain, initial=(0, 0), times=[0.5, 4.0]), "uniformization"),
    ]
    for problem, solver in problems:
        found = []
        for threads in (1, 2):
            with limited_threads(threads):
                found.append(ctmc.solve(problem, solver, check=False))
        assert found[0].value.tobytes() == found[1].value.tobytes()
        assert found[0].status is found[1].status
