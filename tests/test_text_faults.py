"""What is wrong in the files of PRISM, Storm, MRMC, DRN and MatrixMarket, kind by kind: one sentence with the file and the line."""

from __future__ import annotations

import gzip
import lzma
import os
import re
import time

import numpy as np
import pytest

import ctmc
from ctmc.interchange import decimals, drn, matrix_market, mrmc, prism, storm, text, tra
from ctmc.interchange.listing import file_and_stem
from ctmc.interchange.text import Layout, TextFile

MODULES = {"prism": prism, "storm": storm, "mrmc": mrmc, "drn": drn, "matrix_market": matrix_market, "tra": tra}
TRA = {
    "prism": "3 3\n0 1 1\n0 2 1\n1 0 2\n",
    "storm": "ctmc\n0 1 1\n0 2 1\n1 0 2\n",
    "mrmc": "STATES 3\nTRANSITIONS 3\n1 2 1\n1 3 1\n2 1 2\n",
}
RATES = [[-2, 1, 1], [2, -2, 0], [0, 0, 0]]
BANNER = "%%MatrixMarket matrix coordinate real general\n"
DRN = "@type: CTMC\n@reward_models\na b\n@nr_states\n2\n@model\n"


def put(folder, files):
    """Write files ``chain`` + ending and return the path of the first."""
    for ending, content in files.items():
        (folder / f"chain{ending}").write_bytes(content if isinstance(content, bytes) else content.encode())
    return folder / f"chain{next(iter(files))}"


def refused(read, path, sentence, error=ctmc.StorageError):
    with pytest.raises(error, match=sentence) as caught:
        read(path)
    assert "\n" not in str(caught.value)
    assert str(caught.value).startswith(str(path.parent)) or "limit" in sentence


# ---- rows of PRISM -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("ending", ["\n", "\r\n", " go\n"])
def test_rows_are_the_chain_of_lines(tmp_path, monkeypatch, ending):
    monkeypatch.setattr(prism, "_ROW_ENTRIES", 7)  # so that there are several blocks
    rng = np.random.default_rng(83)
    rates = rng.random((30, 30)) * (rng.random((30, 30)) < 0.2)
    np.fill_diagonal(rates, 0)
    rows = [
        " ".join([str(i), *(f"{rates[i, j]!r}:{j}" for j in reversed(np.flatnonzero(rates[i])))]) for i in range(30)
    ]
    lines = [f"{i} {j} {float(rates[i, j])!r}" for i, j in np.argwhere(rates)]
    head = f"30 {len(lines)}\n"
    rows = [row.replace("np.float64(", "").replace(")", "") for row in rows]
    one = put(tmp_path, {"1.tra": "# rows\n" + head + "# next\n\n" + ending.join(rows) + ending})
    other = put(tmp_path, {"2.tra": head + "\n".join(lines)})
    found, wanted = tra.read(one), tra.read(other)
    np.testing.assert_array_equal(found.to_scipy().toarray(), wanted.to_scipy().toarray())
    np.testing.assert_array_equal(found.to_scipy().toarray() * (1 - np.eye(30)), rates)


def test_rows_as_short_as_they_can_be(tmp_path):
    """The announced number of transitions is compared with the size of the file; these are honest."""
    rows = "".join(f"{i} " + " ".join(f"1:{j}" for j in range(10) if j != i) + "\n" for i in range(10))
    assert prism.read(put(tmp_path, {".tra": "10 90\n" + rows})).exit_rates.tolist() == [9] * 10


def test_rows_are_recognised_and_their_rewards_read(tmp_path):
    path = put(tmp_path, {".tra": "2 3\n0 4:0 1:1\n1 2:0\n", ".trew": "2 1\n1 0 7\n"})
    chain = prism.read(path)
    assert chain.to_scipy().toarray().tolist() == [[-1, 1], [2, -2]]
    assert chain.rewards["reward"].impulse.tolist() == [7, 0]
    assert "1 states to themselves" in chain.notes[0]
    assert ctmc.read(path.rename(tmp_path / "rows")).size == 2
    assert prism.read(put(tmp_path, {"1.tra": "2 1\n0\n1 2:0\n"})).exit_rates.tolist() == [0, 2]
    assert prism.read(put(tmp_path, {"2.tra": "2 1\n0 1 1 go:on\n"})).exit_rates.tolist() == [1, 0]


