"""Solvers that misbehave, a small queue, and the processes that a comparison has started."""

import os
import subprocess
import sys
import time

import psutil
import pytest

import ctmc
from ctmc.comparison.compare import Watcher

MARK = "CTMC_TEST_MARK"

PLUGIN = '''
import ctypes, os, subprocess, sys, time
from dataclasses import dataclass
from typing import ClassVar

import numpy as np

import ctmc
from ctmc.solution import Outcome, Status


@dataclass(frozen=True, kw_only=True)
class Base:
    """A solver that misbehaves."""

    solves: ClassVar = (ctmc.Stationary,)
    needs: ClassVar = ctmc.Generator

    def run(self, problem, trace):
        self.misbehave()
        return ctmc.registry.make_solver("gth").run(problem, trace)

class Segfaults(Base):
    def misbehave(self):
        ctypes.string_at(0)

class Exits(Base):
    def misbehave(self):
        print("\\x1b[31mgiving up", flush=True)
        os._exit(3)

class Eats(Base):
    def misbehave(self):
        kept = []
        while True:
            kept.append(np.ones(2_000_000))

class Gulps(Base):
    def misbehave(self):
        np.ones(1_000_000_000)

class NeverEnds(Base):
    def misbehave(self):
        while True:
            pass

class Forks(Base):
    def misbehave(self):
        # two generations, in sessions of their own
        code = "import subprocess, sys, time; subprocess.Popen([sys.executable, '-c', 'import time; time.sleep(1000)'], start_new_session=True)"
        subprocess.run([sys.executable, "-c", code], start_new_session=True)
        if os.fork() == 0:
            os.setsid()
            time.sleep(1000)

class Talks(Base):
    def misbehave(self):
        for _ in range(1024):
            os.write(1, b"x" * 2**20)

class Compiles(Base):
    """Makes compiled loops in the first two solves of a process, for longer than a solver is waited for."""

    made = 0

    def run(self, problem, trace):
        from numba.core import event

        if Compiles.made < 2:
            Compiles.made += 1
            with event.trigger_event("numba:compile"):
                time.sleep(5.5)
        return ctmc.registry.make_solver("power_iteration").run(problem, trace)

class Raises(Base):
    def misbehave(self):
        raise RuntimeError("<b>no</b>")

class Lies(Base):
    def run(self, problem, trace):
        return Outcome(np.full(problem.model.size, 1 / problem.model.size), Status.CONVERGED)

class Waits(Base):
    def misbehave(self):
        time.sleep(float(os.environ.get("CTMC_TEST_WAIT", "1000")))
'''
NAMES = {"segfaults": "Segfaults", "exits": "Exits", "eats": "Eats", "never_ends": "NeverEnds", "forks": "Forks",
         "talks": "Talks", "raises": "Raises", "lies": "Lies", "waits": "Waits", "gulps": "Gulps",
         "compiles": "Compiles"}  # fmt: skip


@pytest.fixture
def plugins(tmp_path, monkeypatch):
    """An installed distribution of solvers that misbehave."""
    site = tmp_path / "site"
    info = site / "misbehaving-1.0.dist-info"
    info.mkdir(parents=True)
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: misbehaving\nVersion: 1.0\n")
    points = "".join(f"{name} = misbehaving:{kind}\n" for name, kind in NAMES.items())
    (info / "entry_points.txt").write_text(f"[ctmc.solvers]\n{points}")
    (site / "misbehaving.py").write_text(PLUGIN)
    monkeypatch.syspath_prepend(str(site))
    monkeypatch.setenv("PYTHONPATH", f"{site}{os.pathsep}{os.environ.get('PYTHONPATH', '')}")
    monkeypatch.setenv(MARK, str(tmp_path))
    yield site
    sys.modules.pop("misbehaving", None)


@pytest.fixture
def queue(tmp_path):
    path = tmp_path / "queue.h5"
    ctmc.save(path, ctmc.build("birth_death", births=[1.0] * 40, deaths=[2.0] * 40))
    return path


def marked(tmp_path):
    """Return the processes that carry the test's mark in their environment, this one apart."""
    found = []
    for process in psutil.process_iter():
        try:
            marks = process.environ().get(MARK) == str(tmp_path)
            if marks and process.pid != os.getpid() and process.status() != psutil.STATUS_ZOMBIE:
                found.append(process)
        except psutil.Error:
            pass
    return found


def gone(tmp_path, seconds=5.0):
    end = time.monotonic() + seconds
    while marked(tmp_path) and time.monotonic() < end:
        time.sleep(0.05)
    return not marked(tmp_path)


class Counting(Watcher):
    def __init__(self, stop_after=None):
        self.labels, self.lines, self.done, self.stop_after = [], [], 0, stop_after

    def began(self, number, label):
        self.labels.append(label)

    def ended(self, number, run):
        self.done += 1

    def news(self, text):
        self.lines.append(text)

    def stopped(self):
        return self.stop_after is not None and self.done >= self.stop_after


@pytest.fixture
def command():
    """Return a function that starts ``ctmc compare``; what it has started ends with the test."""
    started = []

    def start(*arguments, **environment):
        process = subprocess.Popen(
            [sys.executable, "-m", "ctmc", "compare", *map(str, arguments)],
            stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env={**os.environ, **environment},
        )  # fmt: skip
        started.append(process)
        return process

    yield start
    for process in started:
        process.kill()
        process.communicate()


STUDY = """
title = "Which"
[models.small]
builder = "birth_death"
births = [1.0, 1.0]
deaths = [2.0, 2.0]
[models.swept]
builder = "tandem_network"
service_rates = [3, 2]
total_capacity = 4
[models.swept.sweep]
arrival_rate = [0.5, 5]
[compare]
solvers = "gth,gmres(restart=20|40)"
time_limit = 20
"""
