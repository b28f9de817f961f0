"""The benchmark models of PRISM and Storm: published counts, event lists in their own coordinates, and Storm."""

from __future__ import annotations

import importlib.util
import itertools
import json
import subprocess
import sys

import numpy as np
import pytest
from benchmark_events import MODELS, SIZE
from prism_programs import PRISM

import ctmc
from builders._factors import Event, product_rows
from builders.reachable import reachable

# ---- numbers of states and transitions --------------------------------------------------------------------------------

PUBLISHED = [  # model logs of the PRISM benchmark suite
    ("coxian_tandem", 255, 130_816, 455_939),
    ("coxian_tandem", 1023, 2_096_128, 7_328_771),
    pytest.param("coxian_tandem", 2047, 8_386_560, 29_337_603, marks=pytest.mark.slow),
    ("polling", 10, 15_360, 89_600),
    ("polling", 12, 73_728, 503_808),
    pytest.param("polling", 16, 1_572_864, 13_893_632, marks=pytest.mark.slow),
    pytest.param("polling", 18, 7_077_888, 69_599_232, marks=pytest.mark.slow),
    ("kanban", 2, 4_600, 28_120),
    ("kanban", 3, 58_400, 446_400),
    pytest.param("kanban", 4, 454_475, 3_979_850, marks=pytest.mark.slow),
    pytest.param("kanban", 5, 2_546_432, 24_460_016, marks=pytest.mark.slow),
    pytest.param("kanban", 6, 11_261_376, 115_708_992, marks=pytest.mark.slow),
    ("workstation_cluster", 4, 820, 3_616),
    ("workstation_cluster", 16, 10_132, 48_160),
    pytest.param("workstation_cluster", 128, 597_012, 2_908_192, marks=pytest.mark.slow),
    ("flexible_manufacturing", 2, 810, 3_699),
    ("flexible_manufacturing", 4, 35_910, 237_120),
    pytest.param("flexible_manufacturing", 6, 537_768, 4_205_670, marks=pytest.mark.slow),
    pytest.param("flexible_manufacturing", 8, 4_459_455, 38_533_968, marks=pytest.mark.slow),
]


@pytest.mark.parametrize(("builder", "size", "states", "transitions"), PUBLISHED)
def test_published_counts(builder, size, states, transitions):
    model = ctmc.build(builder, **{SIZE[builder]: size})
    assert (model.size, model.entries) == (states, transitions)
    assert int(model.transitions.indptr[-1]) == transitions  # the number that is known beforehand is that of the arrays


@pytest.mark.parametrize(
    ("builder", "size", "measure", "value", "tolerance"),
    [  # results of Storm on the models of the quantitative verification benchmark set, at its default precision
        ("kanban", 3, "throughput", 0.2330632923, 1e-4),
        ("workstation_cluster", 8, "premium_probability", 0.9998330771, 1e-7),
        ("flexible_manufacturing", 3, "productivity", 44.44383134, 1e-5),
    ],
)
def test_published_measures(builder, size, measure, value, tolerance):
    found = ctmc.solve(ctmc.Stationary(ctmc.build(builder, **{SIZE[builder]: size})), "bicgstab")
    assert found.measures()[measure] == pytest.approx(value, rel=tolerance)


# ---- the same models from lists of their events, state by state -------------------------------------------------------

CASES = [(builder, number) for builder, (rows, *_) in MODELS.items() for number in range(len(rows))]


@pytest.mark.parametrize(("builder", "number"), CASES)
def test_equals_its_list_of_events(builder, number):
    """Every state, every rate, the initial state, and what the rewards make of a state."""
    rows, states_of, list_of = MODELS[builder]
    model = ctmc.build(builder, **rows[number])
    events, begin = list_of(*rows[number].values())
    listed = reachable(events, initial=begin)
    assert (model.size, model.entries) == (listed.size, listed.entries)
    place = listed.space.index(states_of(model))
    assert len(set(place.tolist())) == model.size
    ours, theirs = model.to_scipy().tocsr(), listed.to_scipy().tocsr()[place][:, place]
    for matrix in (ours, theirs):
        matrix.sort_indices()
    np.testing.assert_array_equal(ours.indptr, theirs.indptr)
    np.testing.assert_array_equal(ours.indices, theirs.indices)
    np.testing.assert_allclose(ours.data, theirs.data, rtol=1e-14)
    assert place[model.initial.positions].tolist() == [0]


