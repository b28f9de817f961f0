"""docs/coming-from.md: our commands and calls are run as they stand there, and their answers compared with those of the other tools."""

from __future__ import annotations

import functools
import json
import math
import re
import shlex
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from scipy import integrate
from scipy.linalg import expm, null_space, solve
from scipy.sparse.csgraph import connected_components

import ctmc
from ctmc.cli import main

HOME = Path(__file__).resolve().parent.parent
PAGE = (HOME / "docs" / "coming-from.md").read_text(encoding="utf-8")
TOOLS = ("Storm", "PRISM", "SMCSolver", "BuTools", "LINE", "SciPy")
NUMBER = re.compile(r"-?\d+\.?\d*(?:e-?\d+)?")


def section(title: str) -> str:
    """Return the text below a heading of the page."""
    (text,) = re.findall(rf"^## {re.escape(title)}\n(.*?)(?=^## |\Z)", PAGE, re.DOTALL | re.MULTILINE)
    return text


def rows(tool: str) -> list[tuple[str, str, str]]:
    """Return theirs, ours and the answer of each row of a table of three columns."""
    lines = re.findall(r"^\| (.+?) \| `(.+?)` \| (.*?) ?\|$", section(tool), re.MULTILINE)
    return [(theirs, ours, answer) for theirs, ours, answer in lines]


def numbers_in(value: Any) -> list[float]:
    """Return all numbers of a JSON document or of what a call gives, in their order."""
    if isinstance(value, dict):
        return [number for part in value.values() for number in numbers_in(part)]
    if isinstance(value, list | tuple):
        return [number for part in value for number in numbers_in(part)]
    if isinstance(value, np.ndarray):
        return [float(number) for number in value.ravel()]
    is_number = isinstance(value, int | float | np.number) and not isinstance(value, bool)
    return [float(value)] if is_number else []


# ---- what the other tools answer ------------------------------------------------------------------------------------


def tandem(c: int) -> tuple[list[tuple[int, int, int]], np.ndarray]:
    """Return the states (sc, ph, sm) and the generator of PRISM's program, command by command."""
    reached = [(sc, ph, sm) for sc, ph, sm in product(range(c + 1), (1, 2), range(c + 1)) if sc > 0 or ph == 1]
    place = {state: k for k, state in enumerate(reached)}
    rates = np.zeros((len(reached), len(reached)))
    for (sc, ph, sm), k in place.items():
        steps = []
        if sc < c:
            steps.append((4.0 * c, (sc + 1, ph, sm)))
        if sc > 0 and ph == 1:
            steps.append((0.2, (sc, 2, sm)))
        if sc > 0 and sm < c:
            steps.append((1.8 if ph == 1 else 2.0, (sc - 1, 1, sm + 1)))
        if sm > 0:
            steps.append((4.0, (sc, ph, sm - 1)))
        for rate, after in steps:
            rates[k, place[after]] += rate
    return reached, rates - np.diag(rates.sum(axis=1))


def long_run(generator: np.ndarray) -> np.ndarray:
    """Return the stationary distribution, from the null space."""
    vector = null_space(generator.T)[:, 0]
    return vector / vector.sum()


