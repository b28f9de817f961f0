"""Every number of the pages is tied to what prints it, and is still what is printed (tests/page_numbers.py)."""

from __future__ import annotations

import pytest
from page_numbers import (
    HOME,
    LEDGER,
    MEASUREMENTS,
    check,
    digest,
    output_of,
    pages,
    read_ledger,
    read_page,
    section,
    stands_in,
)

KEPT = (HOME / "benchmarks" / "results" / "counts.txt").read_text(encoding="utf-8").splitlines()


@pytest.mark.timeout(300)  # counts.py makes some loops that no other test makes
def test_every_number_of_the_pages_is_what_is_printed():
    found = pages()
    assert len(found["README.md"].numbers) >= 100
    assert len(found[MEASUREMENTS].numbers) >= 1000
    wrong = check(found, read_ledger((HOME / LEDGER).read_text(encoding="utf-8")))
    assert not wrong, "\n".join(wrong)


@pytest.mark.timeout(300)
def test_kept_counts_are_those_that_are_printed_now():
    printed = output_of("python benchmarks/counts.py").splitlines()
    assert len(printed) >= 40
    assert set(printed) <= set(KEPT)


def ties(**fields):
    return [{"page": "page.md", **fields}]


def told(text, tied, **others):
    """Return what is wrong with a page, other files being given by name."""
    found = {name: read_page(name, content) for name, content in {"page.md": text, **others}.items()}
    return check(found, tied)


@pytest.mark.parametrize(
    ("text", "numbers"),
    [
        ("It has 61 models, 4,096 states and 0.5 s; .999, -2 and 1e-12.", "61 4,096 0.5 .999 -2 1e-12"),
        ("1. First of `7` in HDF5, float64, SHA-256, M/M/1 of 2026-11-30: [x](y9.md) https://z/8", ""),
        ("From 0 to 1 or 2, up to 2^31 and 10^(8 + 1).", ""),
        ("0 s, 1 MiB, 2 products, 1 %", "0 1 2 1"),
        ("```\n17\n```\n<!-- 18 -->\n| 19 | 3x20 |\n", "19"),
        ("`one\ntwo 3` 4", "4"),
    ],
)
def test_numbers_that_need_a_tie(text, numbers):
    assert " ".join(number.text for number in read_page("page.md", text).numbers) == numbers


def test_docstrings_tell_seconds_and_millions():
    module = '"""Takes 3 s, 16 bytes, 22 million.\n\n    >>> 4\n    5 s\n"""\nx = "6 s"  # 7 s\n'
    assert [number.text for number in read_page("x.py", module).numbers] == ["3", "22"]


def test_a_number_without_a_tie_is_told_with_its_line():
    (fault,) = told("# Page\n\nThere are 28 models.\n", [])
    assert fault.startswith("page.md:3: 28 has no tie")


@pytest.mark.parametrize(
    ("fields", "words"),
    [
        ({"words": ["28 models"], "given": "an example"}, None),
        ({"words": ["8 models"], "given": "an example"}, "'8 models' has no number that needs a tie"),
        ({"words": ["27 models"], "given": "an example"}, "'27 models' is not there any more"),
        ({"words": ["28 models"], "run": "ctmc --version"}, "prints no line with 28"),
        ({"words": ["28 models"], "run": "ctmc nosuchthing"}, "'ctmc nosuchthing' ends with 2"),
        ({"words": ["28 models"], "run": "python -c 'print(28)'"}, None),
        ({"words": ["28 models"], "run": "python -c 'print(28.4)'"}, "prints no line with 28"),
        ({"words": ["28 models"], "run": "python -c 'print(28.4)'", "rounded": True}, None),
        ({"words": ["28 models"], "run": "python -c 'print(28)'", "line": "models"}, "no line 'models' with 28"),
        ({"words": ["28 models"], "file": "tests/nosuchfile.txt"}, "No such file"),
        ({"words": ["28 models"], "test": "tests/test_numbers.py::test_nothing"}, "has no test_nothing"),
        (
            {
                "words": ["28 models"],
                "test": "tests/test_numbers.py::test_a_number_without_a_tie_is_told_with_its_line",
            },
            None,
        ),
        ({"given": "an example"}, "28 has no tie"),  # a count needs words of its own
        ({"section": "Page", "given": "an example"}, "covers no number"),
        ({"section": "Other", "given": "an example"}, "no section 'Other'"),
        ({"section": "Page", "record": "python benchmarks/nosuchfile.py", "date": "2026-11-30"}, "cannot be run"),
        (
            {"section": "Page", "record": "python benchmarks/counts.py --most", "date": "2026-11-30"},
            "there is no --most",
        ),
        ({"section": "Page", "record": "ctmc compare which_solver --most", "date": "2026-11-30"}, "there is no --most"),
    ],
)
def test_a_tie_that_does_not_hold_is_told(fields, words):
    wrong = told("# Page\n\nThere are 28 models.\n", ties(**fields))
    assert (not wrong) if words is None else any(words in fault for fault in wrong), wrong


