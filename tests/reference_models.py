"""Rows of builder, parameters, known answer and source, for the contract sweep; at most 3000 states each."""

import math
import tomllib
from dataclasses import dataclass, field
from functools import cached_property
from importlib.resources import files

import numpy as np

import ctmc
from builders.nearly_decomposable import prescribed_distribution
from ctmc.contract import Case


def reference(name):
    """Return a table of data/reference."""
    return tomllib.loads(files("ctmc.data.reference").joinpath(f"{name}.toml").read_text())


@dataclass(frozen=True)
class Row:
    name: str
    builder: str
    parameters: dict
    source: str
    measures: dict = field(default_factory=dict)  # measure -> known value
    answer: object = None  # known distribution, or None: elimination
    hard: bool = False

    @cached_property
    def model(self):
        return ctmc.build(self.builder, **self.parameters)

    def cases(self):
        """The stationary problem, and for small models one over time from their own initial state."""
        yield Case(self.name, ctmc.Stationary(self.model), hard=self.hard, answer=self.answer)
        if isinstance(self.model, ctmc.Generator) and self.model.size <= 100 and self.model.initial is not None:
            yield Case(f"{self.name} over time", ctmc.Transient(self.model, times=[0.1, 1.0, 20.0]))


def _supermarket():
    table = reference("supermarket")
    source = "data/reference/supermarket.toml"
    for row in table["stationary"]:
        parameters = {**table["common"], **row["parameters"]}
        name = "supermarket " + " ".join(str(value) for value in row["parameters"].values())
        measures = {"queue_length": row["queue_length"], "throughput": row["throughput"]}
        yield Row(name, "supermarket", parameters, source, measures)
    for rule, throughput in table["overflow"].items():
        parameters = {"service_rates": [3, 2, 1], "arrival_rate": 4.5, "choices": 2, "capacity": 6, "overflow": rule}
        yield Row(f"supermarket {rule}", "supermarket", parameters, source, {"throughput": throughput})


def _lumped_supermarket():
    """One choice makes independent M/M/1/K queues: an orbit has its multinomial coefficient times their product."""
    servers, capacity, load = 4, 4, 0.75
    parameters = {"service_rates": [2.0] * servers, "arrival_rate": 2 * load * servers, "choices": 1, "capacity": capacity,
                  "lump": True}  # fmt: skip
    queue = load ** np.arange(capacity + 1) / (load ** np.arange(capacity + 1)).sum()
    space = ctmc.build("supermarket", **parameters).space
    answer = [
        math.factorial(servers)
        / math.prod(math.factorial(state.count(k)) for k in set(state))
        * math.prod(queue[state])
        for state in space.states(np.arange(space.size)).tolist()
    ]
    yield Row("supermarket lumped", "supermarket", parameters, "product form", {"jobs": servers * queue @ range(5)},
              np.array(answer))  # fmt: skip
    parameters = {"service_rates": [2, 1, 2, 1], "arrival_rate": 5.5, "choices": 2, "capacity": [3, 5, 3, 5],
                  "total_capacity": 12, "overflow": "rerouted", "lump": True}  # fmt: skip
    yield Row("supermarket lumped two classes", "supermarket", parameters, "elimination")


KNOWN_OF_FORK_JOIN = ("waiting_time", "service_span", "response_time", "empty_probability", "utilization")


def _fork_join():
    table = reference("fork_join")
    for row in table["row"]:
        parameters = {
            "service_rates": row.get("service_rates", table["service_rates"]),
            "tasks": row.get("tasks", table["tasks"]),
            "arrival_rate": row["arrival_rate"],
            "thresholds": row["thresholds"],
        }
        known = {name: row[name] for name in KNOWN_OF_FORK_JOIN if name in row}
        name = (
            f"fork_join {parameters['service_rates']} {row['arrival_rate']} {parameters['tasks']} {row['thresholds']}"
        )
        yield Row(name, "fork_join", parameters, "data/reference/fork_join.toml", known)


def _multiserver(servers, load, capacity):
    """M/M/c/K: pi_k is proportional to prod_{j <= k} lambda / (min(j, c) mu)."""
    deaths = [float(min(k, servers)) for k in range(1, capacity + 1)]
    weights = np.cumprod([1.0, *(load * servers / death for death in deaths)])
    return {"births": [load * servers] * capacity, "deaths": deaths}, weights / weights.sum()


def _birth_death():
    for servers, load, capacity in ((1, 0.8, 40), (3, 0.7, 25), (5, 1.3, 12)):
        parameters, answer = _multiserver(servers, load, capacity)
        yield Row(f"M/M/{servers}/{capacity} load {load}", "birth_death", parameters, "closed form", answer=answer)


