"""Chains in MATLAB files of versions 7 and 7.3, with SciPy and h5py as the oracles."""

import os
import subprocess
import sys
import zlib

import h5py
import numpy as np
import pytest
from chain_gallery import mutated, random_chain
from scipy.io import loadmat, savemat
from scipy.sparse import csc_array

import ctmc
from ctmc.interchange import matlab

VERSIONS = ("7", "7.3")
Q = np.array([[-1.0, 1.0, 0.0], [2.0, -3.0, 1.0], [0.0, 2.0, -2.0]])


def write_v73(path, sparse=(), **settings):
    """A file as MATLAB lays it out, by h5py alone."""
    matrix = csc_array(Q)
    with h5py.File(path, "w", userblock_size=512) as file:
        group = file.create_group("Q")
        group.attrs["MATLAB_class"] = np.bytes_("double")
        group.attrs["MATLAB_sparse"] = np.uint64(3)
        for name, values in (
            ("data", matrix.data),
            ("ir", matrix.indices.astype("<u8")),
            ("jc", matrix.indptr.astype("<u8")),
        ):
            group.create_dataset(name, data=dict(sparse).get(name, values), **settings)
        dense = file.create_dataset("reward_busy", data=np.array([[0.0, 1.0, 2.0]]))
        dense.attrs["MATLAB_class"] = np.bytes_("double")
        text = file.create_dataset("comment", data=np.array([[72], [105]], dtype="<u2"))
        text.attrs["MATLAB_class"] = np.bytes_("char")
    with open(path, "r+b") as file:
        file.write(b"MATLAB 7.3 MAT-file, Platform: GLNXA64".ljust(124) + b"\x00\x02IM")
    return path


@pytest.mark.parametrize("version", VERSIONS)
@pytest.mark.parametrize("seed", [3, 4])
def test_round_trip(tmp_path, version, seed):
    chain = random_chain(seed)
    lost = matlab.write(tmp_path / "m.mat", chain, version=version)
    for word in ("Größe > 3 becomes label_Gr__e___3", "満員 becomes label___", "κόστος becomes", "Länge becomes state_L_nge",
                 "jumps: what transitions earn", "Descriptions of rewards are not carried: busy"):  # fmt: skip
        assert any(word in sentence for sentence in lost), word
    found = matlab.read(tmp_path / "m.mat")
    np.testing.assert_array_equal(found.rates, chain.rates)
    np.testing.assert_array_equal(found.sources, chain.sources)
    np.testing.assert_array_equal(found.labels["full"], chain.labels["full"])
    np.testing.assert_array_equal(found.rewards["busy"].rate, chain.rewards["busy"].rate)
    np.testing.assert_array_equal(found.initial.dense(40), chain.initial.dense(40))
    np.testing.assert_array_equal(np.sort(found.space.table, axis=0), np.sort(chain.space.table, axis=0))


def test_scipy_reads_what_we_write(tmp_path):
    chain = random_chain(3)
    matlab.write(tmp_path / "m.mat", chain)
    found = loadmat(tmp_path / "m.mat", spmatrix=False)
    np.testing.assert_array_equal(found["Q"].toarray(), chain.to_scipy().toarray())
    np.testing.assert_array_equal(found["reward_busy"][:, 0], chain.rewards["busy"].rate)


def test_h5py_reads_what_we_write(tmp_path):
    chain = random_chain(3)
    matlab.write(tmp_path / "m.mat", chain, version="7.3")
    with open(tmp_path / "m.mat", "rb") as file:
        head = file.read(520)
    assert head.startswith(b"MATLAB 7.3 MAT-file")
    assert head[116:128] == bytes(8) + b"\x00\x02IM"
    assert head[512:520] == b"\x89HDF\r\n\x1a\n"
    with h5py.File(tmp_path / "m.mat") as file:
        group = file["Q"]
        assert (group.attrs["MATLAB_class"], group.attrs["MATLAB_sparse"]) == (b"double", 40)
        columns = csc_array((group["data"][:], group["ir"][:].astype(int), group["jc"][:].astype(int)), shape=(40, 40))
        np.testing.assert_array_equal(columns.toarray(), chain.to_scipy().toarray())
        assert file["reward_busy"].shape == (1, 40)
        assert file["state_L_nge"].attrs["MATLAB_class"] == b"double"


