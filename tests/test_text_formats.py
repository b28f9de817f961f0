"""Chains through PRISM's, Storm's and MRMC's files, DRN and MatrixMarket: bit for bit, faults by their lines, hostile files."""

from __future__ import annotations

import gzip
import lzma
import re
import time

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import ctmc
from ctmc.interchange import drn, matrix_market, mrmc, prism, storm, tra
from ctmc.interchange.text import Layout, TextFile
from ctmc.model.distribution import Distribution
from ctmc.model.memory import limited_memory
from tests.chain_gallery import mutated, random_chain

MODULES = {"prism": prism, "storm": storm, "mrmc": mrmc, "drn": drn, "matrix_market": matrix_market}
ENDINGS = {"prism": "tra", "storm": "tra", "mrmc": "tra", "drn": "drn", "matrix_market": "mtx"}
EXPLICIT = ("prism", "storm", "mrmc")
every_format = pytest.mark.parametrize("name", MODULES)


def chain_to_carry(seed, states=40):
    """A random chain whose initial distribution is uniform and whose labels are plain words."""
    chain = random_chain(seed, states)
    labels = {"full": chain.labels["full"], "größer": chain.labels["満員"]}
    return chain.replace(
        initial=Distribution(np.array([0, 3, 7]), np.full(3, 1 / 3)),
        labels=labels,
        rewards={name: chain.rewards[name] for name in ("jumps", "busy", "only jumps")},
    )


def same_rates(one, other):
    np.testing.assert_array_equal(one.indptr, other.indptr)
    np.testing.assert_array_equal(one.sources, other.sources)
    np.testing.assert_array_equal(one.rates, other.rates)


def same_labels(one, other):
    assert sorted(one.labels) == sorted(other.labels)  # DRN does not declare them, so their order is that of the states
    for label, member in one.labels.items():
        np.testing.assert_array_equal(member, other.labels[label])
    np.testing.assert_array_equal(one.initial.dense(one.size), other.initial.dense(other.size))


def same_reward(one, other, fields=("rate", "impulse")):
    for field in fields:
        ours, theirs = getattr(one, field), getattr(other, field)
        assert (ours is None) == (theirs is None), field
        if ours is not None:
            np.testing.assert_array_equal(ours, theirs)


@every_format
@pytest.mark.parametrize("seed", [3, 17, 171])
def test_rates_come_back_bit_for_bit(tmp_path, name, seed):
    chain = chain_to_carry(seed)
    path = tmp_path / f"chain.{ENDINGS[name]}"
    MODULES[name].write(path, chain)
    back = MODULES[name].read(path)
    same_rates(chain, back)
    if name != "matrix_market":
        same_labels(chain, back)


def test_prism_keeps_states_and_rewards(tmp_path):
    chain = chain_to_carry(23)
    lost = prism.write(tmp_path / "chain.tra", chain)
    assert lost == [
        "Descriptions of rewards are not carried: busy.",
        "Variables are written under other names, each a scalar: Länge as L_nge, q[0] as q_0.",
    ]
    back = prism.read(tmp_path / "chain")
    np.testing.assert_array_equal(back.space.table, chain.space.table)
    assert [variable.name for variable in back.space.variables] == ["L_nge", "q_0"]
    assert list(back.rewards) == list(chain.rewards)
    for reward in chain.rewards:
        same_reward(chain.rewards[reward], back.rewards[reward])


def test_storm_keeps_rewards(tmp_path):
    chain = chain_to_carry(29)
    lost = storm.write(tmp_path / "chain.tra", chain)
    assert "State variables are not carried: states are numbers, in the same order." in lost
    assert "Reward 'only jumps' is written as 'only_jumps'." in lost
    back = storm.read(tmp_path / "chain.tra")
    assert set(back.rewards) == {"jumps", "busy", "only_jumps"}
    for reward in chain.rewards:
        same_reward(chain.rewards[reward], back.rewards[reward.replace(" ", "_")])


def test_mrmc_keeps_the_first_reward(tmp_path):
    chain = chain_to_carry(31)
    lost = mrmc.write(tmp_path / "chain.tra", chain)
    assert "Rewards beyond the first are not carried: busy, only jumps." in lost
    same_reward(chain.rewards["jumps"], mrmc.read(tmp_path / "chain.tra").rewards["reward"])


