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
# # Expected queue lengths in a supermarket of different servers
#
# Li, Yang and Li (arXiv:1504.08150, Section 6) simulate how long the queues of three servers are, over time and in the long run, and how that depends on rates, choices and
# preferences. Here each number is computed, and certified. The study is `supermarket_experiments`, which comes with the package: `ctmc run supermarket_experiments` runs it in full, in
# about a minute. Below, every server has five places in place of twelve and more, so that this page runs in seconds; some jobs are lost by that, and the last cell tells how many.

# %%
import matplotlib.pyplot as plt

import ctmc
from ctmc.study import find_study, read_study, run_study

# %% [markdown]
# The changes are written as `ctmc run supermarket_experiments --set KEY=VALUE` takes them.

# %%
changes = [f"{model}.capacity=5" for model in ("choices", "arrivals", "service", "preferences")]
result = run_study(
    read_study(find_study("supermarket_experiments"), (*changes, "arrivals.arrival_rate=0.5:4.5:1")),
    "supermarket_small.h5",
)
print(len(result.rows), "answers, all certified:", not result.failed)

# %% [markdown]
# With one choice the slowest server has the longest queue; looking at two or three servers, and weighing their queues by rate and preference, evens that out. Below, the long run: the rule compares
# products of rate and preference, so lengths jump where two servers begin to tie.

# %%
figure, panels = plt.subplots(2, 3, figsize=(10.5, 6), sharey="row")
servers = ["server of rate 3", "server of rate 2", "server of rate 1"]
for choices, axes in zip((1, 2, 3), panels[0], strict=True):
    rows = [row for row in result.rows if row.time is not None and row.point.get("choices") == choices]
    for k, label in enumerate(servers):
        axes.plot([row.time for row in rows], [row.measures[f"queue_length[{k}]"] for row in rows], label=label)
    axes.set(title=f"{choices} choice{'s' * (choices > 1)}", xlabel="time")
experiments = {
    "arrivals": ("arrival rate", lambda point: point["arrival_rate"]),
    "service": ("rate of the first server", lambda point: point["service_rates"][0]),
    "preferences": ("preference for the server of rate 1", lambda point: point["preferences"][2]),
}
for (model, (label, of)), axes in zip(experiments.items(), panels[1], strict=True):
    rows = [row for row in result.rows if row.model == model and row.problem == "stationary"]
    for k in range(3):
        axes.plot([of(row.point) for row in rows], [row.measures["queue_length"][k] for row in rows], marker=".")
    axes.set(xlabel=label)
panels[0, 0].set_ylabel("expected queue length")
panels[1, 0].set_ylabel("in the long run")
panels[0, 1].legend(fontsize=8)
figure.tight_layout()
figure.savefig("supermarket_paper.png", dpi=110)

# %% [markdown]
# What five places cost: the share of jobs that is lost at each arrival rate. And with nine places, at arrival rate 3, an interval that is proven to contain the number of jobs.

# %%
servers = {"service_rates": [3, 2, 1], "preferences": [0.2, 0.3, 0.5], "choices": 2}
for rate in (0.5, 2.5, 4.5):
    model = ctmc.build("supermarket", **servers, arrival_rate=rate, capacity=5)
    lost = ctmc.solve(ctmc.Stationary(model), "bicgstab").measures()["blocking_probability"]
    print(f"arrival rate {rate}: {lost:.2e} of the jobs are lost")
model = ctmc.build("supermarket", **servers, arrival_rate=3, capacity=9)
jobs = ctmc.solve(ctmc.Stationary(model), "bicgstab", certify="strict").intervals["jobs"]
print(f"E[jobs] with nine places lies between {jobs.low:.12f} and {jobs.high:.12f}")
