"""PETSc's binary matrices: against PETSc itself, against bytes put together by hand, and files that are damaged."""

import errno
import os
import struct

import mpi
import numpy as np
import pytest
from chain_gallery import check_mutations, random_chain
from scipy.sparse import csr_array, save_npz

import ctmc
from builders.supermarket import supermarket
from ctmc.interchange import petsc
from ctmc.model import streamed
from ctmc.model.streamed import streaming

QUEUE = ctmc.Generator.from_matrix([[-1, 1, 0], [2, -3, 1], [0, 0, 0]])
CAPPED = {"service_rates": [1, 1.5, 2], "arrival_rate": 3, "choices": 2, "capacity": 15, "total_capacity": 25}


def matrix_file(lengths, columns, values, head=None, index="i"):
    """The bytes of a matrix, put together one number after the other."""
    head = head or (1211216, len(lengths), len(lengths), len(columns))
    numbers = (*head, *lengths, *columns)
    return struct.pack(f">{len(numbers)}{index}{len(values)}d", *numbers, *values)


def test_the_bytes_are_those_of_the_definition(tmp_path):
    """Rows by source, ascending columns, the diagonal in its place, also that of the absorbing state, where it is 0."""
    parts = ([2, 3, 1], [0, 1, 0, 1, 2, 2], [-1.0, 1.0, 2.0, -3.0, 1.0, 0.0])
    for indices, letter in ((32, "i"), (64, "q")):
        assert petsc.write(tmp_path / "q.petsc", QUEUE, overwrite=True, indices=indices) == []
        assert (tmp_path / "q.petsc").read_bytes() == matrix_file(*parts, index=letter)
    ctmc.write(tmp_path / "a.petsc", QUEUE)
    ctmc.write(tmp_path / "b.petsc", QUEUE, "petsc-64")
    assert (tmp_path / "a.petsc").read_bytes() == matrix_file(*parts)
    assert (tmp_path / "b.petsc").read_bytes() == matrix_file(*parts, index="q")


@pytest.mark.parametrize("indices", petsc.WIDTHS)
def test_round_trip(tmp_path, indices):
    chain = random_chain(7)
    lost = petsc.write(tmp_path / "m.petsc", chain, indices=indices)
    for word in ("states", "initial distribution", "full, Größe > 3, 満員", "busy, κόστος, jumps, only jumps"):
        assert any(word in sentence for sentence in lost), word
    found = ctmc.read(tmp_path / "m.petsc")
    np.testing.assert_array_equal(found.rates, chain.rates)
    np.testing.assert_array_equal(found.sources, chain.sources)
    assert found.notes == ()


FORMS = {
    "lattice": lambda: supermarket([3, 2, 1], 3, choices=2, capacity=9),
    "coded": lambda: supermarket([3, 2, 1], 3, choices=2, capacity=9).coded(),
    "floats": lambda: supermarket([3, 2, 1], 3, choices=2, capacity=9).written_out(),
    "streamed": lambda: supermarket(**CAPPED),
}


@pytest.mark.parametrize("form", FORMS)
def test_every_form_slab_by_slab(tmp_path, monkeypatch, form):
    """Blocks are short, so that rows and slabs are cut in many places; SciPy gives the rows by source."""
    for module, name, value in ((petsc, "_STATES", 37), (petsc, "_BLOCK", 53), (streamed, "SLAB_STATES", 1 << 10)):
        monkeypatch.setattr(module, name, value)
    with streaming():
        model = FORMS[form]()
    petsc.write(tmp_path / "m.petsc", model)
    expected = model.to_scipy().tocsr()
    found = petsc.read(tmp_path / "m.petsc").to_scipy().tocsr()
    assert (found != expected).nnz == 0
    data = (tmp_path / "m.petsc").read_bytes()
    lengths = np.frombuffer(data, ">i4", model.size, 16)
    columns = np.frombuffer(data, ">i4", expected.nnz, 16 + 4 * model.size)
    np.testing.assert_array_equal(lengths, np.diff(expected.indptr))
    np.testing.assert_array_equal(columns, expected.sorted_indices().indices)


@pytest.mark.needs_compilation
def test_a_model_is_written_in_less_memory_than_it_has(tmp_path):
    model = supermarket([1.0, 1.5, 2.0, 3.0], 5, choices=2, capacity=30)
    assert model.entries > 5e6
    with ctmc.limited_memory("48MB"):  # the rows alone are 60 MB
        petsc.write(tmp_path / "m.petsc", model)
        with pytest.raises(ctmc.ModelError, match="more than the memory limit"):
            petsc.read(tmp_path / "m.petsc")
    assert (tmp_path / "m.petsc").stat().st_size == 16 + 4 * model.size + 12 * (model.entries + model.size)


