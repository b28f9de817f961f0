"""Builders and solvers by name: what is found, options as text, entry points, and packages that shadow ours."""

from __future__ import annotations

import importlib.metadata
import os
import subprocess
import sys
import textwrap
from pathlib import Path

import numpy as np
import pytest
from expected_names import BUILDERS, SOLVERS

import ctmc
from ctmc import registry
from ctmc.errors import ModelError, PluginError, UnknownNameError
from ctmc.problem import Stationary, Transient
from solvers.stationary.gmres import Gmres
from solvers.stationary.gth import Gth

HOME = Path(ctmc.__file__).resolve().parents[1]


# ---- names ------------------------------------------------------------------------------------------------------------------


def test_everything_is_found():
    assert set(registry.solver_names()) >= set(SOLVERS)
    assert set(registry.builder_names()) >= set(BUILDERS)
    assert registry.solver_names() == sorted(registry.solver_names())


def test_every_name_loads():
    for name in registry.solver_names():
        kind = registry.solver_class(name)
        assert registry.solver_name(kind()) == name
        assert registry.snake_case(kind.__name__) == name
    for name in registry.builder_names():
        assert callable(registry.builder(name))
        assert registry.builder_version(name) >= 1
        assert registry.builder_parameters(name).parameters


@pytest.mark.parametrize(
    ("camel", "snake"),
    [
        ("Gth", "gth"),
        ("PowerIteration", "power_iteration"),
        ("SparseLu", "sparse_lu"),
        ("Level2Reduction", "level2_reduction"),
    ],
)
def test_snake_and_camel_case(camel, snake):
    assert registry.snake_case(camel) == snake
    assert registry._camel_case(snake) == camel


@pytest.mark.parametrize(
    ("ask", "words"),
    [
        (lambda: registry.solver_class("gmress"), ["no solver 'gmress'", "did you mean 'gmres'"]),
        (lambda: registry.make_solver("sparselu"), ["no solver 'sparselu'", "'sparse_lu'"]),
        (lambda: registry.solver_class("x"), ["no solver 'x'", "known are", "gauss_seidel", "uniformization"]),
        (lambda: registry.builder("super_market"), ["no builder 'super_market'", "'supermarket'"]),
        (lambda: ctmc.build("birthdeath"), ["no builder 'birthdeath'", "'birth_death'"]),
        (lambda: registry.problem_class("stationry"), ["no problem 'stationry'", "'stationary'"]),
        (lambda: registry.solver_class("gth\x1b[2J\n"), ["no solver 'gth\\x1b[2J\\n'"]),
        (lambda: registry.make_solver("gmres(restrat=5)"), ["no option of gmres 'restrat'", "'restart'"]),
        (lambda: registry.solver_with("gth", {"restart": 5}), ["no option of gth 'restart'", "none is known"]),
        (lambda: registry.solver_class("_options"), ["no solver '_options'"]),
        (lambda: registry.solver_class("../../gth"), ["no solver"]),
    ],
)
def test_unknown_names(ask, words):
    with pytest.raises(UnknownNameError) as caught:
        ask()
    assert all(word in str(caught.value) for word in words), caught.value
    assert "\n" not in str(caught.value)


def test_problems_by_name():
    assert registry.problem_class("stationary") is Stationary
    assert registry.problem_class("transient") is Transient


# ---- options as text ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "solver"),
    [
        ("gmres", Gmres()),
        ("  gmres  ", Gmres()),
        ("gmres()", Gmres()),
        ("gmres ( restart = 50 )", Gmres(restart=50)),
        ("gmres(restart=50, preconditioner='ilu')", Gmres(restart=50, preconditioner="ilu")),
        ('gmres(preconditioner="none",\n drop_tolerance=1e-4,)', Gmres(preconditioner="none", drop_tolerance=1e-4)),
        ("gth", Gth()),
    ],
)
def test_solvers_from_text(text, solver):
    assert registry.make_solver(text) == solver


def test_solvers_are_made_from_their_repr():
    for name in registry.solver_names():
        solver = registry.solver_class(name)()
        options = repr(solver).partition("(")[2]
        assert registry.make_solver(f"{name}({options}") == solver