@pytest.mark.parametrize(
    "settings", [{}, {"chunks": (2,)}, {"chunks": (3,), "compression": "gzip", "shuffle": True, "fletcher32": True}]
)
def test_h5py_writes_what_we_read(tmp_path, settings):
    found = matlab.read(write_v73(tmp_path / "m.mat", **settings))
    np.testing.assert_array_equal(found.to_scipy().toarray(), Q)
    np.testing.assert_array_equal(found.rewards["busy"].rate, [0, 1, 2])


@pytest.mark.parametrize(
    ("part", "values", "sentence"),
    [
        ("ir", np.array([0, 1, 0, 1, 2, 1, 3], dtype="<u8"), "entry in row 3; it has 3 rows"),
        ("ir", np.array([0, 1, 0, 1, 2, 1, 2**63], dtype="<u8"), "entry in row"),
        ("jc", np.array([0, 5, 2, 7], dtype="<u8"), "do not fit"),
        ("jc", np.array([0, 2, 5, 8], dtype="<u8"), "do not fit"),
        ("jc", np.array([1, 2, 5, 7], dtype="<u8"), "do not fit"),
        ("data", np.ones(6), "do not fit"),
        ("ir", np.array([0, 1, 0, 1, 2, 1, 2.0]), "row numbers of the type float64"),
        ("data", np.ones(7, dtype=">f8"), "none of"),
        ("data", np.ones(7, dtype="<c16"), "none of"),
    ],
)
def test_sparse_matrices_that_are_none(tmp_path, part, values, sentence):
    with pytest.raises(ctmc.CTMCError, match=sentence):
        matlab.read(write_v73(tmp_path / "m.mat", {part: values}))


REFUSED = {
    "soft": "soft or external link",
    "external": "soft or external link",
    "virtual": "another file",
    "outside": "another file",
    "huge": "memory limit",
    "large chunk": "a chunk of 'Q' has 72,000,000 bytes",
    "bomb": "has 73 bytes or more",
}


@pytest.mark.parametrize("kind", REFUSED)
def test_hdf5_that_leads_elsewhere_or_claims_too_much(tmp_path, kind):
    other = tmp_path / "other.h5"
    with h5py.File(other, "w") as file:
        file["Q"] = Q
    with h5py.File(tmp_path / "m.mat", "w", userblock_size=512) as file:
        if kind == "soft":
            file["there"] = Q
            file["Q"] = h5py.SoftLink("/there")
        elif kind == "external":
            file["Q"] = h5py.ExternalLink(str(other), "/Q")
        elif kind == "virtual":
            layout = h5py.VirtualLayout((3, 3), "f8")
            layout[:] = h5py.VirtualSource(str(other), "Q", (3, 3))
            file.create_virtual_dataset("Q", layout)
        elif kind == "outside":
            file.create_dataset("Q", shape=(3, 3), dtype="f8", external=[("/etc/hostname", 0, h5py.h5f.UNLIMITED)])
        elif kind == "huge":
            file.create_dataset("Q", shape=(2**20, 2**20), dtype="f8", chunks=(64, 64))
        elif kind == "large chunk":
            file.create_dataset("Q", data=np.zeros((3000, 3000)), chunks=(3000, 3000), compression="gzip")
        else:  # a chunk of 72 bytes that inflates to a million
            bomb = file.create_dataset("Q", shape=(3, 3), dtype="f8", chunks=(3, 3), compression="gzip")
            bomb.id.write_direct_chunk((0, 0), zlib.compress(bytes(1_000_000)))
    with pytest.raises(ctmc.CTMCError, match=REFUSED[kind]), ctmc.limited_memory("8GiB"):
        matlab.read(tmp_path / "m.mat")


def test_rates_may_be_given_without_a_diagonal(tmp_path):
    savemat(tmp_path / "m.mat", {"R": np.abs(Q), "initial": np.array([0.5, 0.5, 0]), "Description": "ours"})
    found = matlab.read(tmp_path / "m.mat")
    np.testing.assert_array_equal(found.to_scipy().toarray(), Q)
    assert found.initial.probabilities.tolist() == [0.5, 0.5]


