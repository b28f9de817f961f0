"""How long the methods take to find G and R of a QBD, and how right they are.

    python benchmarks/qbd_methods.py [--phases 50 100 200 400] [--load .5 .9 .99 .999] [--repeats 9]

Two families, defined exactly:

- random: up, local and down have entries uniform on (0, 1) from ``default_rng(314)``, drawn in this order, the diagonal of
  local left out; up is scaled until x up 1 / x down 1, x being the stationary distribution of the phases, is the load.
- slow: from ``default_rng(2718)`` the rates 1e-3 u of the phases i -> i + 1 and then i -> i - 1 with u uniform on (1/2, 3/2), and
  no others; diagonal down uniform on (1/2, 3/2) and diagonal up uniform on (0, 1), scaled to the load.

Unit: ten products of dense m x m matrices, measured between the methods in the same process; both are processor times of
this thread, least of the repeats, so other processes are left out as far as can be; BLAS is kept on one thread.
G and R alone; the boundary, and the certificate with everything else that `ctmc.solve` does, stand apart.
"""

from __future__ import annotations

import argparse
import importlib
import time
from collections.abc import Callable
from typing import Any

import numpy as np
from threadpoolctl import threadpool_limits

import ctmc
from ctmc import registry
from ctmc.model.elimination import gth
from ctmc.model.qbd import QBD
from ctmc.trace import Trace

METHODS = (
    "logarithmic_reduction",
    "cyclic_reduction",
    "cyclic_reduction(shift='always')",
    "cyclic_reduction(shift='never')",
    "functional_iteration",
    "newton",
    "invariant_subspace",
)
MOST_PHASES = {"invariant_subspace": 100, "newton": 200}


class FoundError(Exception):
    """Raised in place of the boundary's solution."""


def plain(up: np.ndarray, local: np.ndarray, down: np.ndarray) -> QBD:
    return QBD.from_blocks(up, local - np.diag((up + local + down).sum(axis=1)), down)


def random_family(m: int, load: float) -> QBD:
    rng = np.random.default_rng(314)
    up, local, down = (rng.random((m, m)) for _ in range(3))
    np.fill_diagonal(local, 0)
    for _ in range(100):
        x = gth(up + local + down)
        factor = load * (x @ down.sum(axis=1)) / (x @ up.sum(axis=1))
        up *= factor
        if abs(factor - 1) < 1e-14:
            break
    return plain(up, local, down)


def slow_family(m: int, load: float) -> QBD:
    rng = np.random.default_rng(2718)
    local = np.diag(1e-3 * rng.uniform(0.5, 1.5, m - 1), 1) + np.diag(1e-3 * rng.uniform(0.5, 1.5, m - 1), -1)
    down, up = rng.uniform(0.5, 1.5, m), rng.uniform(0, 1, m)
    x = gth(local)
    return plain(np.diag(up * (load * (x @ down) / (x @ up))), local, np.diag(down))


def cost(function: Callable[[], Any]) -> float:
    begin = time.thread_time()
    function()
    return time.thread_time() - begin


def ten_products(a: np.ndarray, b: np.ndarray) -> None:
    for _ in range(10):
        a @ b


def matrices_alone(queue: QBD, method: str) -> tuple[Callable[[], None], dict[str, Any]]:
    """Return a function that finds G and R and nothing else, and where it leaves them."""
    solver = registry.make_solver(method)
    module = importlib.import_module(type(solver).__module__)
    problem, found = ctmc.Stationary(queue), {}

    def instead(solver: Any, problem: Any, trace: Trace, g: np.ndarray, r: np.ndarray, *rest: Any) -> None:
        found.update(g=g, r=r, steps=trace.iteration, status=trace.status.name)
        raise FoundError

    def run() -> None:
        whole, module.conclude = module.conclude, instead
        try:
            solver.run(problem, Trace(1e-12))
        except FoundError:
            pass
        finally:
            module.conclude = whole

    return run, found


