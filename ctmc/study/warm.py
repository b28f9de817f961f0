"""Sweeps as paths: which models share their structure, in which order a warm sweep takes them, and what that has saved."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from ctmc import registry
from ctmc.model.recipe import plain
from ctmc.model.rerating import rates_that_may_change
from ctmc.storage.manifest import canonical_json
from ctmc.study.content import StudyModel


def structure_of(model: StudyModel) -> str | None:
    """Return what models share that differ in rates only; None where nothing tells, as of a model that is read or searched for.

    Examples
    --------
    >>> queues = [StudyModel("q", "birth_death", {"births": [rate], "deaths": [2.0]}) for rate in (1.0, 1.5)]
    >>> len({structure_of(queue) for queue in queues})
    1
    """
    if model.file is not None or model.optimize is not None:
        return None
    try:
        signature = registry.builder_parameters(model.builder).parameters
        known = {**{name: each.default for name, each in signature.items()}, **model.parameters}
        may = rates_that_may_change(registry.builder(model.builder), known)
        fixed = {name: plain(name, value) for name, value in known.items() if may.get(name, "") is not None}
        return canonical_json([model.builder, fixed]).decode()
    except Exception:  # what is wrong with the parameters is told where the model is built
        return None


def paths(models: Mapping[str, StudyModel], names: Iterable[str]) -> list[list[str]]:
    """Return the names of models as paths through their sweeps, each of one structure and with neighbours next to each other.

    The first swept parameter ascends; the others go up and down in turn, so that a step changes as few of them as possible.

    Examples
    --------
    >>> sweep = [{"arrival_rate": a, "service_rate": s} for a in (2.0, 1.0) for s in (3.0, 4.0)]
    >>> models = {
    ...     str(k): StudyModel(str(k), "tandem_network", {"capacity": [2], "service_rates": [p["service_rate"]],
    ...                        "arrival_rate": p["arrival_rate"]}, "q", p)
    ...     for k, p in enumerate(sweep)
    ... }
    >>> [list(models[name].point.values()) for path in paths(models, models) for name in path]
    [[1.0, 3.0], [1.0, 4.0], [2.0, 4.0], [2.0, 3.0]]
    """
    found: dict[tuple[str, str], list[str]] = {}
    for name in names:
        structure = structure_of(models[name])
        alone = structure is None or not models[name].point
        found.setdefault((models[name].group, name if alone else str(structure)), []).append(name)
    return [_there_and_back({name: [*models[name].point.values()] for name in path}) for path in found.values()]


def _there_and_back(points: Mapping[str, Sequence[Any]]) -> list[str]:
    if len(points) < 2 or not all(points.values()):
        return list(points)
    ways: dict[Any, dict[str, Sequence[Any]]] = {}
    for name in sorted(points, key=lambda name: _rank(points[name][0])):
        ways.setdefault(_rank(points[name][0]), {})[name] = points[name][1:]
    ordered: list[str] = []
    for number, rest in enumerate(ways.values()):
        way = _there_and_back(rest)
        ordered += reversed(way) if number % 2 else way
    return ordered


def _rank(value: Any) -> tuple[int, tuple[Any, ...]]:
    """Return what puts values of any types in an order."""
    if isinstance(value, int | float):
        return 0, (value,)
    return (1, tuple(map(_rank, value))) if isinstance(value, list | tuple) else (2, (str(value),))


@dataclass(frozen=True)
class Count:
    """What one answer on a path has cost.

    Attributes
    ----------
    path : str
        By its first model.
    question : pair of int
        Numbers of the question and the solver; counts are compared where path and question agree.
    model, problem, solver : str
    warm : bool
        Whether it began from the answer to a neighbour.
    products : int
    before : int or None
        What the same question took from scratch in an earlier run, where the store knows it.
    """

    path: str
    question: tuple[int, int]
    model: str
    problem: str
    solver: str
    warm: bool
    products: int
    before: int | None = None


@dataclass(frozen=True)
class Saving:
    """What warm starts have saved on one path by one solver, in products with the generator.

    Attributes
    ----------
    path, model, problem, solver : str
        The path by its first model.
    answers, products : int
        Those that began from a neighbour, and what they took.
    known, known_products, before : int
        Those of them that an earlier run had solved from scratch; what they took now and then: measured.
    first : int or None
        What the first point of the path took from scratch; None where none was solved so.
    """

    path: str
    model: str
    problem: str
    solver: str
    answers: int
    products: int
    known: int
    known_products: int
    before: int
    first: int | None

    @property
    def estimate(self) -> int | None:
        """What all would have taken from scratch, if each were like the first point; None without one."""
        return None if self.first is None else self.first * self.answers

    def __str__(self) -> str:
        text = (
            f"Warm starts from {self.path} on, {self.solver}: {self.answers:,} answers took {self.products:,} products"
        )
        if self.known:
            share = 100 * (1 - self.known_products / self.before) if self.before else 0.0
            text += (
                f"; measured: {self.known:,} of them took {self.known_products:,}, and {self.before:,} from scratch in an "
                f"earlier run, so {abs(share):.0f} % {'were saved' if share >= 0 else 'more were needed'}"
            )
        elif self.estimate is not None:
            text += (
                f"; a rough estimate: about {self.estimate:,} from scratch, if each took the {self.first:,} of the first point "
                "(it may be far off, as points differ)"
            )
        else:
            text += "; no point was solved from scratch to compare with"
        return f"{text}."


def savings(counts: Iterable[Count]) -> tuple[Saving, ...]:
    """Return what the warm starts of each path, question and solver have saved; nothing of those without one.

    Examples
    --------
    >>> cold = Count("path", (0, 0), "queue", "stationary", "gmres", False, 50)
    >>> warm = Count("path", (0, 0), "queue", "stationary", "gmres", True, 20, 55)
    >>> print(savings([cold, warm])[0])
    Warm starts from path on, gmres: 1 answers took 20 products; measured: 1 of them took 20, and 55 from scratch in an earlier run, so 64 % were saved.
    """
    groups: dict[tuple[str, tuple[int, int]], list[Count]] = {}
    for count in counts:
        groups.setdefault((count.path, count.question), []).append(count)
    found = []
    for group in groups.values():
        warm = [count for count in group if count.warm]
        known = [count for count in warm if count.before is not None]
        if warm:
            found.append(
                Saving(
                    warm[0].path, warm[0].model, warm[0].problem, warm[0].solver, len(warm), sum(count.products for count in warm),
                    len(known), sum(count.products for count in known), sum(count.before or 0 for count in known),
                    next((count.products for count in group if not count.warm), None),
                )
            )  # fmt: skip
    return tuple(found)
