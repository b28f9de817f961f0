"""QBDs from blocks, their truncations and censored boundaries, and matrix-geometric answers with their certificate."""

import numpy as np
import pytest
from scipy.sparse import coo_array, csr_array

import ctmc
from builders.fork_join import fork_join
from ctmc.certificate import stationary_qbd
from ctmc.model import level_elimination
from ctmc.model.qbd import QBD, MatrixGeometric
from ctmc.solution import Status

UP, LOCAL, DOWN = np.array([[1.0]]), np.array([[-3.0]]), np.array([[2.0]])


def random_queue(seed: int, sizes: tuple[int, ...] = (3, 5, 4), load: float = 0.4) -> QBD:
    """Random dense blocks: boundary levels of these sizes, the last being that of the levels above."""
    rng = np.random.default_rng(seed)
    m = sizes[-1]
    up, down = load * rng.uniform(0.5, 1, (m, m)), rng.uniform(0.5, 1, (m, m))
    repeating = with_diagonal(rng.uniform(0, 3, (m, m)), up, down)
    boundary = []
    for k, size in enumerate(sizes):
        step_down = None if k == 0 else rng.uniform(0, 2, (size, sizes[k - 1]))
        step_up = up if k == len(sizes) - 1 else rng.uniform(0, 1, (size, sizes[k + 1]))
        others = [step_up] if step_down is None else [step_up, step_down]
        boundary.append((step_down, with_diagonal(rng.uniform(0, 2, (size, size)), *others), step_up))
    return QBD.from_blocks(up, repeating, down, boundary)


def with_diagonal(local: np.ndarray, *others: np.ndarray) -> np.ndarray:
    local = local - np.diag(np.diag(local))
    return local - np.diag(local.sum(axis=1) + sum(other.sum(axis=1) for other in others))


def modulated(load: float = 0.5, slow: float = 1.0) -> QBD:
    """Arrivals whose rate switches between two values; service at rate 1."""
    rates = np.array([0.5, 1.5]) * load
    local = slow * np.array([[-1.0, 1.0], [1.0, -1.0]]) - np.diag(rates + 1)
    return QBD.from_blocks(np.diag(rates), local, np.eye(2))


def solved(queue: QBD) -> ctmc.Solution:
    return ctmc.solve(ctmc.Stationary(queue), "logarithmic_reduction")


# ---- blocks -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "form", [lambda block: block.tolist(), csr_array, coo_array, np.asarray], ids=["lists", "csr", "coo", "dense"]
)
def test_blocks_of_any_form_make_the_same_queue(form):
    queue = QBD.from_blocks(form(UP), form(LOCAL), form(DOWN))
    assert (queue.up.toarray(), queue.local.toarray(), queue.down.toarray()) == (UP, LOCAL, DOWN)
    assert queue.drift == -1
    assert queue.boundary_levels == 1
    assert queue.boundary[0].local.toarray() == [[-1.0]]


def test_given_blocks_are_copied():
    block = csr_array(UP)
    queue = QBD.from_blocks(block, LOCAL, DOWN)
    block.data[0] = 7
    assert queue.up.toarray() == UP


def test_an_empty_block_whose_arrays_are_read_only_is_taken():
    # as a file gives it: a boundary level that nothing leaves downwards
    empty = csr_array((1, 1))
    for array in (empty.data, empty.indices, empty.indptr):
        array.flags.writeable = False
    queue = QBD.from_blocks(UP, LOCAL, DOWN, [(None, -UP, UP), (empty, -UP, UP), (DOWN, LOCAL, UP)])
    assert queue.boundary[1].down.nnz == 0


def test_without_boundary_a_step_down_at_level_zero_changes_the_phase_only():
    up, down = np.diag([0.3, 0.6]), np.array([[0.25, 1.0], [0.5, 0.75]])
    local = with_diagonal(np.array([[0.0, 0.1], [0.2, 0.0]]), up, down)
    queue = QBD.from_blocks(up, local, down)
    expected = np.array([[-0.3 - 1.1, 1.1], [0.7, -0.6 - 0.7]])
    np.testing.assert_allclose(queue.boundary[0].local.toarray(), expected, rtol=1e-15)
    assert queue.level_states(0).tolist() == [[0, 0], [0, 1]]
    assert queue.level_states(7).tolist() == [[7, 0], [7, 1]]


