"""What the metadata say in several places is one thing: versions, dependencies, license, supported Pythons; tables of docs/release.md."""

from __future__ import annotations

import ast
import configparser
import importlib
import importlib.util
import re
import sys
import tomllib

import pytest
from pages import HOME

import ctmc

SETUP = configparser.ConfigParser(interpolation=None)
SETUP.read(HOME / "setup.cfg", encoding="utf-8")
RECIPE = (HOME / ".ci" / "conda" / "recipe.yaml").read_text(encoding="utf-8")
CITATION = (HOME / "CITATION.cff").read_text(encoding="utf-8")
WORKFLOW = (HOME / ".github" / "workflows" / "ci.yml").read_text(encoding="utf-8")


def lines(section, option):
    """Return the entries of a list in setup.cfg, without comments."""
    return [line for line in SETUP[section][option].strip().splitlines() if not line.startswith("#")]


def entry(text, key):
    """Return the value of a key of a file in YAML that is one plain or quoted word or line."""
    return re.search(rf'^ *{key}: "?(.*?)"?$', text, re.MULTILINE)[1]


def listed(text, key):
    """Return the items of the list under a key of a file in YAML."""
    return re.findall(r"^ *- (.*)$", re.search(rf"^ *{key}:\n((?: *- .*\n)+)", text, re.MULTILINE)[1], re.MULTILINE)


# modules of other names, or of packages that another one brings
BROUGHT = {"markupsafe": "jinja2", "scikits": "scikit-umfpack"}
PYTHONS = [line.split()[-1] for line in lines("metadata", "classifiers") if re.search(r":: 3\.\d+$", line)]
NEEDED = lines("options", "install_requires")
EXTRAS = {name: lines("options.extras_require", name) for name in SETUP["options.extras_require"]}


def test_the_version_is_the_same_everywhere():
    assert SETUP["metadata"]["version"] == "attr: ctmc.__version__"
    assert entry(CITATION, "version") == entry(RECIPE, "version") == ctmc.__version__


def test_the_license_is_the_same_everywhere():
    license_name = SETUP["metadata"]["license_expression"]
    assert license_name == entry(CITATION, "license") == entry(RECIPE, "license")
    words = (HOME / "LICENSE").read_text(encoding="utf-8").lower()
    assert set(re.findall(r"\w+", license_name.lower())) <= set(re.findall(r"\w+", words)) | {"bsd", "3"}
    assert words.startswith("bsd 3-clause license")


def test_authors_and_summary_are_the_same_everywhere():
    assert f'name: "{SETUP["metadata"]["author"]}"' in CITATION
    summary = SETUP["metadata"]["description"]
    assert entry(RECIPE, "summary") == summary
    assert entry(CITATION, "title").lower() == f"{SETUP['metadata']['name']}: {summary}".lower()


def test_the_conda_package_needs_what_the_wheel_needs():
    python = "python " + SETUP["options"]["python_requires"]
    assert listed(RECIPE, "run") == [python, *(name.replace(">=", " >=") for name in NEEDED)]
    with open(HOME / "pyproject.toml", "rb") as file:
        backend = tomllib.load(file)["build-system"]["requires"]
    assert listed(RECIPE, "host") == [python, "pip", *(name.replace(">=", " >=") for name in backend)]
    script = lines("options.entry_points", "console_scripts")
    assert listed(RECIPE, "entry_points") == script


@pytest.mark.skipif(importlib.util.find_spec("rattler_build") is None, reason="py-rattler-build is not installed")
def test_rattler_build_reads_the_recipe():
    import rattler_build

    recipe = rattler_build.Stage0Recipe.from_file(HOME / ".ci" / "conda" / "recipe.yaml")
    (variant,) = recipe.render(rattler_build.VariantConfig())
    assert variant.recipe.to_dict()["package"] == {"name": SETUP["metadata"]["name"], "version": ctmc.__version__}


def test_every_requirement_states_its_oldest_version():
    for name in sum(EXTRAS.values(), NEEDED):
        assert re.match(r"[\w-]+(>=[\d.]+(,<[\d.]+)?|<5)$", name), name


def test_the_extra_all_has_the_versions_of_the_others():
    others = {requirement for name, extra in EXTRAS.items() if name not in ("all", "test") for requirement in extra}
    assert set(EXTRAS["all"]) <= others
    for name in ("all", "test"):
        stated = {re.split("[<>]", requirement)[0]: requirement for requirement in others}
        for requirement in EXTRAS[name]:
            assert stated.get(re.split("[<>]", requirement)[0], requirement) == requirement


def test_what_the_code_imports_is_stated():
    """Whatever the packages import, at the top or when it is needed, is part of Python, ours, or stated."""
    stated = {re.split("[<>]", requirement)[0] for requirement in sum(EXTRAS.values(), NEEDED)}
    found = set()
    for room in ("ctmc", "builders", "solvers"):
        for path in (HOME / room).rglob("*.py"):
            for node in ast.walk(ast.parse(path.read_bytes())):
                modules = [alias.name for alias in node.names] if isinstance(node, ast.Import) else []
                if isinstance(node, ast.ImportFrom) and not node.level:
                    modules = [node.module]
                found |= {module.partition(".")[0] for module in modules}
    found -= {*sys.stdlib_module_names, "ctmc", "builders", "solvers"}
    assert {"numpy", "h5py", "networkx", "psutil", "pyamg"} <= found
    assert found - BROUGHT.keys() <= stated
    assert {BROUGHT[name] for name in found & BROUGHT.keys()} <= stated


def test_pythons_are_those_that_are_tested():
    assert SETUP["options"]["python_requires"] == f">={PYTHONS[0]}"
    matrix = re.search(r"python: \[(.*)\]", WORKFLOW)[1]
    assert re.findall(r"3\.\d+", matrix) == PYTHONS
    with open(HOME / "pyproject.toml", "rb") as file:
        assert tomllib.load(file)["tool"]["ruff"]["target-version"] == "py" + PYTHONS[0].replace(".", "")
    assert f"Python {PYTHONS[0]} or newer" in (HOME / "docs" / "index.md").read_text(encoding="utf-8")
    page = (HOME / "docs" / "release.md").read_text(encoding="utf-8")
    assert re.findall(r"^\| (3\.\d+) \|", page, re.MULTILINE) == PYTHONS


def test_doctor_looks_at_everything_that_is_needed():
    doctor = importlib.import_module("ctmc.cli.doctor")
    seen = {name for name, _, _ in doctor._libraries()}
    assert {re.split("[<>]", requirement)[0] for requirement in NEEDED} <= seen


def test_all_packages_are_installed():
    stated = set(lines("options", "packages")) - {"ctmc.data", "ctmc.data.studies", "ctmc.data.reference"}
    there = {
        str(path.parent.relative_to(HOME)).replace("/", ".")
        for room in ("ctmc", "builders", "solvers")
        for path in (HOME / room).rglob("__init__.py")
    }
    assert stated == there


def test_the_paper_is_as_long_as_it_may_be_and_cites_what_it_has():
    page = (HOME / "docs" / "paper" / "paper.md").read_text(encoding="utf-8")
    library = (HOME / "docs" / "paper" / "paper.bib").read_text(encoding="utf-8")
    body = page.split("---\n", 2)[2]
    assert 250 <= len(body.split()) <= 1000
    assert set(re.findall(r"@([a-z][\w-]+)", body)) == set(re.findall(r"^@\w+\{([\w-]+),", library, re.MULTILINE))
