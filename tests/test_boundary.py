"""More than 2^31 states, transitions and sources: around the boundary alone, so that nothing of that size is ever made.

Files are stood in for by functions of the place of an element, vectors by sparse files, and what is read or computed there is
compared with NumPy on whole numbers of 64 bits.
"""

from types import SimpleNamespace

import numpy as np
import pytest

import ctmc
from ctmc.errors import StorageError
from ctmc.model import communication, products
from ctmc.model.generator import Generator
from ctmc.model.state_space import Lattice, Variable
from ctmc.model.streamed import made, made_lattice, streaming
from ctmc.model.transitions import NO_CODES, FloatTransitions, Slab
from ctmc.storage import stored
from ctmc.storage.container import read_container, write_container
from ctmc.storage.gate import StoredArray
from ctmc.storage.sources import BLOCK, Differences, Encoder
from ctmc.storage.streams import check_slab
from solvers._fixed_state import fixed_state
from solvers._preconditioner import preconditioner
from solvers.stationary.multigrid import v_cycle

EDGE = 2**31
RATES = np.random.default_rng(20261130).random(1000) + 0.5


class Band:
    """State j is entered from j + d for each of some distances d; only states from which no d leads out are looked at.

    The code of an entry hangs on its place among all, so that a place that lost its upper bits shows.
    """

    def __init__(self, states, distances):
        self.states, self.distances = states, np.array(distances)
        self.width = len(self.distances)
        self.entries = states * self.width

    def sources(self, entries):
        row, k = np.divmod(entries, self.width)
        return row + self.distances[k]

    def codes(self, entries):
        return (entries.astype(np.uint64) * np.uint64(0x9E3779B97F4A7C15) >> np.uint64(40)) % np.uint64(len(RATES))

    def steps(self, entries):
        """The difference from the row before, moved on by one: 0 but in the first row of a block."""
        row, k = np.divmod(entries, self.width)
        return np.where(row % BLOCK == 0, self.distances[k], 0)

    def slab(self, begin, end):
        entries = np.arange(begin * self.width, end * self.width)
        return np.arange(end - begin + 1) * self.width, self.sources(entries), RATES[self.codes(entries)]


class Pretended:
    """A file in which each array is a function of the places of its elements."""

    def __init__(self, arrays):
        self.stored = {name: StoredArray(shape, np.dtype(kind)) for name, (shape, kind, _) in arrays.items()}
        self.functions = {name: function for name, (_, _, function) in arrays.items()}
        self.read_chunks = []

    def chunks(self, name):
        return range(self.stored[name].chunk_count)

    def read(self, names):
        return {name: self.part(name, 0, self.stored[name].shape[0]) for name in names}

    def part(self, name, first, last, *row):
        return self.functions[name](np.arange(first, last), *row).astype(self.stored[name].dtype)

    def slab(self, name, number, chunk, known=None):
        assert chunk == number
        array = self.stored[name]
        self.read_chunks.append((name, number))
        *row, first = array.offset(number)
        return self.part(name, first, min(first + array.chunk[-1], array.shape[-1]), *row), b"sums"