def test_drn_keeps_what_leaving_a_state_earns(tmp_path):
    chain = chain_to_carry(37)
    by_state = np.random.default_rng(5).normal(size=chain.size)
    rewards = {
        "leaving now": ctmc.Reward(np.arange(40.0), impulse=by_state[chain.sources]),
        "jumps": chain.rewards["jumps"],
    }
    lost = drn.write(tmp_path / "chain.drn", chain.replace(rewards=rewards))
    assert [sentence for sentence in lost if "'jumps'" in sentence and "expectations stay" in sentence]
    back = drn.read(tmp_path / "chain.drn")
    same_reward(rewards["leaving now"], back.rewards["leaving now"])
    expected = ctmc.model.impulses.reward_rates(chain, chain.rewards["jumps"])
    np.testing.assert_allclose(back.rewards["jumps"].rate, expected, rtol=1e-13)


@pytest.mark.parametrize("name", ["prism", "drn"])
@given(label=st.text(st.characters(codec="utf-8"), min_size=1, max_size=20))
@settings(max_examples=30, deadline=None)
def test_names_of_labels(tmp_path_factory, name, label):
    """Every name comes back, or the change is named."""
    path = tmp_path_factory.mktemp("labels") / f"chain.{ENDINGS[name]}"
    chain = ctmc.Generator.from_matrix(
        [[-1, 1, 0], [2, -2, 0], [0, 0, 0]], initial=0, labels={label: np.array([False, True, True])}
    )
    lost = MODULES[name].write(path, chain)
    (found,) = MODULES[name].read(path).labels
    assert found == label or any(sentence.startswith("Label ") for sentence in lost)
    assert re.search(r'["\x00-\x1f\x7f]', label) or label in ("init", "deadlock") or found == label


@pytest.mark.parametrize("name", ["storm", "mrmc"])
def test_blanks_in_labels_are_named(tmp_path, name):
    labels = {"a b": np.array([True, False]), "a_b": np.array([True, True]), "#END": np.array([False, True])}
    chain = ctmc.Generator.from_matrix([[-1, 1], [2, -2]], initial=0, labels=labels)
    lost = MODULES[name].write(tmp_path / "chain.tra", chain)
    assert "Label 'a b' is written as 'a_b'." in lost
    assert list(MODULES[name].read(tmp_path / "chain.tra").labels) == ["a_b", "a_b_2", "END"]


@pytest.mark.parametrize("name", ["prism", "storm", "mrmc", "drn"])
def test_initial_states(tmp_path, name):
    module, path = MODULES[name], tmp_path / f"chain.{ENDINGS[name]}"
    chain = random_chain(41)
    lost = module.write(path, chain)
    assert [sentence for sentence in lost if "initial probabilities of 3 states are not carried" in sentence]
    assert module.read(path).initial.probabilities.tolist() == [1 / 3] * 3
    assert "The file has 3 initial states; each begins with the same probability." in module.read(path).notes
    lost = module.write(path, chain.replace(initial=None), overwrite=True)
    assert [sentence for sentence in lost if "no initial distribution" in sentence]
    assert module.read(path).initial.positions.tolist() == [0]


@pytest.mark.parametrize("name", ["prism", "storm", "mrmc", "drn"])
def test_absorbing_states_get_no_loops(tmp_path, name):
    chain = ctmc.Generator.from_matrix([[-1.5, 1, 0.5], [0, 0, 0], [0, 0, 0]], initial=0)
    path = tmp_path / f"chain.{ENDINGS[name]}"
    MODULES[name].write(path, chain)
    assert not re.search(r"^(1 1|2 2|3 3) ", path.read_text(), re.MULTILINE)
    back = MODULES[name].read(path)
    same_rates(chain, back)
    assert back.labels == {}
    assert back.notes == ()


def test_storm_hears_of_a_last_state_that_nothing_enters(tmp_path):
    chain = ctmc.Generator.from_matrix([[-1, 1, 0], [1, -1, 0], [0, 0, 0]], initial=0)
    storm.write(tmp_path / "chain.tra", chain)
    assert (tmp_path / "chain.tra").read_text().endswith("\n2 2 1\n")
    back = storm.read(tmp_path / "chain.tra")
    same_rates(chain, back)
    assert back.notes == ("The file has transitions of 1 states to themselves, which have no effect and are left out.",)


