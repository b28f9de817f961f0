"""The site of docs: built without a warning, whole, without anything of a network; pages that are made say what the code says."""

from __future__ import annotations

import dataclasses
import importlib.util
import json
import os
import re
import subprocess
import sys

import pytest
from expected_names import BUILDERS, SOLVERS
from pages import HOME

import ctmc
from ctmc import registry

SITE = HOME / "docs" / "site"
needs_mkdocs = pytest.mark.skipif(
    importlib.util.find_spec("mkdocs") is None or importlib.util.find_spec("material") is None,
    reason="mkdocs-material is not installed: extra docs",
)


@pytest.fixture(scope="module")
def made():
    """Return the modules that make pages."""
    sys.path.insert(0, str(SITE))
    try:
        import docstrings
        import reference_pages
        import solver_pages
    finally:
        sys.path.remove(str(SITE))
    yield type("Made", (), {"docstrings": docstrings, "reference": reference_pages, "solvers": solver_pages})
    for name in ("docstrings", "reference_pages", "solver_pages"):
        del sys.modules[name]


# ---- what is measured -------------------------------------------------------------------------------------------------------


def test_the_rows_that_are_kept_are_those_of_the_readme(made):
    """The numbers of runs, and the table of solvers, that the pages of README and benchmarks tell."""
    kept = made.solvers.measured()
    readme = (HOME / "README.md").read_text(encoding="utf-8")
    certified = sum(run["status"] == "CONVERGED" for run in kept["runs"])
    assert f"{certified} of {len(kept['runs'])} runs gave a certified answer" in readme
    assert f"Every stationary solver on {len(kept['models'])} models" in readme
    figures = (HOME / "benchmarks" / "README.md").read_text(encoding="utf-8")
    for row in kept["solvers"]:
        cells = re.search(rf"^\| `{row['solver']}` \| (\d+) of (\d+) \| (\d+) \|", figures, re.MULTILINE)
        assert cells is not None
        assert [int(cell) for cell in cells.groups()] == [row["certified"], row["tried"], row["wins"][0]]


def test_every_solver_of_one_machine_is_in_the_table_of_the_readme(made):
    ranks = {
        name
        for name in SOLVERS
        if (getattr(registry.solver_class(name), "library", None) or ("", ""))[1] == "distributed"
    }
    assert set(made.solvers.advised()) >= set(SOLVERS) - ranks


@pytest.mark.parametrize("name", SOLVERS)
def test_the_page_of_a_solver(made, name):
    page = made.solvers.solver_page(name)
    kind = registry.solver_class(name)
    assert page.startswith(f"# {name}\n")
    assert f"ctmc solve model.h5 --solver {name}" in page
    for problem in kind.solves:
        assert registry.problem_name(problem) in page
    for option in dataclasses.fields(kind):
        assert f"`{option.name}=" in page
    for take in made.solvers.advised().get(name, ()):
        assert take in page
    runs = [run for run in made.solvers.measured()["runs"] if run["solver"] == name and run["status"] != "REFUSED"]
    rows = re.findall(r"^\| .* \| .* \| ([A-Z_]+) \|", page, re.MULTILINE)
    assert rows == [run["status"] for run in runs]
    assert page.count("```") % 2 == 0


# ---- what is told of the code -----------------------------------------------------------------------------------------------


def test_the_reference_has_all_public_names(made):
    grouped = made.reference.grouped()
    assert set(grouped) == set(ctmc.__all__) - {"__version__"}
    for page in made.reference.GROUPS:
        text = made.reference.python_page(page)
        for name in [name for name, where in grouped.items() if where == page]:
            assert f"## ctmc.{name} " in text
    assert "### Solution.expected" in made.reference.python_page("questions")


def test_builders_commands_and_studies_are_all_there(made):
    builders, commands, studies = (
        made.reference.builders_page(),
        made.reference.commands_page(),
        made.reference.studies_page(),
    )
    for name in BUILDERS:
        assert f"\n## {name}\n" in builders
    for name in ("build", "solve", "store prune", "compare", "verify"):
        assert f"\n## ctmc {name}\n" in commands
    assert "--allow-code" in commands
    for path in (HOME / "data" / "studies").glob("*.toml"):
        assert path.read_text(encoding="utf-8").strip() in studies


def example(low, high=None):
    """Return x < y, see `gth` and ``a_b``; *Book*, doi:10.1137/1.9780898719628.

    A second_paragraph that is
    - not a list, with [brackets].

    Parameters
    ----------
    low : float
        Of |x|
        or less.
    high : str, optional

    Raises
    ------
    ModelError
        If not.

    Examples
    --------
    >>> 1 + 1
    2
    """


def test_docstrings_as_markdown(made):
    text = made.docstrings.markdown(example, 3, {"gth": "gth.md"}.get)
    assert "x &lt; y, see [`gth`](gth.md) and ``a_b``; *Book*" in text
    assert "[doi:10.1137/1.9780898719628](https://doi.org/10.1137/1.9780898719628)." in text
    assert r"A second\_paragraph that is - not a list, with \[brackets]." in text
    assert "### Parameters\n\n| name | type | meaning |" in text
    assert "| `low` | float | Of &#124;x&#124; or less. |\n| `high` | str, optional |  |" in text
    assert "| | meaning |\n| --- | --- |\n| `ModelError` | If not. |" in text
    assert text.endswith("```pycon\n>>> 1 + 1\n2\n```")


# ---- the whole --------------------------------------------------------------------------------------------------------------


@needs_mkdocs
def test_the_site_is_built_without_a_warning_and_needs_no_network(tmp_path):
    done = subprocess.run(
        [sys.executable, "-m", "mkdocs", "build", "--strict", "-f", SITE / "mkdocs.yml", "-d", tmp_path / "site"],
        env={**os.environ, "NO_MKDOCS_2_WARNING": "1"}, capture_output=True, text=True, timeout=200, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert "WARNING" not in done.stderr
    pages = list((tmp_path / "site").rglob("*.html"))
    assert len(pages) > len(SOLVERS) + 20
    loaded = re.compile(
        r"<(?:script|img|iframe|source)[^>]*\ssrc=\"?(?:https?:)?//|<link[^>]*stylesheet[^>]*(?:https?:)?//"
    )
    for page in pages:
        assert not loaded.search(page.read_text(encoding="utf-8")), page
    tutorial = (tmp_path / "site" / "tutorial.html").read_text(encoding="utf-8")
    assert "run with" not in re.sub(r"<!--.*?-->", "", tutorial, flags=re.DOTALL)
    found = json.loads((tmp_path / "site" / "search" / "search_index.json").read_text(encoding="utf-8"))
    assert {"solvers/gth.html", "reference/commands.html", "security.html"} <= {
        entry["location"] for entry in found["docs"]
    }
