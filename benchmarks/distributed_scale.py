"""What do ranks cost?  Scaling of petsc_krylov and of products, its iterations on more ranks, and how good forecasts on paper are.

    python benchmarks/distributed_scale.py [--quick] [--only scaling|iterations|forecast|large] [--mpirun "mpirun --oversubscribe"]

Each row is a job of its own: on every rank a small model is solved first, so that nothing is compiled or loaded any more, then the
model is shared and solved.  Memory is the peak of what a rank holds above that; seconds are those of the processor, the most of a rank;
bytes and messages are what a rank sends for a product, the most of a rank, counted in `ghosts.traffic`, or for a matrix of PETSc the
columns of others.  Times on shared cores are no more than hints, all else is exact.
"""

from __future__ import annotations

import argparse
import json
import os
import resource
import shlex
import subprocess
import sys
import time
from typing import Any

import numpy as np
import psutil

import ctmc
from ctmc.model.shared import SharedGenerator, share
from ctmc.model.streamed import streaming
from ctmc.ranks import Ranks, world
from ctmc.scale import PROCESS, Cluster, scale

LEAN = "petsc_krylov(form='shell', preconditioner='none', coarse='none', method='bcgs')"
FORMS = {
    "reduced": "petsc_krylov",
    "reduced, levels between": "petsc_krylov(coarse='between')",
    "shell, BiCGStab, no preconditioner": LEAN,
    "full, block Jacobi": "petsc_krylov(form='full', preconditioner='bjacobi', coarse='none')",
}
PARTS = {
    "two levels: `coarse='levels'`": "petsc_krylov",
    "two levels: `coarse='between'`": "petsc_krylov(coarse='between')",
    "one color, overlapping blocks": "petsc_krylov(coarse='none')",
    "one color, block Jacobi": "petsc_krylov(preconditioner='bjacobi', coarse='none')",
    "all states, block Jacobi, levels": "petsc_krylov(form='full', preconditioner='bjacobi', coarse='levels')",
    "all states, block Jacobi": FORMS["full, block Jacobi"],
}


def supermarket(servers: int, capacity: int, load: float) -> Any:
    """Return the model, its rows to be made as they are asked for."""
    with streaming():
        return ctmc.build("supermarket", service_rates=[1.0] * servers, arrival_rate=servers * load, choices=2,
                          capacity=capacity)  # fmt: skip


def matrix_traffic(part: SharedGenerator, solver: Any) -> tuple[int, int] | None:
    """Return bytes and messages that this rank gets for a product with PETSc's matrix, None where there is none."""
    from solvers._petsc import Objects
    from solvers._petsc_equations import equations

    with Objects() as objects:
        stored = equations(part, solver.form, objects).stored
        if stored is None:
            return None
        columns, (begin, end) = stored.getValuesCSR()[1], stored.getOwnershipRange()
        others = np.unique(columns[(columns < begin) | (columns >= end)])
        owners = np.searchsorted(stored.getOwnershipRanges(), others, side="right")
        return 8 * len(others), len(np.unique(owners))


