"""UMB, the unified Markov binary format that Storm, PRISM and Modest read and write.

A tar archive of ``index.json`` and of arrays.  A chain is written as its jump probabilities and exit rates; a state that
nothing leaves gets a loop of rate 1, as Storm gives it, which does not change the process and is left out on reading.
A rate that is read back, the product of both, is the same or differs by one unit in its last place: two numbers are rounded
where one was.
"""

from __future__ import annotations

import json
import os
import re
from functools import partial
from typing import Any

import numpy as np
from scipy.sparse import csc_array, csr_array

from ctmc.errors import StorageError
from ctmc.interchange.archive import read_members, write_members
from ctmc.interchange.parts import (
    Earned,
    coordinate_names,
    earned,
    finite_chain,
    identifiers,
    left_out,
    shown,
)
from ctmc.interchange.umb_chain import chain_of
from ctmc.interchange.umb_index import MAX_INDEX_BYTES, Index, decode_index
from ctmc.interchange.valuations import packed
from ctmc.model.generator import Generator
from ctmc.model.memory import memory_limit, require_memory
from ctmc.storage.atomic import replace_file
from ctmc.storage.models import about

_COMPRESSIONS = (None, "gz", "xz")
_DOUBLE = {"type": "double", "size": 64}


def read(path: str | os.PathLike[str]) -> Generator:
    """Read a chain from a UMB file.

    Labels are the atomic propositions, rewards come with what transitions earn, state variables make the state space.
    Several initial states without probabilities are the label ``init``, with a note; where this module wrote the
    probabilities they come back.

    Parameters
    ----------
    path : path-like

    Raises
    ------
    StorageError
        The file is damaged, is none, or holds more than its index says.
    ModelError
        It holds another kind of model, does not fit the memory limit, or is no chain.

    Examples
    --------
    >>> import tempfile
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     _ = write(f"{folder}/queue.umb", Generator.from_matrix([[-1, 1], [2, -2]]))
    ...     read(f"{folder}/queue.umb").uniformization_rate
    2.0
    """
    known: dict[str, Index] = {}

    def expected(text: bytes) -> tuple[dict[str, int], int]:
        index = decode_index(path, text)
        known["index"] = index
        sizes = index.sizes()
        require_memory(
            f"the model in {shown(path)}",
            sum(sizes.values()) + 40 * index.branches + 24 * index.states,
            states=index.states,
            entries=index.branches,
        )
        return sizes, max(memory_limit(), 2 * MAX_INDEX_BYTES)

    _, members = read_members(path, "index.json", MAX_INDEX_BYTES, expected)
    return chain_of(path, known["index"], members)


def write(
    path: str | os.PathLike[str], model: Any, *, overwrite: bool = False, compression: str | None = None
) -> list[str]:
    """Write a chain as a UMB file.

    Parameters
    ----------
    path : path-like
        Ending in ``.umb`` by custom.
    model : Generator
    overwrite : bool
        Whether an existing file may be replaced.
    compression : str, optional
        ``"gz"`` or ``"xz"``; by default none.

    Returns
    -------
    list of str
        A sentence for each thing that is not carried.

    Raises
    ------
    ModelError
        The model is not a finite chain, or does not fit the memory limit twice.
    StorageError
        The file exists, or cannot be written.

    Examples
    --------
    >>> import tempfile
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     write(f"{folder}/queue.umb", Generator.from_matrix([[-1, 1], [2, -2]]))
    []
    """
    if compression not in _COMPRESSIONS:
        raise StorageError(f"compression is {compression!r}; allowed are None, 'gz' and 'xz'.")
    chain = finite_chain(model, "UMB")
    require_memory("writing", 64 * (chain.entries + chain.size), states=chain.size, entries=chain.entries)
    rewards, lost = earned(chain)
    index, members = _contents(chain, rewards)
    if chain.initial is not None and len(chain.initial.positions) > 1:
        lost.append(
            f"The initial probabilities of {len(chain.initial.positions)} states stand in an annotation that only ctmc reads; "
            "for others these states are initial."
        )
    text = json.dumps(index, ensure_ascii=False, allow_nan=False).encode("utf-8", "backslashreplace")
    everything = [("index.json", text), *((name, array.tobytes()) for name, array in members.items())]
    replace_file(path, partial(write_members, members=everything, compression=compression), overwrite=overwrite)
    return lost + left_out(chain)


def by_source(chain: Generator) -> tuple[csr_array, np.ndarray]:
    """Return the rates by source, and for each the place of the transition in ``chain.rates``."""
    rows = chain.expanded
    shape = (chain.size, chain.size)
    order = csr_array(csc_array((np.arange(1, len(rows.rates) + 1), rows.sources, rows.indptr), shape=shape))
    places = order.data - 1
    return csr_array((rows.rates[places], order.indices, order.indptr), shape=shape), places


