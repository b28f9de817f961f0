"""Scale on paper: what ranks exchange is forecast exactly where rows are counted, closely where not; wrong questions get a sentence."""

from __future__ import annotations

import json

import numpy as np
import pytest

import ctmc
from ctmc.cli import main
from ctmc.costs import krylov_products
from ctmc.errors import ModelError
from ctmc.model.ghosts import Ghosts
from ctmc.model.shared import share
from ctmc.model.state_space import Lattice
from ctmc.model.streamed import made, streaming
from ctmc.model.transitions import CodedTransitions, FloatTransitions
from ctmc.model.volume import box_reads, volume
from ctmc.ranks import ALONE
from ctmc.scale import Cluster, scale
from tests.mpi import mpirun, needs_mpi
from tests.thread_ranks import on_ranks

QUEUES = {"service_rates": [2.0, 1.0, 1.5], "arrival_rate": 3.2, "choices": 2}
RECIPE = "supermarket(service_rates=[2, 1, 1.5], arrival_rate=3.2, choices=2, capacity=12)"
MODELS = {
    "box": ("supermarket", {**QUEUES, "capacity": [9, 12, 7]}),
    "random routing": ("supermarket", {**QUEUES, "choices": 1, "capacity": 9}),
    "capped": ("supermarket", {**QUEUES, "capacity": 14, "total_capacity": 19}),
    "lumped": ("supermarket", {**QUEUES, "service_rates": [1.0] * 5, "capacity": 6, "lump": True}),
    "fork_join": ("fork_join", {"service_rates": [2.0, 1.0], "arrival_rate": 0.4, "tasks": 2}),
    "tandem": ("tandem_network", {"service_rates": [3, 2, 1], "arrival_rate": 0.8, "total_capacity": 14}),
    "polling": ("polling", {"stations": 4}),
}


def needs_ranks(*modules):
    """Return what marks a test that starts ranks."""

    def marked(test):
        for mark in needs_mpi(*modules):
            test = mark(test)
        return test

    return marked


def built(name, streamed=True, **changes):
    builder, parameters = MODELS[name]
    with streaming(streamed):
        model = ctmc.build(builder, **{**parameters, **changes})
    return model.truncate(40) if name == "fork_join" else model


# ---- what is exchanged ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", MODELS)
@pytest.mark.parametrize("count", [2, 4, 8])
def test_what_ranks_exchange_is_forecast_exactly(name, count):
    model = built(name)
    found = volume(model, count)

    def work(ranks):
        part = share(model, ranks)
        x, traffic = np.ones(part.size), part.ghosts.traffic
        ghosts = part.ghosts
        rows = [part.begin, part.entries, ghosts.count, ghosts.sent, ghosts.partners]
        for product in (part.forward, part.backward):
            before = traffic.messages, traffic.bytes
            for _ in range(3):
                product(x)
            rows += [traffic.messages - before[0], traffic.bytes - before[1]]
        return rows

    rows = np.array(on_ranks(count, work)).T
    backwards = np.array([sum(len(owners) for owners, _ in [reads]) for reads in found.reads])
    wanted = [found.begins[:-1], found.entries, found.ghosts, found.sent, found.partners]
    wanted += [3 * found.messages, 3 * found.bytes, 3 * backwards, 3 * 8 * found.ghosts]
    np.testing.assert_array_equal(rows, wanted)
    assert found.exact


@pytest.mark.parametrize("name", ["box", "lumped", "tandem"])
def test_ghosts_are_the_states_of_others_in_the_columns_of_a_matrix(name):
    """Found in SciPy's matrix, at borders of its own."""
    model = built(name, streamed=False)
    found = volume(model, 5)
    rates = model.to_scipy().tolil()
    rates.setdiag(0)
    into = rates.tocsr().T.tocsr()
    for rank in range(5):
        begin, end = found.begins[rank : rank + 2]
        sources = np.unique(into[begin:end].indices)
        outside = sources[(sources < begin) | (sources >= end)]
        owners = np.bincount(np.searchsorted(found.begins, outside, side="right") - 1, minlength=5)
        assert owners.tolist() == [
            dict(zip(*map(np.ndarray.tolist, found.reads[rank]), strict=True)).get(k, 0) for k in range(5)
        ]


def test_the_closed_form_of_a_box_is_exact_where_every_step_has_a_rate_and_a_bound_elsewhere():
    for name, exact in (("random routing", True), ("box", False)):
        model = built(name)
        strides = model.space.strides.tolist()
        for count in (2, 3, 5):
            found = volume(model, count)
            bound = [int(box_reads(strides, found.begins, rank).sum()) for rank in range(count)]
            assert (found.ghosts <= bound).all()
            assert (found.ghosts.tolist() == bound) is exact


