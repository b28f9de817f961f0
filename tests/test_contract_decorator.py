"""The decorator that makes a test of each check, and a solver in a package of its own that uses it."""

from __future__ import annotations

import os
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest
from contract_examples import Compliant, Forgetful, Iterative, Melting

import ctmc
from ctmc.contract import parametrize_with_checks, solver_checks
from ctmc.errors import UnknownNameError

HOME = Path(ctmc.__file__).resolve().parents[1]


# ---- the decorator ---------------------------------------------------------------------------------------------------------


@parametrize_with_checks(Compliant, "gth")
def test_decorated(check):
    check()


@parametrize_with_checks(Forgetful, Melting, expected_failures={"options": "known to be wrong"})
def test_decorated_with_failures(check):
    check()


@parametrize_with_checks(Compliant, Forgetful, expected_failures={"forgetful-options": "only this one"})
def test_decorated_with_a_failure_of_one_solver(check):
    check()


def parameters_of(*solvers, **options):
    @parametrize_with_checks(*solvers, **options)
    def decorated(check):
        check()

    return decorated.pytestmark[0].args[1]


def test_decorator_gives_one_test_per_check():
    found = parameters_of("gmres(restart=30)", Compliant, Iterative())
    identities = [item.id for item in found]
    assert len(set(identities)) == len(identities)
    for title in ("gmres(restart=30)", "compliant", "iterative"):
        assert f"{title}-options" in identities
        assert f"{title}-refusal" in identities
    assert repr(found[1].values[0].check.args[0]).startswith("Gmres(restart=30")


def test_a_failing_check_raises_with_its_sentences():
    (options,) = [item for item in parameters_of(Forgetful) if item.id == "forgetful-options"]
    with pytest.raises(AssertionError, match="repr of Forgetful does not give it back"):
        options.values[0]()


@pytest.mark.parametrize("name", ["no such check", "gth-optoins", "lying-options"])
def test_stale_reasons_are_errors(name):
    with pytest.raises(UnknownNameError, match="There is no check"):
        parametrize_with_checks("gth", expected_failures={name: "gone"})


def test_expected_failures_are_strict():
    (options,) = [
        item for item in parameters_of("gth", expected_failures={"options": "because"}) if item.id == "gth-options"
    ]
    (mark,) = options.marks
    assert (mark.name, mark.kwargs) == ("xfail", {"reason": "because", "strict": True})


# ---- a solver in a package of its own -------------------------------------------------------------------------------------------

THIRD_PARTY = '''
"""A solver that nobody here has heard of."""
from dataclasses import dataclass
from typing import ClassVar

import numpy as np
import ctmc


@dataclass(frozen=True, kw_only=True)
class ThirdPartySolver:
    """Inverts a matrix.

    condition_limit : float
        Largest condition number.
    """

    solves: ClassVar = (ctmc.Stationary,)
    needs: ClassVar = ctmc.Generator
    condition_limit: float = 1e14

    def run(self, problem, trace):
        matrix = problem.model.to_scipy().toarray()
        matrix[:, 0] = 1.0
        right = np.zeros(len(matrix))
        right[0] = 1.0
        pi = np.maximum(np.linalg.solve(matrix.T, right), 0)
        return ctmc.Outcome(pi / pi.sum())
'''


def test_a_third_party_solver_is_found_used_and_tested_by_one_line(tmp_path):
    site, work = tmp_path / "site", tmp_path / "work"
    info = site / "elsewhere-2.0.dist-info"
    info.mkdir(parents=True)
    work.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: elsewhere\nVersion: 2.0\n")
    (info / "entry_points.txt").write_text("[ctmc.solvers]\nthird_party_solver = elsewhere:ThirdPartySolver\n")
    (site / "elsewhere.py").write_text(THIRD_PARTY)
    (work / "test_elsewhere.py").write_text(
        textwrap.dedent(
            """
            import ctmc
            from ctmc.contract import parametrize_with_checks

            def test_use():
                queue = ctmc.build("birth_death", births=[1.0] * 4, deaths=[2.0] * 4)
                solution = ctmc.solve(ctmc.Stationary(queue), "third_party_solver(condition_limit=1e12)")
                assert solution.solver == "ThirdPartySolver(condition_limit=1000000000000.0)"
                assert abs(solution.value[0] - 16 / 31) < 1e-14

            @parametrize_with_checks("third_party_solver")
            def test_contract(check):
                check()
            """
        )
    )
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join([str(site), str(HOME)])}
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "-W", "error", "-rf", "."],
        cwd=work, env=environment, capture_output=True, text=True, timeout=200,
    )  # fmt: skip
    passed = len([name for name, _ in solver_checks("gth")]) + 1
    assert done.returncode == 0, done.stdout + done.stderr
    assert f"{passed} passed" in done.stdout
