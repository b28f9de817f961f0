"""Random chains with everything that a file can hold, and files with bytes changed at random."""

import numpy as np

import ctmc
from ctmc.model.distribution import Distribution
from ctmc.model.state_space import Listed, Variable


def random_chain(seed, states=40, impulses=True):
    """A chain with absorbing states, several initial states, labels and rewards with names in several alphabets."""
    rng = np.random.default_rng(seed)
    table = rng.permutation(4 * states)[:states, None] // [1, 3] - [[20, 5]]
    space = Listed(table, (Variable("Länge"), Variable("q", 1)))
    count = 4 * states
    sources, targets = rng.integers(0, states - 2, count), rng.integers(0, states, count)  # nothing leaves the last two
    rates = 10.0 ** rng.uniform(-6, 6, count)
    chain = ctmc.Generator.from_transitions(
        sources, targets, rates, space,
        initial=Distribution(np.array([0, 3, 7]), np.array([0.25, 0.5, 0.25])),
        labels={"full": rng.random(states) < 0.3, "Größe > 3": rng.random(states) < 0.5, "満員": rng.random(states) < 0.5},
    )  # fmt: skip
    rewards = {
        "busy": ctmc.Reward(rng.normal(size=states), "servers at work"),
        "κόστος": ctmc.Reward(rng.random(states)),
    }
    if impulses:
        rewards["jumps"] = ctmc.Reward(rng.random(states), impulse=rng.normal(size=chain.entries))
        rewards["only jumps"] = ctmc.Reward(None, impulse=rng.normal(size=chain.entries))
    return chain.replace(rewards=rewards)


def mutated(data, seed):
    """Bytes changed, cut, doubled or put in at random, one to four times."""
    rng = np.random.default_rng(seed)
    data = bytearray(data)
    for _ in range(rng.integers(1, 5)):
        kind, place = rng.integers(0, 5), int(rng.integers(0, max(len(data), 1)))
        if kind == 0:
            data[place : place + 1] = bytes([rng.integers(0, 256)])
        elif kind == 1:
            data[place : place + 8] = rng.bytes(8)
        elif kind == 2:
            del data[place:]
        elif kind == 3:
            data[place : place + 8] = b"\xff" * 8
        else:
            end = place + int(rng.integers(1, 600))
            data[place:place] = data[place:end]
    return bytes(data)


def check_mutations(read, write, path, seed, count=300):
    """Whatever is done to a file: a model or one sentence, nothing else."""
    write(path, random_chain(7, states=12))
    whole = path.read_bytes()
    outcomes = {"model": 0, "sentence": 0}
    for number in range(count):
        path.write_bytes(mutated(whole, seed + number))
        try:
            model = read(path)
        except (ctmc.StorageError, ctmc.ModelError) as error:
            model, sentence = None, str(error)
            outcomes["sentence"] += 1
        else:
            sentence = "."
            outcomes["model"] += 1
        assert "\n" not in sentence
        assert sentence.endswith(".")
        assert model is None or isinstance(model, ctmc.Generator | ctmc.QBD)
    assert outcomes["sentence"] > count / 10, outcomes


def same_chain(one, other, rtol=0.0):
    """Rates, states, labels, rewards of states and transitions, initial distribution."""
    np.testing.assert_allclose(one.to_scipy().toarray(), other.to_scipy().toarray(), rtol=max(rtol, 1e-15))
    np.testing.assert_array_equal(one.sources, other.sources)
    np.testing.assert_allclose(one.rates, other.rates, rtol=rtol)
    np.testing.assert_array_equal(one.space.states(np.arange(one.size)), other.space.states(np.arange(other.size)))
    assert one.space.variables == other.space.variables
    assert list(one.labels) == list(other.labels)
    for name, member in one.labels.items():
        np.testing.assert_array_equal(member, other.labels[name])
    assert list(one.rewards) == list(other.rewards)
    for name, reward in one.rewards.items():
        for field in ("rate", "impulse"):
            ours, theirs = getattr(reward, field), getattr(other.rewards[name], field)
            assert (ours is None) == (theirs is None), (name, field)
            if ours is not None:
                np.testing.assert_array_equal(ours, theirs)
    np.testing.assert_array_equal(one.initial.dense(one.size), other.initial.dense(other.size))
