# ---
# jupyter:
#   jupytext:
#     text_representation:
#       extension: .py
#       format_name: percent
#   kernelspec:
#     display_name: Python 3
#     language: python
#     name: python3
# ---

# %% [markdown]
# # Which solver, on three chains that differ
#
# A lattice of queues, a chain of weakly coupled blocks, and a repairable system whose rates span eight decades: the winner on one fails on another. Every run has a process of
# its own and five seconds; the chains have some hundred states, so that this page runs quickly. `ctmc compare which_solver` does the same for all solvers on
# 28 models, in a quarter of an hour.

# %%
import ctmc
from ctmc.comparison.compare import compare
from ctmc.comparison.figures import draw_profile

chains = {
    "supermarket": ctmc.build("supermarket", service_rates=[3, 2, 1], arrival_rate=4.5, choices=2, capacity=6),
    "blocks": ctmc.build("nearly_decomposable", blocks=8, block_size=20, coupling=1e-7, seed=1977),
    "repairs": ctmc.build(
        "repairable_system", failure_rates=[1e-6, 1e-4], repair_rates=[100, 0.5], components=[12, 12], needed=[2, 1],
        repairmen=2,
    ),
}  # fmt: skip
for name, chain in chains.items():
    ctmc.save(f"{name}.h5", chain, overwrite=True)
    print(f"{name:12} {chain.size:4} states, {chain.entries} transitions")

# %% [markdown]
# What the package would take by itself, and why. Nothing is solved for it.

# %%
for name, chain in chains.items():
    print(f"{name:12} {ctmc.advise(ctmc.Stationary(chain)).solver}")

# %%
solvers = ["bicgstab", "gauss_seidel", "aggregation", "anderson"]
files = [f"{name}.h5" for name in chains]
compared = compare(files, solvers, "compared.h5", time_limit=5.0, tolerances=(1e-10,))

# %% [markdown]
# A cell is the number of products with the generator, or why there is no certified answer. Every certified answer agrees with elimination.

# %%
print(f"{'':16}" + "".join(f"{name:>18}" for name in chains))
for solver in solvers:
    cells = {run.model: run for run in compared.runs if run.solver == solver}
    shown = [cells[name].products if cells[name].status == "CONVERGED" else cells[name].status for name in cells]
    print(f"{solver:16}" + "".join(f"{cell!s:>18}" for cell in shown))
farthest = max(run.distance for run in compared.runs if run.status == "CONVERGED")
print(f"farthest certified answer from elimination: {farthest:.1e}")

# %%
draw_profile(compared, "solver_comparison.png", measure="products")
