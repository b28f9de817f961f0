"""One stationary solve in a process of its own, for `stationary_scale.py`: our solvers, and those that pip installs.

    python benchmarks/stationary_methods.py '{"task": "solve", "method": "scipy bicgstab", "model": [4, 20, 0.8]}'

prints one line of JSON.  The model is the heterogeneous supermarket: M servers, capacity K, mu = linspace(1, 2, M), arrival
rate = load x sum mu, d = 2 with replacement, selection tandem with equal preferences, overflow lost.

Every method is measured alike: the generator is in memory and compiled code is warm when the clock starts; the peers get one
BLAS thread, one equation of pi Q = 0 is dropped and the first probability set to 1.  A peer that can be watched runs once to
find the first iterate with a defect of 1e-12, and again, unwatched, for as many steps: so no choice of a tolerance slows it down.
"""

from __future__ import annotations

import contextlib
import importlib.util
import json
import os
import statistics
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numba
import numpy as np
from scipy.sparse import csr_array, csr_matrix, eye_array
from scipy.sparse.linalg import LinearOperator, bicgstab, eigs, gmres, tfqmr
from threadpoolctl import threadpool_limits

import ctmc
from builders.supermarket import supermarket
from ctmc.model.generator import Generator

TARGET = 1e-12
"""The defect asked for."""
FORMS: dict[str, Callable[[Any], Any]] = {
    "as built": lambda chain: chain,
    "float64 CSR": lambda chain: chain.written_out(),
    "value-coded CSR": lambda chain: chain.written_out().coded(),
}
"""The representations whose products are measured; one that this version does not have is left out."""
MOST_DENSE = 3000
"""Most states for peers that eliminate a dense matrix."""


class Done(Exception):  # noqa: N818  # no error: the iterate is good enough
    """Stops a peer."""


class Skipped(Exception):  # noqa: N818  # no error: the method is not for this model
    """Says why a method is not measured."""


def build(servers: int, capacity: int, load: float) -> Generator:
    rates = np.linspace(1, 2, servers)
    return supermarket(
        service_rates=rates, arrival_rate=load * rates.sum(), choices=2, capacity=capacity, selection="tandem",
        sampling="with_replacement",
    )  # fmt: skip


def transposed(chain: Generator) -> csr_array:
    """Return Q^T as SciPy's CSR, diagonal included."""
    return csr_array(chain.to_scipy().T)


def seconds_of(function: Callable[[], Any], repeats: int) -> float:
    """Return the median time of a call."""
    return times_of(function, repeats)[0]


def times_of(function: Callable[[], Any], repeats: int) -> tuple[float, float]:
    """Return the medians of time and of processor time of a call; the second leaves out what other processes take."""
    times, processor = [], []
    for _ in range(repeats):
        begin, busy = time.perf_counter(), time.process_time()
        function()
        times.append(time.perf_counter() - begin)
        processor.append(time.process_time() - busy)
    return statistics.median(times), statistics.median(processor)


def timed(function: Callable[[], Any]) -> tuple[Any, dict[str, Any]]:
    """Return what a call returns, and its times; there are no iterates to look at."""
    results: list[Any] = []
    seconds, processor = times_of(lambda: results.append(function()), 1)
    return results[0], {"seconds": seconds, "processor": processor, "curve": []}


def unit(matrix: csr_array, quick: bool) -> tuple[float, float]:
    """Return U, the time and the processor time of 100 products y = Q^T x."""
    x = np.random.default_rng(17).random(matrix.shape[0])
    one = seconds_of(lambda: matrix @ x, 3)
    repeats = 5 if quick else int(np.clip(3.0 / one, 15, 300))
    seconds, processor = times_of(lambda: matrix @ x, repeats)
    return 100 * seconds, 100 * processor


def memory(what: str) -> int:
    """Return a field of the process's status in bytes: VmRSS now, VmHWM the peak since `reset_peak`; 0 off Linux."""
    try:
        lines = Path("/proc/self/status").read_text(encoding="utf-8").splitlines()
    except OSError:
        return 0
    return next(int(line.split()[1]) * 1024 for line in lines if line.startswith(what))


def reset_peak() -> None:
    with contextlib.suppress(OSError):  # then the peak is that of the whole process
        Path("/proc/self/clear_refs").write_text("5", encoding="utf-8")


def defect_of(matrix: csr_array, exits: np.ndarray, x: np.ndarray) -> float:
    return float(np.abs(matrix @ x).sum() / (np.abs(x) @ exits))


