"""Marks for tests of solvers that stand on libraries which need not be installed."""

import pytest

from ctmc import registry


def skipped_without_library(solver):
    """Return the marks of a test of this solver: one that skips it where its library is missing, `mpi` where that starts MPI."""
    kind = registry.solver_class(solver)
    missing = registry.missing_library(kind)
    skipped = (pytest.mark.skip(reason=f"{solver} {missing}"),) if missing else ()
    return (*skipped, pytest.mark.mpi) if starts_mpi(kind) else skipped


def starts_mpi(kind):
    """Return whether a solver stands on MPI: its tests are run apart from the others."""
    return getattr(kind, "library", ("", ""))[1] == "distributed"