@functools.cache
def answers_of_properties() -> dict[str, Any]:
    """Return what the properties of the page are worth, from dense matrices and the states of PRISM's program."""
    states, q = tandem(3)
    customers = np.array([sc + sm for sc, _, sm in states], dtype=float)
    first = np.array([sc == 3 for sc, _, _ in states])
    second = np.array([sm == 3 for _, _, sm in states])
    full = np.array([state == (3, 2, 3) for state in states])
    empty = np.array([state == (0, 1, 0) for state in states]).astype(float)
    pi = long_run(q)

    def stopped(where: np.ndarray) -> np.ndarray:
        return np.where(where[:, None], 0.0, q)

    def until(good: np.ndarray, bad: np.ndarray, time: float) -> float:
        return float(empty @ expm(stopped(good | bad) * time) @ good)

    before = ~full
    mean = solve(-q[np.ix_(before, before)], np.column_stack([np.ones(27), customers[before]]))
    earned = integrate.quad(lambda t: empty @ expm(q * t) @ customers, 0, 1, epsabs=1e-12)[0]
    corner = np.array([state == (3, 2, 3) for state in states]) / 2
    three = [long_run(tandem(c)[1]) @ [sc + sm for sc, _, sm in tandem(c)[0]] for c in (1, 2, 3)]
    size = [28, np.count_nonzero(q - np.diag(np.diag(q)))]
    return {
        "size": size,
        "full": pi @ second,
        "customers": pi @ customers,
        "I=1": empty @ expm(q) @ customers,
        "I=1 second": empty @ expm(q) @ [sm for _, _, sm in states],
        "I=1 start": (empty / 2 + corner) @ expm(q) @ customers,
        "C<=1": earned,
        "T": empty[before] @ mean[:, 0],
        "R F": empty[before] @ mean[:, 1],
        "F<=1": until(full, np.zeros(28, bool), 1.0),
        "F<=10": until(full, np.zeros(28, bool), 10.0),
        "U": until(first, second, 1e4),
        "U<=2": until(first, second, 2.0),
        "F[1,1]": empty @ expm(q) @ first,
        "experiment": three,
        "empty": pi @ empty,
        "classes": connected_components(q, connection="strong")[0],
    }


# What Storm 2.0.0 gives for the same program: the first four with rational numbers, the others with its precision of 1e-6.
STORM = {
    "full": 0.052818204084664346,
    "customers": 3.4890773983118835,
    "R F": 395.43288321917333,
    "T": 113.97849769249514,
    "U": 0.9938033695489306,
    "U<=2": 0.993800978221278,
    "I=1": 3.3840734820118046,
    "C<=1": 2.66942744672231,
    "F[1,1]": 0.8514673458124155,
    "F<=1": 0.002001832064266271,
    "F<=10": 0.07698175804417808,
}
EXACT = ("full", "customers", "R F", "T", "U")

# As printed in the documentation of BuTools, whose QBDSolve is SMCSolver's QBD_CR: `QBDSolve`, `QBDFundamentalMatrices`,
# `QBDStationaryDistr`, `CTMCSolve`, `MomentsFromPH`.
G = [0.42857, 0.57143, 0.42857, 0.57143]
R = [0.27838827838827834, 0.14285714285714282, 0.5567765567765567, 0.28571428571428564]
U = [-5.5714, 5.5714, 3.8571, -10.857]
LEVELS = [
    0.22992392223161465, 0.18681318681318687, 0.16802132782778464, 0.08622147083685547, 0.09478126182723359,
    0.048637752779764606, 0.05346635282561894, 0.02743668105525182, 0.03016050672214401, 0.015477102133731794,
    0.017013619176594053, 0.00873067299851537,
]  # fmt: skip
MOMENTS = [
    0.20938722294654497, 0.10448912014333091, 0.089091500391907288, 0.11026674096545433, 0.17953027324720897,
]  # fmt: skip
PH = np.array([0.1, 0.9, 0.0]), np.array([[-6.2, 2.0, 0.0], [2.0, -9.0, 1.0], [1.0, 0.0, -3.0]])

# What LINE 3.0.8 gives: its table of averages, and the functions of `line_solver.api`.
LINE = {
    "CTMC(model, cutoff=4).avg_table()": [0.83871, 0.86667, 0.96774],
    "CTMC(model, cutoff=4).getProbAggr(queue)": [0.5161290322580645],
    "CTMC(model, cutoff=4).getInfGen()": [2, -3, 1, 0, 0],
    "ctmc_solve(Q)": [0.57142857, 0.28571429, 0.14285714],
    "ctmc_uniformization(p0, Q, 2.0)": [0.5846681271904708, 0.28181304061734425, 0.1335188321921846],
    "ctmc_transient(Q, p0, 2.0)": [0.58466813, 0.28181304, 0.13351883],
    "ctmc_hitting_time(Q, [2])": [4, 3, 0],
    "ctmc_passage_moments(Q, p0, [2], 2)": [4, 30],
    "qbd_R(B, L, F)": [0.27838828, 0.14285714, 0.55677656, 0.28571429],
    "ldqbd(Q0, Q1, Q2)": [2.0],
}

