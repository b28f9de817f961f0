"""Wrong arguments of every public function: one sentence that names the argument, shows the value, and is one line.

`KINDS` are values that no argument means; `CALLS` are public functions with one argument left open.  Every pair is a case:
it must raise an error of ours, whose message tells what is wrong, or be one of the kinds that the call takes.
"""

import itertools

import numpy as np
import pytest
import scipy.sparse as sparse

import ctmc
from ctmc.errors import shown
from ctmc.model.distribution import Distribution
from ctmc.model.lumpability import coarsest_partition, lumpability, lumped
from ctmc.model.phase_type import PhaseType
from ctmc.model.predicate import parse
from ctmc.model.state_space import Lattice, Listed, Variable


class Unspeakable:
    """What cannot even be written down."""

    def __repr__(self):
        raise RuntimeError("no words")


class TwoLines:
    """What would break a sentence, and color the terminal."""

    def __repr__(self):
        return "one\ntwo \x1b[31m"


KINDS = {
    "none": None,
    "true": True,
    "text": "abc",
    "number as text": "1.5",
    "bytes": b"abc",
    "nan": float("nan"),
    "minus one": -1,
    "minus a half": -0.5,
    "zero": 0,
    "one and a half": 1.5,
    "huge": 10**5000,
    "complex": 1j,
    "empty": [],
    "ragged": [[1], [2, 3]],
    "nothings": [None],
    "texts": ["a"],
    "long": np.arange(5000.0) - 7,
    "empty mapping": {},
    "mapping": {"a": 1},
    "set": {1.0},
    "object": object(),
    "complex numbers": np.array([1j, 2, 3]),
    "objects": np.array([None, 1, 2], dtype=object),
    "dates": np.array(["2020-01-01"], dtype="M8[D]"),
    "cube": np.ones((2, 2, 2)),
    "masked": np.ma.masked_array([0.5, 0.5, 0.3], mask=[0, 0, 1]),
    "masked whole": np.ma.masked_array([0, 1, 2], mask=[0, 0, 1]),
    "sparse": sparse.coo_matrix([[1.0, 1.0, 0.0]]),
    "records": np.zeros(3, dtype=[("a", float)]),
    "undecodable": "a\udcffb",
    "control": "a\x1b[31m\nb",
    "very long": "x" * 900,
    "unspeakable": Unspeakable(),
    "two lines": TwoLines(),
}
TEXTS = {"text", "number as text", "undecodable", "control", "very long"}
"""Text is a name, a condition or a path wherever it is allowed: it may be unknown, and then the message shows it."""

Q = [[-1.0, 1.0, 0.0], [2.0, -3.0, 1.0], [0.0, 4.0, -4.0]]
CHAIN = ctmc.Generator.from_matrix(Q, initial=(0,))
QUEUE = ctmc.QBD.from_blocks([[1.0]], [[-3.0]], [[2.0]])
SERVERS = ctmc.LevelDependentQBD(lambda k: (None if k == 0 else [[2.0 * k]], [[-1.0 - 2 * k]], [[1.0]]))
BUILT = ctmc.build("birth_death", births=[1.0, 1.0], deaths=[2.0, 2.0])
STATIONARY = ctmc.Stationary(CHAIN)
ANSWER = ctmc.solve(STATIONARY, "gth")
LEVELS = ctmc.solve(ctmc.Stationary(QUEUE)).value
KEPT = ctmc.solve(ctmc.Stationary(SERVERS)).value
PASSAGE = ctmc.solve(ctmc.FirstPassage(CHAIN, "state >= 2", (0,)))
BUILT_ANSWER = ctmc.solve(ctmc.Stationary(BUILT), "gth")
ERLANG = PhaseType([1.0, 0.0], [[0.0, 1.0], [0.0, 0.0]], [0.0, 1.0])
ESTIMATE = ctmc.simulate(CHAIN, horizon=5.0, replications=3, seed=20263)
_numbers = itertools.count()


def _with(function, field, **others):
    """Return a call of a function with one argument left open."""
    return lambda value: function(**{**others, field: value})


def _mean_of(**reward):
    return ctmc.solve(ctmc.Stationary(CHAIN.replace(rewards={"r": ctmc.Reward(**reward)})), "gth").expected("r")