# ---- the reference ----------------------------------------------------------------------------------------------------


@numba.njit(cache=True)
def relax(indptr: Any, indices: Any, data: Any, exits: Any, x: Any, weight: float, backwards: bool) -> None:
    """One sweep of successive over-relaxation over Q^T x = 0."""
    n = np.uint64(exits.size)
    for step in range(n):
        j = n - np.uint64(1) - step if backwards else step
        total = 0.0
        for k in range(indptr[j], indptr[j + np.uint64(1)]):
            if indices[k] != j:
                total += data[k] * x[indices[k]]
        x[j] += weight * (total / exits[j] - x[j])


def reference(chain: Generator, folder: Path, name: str) -> Path:
    """Return a file with the stationary distribution, every state to about 1e-11 relative; kept for later runs.

    Symmetric sweeps and exact aggregation over the total number of jobs, which is a birth-death chain.  They add, multiply
    and divide, so that small probabilities come out right, too.  They stop when the largest relative change of any state,
    with what a geometric series of such changes would still add, is below 1e-11.
    """
    path = folder / f"reference-{name}.npy"
    if path.exists():
        return path
    matrix, exits = transposed(chain), chain.exit_rates
    total = chain.space.states(np.arange(chain.size)).sum(axis=1)
    target = np.repeat(total, np.diff(matrix.indptr))
    source = total[matrix.indices]
    up = np.bincount(matrix.indices[target > source], matrix.data[target > source], chain.size)
    down = np.bincount(matrix.indices[target < source], matrix.data[target < source], chain.size)
    x, before = np.full(chain.size, 1 / chain.size), np.inf
    for step in range(100_000):
        old = x.copy()
        mass, rise, fall = (np.bincount(total, x * rate) for rate in (1.0, up, down))
        ratio = (rise[:-1] / mass[:-1]) / (fall[1:] / mass[1:])
        wanted = np.exp(np.concatenate([[0.0], np.cumsum(np.log(ratio))]))
        x *= (wanted / wanted.sum() / mass)[total]
        relax(*unsigned(matrix), matrix.data, exits, x, 1.0, False)
        relax(*unsigned(matrix), matrix.data, exits, x, 1.0, True)
        change = float(np.abs(x / old - 1).max())
        slowness = min(change / before, 0.9999)
        if step > 10 and change < 1e-8 and change / (1 - slowness) < 1e-11:
            break
        before = change
    temporary = path.with_suffix(f".{os.getpid()}.npy")
    np.save(temporary, x / x.sum())
    temporary.replace(path)
    return path


def unsigned(matrix: csr_array) -> tuple[np.ndarray, np.ndarray]:
    return matrix.indptr.view(f"u{matrix.indptr.itemsize}"), matrix.indices.view(f"u{matrix.indices.itemsize}")


# ---- the methods ------------------------------------------------------------------------------------------------------


