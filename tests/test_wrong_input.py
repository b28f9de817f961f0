"""Wrong input of every kind to every builder, solver and command: one sentence that names the field and shows the value.

What is tried comes from the registry, the signatures and the tree of commands, so that a new builder, solver or option is here
without a line.  A wrong value is one that the annotation does not allow, or a number that is none.
"""

import contextlib
import dataclasses
import inspect
import re
import time

import click
import numpy as np
import pytest
from reference_models import ROWS

import ctmc
from ctmc import registry
from ctmc.cli import main
from ctmc.cli.app import cli
from ctmc.cli.options import Value
from ctmc.errors import ModelError, UnknownNameError, shown
from ctmc.model.memory import limited_memory
from ctmc.study.parameters import alternatives, fits, from_text, is_sequence, option_annotations
from ctmc.study.study import parse_study

NOT_NUMBERS = [float("nan"), float("inf"), -float("inf")]
VALUES = [
    None, True, "text", "", "2.5", "x" * 3000, "\x1b[31m\n", b"x", 1j, 10**400, 1.5, [], [[1, 2], [3]], [[[1]]], [None], [True],
    ["text"], [float("nan")], {}, {"a": 1}, {1, 2}, object(), np.array([]), np.full((2, 2), np.nan), np.array(["a"]),
]  # fmt: skip
BASE = {row.builder: row.parameters for row in reversed(ROWS)}
PARAMETERS = [
    (name, parameter, one.annotation)
    for name in registry.builder_names()
    for parameter, one in registry.builder_parameters(name).parameters.items()
]
OPTIONS = [
    (name, option, annotation)
    for name in registry.solver_names()
    for option, annotation in option_annotations(registry.solver_class(name)).items()
]


def wrong_values(annotation):
    """Return values that the annotation does not allow; arrays count as lists, and anything counts where it says Any."""
    if any(
        kind in (inspect.Parameter.empty, object) or kind is dataclasses.MISSING for kind in alternatives(annotation)
    ):
        return []
    found = [
        value for value in VALUES if not fits(value.tolist() if isinstance(value, np.ndarray) else value, annotation)
    ]
    if any(map(is_sequence, alternatives(annotation))):  # one number or name stands for a list of one
        found = [value for value in found if not isinstance(value, float | str) or value in ("", "2.5")]
    takes_numbers = fits(0.5, annotation) or fits(1, annotation)
    return found + [value for value in NOT_NUMBERS if takes_numbers]


def check_sentence(message, field, value):
    """Complain unless a message is one short printable line that names the field and shows the value, its shape or its size."""
    assert message.isprintable(), message
    assert len(message) < 400, message
    assert re.search(rf"\b{field}\b", message), message
    begin = shown(value)[:6] if not isinstance(value, np.ndarray) else ""
    ways = (
        begin.strip("'[]{}(), "),
        "has the value",
        "has the shape",
        " is empty",
        "numbers;",
        "numbers ",
        "rates",
        "has ",
    )
    assert any(way in message for way in ways), message
    assert re.search(r"allowed|known are|did you mean|give |goes with", message), message


@pytest.mark.parametrize(
    ("name", "parameter", "annotation"), PARAMETERS, ids=lambda part: part if isinstance(part, str) else ""
)
def test_parameters_of_builders(name, parameter, annotation):
    given = BASE[name].get(parameter)
    # one wrong item in a list of the right length
    longer = (
        [[item, *given[1:]] for item in (True, "2.5", None, float("nan"), -1, 1j)] if isinstance(given, list) else []
    )
    for value, told in [(value, value) for value in wrong_values(annotation)] + [(value, value[0]) for value in longer]:
        with pytest.raises((ModelError, UnknownNameError)) as caught:
            ctmc.build(name, **{**BASE[name], parameter: value})
        check_sentence(str(caught.value), parameter, told)


@pytest.mark.parametrize(
    ("name", "option", "annotation"), OPTIONS, ids=lambda part: part if isinstance(part, str) else ""
)
def test_options_of_solvers(name, option, annotation):
    for value in wrong_values(annotation):
        with pytest.raises((ModelError, UnknownNameError)) as caught:
            registry.solver_class(name)(**{option: value})
        check_sentence(str(caught.value), option, value)