def test_very_slow_phases_survive_the_diagonal():
    queue = modulated(slow=1e-17)
    assert queue.boundary[0].local.toarray()[0, 1] == 1e-17
    assert queue.drift == pytest.approx(-0.5, rel=1e-14)


GOOD_BOUNDARY = [(None, [[-1.0]], [[1.0]]), (DOWN, LOCAL, UP)]
BAD = [
    ({"up": [[1.0, 0.0]]}, "block up has shape (1, 2); allowed is (1, 1)"),
    ({"down": np.zeros((2, 1))}, "block down has shape (2, 1)"),
    ({"local": np.zeros((1, 2))}, "block local has shape (1, 2)"),
    ({"up": np.zeros((0, 0)), "local": np.zeros((0, 0)), "down": np.zeros((0, 0))}, "block up has shape"),
    ({"up": [[np.nan]]}, "block up has the entry nan"),
    ({"local": [[-np.inf]]}, "block local has the entry -inf"),
    ({"up": "abc"}, "block up is 'abc'; allowed are dense and sparse matrices"),
    ({"down": np.zeros((1, 1, 1))}, "block down is array([[[0.]]]); allowed are"),
    ({"up": [[-1.0]], "local": [[-1.0]]}, "block up of the repeating part has the rate -1.0 at (0, 0)"),
    ({"local": [[-3.5]]}, "row 0 of the blocks of the repeating part sums to -0.5"),
    ({"boundary": []}, "boundary is empty"),
    ({"boundary": [(None, [[-1.0]])]}, "boundary level 0 is (None, [[-1.0]]); allowed are three"),
    ({"boundary": [(None, [[-1.0]], UP), (DOWN,)]}, "boundary level 1 is (array("),
    ({"boundary": [(DOWN, [[-1.0]], UP)]}, "boundary level 0 has a block down"),
    ({"boundary": [(None, [[-1.0]], [[1.0, 0.0]]), (DOWN, LOCAL, UP)]}, "the blocks of boundary level 0 have shapes"),
    ({"boundary": [(None, [[-1.0]], UP), ([[2.0], [0.0]], LOCAL, UP)]}, "the blocks of boundary level 1 have shapes"),
    ({"boundary": [(None, [[-2.0]], UP)]}, "row 0 of the blocks of boundary level 0 sums to -1"),
    ({"boundary": [(None, [[-1.0]], UP), ([[-2.0]], [[1.0]], UP)]}, "block down of boundary level 1 has the rate -2.0"),
    ({"boundary": [(None, [[-5.0]], [[5.0]])]}, "the last boundary level has 1 phases or an up block of its own"),
    ({"boundary": [(None, [[-1.0, 0], [0, -1]], [[1.0], [1]])]}, "the last boundary level has 2 phases"),
    ({"phases": [[[0]], [[0]]]}, "phases has 2 tables; allowed are 1"),
    ({"phases": [[[0, 1]]]}, "the phases of level 0 have shape (1, 2); allowed is (1, 1)"),
]


@pytest.mark.parametrize(("change", "sentence"), BAD, ids=[sentence[:60] for _, sentence in BAD])
def test_bad_blocks(change, sentence):
    with pytest.raises(ctmc.ModelError) as caught:
        QBD.from_blocks(**{"up": UP, "local": LOCAL, "down": DOWN, **change})
    assert str(caught.value).startswith(sentence)
    assert "\n" not in str(caught.value)


UNKNOWN = {
    "a block of another name": (
        lambda: QBD.from_blocks(UP, LOCAL, DOWN, rewardz={}),
        "'rewardz'; did you mean 'rewards'",
    ),
    "of steps": (
        lambda: QBD.from_discrete_time([[0.2]], [[0.5]], [[0.3]], boundry=[]),
        "'boundry'; did you mean 'boundary'",
    ),
    "of a copy": (lambda: modulated().replace(nodes=()), "'nodes'; did you mean 'notes'"),
    **{
        f"{name} of a copy": (
            lambda name=name: modulated().replace(**{name: getattr(modulated(0.4), name)}),
            f"'{name}'",
        )
        for name in ("up", "local", "down", "boundary", "phases", "variables")
    },
}


