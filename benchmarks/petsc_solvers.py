"""What do the methods of PETSc and SLEPc cost beside those of one process? Every question about one supermarket.

    python benchmarks/petsc_solvers.py [--capacity 40]
    mpirun -n 2 python benchmarks/petsc_solvers.py [--capacity 40]

Under mpirun only methods that take a shared model run.  Products are those with the generator; seconds are of processor time on the
busiest rank, the model being built and everything compiled.  Run it with NUMBA_NUM_THREADS=1 and one BLAS thread.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Iterator
from typing import Any

import ctmc
from ctmc import registry
from ctmc.model.shared import share
from ctmc.ranks import world

SOLVERS = {
    "stationary": ("slepc_krylov_schur", "slepc_krylov_schur(form='full')", "petsc_krylov", "bicgstab"),
    "over time": ("petsc_uniformization", "slepc_exponential", "uniformization", "chebyshev"),
    "discounted": ("petsc_resolvent", "petsc_resolvent(method='bcgs')", "resolvent_krylov"),
    "passage": ("petsc_passage", "petsc_passage(method='bcgs')", "absorption_krylov"),
}


def questions(model: Any) -> Iterator[tuple[str, Any]]:
    """Yield (name, problem)."""
    start = (0, 0, 0)
    yield "stationary", ctmc.Stationary(model, 1e-11)
    yield "over time", ctmc.Transient(model, initial=start, reward="jobs", times=[3.0, 30.0])
    yield "discounted", ctmc.DiscountedReward(model, "jobs", initial=start, discount=0.01)
    yield "passage", ctmc.FirstPassage(model, "jobs >= 15", initial=start, moments=1)


def main() -> None:
    """Print a table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--capacity", type=int, default=40)
    capacity = parser.parse_args().capacity
    ranks = world()
    model = ctmc.build(
        "supermarket",
        service_rates=[1.0] * 3,
        arrival_rate=2.55,
        choices=2,
        capacity=capacity,
        selection="shortest_queue",
    )
    shown = ranks.rank == 0
    if shown:
        print(f"{model.size:,} states, ranks: {ranks.count}\n")
        print("| question | method | status | products | seconds | defect |\n| --- | --- | --- | ---: | ---: | ---: |")
    part = model if ranks.count == 1 else share(model, ranks)
    for name, problem in questions(part):
        for solver in SOLVERS[name]:
            if not registry.takes(registry.make_solver(solver), problem):
                continue
            for _ in range(2):  # the first one compiles
                begin = time.process_time()
                solution = ctmc.solve(problem, solver, check=False)
                seconds = ranks.largest(time.process_time() - begin)
            if shown:
                numbers = f"{solution.products} | {seconds:.2f} | {solution.defect:.0e}"
                print(f"| {name} | {solver} | {solution.status.name} | {numbers} |", flush=True)
    for method in ("slepc_krylov_schur",) if part.shared else ("slepc_krylov_schur", "arnoldi"):
        begin = time.process_time()
        found = ctmc.spectral_gap(part, method=method)
        seconds = ranks.largest(time.process_time() - begin)
        if shown:
            print(f"| spectral gap {found.gap:.8f} | {method} | | | {seconds:.2f} | {found.residual:.0e} |", flush=True)


if __name__ == "__main__":
    main()