def needs_petsc(test):
    """Mark a test that starts ranks which import petsc4py."""
    for mark in mpi.needs_mpi("petsc4py"):
        test = mark(test)
    return test


LOADS = """
import sys
import petsc4py
petsc4py.init([])
from petsc4py import PETSc
import numpy as np

print(np.dtype(PETSc.IntType).itemsize * 8)
matrix = PETSc.Mat().create()
try:
    matrix.load(PETSc.Viewer().createBinary(sys.argv[1]))
except PETSc.Error as error:
    sys.exit(0 if "Not a matrix object" in str(error) else str(error))
first, end = matrix.getOwnershipRange()
indptr, columns, values = matrix.getValuesCSR()
assert matrix.getDiagonal().getSize() == matrix.getSize()[0] == matrix.getSize()[1]
np.savez(f"{sys.argv[1]}.{first}", rows=np.repeat(np.arange(first, end), np.diff(indptr)), columns=columns, values=values)
"""


@needs_petsc
@pytest.mark.parametrize("ranks", [1, 2])
@pytest.mark.parametrize("indices", petsc.WIDTHS)
def test_petsc_reads_it(tmp_path, indices, ranks):
    """Entry by entry, on one and two ranks; a PETSc reads the width that it was configured with, and refuses the other."""
    chain = random_chain(9)
    petsc.write(tmp_path / "m.petsc", chain, indices=indices)
    ended = mpi.mpirun(ranks, "-c", LOADS, str(tmp_path / "m.petsc"))
    assert ended.code == 0, ended
    expected = chain.to_scipy().toarray()
    parts = sorted(tmp_path.glob("*.npz"))
    assert len(parts) == (ranks if ended.out.split() == [str(indices)] * ranks else 0)
    if parts:
        found, total = np.zeros_like(expected), 0
        for part in parts:
            with np.load(part) as piece:
                found[piece["rows"], piece["columns"]] = piece["values"]
                total += len(piece["rows"])
        np.testing.assert_array_equal(found, expected)
        assert total == chain.entries + chain.size


WRITES = """
import sys
import petsc4py
petsc4py.init([])
from petsc4py import PETSc
import numpy as np

with np.load(sys.argv[1]) as parts:
    shape, arrays = parts["shape"], [parts["indptr"], parts["indices"], parts["data"]]
begin, end = (len(arrays[0]) - 1) * np.array([PETSc.COMM_WORLD.rank, PETSc.COMM_WORLD.rank + 1]) // PETSc.COMM_WORLD.size
first, last = arrays[0][[begin, end]]
indptr = (arrays[0][begin : end + 1] - first).astype(PETSc.IntType)
mine = indptr, arrays[1][first:last].astype(PETSc.IntType), arrays[2][first:last]
matrix = PETSc.Mat().createAIJ(((end - begin, shape[0]), (end - begin, shape[1])), csr=mine)
viewer = PETSc.Viewer().createBinary(sys.argv[2], "w")
matrix.view(viewer)
matrix.createVecLeft().view(viewer)
"""


@needs_petsc
@pytest.mark.parametrize("ranks", [1, 2])
def test_what_petsc_writes_is_read(tmp_path, ranks):
    """Its format is told by the first bytes; the vector behind the matrix is named."""
    chain = random_chain(11)
    save_npz(tmp_path / "q.npz", csr_array(chain.to_scipy()))
    ended = mpi.mpirun(ranks, "-c", WRITES, str(tmp_path / "q.npz"), str(tmp_path / "m"))
    assert ended.code == 0, ended
    found = ctmc.read(tmp_path / "m")
    np.testing.assert_array_equal(found.rates, chain.rates)
    width = 8 if (tmp_path / "m").read_bytes()[:4] == bytes(4) else 4
    more = 2 * width + 8 * chain.size
    assert found.notes == (f"The file goes on for {more:,} bytes after the matrix; they are not read.",)


GOOD = {"lengths": [2, 2], "columns": [0, 1, 0, 1], "values": [-1.0, 1.0, 2.0, -2.0]}


