"""UMB: round trips, umbi as the oracle, and files that are bombs, lead elsewhere or lie about their sizes."""

import gzip
import importlib.util
import io
import json
import lzma
import re
import tarfile

import numpy as np
import pytest
from chain_gallery import check_mutations, random_chain, same_chain

import ctmc
from ctmc.interchange import umb
from ctmc.interchange.valuations import BitField, packed, unpack

needs_umbi = pytest.mark.skipif(
    importlib.util.find_spec("umbi") is None, reason="umbi is not installed; pip install 'ctmc-lab[interop]' brings it"
)


def members_of(path):
    with tarfile.open(path) as archive:
        return {member.name: archive.extractfile(member).read() for member in archive}


def archive_of(path, members, kind=tarfile.REGTYPE, special=None):
    with tarfile.open(path, "w") as archive:
        for name, data in members:
            member = tarfile.TarInfo(name)
            member.size = len(data)
            if name == special:
                member.type, member.linkname, member.size = kind, "/etc/passwd", 0
            archive.addfile(member, io.BytesIO(data))
    return path


@pytest.fixture
def parts(tmp_path):
    umb.write(tmp_path / "whole.umb", random_chain(3))
    return members_of(tmp_path / "whole.umb")


def changed(parts, change):
    index = json.loads(parts["index.json"])
    change(index)
    return [("index.json", json.dumps(index).encode()), *((k, v) for k, v in parts.items() if k != "index.json")]


@pytest.mark.parametrize("compression", [None, "gz", "xz"])
@pytest.mark.parametrize("seed", [3, 4, 5])
def test_round_trip(tmp_path, seed, compression):
    chain = random_chain(seed)
    lost = umb.write(tmp_path / "m.umb", chain, compression=compression)
    assert [sentence.partition(" of")[0] for sentence in lost] == ["The initial probabilities"]
    found = umb.read(tmp_path / "m.umb")
    same_chain(found, chain, rtol=2.3e-16)
    assert np.mean(found.rates == chain.rates) > 0.85
    assert found.rewards["busy"].description == "servers at work"
    assert found.notes == ()


def test_rates_differ_by_one_unit_at_most(tmp_path):
    rng = np.random.default_rng(17)
    rates = 10.0 ** rng.uniform(-9, 9, 100_000)
    exits = rates * (1 + rng.exponential(size=100_000))
    n = len(rates)
    chain = ctmc.Generator.from_transitions(
        np.repeat(np.arange(n), 2), np.stack([(np.arange(n) + 1) % n, (np.arange(n) + 2) % n], 1).ravel(),
        np.stack([rates, exits - rates], 1).ravel(), ctmc.model.state_space.Lattice((n - 1,)),
    )  # fmt: skip
    umb.write(tmp_path / "m.umb", chain)
    back = umb.read(tmp_path / "m.umb").rates
    assert (np.abs(back - chain.rates) <= np.spacing(chain.rates)).all()
    assert 0.8 < np.mean(back == chain.rates) < 1


def test_builders_lattice_comes_back(tmp_path):
    model = ctmc.build(
        "supermarket", service_rates=[1.0, 1.5], arrival_rate=2.0, choices=2, capacity=4, selection="tandem",
        sampling="with_replacement",
    )  # fmt: skip
    lost = umb.write(tmp_path / "m.umb", model)
    found = umb.read(tmp_path / "m.umb")
    assert found.space == model.space
    assert any("builder" in sentence for sentence in lost)


def test_what_is_not_carried_is_named(tmp_path):
    chain = ctmc.Generator.from_matrix([[-1, 1], [2, -2]])
    chain = chain.replace(
        rewards={
            "both": ctmc.Reward(np.ones((2, 2))),
            "lost": ctmc.Reward(None, self_loops=np.array([0.5, 0.25])),
            "mean": ctmc.Reward(np.ones(2), averaged=True),
        },
        measures=lambda solution: {},
        notes=("a note",),
    )
    lost = umb.write(tmp_path / "m.umb", chain)
    for word in ("'both' is written as 2", "'lost'", "'mean'", "Measures, notes are not carried"):
        assert any(word in sentence for sentence in lost), word
    assert len(lost) == 4
    found = umb.read(tmp_path / "m.umb")
    assert list(found.rewards) == ["both[0]", "both[1]", "lost", "mean"]
    np.testing.assert_array_equal(found.rewards["lost"].rate, [0.5, 0.25])