@pytest.mark.parametrize(
    "text",
    [
        "gmres(restart=__import__('os'))",
        "gmres(restart=__import__('os').system('touch marker'))",
        "gmres(restart=open('marker', 'w'))",
        "gmres(restart=[open('marker', 'w') for _ in '1'])",
        "gmres(restart=(lambda: 1)())",
        "gmres(restart=exit)",
        "gmres(50)",
        "gmres(*[50])",
        "gmres(**{'restart': 50})",
        "gmres(restart=50)(restart=60)",
        "gmres(restart=50, restart=60)",
        "gmres(restart=50) + f(x=1)",
        "gmres(restart=50",
        "gmres(restart=)",
        "gmres(restart=50));f(",
        "gmres(restart={[]: 1})",
        "gmres(restart={{}})",
        "gmres(restart=-'a')",
        "gmres(restart=1 if True else 2)",
        "gmres(restart=f'{1}')",
        "gmres(restart=" + "(" * 5000 + ")" * 5000 + ")",
        "gmres(restart=" + "-" * 100_000 + "1)",
        "gmres(restart=" + "9" * 10_000 + ")",
        "gmres(\0)",
        "gmres(restart='\ud800')restart",
        "gmres; import os",
        "gmres restart=50",
        "os.system('touch marker')",
        "",
        "()",
    ],
)
def test_hostile_text(text, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    with pytest.raises(
        ModelError, match=r"^solver is .*(plain values|NAME or NAME\(option=value, \.\.\.\))\.$"
    ) as caught:
        registry.make_solver(text)
    assert len(str(caught.value)) < 200
    assert not list(tmp_path.iterdir())


def test_values_are_checked_by_the_solver():
    for text in ("gmres(restart=0)", "gmres(restart=True)", "gmres(restart='50')", "gmres(drop_tolerance=1e999)"):
        with pytest.raises(ModelError, match="allowed is a"):
            registry.make_solver(text)


# ---- which solver takes what -----------------------------------------------------------------------------------------------------


def test_solvers_for_a_problem():
    queue = ctmc.build("birth_death", births=[1.0], deaths=[2.0])
    stationary = registry.solvers_for(Stationary(queue))
    assert {"gth", "gmres", "gauss_seidel", "power_iteration", "sparse_lu"} <= set(stationary)
    assert "uniformization" not in stationary
    assert "uniformization" in registry.solvers_for(Transient(queue, times=[1.0]))
    infinite = registry.solvers_for(Stationary(ctmc.QBD.from_blocks([[1.0]], [[-3.0]], [[2.0]])))
    assert {"logarithmic_reduction", "cyclic_reduction", "rank_one"} <= set(infinite)
    assert not set(infinite) & set(stationary)


def test_a_solver_may_refuse_a_model_for_its_structure():
    queue = ctmc.QBD.from_blocks(np.eye(2), [[-3.5, 0.5], [0.5, -3.5]], 2 * np.eye(2))
    assert "rank_one" not in registry.solvers_for(Stationary(queue))
    with pytest.raises(
        ctmc.UnsupportedProblemError, match=r"on a QBD \(neither down nor up has rank one\); solvers that do"
    ):
        ctmc.solve(Stationary(queue), "rank_one")


# ---- entry points ------------------------------------------------------------------------------------------------------------------


def python(program, cwd, *paths):
    """Run a program with these folders first on the path; (exit code, standard output, standard error)."""
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join([*map(str, paths), str(HOME)])}
    done = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(program)],
        cwd=cwd,
        env=environment,
        capture_output=True,
        text=True,
        timeout=120,
    )
    return done.returncode, done.stdout, done.stderr