@pytest.mark.parametrize("fault", UNKNOWN)
def test_names_that_are_not_known_are_refused(fault):
    """Blocks and states of a copy cannot be others: nobody would look at them again."""
    make, words = UNKNOWN[fault]
    with pytest.raises(ctmc.UnknownNameError, match=f"There is no field of a QBD that may be given here {words}"):
        make()


def test_a_copy_is_checked():
    with pytest.raises(ctmc.ModelError, match="checks is 'none'; allowed is a function"):
        modulated().replace(checks="none")


def test_good_boundary_is_taken():
    assert QBD.from_blocks(UP, LOCAL, DOWN, GOOD_BOUNDARY).boundary_levels == 2


# ---- drift --------------------------------------------------------------------------------------------------------


def test_drift_of_modulated_arrivals():
    assert modulated(load=0.5).drift == pytest.approx(0.5 - 1, rel=1e-14)


def test_drift_is_the_largest_of_several_classes_of_phases():
    rates = np.array([0.5, 0.75])
    queue = QBD.from_blocks(np.diag(rates), -np.diag(rates + 1), np.eye(2))
    assert queue.drift == pytest.approx(-0.25, rel=1e-15)


@pytest.mark.parametrize(("rate", "word"), [(2.0, "zero (null recurrent)"), (2.5, "0.5 per unit of time")])
def test_no_stationary_distribution(rate, word):
    queue = QBD.from_blocks([[rate]], [[-2 - rate]], [[2.0]])
    with pytest.raises(ctmc.UnstableError, match="allowed is a negative one") as caught:
        solved(queue)
    assert word in str(caught.value)


# ---- truncation ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("levels", [3, 4, 70])  # few levels are put together in another way than many
def test_truncation_drops_steps_up_from_the_last_level(levels):
    queue = random_queue(seed=211)
    chain = queue.truncate(levels)
    matrix = chain.to_scipy().toarray()
    assert chain.size == 3 + 5 + 4 * (levels - 2)
    np.testing.assert_allclose(matrix.sum(axis=1), 0, atol=1e-13)
    np.testing.assert_array_equal(matrix[:3, 3:8], queue.boundary[0].up.toarray())
    np.testing.assert_array_equal(matrix[8:12, 3:8], queue.boundary[2].down.toarray())
    last = matrix[-4:, -4:]
    own = queue.local.toarray() if levels > 3 else queue.boundary[2].local.toarray()
    np.testing.assert_allclose(last, own + np.diag(queue.up.sum(axis=1)), rtol=1e-13)
    assert chain.space.states(chain.size - 1).tolist() == [levels - 1, 3]
    assert "cut at" in chain.notes[-1]


def test_truncation_below_the_boundary_is_refused():
    with pytest.raises(ctmc.ModelError, match=r"levels is 2; allowed is a whole number >= 3"):
        random_queue(seed=211).truncate(levels=2)


def test_truncation_beyond_the_memory_is_refused():
    with ctmc.limited_memory("1MiB"), pytest.raises(ctmc.ModelError, match="the truncation needs"):
        random_queue(seed=211).truncate(levels=10_000)


def test_truncation_keeps_rewards_and_measures():
    queue = modulated().replace(
        rewards={"twice": ctmc.Reward(lambda states: 2 * states[:, 0])},
        measures=lambda solution: {"four_times": 2 * solution.expected("twice")},
    )
    finite = ctmc.solve(ctmc.Stationary(queue.truncate(levels=100)), "gth")
    assert finite.measures()["four_times"] == pytest.approx(4 * solved(queue).value.mean_level, rel=1e-9)