@pytest.mark.parametrize(
    ("rows", "sentence"),
    [
        ("0 1:1\n1 2:2\n", "line 3: the state is 2; allowed is 0 to 1"),
        ("0 1:1\n2 2:0\n", "line 3: the state is 2; allowed is 0 to 1"),
        ("0 1:1\n1 0:0\n", "line 3: the rate is 0; allowed are positive"),
        ("0 1:1\n1 -2:0\n", "line 3: the rate is -2; allowed are positive"),
        ("0 1:1\n1 nan:0\n", "line 3: the rate is nan; allowed are positive"),
        ("0 1:1\n1 1e999:0\n", "line 3: the rate is 1e999; allowed are positive"),
        ("0 1:1\n1 2 0\n", "line 3: it is '1 2 0'; allowed is 'i rate:j rate:j'"),
        ("0 1:1\n1 2:0 a b\n", "line 3: it is '1 2:0 a b'; allowed is"),
        ("0 1:1\n1 2:-1\n", "line 3: it is '1 2:-1'; allowed is"),
        ("0 1:1\n1 1_0:0\n", "line 3: it is '1 1_0:0'; allowed is"),
        ("1 1:0\n0 2:1\n", "line 3: state 0 stands after state 1"),
        ("0 1:1\n0 2:1\n", "line 3: state 0 stands after state 0"),
        ("0 1:1 1:1\n", "line 2: the transition from 0 to 1 stands there twice"),
        ("0 1:1\n", "line 2: the file ends after 1 transitions, but 2"),
        ("0 1:1\n1 1:0 1:1\n", "line 3: a transition beyond the 2"),
    ],
)
def test_rows_that_are_wrong(tmp_path, rows, sentence):
    refused(tra.read, put(tmp_path, {".tra": "2 2\n" + rows}), re.escape(sentence))


# ---- files beside a .tra -----------------------------------------------------------------------------------------