def package(folder, name, entry_points, **modules):
    """An installed distribution: modules, and a dist-info folder with entry points."""
    info = folder / f"{name}-1.0.dist-info"
    info.mkdir(parents=True)
    (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: 1.0\n")
    (info / "entry_points.txt").write_text(textwrap.dedent(entry_points))
    for module, text in modules.items():
        (folder / f"{module}.py").write_text(textwrap.dedent(text))
    return folder


GOOD = """
    from dataclasses import dataclass
    from typing import ClassVar
    import ctmc
    from ctmc.model.elimination import gth


    class Inner:
        @dataclass(frozen=True, kw_only=True)
        class Nested:
            solves: ClassVar = (ctmc.Stationary,)
            needs: ClassVar = ctmc.Generator

            def run(self, problem, trace):
                return ctmc.Outcome(gth(problem.model.to_scipy().toarray()))


    @ctmc.builder(version=1)
    def coin(rate):
        return ctmc.Generator.from_matrix([[0, rate], [rate, 0]])
"""


def test_entry_points_of_installed_packages(tmp_path):
    folder = package(
        tmp_path / "site",
        "others",
        """
        [ctmc.solvers]
        nested = good:Inner.Nested
        broken = no_such_module:Solver
        missing = good:Missing
        quits = quits:Solver
        number = good:__name__
        half = half:Half
        vague = half:Vague

        [ctmc.builders]
        coin = good:coin
        text = good:__name__
        """,
        good=GOOD,
        quits="raise SystemExit(3)",
        half="""
            from dataclasses import dataclass

            @dataclass
            class Half:
                solves = ()

            @dataclass
            class Vague:
                solves = "stationary"
                needs = None

                def run(self, problem, trace):
                    pass
        """,
    )
    code, out, err = python(
        """
        import ctmc
        from ctmc import registry
        names = ["nested", "broken", "missing", "quits", "number", "half", "vague"]
        assert set(names) <= set(registry.solver_names())
        assert {"coin", "text"} <= set(registry.builder_names())
        coin = ctmc.build("coin", rate=2.0)
        print(ctmc.solve(ctmc.Stationary(coin), "nested").value.tolist())
        for name in names[1:]:
            try:
                registry.make_solver(name)
            except ctmc.PluginError as error:
                print(error)
        try:
            registry.builder("text")
        except ctmc.PluginError as error:
            print(error)
        # what is broken spoils only its own name
        assert "nested" in registry.solvers_for(ctmc.Stationary(coin))
        print(ctmc.solve(ctmc.Stationary(coin), "gth").status.name)
        """,
        tmp_path,
        folder,
    )
    assert code == 0, err
    lines = out.splitlines()
    assert lines[0] == "[0.5, 0.5]"
    assert lines[1].startswith("solver 'broken' (no_such_module) failed to load: ModuleNotFoundError")
    assert lines[2].startswith("solver 'missing' (good) failed to load: AttributeError")
    assert lines[3] == "solver 'quits' (quits) failed to load: SystemExit: 3."
    assert lines[4:6] == [
        f"solver {name!r} is not a dataclass with `solves`, `needs` and `run`." for name in ("number", "half")
    ]
    assert lines[6] == "solver 'vague' has solves = 'stationary'; allowed is a tuple of classes."
    assert lines[7] == "builder 'text' is a str; a builder is a function."
    assert lines[8:] == ["CONVERGED"]


@pytest.mark.parametrize(
    ("group", "name", "ours"),
    [("solvers", "gth", "solvers.stationary.gth:Gth"), ("builders", "birth_death", "builders.birth_death:birth_death")],
)
def test_a_name_defined_twice_names_both(tmp_path, group, name, ours):
    folder = package(tmp_path / "site", "others", f"[ctmc.{group}]\n{name} = good:coin\n", good=GOOD)
    code, out, err = python(
        f"""
        from ctmc import registry
        from ctmc.errors import PluginError
        try:
            registry.{group[:-1]}_names()
        except PluginError as error:
            print(error)
        """,
        tmp_path,
        folder,
    )
    assert code == 0, err
    assert out == f"the name {name!r} is defined twice: by {ours} and by good:coin.\n"


def test_two_packages_with_the_same_name(monkeypatch):
    entries = [
        importlib.metadata.EntryPoint("mine", "first:Solver", "ctmc.solvers"),
        importlib.metadata.EntryPoint("mine", "first:Solver", "ctmc.solvers"),  # the same one, seen twice on the path
    ]
    monkeypatch.setattr(importlib.metadata, "entry_points", lambda group: entries)
    assert "mine" in registry.solver_names()
    both = [*entries, importlib.metadata.EntryPoint("mine", "second:Solver", "ctmc.solvers")]
    monkeypatch.setattr(importlib.metadata, "entry_points", lambda group: both)
    with pytest.raises(PluginError, match="the name 'mine' is defined twice: by first:Solver and by second:Solver"):
        registry.solver_names()


@pytest.mark.parametrize("shadow", ["solvers", "builders"])
@pytest.mark.parametrize("form", ["package", "module", "namespace"])
def test_a_package_that_shadows_ours_is_named_with_both_places(tmp_path, shadow, form):
    folder = tmp_path / "other"
    place = folder / shadow
    folder.mkdir()
    if form == "module":
        place.with_suffix(".py").write_text("raise RuntimeError('imported')")
        place = folder
    else:
        place.mkdir()
        if form == "package":
            (place / "__init__.py").write_text("raise RuntimeError('imported')")
    code, out, err = python(
        f"""
        import ctmc
        from ctmc import registry
        try:
            registry.{shadow[:-1]}_names()
        except ctmc.PluginError as error:
            print(error)
        """,
        tmp_path,
        folder,
    )
    assert code == 0, err
    if form == "namespace":
        assert out == ""  # a folder without __init__.py does not get in the way: Python goes on to ours
    else:
        assert out == (
            f"the package {shadow!r} is shadowed: ours is in {HOME / shadow}, but Python finds {place}; "
            "rename or remove that one.\n"
        )