@needs_umbi
@pytest.mark.parametrize("seed", [3, 4])
def test_umbi_reads_what_we_write(tmp_path, seed):
    import umbi.umb

    chain = random_chain(seed)
    umb.write(tmp_path / "m.umb", chain)
    found = umbi.umb.read(tmp_path / "m.umb", strict=True)
    starts, targets = np.array(found.choice_to_branches), np.array(found.branch_to_target)
    assert len(starts) == chain.size + 1
    dense = np.zeros((chain.size, chain.size))
    exits = np.array(found.state_to_exit_rate)
    for i in range(chain.size):
        for k in range(starts[i], starts[i + 1]):
            dense[i, targets[k]] += found.branch_to_probability[k] * exits[i]
        np.testing.assert_allclose(dense[i].sum(), exits[i])
    np.fill_diagonal(dense, 0)
    ours = chain.to_scipy().toarray()
    np.fill_diagonal(ours, 0)
    np.testing.assert_allclose(dense, ours, rtol=3e-16)
    assert np.flatnonzero(found.state_is_initial).tolist() == [0, 3, 7]
    states = [tuple(record.values()) for record in found.valuations["states"]]
    assert states == [tuple(row) for row in chain.space.table.tolist()]
    names = {entry.alias: name for name, entry in found.index.annotations["aps"].items()}
    np.testing.assert_array_equal(found.annotations["aps"][names["満員"]]["states"], chain.labels["満員"])
    names = {entry.alias: name for name, entry in found.index.annotations["rewards"].items()}
    np.testing.assert_array_equal(found.annotations["rewards"][names["busy"]]["states"], chain.rewards["busy"].rate)
    earned = found.annotations["rewards"][names["only jumps"]]["branches"]
    by_ends = {(i, targets[k]): earned[k] for i in range(chain.size) for k in range(starts[i], starts[i + 1])}
    ends = zip(chain.sources, np.repeat(np.arange(chain.size), np.diff(chain.indptr)), strict=True)
    assert [by_ends[pair] for pair in ends] == chain.rewards["only jumps"].impulse.tolist()


@needs_umbi
@pytest.mark.parametrize("compression", ["gz", "none"])
def test_we_read_what_umbi_writes(tmp_path, compression):
    import umbi.umb

    chain = random_chain(8)
    umb.write(tmp_path / "ours.umb", chain)
    theirs = umbi.umb.read(tmp_path / "ours.umb")
    umbi.umb.write(theirs, tmp_path / "theirs.umb")
    if compression == "none":
        data = (tmp_path / "theirs.umb").read_bytes()
        (tmp_path / "theirs.umb").write_bytes(gzip.decompress(data) if data[:2] == b"\x1f\x8b" else data)
    same_chain(umb.read(tmp_path / "theirs.umb"), chain, rtol=2.3e-16)