def ours(name: str, chain: Generator, quick: bool) -> dict[str, Any]:
    """Measure `ctmc.solve` with its certificate."""
    problem = ctmc.Stationary(chain, tolerance=TARGET)
    runs: list[Any] = []
    busy = time.process_time()
    while len(runs) < (1 if quick else 3) and sum(run.seconds for run in runs) < 20:
        runs.append(ctmc.solve(problem, name, check=False))
    processor = (time.process_time() - busy) / len(runs)
    best = sorted(runs, key=lambda run: run.seconds)[len(runs) // 2]
    history = best.history
    curve = [[float(row["seconds"]), float(row["defect"])] for row in history[:: max(1, len(history) // 60)]]
    return {
        "x": best.value, "seconds": best.seconds, "products": best.products, "note": best.status.name, "curve": curve,
        "processor": processor,
    }  # fmt: skip


class Watch:
    """The system without one equation, its products, and a clock that stands still while an iterate is looked at."""

    def __init__(self, chain: Generator) -> None:
        self.matrix, self.exits = transposed(chain), chain.exit_rates
        inner = csr_array(self.matrix[1:, 1:])
        self.inner, self.right = inner, -self.matrix[1:, [0]].toarray().ravel()
        self.products, self.curve, self.last = 0, [], np.ones(chain.size)
        self.operator = LinearOperator(inner.shape, matvec=self._product, rmatvec=self._backward, dtype=float)
        self.begin, self.paused = time.perf_counter(), 0.0

    def start(self) -> None:
        """Start the clock."""
        self.begin, self.paused = time.perf_counter(), 0.0

    def _product(self, x: np.ndarray) -> np.ndarray:
        self.products += 1
        return self.inner @ x

    def _backward(self, x: np.ndarray) -> np.ndarray:
        self.products += 1
        return self.inner.T @ x

    def seconds(self) -> float:
        """Return the time since the start, without what the looks took."""
        return time.perf_counter() - self.begin - self.paused

    def look(self, inner: np.ndarray) -> None:
        """Keep an iterate, and stop its method where it is good enough."""
        seconds = self.seconds()
        begin = time.perf_counter()
        x = np.concatenate([[1.0], np.asarray(inner, dtype=float).ravel()])
        defect = defect_of(self.matrix, self.exits, x)
        self.curve.append([seconds, defect])
        best = min((point[1] for point in self.curve[:-1]), default=np.inf)
        if defect <= best:
            self.last = x
        self.paused += time.perf_counter() - begin
        if defect <= TARGET:
            raise Done

    def conclude(self, note: str = "") -> dict[str, Any]:
        """Return the best iterate, and when the last one was there."""
        seconds = self.curve[-1][0] if self.curve else self.seconds()
        x = self.last / self.last.sum()
        return {"x": x, "seconds": seconds, "products": self.products, "note": note, "curve": self.curve}


def krylov(method: Callable[..., Any], **options: Any) -> Callable[[Generator], dict[str, Any]]:
    """Return a function that runs a method of SciPy's twice: watched, for the number of steps; then alone, for the time."""

    def run(chain: Generator) -> dict[str, Any]:
        watch = Watch(chain)
        note = "ended before the target"
        watch.start()
        try:
            x, _ = method(watch.operator, watch.right, rtol=1e-15, atol=0.0, callback=watch.look, **options)
            watch.look(x)
        except Done:
            note = "as many steps as the target takes"
        found = watch.conclude(note)
        if note.startswith("ended"):
            return found
        watch.matrix = None  # it belongs to the one who looks
        steps = {**options, "maxiter": len(watch.curve)}
        reset_peak()
        repeats = 3 if found["seconds"] < 5 else 1
        alone, busy = times_of(lambda: method(watch.operator, watch.right, rtol=1e-15, atol=0.0, **steps), repeats)
        stretch = alone / found["seconds"]
        curve = [[seconds * stretch, defect] for seconds, defect in watch.curve]
        return found | {"seconds": alone, "processor": busy, "curve": curve}

    return run


def arnoldi(chain: Generator) -> dict[str, Any]:
    watch = Watch(chain)
    n = chain.size
    uniformized = csr_array(watch.matrix / (1.05 * chain.uniformization_rate) + eye_array(n))
    watch.inner = uniformized
    operator = LinearOperator((n, n), matvec=watch._product, dtype=float)
    (_, vectors), timing = timed(lambda: eigs(operator, k=1, which="LR", tol=1e-13, v0=np.full(n, 1 / n)))
    x = vectors[:, 0].real
    return {"x": x / x.sum(), "products": watch.products, "note": "tolerance 1e-13"} | timing


def direct(chain: Generator) -> dict[str, Any]:
    try:
        import pypardiso
    except ImportError:
        raise Skipped("pypardiso is not installed") from None
    watch = Watch(chain)
    inner = csr_matrix(watch.inner)  # it takes no sparse arrays
    watch.start()
    with contextlib.suppress(Done):
        watch.look(pypardiso.spsolve(inner, watch.right))
    return watch.conclude() | {"products": None}


def multigrid(chain: Generator) -> dict[str, Any]:
    try:
        import pyamg
    except ImportError:
        raise Skipped("pyamg is not installed") from None
    watch = Watch(chain)
    inner = csr_matrix(-watch.inner)
    watch.start()
    try:
        solver = pyamg.ruge_stuben_solver(inner, max_coarse=500)
        x = solver.solve(-watch.right, tol=1e-15, maxiter=1000, accel="bicgstab", callback=watch.look)
        watch.look(x)
    except Done:
        return watch.conclude("stopped at the target; cycles of bicgstab, products not counted") | {"products": None}
    return watch.conclude("ended before the target") | {"products": None}


def elimination(chain: Generator) -> dict[str, Any]:
    try:
        from quantecon.markov import gth_solve
    except ImportError:
        raise Skipped("quantecon is not installed") from None
    if chain.size > MOST_DENSE:
        raise Skipped(f"quantecon's elimination is dense: up to {MOST_DENSE} states")
    dense = chain.to_scipy().toarray()
    gth_solve(np.array([[-1.0, 1.0], [2.0, -2.0]]))
    x, timing = timed(lambda: gth_solve(dense))
    return {"x": x, "products": None, "note": ""} | timing


def storm(chain: Generator) -> dict[str, Any]:
    """Measure Storm through stormpy 2, with gmm++'s bicgstab at precision 1e-13; its answer is the whole distribution.

    Storm's own defaults stop at a step size of 1e-6.  Options reach it only through the settings and the environment that is
    made from them; an environment made directly ignores them without a word.
    """
    try:
        from stormpy import developer
        from stormpy.analysis import compute_steady_state_distribution
        from stormpy.datastructures import SparseMatrixBuilder
        from stormpy.environments import SteadyStateDistributionAlgorithm
        from stormpy.models import SparseCtmc, SparseModelComponents, StateLabeling
    except ImportError:
        raise Skipped("stormpy (2.0 or later) is not installed") from None
    n = chain.size
    rates = chain.to_scipy()
    rates.setdiag(0)
    rates.eliminate_zeros()
    rates.sort_indices()
    builder = SparseMatrixBuilder[float](rows=n, columns=n, entries=rates.nnz)
    rows = np.repeat(np.arange(n), np.diff(rates.indptr))
    for begin in range(0, rates.nnz, 1 << 20):  # its lists of Python numbers take ten times the memory
        part = slice(begin, begin + (1 << 20))
        builder.add_next_values(rows[part], rates.indices[part], rates.data[part])
    labels = StateLabeling(n)
    labels.add_label("init")
    labels.add_label_to_state("init", 0)
    components = SparseModelComponents[float](
        transition_matrix=builder.build(), state_labeling=labels, rate_transitions=True
    )
    model = SparseCtmc[float](components)
    del rates, rows, builder, components
    developer.set_from_exploded_string(
        ["--eqsolver", "gmm++", "--gmm++:method", "bicgstab", "--gmm++:precision", "1e-13", "--gmm++:precond", "none",
         "--gmm++:maxiter", "100000"]
    )  # fmt: skip
    environment = developer.EnvironmentBuilder.build_environment()
    checker = environment.modelchecker
    checker = checker() if callable(checker) else checker
    checker.steady_state_distribution_algorithm = SteadyStateDistributionAlgorithm.EQUATION_SYSTEM
    found, timing = timed(lambda: compute_steady_state_distribution(model, environment=environment))
    return {"x": np.array(found.get_value_vector()), "products": None, "note": "precision 1e-13"} | timing


PEERS: dict[str, Callable[[Generator], dict[str, Any]]] = {
    "scipy bicgstab": krylov(bicgstab, maxiter=100_000),
    "scipy tfqmr": krylov(tfqmr, maxiter=100_000),
    "scipy gmres": krylov(gmres, maxiter=100_000, restart=30, callback_type="x"),
    "scipy eigs": arnoldi,
    "storm bicgstab": storm,
    "pyamg": multigrid,
    "pypardiso": direct,
    "quantecon gth": elimination,
}

LIBRARIES = {
    "storm bicgstab": "stormpy.analysis", "pyamg": "pyamg", "pypardiso": "pypardiso", "quantecon gth": "quantecon.markov",
}  # fmt: skip
"""Imported before the memory of a method is counted, and before the threads of BLAS are limited."""


# ---- the tasks --------------------------------------------------------------------------------------------------------


def solve(method: str, chain: Generator, empty: int, quick: bool, folder: Path, name: str) -> dict[str, Any]:
    """Measure one method; the peak of its memory counts from before the model was built, without our form for the peers."""
    exits = chain.exit_rates
    matrix = transposed(chain)
    units = [unit(matrix, quick)]
    del matrix
    reset_peak()
    if method in PEERS:
        with threadpool_limits(limits=1, user_api="blas"):
            found = PEERS[method](chain)
    else:
        found = ours(method, chain, quick)
    peak = memory("VmHWM") - empty - (chain.nbytes if method in PEERS else 0)
    matrix = transposed(chain)
    units.append(unit(matrix, quick))
    x = found.pop("x")
    known = np.load(reference(chain, folder, name))
    seen = known > 0
    return found | {
        "unit": statistics.mean(seconds for seconds, _ in units),
        "unit_processor": statistics.mean(busy for _, busy in units),
        "unit_spread": abs(units[1][0] / units[0][0] - 1), "peak": peak,
        "defect": defect_of(matrix, exits, x), "least": float(x.min()),
        "worst": float(np.abs(x[seen] / known[seen] - 1).max()),
        "mean_jobs": float(x @ chain.space.states(np.arange(chain.size)).sum(axis=1)),
    }  # fmt: skip


def products(chain: Generator, quick: bool) -> dict[str, Any]:
    """Measure one product p Q in each form, SciPy's, and copies of memory, on one and two threads."""
    matrix, x = transposed(chain), np.random.default_rng(17).random(chain.size)
    out = np.empty(chain.size)
    rows: list[dict[str, Any]] = []
    repeats = 3 if quick else int(np.clip(2.0 / max(seconds_of(lambda: matrix @ x, 3), 1e-6), 9, 200))
    rows.append({"form": "SciPy CSR", "threads": 1, "seconds": seconds_of(lambda: matrix @ x, repeats)})
    for name, form in FORMS.items():
        try:
            model = form(chain)
        except AttributeError:
            rows.append({"form": name, "note": "not in this version"})
            continue
        for threads in (1, 2):
            if threads > numba.config.NUMBA_NUM_THREADS:
                continue
            with ctmc.limited_threads(threads):
                model.forward(x, out=out)
                seconds = seconds_of(lambda model=model: model.forward(x, out=out), repeats)
            shown = f"{name} ({getattr(model, 'representation', 'float64 CSR')})" if name == "as built" else name
            rows.append({"form": shown, "threads": threads, "seconds": seconds, "bytes": model.nbytes})
    bandwidths = {}
    a, b = np.ones(2_000_000 if quick else 40_000_000), np.zeros(2_000_000 if quick else 40_000_000)
    for threads in (1, 2):
        if threads <= numba.config.NUMBA_NUM_THREADS:
            with ctmc.limited_threads(threads):
                copy(a, b)
                bandwidths[threads] = 2 * a.nbytes / seconds_of(lambda: copy(a, b), 5)
    return {"rows": rows, "bandwidth": bandwidths, "states": chain.size, "entries": chain.entries}


@numba.njit(parallel=True, cache=True)
def copy(a: Any, b: Any) -> None:
    for i in numba.prange(a.size):
        b[i] = a[i]


def large(method: str, chain: Generator, empty: int) -> dict[str, Any]:
    """Solve once, without SciPy's matrix, which would not fit; the defect is recomputed by the model's own product."""
    held = memory("VmRSS") - empty
    reset_peak()
    solution = ctmc.solve(ctmc.Stationary(chain, tolerance=TARGET), method, check=False)
    peak = memory("VmHWM") - empty
    x = solution.value
    defect = float(np.abs(chain.forward(x)).sum() / (np.abs(x) @ chain.exit_rates))
    out = np.empty(chain.size)
    return {
        "states": chain.size, "entries": chain.entries, "seconds": solution.seconds, "products": solution.products,
        "note": solution.status.name, "held": held, "peak": peak, "defect": defect, "least": float(x.min()),
        "product": seconds_of(lambda: chain.forward(x, out=out), 5),
        "representation": getattr(chain, "representation", "float64 CSR"),
    }  # fmt: skip


def main() -> None:
    asked = json.loads(sys.argv[1])
    servers, capacity, load = asked["model"]
    quick, folder, method = bool(asked.get("quick")), Path(asked.get("folder", ".")), asked.get("method", "")
    small = build(3, 3, 0.8) if quick else build(4, 9, 0.8)  # above the size where loops go parallel
    if method and method not in PEERS:
        ctmc.solve(ctmc.Stationary(small), method, check=False)  # compiles
    small.forward(np.ones(small.size))
    del small
    if method in LIBRARIES and importlib.util.find_spec(LIBRARIES[method].partition(".")[0]):
        importlib.import_module(LIBRARIES[method])
    empty = memory("VmRSS")
    begin = time.perf_counter()
    chain = build(int(servers), int(capacity), load)
    built = time.perf_counter() - begin
    try:
        if asked["task"] == "solve":
            found = solve(method, chain, empty, quick, folder, f"{servers}-{capacity}-{load}")
        elif asked["task"] == "reference":
            found = {"file": str(reference(chain, folder, f"{servers}-{capacity}-{load}"))}
        elif asked["task"] == "products":
            found = products(chain, quick)
        else:
            found = large(method, chain, empty)
    except Skipped as reason:
        found = {"skipped": str(reason)}
    print(json.dumps(found | {"building": built, "states": chain.size, "entries": chain.entries}))


if __name__ == "__main__":
    main()