@pytest.mark.parametrize(
    ("variables", "sentence"),
    [
        ({"P": Q}, "none of the variables Q"),
        ({"Q": Q, "R": Q}, "both Q and R"),
        ({"Q": Q, "A0": Q}, "has Q and A0"),
        ({"Q": Q[:2]}, r"shape \(2, 3\)"),
        ({"Q": np.array([[Q, "x"]], dtype=object)}, "the type object"),
        ({"Q": Q, "label_full": np.array([0, 1, 2])}, "label_full .* zeros and ones"),
        ({"Q": Q, "reward_busy": np.ones(2)}, "reward_busy .* 3 rows"),
        ({"Q": Q, "state_x": np.array([0, 0.5, 1])}, "whole numbers"),
        ({"Q": Q, "initial": np.array([np.nan, 0.5, 0.5])}, "3 rows of finite numbers"),
    ],
)
def test_variables_that_do_not_fit(tmp_path, variables, sentence):
    savemat(tmp_path / "m.mat", variables)
    with pytest.raises(ctmc.ModelError, match=sentence):
        matlab.read(tmp_path / "m.mat")


def put_73(path, fill):
    with h5py.File(path, "w", userblock_size=512) as file:
        fill(file)
    with open(path, "r+b") as file:
        file.write(b"MATLAB 7.3 MAT-file, Platform: GLNXA64".ljust(124) + b"\x00\x02IM")
    return path


def empty(file):
    file["Q"] = Q
    file["Q"].attrs["MATLAB_empty"] = np.uint8(1)


def text(file):
    file["Q"] = np.array([[72], [105]], dtype="<u2")
    file["Q"].attrs["MATLAB_class"] = np.bytes_("char")


def structure(file):
    file.create_group("Q")["field"] = Q


@pytest.mark.parametrize(
    ("fill", "sentence"),
    [(empty, "variable Q is empty, or of the class"), (text, "of the class b'char'"), (structure, "neither a matrix nor a sparse matrix")],
)  # fmt: skip
def test_variables_of_version_73_that_are_no_matrices(tmp_path, fill, sentence):
    with pytest.raises(ctmc.ModelError, match=sentence):
        matlab.read(put_73(tmp_path / "m.mat", fill))


def test_a_matrix_of_zeros(tmp_path):
    """MATLAB leaves out the arrays over entries, and so do we; also where nothing stands before the HDF5 part."""
    chain = ctmc.Generator.from_matrix(np.zeros((3, 3)))
    matlab.write(tmp_path / "m.mat", chain, version="7.3")
    with h5py.File(tmp_path / "m.mat") as file:
        assert list(file["Q"]) == ["jc"]
    assert matlab.read(tmp_path / "m.mat").exit_rates.tolist() == [0, 0, 0]
    (tmp_path / "bare.mat").write_bytes((tmp_path / "m.mat").read_bytes()[512:])
    assert matlab.read(tmp_path / "bare.mat").entries == 0


def test_a_matrix_with_fewer_rows_than_none(tmp_path):
    savemat(tmp_path / "m.mat", {"Q": Q})
    data = bytearray((tmp_path / "m.mat").read_bytes())
    assert data[160:168] == np.array([3, 3], dtype="<i4").tobytes()
    data[160:164] = np.array([-3], dtype="<i4").tobytes()
    (tmp_path / "m.mat").write_bytes(data)
    with pytest.raises(ctmc.StorageError, match=r"is no MATLAB file .ValueError"):
        matlab.read(tmp_path / "m.mat")


def test_what_matlab_does_not_hold(tmp_path):
    far = ctmc.model.state_space.Listed(np.array([[0], [2**53 + 1]]), (ctmc.model.state_space.Variable("x"),))
    with pytest.raises(ctmc.ModelError, match=r"numbers above 2\^53"):
        matlab.write(tmp_path / "m.mat", ctmc.Generator.from_matrix([[-1, 1], [2, -2]], far))
    with pytest.raises(ctmc.StorageError, match=r"version is '6'; allowed are '7' and '7\.3'"):
        matlab.write(tmp_path / "m.mat", random_chain(3), version="6")
    up, local, down = [[1.0]], [[-3.0]], [[2.0]]
    level = ([[2.5]], [[-3.5]], None)
    with pytest.raises(ctmc.ModelError, match="2 boundary levels with blocks of their own"):
        matlab.write(tmp_path / "m.mat", ctmc.QBD.from_blocks(up, local, down, [(None, [[-1.0]], [[1.0]]), level]))
    assert list(tmp_path.iterdir()) == []


def test_what_a_qbd_loses_is_named(tmp_path):
    queue = ctmc.QBD.from_blocks([[1.0]], [[-3.0]], [[2.0]])
    assert matlab.write(tmp_path / "a.mat", queue) == ["The names and values of the phases are not carried."]
    queue = queue.replace(rewards={"cost": ctmc.Reward(lambda states: states[:, 0])}, notes=("a note",))
    lost = matlab.write(tmp_path / "b.mat", queue)
    assert lost[1:] == ["Rewards are not carried: cost.", "Not carried: notes."]
    assert matlab.read(tmp_path / "b.mat").up.toarray().tolist() == [[1.0]]