def _contents(chain: Generator, rewards: list[Earned]) -> tuple[dict[str, Any], dict[str, np.ndarray]]:
    """Return the index, and the arrays by their place in the archive."""
    n = chain.size
    rates, places = by_source(chain)
    counts = np.diff(rates.indptr)
    absorbing = np.flatnonzero(counts == 0)
    exits = chain.exit_rates.copy()
    exits[absorbing] = 1.0
    probability = rates.data / np.repeat(exits, counts)
    # a state that nothing leaves gets its loop where its row stands
    before = rates.indptr[absorbing]
    branches = np.concatenate([[0], np.cumsum(np.maximum(counts, 1))])
    initial = np.zeros(n, dtype=bool)
    if chain.initial is not None:
        initial[chain.initial.positions] = True
    members = {
        "state-is-initial.bin": _bits(initial),
        "state-to-exit-rate.bin": exits.astype("<f8"),
        "choice-to-branches.bin": branches.astype("<u8"),
        "branch-to-target.bin": np.insert(rates.indices.astype("<u8"), before, absorbing.astype("<u8")),
        "branch-to-probability.bin": np.insert(probability, before, 1.0).astype("<f8"),
    }
    annotations: dict[str, dict[str, Any]] = {"aps": {}, "rewards": {}}
    for name, identifier in zip(chain.labels, _identifiers(list(chain.labels)), strict=True):
        annotations["aps"][identifier] = {"alias": name, "applies-to": ["states"], "type": {"type": "bool", "size": 1}}
        members[f"annotations/aps/{identifier}/states/values.bin"] = _bits(chain.labels[name])
    for reward, identifier in zip(rewards, _identifiers([reward.name for reward in rewards]), strict=True):
        folder = f"annotations/rewards/{identifier}"
        entry: dict[str, Any] = {
            "alias": reward.name,
            "description": reward.description,
            "applies-to": [],
            "type": _DOUBLE,
        }
        if reward.rate is not None:
            entry["applies-to"].append("states")
            members[f"{folder}/states/values.bin"] = reward.rate.astype("<f8")
        if reward.impulse is not None:
            entry["applies-to"].append("branches")
            members[f"{folder}/branches/values.bin"] = np.insert(reward.impulse[places], before, 0.0).astype("<f8")
        annotations["rewards"][identifier] = entry
    if chain.initial is not None and len(chain.initial.positions) > 1:
        annotations["initial"] = {"probability": {"applies-to": ["states"], "type": _DOUBLE}}
        members["annotations/initial/probability/states/values.bin"] = chain.initial.dense(n).astype("<f8")
    records, variables = _valuations(chain)
    members["valuations/states/valuations.bin"] = records
    index = {
        "format-version": 1,
        "format-revision": 0,
        "file-data": {"tool": "ctmc", "tool-version": about()["versions"]["ctmc-lab"]},
        "transition-system": {
            "time": "stochastic",
            "#players": 0,
            "#states": n,
            "#initial-states": int(initial.sum()),
            "#choices": n,
            "#choice-actions": 0,
            "#branches": int(branches[-1]),
            "#branch-actions": 0,
            "#observations": 0,
            "branch-probability-type": _DOUBLE,
            "exit-rate-type": _DOUBLE,
        },
        "annotations": {group: entries for group, entries in annotations.items() if entries},
        "valuations": {"states": {"unique": True, "classes": [{"variables": variables}]}},
    }
    return index, members


def _valuations(chain: Generator) -> tuple[np.ndarray, list[dict[str, Any]]]:
    table = chain.space.states(np.arange(chain.size))
    records, fields = packed(list(zip(coordinate_names(chain.space), table.T, strict=True)))
    variables = [
        {"name": field.name, "type": {"type": "int" if field.signed else "uint", "size": field.bits}}
        for field in fields
    ]
    return records, variables


def _identifiers(names: list[str]) -> list[str]:
    """Return names of folders: small letters, digits, _ and -."""
    return identifiers([re.sub("[A-Z]", lambda letter: letter[0].lower(), name) for name in names], "0-9a-z_-", 60)


def _bits(member: np.ndarray) -> np.ndarray:
    """Return truth values as a set of bits, filled up to whole words of 64."""
    packed_bits = np.packbits(member, bitorder="little")
    return np.concatenate([packed_bits, np.zeros(-len(packed_bits) % 8, dtype=np.uint8)])