def test_numbers_of_a_passage_stand_in_one_line():
    apart = "python -c 'print(57); print(61)'"
    text = "Good in 57 of 61.\n"
    assert "no line with 57, 61" in told(text, ties(words=["57 of 61"], run=apart))[0]
    assert not told(text, ties(words=["57 of 61"], run=apart, scattered=True))
    assert not told(text, ties(words=["57 of 61"], run="python -c 'print(61, 57)'"))


def test_rows_of_a_table_stand_in_one_line():
    text = "# Page\n\n| 3 | 40 |\n| --- | --- |\n| 4 | 50 |\n\nAlso 40 and 50.\n"
    assert not told(text, ties(section="Page", run="python -c 'print(3, 40); print(4, 50)'"))
    (fault,) = told(text, ties(section="Page", run="python -c 'print(3, 50); print(4, 50); print(40)'"))
    assert fault.startswith("page.md:3: ")


def test_braces_mean_some_numbers_of_a_passage():
    text = "Took 0.06 s, 93 products.\n"
    tied = [
        *ties(words=["0.06 s, {93} products"], run="python -c 'print(93)'"),
        *ties(words=["Took 0.06 s"], given="x"),
    ]
    assert not told(text, tied)
    assert "0.06 has no tie" in told(text, tied[:1])[0]


def test_passages_may_each_have_a_line():
    ledger = """
[[tie]]
page = "page.md"
run = "python -c 'print(\\"one 3\\"); print(\\"two 4\\")'"
[tie.words]
"{3} and" = "one"
"and {4}" = "two"
"""
    assert not told("It is 3 and 4.\n", read_ledger(ledger))
    assert "no line 'one' with 4" in told("It is 4 and 4.\n", read_ledger(ledger.replace("{3}", "{4}")))[0]


def test_records_hold_until_a_number_changes():
    command = {"record": "python benchmarks/counts.py --all", "date": "2026-11-30"}
    page = read_page("page.md", "# Page\n\nTook 0.5 s, 3 MiB.\n")
    tied = ties(section="Page", digest=digest([list(page.numbers)]), **command)
    assert not check({"page.md": page}, tied)
    (fault,) = told("# Page\n\nTook 0.4 s, 3 MiB.\n", tied)
    assert "run it again, and write the date and digest" in fault


def test_pages_repeat_figures_of_the_benchmarks():
    measured = "# Benchmarks\n\n## How fast\n\nIt takes 1.28 s.\n\n## How large\n\n3.5 GiB\n"
    others = {MEASUREMENTS: measured}
    rest = {"page": MEASUREMENTS, "words": ["1.28 s", "3.5 GiB"], "given": "x"}
    assert not told("In 1.3 s.\n", [*ties(words=["1.3 s"], section_of="How fast"), rest], **others)
    assert told("In 1.3 s.\n", [*ties(words=["1.3 s"], section_of="How large"), rest], **others)


def test_numbers_are_compared_exactly_or_as_they_are_rounded():
    assert stands_in("387,420,489", "387420489 states", True)
    assert stands_in("1.8", "1,830,742 entries", False, millions=True)
    assert not stands_in("1.9", "1,830,742 entries", False, millions=True)
    assert not stands_in("28", "128 or 28.5", True)
    assert stands_in(".5", "load 0.5", True)
    assert stands_in("-2", "from -2 to 3", True)


def test_sections_end_at_the_next_of_their_rank():
    text = "# A\n\n## B\n1\n### C\n2\n```\n## D\n```\n3\n## D\n4\n"
    low, high = section(text, "B")
    assert text[low:high].endswith("3\n")
    with pytest.raises(ValueError, match="no section 'E'"):
        section(text, "E")


@pytest.mark.parametrize(
    "tie",
    [
        'words = ["3 s"]\ngiven = "x"',
        'page = "page.md"\nwords = ["3 s"]',
        'page = "page.md"\ngiven = "x"\nrun = "ctmc list"',
        'page = "page.md"\ngiven = "x"\nwhy = "y"',
        'page = "page.md"\nwords = ["3 s"]\nsection = "A"\ngiven = "x"',
        'page = "page.md"\nrecord = "python benchmarks/counts.py"\ndate = "yesterday"',
        'page = "page.md"\nrecord = "python benchmarks/counts.py"',
    ],
)
def test_ties_that_say_nothing_are_refused(tie):
    with pytest.raises(ValueError, match=r"tie|isoformat"):
        read_ledger(f"[[tie]]\n{tie}\n")
