"""Files of every form, damaged at random, and forged: content changed at random under hashes that are right."""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
from chain_gallery import random_chain

import ctmc
from builders.fork_join import fork_join
from builders.supermarket import supermarket
from ctmc.storage import rerate, save_solution
from ctmc.storage.container import Container, read_container, write_container

KINDS = ("generator", "qbd", "variant", "solution", "study")
SMALL = {"service_rates": [3, 2, 1], "arrival_rate": 3, "choices": 2}


def gallery(folder: Path) -> dict[str, Path]:
    """Write a file of each form, and return them by name."""
    paths = {}

    def put(name: str, model: Any) -> Path:
        paths[name] = folder / f"{name}.h5"
        ctmc.save(paths[name], model)
        return paths[name]

    chain = supermarket(**SMALL, capacity=4)
    lattice = put("lattice", chain)
    put("coded", supermarket(**SMALL, capacity=16, total_capacity=20))
    put("float", supermarket(**SMALL, capacity=16, total_capacity=20).written_out())
    put("plain", chain.written_out())
    put("plain coded", supermarket(**SMALL, capacity=4, total_capacity=9))
    put("listed", random_chain(20270301, states=12))
    put("lumped", supermarket([1.0] * 3, 2.4, 2, 4, lump=True))
    queue = put("qbd", fork_join([5, 2, 1], 1, 3, [1, 2, 8]))
    paths["variant"] = folder / "variant.h5"
    rerate(lattice, paths["variant"], {"arrival_rate": 2.5})
    for name, file, problem in solutions(lattice, queue):
        solution = ctmc.solve(problem)
        assert solution.converged, name
        paths[name] = save_solution(file, solution, name=name)
    return paths


def solutions(lattice: Path, queue: Path) -> Iterator[tuple[str, Path, Any]]:
    """Yield questions of every kind about the two models."""
    chain = ctmc.load(lattice)
    yield "stationary", lattice, ctmc.Stationary(chain)
    yield "levels", queue, ctmc.Stationary(ctmc.load(queue))
    yield "transient", lattice, ctmc.Transient(chain, initial=(0, 0, 0), times=[0.0, 1.0])
    yield "rewards", lattice, ctmc.Transient(chain, times=[1.0], reward="jobs")
    yield "accumulated", lattice, ctmc.AccumulatedReward(chain, "jobs", times=[0.5, 2.0], moments=2)
    yield "discounted", lattice, ctmc.DiscountedReward(chain, "jobs", discount=0.3, moments=3)
    yield "passage", lattice, ctmc.FirstPassage(chain, "jobs >= 9")
    yield "avoiding", lattice, ctmc.FirstPassage(chain, "jobs >= 9", avoid="jobs == 0", moments=1)
    yield "one start", lattice, ctmc.FirstPassage(chain, "jobs >= 9", initial=(0, 0, 0))


DAMAGE: dict[str, Callable[[np.random.Generator, bytearray], object]] = {}


def damage(function: Callable[[np.random.Generator, bytearray], object]) -> Callable[..., object]:
    DAMAGE[function.__name__] = function
    return function


@damage
def one_bit(rng: np.random.Generator, data: bytearray) -> None:
    data[rng.integers(len(data))] ^= 1 << rng.integers(8)


@damage
def some_bytes(rng: np.random.Generator, data: bytearray) -> None:
    size, start = int(rng.integers(1, 9)), int(rng.integers(len(data) - 8))
    data[start : start + size] = rng.bytes(size)


@damage
def zeroed_block(rng: np.random.Generator, data: bytearray) -> None:
    start = int(rng.integers(len(data)))
    data[start : start + 512] = bytes(len(data[start : start + 512]))


@damage
def truncation(rng: np.random.Generator, data: bytearray) -> None:
    del data[int(rng.integers(len(data))) :]


_NUMBERS = {
    "i": (0, 1, -1, 2, 255, 4096, 2**31, -(2**31), 2**40, 2**62, 2**63 - 1, -(2**63)),
    "u": (0, 1, 2, 254, 255, 65_535, 2**31, 2**32, 2**63, 2**64 - 1),
    "f": (0.0, -0.0, -1.0, 1e-320, 5e-324, 1e308, -1e308, np.nan, np.inf, -np.inf, 0.5, 3.0, 1e16),
}
_DTYPES = ("u1", "u2", "u4", "u8", "i1", "i2", "i4", "i8", "f8")


