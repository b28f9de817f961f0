"""The site of docs: built without a warning, whole, without anything of a network; pages that are made say what the code says."""

from __future__ import annotations

import builtins
import dataclasses
import doctest
import importlib.util
import inspect
import json
import os
import re
import subprocess
import symtable
import sys
import tomllib

import pytest
from browser import Browser, browser_path
from expected_names import BUILDERS, SOLVERS
from pages import HOME, blocks_of

import ctmc
from ctmc import registry
from ctmc.storage.models import MODEL_KINDS
from ctmc.verify import OTHER_KINDS

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
    assert "| error | meaning |\n| --- | --- |\n| `ModelError` | If not. |" in text
    assert text.endswith("```pycon\n>>> 1 + 1\n2\n```")


def told(made):
    """Yield everything that a page tells the docstring of."""
    for name in SOLVERS:
        yield registry.solver_class(name)
    for name in BUILDERS:
        yield registry.builder(name)
    for name in made.reference.grouped():
        yield getattr(ctmc, name)


def test_examples_have_what_they_need_where_they_are_copied_to(made):
    """Every name of an example is imported in it, and is the one that the example has where it is tested."""
    count = 0
    for thing in told(made):
        names = {}
        for line in made.docstrings.imports(thing):
            exec(line, names)
        names.pop("__builtins__", None)
        module = vars(sys.modules[inspect.unwrap(thing).__module__])
        assert all(value is module[name] for name, value in names.items())
        blocks = re.findall(r"^```pycon\n(.*?)^```", made.docstrings.markdown(thing, 3), re.DOTALL | re.MULTILINE)
        examples = [example for block in blocks for example in doctest.DocTestParser().get_examples(block)]
        assert unbound("".join(example.source for example in examples)) == set(), thing
        count += bool(names)
    assert count > len(SOLVERS)


def unbound(source):
    """Return the names that a program reads and has from nowhere."""
    top = symtable.symtable(source, "example", "exec")

    def read(table):
        found = {
            symbol.get_name()
            for symbol in table.get_symbols()
            if symbol.is_referenced() and (table is top or symbol.is_global())
        }
        return found.union(*map(read, table.get_children()))

    bound = {symbol.get_name() for symbol in top.get_symbols() if symbol.is_assigned() or symbol.is_imported()}
    return read(top) - bound - set(dir(builtins))


@pytest.mark.parametrize("name", ["gth", "absorption_lu", "birth_death", "reachable"])
def test_examples_run_where_they_are_copied_to(made, name):
    thing = registry.solver_class(name) if name in SOLVERS else registry.builder(name)
    text = made.docstrings.markdown(thing, 3)
    session = "\n".join(re.findall(r"^```pycon\n(.*?)^```", text, re.DOTALL | re.MULTILINE))
    runner = doctest.DocTestRunner(verbose=False)
    runner.run(doctest.DocTestParser().get_doctest(session, {}, name, None, 0))
    assert runner.summarize(verbose=False).failed == 0
    assert runner.tries > 2


def test_signatures_are_short_lines_without_addresses(made):
    shown = [
        line
        for page in made.reference.GROUPS
        for block in re.findall(r"^```text\n(.*?)^```", made.reference.python_page(page), re.DOTALL | re.MULTILINE)
        for line in block.splitlines()
    ]
    assert max(map(len, shown)) <= 110
    assert not [line for line in shown if " object at 0x" in line or "<" in line or ", _" in line]
    assert "ctmc.Transient(model, initial=None, times=(), tolerance=1e-10, reward=None)" in shown


def test_results_without_a_word_are_no_table(made):
    assert made.docstrings.table([("Generator or QBD", "")]) == "`Generator or QBD`"
    assert made.docstrings.table([("str", "The hash.")], first="type").startswith("| type | meaning |")


def test_all_solvers_are_listed_and_linked(made):
    page = made.solvers.index_page()
    assert page.index("## Which solver when") < page.index("## All solvers")
    listed = page.partition("## All solvers")[2]
    for name in SOLVERS:
        assert f"| [`{name}`]({name}.md) | " in listed
    table = page.partition("| solver | problem | take it |")[2].partition("## All solvers")[0]
    for name in made.solvers.advised():
        assert f"[`{name}`]({name}.md)" in table