@pytest.mark.parametrize("index", ["i", "q"])
@pytest.mark.parametrize(
    ("change", "error", "sentence"),
    [
        (
            {"head": (1211214, 2, 2, 4)},
            ctmc.StorageError,
            "the class id 1211214, a vector; allowed is 1211216, a matrix",
        ),
        ({"head": (7, 2, 2, 4)}, ctmc.StorageError, "the class id 7; allowed is 1211216"),
        ({"head": (1211216, 2, 3, 4)}, ctmc.ModelError, "a matrix of 2 x 3; allowed is a square"),
        ({"head": (1211216, 0, 0, 0)}, ctmc.ModelError, "a matrix of 0 x 0; allowed is a square"),
        ({"head": (1211216, -2, -2, 4)}, ctmc.ModelError, "a matrix of -2 x -2; allowed is a square"),
        ({"head": (1211216, 2, 2, -1)}, ctmc.StorageError, "entries is -1, a dense matrix; allowed is a sparse one"),
        ({"head": (1211216, 2, 2, -9)}, ctmc.StorageError, "entries is -9; allowed is a sparse one"),
        ({"head": (1211216, 2, 2, 2**31 - 1)}, ctmc.StorageError, "2 rows and 2,147,483,647 doubles with indices of"),
        ({"head": (1211216, 2**31 - 1, 2**31 - 1, 4)}, ctmc.StorageError, "2,147,483,647 rows and 4 doubles"),
        ({"values": GOOD["values"][:3]}, ctmc.StorageError, "are announced, which take"),
        ({"lengths": [2, 1]}, ctmc.StorageError, "the rows have 3 entries together, but 4 are announced"),
        ({"lengths": [5, -1]}, ctmc.StorageError, "row 0 has 5 entries; allowed are 0 to 2"),
        ({"lengths": [2, -2]}, ctmc.StorageError, "row 1 has -2 entries; allowed are 0 to 2"),
        ({"columns": [0, 1, 0, 2]}, ctmc.StorageError, "row 1 has an entry in column 2; allowed is 0 to 1"),
        ({"columns": [-1, 1, 0, 1]}, ctmc.StorageError, "row 0 has an entry in column -1; allowed is 0 to 1"),
        ({"columns": [0, 1, 1, 0]}, ctmc.StorageError, "row 1 has column 0 after column 1; allowed are ascending"),
        ({"columns": [0, 1, 1, 1]}, ctmc.StorageError, "row 1 has column 1 after column 1; allowed are ascending"),
        ({"values": [-1.0, 1.0, -2.0, 2.0]}, ctmc.ModelError, "has -2.0 in row 1, column 0; allowed are finite"),
        ({"values": [-1.0, np.inf, 2.0, -2.0]}, ctmc.ModelError, "has inf in row 0, column 1; allowed are finite"),
        ({"values": [np.nan, 1.0, 2.0, -2.0]}, ctmc.ModelError, "has nan in row 0, column 0; allowed are finite"),
        ({"values": [-1.0, 1.0, 2.0, -3.0]}, ctmc.ModelError, "row 1 of .* sums to -1, its diagonal being -3"),
        ({"values": [0.0, 1.0, 2.0, 0.0]}, ctmc.ModelError, "row 0 of .* sums to 1, its diagonal being 0"),
        ({"values": [-1.0, 2.0, 1.0, -2.0]}, ctmc.ModelError, r"those of its transpose need not\)\.$"),
    ],
)
def test_files_that_are_refused(tmp_path, index, change, error, sentence):
    (tmp_path / "m.petsc").write_bytes(matrix_file(**(GOOD | change), index=index))
    with pytest.raises(error, match=sentence) as caught:
        petsc.read(tmp_path / "m.petsc")
    assert "\n" not in str(caught.value)
    assert str(caught.value).endswith(".")


@pytest.mark.parametrize("block", [1, 2, 3, 4])
def test_columns_ascend_from_one_block_to_the_next(tmp_path, monkeypatch, block):
    monkeypatch.setattr(petsc, "_BLOCK", block)
    parts = {"lengths": [2, 3, 0], "columns": [0, 1, 0, 1, 1], "values": [-1.0, 1.0, 2.0, -2.0, -2.0]}
    (tmp_path / "m.petsc").write_bytes(matrix_file(**parts))
    with pytest.raises(ctmc.StorageError, match="row 1 has column 1 after column 1"):
        petsc.read(tmp_path / "m.petsc")