def test_what_loops_earn(tmp_path):
    (tmp_path / "a.tra").write_text("2 3\n0 0 4\n0 1 1\n1 0 2\n")
    (tmp_path / "a1.srew").write_text("2 1\n1 5\n")
    (tmp_path / "a1.trew").write_text('# Reward structure "lost"\n# Transition rewards\n2 1\n0 0 1\n')
    (tmp_path / "a2.trew").write_text('# Reward structure: "cost"\n2 2\n0 0 3\n1 0 7\n')
    chain = prism.read(tmp_path / "a.tra")
    assert chain.rewards["lost"].rate.tolist() == [0, 5]
    assert chain.rewards["lost"].self_loops.tolist() == [4, 0]
    assert chain.rewards["cost"].rate.tolist() == [12, 0]
    assert chain.rewards["cost"].impulse.tolist() == [7, 0]
    assert [note for note in chain.notes if "'cost'" in note]
    expected = ctmc.solve(ctmc.Stationary(chain), "gth").expected("cost")
    assert expected == pytest.approx(2 / 3 * 12 + 1 / 3 * 2 * 7, rel=1e-13)


def test_booleans_and_several_structures_beside_another_model(tmp_path):
    (tmp_path / "a.tra").write_text("2 2\n0 1 1 go\n1 0 2\n")
    (tmp_path / "a.sta").write_text("(busy,n)\n0:(false,-3)\n1:(true,4)\n")
    (tmp_path / "a1.tra").write_text("1 0\n")
    (tmp_path / "a1.srew").write_text("1 1\n0 5\n")
    chain = prism.read(tmp_path / "a.tra")
    assert chain.space.states([0, 1]).tolist() == [[0, -3], [1, 4]]
    assert chain.initial.positions.tolist() == [0]
    assert chain.rewards == {}


@pytest.mark.parametrize("name", EXPLICIT)
def test_files_of_an_older_model_are_not_mixed_in(tmp_path, name):
    module, path = MODULES[name], tmp_path / "chain.tra"
    module.write(path, chain_to_carry(43))
    plain = ctmc.Generator.from_matrix([[-1, 1], [2, -2]], initial=0)
    before = {file.name: file.read_bytes() for file in tmp_path.iterdir()}
    with pytest.raises(ctmc.StorageError, match="exists"):
        module.write(path, plain)
    path.unlink()
    with pytest.raises(ctmc.StorageError, match="exists"):
        module.write(path, plain)
    assert {file.name for file in tmp_path.iterdir()} == before.keys() - {"chain.tra"}
    module.write(path, plain, overwrite=True)
    back = module.read(path)
    same_rates(plain, back)
    assert back.rewards == {}
    assert back.size == 2


@pytest.mark.parametrize(("ending", "opened"), [("gz", gzip.open), ("xz", lzma.open)])
def test_compressed(tmp_path, ending, opened):
    chain = chain_to_carry(47)
    drn.write(tmp_path / f"chain.drn.{ending}", chain)
    with opened(tmp_path / f"chain.drn.{ending}", "rb") as file:
        assert file.read(6) == b"@type:"
    same_rates(chain, ctmc.read(tmp_path / f"chain.drn.{ending}"))
    matrix_market.write(tmp_path / "chain.mtx.gz", chain, holds="rates")
    same_rates(chain, ctmc.read(tmp_path / "chain.mtx.gz"))


def test_first_line_tells_the_tool(tmp_path):
    chain = chain_to_carry(53)
    for name in EXPLICIT:
        MODULES[name].write(tmp_path / f"{name}.tra", chain)
        same_rates(chain, tra.read(tmp_path / f"{name}.tra"))
        same_rates(chain, ctmc.read(tmp_path / f"{name}.tra"))
        for other in EXPLICIT:
            if other != name:
                with pytest.raises(ctmc.StorageError, match=r"\.tra, line 1: "):
                    MODULES[other].read(tmp_path / f"{name}.tra")