def test_nothing_is_missing():
    assert set(BASE) >= set(registry.builder_names())
    assert sum(len(wrong_values(annotation)) for _, _, annotation in PARAMETERS) >= 1500
    assert sum(len(wrong_values(annotation)) for _, _, annotation in OPTIONS) >= 1500


# ---- the same in a study, and on the command line -----------------------------------------------------------------------


def toml(value):
    """Return a value as TOML writes it, or None where it has no such value."""
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, str):
        return '"' + value.encode("unicode_escape").decode().replace("\\x", "\\u00") + '"'
    if isinstance(value, list) and all(toml(item) is not None for item in value):
        return "[" + ", ".join(map(toml, value)) + "]"
    return repr(value) if isinstance(value, int | float) and abs(value) < 10**18 else None


@pytest.mark.parametrize("name", registry.builder_names())
def test_keys_of_a_study(name):
    tried = 0
    for parameter, one in registry.builder_parameters(name).parameters.items():
        for value in wrong_values(one.annotation):
            text = toml(value)
            if text is None or fits(value, one.annotation):
                continue
            study = f'[models.a]\nbuilder = "{name}"\n\n{parameter} = {text}\n[[solve]]\nmodels = ["a"]\n'
            with pytest.raises(ctmc.StudyError) as caught:
                parse_study(study)
            message = str(caught.value)
            check_sentence(message, parameter, value)
            assert "line 4" in message
            tried += 1
    assert tried >= 8


def commands(command=cli, path=()):
    """Yield all commands below one."""
    if isinstance(command, click.Group):
        context = click.Context(command)
        for name in command.list_commands(context):
            yield from commands(command.get_command(context, name), (*path, name))
    else:
        yield path, command


def takes_no_text(option):
    """Return whether nonsense is refused when the option is read: it is a number, a choice, or a parameter without text."""
    kind = option.type
    if isinstance(kind, Value):
        with contextlib.suppress(ModelError):
            from_text(kind.parameter, "nonsense", kind.annotation)
            return False
        return True
    return not option.count and isinstance(kind, click.types.IntParamType | click.types.FloatParamType | click.Choice)


FLAGS = [
    (*path, option.opts[0])
    for path, command in commands()
    for option in command.params
    if isinstance(option, click.Option) and takes_no_text(option)
] + [
    ("solve", "model.h5", "--solver", name, "--" + option.replace("_", "-"))
    for name, option, annotation in OPTIONS
    if not fits("text", annotation) and option not in ("threads",)
]


def test_flags(capsys, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert len(FLAGS) >= 300
    for flag in FLAGS:
        for text in ("non\x1b[31msense", "x" * 3000):
            code = main([*flag, text])
            captured = capsys.readouterr()
            assert code == 2, (flag, captured.err)
            assert captured.err.count("\n") == 1, captured.err
            assert captured.out == ""
            message = captured.err.strip()
            assert message.isprintable(), message
            assert len(message) < 800, message
            assert flag[-1] in message or flag[-1][2:].replace("-", "_") in message, (flag, message)
            assert text[:3] in message, message
    assert not any(tmp_path.iterdir())


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["compare", "model.h5", "--problem", "WRONG"], "no problem"),
        (["advise", "model.h5", "--memory-limit", "WRONG"], "memory limit"),
        (["advise", "model.h5", "--memory-limit", "9" * 400], "memory limit"),
        (["store", "list", "x" * 3000], "File name too long"),
        (["run", "x" * 3000], "File name too long"),
        (["rerate", "x" * 3000, "-o", "other.h5", "--births", "1,1"], "File name too long"),
        (["solve", "model.h5", "--checkpoint", "x" * 3000], "File name too long"),
        (["report", ""], "names no file; allowed is the name of one"),
        (["info", ""], "names no file; allowed is the name of one"),
    ],
)
def test_what_reaches_a_library_is_told_in_one_sentence(capsys, tmp_path, monkeypatch, arguments, words):
    monkeypatch.chdir(tmp_path)
    ctmc.save("model.h5", ctmc.build("birth_death", births=[1, 1], deaths=[2, 2]))
    assert main(arguments) == 2
    captured = capsys.readouterr()
    assert words in captured.err
    assert captured.err.count("\n") == 1
    assert captured.err.strip().isprintable()
    assert len(captured.err) < 800
    assert [path.name for path in tmp_path.iterdir()] == ["model.h5"]