@pytest.mark.parametrize("version", VERSIONS)
def test_memory_that_runs_out_is_no_damage(tmp_path, monkeypatch, version):
    """The child process tells it from a damaged file."""
    matlab.write(tmp_path / "m.mat", random_chain(3), version=version)

    def full(*_, **__):
        raise MemoryError

    monkeypatch.setattr("ctmc.interchange.mat_files.loadmat", full)
    monkeypatch.setattr("ctmc.interchange.mat_files.csc_array", full)
    with pytest.raises(MemoryError):
        matlab.read(tmp_path / "m.mat")


@pytest.mark.parametrize("version", VERSIONS)
@pytest.mark.parametrize("boundary", [None, "own"])
def test_qbds(tmp_path, version, boundary):
    up, down = np.array([[0.4, 0], [0.1, 0.5]]), np.array([[1.0, 0.2], [0.3, 0.9]])
    local = np.array([[-1.7, 0.1], [0.2, -2.0]])
    blocks = [(None, [[-0.5]], [[0.2, 0.3]]), ([[1.2], [1.2]], local, None)] if boundary else None
    queue = ctmc.QBD.from_blocks(up, local, down, blocks)
    matlab.write(tmp_path / "q.mat", queue, version=version)
    found = matlab.read_qbd(tmp_path / "q.mat")
    # level 0 of the first is level 0 of the second, whose boundary is one level longer
    for ours, theirs in zip(
        queue.truncate(6).to_scipy().toarray(), found.truncate(6).to_scipy().toarray(), strict=True
    ):
        np.testing.assert_allclose(ours, theirs, rtol=1e-15)
    values = [ctmc.solve(ctmc.Stationary(model)).value.boundary[0] for model in (queue, found)]
    np.testing.assert_allclose(values[0], values[1], rtol=1e-11)


def test_version_7_has_a_limit(tmp_path, monkeypatch):
    monkeypatch.setattr(matlab, "SPARSE_LIMIT", 1000)
    with pytest.raises(ctmc.ModelError, match=r"the variable Q takes .*: use version='7.3'"):
        matlab.write(tmp_path / "m.mat", random_chain(3))
    assert list(tmp_path.iterdir()) == []


# The readers of SciPy and HDF5 are compiled and can crash on a damaged file, so each is read in a process of its own, forked
# from one that has imported everything.
EACH_IN_A_PROCESS = """
import os, sys, warnings
import h5py
import ctmc
from ctmc.interchange import matlab
warnings.simplefilter("ignore")
ctmc.Generator.from_matrix([[-1, 1], [2, -2]])  # compiled code is loaded once
for path in sys.argv[1:]:
    child = os.fork()
    if not child:
        try:
            matlab.read(path)
            os._exit(0)
        except (ctmc.StorageError, ctmc.ModelError) as error:
            os._exit(1 if str(error).endswith(".") and "\\n" not in str(error) else 2)
        except BaseException:
            os._exit(3)
    print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
"""


@pytest.mark.parametrize(
    "version", [VERSIONS[-1], *(pytest.param(one, marks=pytest.mark.slow) for one in VERSIONS[:-1])]
)
def test_mutations(tmp_path, version):
    matlab.write(tmp_path / "m.mat", random_chain(7, states=12), version=version)
    whole = (tmp_path / "m.mat").read_bytes()
    paths = [tmp_path / f"{number}.mat" for number in range(300)]
    for number, path in enumerate(paths):
        path.write_bytes(mutated(whole, 1000 + number))
    done = subprocess.run(
        [sys.executable, "-c", EACH_IN_A_PROCESS, *paths], capture_output=True, text=True, check=True, timeout=100,
        env={**os.environ, "NUMBA_NUM_THREADS": "1"},
    )  # fmt: skip
    codes = [int(code) for code in done.stdout.split()]
    assert len(codes) == 300
    assert {code for code in codes if code >= 0} <= {0, 1}, [
        path for path, code in zip(paths, codes, strict=True) if code > 1
    ]
    assert codes.count(1) > 30
    crashed = [path for path, code in zip(paths, codes, strict=True) if code < 0]
    assert len(crashed) < 30
    for path in crashed[:2]:  # what kills the reader is a sentence for who calls it
        with pytest.raises(ctmc.StorageError, match="cannot be read: the process that read it died"):
            ctmc.read(path)