# ---- Storm --------------------------------------------------------------------------------------------------------------

STORM_SIZES = {
    "coxian_tandem": 3,
    "polling": 3,
    "kanban": 1,
    "workstation_cluster": 1,
    "flexible_manufacturing": 1,
}
# Storm's settings are global and its warnings go to standard output, so it has a process of its own; it counts exactly.
STORM = """
import json, sys
import stormpy
path, names, target = sys.argv[1], sys.argv[2].split(","), sys.argv[3]
program = stormpy.parse_prism_program(path, prism_compatibility=True)
asked = stormpy.parse_properties("; ".join('R{"' + name + '"}=? [LRA]' for name in names), program)
model = stormpy.build_model[stormpy.Rational](program, asked)
first = model.initial_states[0]
values = [float(stormpy.model_checking(model, one).get_value(first)) for one in asked]
with open(target, "w") as file:
    json.dump({"states": model.nr_states, "transitions": model.nr_transitions, "values": dict(zip(names, values))}, file)
"""


@pytest.mark.skipif(
    importlib.util.find_spec("stormpy") is None,
    reason="stormpy is not installed; pip install 'ctmc-lab[interop]' brings it",
)
@pytest.mark.parametrize("builder", list(PRISM))
def test_storm_builds_the_same_model(builder, tmp_path):
    """Storm makes the states from a PRISM program and solves with rational numbers."""
    (tmp_path / "model.sm").write_text("ctmc\n" + PRISM[builder])
    names = [line.split('"')[1] for line in PRISM[builder].splitlines() if line.startswith("rewards")]
    done = subprocess.run(
        [sys.executable, "-c", STORM, tmp_path / "model.sm", ",".join(names), tmp_path / "found.json"],
        capture_output=True, text=True, timeout=200,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    theirs = json.loads((tmp_path / "found.json").read_text())
    model = ctmc.build(builder, **{SIZE[builder]: STORM_SIZES[builder]})
    assert (model.size, model.entries) == (theirs["states"], theirs["transitions"])
    ours = ctmc.solve(ctmc.Stationary(model), "gth").measures()
    for name, value in theirs["values"].items():
        assert ours[name] == pytest.approx(value, rel=1e-12), name


# ---- rows of products ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("seed", range(11, 17))
def test_rows_of_any_range_of_a_product(seed):
    """Random maps of random factors against a dense matrix, cut into ranges anywhere; an event of rate 0 is none."""
    draw = np.random.default_rng(seed)
    sizes = draw.integers(2, 6, size=3).tolist()
    events = [Event(0.0, {0: np.arange(sizes[0])})]
    dense = np.zeros((np.prod(sizes), np.prod(sizes)))
    for number in range(6):
        factors = draw.permutation(3)[: draw.integers(1, 3)].tolist()
        before = {k: np.where(draw.random(sizes[k]) < 0.3, -1, draw.integers(0, sizes[k], sizes[k])) for k in factors}
        pairs = []
        for target, place in enumerate(np.ndindex(*sizes)):
            came = [int(before[k][place[k]]) if k in before else place[k] for k in range(3)]
            if min(came) >= 0:
                pairs.append((int(np.ravel_multi_index(came, sizes)), target))
        if all(source != target and dense[source, target] == 0 for source, target in pairs):
            events.append(Event(1.0 + number, before))
            for source, target in pairs:
                dense[source, target] = 1.0 + number
    rows, entries = product_rows(sizes, events)
    assert entries == np.count_nonzero(dense)
    cuts = [0, *sorted(draw.integers(0, len(dense) + 1, size=3).tolist()), len(dense)]
    for begin, end in itertools.pairwise(cuts):
        indptr, sources, rates = rows(begin, end)
        found = np.zeros((len(dense), end - begin))
        for column in range(end - begin):
            entry = slice(indptr[column], indptr[column + 1])
            assert (np.diff(sources[entry]) > 0).all()
            found[sources[entry], column] = rates[entry]
        np.testing.assert_array_equal(found, dense[:, begin:end])