# ---- what is too large is refused before anything is made ------------------------------------------------------------------

MANY = [1] * 100_000
TOO_LARGE = [
    ("supermarket", {"service_rates": [3, 2, 1], "arrival_rate": 1, "choices": 2, "capacity": [10**9, 1, 1]}),
    ("supermarket", {"service_rates": [3, 2, 1], "arrival_rate": 1, "choices": 2, "capacity": 10**6}),
    ("supermarket", {"service_rates": [1] * 400, "arrival_rate": 1, "choices": 2, "capacity": 9}),
    ("supermarket", {"service_rates": MANY, "arrival_rate": 1, "choices": 2, "capacity": 1}),
    ("supermarket", {"service_rates": MANY, "arrival_rate": 1, "choices": 2, "capacity": 1, "lump": True}),
    ("supermarket", {"service_rates": MANY, "arrival_rate": 1, "choices": 2, "capacity": "auto"}),
    ("supermarket", {"service_rates": [3, 2, 1], "arrival_rate": 1, "choices": 10**6, "capacity": 2,
                     "sampling": "with_replacement"}),
    ("supermarket", {"service_rates": [1] * 30, "arrival_rate": 1, "choices": 2, "capacity": 10**6,
                     "total_capacity": 10**7}),
    ("tandem_network", {"service_rates": MANY, "arrival_rate": 1, "total_capacity": 1}),
    ("tandem_network", {"service_rates": [1] * 500, "arrival_rate": 1, "capacity": 9}),
    ("tandem_network", {"service_rates": [1, 1, 1], "arrival_rate": 1, "capacity": 2**53, "total_capacity": 10**7}),
    ("fork_join", {"service_rates": MANY, "arrival_rate": 0.1, "tasks": 2}),
    ("fork_join", {"service_rates": [3, 2, 1], "arrival_rate": 0.1, "tasks": 2, "thresholds": [1, 2**52, 2**52]}),
    ("repairable_system", {"failure_rates": MANY, "repair_rates": MANY}),
    ("repairable_system", {"failure_rates": [1] * 400, "repair_rates": [1] * 400, "components": 9}),
    ("loss_network", {"capacities": [2**53], "circuits": [[1]], "arrival_rates": [1]}),
    ("loss_network", {"capacities": [2] * 500, "circuits": np.eye(500, dtype=int).tolist(), "arrival_rates": [1] * 500}),
    ("modulated_queue", {"environment": [[0]], "arrival_rates": [1], "service_rates": [2], "servers": 2**53}),
    ("modulated_queue", {"environment": [[0]], "arrival_rates": [1], "service_rates": [2], "capacity": 2**53}),
    ("nearly_decomposable", {"blocks": 2**53, "block_size": 2**53, "coupling": 1, "seed": 7}),
    ("nearly_decomposable", {"blocks": 1, "block_size": 10**6, "coupling": 1, "seed": 7, "neighbours": 10**9}),
    ("kanban", {"tickets": 20}),
    ("flexible_manufacturing", {"parts": 30}),
    ("coxian_tandem", {"capacity": 2**53}),
    ("polling", {"stations": 40}),
    ("workstation_cluster", {"workstations": 10**5}),
]  # fmt: skip


@pytest.mark.parametrize(("name", "parameters"), TOO_LARGE, ids=lambda part: part if isinstance(part, str) else "")
def test_too_large(name, parameters):
    registry.builder(name)
    begin = time.process_time()
    with limited_memory("1GiB"), pytest.raises(ModelError) as caught:
        ctmc.build(name, **parameters)
    assert str(caught.value).isprintable()
    assert len(str(caught.value)) < 400
    assert re.search("allowed|more than the memory limit", str(caught.value))
    assert time.process_time() - begin < 5  # a guard against work before the refusal, which would take minutes