def work(ranks: Ranks, job: dict[str, Any]) -> dict[str, Any]:
    """Do a job on this rank."""
    from ctmc.registry import make_solver

    solver = make_solver(job["solver"])
    small = share(supermarket(job["servers"], 3, 0.5), ranks)
    ctmc.solve(ctmc.Stationary(small, 1e-9), solver, check=False)
    base = psutil.Process().memory_info().rss
    begin = time.process_time()
    part = share(supermarket(job["servers"], job["capacity"], job["load"]), ranks)
    shared = time.process_time() - begin
    traffic, x = part.ghosts.traffic, np.ones(part.size)
    before, begin = (traffic.bytes, traffic.messages), time.process_time()
    for _ in range(10):
        part.forward(x)
    product = (time.process_time() - begin) / 10
    sent = [(traffic.bytes - before[0]) // 10, (traffic.messages - before[1]) // 10]
    begin = time.process_time()
    answer = ctmc.solve(ctmc.Stationary(part, 1e-11), solver, check=False)
    seconds = time.process_time() - begin
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024 - base
    of_matrix = matrix_traffic(part, solver) if job.get("matrix") else None
    return {
        "states": part.states, "own": part.size, "status": answer.status.name, "defect": answer.defect,
        "iterations": answer.iterations, "products": answer.products, "share": shared, "product": product, "solve": seconds,
        "peak": peak, "sent": sent, "matrix": of_matrix, "process": base, "ghosts": part.ghosts.count,
    }  # fmt: skip


def run(start: str, count: int, **job: Any) -> list[dict[str, Any]]:
    """Return what so many ranks say about a job."""
    command = [*shlex.split(start), "-n", str(count), sys.executable, __file__, "--job", json.dumps(job)]
    whole_lines = {**os.environ, "PYTHONUNBUFFERED": ""}  # or those of several ranks mix
    done = subprocess.run(
        command, capture_output=True, text=True, timeout=1500, stdin=subprocess.DEVNULL, env=whole_lines
    )
    if done.returncode:
        raise SystemExit(done.stderr)
    found: list[dict[str, Any]] = json.loads(next(line for line in done.stdout.splitlines() if line.startswith("[{")))
    return found


def most(rows: list[dict[str, Any]], name: str) -> Any:
    return max(row[name] for row in rows)


def mebibytes(size: float) -> str:
    return f"{size / 2**20:,.0f} MiB"


def print_scaling(start: str, quick: bool) -> None:
    """Print strong and weak scaling for 1 and 2 ranks."""
    print("| scaling | states | form | ranks | CPU s | of a product with rows | iterations | products | defect | memory of a rank "
          "| sent for a product with rows | read for one with the matrix |")  # fmt: skip
    print("| --- " * 12 + "|")
    single, double = (12, 15) if quick else (23, 27)  # of four servers, 1 to 1.9
    for kind, sizes in (("strong", {1: double, 2: double}), ("weak", {1: single, 2: double})):
        for name, solver in FORMS.items():
            for count, capacity in sizes.items():
                rows = run(start, count, servers=4, capacity=capacity, load=0.8, solver=solver, matrix=True)
                of_matrix = rows[0]["matrix"] and [max(row["matrix"][k] for row in rows) for k in (0, 1)]
                sent = [max(row["sent"][k] for row in rows) for k in (0, 1)]
                first = rows[0]
                print(
                    f"| {kind} | {first['states']:,} | {name} | {count} | {most(rows, 'solve'):.2f} | {most(rows, 'product'):.4f} "
                    f"| {first['iterations']} | {first['products']} | {first['defect']:.0e} | {mebibytes(most(rows, 'peak'))} "
                    f"| {sent[0]:,} bytes, {sent[1]} messages "
                    f"| {f'{of_matrix[0]:,} bytes, {of_matrix[1]} messages' if of_matrix else 'no matrix'} |",
                    flush=True,
                )


def print_iterations(start: str, quick: bool) -> None:
    """Print iterations and products on 1 to 4 ranks, all from a uniform start."""
    print("| load | " + " | ".join(["form", *(f"{count} ranks" for count in (1, 2, 3, 4))]) + " |")
    print("| --- " * 6 + "|")
    for load in (0.85, 0.99):
        for name, solver in PARTS.items():
            cells = []
            for count in (1, 2, 3, 4):
                first = run(start, count, servers=3, capacity=15 if quick else 80, load=load, solver=solver)[0]
                cells.append(
                    f"{first['iterations']}, {first['products']}" + ("" if first["status"] == "CONVERGED" else "!")
                )
            print(f"| {load} | {name} | " + " | ".join(cells) + " |", flush=True)


def print_forecast(start: str, quick: bool) -> None:
    """Print what was forecast beside what was measured."""
    print("| form | ranks | bytes forecast | sent | messages forecast | sent | memory forecast | measured | ratio |")
    print("| --- " * 9 + "|")
    for name in ("shell, BiCGStab, no preconditioner", "reduced", "full, block Jacobi"):
        for count in (2, 4, 8):
            solver, capacity = FORMS[name], 12 if quick else 33
            rows = run(start, count, servers=4, capacity=capacity, load=0.6, solver=solver)
            (row,) = scale(supermarket(4, capacity, 0.6), Cluster(nodes=1, memory=1, ranks=count), (solver,))
            sent = [max(row["sent"][k] for row in rows) for k in (0, 1)]
            memory, peak = row.memory_of_rank - PROCESS, most(rows, "peak")
            print(f"| {name} | {count} | {row.bytes_sent:,} | {sent[0]:,} | {row.messages} | {sent[1]} | {mebibytes(memory)} "
                  f"| {mebibytes(peak)} | {memory / peak:.2f} |", flush=True)  # fmt: skip


def print_large(start: str, quick: bool) -> None:
    """Print the solve of a model with 24 million states on 1 and 2 ranks."""
    print("| ranks | states | products | CPU s | defect | memory of a rank, with the interpreter |")
    print("| --- " * 6 + "|")
    for count in (2, 1):
        rows = run(start, count, servers=4, capacity=19 if quick else 69, load=0.8, solver=LEAN)
        first = rows[0]
        print(f"| {count} | {first['states']:,} | {first['products']} | {most(rows, 'solve'):.0f} | {first['defect']:.1e} "
              f"| {mebibytes(max(row['peak'] + row['process'] for row in rows))} |", flush=True)  # fmt: skip


PRINTED = {"scaling": print_scaling, "iterations": print_iterations, "forecast": print_forecast, "large": print_large}


def main() -> None:
    """Print the tables, or do a job."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true")
    parser.add_argument("--only", choices=PRINTED)
    parser.add_argument("--mpirun", default="mpirun")
    parser.add_argument("--job", help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.job:
        ranks = world()
        rows = ranks.gathered(work(ranks, json.loads(given.job)))
        if ranks.rank == 0:
            print(json.dumps(rows))
        return
    for name, show in PRINTED.items():
        if given.only in (None, name):
            print(f"\n## {name}\n")
            show(given.mpirun, given.quick)


if __name__ == "__main__":
    main()