FAULTS = {
    "prism": [
        ("2 2\n0 1 1\n1 0 2\n0 1 3\n", "line 4: '0 1' stands after a later one"),
        ("2 2\n0 1 1\n1 0 2\n1 1 3\n", "line 4: a transition beyond the 2"),
        ("2 3\n0 1 1\n\n1 0 2", "line 4: the file ends after 2 transitions, but 3"),
        ("2 3\n0 1 1\n0 1 1\n1 0 2", "line 3: the transition from 0 to 1 stands there twice"),
        ("2 2\n0 1 1\n1 2 1\n", "line 3: the state is 2; allowed is 0 to 1"),
        ("2 2\n0 1 1\n1 -1 1\n", "line 3: it is '1 -1 1'; allowed is 'i j rate'"),
        ("2 2\n0 1 0\n1 0 1\n", "line 2: the rate is 0; allowed are positive"),
        ("2 2\n0 1 1\n1 0 -0.5\n", "line 3: the rate is -0.5;"),
        ("2 2\n0 1 1\n1 0 nan\n", "line 3: the rate is nan;"),
        ("2 2\n0 1 1\n1 0 1e400\n", "line 3: the rate is 1e400;"),
        ("2 2\n0 1 1\n1 0 1_0\n", "line 3: it is '1 0 1_0'"),
        ("2 2\n0 1 1\n1 0 1 a b\n", "line 3: it is '1 0 1 a b'"),
        ("2 2\n0 1 1\n1 0.5:0\n", "line 3: it is '1 0.5:0'; allowed is 'i j rate'"),
        ("2 2 2\n0 0 1 1\n1 0 0 2\n", "line 1: three numbers"),
        ("2 100000000000000\n0 1 1\n", "line 1: 100,000,000,000,000 transitions are announced"),
        ("0 0\n", "line 1: the number of states is 0"),
    ],
    "storm": [
        ("2 2\n0 1 1\n1 0 2\n", "line 1: two numbers head a file of PRISM"),
        ("ctmc\n0 1 1\n0 1 2\n", "line 3: '0 1' stands there twice"),
        ("ctmc\n0 2 1\n0 1 2\n", "line 3: '0 1' stands after a later one"),
        ("ctmc\n0 1 1\n1 0\n", "line 3: it is '1 0'"),
        ("ctmc\n0 1 1\n1 0 \n", "line 3: it is '1 0'"),
        ("ctmc\n", "line 1: the file has no transitions"),
    ],
    "mrmc": [
        ("STATES 2\nTRANSITIONS 1\n0 1 1\n", "line 3: the state is 0; allowed is 1 to 2"),
        ("STATES 2\nTRANSITIONS 1\n1 3 1\n", "line 3: the state is 3; allowed is 1 to 2"),
        ("STATES 2\n1 2 1\n", "line 2: it is '1 2 1'; allowed is 'TRANSITIONS' and a number"),
    ],
    "drn": [
        ("@type: CTMC\n@model\n", "line 2: '@nr_states' is missing"),
        ("@type: CTMC\n@nr_states\n1\n@model\nstate 0 !0\nstate 1 !0\n", "line 6: a state beyond the 1"),
        ("@type: CTMC\n@nr_states\n2\n@model\nstate 0 !0\n", "line 5: the file ends after 1 states, but 2"),
        ("@type: CTMC\n@nr_states\n2\n@model\nstate 0 !1\naction 0\n 2 : 1\n", "line 7: the state is 2; allowed is 0 to 1"),
        ("@type: CTMC\n@nr_states\n2\n@model\nstate 0 !1\naction 0\n 1 : -1\n", "line 7: the rate is -1"),
        ("@type: CTMC\n@nr_states\n2\n@model\nstate 0 !1\naction 0\n 1 : x\n", "line 7: the rate is x"),
        ("@type: CTMC\n@nr_states\n1\n@model\nstate 0 !0 [1]\n", "line 5: the rewards are"),
        ("@type: CTMC\n@nr_states\n2\n@model\nstate 1 !0\n", "line 5: the state is"),
    ],
    "matrix_market": [
        ("%%MatrixMarket matrix coordinate real general\n2 2 1\n0 1 1\n", "line 3: the state is 0; allowed is 1 to 2"),
        ("%%MatrixMarket matrix coordinate real general\n2 2 2\n1 2 1\n1 2 1\n", "entry 1 2 twice"),
        ("%%MatrixMarket matrix coordinate real general\n2 2 4000000000000\n1 2 1\n", "line 2: 4,000,000,000,000 entries"),
        ("%%MatrixMarket matrix coordinate real general\n2 2\n", "line 2: the size is '2 2'"),
        ("2 2 1\n1 2 1\n", "line 1: the banner"),
        ("%%MatrixMarket matrix coordinate real general\n2 2 2\n1 2 1\n", "line 3: the file ends after 1 entries, but 2"),
    ],
}  # fmt: skip


@pytest.mark.parametrize(("name", "text", "sentence"), [(name, *fault) for name in FAULTS for fault in FAULTS[name]])
def test_faults_name_their_line(tmp_path, name, text, sentence):
    path = tmp_path / f"chain.{ENDINGS[name]}"
    path.write_text(text)
    with pytest.raises(ctmc.StorageError, match=sentence) as caught:
        MODULES[name].read(path)
    assert "\n" not in str(caught.value)
    path.write_text(text.replace("\n", "\r\n"))
    with pytest.raises(ctmc.StorageError, match=sentence):
        MODULES[name].read(path)


