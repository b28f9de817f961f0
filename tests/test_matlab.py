"""QBDs from MATLAB files: which block is which, and what is refused."""

import numpy as np
import pytest
from scipy.io import savemat
from scipy.sparse import csc_array

import ctmc
from ctmc.interchange.matlab import read_qbd

DOWN, UP = np.array([[1.0, 0.2], [0.3, 0.9]]), np.array([[0.4, 0], [0.1, 0.5]])
LOCAL = np.array([[-1.7, 0.1], [0.2, -2.0]])


def write(path, **variables):
    savemat(path, variables)
    return path


def test_a0_leads_down(tmp_path):
    queue = read_qbd(write(tmp_path / "q.mat", A0=DOWN, A1=csc_array(LOCAL), A2=UP, comment="ours"))
    np.testing.assert_array_equal(queue.down.toarray(), DOWN)
    np.testing.assert_array_equal(queue.up.toarray(), UP)
    assert queue.boundary_levels == 1
    assert queue.drift < 0


def test_boundary_of_its_own_size(tmp_path):
    blocks = {"B1": [[-0.5]], "B2": [[0.2, 0.3]], "B0": [[1.2], [1.2]]}
    queue = read_qbd(write(tmp_path / "q.mat", A0=DOWN, A1=LOCAL, A2=UP, **blocks))
    assert [level.local.shape[0] for level in queue.boundary] == [1, 2]
    assert ctmc.solve(ctmc.Stationary(queue)).converged


def test_discrete_time_is_asked_for(tmp_path):
    path = write(tmp_path / "q.mat", A0=DOWN / 4, A1=LOCAL / 4 + np.eye(2), A2=UP / 4)
    np.testing.assert_allclose(read_qbd(path, discrete_time=True).local.toarray(), LOCAL / 4, atol=1e-15)
    with pytest.raises(ctmc.ModelError, match="sums to"):
        read_qbd(path)


@pytest.mark.parametrize(
    ("change", "sentence"),
    [
        ({"A2": None}, "has no variable A2"),
        ({"B1": [[1.0]]}, "has B1 only; allowed are all of B0, B1, B2, or none"),
        ({"A0": np.array([[DOWN, "x"]], dtype=object)}, "variable A0 .* has the type object"),
        ({"A0": {"field": 1.0}}, "variable A0"),
        ({"A0": np.ones((2, 2, 2))}, "3 dimensions"),
        ({"A0": DOWN + 1j}, "complex128"),
        ({"A0": np.ones((3, 3))}, "block down has shape"),
        ({"A0": "down"}, "variable A0"),
    ],
)
def test_what_is_refused(tmp_path, change, sentence):
    variables = {"A0": DOWN, "A1": LOCAL, "A2": UP} | change
    path = write(tmp_path / "q.mat", **{name: value for name, value in variables.items() if value is not None})
    with pytest.raises(ctmc.ModelError, match=sentence):
        read_qbd(path)


def test_files_that_are_none(tmp_path):
    with pytest.raises(ctmc.StorageError, match="cannot be read"):
        read_qbd(tmp_path / "missing.mat")
    bad = tmp_path / "bad.mat"
    bad.write_bytes(b"not a MATLAB file at all, but long enough to have a header" * 10)
    with pytest.raises(ctmc.StorageError, match="no MATLAB file"):
        read_qbd(bad)
