"""Every registered solver on every problem that it takes, and every builder; a new plug-in is tested by being there."""

import numpy as np
import pytest
from expected_names import BUILDERS, SOLVERS
from optional_libraries import skipped_without_library
from reference_models import CASES, ROWS

import ctmc
from ctmc import contract, registry

LONG = {
    "absorption_krylov-passage, rates over ten decades",
    "level_dependent-retrial queue at load .98",
    "power_iteration-Courtois",
    "power_iteration-load .999",
    "power_iteration-repairable independent",
    "value_iteration-discounted, rates over ten decades",
}
"""They take thousands of products, and are left to releases."""
EASY = {case.name for case in CASES if not case.hard}
ALIKE = [row.name for row in ROWS if row.builder == "supermarket" and row.measures][1:]
"""Other rules of the same queues: what every solver measures there is looked at below."""


def is_long(name, title):
    """Tell what else is left to releases; pardiso takes long to begin."""
    return f"{name}-{title}" in LONG or title in ALIKE or (name == "pardiso" and title in EASY)


CHECKS = [
    pytest.param(check, id=f"{name}-{title}", marks=[*marks, *([pytest.mark.slow] if is_long(name, title) else [])])
    for name in registry.solver_names()
    for marks in [skipped_without_library(name)]
    for title, check in contract.solver_checks(name, CASES)
]


def test_nothing_is_missing_from_the_sweep():
    assert set(registry.builder_names()) == BUILDERS
    assert set(registry.solver_names()) == set(SOLVERS)
    assert {row.builder for row in ROWS} == BUILDERS
    for name, least in SOLVERS.items():
        taken = [
            case for case in (*contract.cases(), *CASES) if registry.takes(registry.solver_class(name), case.problem)
        ]
        assert len(taken) >= least, name
        assert any(case.hard for case in taken), name
    assert max(row.model.size for row in ROWS if isinstance(row.model, ctmc.Generator)) <= 3000


@pytest.mark.parametrize("check", CHECKS)
def test_solver(check):
    assert check() == []


@pytest.mark.parametrize("row", ROWS, ids=lambda row: row.name)
def test_builder(row):
    assert contract.check_builder(row.builder, row.parameters) == []


@pytest.mark.parametrize("row", [row for row in ROWS if row.measures], ids=lambda row: row.name)
def test_every_solver_finds_the_reference_values(row):
    problem = ctmc.Stationary(row.model)
    accuracy = 1e-11 if row.builder == "fork_join" else 1e-9
    solvers = registry.solvers_for(problem)
    assert solvers
    for name in solvers:
        found = ctmc.solve(problem, name).measures()
        for measure, known in row.measures.items():
            np.testing.assert_allclose(found[measure], known, atol=accuracy, rtol=0, err_msg=f"{name} {measure}")
