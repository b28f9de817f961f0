"""The floor against empty sweeps: one line per builder and per solver, with the number of sweep cases it must take."""

BUILDERS = {
    "birth_death",
    "fork_join",
    "reachable",
    "supermarket",
    "tandem_network",
}
SOLVERS = {
    "arnoldi": 20,
    "aggregation": 20,
    "anderson": 20,
    "bicgstab": 20,
    "cyclic_reduction": 6,
    "functional_iteration": 6,
    "gauss_seidel": 20,
    "gmres": 20,
    "gth": 20,
    "invariant_subspace": 6,
    "krylov_exponential": 5,
    "level_dependent": 3,
    "level_reduction": 20,
    "logarithmic_reduction": 6,
    "multigrid": 20,
    "newton": 6,
    "pardiso": 20,
    "power_iteration": 20,
    "rank_one": 4,
    "rational": 5,
    "sparse_lu": 20,
    "umfpack": 20,
    "uniformization": 5,
}