PRISM_FAULTS = [
    ({".tra": "3\n"}, "line 1: it is '3'; allowed are two numbers, of states and of transitions"),
    ({".tra": ""}, "line 1: it is ''; allowed are two numbers"),
    ({".sta": ""}, "line 1: the names of the variables are missing"),
    ({".sta": "(a,a)\n"}, "line 1: the variables are (a,a); allowed are different names"),
    ({".sta": "(a,)\n"}, "line 1: the variables are (a,)"),
    ({".sta": "(a)\n0:(1)\n2:(2)\n"}, "line 3: it is '2:(2)'; allowed is '1:(...)' with 1 whole numbers"),
    ({".sta": "(a)\n0:1\n"}, "line 2: it is '0:1'"),
    ({".sta": "(a)\n0:(1,2)\n"}, "line 2: it is '0:(1,2)'"),
    ({".sta": "(a)\n0:(1.5)\n"}, "line 2: it is '0:(1.5)'"),
    ({".sta": f"(a)\n0:({2**63})\n"}, f"line 2: it is '0:({2**63})'"),
    ({".sta": "(a)\n0:(1)\n\n1:(2)\n2:(3)\n3:(4)\n"}, "line 6: a state beyond the 3 of the transitions"),
    ({".sta": "(a)\n0:(1)\n1:(2)\n"}, "line 3: the file ends after 2 states, but the transitions have 3"),
    ({".sta": "(a)\n0:(1)\n1:(2)\n2:(1)\n"}, "does not list states: "),
    ({".lab": '0="init" 0="full"\n'}, 'label 0="full" is declared twice'),
    ({".lab": '0="init" 1="init"\n'}, 'label 1="init" is declared twice'),
    ({".lab": '0="init" 1="full\n'}, "line 1: labels are not declared"),
    ({".lab": ""}, "line 1: labels are not declared"),
    ({".lab": '0="init"\n# none\n\n3: 0\n'}, "line 4: the state is 3; allowed is 0 to 2"),
    ({".lab": '0="init"\n0: 1\n'}, "line 2: it is '0: 1'; allowed is 'state: label label'"),
    ({".lab": '0="init"\nx: 0\n'}, "line 2: it is 'x: 0'"),
    ({".srew": "# none\n3\n"}, "line 2: allowed are two numbers, of states and of rewards"),
    ({".srew": ""}, "line 1: allowed are two numbers"),
    ({".srew": "2 1\n0 1\n"}, "line 1: 2 states are announced, but the transitions have 3"),
    ({".srew": "3 2\n0 1\n"}, "2 lines are announced, but there are 1"),
    ({".srew": "3 2\n0 1\n0 2\n"}, "line 3: state 0 stands there twice"),
    ({".srew": "3 1\n0 inf\n"}, "line 2: the reward is inf; allowed are finite numbers"),
    ({".trew": "3 2\n0 1 1\n"}, "2 lines are announced, but there are 1"),
    ({".trew": "3 1\n1 2 1\n"}, "line 2: there is no transition from 1 to 2"),
    ({".trew": "3 1\n2 0 1\n"}, "line 2: there is no transition from 2 to 0"),
    ({".trew": "3 1\n1 1 1\n"}, "line 2: there is no transition from 1 to 1"),
    ({".trew": "3 2\n0 1 1\n0 1 2\n"}, "line 3: the transition from 0 to 1 stands there twice"),
    ({".tra": "3 2\n0 0 1\n0 1 1\n", ".trew": "3 2\n0 0 1\n0 0 2\n"}, "line 3: the transition from 0 to 0 stands there twice"),
    ({".trew": "3 1\n0 99999999999999999999 1\n"}, "line 2: the state is 99999999999999999999; allowed is 0 to 2"),
]  # fmt: skip
DECLARED_FAULTS = [
    ("#DECLARED\n", "line 1: '#DECLARATION' is missing"),
    ("", "line 1: '#DECLARATION' is missing"),
    ("\n#DECLARATION\ninit\n", "line 3: '#END' is missing"),
    ("#DECLARATION\ninit full init\n#END\n", "line 3: a label is declared twice"),
    ("#DECLARATION\ninit\n#END\n\nx init\n", "line 5: it is 'x init'; allowed is 'state label label'"),
    ("#DECLARATION\ninit\n#END\n9 init\n", "line 4: the state is 9; allowed is"),
    ("#DECLARATION\ninit\n#END\n1 full\n", "line 4: label 'full' is not declared"),
]
OTHER_FAULTS = [
    ("mrmc", {".tra": "STATES 0\nTRANSITIONS 0\n"}, "line 1: the number of states is 0"),
    ("mrmc", {".tra": ""}, "line 1: it is ''; allowed is 'STATES' and a number"),
    ("mrmc", {".rew": "4 1\n"}, "line 1: the state is 4; allowed is 1 to 3"),
    ("mrmc", {".rewi": "TRANSITIONS 2\n1 2 1\n"}, "2 lines are announced, but there are 1"),
    ("storm", {".tra": "STATES 3\n"}, "line 1: STATES heads a file of MRMC"),
    ("storm", {".tra": "rates\n"}, "line 1: it is 'rates'; allowed is 'ctmc'"),
    ("storm", {".tra": ""}, "line 1: it is ''; allowed is 'ctmc'"),
    ("storm", {".tra": f"ctmc\n0 {2**60} 1\n"}, f"the state is {2**60}; allowed is whole numbers below"),
    ("storm", {".cost.state.rew": "0 1\n0 2\n"}, "line 2: state 0 stands there twice"),
    ("storm", {".cost.trans.rew": "0 0 2\n"}, "line 1: there is no transition from 0 to 0"),
    ("tra", {".tra": "# nothing\n\n?\n"}, "line 3: it is '?'; allowed are two numbers"),
    ("tra", {".tra": ""}, "line 1: it is ''; allowed are two numbers"),
]
FAULTS = [("prism", {".tra": TRA["prism"], **files}, sentence) for files, sentence in PRISM_FAULTS]
FAULTS += [
    (name, {".tra": TRA[name], ".lab": lab}, sentence)
    for name in ("storm", "mrmc")
    for lab, sentence in DECLARED_FAULTS
]
FAULTS += [(name, {".tra": TRA.get(name, ""), **files}, sentence) for name, files, sentence in OTHER_FAULTS]
FAULTS += [
    ("drn", {".drn": "@type: CTMC\n@nr_states\n2\n"}, "line 3: the file ends before '@model'"),
    ("drn", {".drn": ""}, "line 1: the file ends before '@model'"),
    ("drn", {".drn": "@type: CTMC\n@type: CTMC\n"}, "line 2: @type stands there twice"),
    ("drn", {".drn": "@nr_states\n0\n"}, "line 2: @nr_states is '0'; allowed is a number, 1 or more"),
    ("drn", {".drn": "@states\n0\n"}, "line 1: it is '@states'; allowed are the keys of DRN"),
    ("drn", {".drn": "@reward_models\na b a\n"}, "line 2: reward 'a' is named twice"),
    ("drn", {".drn": '@reward_models\na "b\n'}, "line 2: a quotation mark is missing in \"b"),
    ("drn", {".drn": DRN + "0 : 1\n"}, "line 7: a transition stands before the first state"),
    ("drn", {".drn": DRN + "action 0\n"}, "line 7: a chain has one action in each state"),
    ("drn", {".drn": DRN + "state 0\naction 0\naction 1\n"}, "line 9: a chain has one action in each state"),
    ("drn", {".drn": DRN + "state 0\naction 0 [1]\n"}, "line 8: the rewards are [1]; allowed are 2 finite numbers"),
    ("drn", {".drn": DRN + "state 0 [1, 2\n"}, "line 7: allowed is one list of rewards"),
    ("drn", {".drn": DRN + "state 0 [1, 2] [1, 2]\n"}, "line 7: allowed is one list of rewards"),
    ("drn", {".drn": DRN + "state 0 !x\n"}, "line 7: the exit rate is x; allowed is one finite number"),
    ("drn", {".drn": DRN + "state 0 !1 !1\n"}, "line 7: the exit rate is 1; allowed is one finite number"),
    ("drn", {".drn": DRN + "state\n"}, "line 7: the state is ''; allowed is 0, the next one"),
    ("drn", {".drn": DRN + "state 0\n1 : 1\n1 : 2\n"}, "line 9: state 1 stands after 1; targets must be in ascending order"),
    ("drn", {".drn": DRN + "state 0\n1 :\n"}, "line 8: it is '1 : '; allowed is 'target : rate'"),
    ("drn", {".drn": DRN + "state 0\n1 : 1_0\n"}, "line 8: the rate is 1_0; allowed are positive, finite numbers"),
    ("drn", {".drn": DRN + "state 0\nstates\n"}, "line 8: it is 'states'; allowed are state, action and 'target : rate'"),
    ("drn", {".drn": DRN + "\n" * 100_001}, "there are more comments and blank lines than states"),
    ("drn", {".drn": "//\n" * 100_001}, "too many comments and blank lines before the model"),
    ("matrix_market", {".mtx": BANNER + "2 2 1\n1 2 1\n2 1 1\n"}, "line 4: an entry beyond the 1 that are announced"),
    ("matrix_market", {".mtx": BANNER + "%\n" * 10_001 + "2 2 1\n"}, "too many comments before the size"),
    ("matrix_market", {".mtx": ""}, "line 1: the banner of MatrixMarket is missing"),
]  # fmt: skip


