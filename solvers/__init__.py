"""Solvers: a method is one public class, in a file of its name."""
