"""The floor against empty sweeps: one line per builder and per solver, with the number of sweep cases it must take."""

BUILDERS = {
    "birth_death",
    "fork_join",
    "reachable",
    "supermarket",
    "tandem_network",
}
SOLVERS = {
    "gauss_seidel": 20,
    "gmres": 20,
    "gth": 20,
    "logarithmic_reduction": 6,
    "power_iteration": 20,
    "sparse_lu": 20,
    "uniformization": 5,
}