def _tandem():
    """Product form: with a cap on the total, pi(x) is proportional to prod_i (lambda / mu_i)^x_i."""
    for total in (1, 6):
        rates = [2.0, 1.5, 3.0]
        parameters = {"service_rates": rates, "arrival_rate": 1.2, "total_capacity": total}
        states = ctmc.build("tandem_network", **parameters).space
        loads = np.array([1.2 / rate for rate in rates])
        weights = np.array([math.prod(loads**state) for state in states.states(np.arange(states.size))])
        yield Row(f"tandem total {total}", "tandem_network", parameters, "product form", answer=weights / weights.sum())
    yield Row(
        "tandem blocking", "tandem_network",
        {"service_rates": [2.0, 1.5], "arrival_rate": 1.2, "capacity": [4, 3]}, "elimination",
    )  # fmt: skip


def _walk(state):
    (k,) = state
    if k < 8:
        yield (k + 1,), 1.0
    if k > 0:
        yield (k - 1,), 2.0


def _reachable():
    weights = 0.5 ** np.arange(9)
    yield Row("reachable walk", "reachable", {"transitions": _walk, "initial": (0,)}, "closed form",
              answer=weights / weights.sum())  # fmt: skip


def _modulated_queue():
    bursts = {
        "environment": [[0, 0.1, 0], [0, 0, 2], [0.5, 0.5, 0]],
        "arrival_rates": [0.2, 3, 0],
        "service_rates": [1, 1.5, 0.5],
    }
    yield Row("MMPP/MSP/2", "modulated_queue", {**bursts, "servers": 2}, "elimination")
    yield Row("MMPP/MSP/2/15", "modulated_queue", {**bursts, "servers": 2, "capacity": 15}, "elimination")


def _repairable_system():
    """Product form where nobody waits for repair: binomial distributions with failure / (failure + repair)."""
    rates = {"failure_rates": [1e-9, 1e-3, 1e-5], "repair_rates": [100.0, 0.5, 1e-4], "components": [2, 3, 2]}
    answer = np.ones(1)
    for failure, repair, count in zip(*rates.values(), strict=True):
        failed = failure / (failure + repair)
        own = [math.comb(count, k) * failed**k * (1 - failed) ** (count - k) for k in range(count + 1)]
        answer = np.multiply.outer(answer, own).ravel()
    yield Row("repairable independent", "repairable_system", rates, "product form", answer=answer, hard=True)


def _nearly_decomposable():
    parameters = {"blocks": 5, "block_size": 6, "coupling": 1e-10, "seed": 1994, "decades": 2.0}
    yield Row("blocks coupled by 1e-10", "nearly_decomposable", parameters, "prescribed",
              answer=prescribed_distribution(**parameters), hard=True)  # fmt: skip
    yield Row("Courtois", "courtois", {}, "elimination", hard=True)


def _loss_network():
    """Product form: a route with n calls has the factor load^n / n!."""
    loads = [1.0, 0.5, 0.8]
    parameters = {"capacities": [5, 4], "circuits": [[1, 0], [0, 2], [1, 1]], "arrival_rates": loads}
    fits = [calls for calls in np.ndindex(6, 3, 5) if calls[0] + calls[2] <= 5 and 2 * calls[1] + calls[2] <= 4]
    weights = np.array(
        [math.prod(a**n / math.factorial(n) for a, n in zip(loads, calls, strict=True)) for calls in fits]
    )
    yield Row("loss network", "loss_network", parameters, "product form", answer=weights / weights.sum())


def _benchmark_models():
    """Values of Storm in rational arithmetic, from the models of tests/test_benchmark_models.py."""
    source = "Storm, exact"
    yield Row("coxian_tandem 3", "coxian_tandem", {"capacity": 3}, source, {"customers": 3.4890773983118835})
    yield Row("polling 3", "polling", {"stations": 3}, source, {"customers": 1.0443045823128392})
    yield Row("kanban 1", "kanban", {"tickets": 1}, source, {"throughput": 0.09258463463338258})
    yield Row("flexible_manufacturing 1", "flexible_manufacturing", {"parts": 1}, source,
              {"productivity": 13.853128336222289})  # fmt: skip
    yield Row("workstation_cluster 1", "workstation_cluster", {"workstations": 1}, source,
              {"operational_share": 0.9987584323120583}, hard=True)  # fmt: skip


ROWS = [
    *_supermarket(), *_lumped_supermarket(), *_fork_join(), *_birth_death(), *_tandem(), *_reachable(), *_modulated_queue(),
    *_repairable_system(), *_nearly_decomposable(), *_loss_network(), *_benchmark_models(),
]  # fmt: skip
CASES = [case for row in ROWS for case in row.cases()]