@pytest.mark.parametrize(
    ("name", "text", "sentence"),
    [
        ("prism", f"{2**62} 1\n0 1 1\n", "memory limit"),
        ("mrmc", f"STATES {2**62}\nTRANSITIONS 1\n1 2 1\n", "memory limit"),
        ("storm", f"ctmc\n0 {2**52} 1\n", "memory limit"),
        ("storm", "dtmc\n0 1 1\n", "kind dtmc; allowed is ctmc"),
        ("drn", f"@type: CTMC\n@nr_states\n{2**58}\n@model\n", "memory limit"),
        ("drn", "@type: DTMC\n@nr_states\n1\n@model\n", "type DTMC; allowed is CTMC"),
        ("drn", "@type: CTMC\n@parameters\np q\n", "parameters p q"),
        ("drn", "@type: CTMC\n@value_type: rational\n", "has values rational; allowed is double"),
        ("drn", "@type: CTMC\n@nr_states\n1\n@nr_choices\n2\n@model\n", "2 choices in 1 states"),
        (
            "drn",
            "@type: CTMC\n@nr_states\n2\n@model\nstate 0 !2\naction 0\n1 : 1\nstate 1 !0\n",
            "exit rate 2.0, but its rates sum to 1.0",
        ),
        ("matrix_market", f"%%MatrixMarket matrix coordinate real general\n{2**62} {2**62} 1\n1 2 1\n", "memory limit"),
        ("matrix_market", "%%MatrixMarket matrix coordinate pattern general\n2 2 1\n1 2\n", "pattern; allowed is real"),
        ("matrix_market", "%%MatrixMarket matrix coordinate complex general\n2 2 1\n1 2 1 1\n", "complex"),
        ("matrix_market", "%%MatrixMarket matrix coordinate real skew-symmetric\n2 2 1\n2 1 1\n", "skew-symmetric"),
        ("matrix_market", "%%MatrixMarket matrix coordinate real general\n2 3 1\n1 2 1\n", "2 x 3"),
        (
            "matrix_market",
            "%%MatrixMarket matrix coordinate real general\n2 2 1\n1 2 -1\n",
            "rate from state 0 to state 1",
        ),
    ],
)
def test_what_is_no_chain_or_too_large(tmp_path, name, text, sentence):
    path = tmp_path / f"chain.{ENDINGS[name]}"
    path.write_text(text)
    with pytest.raises(ctmc.ModelError, match=re.escape(sentence)):
        MODULES[name].read(path)


def test_symmetric_rates(tmp_path):
    (tmp_path / "a.mtx").write_text("%%MatrixMarket matrix coordinate real symmetric\n3 3 2\n2 1 1.5\n3 2 .25\n")
    chain = matrix_market.read(tmp_path / "a.mtx")
    assert chain.to_scipy().toarray().tolist() == [[-1.5, 1.5, 0], [1.5, -1.75, 0.25], [0, 0.25, -0.25]]
    assert chain.notes == ("Read from MatrixMarket: rates without a diagonal.",)


@every_format
def test_line_ends_and_blank_lines(tmp_path, name):
    chain = chain_to_carry(59)
    path = tmp_path / f"chain.{ENDINGS[name]}"
    MODULES[name].write(path, chain)
    for change in (lambda text: text.replace("\n", "\r\n"), lambda text: text.rstrip()):
        for file in tmp_path.iterdir():
            file.write_bytes(change(file.read_bytes().decode()).encode())
        same_rates(chain, MODULES[name].read(path))


@every_format
def test_one_long_line(tmp_path, name):
    """A gigabyte without a line end, which takes no room on the disk, is refused before much of it is read."""
    head = {"prism": b"2 2\n0 1 ", "storm": b"ctmc\n0 1 ", "mrmc": b"STATES 2\nTRANSITIONS 1\n1 2 "}
    head |= {"drn": b"@type: CTMC\n", "matrix_market": b"%%MatrixMarket matrix coordinate real general\n2 2 1\n1 2 "}
    for start in (head[name], b""):
        path = tmp_path / f"chain.{ENDINGS[name]}"
        with open(path, "wb") as file:
            file.write(start)
            file.truncate(1 << 30)
        begin = time.process_time()
        with pytest.raises(ctmc.StorageError, match="line"):
            MODULES[name].read(path)
        assert time.process_time() - begin < 2


