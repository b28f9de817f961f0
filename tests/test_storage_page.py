"""The page about storage: its reader reads every form, and its worked example is right."""

import re
import subprocess
import sys
from pathlib import Path

import h5py
import numpy as np
import pytest
from scipy.sparse import coo_array, diags_array
from storage_examples import EXAMPLE

import ctmc
from builders.supermarket import supermarket
from ctmc.model.state_space import Lattice
from ctmc.storage.container import read_container
from ctmc.storage.sources import Differences, Encoder

PAGE = (Path(__file__).parent.parent / "docs" / "storage.md").read_text(encoding="utf-8")
READER = PAGE.partition("```python\n")[2].partition("```")[0]


def band(n, kinds, scattered, seed=29):
    """Rates from j - 2, j - 1 and j + 1 into j, of so many kinds, some of them from a random state in place of j - 2."""
    rng = np.random.default_rng(seed)
    targets = np.repeat(np.arange(2, n - 1), 3)
    sources = targets + np.tile([-2, -1, 1], n - 3)
    moved = (np.arange(len(targets)) % 3 == 0) & (rng.random(len(targets)) < scattered)
    sources[moved] = rng.integers(0, n, moved.sum())
    kept = sources != targets
    rates = rng.choice(rng.random(kinds) + 0.5, len(targets))
    return ctmc.Generator.from_transitions(sources[kept], targets[kept], rates[kept], Lattice((n - 1,)))


def retyped(model, **dtypes):
    rows = model.transitions
    rows = rows._replace(**{name: getattr(rows, name).astype(dtype) for name, dtype in dtypes.items()})
    return ctmc.Generator(model.space, rows)


DESCRIBED = {
    "lattice": (lambda: supermarket(**{**EXAMPLE, "capacity": 16}), {"weights": "u1", "unit": "f8", "departures": "f8"}),
    "lattice of two bytes": (lambda: retyped(supermarket(**EXAMPLE), weights=np.uint16), {"weights": "u2"}),
    "plain": (lambda: band(500, 9, 0.1), {"indices": "i4", "indptr": "i8", "data": "f8"}),
    "plain, 64 bits": (lambda: retyped(band(500, 9, 0.1), sources=np.int64), {"indices": "i8"}),
    "plain, in no order": (lambda: band(5000, 9, 1.0).coded(), {"indices": "i4", "codes": "u1", "values": "f8"}),
    "plain, coded data": (lambda: band(5000, 9, 1.0), {"indices": "i4", "data.codes": "u1"}),
    "steps of one block": (lambda: band(3000, 9, 0.0), {"steps.codes": "u1", "counts": "i8", "data.values": "f8"}),
    "steps, coded": (lambda: band(9000, 9, 0.0).coded(), {"steps.starts": "i8", "counts.codes": "u1", "codes": "u1"}),
    "steps, two bytes": (lambda: band(9000, 999, 0.15).coded(), {"steps.others": "i8", "codes": "u2"}),
    "steps, others": (lambda: band(9000, 999, 0.15), {"steps.values": "i8", "counts.values": "i8", "data.codes": "u2"}),
    "steps, all rates different": (lambda: band(70_000, 10**7, 0.1), {"steps.codes": "u1", "data": "f8"}),
}  # fmt: skip


@pytest.mark.parametrize("form", DESCRIBED)
def test_the_reader_of_the_documentation_reads(tmp_path, form):
    make, arrays = DESCRIBED[form]
    model = make()
    ctmc.save(tmp_path / "model.h5", model)
    stored = read_container(tmp_path / "model.h5", ["generator"]).arrays
    assert {f"rates/{name}": f"<{kind}".replace("<u1", "|u1") for name, kind in arrays.items()}.items() <= {
        name: array.dtype.str for name, array in stored.items()
    }.items()
    if "others" in form:
        assert len(stored["rates/steps.others"]) > 500
    names = {}
    exec(READER, names)
    manifest, sources, targets, rates, exits = names["read"](tmp_path / "model.h5")
    assert manifest["space"]["limits"] == list(model.space.limits)
    np.testing.assert_array_equal(exits, model.exit_rates)
    found = coo_array((rates, (sources, targets)), shape=(model.size,) * 2) - diags_array(exits)
    assert len(rates) == model.entries
    assert abs(found - model.to_scipy()).max() == 0


def test_every_array_of_transitions_is_described_and_read():
    table = PAGE.partition("## Kind `generator`")[2].partition("**Coded arrays.**")[0]
    described = {
        name
        for cells in table.splitlines()
        for name in re.findall(r"`rates/([a-z.]+)`", cells.split("|")[1] if "|" in cells else "")
    }
    read = {name for _, arrays in DESCRIBED.values() for name in arrays}
    assert described | {"counts.codes", "counts.values", "data.codes", "data.values"} == read


def test_the_reader_of_the_documentation_needs_neither_us_nor_scipy(tmp_path):
    ctmc.save(tmp_path / "model.h5", band(5000, 9, 0.1))
    script = tmp_path / "reader.py"
    script.write_text(
        f"{READER}\nimport sys\nmanifest, sources, *others = read({str(tmp_path / 'model.h5')!r})\n"
        "print(len(sources), {'ctmc', 'scipy'} & set(sys.modules))\n",
        encoding="utf-8",
    )
    done = subprocess.run([sys.executable, script], capture_output=True, text=True, check=True, timeout=60)
    assert done.stdout == f"{ctmc.load(tmp_path / 'model.h5').entries} set()\n"


def test_the_reader_of_the_documentation_refuses_a_damaged_manifest(tmp_path):
    names = {}
    exec(READER, names)
    ctmc.save(tmp_path / "model.h5", supermarket(**EXAMPLE))
    with h5py.File(tmp_path / "model.h5", "r+") as file:
        file["manifest"][5] ^= 1
    with pytest.raises(ValueError, match="damaged"):
        names["read"](tmp_path / "model.h5")


def test_the_worked_example_of_the_documentation_is_right():
    indptr, sources = np.array([0, 1, 3, 5, 6], np.uint64), np.array([1, 0, 2, 1, 3, 2], np.uint32)
    rows = {}
    for line in PAGE.partition("| into state | 0 |")[2].partition("\n\n")[0].splitlines()[2:]:
        title, *cells = line.strip("| ").split(" | ")
        rows[title] = [sum(map(int, cell.split(" + "))) for cell in cells]
    assert rows["source"] == sources.tolist()
    assert [guess + step for guess, step in zip(rows["guess"], rows["step"], strict=True)] == rows["source"]
    found = Differences()
    found.add(0, indptr, sources)
    assert found.frequent().tolist() == [0, 1, -2]
    for values, others, title in (([0, 1, -2], [], "all steps have one"), ([0, 1], [-2], "only 0 and 1 have one")):
        codes, rest, numbers = Encoder(np.array(values)).encode(0, indptr, sources)
        assert codes.tolist() == rows[f"code, where {title}"]
        assert (rest.tolist(), numbers.tolist()) == (others, [len(others)])
