"""From the file of a model to that of the same model at other rates."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from ctmc.model.generator import Generator
from ctmc.model.qbd import QBD
from ctmc.storage import variants
from ctmc.storage.models import Progress, describe, load, read_info


def rerate(
    parent: str | os.PathLike[str],
    path: str | os.PathLike[str],
    changes: Mapping[str, Any],
    *,
    overwrite: bool = False,
    progress: Progress | None = None,
) -> Generator | QBD:
    """Load a model, take it at other rates, save that as a variant, and return it.

    Parameters
    ----------
    parent : path-like
        A model in full, or a variant; then the new variant points to the same parent.
    path : path-like
        Where the variant goes.
    changes : mapping of str to value
        As for `Generator.with_rates`.
    overwrite : bool
    progress : callable, optional
        Called with the number of bytes read and to read.

    Raises
    ------
    ModelError
        If a change needs a rebuild.
    StorageError
        As `load` and `save` do.

    Examples
    --------
    >>> import tempfile
    >>> from ctmc import registry, save
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     _ = save(f"{folder}/queue.h5", registry.build("birth_death", births=[1.0], deaths=[2.0]))
    ...     model = rerate(f"{folder}/queue.h5", f"{folder}/fast.h5", {"births": [3.0]})
    ...     load(f"{folder}/fast.h5").content_hash == model.content_hash, model.exit_rates.tolist()
    (True, [3.0, 2.0])
    """
    whole = variants.whole_file(parent)
    base = load(whole, progress=progress)
    before: Mapping[str, Any] = {}
    if whole != Path(parent):
        before = variants.origin_of(read_info(parent)).changes
    model: Generator | QBD = base.with_rates(**{**before, **changes})
    variants.write_variant(path, model, whole, base, describe, overwrite=overwrite, proven=True)
    return model
