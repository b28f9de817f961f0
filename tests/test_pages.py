"""Every block of code of the README and of the pages in docs is run, and shows what happens (tests/pages.py)."""

from __future__ import annotations

import sys

import pytest
from pages import HOME, PageError, blocks_of, run_page

from ctmc.cli import main

PAGES = ["README.md", *sorted(str(path.relative_to(HOME)) for path in (HOME / "docs").rglob("*.md"))]
# fewer commands and statements than this would mean that marks have crept in
FLOOR = {"README.md": 120, "docs/tutorial.md": 30, "docs/how-to/own-model.md": 25, "docs/how-to/ask-questions.md": 30}


@pytest.fixture
def command(tmp_path, monkeypatch, capsys):
    """Return a function that runs a command of ctmc in the folder of the test, and returns its exit code and all it prints."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("CTMC_STORE", raising=False)
    monkeypatch.setenv("COLUMNS", "160")
    monkeypatch.syspath_prepend(tmp_path)  # as in a session that was started there
    known = set(sys.modules)

    def run(arguments):
        capsys.readouterr()
        code = main(arguments)
        return code, "\n".join(capsys.readouterr())

    yield run
    for name in set(sys.modules) - known:
        if str(getattr(sys.modules[name], "__file__", "")).startswith(str(tmp_path)):
            del sys.modules[name]


@pytest.mark.timeout(900)  # the README has 130 commands and statements, whose loops may have to be compiled first
@pytest.mark.parametrize("page", PAGES)
def test_what_a_page_shows_happens(page, command):
    count = run_page((HOME / page).read_text(encoding="utf-8"), command)
    assert count >= FLOOR.get(page, 0)


def test_there_are_pages():
    assert {"README.md", "docs/tutorial.md", "docs/cluster.md", "docs/security.md"} <= set(PAGES)
    assert len(PAGES) >= 12


@pytest.mark.parametrize(
    ("block", "sentence"),
    [
        ("```\nctmc list nosuchthing\n```", "ends with 2 in place of 0"),
        ("```\nls\n```", "is no command of ctmc; mark it"),
        ("```\n$ ctmc --version\nctmc 99\n```", "does not print 'ctmc 99'"),
        ("```\nctmc --version   # 12.3456\n```", "12.3456 is not in"),
        ("```python\n1 / 3   # 0.3334\n```", "0.3334 is not in 0.333"),
        ("```python\n1 / 0\n```", "raises ZeroDivisionError"),
        ("```pycon\n>>> 1 + 1\n3\n```", "Expected:"),
        ("```toml\na = [1\n```", None),
        ("```c\nint x;\n```", "a block 'c' cannot be run; mark it"),
        ("<!-- run by: tests/test_pages.py::test_nothing -->\n```c\nint x;\n```", "has no test test_nothing"),
        ("<!-- run with: 38 -> 8 -->\n```\nctmc --version\n```", "'38' is not in the block"),
        ("<!-- skipped: never -->\n```\nctmc --version\n```", "no mark"),
    ],
)
def test_what_does_not_happen_is_found(block, sentence, command):
    with pytest.raises(ValueError if sentence is None else PageError) as caught:
        run_page(f"Text.\n\n{block}\n", command)
    assert sentence is None or sentence in str(caught.value)


def test_marks_and_hidden_programs(command):
    page = (
        "<!-- before\nx = 2\n-->\n\n```python\nx * 1.2345   # 2.469\n```\n\n<!-- not run: it says why -->\n```bash\nrm -r /\n```\n"
        "<!-- file: a/b.toml -->\n```toml\na = 1\n```\n<!-- exit code: 2 -->\n```\nctmc list nosuchthing\n```\n"
    )
    assert [block.language for block in blocks_of(page)] == ["before", "python", "bash", "toml", ""]
    assert run_page(page, command) == 4