def test_thin_slabs_of_a_box_read_of_ranks_far_away():
    """Slabs narrower than the strides: each stride is an interval of its own, by brute force."""
    begins = np.linspace(0, 1000, 41).astype(np.int64)
    for rank in (0, 7, 40 - 1):
        wanted = {
            state + shift
            for state in range(begins[rank], begins[rank + 1])
            for shift in (-100, -10, -1, 1, 10, 100)
            if 0 <= state + shift < 1000 and not begins[rank] <= state + shift < begins[rank + 1]
        }
        owners = np.searchsorted(begins, sorted(wanted), side="right") - 1
        np.testing.assert_array_equal(box_reads([100, 10, 1], begins, rank), np.bincount(owners, minlength=40))


@pytest.mark.parametrize(
    ("name", "changes"),
    [
        ("box", {"capacity": 160}),
        ("tandem", {"total_capacity": 150}),
        ("lumped", {"service_rates": [1.0] * 5, "capacity": 18}),
    ],
)
def test_estimates_from_some_slabs_are_close(name, changes):
    model = built(name, **changes)
    exact, near = volume(model, 6), volume(model, 6, counted=0)
    assert not near.exact
    assert near.entries.sum() == pytest.approx(exact.entries.sum(), rel=0.02)
    np.testing.assert_allclose(near.begins, exact.begins, atol=0.02 * model.size)
    assert near.ghosts.sum() == pytest.approx(exact.ghosts.sum(), rel=0.1)
    assert near.ghosts.max() == pytest.approx(exact.ghosts.max(), rel=0.1)
    assert abs(near.partners.max() - exact.partners.max()) <= 1


