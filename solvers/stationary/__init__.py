"""Stationary distributions of a finite generator."""