# ---- answers ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("seed", [221, 222, 223])
def test_answer_is_that_of_a_long_truncation(seed):
    queue = random_queue(seed)
    solution = solved(queue)
    answer = solution.value
    levels = 60
    chain = queue.truncate(levels)
    finite = ctmc.solve(ctmc.Stationary(chain), "gth")
    ends = np.cumsum([3, 5, *[4] * (levels - 2)])[:-1]
    masses = np.array([part.sum() for part in np.split(finite.value, ends)])
    for k, part in enumerate(np.split(finite.value, ends)[:25]):
        np.testing.assert_allclose(answer.level(k), part, rtol=1e-10)
        assert answer.tail(k) == pytest.approx(masses[k:].sum(), rel=1e-10)
    assert answer.mass == pytest.approx(1, abs=1e-14)
    assert answer.mean_level == pytest.approx(masses @ np.arange(levels), rel=1e-11)
    assert answer.decay_rate == pytest.approx(masses[26] / masses[25], rel=1e-10)
    np.testing.assert_allclose(answer.repeating_phases, finite.value[8:].reshape(-1, 4).sum(axis=0), rtol=1e-11)
    assert solution.expected("level") == pytest.approx(answer.mean_level, rel=1e-12)
    condition = "level >= 2 and phase == 3 or level == 0"
    assert solution.probability(condition) == pytest.approx(finite.probability(condition), rel=1e-11)
    assert solution.probability("level >= 4") == pytest.approx(answer.tail(4), rel=1e-12)
    marginal = solution.marginal("level")
    np.testing.assert_allclose(marginal[:25], masses[:25], rtol=1e-10)
    assert marginal.sum() == pytest.approx(1, abs=1e-14)
    np.testing.assert_allclose(solution.marginal("phase"), finite.marginal("phase"), rtol=1e-11)


def test_sums_over_levels_go_on_until_nothing_is_left():
    load = 0.999  # some 46,000 levels
    solution = solved(QBD.from_blocks([[load]], [[-1 - load]], [[1.0]]))
    assert solution.expected("level") == pytest.approx(load / (1 - load), rel=1e-11)
    assert solution.probability("level >= 0") == pytest.approx(1, abs=1e-13)


@pytest.mark.parametrize("seed", [231, 232])
def test_boundary_watched_alone_has_the_same_proportions(seed):
    queue = random_queue(seed)
    answer = solved(queue).value
    chain = queue.censored_boundary(answer.g)
    pi = ctmc.solve(ctmc.Stationary(chain), "gth").value
    whole = np.concatenate(answer.boundary)
    np.testing.assert_allclose(pi, whole / whole.sum(), rtol=1e-13)
    by_rate = queue.watched_boundary(answer.r @ queue.down)
    np.testing.assert_allclose(by_rate.to_scipy().toarray(), chain.to_scipy().toarray(), rtol=1e-12, atol=1e-14)


@pytest.mark.parametrize("order", [[0, 1], [1, 0]], ids=["last", "first"])
def test_a_boundary_phase_that_is_never_entered_again_has_no_mass(order):
    """The boundary watched alone is reducible then, and has no exchange to look at."""
    local, down = np.array([[-1.0, 0.0], [0.5, -1.5]])[np.ix_(order, order)], np.array([[2.0, 0.0]])[:, order]
    solution = solved(QBD.from_blocks(UP, LOCAL, DOWN, [(None, local, [[1.0], [1.0]]), (down, LOCAL, UP)]))
    assert solution.converged
    np.testing.assert_allclose(solution.value.boundary[0][order], [0.5, 0.0], atol=1e-14)
    np.testing.assert_allclose(solution.value.boundary[1], [0.25], rtol=1e-13)


@pytest.mark.parametrize("ask", [lambda answer: answer.level(-1), lambda answer: answer.tail(-1)])
def test_negative_levels_are_refused(ask):
    with pytest.raises(ctmc.ModelError, match="level is -1; allowed is a whole number >= 0"):
        ask(MatrixGeometric((np.array([0.5]),), np.array([[0.5]])))


def test_summaries():
    solution = solved(modulated())
    assert "mean level" in repr(solution.value)
    assert "boundary levels" in repr(solution.problem.model)
    assert "<table>" in solution.problem.model._repr_html_()


# ---- certificate ----------------------------------------------------------------------------------------------------


def tampered(answer: MatrixGeometric, **changes: object) -> MatrixGeometric:
    parts = {"boundary": answer.boundary, "r": answer.r, "g": answer.g, **changes}
    return MatrixGeometric(**parts)


def test_certificate_takes_a_right_answer_with_and_without_g():
    problem = ctmc.Stationary(random_queue(seed=241))
    answer = solved(problem.model).value
    for given in (answer, tampered(answer, g=None)):
        proof = stationary_qbd(problem, given)
        assert proof.status is Status.CONVERGED
        assert proof.defect < 1e-15