# ---- what pages say -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("page", ["add-a-solver", "add-a-builder"])
def test_the_package_of_a_page_is_whole(page):
    """What pip needs is there, and the entry point names a file of the page that is part of the package."""
    blocks = blocks_of((HOME / "docs" / "how-to" / f"{page}.md").read_text(encoding="utf-8"))
    files = {block.marks["file"]: block.text for block in blocks if "file" in block.marks}
    found = tomllib.loads(files["pyproject.toml"])
    assert {"name", "version"} <= found["project"].keys()
    assert found["project"]["dependencies"] == ["ctmc-lab"]
    ((_, points),) = found["project"]["entry-points"].items()
    for name, place in points.items():
        module, _, value = place.partition(":")
        assert found["tool"]["setuptools"]["py-modules"] == [module]
        assert re.search(rf"^(class|def) {value}\b", files[f"{module}.py"], re.MULTILINE)
        assert name == module


def test_the_page_of_the_format_has_all_kinds():
    page = (HOME / "docs" / "storage.md").read_text(encoding="utf-8")
    kinds = {*MODEL_KINDS, "solution", *OTHER_KINDS}
    assert set(re.findall(r"`(\w+)`", re.search(r"^\| `kind` \| (.*) \|$", page, re.MULTILINE)[1])) == kinds
    assert kinds - {"search"} == set(re.findall(r"^## Kind `(\w+)`$", page, re.MULTILINE))


# ---- the whole --------------------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def site(tmp_path_factory):
    """The folder of the built site."""
    folder = tmp_path_factory.mktemp("built") / "site"
    done = subprocess.run(
        [sys.executable, "-m", "mkdocs", "build", "--strict", "-f", SITE / "mkdocs.yml", "-d", folder],
        env={**os.environ, "NO_MKDOCS_2_WARNING": "1"}, capture_output=True, text=True, timeout=200, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert "WARNING" not in done.stderr
    return folder


@needs_mkdocs
def test_the_site_is_built_without_a_warning_and_needs_no_network(site):
    pages = list(site.rglob("*.html"))
    assert len(pages) > len(SOLVERS) + 20
    loaded = re.compile(
        r"<(?:script|img|iframe|source)[^>]*\ssrc=\"?(?:https?:)?//|<link[^>]*stylesheet[^>]*(?:https?:)?//"
    )
    for page in pages:
        assert not loaded.search(page.read_text(encoding="utf-8")), page
    tutorial = (site / "tutorial.html").read_text(encoding="utf-8")
    assert "run with" not in re.sub(r"<!--.*?-->", "", tutorial, flags=re.DOTALL)
    found = json.loads((site / "search" / "search_index.json").read_text(encoding="utf-8"))
    assert {"solvers/gth.html", "reference/commands.html", "security.html"} <= {
        entry["location"] for entry in found["docs"]
    }


@needs_mkdocs
def test_files_have_their_name_over_them(site):
    page = (site / "how-to" / "own-model.html").read_text(encoding="utf-8")
    assert re.findall(r'<span class="filename">(.*?)</span>', page) == [
        "workshop.py",
        "model.tra",
        "model.sta",
        "model.lab",
    ]


@needs_mkdocs
def test_the_search_counts_how_to_more_than_changes(site):
    found = json.loads((site / "search" / "search_index.json").read_text(encoding="utf-8"))
    boosts = {entry["location"]: entry.get("boost", 1) for entry in found["docs"]}
    assert boosts["how-to/resume.html"] > boosts["storage.html"] > boosts["changes.html"]


@needs_mkdocs
@pytest.mark.skipif(browser_path() is None, reason="no browser: chromium is not installed")
def test_pages_in_a_browser(site, tmp_path):
    """No page is wider than its window, pictures are dark in the dark, and what is copied has no prompts and no output."""
    browser = Browser(tmp_path / "profile")
    try:
        for width in (400, 1280):
            browser.send(
                "Emulation.setDeviceMetricsOverride", width=width, height=900, deviceScaleFactor=1, mobile=False
            )
            for page in (
                "index",
                "tutorial",
                "coming-from",
                "security",
                "solvers/index",
                "reference/questions",
                "how-to/ask-questions",
                "how-to/own-model",
            ):
                browser.send("Page.navigate", url=(site / f"{page}.html").as_uri())
                browser.until(f"location.pathname.endsWith('{page}.html') && document.readyState === 'complete'")
                assert browser.run("document.documentElement.scrollWidth") <= width, page
        block = "document.querySelector('.md-content pre > code')"
        assert browser.run(f"{block}.innerText").startswith(">>> import ctmc")
        copied = browser.run(f"{block}.setAttribute('data-md-copying', ''), {block}.innerText")
        assert copied.startswith("import ctmc\ndef events(state):\n    down")
        assert "\n\nmodel = " in copied
        assert ">>>" not in copied
        assert "CONVERGED" not in copied
        picture = "document.querySelector('.md-typeset').appendChild(new Image())"
        browser.run("document.body.dataset.mdColorScheme = 'slate'")
        assert browser.run(f"getComputedStyle({picture}).filter").startswith("invert(1)")
    finally:
        browser.close()
