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
# # A model of your own, three ways
#
# Two machines that fail and one that repairs them, a machine being worn out sometimes before it fails. The same chain comes from a function that lists what can happen, from a graph of networkx, and
# from the files that PRISM exports; and the three must agree. The chain has six states, so that it can be checked by hand.

# %%
from pathlib import Path

import matplotlib.pyplot as plt
import networkx
import numpy as np

import ctmc

WEAR, FAIL, REPAIR = 0.05, 0.4, 1.5

# %% [markdown]
# **A transition function**: from a state, the states after it and the rates. `vectorized=True` takes a function of many states at once, for millions of them.

# %%


def machines(state):
    """Yield what can happen to `worn` worn machines and `broken` broken ones of two."""
    worn, broken = state
    new = 2 - worn - broken
    if new:
        yield (worn + 1, broken), WEAR * new
    if worn:
        yield (worn - 1, broken + 1), FAIL * worn
    if broken:
        yield (worn, broken - 1), REPAIR


from_function = ctmc.build("reachable", transitions=machines, initial=(0, 0), variables=["worn", "broken"])
print(from_function)

# %% [markdown]
# **A graph**: nodes that are tuples of numbers are the states, edges carry `rate`. `ctmc.from_networkx(graph)` does the same without names for the coordinates.

# %%
graph = networkx.DiGraph()
for worn in range(3):
    for broken in range(3 - worn):
        for after, rate in machines((worn, broken)):
            graph.add_edge((worn, broken), after, rate=rate)
from_graph = ctmc.build("reachable", transitions=graph, initial=(0, 0), variables=["worn", "broken"])

# %% [markdown]
# **PRISM's files**: `prism machines.sm -exportmodel machines.all` writes `.tra` (transitions), `.sta` (states) and `.lab` (labels). Their text stands here in place of the program
# that writes them. Files of Storm, `.umb` and `.drn`, are read in the same way.

# %%
Path("machines.tra").write_text("""6 9
0 3 0.1
1 0 1.5
1 4 0.05
2 1 1.5
3 1 0.4
3 5 0.05
4 2 0.4
4 3 1.5
5 4 0.8
""")
Path("machines.sta").write_text("""(worn,broken)
0:(0,0)
1:(0,1)
2:(0,2)
3:(1,0)
4:(1,1)
5:(2,0)
""")
Path("machines.lab").write_text("""0="init" 1="down"
0: 0
2: 1
""")
from_prism = ctmc.read("machines.tra")
print(from_prism)

# %% [markdown]
# The three are one chain: the same long-run probability of each state, the same mean time until both machines are down.

# %%
print(f"{'':12}{'E[broken]':>14}{'both down':>14}{'time to it':>14}   certified")
for name, model in {"function": from_function, "networkx": from_graph, "PRISM": from_prism}.items():
    long_run = ctmc.solve(ctmc.Stationary(model))
    passage = ctmc.solve(ctmc.FirstPassage(model, "broken == 2", (0, 0)))
    print(
        f"{name:12}{long_run.expected('broken'):14.10f}{long_run.probability('broken == 2'):14.10f}{passage.mean:14.6f}"
        f"   {long_run.converged and passage.converged}"
    )

# %%
times = np.linspace(0, 20, 81)
course = ctmc.solve(ctmc.Transient(from_prism, (0, 0), times, reward=("worn", "broken")))
figure, axes = plt.subplots(figsize=(6.4, 3.6))
for name in ("worn", "broken"):
    line = axes.plot(times, course.expected(name), label=f"{name} machines")[0]
    axes.axhline(ctmc.solve(ctmc.Stationary(from_prism)).expected(name), color=line.get_color(), linestyle=":")
axes.set(
    xlabel="time",
    ylabel="expected number",
    title=f"From two new machines; dotted: long run (+- {course.error_bound.max():.0e})",
)
axes.legend()
figure.tight_layout()
figure.savefig("own_model.png", dpi=110)