def spoiled_rate_matrix(answer):
    return tampered(answer, r=answer.r * 0.999)


def moved_mass(answer):
    # the total stays 1, but the levels do not balance
    first = answer.boundary[0] + np.array([1e-3, -1e-3, 0])
    return tampered(answer, boundary=(first, *answer.boundary[1:]))


TAMPERED = [
    (lambda answer: answer.r, Status.BREAKDOWN, "not a MatrixGeometric"),
    (lambda answer: tampered(answer, boundary=answer.boundary[:2]), Status.BREAKDOWN, "the answer has 2 levels, not 3"),
    (lambda answer: tampered(answer, r=np.eye(3)), Status.BREAKDOWN, "not a float64 array of shape (4, 4)"),
    (lambda answer: tampered(answer, g=np.eye(3)), Status.BREAKDOWN, "not a float64 array of shape (4, 4)"),
    (lambda answer: tampered(answer, r=answer.r * np.nan), Status.NOT_FINITE, "not finite"),
    (lambda answer: tampered(answer, r=-answer.r), Status.INACCURATE, "R has the entry"),
    (lambda answer: tampered(answer, r=np.eye(4)), Status.INACCURATE, "the spectral radius of R is 1"),
    (spoiled_rate_matrix, Status.INACCURATE, ""),
    (moved_mass, Status.INACCURATE, "the recomputed defect"),
    (
        lambda answer: tampered(answer, boundary=tuple(1.001 * part for part in answer.boundary)),
        Status.INACCURATE,
        "the total probability is off 1 by 0.001",
    ),
    (
        lambda answer: tampered(answer, boundary=tuple(-part for part in answer.boundary)),
        Status.INACCURATE,
        "a probability is -",
    ),
    (lambda answer: tampered(answer, g=answer.g * (1 - 1e-10)), Status.INACCURATE, "row sums of G are off 1 by 1e-10"),
]


@pytest.mark.parametrize(("spoil", "status", "words"), TAMPERED)
def test_certificate_finds_what_is_wrong(spoil, status, words):
    problem = ctmc.Stationary(random_queue(seed=241))
    proof = stationary_qbd(problem, spoil(solved(problem.model).value))
    assert proof.status is status
    assert words in proof.reason


def weakly_coupled() -> QBD:
    """Level 0 is two pairs of states; only the second goes up, and they meet at a rate of 1e-14."""
    weak = 1e-14
    local = np.array([[0, 1, weak, 0], [2, 0, 0, 0], [2 * weak, 0, 0, 3], [0, 0, 1, 0]])
    up = np.array([[0.0], [0], [0], [0.5]])
    local -= np.diag(local.sum(axis=1) + up[:, 0])
    boundary = [(None, local, up), ([[0, 0, 0, 2.0]], [[-2.5]], None)]
    return QBD.from_blocks([[0.5]], [[-2.5]], [[2.0]], boundary)


@pytest.mark.parametrize(
    ("phases", "told"), [(200, "elimination of the levels gives another answer"), (0, "parts of the chain")]
)
def test_slow_exchange_on_the_boundary_is_found(phases, told, monkeypatch):
    """By elimination where it is cheap, and without."""
    monkeypatch.setattr(level_elimination, "MOST_PHASES", phases)
    problem = ctmc.Stationary(weakly_coupled())
    right = solved(problem.model)
    first, top = right.value.boundary
    first = first.copy()
    first[:2] *= 1.5
    wrong = MatrixGeometric((first, top.copy()), right.value.r)
    wrong = MatrixGeometric(tuple(part / wrong.mass for part in wrong.boundary), wrong.r)
    proof = stationary_qbd(problem, wrong)
    assert proof.defect < 1e-12
    assert proof.status is Status.INACCURATE
    assert told in proof.reason