def test_sizes_are_looked_at_before_anything_is_allocated(tmp_path):
    """The file is long enough, but has no blocks on the disk; the limit of memory speaks first."""
    size = 4 * (4 + 2**30) + 12 * 2**30
    with open(tmp_path / "m.petsc", "wb") as file:
        file.write(struct.pack(">4i", 1211216, 2**30, 2**30, 2**30))
        file.truncate(size)
    with ctmc.limited_memory("1GB"), pytest.raises(ctmc.ModelError, match="more than the memory limit"):
        petsc.read(tmp_path / "m.petsc")


def test_zeros_and_an_empty_diagonal_that_stand_in_the_file(tmp_path):
    parts = {"lengths": [3, 2, 0], "columns": [0, 1, 2, 0, 1], "values": [-1.0, 1.0, 0.0, 2.0, -2.0]}
    (tmp_path / "m.petsc").write_bytes(matrix_file(**parts))
    found = petsc.read(tmp_path / "m.petsc")
    assert found.entries == 2
    assert found.to_scipy().toarray().tolist() == [[-1, 1, 0], [2, -2, 0], [0, 0, 0]]


@pytest.mark.parametrize("indices", petsc.WIDTHS)
def test_mutations(tmp_path, indices):
    check_mutations(
        petsc.read, lambda path, model: petsc.write(path, model, indices=indices), tmp_path / "m.petsc", 3000 + indices
    )


def test_a_file_that_changes_while_it_is_read(tmp_path, monkeypatch):
    """Values, and the length, between the two passes."""
    petsc.write(tmp_path / "m.petsc", QUEUE)
    whole = (tmp_path / "m.petsc").read_bytes()
    original = petsc.read_at
    for other, sentence in (
        (
            matrix_file([2, 3, 1], [0, 1, 0, 1, 2, 2], [-1.0, 1.0, 2.0, -3.0, 0.0, 0.0]),
            "have changed while they were read",
        ),
        (whole[:-8], "has become shorter while it was read"),
    ):
        (tmp_path / "m.petsc").write_bytes(whole)
        reads = []

        def changing(descriptor, address, size, other=other, reads=reads):
            reads.append(address)
            if len(reads) == 5:  # head, lengths, columns, values; then the second pass
                (tmp_path / "m.petsc").write_bytes(other)
            return original(descriptor, address, size)

        with monkeypatch.context() as patch:
            patch.setattr(petsc, "read_at", changing)
            with pytest.raises(ctmc.StorageError, match=sentence):
                petsc.read(tmp_path / "m.petsc")
    assert len(reads) > 4


def test_what_cannot_be_written(tmp_path, monkeypatch):
    with pytest.raises(ctmc.StorageError, match="indices is 16; allowed are 32 and 64"):
        petsc.write(tmp_path / "m.petsc", QUEUE, indices=16)
    with pytest.raises(ctmc.ModelError, match="infinitely many states"):
        petsc.write(tmp_path / "m.petsc", ctmc.QBD.from_blocks([[1.0]], [[-3.0]], [[2.0]]))

    def full(descriptor, address, data):
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(petsc, "write_at", full)
    with pytest.raises(ctmc.StorageError, match=r"m\.petsc: No space left on device\."):
        petsc.write(tmp_path / "m.petsc", QUEUE)
    assert list(tmp_path.iterdir()) == []


def test_indices_are_wide_where_the_entries_need_it(tmp_path, monkeypatch):
    """The number of entries is a pretence; what would be written is looked at, and nothing of that size is made."""
    asked = []
    monkeypatch.setattr(petsc, "replace_file", lambda path, write, overwrite: asked.append(write))
    monkeypatch.setattr(petsc, "_write", lambda path, chain, entries, indices: asked.append((entries, indices)))
    for entries, indices, said in ((2**31 - 4, 32, False), (2**31 - 3, 64, True)):
        monkeypatch.setattr(ctmc.Generator, "entries", property(lambda chain, entries=entries: entries))
        with ctmc.limited_memory(2**50):
            lost = petsc.write(tmp_path / "m.petsc", QUEUE)
        asked.pop()(tmp_path / "m.petsc")
        assert asked.pop() == (entries + 3, indices)
        assert any("32-bit" in sentence or "32 bits" in sentence for sentence in lost) == said
    with ctmc.limited_memory(2**50), pytest.raises(ctmc.ModelError, match="with 2,147,483,648 entries allowed is 64"):
        petsc.write(tmp_path / "m.petsc", QUEUE, indices=32)
