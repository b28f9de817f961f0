"""Benchmarks that reach into the code run at a tiny size, so that a change of the code cannot break them unseen."""

import json
import subprocess
import sys
from pathlib import Path

import pytest
from compared import comparison, run

from ctmc.comparison.files import save_comparison

BENCHMARKS = Path(__file__).parent.parent / "benchmarks"


def test_methods_for_qbds_are_compared():
    arguments = ["--phases", "8", "--load", "0.5", "--family", "random", "--repeats", "1"]
    done = subprocess.run(
        [sys.executable, BENCHMARKS / "qbd_methods.py", *arguments], capture_output=True, text=True, timeout=200
    )
    assert done.returncode == 0, done.stderr
    assert "Error" not in done.stdout  # of ours, a failure is no result
    for method in ("cyclic_reduction", "functional_iteration", "logarithmic_reduction"):
        assert method in done.stdout


@pytest.mark.slow
def test_stationary_solves_are_compared(tmp_path):
    """Ours and every peer, installed or not, have their row; products, single solves and the figure are there."""
    arguments = [
        "--quick",
        "--solver",
        "gmres",
        "gauss_seidel",
        "--output",
        tmp_path,
        "--folder",
        tmp_path / "references",
    ]
    done = subprocess.run(
        [sys.executable, BENCHMARKS / "stationary_scale.py", *arguments, "--peers", "scipy bicgstab", "pypardiso"],
        capture_output=True, text=True, timeout=200,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    report = (tmp_path / "stationary_scale.md").read_text(encoding="utf-8")
    assert report.strip() in done.stdout
    rows = {
        line.split(" | ")[0].strip("| *`"): line.split(" | ") for line in report.splitlines() if line.startswith("|")
    }
    assert {"gmres", "scipy bicgstab", "pypardiso", "SciPy CSR"} <= set(rows)
    for method in ("gmres", "scipy bicgstab"):
        assert float(rows[method][6]) <= 1.1e-12  # the defect, by SciPy
        assert float(rows[method][8]) <= 1e-8  # against the reference, state by state
    assert "exit code" not in report
    assert rows["(3, 3), load 0.8"][-1].startswith("CONVERGED")
    assert (tmp_path / "stationary_scale.png").stat().st_size > 10_000


@pytest.mark.slow
def test_transient_answers_are_compared(tmp_path):
    arguments = ["--quick", "--repeats", "1", "--output", tmp_path]
    done = subprocess.run(
        [sys.executable, BENCHMARKS / "transient_scale.py", *arguments], capture_output=True, text=True, timeout=200
    )
    assert done.returncode == 0, done.stderr
    lines = [line.strip("|").split("|") for line in done.stdout.splitlines() if "load" in line]
    rows = [[cell.strip() for cell in line] for line in lines]
    errors = {row[1]: float(row[6]) for row in rows if row[1].endswith(", at t") or "plain" in row[1]}
    assert {"chebyshev, at t", "uniformization, at t", "SciPy, plain uniformization, both"} <= set(errors)
    assert max(errors.values()) < 1e-8
    assert (tmp_path / "transient_scale.png").stat().st_size > 10_000


def test_passage_times_of_an_epidemic_are_compared():
    done = subprocess.run(
        [sys.executable, BENCHMARKS / "class_elimination.py", "--quick", "--repeats", "1"],
        capture_output=True, text=True, timeout=200,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    means = [line.split()[-1] for line in done.stdout.splitlines() if " mean " in line]
    assert means == ["5.251364653"] * 3  # class elimination, factors, SciPy
    assert "STAGNATED" in done.stdout


@pytest.mark.slow
def test_simulations_are_timed():
    arguments = ["--million", "0.02", "--repeats", "1"]
    done = subprocess.run(
        [sys.executable, BENCHMARKS / "simulation_speed.py", *arguments], capture_output=True, text=True, timeout=200
    )
    assert done.returncode == 0, done.stderr
    for row in ("M = 1,000: the same of every server", "tandem", "jump chain"):
        assert row in done.stdout


@pytest.mark.slow
def test_products_of_a_streamed_ring_are_compared():
    arguments = ["--states", "20000", "--neighbours", "6", "--memory-limit", "1GiB"]
    done = subprocess.run(
        [sys.executable, BENCHMARKS / "boundary.py", *arguments], capture_output=True, text=True, timeout=200
    )
    assert done.returncode == 0, done.stderr
    errors = [float(line.split()[-1]) for line in done.stdout.splitlines() if "largest error" in line]
    assert len(errors) == 2
    assert max(errors) < 1e-13
    digests = next(line for line in done.stdout.splitlines() if line.startswith("content hash")).split()
    assert digests[2].rstrip(",") == digests[4]
    assert "120,000" in done.stdout


def test_the_tables_of_which_solver(tmp_path):
    runs = (
        run("queue", "gth", 2.0),
        run("queue", "gmres", 3.0, 40),
        run("net", "gmres", 4.0, 90),
        run("net", "anderson", 2.0, 60),
    )
    save_comparison(tmp_path / "found.h5", comparison(*runs))
    done = subprocess.run(
        [sys.executable, BENCHMARKS / "which_solver.py", tmp_path / "found.h5", "--all"],
        capture_output=True,
        text=True,
        timeout=200,
    )
    assert done.returncode == 0, done.stderr
    lines = done.stdout.splitlines()
    assert "| `gmres` | 2 of 2 | 0 | 1.75 times | 1 | 1.25 times |" in lines
    assert "| net | 100 | 2 of 2 | `anderson` 2 s | `gmres` 2 times | `anderson` 60 | `gmres` 1.5 times |" in lines
    command = [sys.executable, BENCHMARKS / "which_solver.py", tmp_path / "found.h5", "--json"]
    found = json.loads(subprocess.run(command, capture_output=True, text=True, timeout=200, check=True).stdout)
    assert [(one["solver"], one["model"], one["seconds"], one["products"]) for one in found["runs"]] == [
        (one.solver, one.model, one.seconds[0], one.products) for one in runs
    ]
    assert {one["solver"]: (one["certified"], one["tried"], one["ratios"]) for one in found["solvers"]}["gmres"] == (
        2, 2, [1.75, 1.25],
    )  # fmt: skip
    assert [model["name"] for model in found["models"]] == ["queue", "net"]
    (tmp_path / "kept.json").write_text(json.dumps(found), encoding="utf-8")
    command = [sys.executable, BENCHMARKS / "which_solver.py", tmp_path / "kept.json", "--all"]
    assert subprocess.run(command, capture_output=True, text=True, timeout=200, check=True).stdout == done.stdout
