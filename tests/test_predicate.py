"""Conditions on states: what they mean, and what is refused.  Nothing is ever executed."""

from __future__ import annotations

import numpy as np
import pytest

from ctmc.errors import ModelError, UnknownNameError
from ctmc.model.predicate import parse

VALUES = {
    "jobs": np.array([0.0, 1.0, 2.0, 3.0]),
    "queue_length": np.array([[0.0, 0.0], [1.0, 0.0], [1.0, 1.0], [0.0, 3.0]]),
    "full": np.array([False, False, True, True]),
    "länge": np.array([1.0, 2.0, 3.0, 4.0]),
}


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("jobs >= 2", [0, 0, 1, 1]),
        ("jobs > 2", [0, 0, 0, 1]),
        ("jobs <= 1", [1, 1, 0, 0]),
        ("jobs < 1", [1, 0, 0, 0]),
        ("jobs == 1", [0, 1, 0, 0]),
        ("jobs != 1", [1, 0, 1, 1]),
        ("jobs >= 1 and queue_length[0] < 1", [0, 0, 0, 1]),
        ("jobs < 1 or jobs > 2", [1, 0, 0, 1]),
        ("not jobs < 1", [0, 1, 1, 1]),
        ("not not full", [0, 0, 1, 1]),
        ("not full and jobs == 1", [0, 1, 0, 0]),  # not binds closer than and
        ("not (full and jobs == 2)", [1, 1, 0, 1]),
        ("full or full and jobs == 9", [0, 0, 1, 1]),  # and binds closer than or
        ("(full or jobs == 0) and jobs < 3", [1, 0, 1, 0]),
        ("1 <= jobs < 3", [0, 1, 1, 0]),
        ("3 > jobs >= 1 != jobs", [0, 0, 1, 0]),
        ("jobs + 1 * 2 == 4", [0, 0, 1, 0]),
        ("(jobs + 1) * 2 == 4", [0, 1, 0, 0]),
        ("jobs - 1 - 1 == 0", [0, 0, 1, 0]),  # from the left
        ("8 / 2 / 2 == jobs", [0, 0, 1, 0]),
        ("-jobs == -2", [0, 0, 1, 0]),
        ("- - jobs == 2", [0, 0, 1, 0]),
        ("jobs==2", [0, 0, 1, 0]),
        ("  jobs\t>=\n2 ", [0, 0, 1, 1]),
        ("jobs == 2.0", [0, 0, 1, 0]),
        ("jobs > .5", [0, 1, 1, 1]),
        ("jobs > 1e0", [0, 0, 1, 1]),
        ("jobs < 1e999", [1, 1, 1, 1]),
        ("queue_length[0] + queue_length[1] == jobs", [1, 1, 1, 1]),
        ("queue_length[1] == 3", [0, 0, 0, 1]),
        ("full", [0, 0, 1, 1]),
        ("true", [1, 1, 1, 1]),
        ("false or full", [0, 0, 1, 1]),
        ("1 < 2", [1, 1, 1, 1]),
        ("1 / jobs > 100", [1, 0, 0, 0]),  # infinity, and no warning
        ("0 / jobs >= 0", [0, 1, 1, 1]),  # 0 / 0 compares as false
        ("länge == 2", [0, 1, 0, 0]),
        ("(" * 60 + "full" + ")" * 60, [0, 0, 1, 1]),
    ],
)
def test_meaning(text, expected):
    result = parse(text).evaluate(VALUES)
    assert result.dtype == bool
    assert result.tolist() == [bool(value) for value in expected]


def test_names():
    assert parse("jobs >= 1 and not full or queue_length[0] < 2 and true").names == {"jobs", "full", "queue_length"}
    assert parse("1 < 2").names == set()
    assert parse("jobs > 2").text == "jobs > 2"


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("", ["a name or a number", "position 0", "the end"]),
        ("jobs >", ["position 6", "the end"]),
        ("jobs > > 1", ["position 6", "'>'"]),
        ("jobs 1", ["an operator", "'1'"]),
        ("jobs >= 1 and", ["the end"]),
        ("and jobs", ["'and'"]),
        ("(jobs > 1", ["')'", "the end"]),
        ("jobs > 1)", ["an operator", "')'"]),
        ("queue_length[", ["an index"]),
        ("queue_length[x] > 1", ["an index", "'x'"]),
        ("queue_length[-1] > 1", ["an index", "'-'"]),
        ("queue_length[1.0] > 1", ["an index", "'1.0'"]),
        ("queue_length[0 > 1", ["']'"]),
        ("jobs = 1", ["position 4", "'='"]),
        ("jobs >= 1; jobs", ["';'"]),
        ("jobs.real > 1", ["'.'"]),
        ("jobs ** 2 > 1", ["'*'"]),
        ("jobs % 2 == 1", ["'%'"]),
        ("jobs & 1", ["'&'"]),
        ("'a' == 'a'", ['"\'"']),
        ("__import__('os').system('touch x')", ["an operator", "'('"]),
        ("exec(1)", ["an operator", "'('"]),
        ("lambda: 1", ["':'"]),
        ("[x for x in (1, 2)]", ["a name or a number", "'['"]),
        ("jobs if full else 1", ["an operator", "'if'"]),
        ("x\x1b[31m > 1", ["\\x1b"]),
        ("x\x00", ["\\x00"]),
        ("x" * 5000, ["5000 characters", "4096"]),
        ("1 < 2 and " * 1000 + "true", ["characters", "4096"]),
        ("(" * 65 + "full" + ")" * 65, ["64 deep"]),
        ("(" * 3000, ["64 deep"]),
        ("not " * 65 + "full", ["64 deep"]),
        ("-" * 65 + "jobs > 1", ["64 deep"]),
    ],
)
def test_texts_that_are_no_conditions(text, words):
    with pytest.raises(ModelError) as caught:
        parse(text)
    assert all(word in str(caught.value) for word in words), caught.value
    assert str(caught.value).isprintable()


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("jobs", ["a number stands where a condition"]),
        ("jobs + 1", ["a number stands where a condition"]),
        ("1", ["a number stands where a condition"]),
        ("not jobs", ["a number stands where a condition"]),
        ("full and jobs", ["a number stands where a condition"]),
        ("full > 1", ["a condition stands where a number"]),
        ("-full", ["a condition stands where a number"]),
        ("(jobs > 1) + 1 > 0", ["a condition stands where a number"]),
        ("full == full", ["a condition stands where a number"]),
        ("queue_length > 1", ["2 components", "queue_length[0] to queue_length[1]"]),
        ("queue_length[2] > 1", ["index 2", "0 to 1"]),
        ("queue_length[99999999999999999999] > 1", ["index 99999999999999999999"]),
        ("jobs[0] > 1", ["index 0", "one number per state"]),
    ],
)
def test_conditions_that_do_not_fit_the_model(text, words):
    with pytest.raises(ModelError) as caught:
        parse(text).evaluate(VALUES)
    assert all(word in str(caught.value) for word in words), caught.value


def test_unknown_names_get_close_ones():
    with pytest.raises(UnknownNameError, match="did you mean 'jobs'"):
        parse("job > 1").evaluate(VALUES)


def test_long_chains_are_no_recursion():
    assert parse(" + ".join(["jobs"] * 400) + " == 1200").evaluate(VALUES).tolist() == [False, False, False, True]
    assert parse(" or ".join(["full"] * 400)).evaluate(VALUES).tolist() == VALUES["full"].tolist()
    assert parse(" or ".join(["(full)"] * 400)).evaluate(VALUES).tolist() == VALUES["full"].tolist()