@pytest.mark.parametrize(
    ("phases", "told"), [(200, "elimination of the levels gives another answer"), (0, "do not balance")]
)
def test_a_wrong_decay_rate_near_one_is_found(phases, told, monkeypatch):
    """rho = 1 - 1e-6 taken for 1 - 1e-5: the mean level is a tenth of the right one, at a defect of (1 - r)(r - rho)."""
    monkeypatch.setattr(level_elimination, "MOST_PHASES", phases)
    rho, r = 1 - 1e-6, 1 - 1e-5
    problem = ctmc.Stationary(QBD.from_blocks([[rho]], [[-1 - rho]], [[1.0]]), 1e-10)
    proof = stationary_qbd(problem, MatrixGeometric((np.array([1 - r]),), np.array([[r]])))
    assert proof.defect == pytest.approx(9e-11, rel=1e-4)
    assert proof.status is Status.INACCURATE
    assert told in proof.reason
    right = MatrixGeometric((np.array([1 - rho]),), np.array([[rho]]))
    assert stationary_qbd(problem, right).status is Status.CONVERGED


def test_a_decay_rate_of_one_to_rounding_is_not_certified():
    """What is lost over 1 minus the decay rate is more than the tolerance leaves."""
    queue = QBD.from_blocks([[1 - 1e-12]], [[-2 + 1e-12]], [[1.0]])
    solution = ctmc.solve(ctmc.Stationary(queue), check=False)
    assert solution.status is Status.INACCURATE


def test_slow_exchange_is_not_hidden_by_a_careless_boundary_solver():
    method = "logarithmic_reduction(boundary_solver='power_iteration')"
    solution = ctmc.solve(ctmc.Stationary(weakly_coupled()), method, check=False)
    assert solution.status is Status.INACCURATE


def test_moments_and_quantiles_without_summing_levels():
    load = 0.7
    answer = ctmc.solve(ctmc.Stationary(QBD.from_blocks([[load]], [[-1 - load]], [[1.0]]))).value
    levels = np.arange(400)
    mass = (1 - load) * load**levels
    for order in range(6):
        assert answer.moment(order) == pytest.approx(mass @ levels.astype(float) ** order, rel=1e-12)
    assert answer.level_variance == pytest.approx(load / (1 - load) ** 2, rel=1e-12)
    for probability in (0.0, 0.29, 0.31, 0.5, 0.9, 0.999, 1 - 1e-12):
        assert answer.quantile(probability) == int(np.argmax(np.cumsum(mass) >= probability))
    with pytest.raises(ctmc.ModelError, match="probability is 1"):
        answer.quantile(1)
    with pytest.raises(ctmc.ModelError, match=r"order is 1\.5"):
        answer.moment(1.5)


def test_moments_with_a_boundary_of_several_levels():
    queue = fork_join([5, 2, 1], 2.5, 3, [1, 2, 8])
    answer = ctmc.solve(ctmc.Stationary(queue)).value
    mass = np.array([answer.level(k).sum() for k in range(3000)])
    levels = np.arange(3000.0)
    for order in range(5):
        assert answer.moment(order) == pytest.approx(mass @ levels**order, rel=1e-10)
    below = np.cumsum(mass)
    for probability in (0.1, 0.5, 0.9, 0.99, 0.999999):
        assert answer.quantile(probability) == int(np.argmax(below >= probability))


def test_discrete_time_blocks_are_converted_when_asked():
    up, local, down = (
        np.array([[0.2, 0.1], [0, 0.1]]),
        np.array([[0.3, 0], [0.2, 0.3]]),
        np.array([[0.1, 0.3], [0.2, 0.2]]),
    )
    queue = QBD.from_discrete_time(up, local, down)
    np.testing.assert_allclose(queue.local.toarray(), local - np.eye(2))
    answer = ctmc.solve(ctmc.Stationary(queue)).value
    np.testing.assert_allclose(up + answer.r @ local + answer.r @ answer.r @ down, answer.r, atol=1e-15)
    with pytest.raises(ctmc.ModelError, match="row 0 of the blocks of the repeating part sums to"):
        QBD.from_discrete_time(up, local * 1.1, down)
    with pytest.raises(ctmc.ModelError, match="square"):
        QBD.from_discrete_time(up, local[:1], down)


def test_newton_says_by_its_status_alone_that_it_overflows():
    """Warnings are errors here: a load of 1 - 1e-9 is too near 1 for its sums."""
    problem = ctmc.Stationary(QBD.from_blocks([[1 - 1e-9]], [[-2 + 1e-9]], [[1.0]]))
    assert ctmc.solve(problem, "newton", check=False).status is Status.NOT_FINITE
