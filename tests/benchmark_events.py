"""The benchmark models of PRISM and Storm as lists of their events, in coordinates of their own."""

from __future__ import annotations

import numpy as np

SIZE = {
    "coxian_tandem": "capacity",
    "polling": "stations",
    "kanban": "tickets",
    "workstation_cluster": "workstations",
    "flexible_manufacturing": "parts",
}


def tandem_events(capacity, arrival, first, second, again, service):
    def events(state):
        customers, phase, after = state
        if customers < capacity:
            yield (customers + 1, phase, after), arrival
        if customers and phase == 1:
            yield (customers, 2, after), again * first
        if customers and after < capacity:
            yield (customers - 1, 1, after + 1), second if phase == 2 else (1 - again) * first
        if after:
            yield (customers, phase, after - 1), service

    return events, (0, 1, 0)


def polling_events(stations, service, walk, arrival):
    def events(state):
        at, serving, *full = state
        beyond = (at + 1) % stations
        if serving:
            yield (beyond, 0, *(0 if k == at else one for k, one in enumerate(full))), service
        elif full[at]:
            yield (at, 1, *full), walk
        else:
            yield (beyond, 0, *full), walk
        for k in range(stations):
            if not full[k]:
                yield (at, serving, *full[:k], 1, *full[k + 1 :]), arrival

    return events, (0,) * (2 + stations)


def kanban_events(tickets, enter, leave, fork, join, redo, ok, back):
    """A state is (processing, rework, finished) of one cell after the other."""

    def changed(state, *changes):
        after = list(state)
        for place, change in changes:
            after[place] += change
        return tuple(after)

    def events(state):
        free = [sum(state[3 * cell : 3 * cell + 3]) < tickets for cell in range(4)]
        done = [state[3 * cell + 2] > 0 for cell in range(4)]
        for cell in range(4):
            p = 3 * cell
            if state[p]:
                yield changed(state, (p, -1), (p + 1, 1)), redo[cell]
                yield changed(state, (p, -1), (p + 2, 1)), ok[cell]
            if state[p + 1]:
                yield changed(state, (p + 1, -1), (p, 1)), back
        if free[0]:
            yield changed(state, (0, 1)), enter
        if done[0] and free[1] and free[2]:
            yield changed(state, (2, -1), (3, 1), (6, 1)), fork
        if done[1] and done[2] and free[3]:
            yield changed(state, (5, -1), (8, -1), (9, 1)), join
        if done[3]:
            yield changed(state, (11, -1)), leave

    return events, (0,) * 12


def cluster_events(workstations, fails, switch_fails, line_fails, inspect, mends, switch_mends, line_mends):
    up = (workstations, workstations, 1, 1, 1)
    failing = (fails, fails, switch_fails, switch_fails, line_fails)
    mending = (mends, mends, switch_mends, switch_mends, line_mends)

    def events(state):
        works, busy = state[:5], state[5]
        for kind in range(5):
            if works[kind]:
                yield (*works[:kind], works[kind] - 1, *works[kind + 1 :], busy), failing[kind] * works[kind]
            if works[kind] < up[kind] and busy == 0:
                yield (*works, kind + 1), inspect
            if busy == kind + 1:
                yield (*works[:kind], works[kind] + 1, *works[kind + 1 :], 0), mending[kind]

    return events, (*up, 0)


FMS = ("p1", "p2", "p3", "p12", "w1", "m1", "w2", "m2", "m3", "w12", "m12", "s1", "s2", "s3", "s12", "q1", "q2")


