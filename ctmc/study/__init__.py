"""Studies: a TOML file that names models, problems and solvers, and the run that answers it with one table.

Examples
--------
>>> from ctmc.study import parse_study
>>> study = parse_study('''
... [models.queue]
... builder = "birth_death"
... births = [1.0, 1.0]
... deaths = [2.0, 2.0]
... [[solve]]
... solvers = ["gth"]
... ''')
>>> study.models["queue"].builder, study.solves[0].problem
('birth_death', 'stationary')
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

_WHERE = {
    "Study": "content",
    "parse_study": "study",
    "read_study": "study",
    "shipped_studies": "shipped",
    "find_study": "shipped",
    "run_study": "run",
    "Row": "run",
    "StudyResult": "run",
    "Watcher": "run",
}

__all__ = [
    "Row",
    "Study",
    "StudyResult",
    "Watcher",
    "find_study",
    "parse_study",
    "read_study",
    "run_study",
    "shipped_studies",
]


def __getattr__(name: str) -> Any:
    if name not in _WHERE:
        raise AttributeError(f"module 'ctmc.study' has no attribute {name!r}")
    return getattr(importlib.import_module(f"ctmc.study.{_WHERE[name]}"), name)


if TYPE_CHECKING:
    from ctmc.study.content import Study
    from ctmc.study.run import Row, StudyResult, Watcher, run_study
    from ctmc.study.shipped import find_study, shipped_studies
    from ctmc.study.study import parse_study, read_study
