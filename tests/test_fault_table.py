"""The table of faults: every kind has tests, every test is there and runs, and the page shows what the table says."""

from __future__ import annotations

import ast
import functools
import re
from pathlib import Path

import pytest
from fault_table import AREAS, HEADING, PAGE, Fault, page_with, section

FAULTS = [fault for faults in AREAS.values() for fault in faults]
HERE = Path(__file__).parent


@functools.cache
def parsed(module: str) -> ast.Module:
    return ast.parse((HERE / f"{module}.py").read_text())


def functions(file: str) -> dict[str, ast.FunctionDef]:
    return {node.name: node for node in parsed(f"test_{file}").body if isinstance(node, ast.FunctionDef)}


@functools.cache
def words(module: str) -> frozenset[str]:
    """Return all text in a module, names of functions, and what stands in the modules beside it that it imports from."""
    nodes = list(ast.walk(parsed(module)))
    found = {node.value for node in nodes if isinstance(node, ast.Constant) and isinstance(node.value, str)}
    found |= {node.name for node in nodes if isinstance(node, ast.FunctionDef)}
    for node in parsed(module).body:
        if isinstance(node, ast.ImportFrom) and node.module and (HERE / f"{node.module}.py").exists():
            found |= words(node.module)
    return frozenset(found)


def always_skipped(function: ast.FunctionDef) -> bool:
    """Whether a test is marked as skipped, or as one that fails, without a condition."""
    return any(re.search(r"mark\.(skip|xfail)\b(?!if)", ast.unparse(mark)) for mark in function.decorator_list)


def complaint(name: str) -> str:
    """Return what is wrong with the name of a test, '' if nothing is."""
    match = re.fullmatch(r"(\w+)::(test_\w+)(?:\[(.+)\])?", name)
    if match is None:
        return "is not FILE::function[row]"
    file, function, row = match.groups()
    if not (HERE / f"test_{file}.py").exists():
        return "names no file"
    found = functions(file).get(function)
    if found is None:
        return "names no function"
    if always_skipped(found):
        return "never runs"
    if row is not None and not any("parametrize" in ast.unparse(mark) for mark in found.decorator_list):
        return "has no rows"
    return "names no row" if row is not None and row not in words(f"test_{file}") else ""


@pytest.mark.parametrize("fault", FAULTS, ids=lambda fault: fault.tried[:60])
def test_every_kind_of_fault_is_tried(fault: Fault) -> None:
    assert fault.tests
    assert len(set(fault.tests)) == len(fault.tests)
    assert {name: complaint(name) for name in fault.tests} == dict.fromkeys(fault.tests, "")
    assert fault.end


def test_the_table_has_not_become_shorter() -> None:
    assert len(FAULTS) >= 66
    assert len({fault.tried for fault in FAULTS}) == len(FAULTS)
    assert len({test for fault in FAULTS for test in fault.tests}) >= 150


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("container::test_that_is_not_there", "names no function"),
        ("nowhere::test_damage_is_noticed", "names no file"),
        ("container_damage::test_damage_is_noticed[no such row]", "names no row"),
        ("container_writing::test_replace_file[one]", "has no rows"),
        ("test_damage_is_noticed", "is not FILE::function"),
    ],
)
def test_a_test_that_is_not_there_is_noticed(name: str, words: str) -> None:
    assert words in complaint(name)


def test_a_test_that_never_runs_is_noticed() -> None:
    never, sometimes = ast.parse(
        "@pytest.mark.skip(reason='x')\ndef test_a(): pass\n@pytest.mark.skipif(True, reason='x')\ndef test_b(): pass"
    ).body
    assert isinstance(never, ast.FunctionDef)
    assert isinstance(sometimes, ast.FunctionDef)
    assert (always_skipped(never), always_skipped(sometimes)) == (True, False)


def test_the_page_shows_the_table() -> None:
    page = PAGE.read_text()
    assert page.count(HEADING) == 1
    assert page_with(section(), page) == page, "run: python tests/fault_table.py"