PROPERTIES = {
    "exportresults": None,  # compared by the row before it
    "simsamples": None,  # an interval, tested where simulation is
    "tandem.sm --constants": "size",
    "explicit-umb": "size",
    "sm -const c=3": "size",
    "-importmodel tandem.all -ctmc`": "size",
    "-ctmc -transient 1": "I=1 second",
    "importinitdist": "I=1 start",
    "c=1:3": "experiment",
    "0:1:4": "I=1",
    "second_queue_full\"]'": "full",
    '[!"second_queue_full" U "first_queue_full"]': "U",
    '[!"second_queue_full" U<=2 "first_queue_full"]': "U<=2",
    "[F[1,1]": "F[1,1]",
    "[I=1]": "I=1",
    "[C<=1]": "C<=1",
    'T=? [F "network_full"]': "T",
    'R{"customers"}=? [F': "R F",
    "[F<=10 ": "F<=10",
    "[F<=1 ": "F<=1",
    "--steadystate": "empty",
    "-exportbsccs": "classes",
}
"""Words of a cell of Storm or PRISM, the first that fits decides, and the property; without any it is E[customers]."""


def truth(tool: str, theirs: str) -> list[float] | None:
    """Return what the other tool gives, or None where what it gives is no number of its own."""
    if tool in ("Storm", "PRISM"):
        known = answers_of_properties()
        name = next((name for words, name in PROPERTIES.items() if words in theirs), "customers")
        return None if name is None else [float(value) for value in np.atleast_1d(known[name])]
    if tool in ("SMCSolver", "BuTools"):
        name = theirs.replace("`", "")
        inside = PH[0] @ expm(PH[1] * 0.5)  # where the law is after half a unit of time
        published = {
            "G": G, "R": R, "U": U, "pi=QBD_pi(B0,B1,R)": LEVELS[:6], "QBD_CAUDAL(A0,A1,A2)": [R[0] + R[3]],
            "all of it": [mean_of_levels()], "CTMCSolve(Q)": [0.40909, 0.31818, 0.27273],
            'QBDFundamentalMatrices(B, L, F, "G")': G, 'QBDFundamentalMatrices(B, L, F, "U")': U,
            "pi0, R = QBDSolve(B, L, F, L0)": LEVELS[:2], "QBDStationaryDistr(pi0, R, 5)[-2:]": LEVELS[-2:],
            "MomentsFromPH(alpha, A, 5)": MOMENTS, "CdfFromPH(alpha, A, [0.5])": [1 - inside.sum()],
            "PdfFromPH(alpha, A, [0.5])": [-inside @ PH[1].sum(axis=1)],
        }  # fmt: skip
        return R[:1] if name.startswith("[G,R]=QBD_") else published.get(name)
    if "getSensitivityTable" in theirs:
        h = 1e-6  # M/M/1/4: only the first birth rate moves
        return [(jobs_of_queue(1 + h) - jobs_of_queue(1 - h)) / (2 * h)]
    return next((value for name, value in LINE.items() if name in theirs), None)


def mean_of_levels() -> float:
    """Return the mean level of the published distribution: pi0 R (I - R)^-2 1."""
    r, away = np.reshape(R, (2, 2)), np.linalg.inv(np.eye(2) - np.reshape(R, (2, 2)))
    return float(np.array(LEVELS[:2]) @ r @ away @ away @ np.ones(2))


def jobs_of_queue(first_birth: float) -> float:
    """Return E[jobs] of M/M/1/4 at load 1/2 whose first birth rate is another one."""
    weights = np.cumprod([1, first_birth / 2, 0.5, 0.5, 0.5])
    return float(weights @ np.arange(5) / weights.sum())


def of_scipy(code: str, names: dict[str, Any]) -> Any:
    """Return the value of the last of some statements."""
    *before, last = code.split(";")
    for statement in before:
        exec(statement.strip(), names)
    return eval(last.strip(), names)


# ---- the page -------------------------------------------------------------------------------------------------------


