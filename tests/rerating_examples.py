"""Models to re-rate, and how two of them are compared."""

from __future__ import annotations

import numpy as np

import ctmc
from ctmc.model.impulses import impulse_values

MARKET = {"service_rates": [3, 2, 1], "arrival_rate": 3, "choices": 2, "capacity": 4, "preferences": [0.2, 0.3, 0.5]}
LUMPED = {"service_rates": [2, 1, 2, 1], "arrival_rate": 4, "choices": 2, "capacity": 4, "lump": True}
FORK = {"service_rates": [5, 2, 1], "arrival_rate": 1, "tasks": 3, "thresholds": [1, 2, 8]}
MODELS = {
    "lattice": ("supermarket", MARKET, {"arrival_rate": 2.2}),
    "capped": ("supermarket", {**MARKET, "total_capacity": 7}, {"arrival_rate": 2.2}),
    "lumped": ("supermarket", LUMPED, {"arrival_rate": 2.2, "service_rates": [4, 2, 4, 2]}),
    "lumped and capped": ("supermarket", {**LUMPED, "total_capacity": 7}, {"arrival_rate": 2.2}),
    "births": ("birth_death", {"births": [1.0, 2.0], "deaths": [2.0, 2.0]}, {"births": [3.0, 0.5]}),
    "tandem": ("tandem_network", {"service_rates": [2, 2], "arrival_rate": 1, "capacity": 5}, {"service_rates": [2, 3]}),
    "fork_join": ("fork_join", FORK, {"arrival_rate": 1.2, "service_rates": [4, 3, 1]}),
}  # fmt: skip


def arrays_of(model):
    """Return every array of a model by name."""
    if isinstance(model, ctmc.Generator):
        found = dict(zip(model.transitions._fields, model.transitions, strict=True))
        found |= {"exit_rates": model.exit_rates, "positions": model.initial.positions}
        return found | {f"guess {k}": part for k, part in enumerate(model.guess or ())}
    found = {f"phases {k}": table for k, table in enumerate(model.phases)}
    blocks = [(name, getattr(model, name)) for name in ("up", "local", "down")]
    for k, level in enumerate(model.boundary):
        blocks += [(f"{name} {k}", getattr(level, name)) for name in ("up", "local", "down")]
    for name, block in blocks:
        if block is not None:
            found |= {f"{name} {part}": getattr(block, part) for part in ("data", "indices", "indptr")}
    return found


def values_of(model):
    """Return the values of every reward in every state (of a QBD: of level 1), and its impulses."""
    whole = isinstance(model, ctmc.Generator)
    states = model.space.states(np.arange(model.size)) if whole else model.level_states(1)
    found = {}
    for name, reward in model.all_rewards.items():
        if reward.rate is not None:
            found[name] = reward.evaluate(states, slice(0, len(states)))
        if reward.self_loops is not None:
            found[f"{name} loops"] = reward.self_loops(states)
        if reward.impulse is not None and whole:
            found[f"{name} impulses"] = impulse_values(model, reward)
    return found


def check_same(model, fresh):
    assert model.recipe == fresh.recipe
    assert model.recipe.hash == fresh.recipe.hash
    assert model.notes == fresh.notes
    for one, other in ((arrays_of(model), arrays_of(fresh)), (values_of(model), values_of(fresh))):
        assert one.keys() == other.keys()
        for name, array in one.items():
            assert array.dtype == other[name].dtype, name
            np.testing.assert_array_equal(array, other[name], err_msg=name)
    assert list(model.distributions) == list(fresh.distributions)
    assert (model.guess is None) == (fresh.guess is None) if isinstance(model, ctmc.Generator) else True