def manufacturing_events(parts, carts, carry, machining, shares, ship):
    """A state counts tokens as the published net does: those that wait for a machine apart from those that are on it."""

    def events(state):
        x = dict(zip(FMS, state, strict=True))
        ready = x["p1"] + x["p2"] + x["p3"] + x["p12"]
        speed = carry * min(1, carts / ready) if ready else 0

        def after(**changes):
            return tuple(x[name] + changes.get(name, 0) for name in FMS)

        def finished(kind):  # the next one that waits takes the place
            return {f"w{kind}": -1} if x[f"w{kind}"] else {f"m{kind}": -1}

        for kind, places in ((1, 3), (2, 1), (12, 2)):
            if x[f"p{kind}"]:
                place = f"m{kind}" if x[f"m{kind}"] < places else f"w{kind}"
                yield after(**{f"p{kind}": -1, place: 1}), x[f"p{kind}"] * speed
        if x["p3"]:
            yield after(p3=-1, m3=1), x["p3"] * speed
        for kind, other, at in ((1, 2, 0), (2, 1, 1)):
            if x[f"m{kind}"]:
                rate = x[f"m{kind}"] * machining[at]
                yield after(**finished(kind), **{f"s{kind}": 1}), rate * (1 - shares[at])
                meets = {f"q{other}": -1, "p12": 1} if x[f"q{other}"] else {f"q{kind}": 1}
                yield after(**finished(kind), **meets), rate * shares[at]
        if x["m3"] and not x["m2"]:
            yield after(m3=-1, s3=1), machining[2]
        if x["m12"]:
            yield after(**finished(12), s12=1), x["m12"] * machining[3]
        for kind in (1, 2, 3):
            if x[f"s{kind}"]:
                yield after(**{f"p{kind}": x[f"s{kind}"], f"s{kind}": -x[f"s{kind}"]}), ship
        if x["s12"]:
            yield after(p1=x["s12"], p2=x["s12"], s12=-x["s12"]), ship

    return events, (parts, parts, parts, *[0] * 14)


def rewards(model, *names):
    """Return values of rewards in all states, side by side."""
    states = model.space.states(np.arange(model.size))
    every = slice(0, model.size)
    return np.column_stack([model.all_rewards[name].evaluate(states, every) for name in names]).astype(int)


def tandem_states(model):
    return rewards(model, "first_queue", "phase", "second_queue")


def polling_states(model):
    return rewards(model, "station", "serving", "occupied")


def kanban_states(model):
    return rewards(model, "processing", "rework", "finished").reshape(-1, 3, 4).swapaxes(1, 2).reshape(-1, 12)


def cluster_states(model):
    return model.space.states(np.arange(model.size))


def manufacturing_states(model):
    ready, at, done, waits = (rewards(model, name) for name in ("ready", "machining", "shipping", "unmatched"))
    on = np.minimum(at, [3, 1, 99, 2])
    line = np.column_stack([(at - on)[:, 0], on[:, 0], (at - on)[:, 1], on[:, 1], on[:, 2], (at - on)[:, 3], on[:, 3]])
    return np.column_stack([ready, line, done, waits])


REDO, OK = (0.31, 0.43, 0.37, 0.29), (0.83, 0.97, 0.71, 0.61)
MODELS = {  # parameters that all differ, and the same in the order of the event list
    "coxian_tandem": (
        [{"capacity": c, "arrival_rate": 1.7, "first_phase_rate": 2.3, "second_phase_rate": 1.1,
          "second_phase_probability": p, "service_rate": 1.9} for c, p in ((1, 0.3), (2, 0.3), (6, 0.6))],
        tandem_states, tandem_events,
    ),
    "polling": (
        [{"stations": n, "service_rate": 1.3, "polling_rate": 7.0, "arrival_rate": 0.4} for n in (2, 3, 6)],
        polling_states, polling_events,
    ),
    "kanban": (
        [{"tickets": t, "input_rate": 1.1, "output_rate": 0.9, "fork_rate": 0.45, "join_rate": 0.55, "redo_rates": REDO,
          "ok_rates": OK, "back_rate": 0.3} for t in (1, 2)],
        kanban_states, kanban_events,
    ),
    "workstation_cluster": (
        [{"workstations": n, "workstation_failure_rate": 0.2, "switch_failure_rate": 0.03, "backbone_failure_rate": 0.01,
          "inspection_rate": 10.5, "workstation_repair_rate": 2.1, "switch_repair_rate": 0.27,
          "backbone_repair_rate": 0.13} for n in (1, 2, 5)],
        cluster_states, cluster_events,
    ),
    "flexible_manufacturing": (
        [{"parts": n, "carts": k, "transport_rate": 1.2, "machining_rates": (0.26, 0.17, 0.51, 0.9),
          "assembly_shares": (0.21, 0.42), "shipping_rate": 0.02} for n, k in ((1, 2), (2, 1), (3, 2))],
        manufacturing_states, manufacturing_events,
    ),
}  # fmt: skip