def _passage(**given):
    problem = ctmc.FirstPassage(**{"model": CHAIN, "target": "state >= 2", **given})
    return problem.target_states, problem.avoided_states


def _entered(context):
    with context:
        pass


def _saved(**given):
    return ctmc.save(**{"path": f"{next(_numbers)}.h5", "model": CHAIN, **given})


def _calls():
    """Yield (name, words of which one must stand in the message, kinds that are taken, call)."""
    one = {"zero"}
    time = {"zero", "one and a half"}
    shared = {"model": CHAIN, "reward": "state", "initial": (0,)}
    for kind, settings in (
        (ctmc.Stationary, {"model": CHAIN}),
        (ctmc.Transient, {"model": CHAIN, "initial": (0,), "times": [1.0]}),
        (ctmc.AccumulatedReward, {**shared, "times": [1.0]}),
        (ctmc.DiscountedReward, {**shared, "discount": 0.5}),
        (ctmc.FirstPassage, {"model": CHAIN, "target": "state >= 2", "initial": (0,)}),
    ):
        name = kind.__name__
        yield f"{name}(model)", ["model is"], set(), _with(kind, "model", **settings)
        yield f"{name}(tolerance)", ["tolerance is"], set(), _with(kind, "tolerance", **settings)
        yield f"{name}(initial)", ["initial", "state"], {"none", "zero"}, _with(kind, "initial", **settings)
        if "times" in settings:
            yield f"{name}(times)", ["times"], time, _with(kind, "times", **settings)
        if "reward" in settings:
            yield f"{name}(reward)", ["reward"], set(), _with(kind, "reward", **settings)
            yield f"{name}(moments)", ["moments is"], set(), _with(kind, "moments", **settings)
        if "discount" in settings:
            yield f"{name}(discount)", ["discount is"], {"one and a half"}, _with(kind, "discount", **settings)
    yield "FirstPassage.target", ["target", "condition", "reward"], set(), _with(_passage, "target")
    yield "FirstPassage.avoid", ["avoid", "condition", "reward"], {"none"}, _with(_passage, "avoid")

    make = ctmc.Generator.from_matrix
    for field, taken in (
        ("initial", {"none", "zero"}),
        ("labels", {"empty mapping"}),
        ("rewards", {"empty mapping"}),
        ("measures", {"none"}),
        ("distributions", {"empty mapping"}),
        ("notes", {"empty", "texts"}),
        ("recipe", {"none"}),
        ("content_hash", {"none", *TEXTS}),
        ("guess", {"none"}),
    ):
        words = [field, field.rstrip("s"), "state"]
        yield f"Generator.from_matrix({field})", words, taken, _with(make, field, matrix=Q)
        yield f"Generator.replace({field})", words, taken, _with(CHAIN.replace, field)
    yield "Generator.from_matrix(matrix)", ["matrix", "row"], {"zero"}, make
    yield "Generator.from_matrix(space)", ["space is"], {"none"}, _with(make, "space", matrix=Q)
    yield (
        "Generator(exit_rates)",
        ["exit_rates is", "exit rate of"],
        {"none"},
        lambda v: ctmc.Generator(CHAIN.space, CHAIN.transitions, v),
    )
    yield "Generator(space)", ["space is"], set(), lambda v: ctmc.Generator(v, CHAIN.transitions)
    yield "Generator(transitions)", ["transitions is"], set(), lambda v: ctmc.Generator(CHAIN.space, v)
    ends = {"sources": [0, 1, 2], "targets": [1, 2, 0], "rates": [1.0, 2.0, 3.0], "space": Lattice((2,))}
    for field in ends:
        yield (
            f"Generator.from_transitions({field})",
            [field],
            set(),
            _with(ctmc.Generator.from_transitions, field, **ends),
        )
    yield "label", ["label 'up'"], set(), lambda v: make(Q, labels={"up": v})
    yield "reward", ["reward 'r'"], set(), lambda v: make(Q, rewards={"r": v})
    yield "reward rate", ["reward 'r'"], set(), _with(_mean_of, "rate")
    yield "reward impulse", ["impulse of reward 'r'", "reward 'r'"], set(), _with(_mean_of, "impulse", rate=None)
    yield (
        "reward self_loops",
        ["self_loops of reward 'r'", "reward 'r'"],
        set(),
        _with(_mean_of, "self_loops", rate=None),
    )
    yield "what a reward returns", ["reward 'r'"], set(), lambda v: _mean_of(rate=lambda states: v)
    yield (
        "what an impulse returns",
        ["reward 'r'"],
        set(),
        lambda v: _mean_of(rate=None, impulse=lambda ends, starts: v),
    )
    yield "what a target returns", ["target"], set(), lambda v: _passage(target=lambda states: v)
    yield "forward", ["vector"], set(), CHAIN.forward
    yield "backward", ["vector"], set(), CHAIN.backward
    yield "out", ["out is"], {"none"}, lambda v: CHAIN.forward([1.0, 0.0, 0.0], v)
    yield "restricted", ["positions"], set(), CHAIN.restricted
    yield "name_of", ["position"], {"zero"}, CHAIN.name_of
    yield "with_rates", ["births"], set(), _with(BUILT.with_rates, "births")
    yield "probabilities of initial", ["initial"], {"true"}, lambda v: ctmc.Stationary(CHAIN, initial={(0,): v})
    yield (
        "Distribution(positions)",
        ["initial"],
        set(),
        lambda v: ctmc.Stationary(CHAIN, initial=Distribution(v, np.ones(1))),
    )
    yield (
        "Distribution(probabilities)",
        ["initial"],
        set(),
        lambda v: ctmc.Stationary(CHAIN, 0.1, Distribution(np.array([0]), v)),
    )

    box, listed = Lattice((2, 3)), Listed(np.array([[5, 0], [0, 3]]))
    yield "Lattice(limits)", ["limits"], set(), Lattice
    yield "Lattice(total)", ["total is"], {"none", *one}, lambda v: Lattice((2, 3), v)
    yield "Lattice(variables)", ["variables is"], {"empty"}, lambda v: Lattice((2, 3), variables=v)
    yield "Lattice(classes)", ["classes is"], {"empty"}, lambda v: Lattice((2, 3), classes=v)
    yield "Listed(table)", ["table of states is"], set(), Listed
    yield "Listed(variables)", ["variables is"], {"empty"}, lambda v: Listed([[1, 2]], v)
    yield "Variable(name)", ["name of a variable"], TEXTS, Variable
    yield (
        "Variable(length)",
        ["length of variable 'x'", "the variables"],
        {"none"},
        lambda v: Lattice((2,), variables=(Variable("x", v),)),
    )
    for name, space in (("Lattice", box), ("Listed", listed)):
        yield f"{name}.index", ["state"], set(), space.index
        yield f"{name}.states", ["position"], {"zero", "empty"}, space.states
    yield "parse", ["condition", "number", "name"], {"text", "number as text", "very long"}, parse
    parts = [0, 0, 1]
    yield "lumpability(part_of)", ["part_of"], set(), lambda v: lumpability(CHAIN, v)
    yield "lumpability(tolerance)", ["tolerance is"], {"zero"}, lambda v: lumpability(CHAIN, parts, tolerance=v)
    yield "lumped(part_of)", ["part_of"], set(), lambda v: lumped(CHAIN, v)
    yield "coarsest_partition(part_of)", ["part_of"], {"none"}, lambda v: coarsest_partition(CHAIN, v)

    blocks = {"up": [[1.0]], "local": [[-3.0]], "down": [[2.0]]}
    steps = {"up": [[0.1]], "local": [[0.6]], "down": [[0.3]]}
    for field in blocks:
        yield (
            f"QBD.from_blocks({field})",
            ["block", "row"],
            {"true"} if field == "up" else set(),
            _with(ctmc.QBD.from_blocks, field, **blocks),
        )
        yield (
            f"QBD.from_discrete_time({field})",
            ["block", "row"],
            set(),
            _with(ctmc.QBD.from_discrete_time, field, **steps),
        )
    for field, taken in (
        ("boundary", {"none"}),
        ("phases", {"none"}),
        ("variables", {"none"}),
        ("rewards", {"empty mapping"}),
        ("measures", {"none"}),
        ("notes", {"empty", "texts"}),
        ("checks", {"none"}),
    ):
        yield (
            f"QBD.from_blocks({field})",
            [field, field.rstrip("s")],
            taken,
            _with(ctmc.QBD.from_blocks, field, **blocks),
        )
    yield (
        "QBD.from_discrete_time(boundary)",
        ["boundary"],
        {"none"},
        _with(ctmc.QBD.from_discrete_time, "boundary", **steps),
    )
    yield "a boundary level", ["boundary level 0"], set(), lambda v: ctmc.QBD.from_blocks(**blocks, boundary=[v])
    yield "QBD.truncate(levels)", ["levels is", "the truncation needs"], set(), QUEUE.truncate
    yield "QBD.truncate(last)", ["last is", "the last level"], {"none"}, lambda v: QUEUE.truncate(4, v)
    yield "QBD.level_states", ["level is"], {"zero"}, QUEUE.level_states
    yield "QBD.replace(rewards)", ["reward"], {"empty mapping"}, _with(QUEUE.replace, "rewards")
    yield (
        "QBD.censored_boundary",
        ["g is", "g has"],
        {"zero", "one and a half", "true", "nan", "minus one", "minus a half"},
        QUEUE.censored_boundary,
    )
    yield "MatrixGeometric.level", ["level is"], one, LEVELS.level
    yield "MatrixGeometric.tail", ["level is"], one, LEVELS.tail
    yield "MatrixGeometric.moment", ["order is"], {"zero"}, LEVELS.moment
    yield "MatrixGeometric.quantile", ["probability is"], {"zero"}, LEVELS.quantile
    yield "MatrixGeometric.mass_from", ["weights"], set(), LEVELS.mass_from
    yield "LevelDependentQBD(blocks)", ["blocks is"], set(), ctmc.LevelDependentQBD
    yield "LevelDependentQBD(phases)", ["phases is"], {"none"}, lambda v: ctmc.LevelDependentQBD(SERVERS.blocks, v)
    yield (
        "LevelDependentQBD(variables)",
        ["variables is"],
        set(),
        lambda v: ctmc.LevelDependentQBD(SERVERS.blocks, variables=v),
    )
    yield "what blocks return", ["blocks(0)", "level 0"], set(), lambda v: ctmc.LevelDependentQBD(lambda k: v).level(0)
    yield "LevelDependentQBD.replace(rewards)", ["reward"], {"empty mapping"}, _with(SERVERS.replace, "rewards")
    yield "LevelDistribution.level", ["level is"], {"zero"}, KEPT.level
    yield "LevelDistribution.tail", ["level is"], one, KEPT.tail
    yield "LevelDistribution.quantile", ["probability is"], {"zero"}, KEPT.quantile

    phases = {"initial": [1.0, 0.0], "rates": [[0.0, 1.0], [0.0, 0.0]], "absorption": [0.0, 1.0]}
    for field in (*phases, "atom"):
        yield f"PhaseType({field})", [field], {"zero"} if field == "atom" else set(), _with(PhaseType, field, **phases)
    # an unlimited range of times: those below 0, and very long ones
    yield "PhaseType.cdf", ["time"], {"true", "minus one", "minus a half", "empty", "long", "cube", *time}, ERLANG.cdf
    yield "PhaseType.quantile", ["p "], {"zero", "empty"}, ERLANG.quantile
    yield "PhaseType.moment", ["order is"], set(), ERLANG.moment
    yield "PhaseType.sample(seed)", ["seed is"], one, lambda v: ERLANG.sample(2, v)
    yield "PhaseType.mixture(weights)", ["weights"], set(), lambda v: PhaseType.mixture(v, [ERLANG, ERLANG])
    yield "PhaseType.mixture(parts)", ["parts is", "weights has"], set(), lambda v: PhaseType.mixture([1.0, 1.0], v)

    nothing = {"none"}
    yield "build(name)", ["builder"], set(), ctmc.build
    yield "build(births)", ["births"], {"one and a half"}, lambda v: ctmc.build("birth_death", births=v, deaths=[1.0])
    yield "advise(problem)", ["problem is"], set(), ctmc.advise
    yield "advise(timed)", ["timed is"], {"true"}, lambda v: ctmc.advise(CHAIN, timed=v)
    yield "solve(problem)", ["problem is"], set(), ctmc.solve
    for field, words, taken in (
        ("solver", ["solver"], nothing),
        ("start", ["start"], nothing),
        ("time_limit", ["time_limit is"], {"none", "one and a half"}),
        ("monitor", ["monitor is"], nothing),
        ("check", ["check is"], {"true"}),
        ("certify", ["certificate (certify)"], set()),
        ("checkpoint", ["path is"], nothing | TEXTS),
        ("checkpoint_minutes", ["checkpoint_minutes is"], nothing),
        ("resume", ["resume is"], nothing),
    ):
        yield (
            f"solve({field})",
            words,
            taken,
            _with(ctmc.solve, field, problem=STATIONARY, **({} if field == "solver" else {"solver": "gth"})),
        )
    yield "solve(rewards)", ["reward"], nothing, _with(ctmc.solve, "rewards", problem=STATIONARY, certify="strict")
    run = {"model": CHAIN, "horizon": 5.0, "replications": 2, "seed": 20264}
    for field, words, taken in (
        ("horizon", ["horizon is"], {"one and a half"}),
        ("times", ["times", "horizon"], nothing | time),
        ("seed", ["seed is"], one),
        ("replications", ["replications is"], nothing),
        ("warm_up", ["warm_up is"], nothing | time),
        ("rewards", ["reward"], nothing),
        ("initial", ["initial", "state"], {"none", "zero"}),
        ("target", ["condition", "reward", "target", "number"], nothing),
        ("discount", ["discount is"], {"none", "one and a half"}),
        ("monitor", ["monitor is"], nothing),
        ("threads", ["'threads'"], set()),
    ):
        yield (
            f"simulate({field})",
            words,
            taken,
            lambda v, field=field: ctmc.simulate(
                run["model"], **{k: w for k, w in {**run, field: v}.items() if k != "model"}
            ),
        )
    yield "simulate(model)", ["model is", "builder"], set(), lambda v: ctmc.simulate(v, horizon=5.0, seed=20265)
    inside = {"model": CHAIN, "target": "state >= 2", "initial": (0,)}
    for function in (ctmc.reach_probability, ctmc.expected_time_before, ctmc.quasi_stationary):
        name = function.__name__
        yield f"{name}(model)", ["model is"], set(), _with(function, "model", **inside)
        yield f"{name}(target)", ["target", "condition", "reward", "number"], set(), _with(function, "target", **inside)
        yield f"{name}(initial)", ["initial", "state"], {"none", "zero"}, _with(function, "initial", **inside)
        yield f"{name}(tolerance)", ["tolerance is"], set(), _with(function, "tolerance", **inside)
        if function is not ctmc.quasi_stationary:
            yield f"{name}(solver)", ["solver"], nothing, _with(function, "solver", **inside)
    yield "reach_probability(interval)", ["interval is"], nothing, _with(ctmc.reach_probability, "interval", **inside)
    yield (
        "reach_probability(solver, interval)",
        ["solver"],
        nothing,
        _with(ctmc.reach_probability, "solver", **inside, interval=(0, 1)),
    )
    yield "spectral_gap(model)", ["model is"], set(), ctmc.spectral_gap
    yield "spectral_gap(method)", ["method"], set(), lambda v: ctmc.spectral_gap(CHAIN, method=v)
    yield "spectral_gap(tolerance)", ["tolerance is"], set(), lambda v: ctmc.spectral_gap(CHAIN, tolerance=v)
    yield "mixing_time", ["distance is"], set(), ctmc.spectral_gap(CHAIN).mixing_time
    proof = {"solution": ANSWER, "reward": "state"}
    yield "prove_interval(solution)", ["solution is"], set(), _with(ctmc.prove_interval, "solution", **proof)
    yield "prove_interval(reward)", ["reward"], set(), _with(ctmc.prove_interval, "reward", **proof)
    yield "prove_interval(index)", ["index"], nothing, _with(ctmc.prove_interval, "index", **proof)
    yield (
        "prove_interval(largest_products)",
        ["largest_products is"],
        set(),
        _with(ctmc.prove_interval, "largest_products", **proof),
    )
    yield "bias(source)", ["source is"], set(), lambda v: ctmc.bias(v, "state")
    yield "bias(reward)", ["reward"], set(), lambda v: ctmc.bias(ANSWER, v)
    yield "bias(tolerance)", ["tolerance is"], set(), lambda v: ctmc.bias(ANSWER, "state", tolerance=v)
    yield (
        "bias(largest_products)",
        ["largest_products is"],
        set(),
        lambda v: ctmc.bias(ANSWER, "state", largest_products=v),
    )
    slope = {"solution": BUILT_ANSWER, "reward": "jobs", "parameter": "births"}
    yield "sensitivity(solution)", ["source is"], set(), _with(ctmc.sensitivity, "solution", **slope)
    yield "sensitivity(reward)", ["reward"], set(), _with(ctmc.sensitivity, "reward", **slope)
    yield "sensitivity(parameter)", ["parameter"], nothing, _with(ctmc.sensitivity, "parameter", **slope)
    yield (
        "sensitivity(build)",
        ["build"],
        set(),
        _with(ctmc.sensitivity, "build", **slope, parameters={"births": [1.0, 1.0]}),
    )
    yield "sensitivity(tolerance)", ["tolerance is"], set(), _with(ctmc.sensitivity, "tolerance", **slope)
    yield "Solution.expected", ["reward"], set(), ANSWER.expected
    yield "Solution.expectations", ["names is", "reward"], {"empty"}, ANSWER.expectations
    yield "Solution.marginal", ["reward"], set(), ANSWER.marginal
    yield "Solution.marginal(index)", ["index"], nothing, lambda v: ANSWER.marginal("state", v)
    yield "Solution.probability", ["condition", "reward", "number"], set(), ANSWER.probability
    yield "Solution.at", ["positions"], {"empty"}, ANSWER.at
    yield "Solution.distribution", ["distribution"], set(), ANSWER.distribution
    yield (
        "PassageSolution.cdf",
        ["times"],
        {"true", "minus one", "minus a half", "empty", "long", "cube", *time},
        PASSAGE.cdf,
    )
    yield (
        "PassageSolution.density",
        ["times"],
        {"true", "minus one", "minus a half", "empty", "long", "cube", *time},
        PASSAGE.density,
    )
    yield "PassageSolution.quantile", ["p "], {"true", "zero", "empty", "cube"}, PASSAGE.quantile
    yield "PassageSolution.reached_by", ["times"], time, PASSAGE.reached_by
    yield "Estimate.interval", ["name is", "measure"], set(), ESTIMATE.interval
    known = {"title": "t", "run": "r", "replications": 3, "warm_up": 0.0, "seed": 20266}
    yield "Estimate.from_samples", ["samples"], {"empty mapping"}, lambda v: ctmc.Estimate.from_samples(v, **known)
    yield (
        "Estimate.from_samples, one",
        ["samples of 'x'"],
        {"long"},
        lambda v: ctmc.Estimate.from_samples({"x": v}, **known),
    )
    yield (
        "Estimate.from_samples(confidence)",
        ["confidence is"],
        set(),
        lambda v: ctmc.Estimate.from_samples({"x": [1.0, 2.0]}, confidence=v, **known),
    )
    yield "Trace(tolerance)", ["tolerance is"], set(), ctmc.Trace
    yield "Checkpoint(path)", ["path is"], TEXTS, ctmc.Checkpoint
    yield "Checkpoint(minutes)", ["minutes is"], time, lambda v: ctmc.Checkpoint("a.h5", v)
    yield "Checkpoint(resume)", ["resume is"], {"true"}, lambda v: ctmc.Checkpoint("a.h5", 1, v)

    yield "save(path)", ["path is", "Cannot write"], TEXTS - {"very long"}, _with(_saved, "path")
    yield "save(model)", ["model"], set(), _with(_saved, "model")
    yield "save(parent)", ["path is", "Cannot read"], nothing, _with(_saved, "parent")
    yield "save(overwrite)", ["overwrite is"], {"true"}, _with(_saved, "overwrite")
    yield "save(progress)", ["progress is"], nothing, _with(_saved, "progress")
    for function in (ctmc.load, ctmc.open, ctmc.read):
        yield (
            f"{function.__name__}(path)",
            ["path is", "Cannot read", "cannot be read", "no known format"],
            set(),
            function,
        )
    yield "verify(path)", ["path is"], TEXTS, ctmc.verify
    yield "open(keep)", ["keep is", "Cannot read"], set(), lambda v: ctmc.open("none.h5", keep=v)
    yield "read(format)", ["format", "none.h5"], set(), lambda v: ctmc.read("none.h5", v)
    yield "write(path)", ["path is", "Cannot write"], set(), lambda v: ctmc.write(v, CHAIN)
    yield "write(model)", ["written as"], set(), lambda v: ctmc.write("a.mtx", v)
    yield "write(format)", ["format"], nothing, lambda v: ctmc.write(f"{next(_numbers)}.mtx", CHAIN, v)
    yield (
        "write(overwrite)",
        ["overwrite is"],
        {"true"},
        lambda v: ctmc.write(f"{next(_numbers)}.npz", CHAIN, overwrite=v),
    )
    for function in (ctmc.forecast, ctmc.structure, ctmc.condensation, ctmc.to_networkx):
        yield function.__name__, ["model is"], set(), function
    yield "from_networkx", ["graph is"], set(), ctmc.from_networkx
    yield "limited_memory", ["memory limit is"], {"none", "number as text"}, lambda v: _entered(ctmc.limited_memory(v))
    yield "limited_threads", ["threads is"], nothing, lambda v: _entered(ctmc.limited_threads(v))
    yield "builder(version)", ["version is"], set(), ctmc.builder
    yield "builder(dress)", ["dress is"], nothing, lambda v: ctmc.builder(1, v)