def forged_array(rng: np.random.Generator, array: np.ndarray) -> np.ndarray:
    """Return an array with a number, its type, its shape or its order changed."""
    array = array.copy()
    flat, how = array.reshape(-1), int(rng.integers(10))
    place = int(rng.integers(flat.size)) if flat.size else 0
    if how <= 2 and flat.size:
        numbers = _NUMBERS[array.dtype.kind]
        flat[place] = _limited(numbers[rng.integers(len(numbers))], array.dtype)
    elif how == 3 and flat.size:
        flat[place] = flat[int(rng.integers(flat.size))]
    elif how == 4 and flat.size > 1:
        rng.shuffle(flat[max(0, place - 3) : place + 4])
    elif how == 5:
        with np.errstate(over="ignore", invalid="ignore"):
            return array.astype(_DTYPES[rng.integers(len(_DTYPES))])
    elif how == 6:
        return flat[: int(rng.integers(flat.size + 1))].copy()
    elif how == 7:
        return np.concatenate([flat, flat[: int(rng.integers(1, 9))]])
    elif how == 8:
        shapes = [(1, *array.shape), (*array.shape, 1), array.shape[::-1], (flat.size,)]
        return array.reshape(shapes[rng.integers(4)])
    elif flat.size:
        flat[place:] = flat[place]
    return array


def _limited(number: Any, dtype: np.dtype[Any]) -> Any:
    if dtype.kind == "f":
        return number
    info = np.iinfo(dtype)
    return min(max(number, int(info.min)), int(info.max))


_VALUES = (
    None, True, False, 0, 1, -1, 2, 3, 9, 255, 2**31, 2**40, 2**63, 2**70, -(2**70), 0.5, -0.5, 1e308, "", "x", "\x1b[31m", "../x", "/etc/passwd",
    "os:system", "jobs >= 1", "CONVERGED", [], {}, [1], [[]], {"name": "x"}, [2**62, 2**62], ["jobs"], "queue_length[7]", "0" * 64,
)  # fmt: skip


def forged_manifest(rng: np.random.Generator, manifest: dict[str, Any]) -> dict[str, Any]:
    """Return a manifest with a value at any depth replaced, removed or doubled."""
    manifest = copy.deepcopy(manifest)
    places = [place for place in _places(manifest) if place[1] != "about"]
    holder, key = places[rng.integers(len(places))]
    how = int(rng.integers(6))
    if how == 0:
        del holder[key]
    elif how == 1 and isinstance(holder, list):
        holder.insert(key, copy.deepcopy(holder[key]))
    elif how == 2 and isinstance(holder, dict):
        holder[f"{key}x"] = holder.pop(key)
    else:
        holder[key] = copy.deepcopy(_VALUES[rng.integers(len(_VALUES))])
    return manifest


def _places(value: Any) -> Iterator[tuple[Any, Any]]:
    for key in list(value) if isinstance(value, dict) else range(len(value)):
        yield value, key
        if isinstance(value[key], dict | list):
            yield from _places(value[key])


def forge(rng: np.random.Generator, path: Path, container: Container) -> str:
    """Write a forged file, and return what was changed."""
    manifest, arrays = dict(container.manifest), dict(container.arrays)
    names = sorted(arrays)
    how = int(rng.integers(10))
    told = []
    if how < 6:
        for name in rng.choice(names, size=min(len(names), 1 + int(rng.integers(3)) // 2), replace=False):
            arrays[str(name)] = forged_array(rng, arrays[str(name)])
            told.append(str(name))
    elif how < 9:
        manifest = forged_manifest(rng, manifest)
        told.append("manifest")
    else:
        name = names[rng.integers(len(names))]
        other = names[rng.integers(len(names))]
        what = int(rng.integers(3))
        if what == 0:
            del arrays[name]
        elif what == 1:
            arrays[name], arrays[other] = arrays[other], arrays[name]
        else:
            arrays[f"{name}x"] = arrays[other]
        told.append(f"{name} and {other}")
    path.unlink(missing_ok=True)
    write_container(path, container.kind, manifest, arrays)
    return ", ".join(told)


def contents(paths: dict[str, Path]) -> dict[str, Container]:
    """Return what the files of a gallery hold."""
    return {name: read_container(path, KINDS) for name, path in paths.items()}
