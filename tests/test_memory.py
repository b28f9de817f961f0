"""Sizes as people write them, and the check that comes before anything large is allocated."""

from __future__ import annotations

import threading

import psutil
import pytest

import ctmc
from ctmc.errors import ModelError
from ctmc.model.memory import format_size, limited_memory, memory_limit, parse_size, require_memory


@pytest.mark.parametrize(
    ("text", "size"),
    [
        (4096, 4096),
        ("4096", 4096),
        ("512 B", 512),
        ("1KiB", 1024),
        ("1k", 1024),
        ("1kB", 1000),
        ("400MiB", 400 * 2**20),
        ("400 mib", 400 * 2**20),
        ("1.5GB", 1_500_000_000),
        ("1.5 GiB", 3 * 2**29),
        ("2T", 2**41),
        ("2TB", 2 * 10**12),
        (" 3.M ", 3 * 2**20),
    ],
)
def test_sizes(text, size):
    assert parse_size(text) == size


@pytest.mark.parametrize(
    "text", ["", "0", "0.4", "-1", "-1GiB", "1e9", "GiB", "1PiB", "1 G B", "80%", "nan", "inf", "1,5GB", 0, -5, None]
)
def test_no_sizes(text):
    with pytest.raises(ModelError, match=r"memory limit is .*; allowed is a positive size"):
        parse_size(text)


@pytest.mark.parametrize(
    ("size", "text"),
    [(0, "0 B"), (1023, "1023 B"), (1024, "1 KiB"), (1536, "1.5 KiB"), (2**40, "1 TiB"), (2**51, "2048 TiB")],
)
def test_format(size, text):
    assert format_size(size) == text


def test_default_is_a_share_of_what_is_free():
    assert 0 < memory_limit() <= psutil.virtual_memory().total
    assert memory_limit() == pytest.approx(0.8 * psutil.virtual_memory().available, rel=0.3)


def test_limits_nest_and_end():
    with limited_memory("2KiB"):
        with limited_memory(4096):
            assert memory_limit() == 4096
            with limited_memory(None):
                assert memory_limit() == 4096
        assert memory_limit() == 2048
        with pytest.raises(RuntimeError), limited_memory(1):
            raise RuntimeError
        assert memory_limit() == 2048
    assert memory_limit() > 2**20


def test_a_limit_belongs_to_its_thread():
    seen = []
    with limited_memory(4096):
        thread = threading.Thread(target=lambda: seen.append(memory_limit()))
        thread.start()
        thread.join()
    assert seen[0] != 4096


def test_a_bad_limit_is_refused_before_the_block():
    with pytest.raises(ModelError), limited_memory("lots"):
        raise AssertionError


def test_require():
    with limited_memory("1MiB"):
        require_memory("a model", 2**20)
        with pytest.raises(ModelError) as caught:
            require_memory("a model", 2**20 + 1, states=1234567, entries=7654321)
    assert str(caught.value) == (
        "a model needs 1 MiB (1,234,567 states, 7,654,321 transitions), more than the memory limit of 1 MiB; "
        "make the model smaller or raise --memory-limit."
    )
    with limited_memory("1KiB"), pytest.raises(ModelError, match=r"a vector needs 9\.766 KiB, more than"):
        require_memory("a vector", 10_000)


@pytest.mark.parametrize(
    ("builder", "parameters"),
    [
        ("birth_death", {"births": [1.0] * 999, "deaths": [1.0] * 999}),
        ("tandem_network", {"service_rates": [1.0] * 3, "arrival_rate": 1.0, "capacity": 20}),
        ("reachable", {"transitions": lambda state: [((state[0] + 1,), 1.0)], "initial": 0}),
    ],
)
def test_builders_ask_first(builder, parameters):
    with limited_memory("40KiB"), pytest.raises(ModelError, match=r"states.*memory limit of 40 KiB"):
        ctmc.build(builder, **parameters)


def test_solvers_ask_first():
    model = ctmc.build("birth_death", births=[1.0] * 99, deaths=[1.0] * 99)
    with limited_memory("40KiB"), pytest.raises(ModelError, match="gth"):
        ctmc.solve(ctmc.Stationary(model), "gth")