CALLS = list(_calls())


def _complaint(words, taken, kind, call):
    """Return what is wrong with how a call takes a value of a kind, '' where nothing is."""
    value = KINDS[kind]
    try:
        call(value)
    except ctmc.CTMCError as error:
        text = str(error)
        if kind in taken:
            return f"refused: {text}"
        if not text.isprintable():
            return f"not one line: {text!r}"
        if len(text) > 1300 or "Traceback" in text:
            return f"too long: {text}"
        if not any(word in text for word in words):
            return f"names none of {words}: {text}"
        return "" if "option" in text or _is_shown(value, text) else f"does not show the value: {text}"
    except Exception as error:
        return f"{type(error).__name__}: {error}"
    return "" if kind in taken else "taken"


ABOUT_VALUES = (
    "empty",
    "missing",
    "neither",
    "without",
    "sums to",
    "sum to",
    " has ",
    " have ",
    "very large",
    " shape ",
    "stands where",
    "there are",
    "is ()",
    "No such file",
)
"""Of what is counted, added up or left out, messages tell that in place of the value."""


def _is_shown(value, text):
    """Return whether a message shows a value, or its type, its shape, its first entry, or tells what is wrong with it."""
    parts = [shown(value).strip("'")[:7], type(value).__name__, *ABOUT_VALUES]
    if isinstance(value, float):
        parts.append(f"{value:g}")
    if hasattr(value, "shape"):
        parts.append(str(value.shape))
    parts += [shown(one).strip("'")[:20] for one in np.asarray(value, dtype=object).ravel()[:1]]
    if isinstance(value, dict):
        parts += map(str, value)
    parts += [str(float(value))] if value is True else []
    return any(part in text.replace("\\\\", "\\") for part in parts if part)


@pytest.mark.parametrize(("name", "words", "taken", "call"), CALLS, ids=[entry[0] for entry in CALLS])
@pytest.mark.filterwarnings("error")
def test_wrong_arguments(name, words, taken, call, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    complaints = {kind: _complaint(words, taken, kind, call) for kind in KINDS}
    wrong = "\n".join(f"{kind}: {text}" for kind, text in complaints.items() if text)
    assert not wrong, wrong


def test_the_table_is_long_enough():
    assert len(KINDS) >= 34
    assert len(CALLS) >= 180
    assert all(taken <= KINDS.keys() for _, _, taken, _ in CALLS)
