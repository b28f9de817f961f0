"""Facts about models and answers in the form that the commands show and write to JSON."""

from __future__ import annotations

import os
import re
from typing import TYPE_CHECKING, Any

from ctmc.ranks import ALONE, Ranks

if TYPE_CHECKING:
    from ctmc.model.generator import Generator
    from ctmc.model.qbd import QBD


def load_model(given: str, ranks: Ranks = ALONE) -> Generator | QBD:
    """Return the model in a file of any known format, or that of a recipe such as ``supermarket(capacity=20, ..)``.

    Of several ranks each gets its part: of our own files it reads, and of a recipe it makes, its own rows only.
    """
    from ctmc import registry
    from ctmc.interchange.formats import read

    if (recipe := recipe_in(given)) is not None:
        from ctmc.model.streamed import streaming

        with streaming(ranks.count > 1):
            return _part(registry.build(recipe[0], **recipe[1]), ranks)
    if ranks.count > 1 and is_own(given):
        from ctmc.storage.shares import open_share

        return open_share(given, ranks)
    return _part(read(given), ranks)


def recipe_in(given: str) -> tuple[str, dict[str, Any]] | None:
    """Return builder and parameters of a recipe, such as ``birth_death(births=[1], deaths=[2])``; None for the name of a file.

    Examples
    --------
    >>> recipe_in("birth_death(births=[1], deaths=[2])"), recipe_in("model.h5")
    (('birth_death', {'births': [1], 'deaths': [2]}), None)
    """
    from ctmc import registry

    match = re.fullmatch(r"\s*([A-Za-z_]\w*)\s*\((.*)\)\s*", given, flags=re.DOTALL)
    if match is None or os.path.lexists(given):
        return None
    registry.builder(match[1])  # close names are listed for one that does not exist
    return match[1], registry.plain_options("model", given, match[2])


def _part(model: Any, ranks: Ranks) -> Generator | QBD:
    from ctmc.errors import ModelError
    from ctmc.model.generator import Generator
    from ctmc.model.shared import share

    if ranks.count == 1:
        found: Generator | QBD = model
        return found
    if not isinstance(model, Generator):
        raise ModelError(
            f"the model is a {type(model).__name__}, and {ranks.count} ranks were started; allowed on several ranks is a Generator, "
            "such as its truncation."
        )
    return share(model, ranks)


def is_own(path: str) -> bool:
    """Return whether a file is of ctmc's own format, beside which solutions stand."""
    from ctmc.interchange.formats import OWN, format_of

    return recipe_in(path) is None and format_of(path).name == OWN


def model_facts(model: Any) -> dict[str, Any]:
    """Return size, structure, bytes and notes of a model, with plain values.

    Examples
    --------
    >>> import ctmc
    >>> model_facts(ctmc.build("birth_death", births=[1.0], deaths=[2.0]))["states"]
    2
    """
    from ctmc.model.qbd import QBD

    facts: dict[str, Any] = {"kind": type(model).__name__}
    if isinstance(model, QBD):
        blocks = [model.up, model.local, model.down]
        blocks += [
            block for level in model.boundary for block in (level.down, level.local, level.up) if block is not None
        ]
        facts |= {
            "boundary_levels": model.boundary_levels,
            "boundary_states": sum(map(len, model.phases)),
            "phases": model.phase_count,
            "drift": model.drift,
            "entries": int(sum(block.nnz for block in blocks)),
            "bytes": int(sum(block.data.nbytes + block.indices.nbytes + block.indptr.nbytes for block in blocks)),
        }
    else:
        facts |= {
            "states": model.size,
            "state_space": model.space.describe(),
            "entries": model.entries,
            "largest_exit_rate": float(model.exit_rates.max()),
            "bytes": model.nbytes,
        }
    facts["rewards"] = list(model.all_rewards)
    if model.labels:
        facts["labels"] = list(model.labels)
    facts["notes"] = list(model.notes)
    return facts


def solution_facts(solution: Any, default: bool) -> dict[str, Any]:
    """Return how an answer was reached and how good it is, with plain values."""
    from ctmc import registry
    from ctmc.study.numbers import settings_facts

    problem = solution.problem
    return {
        "problem": registry.problem_name(type(problem)),
        "solver": registry.snake_case(solution.solver.partition("(")[0]),
        "solver_options": solution.solver,
        "default_solver": default,
        "status": solution.status.name,
        "reason": solution.reason,
        "defect": solution.defect,
        "tolerance": problem.tolerance,
        "error_bound": _largest(solution.error_bound),
        "iterations": solution.iterations,
        "products": solution.products,
        "seconds": solution.seconds,
        **settings_facts(problem),
    }


def _largest(bound: Any) -> float | None:
    """Return the largest of some bounds."""
    import numpy as np

    return None if bound is None else float(np.max(bound))