def peers(queue: QBD) -> dict[str, tuple[Callable[[], None], dict[str, Any]]]:
    """Return LINE's Python routines, where they are installed."""
    try:
        from line_solver.api.mam.qbd import qbd_R_logred
        from line_solver.lib.thirdparty.butools.mam.qbd import QBDFundamentalMatrices
    except ImportError:
        return {}
    blocks = [block.toarray() for block in (queue.down, queue.local, queue.up)]
    butools: dict[str, Any] = {"steps": "", "status": ""}
    line: dict[str, Any] = {"steps": "", "status": ""}

    def run_butools() -> None:
        g, r = QBDFundamentalMatrices(*blocks, "GR")
        butools.update(g=np.asarray(g), r=np.asarray(r))

    def run_line() -> None:
        line["r"] = np.asarray(qbd_R_logred(*blocks))

    return {"LINE: BuTools' CR, shifted": (run_butools, butools), "LINE: qbd_R_logred": (run_line, line)}


def errors(queue: QBD, found: dict[str, Any]) -> str:
    up, local, down = (block.toarray() for block in (queue.up, queue.local, queue.down))
    scale, r = np.abs(local).max(), found["r"]
    parts = [f"{np.abs(up + r @ local + r @ r @ down).max() / scale:8.1e}"]
    if "g" in found:
        g = found["g"]
        parts.append(f"{np.abs(down + local @ g + up @ g @ g).max() / scale:8.1e}")
        parts.append(f"{np.abs(g.sum(axis=1) - 1).max():8.1e}")
    return " | ".join(parts)


def main() -> None:
    arguments = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    arguments.add_argument("--phases", type=int, nargs="+", default=[50, 200, 400])
    arguments.add_argument("--load", type=float, nargs="+", default=[0.5, 0.9, 0.99, 0.999])
    arguments.add_argument("--family", nargs="+", default=["random", "slow"])
    arguments.add_argument("--repeats", type=int, default=9)
    options = arguments.parse_args()
    print(
        "| family, m, load | method | units | steps | residual R | residual G | row sums of G |\n" + "| --- " * 7 + "|"
    )
    for family in options.family:
        for m in options.phases:
            for load in options.load:
                with threadpool_limits(limits=1, user_api="blas"):  # else the time of this thread is no measure
                    compare(family, m, load, options.repeats)


def compare(family: str, m: int, load: float, repeats: int) -> None:
    queue = {"random": random_family, "slow": slow_family}[family](m, load)
    a, b = np.random.default_rng(5).random((2, m, m))
    runs = {
        method: matrices_alone(queue, method)
        for method in METHODS
        if m <= MOST_PHASES.get(method, m) and not (family == "slow" and method == "functional_iteration")
    }
    others = peers(queue)
    if not others:
        print("(line-solver is not installed: no peers)")
    runs |= others
    unit = cost(lambda: ten_products(a, b))
    for name, (run, found) in runs.items():
        best, failed = np.inf, ""
        for _ in range(repeats):
            if 400 * unit < best < np.inf:
                break  # once is enough
            try:
                best = min(best, cost(run))
            except Exception as error:  # a peer's failure is a result
                failed = f"{type(error).__name__}: {error}"
                break
            unit = min(unit, cost(lambda: ten_products(a, b)))
        figures = failed or f"{found['steps']} | {errors(queue, found)}"
        print(f"| {family} {m} {load} | {name} | {best / unit:.2f} | {figures} |", flush=True)
    queue.drift  # noqa: B018  # found once per model
    whole = min(cost(lambda: ctmc.solve(ctmc.Stationary(queue), "cyclic_reduction")) for _ in range(3))
    boundary = min(cost(lambda: gth(queue.up.toarray() + queue.local.toarray())) for _ in range(3))
    print(
        f"| {family} {m} {load} | ctmc.solve with everything; boundary alone | {whole / unit:.1f}; {boundary / unit:.1f} |"
    )


if __name__ == "__main__":
    main()