@pytest.mark.parametrize("opened", [gzip.open, lzma.open])
@pytest.mark.parametrize("filler", [b" ", b"//\n", b"@parameters\n\n"])
def test_compressed_bombs(tmp_path, opened, filler):
    with opened(
        tmp_path / "chain.drn", "wb", **({"compresslevel": 1} if opened is gzip.open else {"preset": 0})
    ) as file:
        file.write(b"@type: CTMC\n")
        for _ in range(60):
            file.write(filler * (10**6 // len(filler)))
    with limited_memory("20MiB"), pytest.raises(ctmc.StorageError, match=r"line|40 MiB once it is decompressed"):
        drn.read(tmp_path / "chain.drn")


@every_format
def test_mutations(tmp_path, name):
    """400 damaged files: the same content, another chain that is one, or one sentence."""
    module, path = MODULES[name], tmp_path / f"chain.{ENDINGS[name]}"
    module.write(path, chain_to_carry(61, states=12))
    whole = {file: file.read_bytes() for file in tmp_path.iterdir()}
    files = sorted(whole)
    sentences = 0
    for number in range(400):
        victim = files[number % len(files)]
        victim.write_bytes(mutated(whole[victim], 1000 + number))
        try:
            chain = module.read(path)
        except (ctmc.StorageError, ctmc.ModelError) as error:
            sentences += 1
            chain, sentence = None, str(error)
        else:
            sentence = "."
        assert "\n" not in sentence
        assert sentence.endswith(".")
        assert chain is None or (isinstance(chain, ctmc.Generator) and (chain.rates > 0).all())
        victim.write_bytes(whole[victim])
    assert sentences > 100


@given(
    st.lists(
        st.one_of(
            st.floats(allow_nan=False, allow_infinity=False).map(repr),
            st.from_regex(r"[0-9]{1,22}(\.[0-9]{0,22})?([eE][+-]?[0-9]{1,3})?", fullmatch=True),
            st.from_regex(r"[+-]?\.[0-9]{1,18}", fullmatch=True),
        ),
        min_size=1, max_size=60,
    )
)  # fmt: skip
@settings(max_examples=60, deadline=None)
def test_numbers_are_those_of_python(tmp_path_factory, words):
    words = [word for word in words if np.isfinite(float(word))]
    path = tmp_path_factory.mktemp("numbers") / "numbers.txt"
    path.write_text("".join(f"{k} {word}\n" for k, word in enumerate(words)))
    with TextFile(path) as file:
        found = [value.hex() for block in file.blocks(Layout(1, "reward")) for value in block.values.tolist()]
    assert found == [float(word).hex() for word in words]


def test_many_numbers_are_those_of_python(tmp_path):
    """17 digits over the whole range, subnormals, and the middle between two doubles, which needs every digit."""
    rng = np.random.default_rng(67)
    digits, powers = rng.integers(10**16, 10**17, 100_000), rng.integers(-340, 292, 100_000)
    words = [f"{d}e{p}" for d, p in zip(digits.tolist(), powers.tolist(), strict=True)]
    doubles = rng.integers(2**52, 2**53, 20_000).tolist()
    words += (
        [f"{2 * d + 1}e0" for d in doubles] + [f"{d}.5" for d in doubles] + [f"{d}.50000000000000001" for d in doubles]
    )
    words += [repr(5e-324 * k) for k in range(1, 2000)] + ["2.4703282292062327e-324", "1.7976931348623157e308"]
    (tmp_path / "numbers.txt").write_text("\n".join(f"{k} {word}" for k, word in enumerate(words)))
    with TextFile(tmp_path / "numbers.txt") as file:
        found = np.concatenate([block.values for block in file.blocks(Layout(1, "reward"))])
    np.testing.assert_array_equal(found, [float(word) for word in words])


def test_blocks_join(tmp_path):
    """A file of several blocks: every line once, numbered, whatever stands where blocks meet."""
    count = 150_000
    rates = np.random.default_rng(71).random(count) + 0.1
    text = "ctmc\n" + "".join(f"{k} {k + 1} {rate!r}\n" for k, rate in enumerate(rates.tolist()))
    (tmp_path / "chain.tra").write_text(text)
    assert len(text) > 4 << 20
    np.testing.assert_array_equal(storm.read(tmp_path / "chain.tra").rates, rates)
    (tmp_path / "chain.tra").write_text(text + "5 6 1\n")
    with pytest.raises(ctmc.StorageError, match=f"line {count + 2}: '5 6' stands after a later one"):
        storm.read(tmp_path / "chain.tra")
