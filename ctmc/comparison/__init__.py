"""Comparing solvers: every run in a process of its own, and what came of it as tables, files and figures."""
