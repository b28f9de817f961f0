"""docs/notebooks: each script runs as it stands, in an empty folder, and says and draws what it promises."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import tomllib
from pathlib import Path

import numpy as np
import pytest

HOME = Path(__file__).resolve().parent.parent
NOTEBOOKS = sorted((HOME / "docs" / "notebooks").glob("*.py"))
pytest.importorskip("matplotlib")


@pytest.fixture(scope="module")
def ran(tmp_path_factory):
    """Return a function that runs a notebook once, and gives its folder and what it has printed."""
    known = {}

    def run(name):
        if name not in known:
            folder = tmp_path_factory.mktemp(name)
            done = subprocess.run(
                [sys.executable, "-W", "error", HOME / "docs" / "notebooks" / f"{name}.py"],
                cwd=folder, capture_output=True, text=True, timeout=240, check=False,
                env={**os.environ, "MPLBACKEND": "Agg", "NUMBA_NUM_THREADS": "1", "CTMC_STORE": ""},
            )  # fmt: skip
            assert done.returncode == 0, done.stderr
            known[name] = folder, done.stdout
        return known[name]

    return run


def numbers(text):
    return [float(number) for number in re.findall(r"-?\d+\.\d+(?:e-?\d+)?", text)]


def reference(name):
    return tomllib.loads((HOME / "data" / "reference" / f"{name}.toml").read_text(encoding="utf-8"))


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_a_figure_is_drawn(ran, path):
    import matplotlib.image

    folder, _ = ran(path.stem)
    picture = matplotlib.image.imread(folder / f"{path.stem}.png")[..., :3]
    assert picture.shape[0] > 300
    assert picture.shape[1] > 600
    assert len(np.unique(picture.reshape(-1, 3), axis=0)) > 50


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_form(path):
    """The percent format: a header for Jupyter, then cells, the first of which is a title; the page names the notebook."""
    header, *cells = re.split(r"^# %%", path.read_text(encoding="utf-8"), flags=re.MULTILINE)
    assert "format_name: percent" in header
    assert all(line.startswith("#") for line in header.split("\n") if line)
    assert cells[0].startswith(" [markdown]\n# # ")
    for cell in cells:
        if cell.startswith(" [markdown]"):
            assert all(line.startswith("#") for line in cell.split("\n")[1:] if line), cell
    assert f"({path.name})" in (path.parent / "README.md").read_text(encoding="utf-8")


def test_supermarket_paper(ran):
    said = ran("supermarket_paper")[1]
    assert "all certified: True" in said
    low, high = numbers(said.splitlines()[-1])
    known = sum(reference("supermarket")["stationary"][0]["queue_length"])
    assert low - 2e-10 < known < high + 2e-10  # the reference has ten digits for each server
    assert high - low < 1e-9


def test_fork_join_paper(ran):
    said = ran("fork_join_paper")[1]
    assert "all certified: True" in said
    (row,) = (row for row in reference("fork_join")["row"] if row["thresholds"] == [1, 2, 8] and "service_span" in row)
    assert numbers(said.splitlines()[-1])[0] == pytest.approx(row["response_time"], abs=2e-12)
    found = re.findall(r"^(\w+) +(\d\.\d) +([\d.]+) ", said, re.MULTILINE)
    times = {(name, rate): float(time) for name, rate, time in found}
    assert len(times) == 12
    for name, rate in times:
        assert times["best_thresholds", rate] <= times["fastest_free_server", rate], (name, rate)


def test_solver_comparison(ran):
    said = ran("solver_comparison")[1]
    table = {line.split()[0]: line.split()[1:] for line in said.splitlines() if re.match(r"[a-z_]+ +(\d|[A-Z])", line)}
    assert table["bicgstab"][1] == "STAGNATED"
    assert all(cell.isdigit() for cell in [*table["anderson"], *table["aggregation"]])
    assert numbers(said.splitlines()[-1])[0] < 1e-7


def test_own_model(ran):
    said = ran("own_model")[1]
    rows = [line.split() for line in said.splitlines() if line.endswith("True")]
    assert [row[0] for row in rows] == ["function", "networkx", "PRISM"]
    # two machines: new -> worn 0.05 each, worn -> broken 0.4 each, broken -> new 1.5, one at a time
    states = [(worn, broken) for worn in range(3) for broken in range(3 - worn)]
    q = np.zeros((6, 6))
    for i, (worn, broken) in enumerate(states):
        q[i, i] = -(0.05 * (2 - worn - broken) + 0.4 * worn + 1.5 * (broken > 0))
        for rate, after in (
            (0.05 * (2 - worn - broken), (worn + 1, broken)),
            (0.4 * worn, (worn - 1, broken + 1)),
            (1.5, (worn, broken - 1)),
        ):
            if after in states:
                q[i, states.index(after)] += rate
    pi = np.linalg.lstsq(np.vstack([q.T, np.ones(6)]), np.eye(7)[6], rcond=None)[0]
    broken = np.array([state[1] for state in states])
    before = broken < 2
    time = np.linalg.solve(-q[np.ix_(before, before)], np.ones(before.sum()))[0]
    for row in rows:
        assert [float(cell) for cell in row[1:4]] == pytest.approx([pi @ broken, pi[broken == 2][0], time], rel=1e-7)
