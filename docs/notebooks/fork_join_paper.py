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
# # Thresholds of a fork-join queue
#
# Figure 2 of Osipov and Rogachko (CEUR-WS Vol. 2792, paper 5): the mean response time of a job of three tasks on servers of rates 5, 2 and 1, when each task goes to the
# fastest free server, and with the best thresholds: server i takes a task only while at least so many wait. `ctmc run fork_join_figure2`
# computes it at 26 arrival rates in some twenty seconds; here there are six rates.

# %%
import matplotlib.pyplot as plt

import ctmc
from ctmc.study import find_study, read_study, run_study

# %% [markdown]
# The study that comes with the package, with two changes, as `ctmc run fork_join_figure2 --set KEY=VALUE` takes them.

# %%
changes = ("fastest_free_server.arrival_rate=0.1:2.6:0.5", "best_thresholds.arrival_rate=0.1:2.6:0.5")
result = run_study(read_study(find_study("fork_join_figure2"), changes), "fork_join_small.h5")
print("all certified:", not result.failed)
for row in result.rows:
    thresholds = row.point.get("thresholds", [1, 1, 1])
    print(
        f"{row.model:20} {row.point['arrival_rate']:4.1f}  {row.measures['response_time']:.9f}  thresholds {thresholds}"
    )

# %% [markdown]
# The queue has infinitely many levels, and none is cut off: the answer is matrix-geometric.

# %%
queue = ctmc.build("fork_join", service_rates=[5, 2, 1], arrival_rate=1, tasks=3, thresholds=[1, 2, 8])
solution = ctmc.solve(ctmc.Stationary(queue))
law = solution.distribution("response_time")
print(f"E[response time] = {solution.measures()['response_time']:.12f}, 95 % within {law.quantile(0.95):.9f}")

# %%
figure, (left, right) = plt.subplots(1, 2, figsize=(10, 3.8))
for name, label in (("fastest_free_server", "fastest free server"), ("best_thresholds", "best thresholds")):
    rows = [row for row in result.rows if row.model == name]
    rates = [row.point["arrival_rate"] for row in rows]
    left.plot(rates, [row.measures["response_time"] for row in rows], marker="o", label=label)
left.set(xlabel="arrival rate", ylabel="mean response time", yscale="log")
left.legend()
times = [0.05 * k for k in range(81)]
right.plot(times, law.cdf(times))
right.axhline(0.95, color="gray", linewidth=0.8)
right.set(xlabel="time", ylabel="share of jobs done", title="arrival rate 1, thresholds 1, 2, 8", ylim=(0, 1.02))
figure.tight_layout()
figure.savefig("fork_join_paper.png", dpi=110)