def written(tool: str) -> dict[str, Any]:
    """Write the files of a section, run its preparation, and return the names that it has."""
    names: dict[str, Any] = {"ctmc": ctmc}
    for language, block in re.findall(r"^```(\w+)\n(.*?)^```$", section(tool), re.DOTALL | re.MULTILINE):
        if language == "toml":
            Path(block.split(None, 2)[1]).write_text(block, encoding="utf-8")
        else:
            exec(block, names)
    return names


def run(ours: str, names: dict[str, Any], capsys: pytest.CaptureFixture[str]) -> list[float]:
    """Run a command or a call and return the numbers that it gives."""
    if ours.startswith("ctmc "):
        words = shlex.split(ours)[1:]
        capsys.readouterr()
        assert main(words if "--csv" in words else [*words, "--json"]) == 0, ours
        out = capsys.readouterr().out
        return [float(number) for number in NUMBER.findall(out)] if "--csv" in words else numbers_in(json.loads(out))
    assignment = re.match(r"(\w+) = (.*)", ours)
    value = eval(assignment[2] if assignment else ours, names)
    if assignment:
        names[assignment[1]] = value
    return numbers_in(value)


def agrees(shown: str, value: float) -> bool:
    """Say whether a number is what is shown, to half a unit of the last digit that is shown."""
    digits = len(shown.partition(".")[2])
    return math.isclose(float(shown), value, rel_tol=0, abs_tol=0.51 * 10.0**-digits)


@pytest.mark.parametrize("tool", TOOLS)
def test_what_the_page_shows_is_run(tool, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    names = written(tool)
    compared = 0
    for theirs, ours, answer in rows(tool):
        found, shown = run(ours, names, capsys), NUMBER.findall(answer)
        expected = truth(tool, theirs)
        if tool == "SciPy" and ours.startswith("ctmc."):
            expected = numbers_in(of_scipy(theirs.strip("`"), names))
            expected = expected[: len(found)] if len(expected) >= len(found) else expected
            assert found == pytest.approx(expected, rel=1e-8, abs=1e-10), theirs
            compared += 1
        if not shown:
            continue
        if ours.startswith("ctmc "):
            assert all(any(agrees(number, value) for value in found) for number in shown), (theirs, answer, found)
        else:
            assert len(shown) == len(found), (theirs, answer, found)
            assert all(map(agrees, shown, found)), (theirs, answer, found)
        assert tool == "SciPy" or expected is not None or "states" in answer, theirs
        if expected is not None and tool != "SciPy":
            digits = (
                {"rel": 1e-9, "abs": 1e-10} if tool in ("Storm", "PRISM") else {"rel": 2e-5}
            )  # published in five digits
            assert [float(number) for number in shown] == pytest.approx(expected, **digits), theirs
            compared += 1
    assert compared >= 8, compared


def test_properties_are_worth_what_storm_says():
    ours = answers_of_properties()
    for name, theirs in STORM.items():
        assert ours[name] == pytest.approx(theirs, rel=1e-9 if name in EXACT else 1e-6), name


def test_there_are_enough_rows_and_none_is_passed_over():
    assert sum(len(rows(tool)) for tool in TOOLS) >= 80
    for tool in TOOLS:
        lines = re.findall(r"^\| (?!---).*\|$", section(tool), re.MULTILINE)
        assert len(lines) == len(rows(tool)) + 1, tool  # and the heading


def test_figures_stand_in_the_benchmarks():
    """Numbers of the page that are measured are those of benchmarks/README.md."""
    measured = (HOME / "benchmarks" / "README.md").read_text(encoding="utf-8")
    lines = re.findall(r"^\| (?!---).*\|$", section("What is different, in figures"), re.MULTILINE)[1:]
    assert len(lines) >= 6
    for line in lines:
        figures = [figure for cell in line.strip("|").split(" | ")[1:-1] for figure in NUMBER.findall(cell)]
        assert len(figures) >= 2, line
        for figure in figures:
            assert re.search(rf"(?<![\d.]){re.escape(figure)}(?![\d.]*\d)", measured), (figure, line)
