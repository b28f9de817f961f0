"""Examples in the docstrings of solvers whose optional library is not installed are skipped, those that start MPI marked."""

import pytest

from ctmc import registry


def pytest_collection_modifyitems(items):
    """Mark them; pytest calls this with all tests that it found."""
    for item in items:
        if isinstance(item, pytest.DoctestItem):
            kind = item.dtest.globs.get(item.name.rpartition(".")[2])
            missing = registry.missing_library(kind)
            if getattr(kind, "library", ("", ""))[1:] == ("distributed",):
                item.add_marker(pytest.mark.mpi)
            if missing:
                item.add_marker(pytest.mark.skip(reason=f"{item.name} {missing}"))
