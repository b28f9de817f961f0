"""A sparse linear-algebra framework for continuous-time Markov chains.

Builders make sparse generators, solvers compute stationary and transient quantities, and the framework recomputes the defect
of every answer from its definition before it calls it converged.

Examples
--------
>>> import ctmc
>>> queue = ctmc.build("birth_death", births=[1.0] * 9, deaths=[2.0] * 9)
>>> solution = ctmc.solve(ctmc.Stationary(queue), "gth")
>>> round(solution.expected("jobs"), 9)
0.990224829
"""

from __future__ import annotations

import importlib
import sys
from types import ModuleType
from typing import TYPE_CHECKING, Any

__version__ = "0.1.0"

# Everything below is imported when first used: `ctmc --help` must not wait for SciPy, Numba and HDF5.
_WHERE = {
    "build": "ctmc.registry",
    "advise": "ctmc.advise",
    "Advice": "ctmc.advise",
    "solve": "ctmc.solve",
    "simulate": "ctmc.simulation",
    "Estimate": "ctmc.estimate",
    "reach_probability": "ctmc.reach",
    "expected_time_before": "ctmc.reach",
    "quasi_stationary": "ctmc.quasi_stationary",
    "spectral_gap": "ctmc.spectral_gap",
    "save": "ctmc.storage",
    "load": "ctmc.storage",
    "open": "ctmc.storage:open_model",
    "forecast": "ctmc.forecast",
    "verify": "ctmc.verify",
    "read": "ctmc.interchange.formats",
    "write": "ctmc.interchange.formats",
    "Stationary": "ctmc.problem",
    "Transient": "ctmc.problem",
    "AccumulatedReward": "ctmc.problem",
    "DiscountedReward": "ctmc.problem",
    "FirstPassage": "ctmc.problem",
    "Interval": "ctmc.interval",
    "prove_interval": "ctmc.interval",
    "bias": "ctmc.bias",
    "Bias": "ctmc.bias",
    "sensitivity": "ctmc.sensitivity",
    "Sensitivity": "ctmc.sensitivity",
    "Solution": "ctmc.solution",
    "PassageSolution": "ctmc.passage_solution",
    "Outcome": "ctmc.solution",
    "Status": "ctmc.solution",
    "Generator": "ctmc.model.generator",
    "QBD": "ctmc.model.qbd",
    "MatrixGeometric": "ctmc.model.qbd",
    "LevelDependentQBD": "ctmc.model.level_dependent",
    "LevelDistribution": "ctmc.model.level_dependent",
    "Reward": "ctmc.model.reward",
    "Trace": "ctmc.trace",
    "Checkpoint": "ctmc.checkpoint",
    "builder": "ctmc.model.recipe",
    "limited_memory": "ctmc.model.memory",
    "limited_threads": "ctmc.threads",
    "allowed_code": "ctmc.model.recipe",
    "to_networkx": "ctmc.model.communication",
    "from_networkx": "ctmc.interchange.graphml",
    "condensation": "ctmc.model.communication",
    "structure": "ctmc.model.structure",
    "CTMCError": "ctmc.errors",
    "ModelError": "ctmc.errors",
    "ReducibleError": "ctmc.errors",
    "UnstableError": "ctmc.errors",
    "UnsupportedProblemError": "ctmc.errors",
    "UnknownNameError": "ctmc.errors",
    "PluginError": "ctmc.errors",
    "SolveError": "ctmc.errors",
    "StorageError": "ctmc.errors",
    "StudyError": "ctmc.errors",
}
_MODULES = ("contract", "model", "registry", "storage", "study")

__all__ = ["__version__", *_WHERE]


def __getattr__(name: str) -> Any:
    if name in _MODULES:
        return importlib.import_module(f"ctmc.{name}")
    if name not in _WHERE:
        raise AttributeError(f"module 'ctmc' has no attribute {name!r}")
    module, _, other = _WHERE[name].partition(":")
    value = getattr(importlib.import_module(module), other or name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted([*globals(), *_WHERE, *_MODULES])


class _Package(ModuleType):
    """Keeps `ctmc.solve` the function: the import system would set it to the module whenever that is imported first."""

    def __setattr__(self, name: str, value: Any) -> None:
        if name in _WHERE and isinstance(value, ModuleType):
            value = getattr(value, name)
        super().__setattr__(name, value)


sys.modules[__name__].__class__ = _Package


if TYPE_CHECKING:
    from ctmc.advise import Advice, advise
    from ctmc.bias import Bias, bias
    from ctmc.checkpoint import Checkpoint
    from ctmc.errors import (
        CTMCError,
        ModelError,
        PluginError,
        ReducibleError,
        SolveError,
        StorageError,
        StudyError,
        UnknownNameError,
        UnstableError,
        UnsupportedProblemError,
    )
    from ctmc.estimate import Estimate
    from ctmc.forecast import forecast
    from ctmc.interchange.formats import read, write
    from ctmc.interchange.graphml import from_networkx
    from ctmc.interval import Interval, prove_interval
    from ctmc.model.communication import condensation, to_networkx
    from ctmc.model.generator import Generator
    from ctmc.model.level_dependent import LevelDependentQBD, LevelDistribution
    from ctmc.model.memory import limited_memory
    from ctmc.model.qbd import QBD, MatrixGeometric
    from ctmc.model.recipe import allowed_code, builder
    from ctmc.model.reward import Reward
    from ctmc.model.structure import structure
    from ctmc.passage_solution import PassageSolution
    from ctmc.problem import AccumulatedReward, DiscountedReward, FirstPassage, Stationary, Transient
    from ctmc.quasi_stationary import quasi_stationary
    from ctmc.reach import expected_time_before, reach_probability
    from ctmc.registry import build
    from ctmc.sensitivity import Sensitivity, sensitivity
    from ctmc.simulation import simulate
    from ctmc.solution import Outcome, Solution, Status
    from ctmc.solve import solve
    from ctmc.spectral_gap import spectral_gap
    from ctmc.storage import load, save
    from ctmc.storage import open_model as open
    from ctmc.threads import limited_threads
    from ctmc.trace import Trace
    from ctmc.verify import verify