def pretended_rows(band, plain=False):
    """The file of a band: as it would be with sources of 64 bits, or with steps of which some are others."""
    coded = np.unique([0, *band.distances[:200]])
    others = band.distances[~np.isin(band.distances, coded)]

    def codes(entries):
        steps = band.steps(entries)
        place = np.minimum(np.searchsorted(coded, steps), len(coded) - 1)
        return np.where(coded[place] == steps, place, 255)

    n, entries = band.states, band.entries
    arrays = {
        "rates/data.codes": ((entries,), "<u2", band.codes),
        "rates/data.values": ((len(RATES),), "<f8", lambda places: RATES[places]),
    }
    if plain:
        arrays["rates/indptr"] = ((n + 1,), "<i8", lambda rows: rows * band.width)
        arrays["rates/indices"] = ((entries,), "<i8", band.sources)
        return Pretended(arrays)
    blocks = -(-n // BLOCK)
    arrays |= {
        "rates/counts.codes": ((n,), "u1", np.zeros_like),
        "rates/counts.values": ((1,), "<i8", lambda places: places + band.width),
        "rates/steps.codes": ((entries,), "u1", codes),
        "rates/steps.values": ((len(coded),), "<i8", lambda places: coded[places]),
        "rates/steps.others": ((blocks * len(others),), "<i8", lambda places: others[places % len(others)]),
        "rates/steps.starts": ((blocks + 1,), "<i8", lambda blocks: blocks * len(others)),
    }
    return Pretended(arrays)


def line(states):
    return Lattice((states - 1,), variables=(Variable("state"),))


def check_band_slab(band, slab):
    states = len(slab.indptr) - 1
    indptr, sources, rates = band.slab(slab.begin, slab.begin + states)
    assert np.array_equal(slab.indptr.astype(np.int64), indptr)
    assert slab.sources.dtype == (np.uint32 if band.states < EDGE else np.uint64)
    assert np.array_equal(slab.sources.astype(np.int64), sources)
    found = slab.rates if slab.codes is NO_CODES else slab.rates[slab.codes]
    assert np.array_equal(found, rates)


@pytest.mark.parametrize("edge", [2**31, 2**32])
def test_transitions_beyond_the_edge_are_read(edge):
    """From a file of more than 2^32 transitions, 600 a state, into slabs as `ctmc.open` cuts them."""
    band = Band(2**32 // 600 + 3 * BLOCK, np.delete(np.arange(-300, 301), 300))
    file = pretended_rows(band)
    rows = stored._stored_rows(stored._Reader(file, 0), line(band.states))
    assert rows.count() == band.entries > 2**32
    number = int(np.searchsorted(rows.begins, edge // band.width, side="right")) - 1
    assert rows.begins[number] * band.width <= edge < rows.begins[number + 1] * band.width
    del file.read_chunks[:]
    slabs = list(rows.stream([number - 1, number, number + 1]))
    assert [slab.begin for slab in slabs] == rows.begins[number - 1 : number + 2].tolist()
    for slab in slabs:
        check_band_slab(band, slab)
        check_slab(SimpleNamespace(size=band.states), slab)
    chunks = {k for name, k in file.read_chunks if name == "rates/data.codes"}
    step = file.stored["rates/data.codes"].chunk[0]
    assert edge // step in chunks
    assert len(chunks) <= 3 + 3 * (slabs[0].begin and int(slabs[0].indptr[-1])) // step  # and nothing else


WIDE = Band(2**32 + 5 * BLOCK + 5, [-2, -1, 1, EDGE + 9])


@pytest.mark.parametrize("plain", [False, True], ids=["steps", "plain"])
def test_sources_beyond_the_edge_are_read(monkeypatch, plain):
    """States on both sides of 2^31, sources of 2^32, in rows whose places are beyond 2^33."""
    begins = np.array([0, EDGE - 2 * BLOCK, EDGE - BLOCK, EDGE + BLOCK, EDGE + 2 * BLOCK, WIDE.states])
    monkeypatch.setattr(stored, "_cut", lambda counts, entries: (begins, begins * WIDE.width))  # 2^31 counts take long
    file = pretended_rows(WIDE, plain)
    rows = stored._stored_rows(stored._Reader(file, 0), line(WIDE.states))
    slabs = list(rows.stream([1, 2, 3]))
    for slab in slabs:
        check_band_slab(WIDE, slab)
        check_slab(SimpleNamespace(size=WIDE.states), slab)
    assert slabs[1].sources.min() < EDGE < 2**32 < slabs[1].sources.max()
    sources, rates = rows.into(EDGE + 1)
    assert sources.tolist() == [EDGE - 1, EDGE, EDGE + 2, 2**32 + 10]
    assert np.array_equal(rates, RATES[WIDE.codes(np.arange(4) + (EDGE + 1) * WIDE.width)])


def test_slabs_are_cut_where_their_transitions_are():
    """Numbers of transitions whose sums pass 2^31 and 2^32, in parts of all lengths."""
    rng = np.random.default_rng(31)
    counts = rng.integers(0, 3000, 800 * BLOCK)
    entries = int(counts.sum())
    assert entries > 2**32
    parts = np.split(counts, np.sort(rng.choice(800, 20, replace=False)) * BLOCK)
    begins, places = stored._cut(iter(parts), entries)
    sums = [0]
    for count in counts.reshape(-1, BLOCK).sum(axis=1).tolist():  # in Python's whole numbers
        sums.append(sums[-1] + count)
    assert places.tolist() == [sums[begin // BLOCK] for begin in begins.tolist()]
    assert begins[-1] == len(counts)
    with pytest.raises(StorageError, match="row pointers"):
        stored._cut(iter(parts), entries - 2**32)


def test_sources_beyond_the_edge_are_coded():
    """What the writer makes of slabs around 2^31, against the steps as they are defined."""
    begin, end = EDGE - BLOCK, EDGE + BLOCK + 100
    indptr, sources, _ = WIDE.slab(begin, end)
    steps = WIDE.steps(np.arange(begin * WIDE.width, end * WIDE.width))
    found = Differences()
    found.add(begin, indptr.view(np.uint64), sources.view(np.uint64))
    assert found.frequent()[0] == 0
    assert sorted(found.frequent().tolist()) == np.unique(steps).tolist()
    codes, others, numbers = Encoder(np.array([0, 1])).encode(begin, indptr.view(np.uint64), sources.view(np.uint64))
    assert np.array_equal(others, steps[(steps != 0) & (steps != 1)])
    assert np.array_equal(codes == 255, (steps != 0) & (steps != 1))
    assert numbers.tolist() == [3, 3, 3]


@pytest.fixture(scope="module")
def vectors(tmp_path_factory):
    """Make vectors of more than 2^31 elements that take no room where nothing is written."""
    folder = tmp_path_factory.mktemp("sparse")
    count = 0

    def make(dtype):
        nonlocal count
        count += 1
        path = folder / str(count)
        with path.open("wb") as file:
            file.truncate(WIDE.states * np.dtype(dtype).itemsize)
        return np.asarray(np.memmap(path, dtype=dtype, mode="r+"))

    yield make
    for path in folder.iterdir():
        path.unlink()


@pytest.fixture(scope="module", params=[EDGE - 2 * BLOCK, EDGE])
def around(request):
    """A slab of a streamed model that ends beyond 2^31, and its first and last state."""

    def rows(begin, end):
        return FloatTransitions(*WIDE.slab(begin, end))

    with streaming():
        transitions = made(WIDE.states, rows, lambda: WIDE.entries, slab_states=2 * BLOCK)
    assert transitions.count() > 2**34
    assert transitions.begins[-1] == WIDE.states
    number = EDGE // (2 * BLOCK)
    slabs = list(transitions.stream([number - 1, number]))
    assert [slab.begin for slab in slabs] == [EDGE - 2 * BLOCK, EDGE]
    assert transitions.into(EDGE)[0].tolist() == [EDGE - 2, EDGE - 1, EDGE + 1, 2**32 + 9]
    first, second = slabs
    if request.param == EDGE:
        return second, EDGE, EDGE + 2 * BLOCK
    indptr = np.concatenate([first.indptr, second.indptr[1:] + first.indptr[-1]])
    sources, rates = (np.concatenate([first[k], second[k]]) for k in (2, 4))
    return Slab(first.begin, indptr, sources, NO_CODES, rates), first.begin, EDGE + 2 * BLOCK


def filled(vector, around, seed):
    """Write random numbers wherever the slab reads, and return the vector."""
    slab, first, last = around
    places = np.unique(np.concatenate([slab.sources.astype(np.int64), np.arange(first, last)]))
    vector[places] = np.random.default_rng(seed).random(len(places))
    return vector


def entries_of(around):
    slab, first, _ = around
    targets = first + np.arange(len(slab.sources)) // WIDE.width
    return slab.sources.astype(np.int64), targets, slab.rates


@pytest.mark.parametrize("kernel", [products.forward, products.forward_on_one_thread])
def test_forward_products_beyond_the_edge(vectors, around, kernel):
    slab, first, last = around
    p, exits, out = (filled(vectors(float), around, seed) for seed in (5, 6, 7))
    kernel(*slab, exits, p, p, 1.0, 0.0, 0.0, np.empty(0), out, out, out)
    sources, _, rates = entries_of(around)
    inflow = (p[sources] * rates).reshape(-1, WIDE.width).sum(axis=1)
    np.testing.assert_allclose(out[first:last], inflow - p[first:last] * exits[first:last], atol=1e-13)


def summed(sources, values):
    """Return the sources, each once, and the sums of the values of each."""
    places, inverse = np.unique(sources, return_inverse=True)
    return places, np.bincount(inverse, weights=values)


SUMS = {
    "scatter": (products.scatter, lambda x, i, j, rates: rates * x[j], True),
    "exit sums": (products.exit_sums, lambda x, i, j, rates: rates, False),
    "squared differences": (
        products.add_squared_differences,
        lambda x, i, j, rates: rates * (x[j] - x[i]) ** 2,
        True,
    ),
    "counts": (products.count_sources, lambda x, i, j, rates: np.ones(len(i)), False),
}


@pytest.mark.parametrize("name", SUMS)
def test_sums_by_source_beyond_the_edge(vectors, around, name):
    kernel, term, reads = SUMS[name]
    slab = around[0]
    x, out = filled(vectors(float), around, 8), vectors(np.int64 if name == "counts" else float)
    kernel(*slab, *((x,) if reads else ()), out)
    sources, targets, rates = entries_of(around)
    places, sums = summed(sources, term(x, sources, targets, rates))
    assert places[0] < EDGE < 2**32 < places[-1]
    np.testing.assert_allclose(out[places], sums, rtol=1e-12)


def test_marks_beyond_the_edge(vectors, around):
    slab, first, last = around
    sources, targets, _ = entries_of(around)
    seen, within = vectors(bool), vectors(bool)
    seen[EDGE + 5], within[EDGE - 9 : EDGE + 3] = True, True
    products.spread(*slab, False, seen)
    assert np.flatnonzero(seen[first:last])[0] + first == EDGE + 4  # through + 1, as far as one row back
    assert seen[EDGE + 4 : last].all()
    back = vectors(bool)
    back[EDGE + 1] = True
    products.spread_back(*slab, True, back)
    marked = np.flatnonzero(back[first:last]) + first
    assert marked[0] == first
    assert marked[-1] == EDGE + 2
    assert back[sources[targets == EDGE + 1]].all()
    inside = vectors(bool)
    inside[EDGE + 1] = True
    products.spread_within(*slab, False, within, inside)
    assert (np.flatnonzero(inside[first:last]) + first).tolist() == [EDGE, EDGE + 1, EDGE + 2]
    left = vectors(np.uint8)
    assert products.entered_from_before(*slab, left)
    assert np.array_equal(np.flatnonzero(left[first:last]) + first, np.arange(first + 1, last))


FAULTS = [(2, 2 * WIDE.states), (2, -1), (3, EDGE - 2), (4, EDGE)]


@pytest.mark.parametrize(("kind", "source"), FAULTS)
def test_faults_beyond_the_edge_are_named(around, kind, source):
    slab, first, _ = around
    entry = (EDGE - first) * WIDE.width + 1  # from EDGE - 1 into EDGE
    sources = slab.sources.astype(np.int64)
    sources[entry] = source
    wrong = slab._replace(sources=sources.view(np.uint64))
    assert products.first_fault(slab.indptr.view(np.int64), sources, slab.rates, first, WIDE.states) == (kind, entry)

    def rows(begin, end):
        return FloatTransitions(slab.indptr.view(np.int64), sources, slab.rates)

    with streaming():
        model = Generator(line(WIDE.states), made(WIDE.states, rows, lambda: WIDE.entries))
    with pytest.raises(ctmc.ModelError, match=f"{EDGE} "):
        check_slab(model, wrong)


SIDES = np.array([3, 2**15 + 1, 2**16 - 1])
STRIDES = np.array([SIDES[1] * SIDES[2], SIDES[2], 1])


def weights_at(states, i):
    """Weights of one coordinate, which hang on the position, 0 where the coordinate is 0."""
    mixed = (states.astype(np.uint64) * np.uint64(0x9E3779B97F4A7C15) >> np.uint64(56)).astype(np.uint8) + np.uint8(i)
    return np.where(states // STRIDES[i] % SIDES[i] > 0, mixed, np.uint8(0))


def weights_of(begin, end):
    return np.stack([weights_at(np.arange(begin, end), i) for i in range(3)])


@pytest.mark.parametrize("how", ["made", "stored"])
@pytest.mark.parametrize("edge", [pytest.param(2**31, marks=pytest.mark.slow), 2**32])
def test_lattices_beyond_the_edge_are_written_out(how, edge):
    size = int(SIDES.prod())
    unit, departures = np.array([0.25]), np.random.default_rng(17).random((3, SIDES.max())) + 0.5
    if how == "made":
        with streaming():
            rows = made_lattice(size, weights_of, unit, departures, SIDES, STRIDES)
    else:
        file = Pretended({
            "rates/unit": ((1,), "<f8", lambda places: unit),
            "rates/departures": (departures.shape, "<f8", lambda places: departures),
            "rates/weights": ((3, size), "u1", weights_at),
        })  # fmt: skip
        space = Lattice(tuple((SIDES - 1).tolist()), variables=(Variable("x", 3),))
        rows = stored._stored_lattice(stored._Reader(file, 0), space)
    number = int(np.searchsorted(rows.begins, edge, side="right")) - 1
    (slab,) = rows.stream([number])
    begin, end = int(rows.begins[number]), int(rows.begins[number + 1])
    assert begin <= edge < end
    states, weights = np.arange(begin, end), weights_of(begin, end)
    found = []
    for i, (side, stride) in enumerate(zip(SIDES, STRIDES, strict=True)):
        length = states // stride % side
        into, ahead = weights[i] > 0, length + 1 < side
        found += [
            (states[into], states[into] - stride, weights[i, into] * 0.25),
            (states[ahead], states[ahead] + stride, departures[i, length[ahead] + 1]),
        ]
    targets, sources, rates = (np.concatenate(parts) for parts in zip(*found, strict=True))
    order = np.lexsort((sources, targets))
    used = int(slab.indptr[-1])
    assert used == len(order)
    assert np.array_equal(np.diff(slab.indptr.astype(np.int64)), np.bincount(targets - begin, minlength=end - begin))
    assert np.array_equal(slab.sources[:used].astype(np.int64), sources[order])
    assert np.array_equal(slab.rates[:used], rates[order])


@pytest.mark.parametrize("seed", [3, 5, 7])
def test_without_graphs_of_scipy_the_same_is_reached(monkeypatch, seed):
    """What SciPy cannot number is searched by passes alone."""
    rng = np.random.default_rng(seed)
    n = 400
    ring = np.roll(np.eye(n), 1, axis=1)[rng.permutation(n)]  # long ways in no order, so that many passes are needed
    matrix = np.where(rng.random((n, n)) < 1 / n, 1.0, ring) * (1 - np.eye(n))
    begin, within = np.arange(n) == 7, rng.random(n) < 0.9

    def found():
        model = Generator.from_matrix(matrix)
        yield from (communication.reachable(model, np.array([7]), backward=backward) for backward in (False, True))
        yield from (
            communication.reachable_within(model, begin & within, within, backward=back) for back in (False, True)
        )
        parts = model.classes
        yield {tuple(parts.members(number)) for number in parts.recurrent}

    monkeypatch.setattr(communication, "_PASSES", 2)
    known = list(found())
    monkeypatch.setattr(communication, "_MOST", 0)
    monkeypatch.setattr(communication, "csgraph", None)
    for one, other in zip(known, found(), strict=True):
        assert one == other if isinstance(one, set) else np.array_equal(one, other)


def test_libraries_with_32_bits_are_not_given_more():
    """SuperLU and the like would count on from a negative number."""
    large = SimpleNamespace(entries=2**31 - 10, size=10, exit_rates=np.ones(10))
    with pytest.raises(ctmc.ModelError, match=r"'ilu' .* has 2,147,483,648 entries, .* allowed are 2,147,483,647"):
        preconditioner("ilu", large, 1e-3, 10.0)
    with pytest.raises(ctmc.ModelError, match="32-bit"):
        v_cycle(large, "classical", np.ones(10))
    with ctmc.limited_memory("1TiB"), pytest.raises(ctmc.ModelError, match=r"sparse_lu on .* 32-bit"):
        fixed_state(large, "sparse_lu")


def widened(model):
    """The same model with sources of 64 bits, as models of more than 2^31 states have them."""
    rows = model.transitions
    return Generator(model.space, rows._replace(sources=rows.sources.astype(np.int64)), initial=model.initial)


@pytest.mark.parametrize("shift", [0, 2**32], ids=["right", "wrong by 2^32"])
def test_sources_of_64_bits_stay_what_they_are(tmp_path, shift):
    """A source that is right in its lower 32 bits alone is refused, by loading and by opening."""
    model = widened(ctmc.build("birth_death", births=[1.0, 2.0, 3.0], deaths=[4.0, 5.0, 6.0]))
    digest = ctmc.save(tmp_path / "model.h5", model)
    container = read_container(tmp_path / "model.h5", ["generator"])
    arrays = {name: array.copy() for name, array in container.arrays.items()}
    arrays["rates/indices"][2] += shift
    write_container(tmp_path / "again.h5", "generator", container.manifest, arrays)
    for read in (ctmc.load, ctmc.open):
        if shift:
            with pytest.raises(StorageError, match="source of the transition"):
                read(tmp_path / "again.h5")
        else:
            again = read(tmp_path / "again.h5")
            assert next(again.row_slabs()).sources.dtype == np.uint64
            assert ctmc.save(tmp_path / "again.h5", again) == digest
