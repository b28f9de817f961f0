"""Models and solutions in HDF5: see `docs/storage.md` for the layout.

One module opens HDF5 (`gate`), one writes (`container`); nothing in a file is unpickled, imported or run.
"""

from ctmc.storage.models import load, read_info, save
from ctmc.storage.rerate import rerate
from ctmc.storage.solutions import StoredSolution, can_be_saved, load_solution, save_solution, solution_paths
from ctmc.storage.stored import load_fitting, open_model

__all__ = [
    "StoredSolution",
    "can_be_saved",
    "load",
    "load_fitting",
    "load_solution",
    "open_model",
    "read_info",
    "rerate",
    "save",
    "save_solution",
    "solution_paths",
]
