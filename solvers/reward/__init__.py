"""Solvers for reward processes and passage times."""
