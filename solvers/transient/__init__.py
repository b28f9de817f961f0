"""Distributions at given times."""
