"""What a study file says, as frozen objects."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from ctmc.solver import Solver
from ctmc.study.compare_table import Compare


@dataclass(frozen=True)
class StudyModel:
    """A model of a study.

    Attributes
    ----------
    name, builder : str
        The builder is '' where the model is read from a file.
    parameters : mapping
        Of the builder.
    group : str
        The name in the file; `name` itself except in a sweep.
    point : mapping
        What the sweep has chosen for this one, by parameter.
    optimize : Optimize or None
        How one more parameter is found.
    file : str or None
        A model file of any format, relative to the folder of the study, in place of a builder.
    """

    name: str
    builder: str
    parameters: Mapping[str, Any]
    group: str = ""
    point: Mapping[str, Any] = field(default_factory=dict)
    optimize: Optimize | None = None
    file: str | None = None


@dataclass(frozen=True)
class Optimize:
    """``[optimize]``: the parameter of some models that is chosen so that a cost is least; see `ctmc.study.optimize`."""

    models: tuple[str, ...]
    over: str
    minimize: str
    maximum: int | None = None
    method: str = "exhaustive"


@dataclass(frozen=True)
class Plot:
    """One ``[[plot]]``: y against x, one line for each model and component.

    Attributes
    ----------
    x, y : str
        Parameters of a sweep, or measures; x may be "time".
    models : tuple of str
    title : str
    problem : str or None
        Whose answers are drawn; None: of all, those over time only where x, `time` or `panels` ask for times.
    time : float or None
        The time of the answers, where x is not the time.
    panels : str or None
        A swept parameter with a panel for each value, or "time": one for each time, and one for the long run.
    labels : tuple of str
        Names of the components of y; empty: ``y[0]``, ``y[1]``, ..
    """

    x: str
    y: str
    models: tuple[str, ...]
    title: str
    problem: str | None = None
    time: float | None = None
    panels: str | None = None
    labels: tuple[str, ...] = ()


@dataclass(frozen=True)
class Solve:
    """One ``[[solve]]``: a question that is asked of several models and answered by several solvers.

    Attributes
    ----------
    models : tuple of str
    problem : str
    solvers : tuple of Solver, 'auto' or None
        None stands for the problem's default solver.
    tolerance : float or None
        None stands for the problem's default.
    measures : tuple of str or None
        None stands for all measures of the model.
    initial : tuple of numbers, or None
    times : tuple of float
        Of transient problems and accumulated rewards.
    reward : tuple of str
        Empty except where rewards are asked for.
    moments : int or None
    discount : float or None
    target, avoid : str or None
    warm : bool
        Whether the points of a sweep are taken one after another, each solve beginning from the answer to its neighbour.
    """

    models: tuple[str, ...]
    problem: str
    solvers: tuple[Solver | str | None, ...]
    tolerance: float | None = None
    measures: tuple[str, ...] | None = None
    initial: tuple[float, ...] | None = None
    times: tuple[float, ...] = ()
    reward: tuple[str, ...] = ()
    moments: int | None = None
    discount: float | None = None
    target: str | None = None
    avoid: str | None = None
    warm: bool = False


@dataclass(frozen=True)
class Study:
    """What a study file asks for.

    Attributes
    ----------
    title : str
    output : str or None
        Name of the result file, as it stands in the study.
    models : mapping of str to StudyModel
        Each point of a sweep is one.
    solves : tuple of Solve
    plots : tuple of Plot
    text : str
        The file's text.
    source : str
        Where it came from.
    plots : tuple of Plot
    changes : tuple of str
        What the command line has changed in the text.
    compare : Compare or None
        Which solvers are compared on the models.
    """

    title: str
    output: str | None
    models: Mapping[str, StudyModel]
    solves: tuple[Solve, ...]
    text: str
    source: str
    plots: tuple[Plot, ...] = ()
    changes: tuple[str, ...] = ()
    compare: Compare | None = None