@pytest.mark.parametrize(
    ("bits", "signed", "offset"), [(1, False, 0), (3, False, -4), (13, True, 7), (33, False, 0), (64, True, 0)]
)
def test_bits_at_any_place(bits, signed, offset):
    """Against Python's whole numbers of any length."""
    rng = np.random.default_rng(29)
    for begin in (0, 1, 5, 8, 15, 31):
        low, high = (-(2 ** (bits - 1)), 2 ** (bits - 1) - 1) if signed else (0, 2**bits - 1)
        wanted = [low, high, *(int(x) for x in rng.integers(low, high, 20, endpoint=True))]
        total = -(-(begin + bits) // 8)
        noise = int.from_bytes(rng.bytes(total), "little") & ((1 << begin) - 1)
        rows = [noise | (value % 2**bits) << begin for value in wanted]
        records = np.array([list(row.to_bytes(total, "little")) for row in rows], dtype=np.uint8)
        found = unpack(records, BitField("x", begin, bits, signed, offset)).tolist()
        assert found == [value + offset for value in wanted]


def test_packed_and_unpacked():
    columns = [("a", np.array([0, 255])), ("b", np.array([-129, 5])), ("c", np.array([2**40, 1]))]
    records, fields = packed(columns)
    assert records.shape == (2, 1 + 2 + 8)
    for (_, values), field in zip(columns, fields, strict=True):
        np.testing.assert_array_equal(unpack(records, field), values)


@pytest.mark.parametrize("compress", [gzip.compress, lambda data: lzma.compress(data, preset=1)])
@pytest.mark.parametrize("where", ["index", "member", "header", "after"])
def test_bombs(tmp_path, parts, compress, where):
    """Below 1 MB that inflate to 50 MB are refused under a limit of 20 MB, wherever in the archive the zeros stand."""
    zeros = bytes(50_000_000)
    path = tmp_path / "bomb.umb"
    members = list(parts.items())
    if where == "index":
        members[0] = ("index.json", b" " * 50_000_000)
    elif where == "member":
        members[1] = (members[1][0], zeros)
    elif where == "after":
        members.append(("more.bin", zeros))
    archive_of(path, members)
    if where == "header":  # a header of a long name that is 50 MB long
        head = tarfile.TarInfo("././@LongLink")
        head.type, head.size = tarfile.GNUTYPE_LONGNAME, len(zeros)
        path.write_bytes(head.tobuf(tarfile.GNU_FORMAT) + zeros + path.read_bytes())
    path.write_bytes(compress(path.read_bytes()))
    assert path.stat().st_size < 1_000_000
    with ctmc.limited_memory(20_000_000), pytest.raises(ctmc.StorageError, match=r"more than|has 50,000,000 bytes"):
        umb.read(path)


@pytest.mark.parametrize(
    ("kind", "name"),
    [(tarfile.SYMTYPE, "symbolic link"), (tarfile.LNKTYPE, "hard link"), (tarfile.FIFOTYPE, "pipe"),
     (tarfile.CHRTYPE, "device"), (tarfile.BLKTYPE, "device")],
)  # fmt: skip
def test_special_members(tmp_path, parts, kind, name):
    archive_of(tmp_path / "m.umb", parts.items(), kind, "branch-to-target.bin")
    with pytest.raises(ctmc.StorageError, match=name):
        umb.read(tmp_path / "m.umb")


@pytest.mark.parametrize("name", ["../../x", "/etc/x", "a/../b", "a//b", "a b", "..", "x\x1b[31m", "index.json"])
def test_names_of_members(tmp_path, parts, name):
    archive_of(tmp_path / "m.umb", [*parts.items(), (name, b"0")])
    with pytest.raises(ctmc.StorageError, match=r"not allowed|twice"):
        umb.read(tmp_path / "m.umb")
    assert [path.name for path in tmp_path.iterdir() if path.name != "whole.umb"] == ["m.umb"]


@pytest.mark.parametrize(
    ("change", "error", "sentence"),
    [
        (lambda index: index["transition-system"].update({"#states": 2**63}), ctmc.ModelError, "memory limit"),
        (lambda index: index["transition-system"].update({"#states": 41}), ctmc.StorageError, "index asks for"),
        (lambda index: index["transition-system"].update({"#branches": 3}), ctmc.StorageError, "index asks for"),
        (lambda index: index["transition-system"].update({"#states": -1}), ctmc.StorageError, "#states is '-1'"),
        (lambda index: index["transition-system"].update({"#states": 1.5}), ctmc.StorageError, "#states is '1.5'"),
        (lambda index: index["transition-system"].update({"#states": 0}), ctmc.ModelError, "no states"),
        (lambda index: index["transition-system"].update({"time": "discrete"}), ctmc.ModelError, "continuous time"),
        (lambda index: index["transition-system"].update({"#players": 1}), ctmc.ModelError, "1 players"),
        (lambda index: index.update({"format-version": 9}), ctmc.StorageError, "format-version is 9"),
        (lambda index: index["valuations"]["states"]["classes"][0]["variables"].append({"padding": 3}), ctmc.StorageError, "3 bits|35 bits|bits"),
        (lambda index: index.update({"transition-system": []}), ctmc.StorageError, "transition-system is missing or no object"),
        (lambda index: index["transition-system"].update({"time": 1}), ctmc.StorageError, "time is no text"),
        (lambda index: index["transition-system"].update({"#choices": 39}), ctmc.StorageError, "index asks for"),
        (lambda index: index["transition-system"]["exit-rate-type"].update({"size": -1}), ctmc.StorageError, "size of exit-rate-type is '-1'"),
        (lambda index: index["transition-system"]["exit-rate-type"].update({"size": 32}), ctmc.ModelError, "exit-rate-type is 'double' of 32 bits"),
        (lambda index: index["transition-system"]["exit-rate-type"].update({"type": "int"}), ctmc.ModelError, "exit-rate-type is 'int' of 64 bits"),
        (lambda index: index["annotations"]["aps"].update({"more": 1}), ctmc.StorageError, "the annotation 'more' is no object"),
        (lambda index: index["annotations"]["aps"]["full"].update({"applies-to": ["players"]}), ctmc.StorageError, "applies-to of the annotation 'full'"),
        (lambda index: index["valuations"]["states"].update({"classes": 1}), ctmc.StorageError, "classes of valuations are no list"),
        (lambda index: index["valuations"]["states"]["classes"][0].update({"variables": 1}), ctmc.StorageError, "variables is no list of objects"),
        (lambda index: index["valuations"]["states"]["classes"][0]["variables"][0].update({"offset": 0.5}), ctmc.StorageError, "the offset or size of variable 'Länge'"),
        (lambda index: index["valuations"]["states"]["classes"][0]["variables"][0]["type"].update({"size": 0}), ctmc.StorageError, "the offset or size of variable 'Länge'"),
        (lambda index: index["valuations"]["states"]["classes"][0]["variables"][1].update({"name": "Länge"}), ctmc.StorageError, "two variables of the states have one name"),
        (lambda index: index["valuations"]["states"]["classes"][0]["variables"][0].update({"offset": 2**63 - 1}), ctmc.ModelError, "'Länge' has values of .* which need more than 64 bits"),
    ],
)  # fmt: skip
def test_an_index_that_lies(tmp_path, parts, change, error, sentence):
    archive_of(tmp_path / "m.umb", changed(parts, change))
    with pytest.raises(error, match=sentence):
        umb.read(tmp_path / "m.umb")


@pytest.mark.parametrize("text", [b"{}", b"[]", b"[" * 100_000, b'{"a":1,"a":2}', b'{"a":NaN}', b"\xff\xfe", b""])
def test_indices_that_are_none(tmp_path, text):
    archive_of(tmp_path / "m.umb", [("index.json", text)])
    with pytest.raises(ctmc.StorageError):
        umb.read(tmp_path / "m.umb")


@pytest.mark.parametrize(
    ("change", "note"),
    [
        (lambda states: states.update({"classes": [*states["classes"], *states["classes"]]}), "2 kinds of variables; they were left out"),
        (lambda states: states.update({"classes": []}), None),
        (lambda states: states["classes"][0]["variables"][0]["type"].update({"type": "double"}), "'?Länge'? of the states was left out: it is double"),
        (lambda states: states["classes"][0]["variables"][0].update({"is-optional": True, "type": {"type": "uint", "size": 15}}), "left out: it is uint, optional"),
    ],
)  # fmt: skip
def test_variables_that_are_left_out(tmp_path, parts, change, note):
    chain = umb.read(
        archive_of(tmp_path / "m.umb", changed(parts, lambda index: change(index["valuations"]["states"])))
    )
    assert chain.size == 40
    assert "Länge" not in [variable.name for variable in chain.space.variables]
    assert note is None or re.search(note, " ".join(chain.notes))


def test_variables_that_do_not_tell_states_apart(tmp_path, parts):
    """They are rewards, whatever bits they take."""
    (name,) = (name for name in parts if name.startswith("valuations"))
    parts[name] = b"\x07\xff" * 40
    fields = [
        {"name": "a", "type": {"type": "uint", "size": 3}},
        {"padding": 5},
        {"name": "b", "type": {"type": "int", "size": 8}},
    ]
    states = {"unique": False, "classes": [{"variables": fields}]}
    chain = umb.read(
        archive_of(tmp_path / "m.umb", changed(parts, lambda index: index["valuations"].update(states=states)))
    )
    assert chain.rewards["a"].rate.tolist() == [7] * 40
    assert chain.rewards["b"].rate.tolist() == [-1] * 40
    assert "The variables do not tell the states apart; they are rewards here." in chain.notes
    parts[name] = b"\xff" * 320
    fields = [{"name": "wide", "type": {"type": "uint", "size": 64}}]
    states = {"unique": False, "classes": [{"variables": fields}]}
    archive_of(tmp_path / "m.umb", changed(parts, lambda index: index["valuations"].update(states=states)))
    with pytest.raises(
        ctmc.ModelError, match="'wide' has the value 18446744073709551615, which needs more than 63 bits"
    ):
        umb.read(tmp_path / "m.umb")


def small(folder, rational=False, system=(), annotations=(), **members):
    """A chain of two states, 0 to 1 at rate 3 in two branches and by a loop at rate 1, and 1 to 0 at rate 2, by hand."""
    number = {"type": "rational", "size": 128} if rational else {"type": "double", "size": 64}

    def numbers(*values):
        if rational:
            return b"".join(int(4 * value).to_bytes(8, "little") + (4).to_bytes(8, "little") for value in values)
        return np.array(values, dtype="<f8").tobytes()

    index = {
        "format-version": 1,
        "transition-system": {
            "time": "stochastic", "#players": 0, "#states": 2, "#initial-states": 1, "#choices": 2, "#branches": 4,
            "branch-probability-type": number, "exit-rate-type": number, **dict(system),
        },
        "annotations": dict(annotations),
    }  # fmt: skip
    parts = {
        "state-is-initial.bin": (1).to_bytes(8, "little"),
        "state-to-choices.bin": np.array([0, 1, 2], dtype="<u8").tobytes(),
        "state-to-exit-rate.bin": numbers(4, 2),
        "choice-to-branches.bin": np.array([0, 3, 4], dtype="<u8").tobytes(),
        "branch-to-target.bin": np.array([1, 0, 1, 0], dtype="<u8").tobytes(),
        "branch-to-probability.bin": numbers(0.25, 0.25, 0.5, 1),
        **members,
    }
    everything = [("index.json", json.dumps(index).encode()), *((k, v) for k, v in parts.items() if v is not None)]
    return archive_of(folder / "small.umb", everything)


@pytest.mark.parametrize("rational", [False, True])
@pytest.mark.parametrize("left_out", [(), ("state-to-choices.bin",), ("state-is-initial.bin",)])
def test_a_chain_by_hand(tmp_path, rational, left_out):
    chain = umb.read(small(tmp_path, rational, **dict.fromkeys(left_out)))
    assert chain.to_scipy().toarray().tolist() == [[-3, 3], [2, -2]]
    assert (chain.initial is None) == ("state-is-initial.bin" in left_out)


@pytest.mark.parametrize(
    ("settings", "error", "sentence"),
    [
        ({"branch-to-target.bin": None}, ctmc.StorageError, "has no member branch-to-target.bin"),
        ({"state-to-exit-rate.bin": None}, ctmc.StorageError, "has no member state-to-exit-rate.bin"),
        ({"system": {"#choices": 3}, "state-to-choices.bin": None, "choice-to-branches.bin": np.array([0, 1, 3, 4], dtype="<u8").tobytes()},
         ctmc.ModelError, "3 choices for 2 states; a chain has one for each"),
        ({"system": {"#choices": 3}, "state-to-choices.bin": np.array([0, 2, 3], dtype="<u8").tobytes(),
          "choice-to-branches.bin": np.array([0, 1, 3, 4], dtype="<u8").tobytes()}, ctmc.ModelError, "2 choices in state 0; a chain has at most one"),
    ],
)  # fmt: skip
def test_members_that_make_no_chain(tmp_path, settings, error, sentence):
    with pytest.raises(error, match=sentence):
        umb.read(small(tmp_path, **settings))


def reward(*applies):
    return {"rewards": {"r": {"applies-to": list(applies), "type": {"type": "double", "size": 64}}}}


def place(entity):
    return f"annotations/rewards/r/{entity}/values.bin"


def test_what_branches_and_choices_earn(tmp_path):
    """Branches with the same ends earn their mean, a loop earns a rate, a choice earns at each of its branches."""
    values = {place("branches"): np.array([2.0, 5, 8, 1]).tobytes(), place("choices"): np.array([10.0, 0]).tobytes()}
    path = small(tmp_path, annotations=reward("branches", "choices"), **values)
    chain = umb.read(path)
    assert chain.rewards["r"].rate.tolist() == [15, 0]  # the loop: rate 1, 5 + 10
    assert chain.rewards["r"].impulse.tolist() == [1, 16]  # into 0, and the mean of 12 (rate 1) and 18 (rate 2)
    assert any("Several branches with the same ends" in note for note in chain.notes)
    assert any("What loops earn for reward r" in note for note in chain.notes)


@pytest.mark.parametrize(
    ("settings", "sentence"),
    [
        ({place("states"): np.array([np.nan, 0]).tobytes(), "annotations": reward("states")}, "has values of r that are not finite"),
        ({place("choices"): np.array([1.0]).tobytes(), "annotations": reward("choices"), "system": {"#choices": 1, "#branches": 3},
          "state-to-choices.bin": np.array([0, 1, 1], dtype="<u8").tobytes(), "choice-to-branches.bin": np.array([0, 3], dtype="<u8").tobytes(),
          "branch-to-target.bin": np.array([1, 0, 1], dtype="<u8").tobytes(), "branch-to-probability.bin": np.array([0.25, 0.25, 0.5]).tobytes(),
          "state-to-exit-rate.bin": np.array([4.0, 0]).tobytes()}, "of choices, but not one choice for each state"),
        ({"annotations/initial/probability/states/values.bin": np.array([0.5, 0.25]).tobytes(),
          "annotations": {"initial": {"probability": {"applies-to": ["states"], "type": {"type": "double", "size": 64}}}}},
         "initial probabilities that sum to 0.75"),
    ],
)  # fmt: skip
def test_annotations_that_make_no_sense(tmp_path, settings, sentence):
    with pytest.raises(ctmc.ModelError, match=sentence):
        umb.read(small(tmp_path, **settings))


def test_annotations_that_are_left_out(tmp_path):
    """One of another kind, and rewards without values."""
    entry = {"applies-to": ["states"], "type": {"type": "string", "size": 64}}
    chain = umb.read(small(tmp_path, annotations={"names": {"n": entry}, **reward("states")}))
    assert any("The annotation names/n of the file was left out" in note for note in chain.notes)
    assert chain.rewards["r"].rate.tolist() == [0, 0]


def test_a_chain_without_transitions(tmp_path):
    empty = {"branch-to-target.bin": None, "branch-to-probability.bin": None, "state-to-exit-rate.bin": bytes(16),
             "choice-to-branches.bin": bytes(24), "state-is-initial.bin": bytes(8), "system": {"#branches": 0}}  # fmt: skip
    chain = umb.read(small(tmp_path, annotations=reward("branches"), **empty))
    assert (chain.entries, chain.initial) == (0, None)


def test_folders_in_an_archive_and_archives_without_anything(tmp_path, monkeypatch):
    path = small(tmp_path)
    parts = members_of(path)
    with tarfile.open(path, "w") as archive:
        for name in ("./", "annotations"):
            folder = tarfile.TarInfo(name)
            folder.type = tarfile.DIRTYPE
            archive.addfile(folder)
        for name, data in parts.items():
            member = tarfile.TarInfo(f"./{name}")
            member.size = len(data)
            archive.addfile(member, io.BytesIO(data))
    assert umb.read(path).size == 2
    monkeypatch.setattr("ctmc.interchange.archive._MAX_MEMBERS", 4)
    with pytest.raises(ctmc.StorageError, match="it has more than 4 members"):
        umb.read(path)
    with tarfile.open(path, "w"):
        pass
    with pytest.raises(ctmc.StorageError, match=r"it has no member index\.json"):
        umb.read(path)
    archive_of(path, list(parts.items())[::-1])
    with pytest.raises(
        ctmc.StorageError, match=r"its first member is branch-to-probability.bin; allowed is index.json"
    ):
        umb.read(path)
    with pytest.raises(ctmc.StorageError, match="cannot be read: No such file"):
        umb.read(tmp_path / "gone.umb")
    with pytest.raises(ctmc.StorageError, match="compression is 'zip'; allowed are None, 'gz' and 'xz'"):
        umb.write(tmp_path / "zip.umb", random_chain(3), compression="zip")


def test_an_archive_that_ends_inside_a_member(tmp_path, parts):
    path = archive_of(tmp_path / "m.umb", parts.items())
    path.write_bytes(path.read_bytes()[: 512 + len(parts["index.json"]) // 2])
    with pytest.raises(ctmc.StorageError, match="is a damaged archive, or none: "):
        umb.read(path)


@pytest.mark.parametrize(
    ("member", "values", "sentence"),
    [
        ("branch-to-target.bin", lambda x: np.where(np.arange(len(x)) == 5, 40, x).astype("<u8"), "transition to state 40"),
        ("branch-to-target.bin", lambda x: np.where(np.arange(len(x)) == 5, 2**63, x).astype("<u8"), "transition to state"),
        ("choice-to-branches.bin", lambda x: x[::-1], "does not ascend"),
        ("state-to-exit-rate.bin", lambda x: -x.view("<f8"), "the exit rate"),
        ("state-to-exit-rate.bin", lambda x: x.view("<f8") * np.nan, "the exit rate"),
        ("branch-to-probability.bin", lambda x: x.view("<f8") / 2, "sum to 0.5 in state 0"),
        ("branch-to-probability.bin", lambda x: -x.view("<f8"), "the probability"),
    ],
)  # fmt: skip
def test_arrays_that_are_no_chain(tmp_path, parts, member, values, sentence):
    parts[member] = values(np.frombuffer(parts[member], dtype="<u8")).tobytes()
    archive_of(tmp_path / "m.umb", parts.items())
    with pytest.raises(ctmc.CTMCError, match=sentence):
        umb.read(tmp_path / "m.umb")


def test_initial_states_without_probabilities_are_a_label(tmp_path, parts):
    members = changed(parts, lambda index: index["annotations"].pop("initial"))
    chain = umb.read(archive_of(tmp_path / "m.umb", members))
    assert chain.initial is None
    assert np.flatnonzero(chain.labels["init"]).tolist() == [0, 3, 7]
    assert "3 initial states" in chain.notes[0]


def test_mutations(tmp_path):
    check_mutations(umb.read, umb.write, tmp_path / "m.umb", 1000)
    check_mutations(
        umb.read,
        lambda path, model: umb.write(path, model, overwrite=True, compression="gz"),
        tmp_path / "m.umb",
        5000,
        100,
    )
