"""Marks for tests of solvers that stand on libraries which need not be installed."""

import pytest

from ctmc import registry


def skipped_without_library(solver):
    """Return the marks of a test of this solver: one that skips it where its library is missing, or none."""
    missing = registry.missing_library(registry.solver_class(solver))
    return (pytest.mark.skip(reason=f"{solver} {missing}"),) if missing else ()