def test_what_leaves_a_node_is_what_its_ranks_send_to_others():
    found = volume(built("polling"), 6)
    sent, messages = np.zeros((2, 3), dtype=int)
    for rank, (owners, counts) in enumerate(found.reads):
        for owner, count in zip(owners.tolist(), counts.tolist(), strict=True):
            if owner // 2 != rank // 2:
                sent[owner // 2] += 8 * count
                messages[owner // 2] += 1
    assert [array.tolist() for array in found.between_groups(2)] == [sent.tolist(), messages.tolist()]
    assert found.between_groups(6)[0].tolist() == [0]


@pytest.mark.parametrize("count", [0, -3, 2.5, True, "4"])
def test_a_wrong_number_of_ranks_is_refused(count):
    with pytest.raises(ModelError, match="the number of ranks is"):
        volume(built("polling"), count)


def test_ranks_fetch_only_the_elements_of_a_color():
    def work(ranks):
        begins = np.array([0, 5, 5, 12, 20])
        wanted = {0: [5, 6, 9, 19], 1: [], 2: [1, 4, 13], 3: [0, 2, 3, 11]}[ranks.rank]
        ghosts = Ghosts(ranks, begins, np.array(wanted, dtype=np.int64))
        own = np.arange(begins[ranks.rank], begins[ranks.rank + 1])
        places = np.concatenate([own, ghosts.wanted])
        room = np.concatenate([own.astype(float), np.full(ghosts.count, -1.0)])
        odd = ghosts.among(places % 2 == 1)
        odd.fetch(room)
        back = (places % 2 == 1).astype(float)
        odd.give_back(back)
        return places.tolist(), room.tolist(), odd.count, odd.sent, back[: len(own)].tolist()

    found = on_ranks(4, work)
    read = [place for places, room, *_ in found for place in places[len(room) :]]
    assert read == []
    readers = dict.fromkeys(range(20), 0)
    for rank, (places, room, *_) in enumerate(found):
        own = [5, 0, 7, 8][rank]
        for place in places[own:]:
            readers[place] += 1
        assert room[own:] == [place if place % 2 else -1 for place in places[own:]]
    assert sum(count for _, _, count, _, _ in found) == sum(sent for *_, sent, _ in found) == 7
    given = [value for *_, back in found for value in back]
    assert given == [(1 + readers[place]) if place % 2 else 0 for place in range(20)]


# ---- rows that grow ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("values", "kind"), [(7, np.uint8), (700, np.uint16), (90_000, None)])
def test_rates_that_come_slab_by_slab_are_kept_in_the_narrowest_form(values, kind):
    """The later slabs have rates that the first ones do not have, and sources on either side."""
    size = 100_000

    def rows(begin, end):
        states = np.arange(begin, end)
        sources = np.stack([(states - 1) % size, (states + 5000) % size], axis=1).ravel().astype(np.int32)
        rates = np.repeat(1.0 + states * values // size, 2) * np.tile([1.0, 2.0], len(states))
        return FloatTransitions(2 * np.arange(end - begin + 1), sources, rates)

    with streaming():
        ring = ctmc.Generator(Lattice((size - 1,)), made(size, rows, slab_states=4096))
    own, wanted = share(ring, ALONE).transitions, rows(0, size)
    assert isinstance(own, FloatTransitions if kind is None else CodedTransitions)
    if kind is not None:
        assert own.codes.dtype == kind
        assert (np.diff(own.values) > 0).all()
        np.testing.assert_array_equal(own.values[own.codes], wanted.rates)
    else:
        np.testing.assert_array_equal(own.rates, wanted.rates)
    np.testing.assert_array_equal(own.sources, wanted.sources)

    def part(ranks):
        found = share(ring, ranks)
        numbers = np.concatenate([np.arange(found.begin, found.begin + found.size), found.ghosts.wanted])
        return numbers[found.transitions.sources].tolist(), found.ghosts.wanted.tolist()

    parts = on_ranks(3, part)
    assert [source for sources, _ in parts for source in sources] == wanted.sources.tolist()
    assert all(wanted == sorted(set(wanted)) for _, wanted in parts)


# ---- the forecast -----------------------------------------------------------------------------------------------------


def test_memory_and_traffic_follow_from_the_parts():
    model = built("box", capacity=60)
    cluster = Cluster(nodes=3, memory=2 << 30, ranks=4)
    found = volume(model, 12)
    lean, full = scale(model, cluster)
    for row in (lean, full):
        assert (row.ranks, row.states, row.entries) == (12, model.size, model.entries)
        assert (row.ghosts, row.messages, row.bytes_sent) == (
            found.ghosts.max(),
            found.messages.max(),
            found.bytes.max(),
        )
        assert row.bytes_leaving == found.between_groups(4)[0].max()
        assert row.memory_of_node == 4 * row.memory_of_rank
        assert row.fits
    part = share(model, ALONE)  # coded rows, the same bytes an entry
    assert lean.model_bytes == pytest.approx(part.nbytes / 12 + 48 * lean.ghosts, rel=0.05)
    assert lean.solver_bytes < full.solver_bytes


def test_the_number_of_nodes_that_is_enough_is_about_the_least():
    model = built("box", capacity=60)
    settings = {"memory": 2 << 30, "ranks": 4}
    for row in scale(model, Cluster(nodes=2, **settings)):
        assert row.least_nodes == 1
    small = {"memory": 268 << 20, "ranks": 1}
    for row in scale(model, Cluster(nodes=2, **small)):
        assert not row.fits
        assert row.least_nodes > 2
        again = next(
            other for other in scale(model, Cluster(nodes=row.least_nodes, **small)) if other.solver == row.solver
        )
        assert again.memory_of_node <= 1.02 * small["memory"]
        fewer = next(
            other for other in scale(model, Cluster(nodes=row.least_nodes // 2, **small)) if other.solver == row.solver
        )
        assert not fewer.fits
    assert all(row.least_nodes is None for row in scale(model, Cluster(nodes=2, memory=1 << 20)))


def test_more_levels_and_no_preconditioner_take_more_products():
    assert krylov_products(20, "reduced") < krylov_products(200, "reduced") < krylov_products(200, "shell")


def test_a_recipe_and_its_file_have_the_same_forecast(tmp_path, capsys):
    path = str(tmp_path / "model.h5")
    ctmc.save(path, built("box", streamed=False, capacity=12))
    documents = []
    for given in (RECIPE, path):
        options = ["--nodes", "2,3", "--memory-per-node", "2GiB", "--ranks-per-node", "3", "--json"]
        assert main(["advise", given, *options]) == 0
        documents.append(json.loads(capsys.readouterr().out))
    rows = [
        [
            (row["nodes"], row["solver"], row["ghosts"], row["bytes_sent"], row["memory_of_rank"])
            for row in document["forecasts"]
        ]
        for document in documents
    ]
    assert rows[0] == rows[1]
    assert [row[0] for row in rows[0]] == [2, 2, 3, 3]
    assert documents[0]["assumed"]["ranks"] == 3


def test_a_table_has_a_row_for_each_number_of_nodes(capsys):
    assert main(["advise", RECIPE, "--nodes", "1,2", "--memory-per-node", "100MiB", "--ranks-per-node", "2"]) == 0
    text = capsys.readouterr().out
    assert text.count("petsc_krylov") == 2
    assert sum(line.startswith(("1 ", "2 ")) and " no " in line for line in text.splitlines()) == 4


@pytest.mark.parametrize(
    ("options", "said"),
    [
        (["--nodes", "2"], "--memory-per-node is missing"),
        (["--nodes", "two", "--memory-per-node", "1GiB"], "--nodes is 'two'"),
        (["--nodes", "0", "--memory-per-node", "1GiB"], "nodes is 0"),
        (["--nodes", "2", "--memory-per-node", "much"], "--memory-per-node is 'much'"),
        (["--nodes", "2", "--memory-per-node", "1GiB", "--ranks-per-node", "0"], "ranks is 0"),
        (["--nodes", "2", "--memory-per-node", "1GiB", "--network-bandwidth", "-1"], "--network-bandwidth is '-1'"),
        (["--nodes", "2", "--memory-per-node", "1GiB", "--latency", "-1"], "latency is -1.0"),
        (["--nodes", "2", "--memory-per-node", "1GiB", "--latency", "nan"], "latency is nan"),
        (["--ranks-per-node", "2"], "needs --nodes"),
    ],
)
def test_wrong_questions_get_a_sentence(options, said, capsys):
    assert main(["advise", RECIPE, *options]) == 2
    error = capsys.readouterr().err
    assert said in error
    assert "Traceback" not in error


def test_a_queue_without_end_has_no_forecast(capsys):
    given = "fork_join(service_rates=[2, 1], arrival_rate=0.4, tasks=2)"
    assert main(["advise", given, "--nodes", "2", "--memory-per-node", "1GiB"]) == 2
    assert "allowed is a chain with finitely many states" in capsys.readouterr().err


# ---- on ranks of MPI --------------------------------------------------------------------------------------------------

_ON_RANKS = """
import json, numpy as np, ctmc
from ctmc.model.shared import share
from ctmc.model.streamed import streaming
from ctmc.model.volume import volume
from ctmc.ranks import world
ranks, rows = world(), []
for builder, parameters in json.loads({models!r}):
    with streaming():
        model = ctmc.build(builder, **parameters)
    found, part = volume(model, ranks.count), share(model, ranks)
    traffic = part.ghosts.traffic
    before = traffic.messages, traffic.bytes
    for _ in range(5):
        part.forward(np.ones(part.size))
    mine = [part.begin, part.ghosts.count, part.ghosts.partners, traffic.messages - before[0], traffic.bytes - before[1]]
    parts = [found.begins, found.ghosts, found.partners, 5 * found.messages, 5 * found.bytes]
    rows.append([mine, [int(array[ranks.rank]) for array in parts]])
found = ranks.gathered(rows)
if ranks.rank == 0:
    print(json.dumps(found))
"""


@needs_ranks()
def test_the_forecast_is_that_of_ranks_of_mpi():
    models = [MODELS[name] for name in ("box", "lumped", "capped")]
    ended = mpirun(4, "-c", _ON_RANKS.format(models=json.dumps(models)))
    assert ended.code == 0, ended.err
    for rows in json.loads(ended.out):
        for mine, forecast in rows:
            assert mine == forecast


_FORMS = """
import json, numpy as np, ctmc
from ctmc.model.shared import share
from ctmc.ranks import world
ranks, rows = world(), []
box = ctmc.build("supermarket", service_rates=[2, 1, 1.5], arrival_rate=3.2, choices=2, capacity=[9, 12, 7])
for model in (box, ctmc.build("polling", stations=3)):
    wanted, part = ctmc.solve(ctmc.Stationary(model), "gth").value, share(model, ranks)
    for options in (
        "form='shell', preconditioner='none', coarse='none', method='bcgs'", "form='shell', preconditioner='none'",
        "form='shell', preconditioner='none', coarse='levels'", "", "form='full', preconditioner='bjacobi'",
    ):
        answer = ctmc.solve(ctmc.Stationary(part, 1e-12), f"petsc_krylov({options})")
        off = ranks.largest(float(np.abs(answer.value - wanted[part.begin : part.begin + part.size]).max(initial=0.0)))
        rows.append([options, answer.status.name, off])
if ranks.rank == 0:
    print(json.dumps(rows))
"""


@needs_ranks("petsc4py")
@pytest.mark.parametrize("count", [1, 3])
def test_every_form_of_the_equations_has_the_answer_of_elimination(count):
    """On one color and, where transitions keep the color, on all states."""
    ended = mpirun(count, "-c", _FORMS)
    assert ended.code == 0, ended.err
    rows = json.loads(ended.out)
    assert len(rows) == 10
    for options, status, off in rows:
        assert (options, status) == (options, "CONVERGED")
        assert off < 2e-12, options