@pytest.mark.parametrize(("name", "files", "sentence"), FAULTS)
def test_a_fault_is_a_sentence(tmp_path, name, files, sentence):
    refused(MODULES[name].read, put(tmp_path, files), re.escape(sentence))


@pytest.mark.parametrize("name", ["prism", "mrmc", "matrix_market"])
def test_what_gives_no_bytes(tmp_path, name):
    """A folder, a pipe, a missing file; a file that ends inside what was compressed; one that gives more than fits."""
    os.mkfifo(tmp_path / "pipe.tra")
    for path in (tmp_path, tmp_path / "pipe.tra", tmp_path / "missing.tra", tmp_path / "nul\0.tra"):
        with pytest.raises(ctmc.StorageError, match=r"cannot be read: .+\.$"):
            MODULES[name].read(path)


@pytest.mark.parametrize("ending", ["gz", "xz"])
def test_compressed_files_that_end_too_early_or_never(tmp_path, ending):
    opened = {"gz": gzip, "xz": lzma}[ending]
    numbers = np.random.default_rng(89).integers(10**15, 10**16, 20_000).tolist()
    content = (
        BANNER + "20000 20000 20000\n" + "".join(f"{k + 1} {(k + 1) % 20000 + 1} {r}\n" for k, r in enumerate(numbers))
    ).encode()
    packed = opened.compress(content)
    assert len(packed) > 2 << 16  # read in several pieces
    path = put(tmp_path, {f".mtx.{ending}": packed})
    assert matrix_market.read(path).entries == 20_000
    put(
        tmp_path,
        {f".mtx.{ending}": opened.compress(content[:9000]) + bytes(8) + opened.compress(content[9000:]) + bytes(4)},
    )
    assert matrix_market.read(path).entries == 20_000
    put(tmp_path, {f".mtx.{ending}": packed[: len(packed) // 2]})
    refused(matrix_market.read, path, "cannot be read: the compressed data end too early")
    put(tmp_path, {f".mtx.{ending}": opened.compress(content[:9000]) + b"rest"})
    refused(matrix_market.read, path, "cannot be read: ")
    put(tmp_path, {f".mtx.{ending}": opened.compress(BANNER.encode() + b"9 9 999999999\n" + b"1 2 1\n" * 400_000)})
    with ctmc.limited_memory("1MiB"):
        refused(matrix_market.read, path, "more than the memory limit", ctmc.ModelError)
    put(tmp_path, {f".mtx.{ending}": opened.compress(BANNER.encode() + b"9 9 9\n" + b"\n" * 3_000_000)})
    with ctmc.limited_memory("1MiB"):
        refused(matrix_market.read, path, "cannot be read: it holds more than 2 MiB once it is decompressed")


def test_a_head_of_gzip_without_an_end(tmp_path):
    """A name of 100 MB gives no text for a long time; it is read piece by piece."""
    path = put(tmp_path, {".drn.gz": b"\x1f\x8b\x08\x08" + bytes(6) + b"a" * 100_000_000})
    refused(drn.read, path, "cannot be read: the compressed data end too early")


@pytest.mark.parametrize(
    ("name", "files"),
    [
        ("prism", {".tra": "2 2\n0 1 1\n1 0 " + "1" * 900_000 + "x\n"}),
        ("prism", {".tra": "2 2\n0 1:1\n1 " + "1" * 900_000 + "x:0\n"}),
        ("drn", {".drn": DRN + "state 0 !" + "1" * 900_000 + "x\n"}),
        ("drn", {".drn": DRN + "state 0 [" + "1" * 900_000 + "x, 1]\n"}),
        ("matrix_market", {".mtx": BANNER + "2 2 1\n1 2 " + "1" * 900_000 + ".1.1\n"}),
    ],
)
def test_a_long_word_that_is_no_number_is_refused_at_once(tmp_path, name, files):
    put(tmp_path, {"0.tra": TRA["prism"]})
    prism.read(tmp_path / "chain0.tra")  # what is compiled is there
    begin = time.process_time()
    refused(MODULES[name].read, put(tmp_path, files), r"line \d+: ")
    assert time.process_time() - begin < 30  # tried in all ways, it takes hours


def test_a_file_that_changes_while_it_is_read(tmp_path, monkeypatch):
    path = put(tmp_path, {".tra": TRA["prism"]})
    back = TextFile.go_back

    def changed(self, mark):
        if mark[1] == 1:
            path.write_text(TRA["prism"].replace("1 0 2\n", ""))
        back(self, mark)

    monkeypatch.setattr(prism, "_in_rows", lambda file: False)
    monkeypatch.setattr(TextFile, "go_back", changed)
    refused(prism.read, path, "the file has changed while it was read")


# ---- blocks and numbers ------------------------------------------------------------------------------------------


@pytest.mark.parametrize("size", [16, 23, 64])
def test_lines_that_blocks_cut(tmp_path, monkeypatch, size):
    """Whatever the length of blocks: every line once, by its number."""
    monkeypatch.setattr(text, "LINE_BYTES", size)
    lines = ["# a", "", "0 1 1.5", "  1 0 2e0 go", "#", "3 2 0.0625"] + ["4 0 1"] * (size == 64) + ["#"] * 20
    layout = Layout(order=1, action=True, comments=True)
    for end in ("\n", ""):
        path = put(tmp_path, {".txt": "\n".join(lines) + end})
        with TextFile(path) as file:
            blocks = list(file.blocks(layout))
        assert np.concatenate([block.values for block in blocks]).tolist()[:3] == [1.5, 2.0, 0.0625]
        assert np.concatenate([block.lines for block in blocks]).tolist()[:3] == [3, 4, 6]
        assert np.concatenate([block.indices for block in blocks], axis=1).T.tolist()[:3] == [[0, 1], [1, 0], [3, 2]]
    path = put(tmp_path, {".txt": "0 1 1.5".ljust(size - 1) + "\n1 0 2"})  # the last block has no end of a line
    with TextFile(path) as file:
        assert [value for block in file.blocks(layout) for value in block.values.tolist()] == [1.5, 2.0]
    path = put(tmp_path, {".txt": "0 1 1\n0 2 1" + "0" * 200 + "\n"})
    with TextFile(path) as file, pytest.raises(ctmc.StorageError, match="line 2: it is longer than"):
        list(file.blocks(layout))


WORDS = [
    "0", "0.000", ".5", "5.", "+7", "-0.25", "1e22", "1e23", "3e-22", "123456789012345678", "9007199254740993", "9007199254740995",
    "1e-5", "1e308", "1.7976931348623157e308", "4.9e-324", "2.2250738585072014e-308", "1e-330", "8.5e-320", "12345678901234567890123",
    "0.00000000000000000000000000001", "1e-00005", "1E+3", "18446744073709551615", "18446744073709551616", "1e-400", "9999999999999999999e-350",
    "9007199254740993.0000000000000000001", "36028797018963963", "1.99999999999999988897769753748e0", "0e99999", "1e-99999999999",
]  # fmt: skip


def test_numbers_at_the_ends_and_between_doubles(tmp_path):
    """Against Python: every way in which a word is read, and products of which one part is not enough."""
    rng = np.random.default_rng(97)
    digits = rng.integers(10**16, 10**19, 4000, dtype=np.uint64).tolist()
    words = WORDS + [f"{d}e{p}" for d, p in zip(digits, rng.integers(-330, 280, 4000).tolist(), strict=True)]
    # neighbours of powers of two round up to one more bit
    words += [f"{2**k - 1}" for k in range(50, 63)] + [
        f"{d}e-19" for d in range(9999999999999999990, 9999999999999999999)
    ]
    path = put(tmp_path, {".txt": "".join(f"{k} {word}\n" for k, word in enumerate(words))})
    with TextFile(path) as file:
        found = np.concatenate([block.values for block in file.blocks(Layout(1, "reward"))]).tolist()
    assert [value.hex() for value in found] == [float(word).hex() for word in words]


def test_products_that_need_the_lower_half():
    """Where the higher half ends in nine ones the lower one decides, with and without a carry."""
    rng = np.random.default_rng(101)
    powers = rng.integers(-300, 280, 6000).tolist()
    for digits, power in zip(rng.integers(2**60, 2**63, 6000, dtype=np.uint64).tolist(), powers, strict=True):
        bits, proved = decimals.nearest(np.uint64(digits), power, decimals.POWERS)
        assert not proved or np.array([bits], dtype=np.uint64).view(np.float64)[0] == float(f"{digits}e{power}")


# ---- what is read and written besides ----------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "files"),
    [
        ("prism", {".tra": TRA["prism"], ".srew": "3 1\n2 5\n", ".trew": "3 2\n0 1 1\n1 0 2\n"}),
        ("storm", {".tra": TRA["storm"], ".state.rew": "2 5\n", ".trans.rew": "0 1 1\n1 0 2\n", ".a.b.state.rew": "?"}),
        ("storm", {".tra": TRA["storm"].removeprefix("ctmc\n"), ".c.state.rew": "2 5\n", ".c.trans.rew": "0 1 1\n1 0 2\n"}),
        ("mrmc", {".tra": TRA["mrmc"], ".rew": "3 5\n", ".rewi": "TRANSITIONS 2\n1 2 1\n2 1 2\n"}),
    ],
)  # fmt: skip
def test_rewards_beside_a_tra(tmp_path, name, files):
    put(tmp_path, files)
    for path in (tmp_path / "chain.tra", tmp_path / "chain"):
        chain = MODULES[name].read(path)
        assert chain.to_scipy().toarray().tolist() == RATES
        (reward,) = chain.rewards.values()
        assert reward.rate.tolist() == [0, 0, 5]
        assert chain.sources[reward.impulse == 1].tolist() == [0]
        assert chain.sources[reward.impulse == 2].tolist() == [1]


@pytest.mark.parametrize("name", ["prism", "storm", "mrmc"])
def test_zeros_beside_a_tra(tmp_path, name):
    """Rates of zero beside impulses, and impulses of zero beside rates, are none."""
    first = name == "mrmc"
    rate, impulse = {"prism": (".srew", ".trew"), "storm": (".r.state.rew", ".r.trans.rew"), "mrmc": (".rew", ".rewi")}[
        name
    ]
    head = {"prism": ("3 1\n", "3 1\n"), "storm": ("", ""), "mrmc": ("", "TRANSITIONS 1\n")}[name]
    put(tmp_path, {".tra": TRA[name], rate: head[0] + "1 0\n", impulse: head[1] + f"{0 + first} {1 + first} 4\n"})
    (reward,) = MODULES[name].read(tmp_path / "chain.tra").rewards.values()
    assert reward.rate is None
    assert reward.impulse.tolist() == [0, 4, 0]
    put(tmp_path, {rate: head[0] + "1 4\n", impulse: head[1] + f"{0 + first} {1 + first} 0\n"})
    (reward,) = MODULES[name].read(tmp_path / "chain.tra").rewards.values()
    assert reward.impulse is None
    assert reward.rate.tolist() == ([4, 0, 0] if first else [0, 4, 0])


def test_loops_of_mrmc(tmp_path):
    put(tmp_path, {".tra": "STATES 2\nTRANSITIONS 2\n1 1 4\n1 2 1\n", ".rewi": "TRANSITIONS 1\n1 1 3\n"})
    chain = mrmc.read(tmp_path / "chain.tra")
    assert chain.rewards["reward"].rate.tolist() == [12, 0]
    assert chain.notes[-1].startswith("Reward 'reward': what transitions of states to themselves earn is a rate")


def test_a_label_without_states_tells_no_beginning(tmp_path):
    chain = storm.read(put(tmp_path, {".tra": TRA["storm"], ".lab": "#DECLARATION\ninit\n#END\n"}))
    assert chain.initial is None
    assert chain.labels == {}


def test_storm_finds_the_number_of_states(tmp_path):
    chain = storm.read(put(tmp_path, {".tra": "ctmc\n0 1 1\n1 3000 2\n3000 5000 1\n"}))
    assert chain.size == 5001
    assert chain.exit_rates[[0, 1, 3000, 5000]].tolist() == [1, 2, 1, 0]


@pytest.mark.parametrize("holds", ["generator", "rates"])
def test_what_a_matrix_holds(tmp_path, holds):
    chain = ctmc.Generator.from_matrix(RATES)
    path = tmp_path / "chain.mtx"
    matrix_market.write(path, chain, holds=holds)
    assert matrix_market.read(path, holds=holds).to_scipy().toarray().tolist() == RATES
    assert matrix_market.read(path, holds="rates").to_scipy().toarray().tolist() == RATES
    if holds == "rates":
        with pytest.raises(ctmc.ModelError, match="has no diagonal; allowed is a generator, or holds='rates'"):
            matrix_market.read(path, holds="generator")
    with pytest.raises(ctmc.StorageError, match="holds is 'matrix'; allowed are auto, generator, rates"):
        matrix_market.read(path, holds="matrix")
    with pytest.raises(ctmc.StorageError, match="holds is 'auto'; allowed are generator, rates"):
        matrix_market.write(tmp_path / "other.mtx", chain, holds="auto")
    assert [file.name for file in tmp_path.iterdir()] == ["chain.mtx"]


def test_names_that_no_format_takes(tmp_path):
    chain = ctmc.Generator.from_matrix(RATES, initial=0).with_reward('a"b', [1.0, 2.0, 3.0])
    chain = chain.replace(labels={"init": np.array([True, False, False])})
    assert prism.write(tmp_path / "chain.tra", chain) == ["Reward 'a\"b' is written as 'a_b'."]
    assert list(prism.read(tmp_path / "chain.tra").rewards) == ["a_b"]
    assert drn.write(tmp_path / "chain.drn", chain) == ["Reward 'a\"b' is written as 'a_b'."]
    assert list(drn.read(tmp_path / "chain.drn").rewards) == ["a_b"]
    mrmc.write(
        tmp_path / "only.tra", chain.replace(rewards={"jumps": ctmc.Reward(None, impulse=np.array([1.0, 0, 2]))})
    )
    assert sorted(path.name for path in tmp_path.glob("only.*")) == ["only.lab", "only.rewi", "only.tra"]
    for module in (prism, drn):
        with pytest.raises(ctmc.ModelError, match=r"a list cannot be written as .*; allowed is a Generator"):
            module.write(tmp_path / "none", [])


def test_paths_and_stems(tmp_path):
    (tmp_path / "rates.txt").touch()
    for given, found in {
        "rates.txt": ("rates.txt", "rates"),
        "gone.txt": ("gone.txt", "gone"),
        "gone": ("gone.tra", "gone"),
    }.items():
        wanted = tuple(str(tmp_path / name) for name in found)
        assert file_and_stem(tmp_path / given, reading=True) == wanted
    (tmp_path / "v1.2.tra").touch()
    assert file_and_stem(tmp_path / "v1.2", reading=True) == (str(tmp_path / "v1.2.tra"), str(tmp_path / "v1.2"))


def test_many_transitions_of_drn_are_checked_as_they_come(tmp_path, monkeypatch):
    monkeypatch.setattr(drn, "_CHECKED_LINES", 4)
    path = put(tmp_path, {".drn": "@nr_states\n9\n@model\nstate 0\n" + "".join(f"{k} : 1\n" for k in range(1, 9))})
    asked = []
    monkeypatch.setattr(drn, "require_memory", lambda what, size, **known: asked.append(known.get("entries")))
    with pytest.raises(ctmc.StorageError, match="ends after 1 states, but 9 are announced"):
        drn.read(path)
    assert asked == [None, 4, 8]
