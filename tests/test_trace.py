"""The one stopping rule: every status, stagnation, limits, warm starts, the monitor and the history."""

from __future__ import annotations

import math

import numpy as np
import pytest
from thread_ranks import on_ranks

from ctmc.checkpoint import Keeper, Run
from ctmc.errors import ModelError
from ctmc.model.generator import ProductCounter
from ctmc.solution import HISTORY, Status
from ctmc.trace import Trace, checked_start

MANY = 1_000_000


def feed(trace, defects, **options):
    """Give the trace defects until it stops; the number of calls."""
    for calls, defect in enumerate(defects, start=1):
        if trace.finished(defect, **{"limit": MANY, **options}):
            return calls
    return None


@pytest.fixture
def clock(monkeypatch):
    """A clock that stands still until it is moved."""
    now = [100.0]
    monkeypatch.setattr("ctmc.trace.time.perf_counter", lambda: now[0])
    return now


def test_before_anything_was_seen():
    trace = Trace(1e-12)
    assert trace.status is Status.BREAKDOWN
    assert trace.iteration == 0
    assert trace.history.shape == (0,)
    assert trace.history.dtype == HISTORY


@pytest.mark.parametrize("last", [1e-12, 3e-13, 0.0])
def test_converged_at_the_tolerance(last):
    trace = Trace(1e-12)
    assert feed(trace, [1.0, 1.0000001e-12, last, 0.0]) == 3
    assert trace.status is Status.CONVERGED


@pytest.mark.parametrize("bad", [math.nan, math.inf, -math.inf])
def test_not_finite(bad):
    trace = Trace(1e-12)
    assert feed(trace, [1.0, bad, 0.0]) == 2
    assert trace.status is Status.NOT_FINITE


@pytest.mark.parametrize(("limit", "calls"), [(1, 2), (5, 6)])
def test_iteration_limit_counts_iterations_and_not_calls(limit, calls):
    trace = Trace(1e-12)
    assert feed(trace, [0.5] * 20, limit=limit) == calls  # the first call is for the start
    assert trace.status is Status.ITERATION_LIMIT
    assert trace.iteration == limit


def test_several_iterations_between_two_calls():
    trace = Trace(1e-12)
    assert feed(trace, [0.5] * 20, limit=20, iterations=8) == 4
    assert trace.history["iteration"].tolist() == [0, 8, 16, 24]


def test_a_last_step_that_converges_is_no_iteration_limit():
    trace = Trace(1e-12)
    assert feed(trace, [1.0, 1e-13], limit=1) == 2
    assert trace.status is Status.CONVERGED


def test_time_limit(clock):
    trace = Trace(1e-12, time_limit=5.0)
    assert trace.remaining == 5.0
    clock[0] += 5.0
    assert not trace.finished(1.0, limit=MANY)
    clock[0] += 0.5
    assert trace.remaining == 1e-3  # never nothing, so that it can be handed on
    assert trace.elapsed == 5.5
    assert trace.finished(1.0, limit=MANY)
    assert trace.status is Status.TIME_LIMIT
    assert Trace(1e-12).remaining is None


@pytest.mark.parametrize("limit", [0, -1, 0.0, math.nan, True, "5", [1.0]])
def test_bad_time_limits(limit):
    with pytest.raises(ModelError, match=r"time_limit is .*; allowed is a positive number of seconds"):
        Trace(1e-12, time_limit=limit)


def test_monitor_sees_everything_and_can_stop():
    seen = []

    def monitor(iteration, defect):
        seen.append((iteration, defect))
        return iteration == 2

    trace = Trace(1e-12, monitor=monitor)
    assert feed(trace, [0.5, 0.25, 0.125, 0.0625]) == 3
    assert trace.status is Status.STOPPED
    assert seen == [(0, 0.5), (1, 0.25), (2, 0.125)]
    assert all(type(iteration) is int and type(defect) is float for iteration, defect in seen)


@pytest.mark.parametrize("answer", [None, False, 0, ""])
def test_a_monitor_that_says_nothing_does_not_stop(answer):
    assert feed(Trace(1e-12, monitor=lambda iteration, defect: answer), [0.5] * 9) is None


def test_convergence_comes_before_the_monitor():
    trace = Trace(1e-12, monitor=lambda iteration, defect: True)
    assert trace.finished(1e-13, limit=MANY)
    assert trace.status is Status.CONVERGED


# ---- stagnation -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("level", "patience"), [(1e-10, 1000), (0.99e-9, 1000), (1e-9, 10_000), (1.01e-9, 10_000), (1e-3, 10_000)]
)
def test_stagnation(level, patience):
    """Rounding is met soon; above it, probability may still be on its way through a long chain."""
    trace = Trace(1e-12)
    assert feed(trace, [level] * (2 * patience)) == patience + 1
    assert trace.status is Status.STAGNATED


def test_a_tenth_of_a_percent_in_the_last_half_is_progress_enough():
    falling = 1e-3 * 0.5 ** (np.arange(60_000) / 30_000)
    assert feed(Trace(1e-12), falling) is None
    assert feed(Trace(1e-12), 1e-3 * 0.9995 ** (np.arange(60_000) / 15_000)) is not None


def test_patience_grows_with_the_iterations_made():
    defects = [1e-3 * 0.998**k for k in range(4000)]  # falls until 4000 ..
    trace = Trace(1e-12)
    assert feed(trace, [*defects, *[defects[-1]] * 20_000]) == 3999 + 10_000 + 1
    trace = Trace(1e-12)
    defects = [1e-10 * 0.9985**k for k in range(3000)]
    stay = feed(trace, [*defects, *[defects[-1]] * 20_000])
    assert trace.status is Status.STAGNATED
    assert stay - 3000 >= 2998  # as long again as it took to get there


def test_a_rise_is_no_progress():
    rng = np.random.default_rng(4711)
    trace = Trace(1e-12)
    assert feed(trace, [1e-10, *(1e-10 * (1 + rng.random(5000)))]) == 1001
    assert trace.status is Status.STAGNATED


def test_a_fall_by_exactly_a_thousandth_is_not_more_than_that():
    first = 2.0**-34
    assert first < 1e-9
    assert feed(Trace(1e-12), [first, *[0.999 * first] * 3000]) == 1001
    assert feed(Trace(1e-12), [first, *[0.998 * first] * 3000]) == 1002


def test_answers_over_time_go_to_who_has_asked():
    seen = []
    Trace(1e-12, reached=lambda *given: seen.append(given)).reached(3, "y", "integral", 0.5)
    assert seen == [(3, "y", "integral", 0.5)]
    Trace(1e-12).reached(3, "y", "integral")  # nobody has


def test_methods_that_stay_put_for_long_can_say_so():
    trace = Trace(1e-12)
    assert feed(trace, [1.0] * 30_000, stagnates=False) is None
    assert trace.finished(1e-13, limit=MANY, stagnates=False)
    assert trace.status is Status.CONVERGED


# ---- warm start -----------------------------------------------------------------------------------------------------


def test_default_start():
    default = np.array([0.5, 0.5])
    trace = Trace(1e-12)
    assert trace.start(default) is default
    assert not trace.warm


def test_a_start_is_checked_without_a_copy():
    given = np.array([3.0, 1.0])
    assert checked_start(given, 2) is given


def test_warm_start_is_scaled_and_copied():
    given = np.array([3, 1])
    first = Trace(1e-12, start=given).start(np.array([0.5, 0.5]))
    assert first.tolist() == [0.75, 0.25]
    first[0] = 0
    assert given.tolist() == [3, 1]
    assert Trace(1e-12, start=[3, 1]).start(np.array([1.0, 1.0])).tolist() == [1.5, 0.5]


@pytest.mark.parametrize(
    ("start", "words"),
    [
        (np.ones(3), ["shape (3,)", "(2,)"]),
        (np.ones((2, 1)), ["shape (2, 1)"]),
        (1.0, ["shape ()"]),
        (np.array([1.0, -1e-300]), ["start[1] is -1e-300", ">= 0"]),
        (np.array([np.nan, 1.0]), ["start[0] is nan", "finite"]),
        (np.array([0.0, np.inf]), ["start[1] is inf"]),
        (np.zeros(2), ["sums to 0.0", "positive"]),
        (np.array([1e308, 1.7e308]), ["sums to inf", "finite"]),
        ("ab", ["start is ", "2 real numbers >= 0"]),
        ([[1.0], [1.0, 2.0]], ["start is ", "2 real numbers >= 0"]),
        (np.array([1j, 1.0]), ["start is ", "2 real numbers >= 0"]),
    ],
)
def test_bad_starts(start, words):
    with pytest.raises(ModelError) as caught:
        Trace(1e-12, start=start).start(np.array([0.5, 0.5]))
    assert all(word in str(caught.value) for word in words), caught.value


# ---- history --------------------------------------------------------------------------------------------------------


def test_history(clock):
    counter = ProductCounter()
    trace = Trace(1e-3, counter=counter)
    for step, defect in enumerate([0.5, 0.75, 1e-4]):
        clock[0] += 2.0
        counter.products += 3
        assert trace.finished(defect, limit=MANY) == (step == 2)
    history = trace.history
    assert history.dtype == HISTORY
    assert history["iteration"].tolist() == [0, 1, 2]
    assert history["seconds"].tolist() == [2.0, 4.0, 6.0]
    assert history["products"].tolist() == [3, 6, 9]
    assert history["defect"].tolist() == [0.5, 0.75, 1e-4]


def test_history_only_goes_up():
    trace = Trace(1e-12)
    feed(trace, np.random.default_rng(3).random(500) + 0.1)
    for column in ("iteration", "seconds", "products"):
        assert (np.diff(trace.history[column]) >= 0).all()


def test_debug_log_tells_the_end(caplog):
    with caplog.at_level("DEBUG", logger="ctmc.trace"):
        feed(Trace(1e-3), [1.0, 1e-4])
    assert caplog.messages == ["CONVERGED after 1 iterations, defect 0.0001"]


# ---- states without probability -------------------------------------------------------------------------------------


def test_a_default_start_has_nothing_where_no_probability_can_be():
    trace = Trace(1e-12, support=np.array([False, True, True]))
    assert not trace.whole
    assert trace.start(np.array([0.5, 0.125, 0.375])).tolist() == [0, 0.25, 0.75]
    assert Trace(1e-12).whole


# ---- what an interrupted solve has left -----------------------------------------------------------------------------

LEFT = np.array([(0, 1.0, 2, 0.5), (4, 2.0, 6, 1e-10), (8, 3.5, 10, 0.25)], dtype=HISTORY)


def left_behind(iterate=(0.75, 0.25), history=LEFT):
    return Run({"iterate": np.array(iterate)}, history=history)


@pytest.mark.parametrize("begin", ["start", "resumed"])
def test_an_interrupted_solve_goes_on(clock, begin):
    """The record of the iterate that was left is made anew, and all others stay."""
    run = left_behind()
    trace = Trace(1e-12, start=np.array([1.0, 0.0]), interrupted=run)
    first = getattr(trace, begin)(np.array([0.5, 0.5]))
    assert first.tolist() == [0.75, 0.25]
    first[0] = 0  # a copy, so that what was left stays as it is
    assert run.arrays["iterate"].tolist() == [0.75, 0.25]
    assert trace.iteration == 8
    clock[0] += 1.0
    assert not trace.finished(0.125, limit=MANY, iterations=3)
    assert not trace.finished(0.0625, limit=MANY, iterations=3)
    assert trace.history["iteration"].tolist() == [0, 4, 8, 11]
    assert trace.history["seconds"].tolist() == [1.0, 2.0, 4.5, 4.5]
    assert trace.history["defect"].tolist() == [0.5, 1e-10, 0.125, 0.0625]
    assert trace.resumed(np.array([0.5, 0.5])).tolist() == [0.5, 0.5]  # taken up once only


def test_the_smallest_defect_before_an_interruption_counts():
    trace = Trace(1e-12, interrupted=left_behind())
    trace.resumed(np.array([0.5, 0.5]))
    assert feed(trace, [0.25] * 5000) == 1000 + 4 - 8 + 1  # 1000 after iteration 4, begun at 8
    assert trace.status is Status.STAGNATED


def test_going_on_twice_is_going_on_once():
    trace = Trace(1e-12, interrupted=left_behind())
    trace.go_on()
    trace.resumed(np.array([0.5, 0.5]))
    assert trace.history["iteration"].tolist() == [0, 4]


@pytest.mark.parametrize("begin", ["start", "resumed"])
@pytest.mark.parametrize("left", [None, Run({}), left_behind((0.2, 0.3, 0.5)), left_behind(history=LEFT[:0])])
def test_nothing_to_go_on_from_begins_anew(begin, left):
    """Nothing at all, no iterate, one of other unknowns, and one without a record, whose history begins anew."""
    trace = Trace(1e-12, interrupted=left)
    first = getattr(trace, begin)(np.array([0.5, 0.5]))
    usable = left is not None and left.arrays.get("iterate", first[:0]).shape == (2,)
    assert first.tolist() == ([0.75, 0.25] if usable else [0.5, 0.5])
    assert not trace.finished(0.125, limit=MANY)
    assert trace.history["iteration"].tolist() == [0]


@pytest.mark.parametrize(
    ("options", "defect", "limit", "written"),
    [
        ({}, 1.0, MANY, 0),
        ({"monitor": lambda iteration, defect: True}, 1.0, MANY, 1),
        ({"time_limit": 5.0}, 1.0, MANY, 1),
        ({"time_limit": 5.0}, 1e-13, MANY, 0),
        ({}, 1.0, 0, 0),
        ({}, math.nan, MANY, 0),
    ],
    ids=["goes on", "stopped", "out of time", "converged", "out of iterations", "not finite"],
)
def test_a_checkpoint_is_written_where_a_solve_ends_from_outside(clock, options, defect, limit, written):
    kept = []
    trace = Trace(1e-12, counter=ProductCounter(), keeper=Keeper(kept.append, minutes=1e6), **options)
    clock[0] += 6.0
    trace.finished(defect, iterate=np.array([0.75, 0.25]), limit=limit)
    assert len(kept) == written
    for progress in kept:
        assert progress.runs[-1].arrays["iterate"].tolist() == [0.75, 0.25]
        assert (progress.runs[-1].history == trace.history).all()


# ---- how long it may take -------------------------------------------------------------------------------------------


def test_a_monitor_that_asks_is_told_how_many_iterations_to_expect():
    class Expectant:
        last = None

        def __call__(self, iteration, defect):
            return False

        def expect(self, iterations):
            self.last = iterations

    monitor = Expectant()
    trace = Trace(1e-12, monitor=monitor)
    feed(trace, [0.5] * 4)
    trace.expect(10)
    assert monitor.last == 3 + 10
    Trace(1e-12).expect(10)  # nobody asks


# ---- on several ranks -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("count", [2, 3])
@pytest.mark.parametrize("whose", ["monitor", "clock"])
def test_all_ranks_stop_where_one_does(whose, count):
    def work(ranks):
        mine = ranks.rank == 1
        monitor = (lambda iteration, defect: mine and iteration == 3) if whose == "monitor" else None
        trace = Trace(1e-12, monitor=monitor, time_limit=1e-9 if mine and whose == "clock" else 1e6, ranks=ranks)
        return feed(trace, [0.5] * 9), trace.status

    wanted = (4, Status.STOPPED) if whose == "monitor" else (1, Status.TIME_LIMIT)
    assert on_ranks(count, work) == [wanted] * count


def test_starts_are_those_of_one_process():
    """The user's, scaled over all ranks, and the default one on the states that may have probability."""
    given, default = np.array([4.0, 0, 2, 2, 8]), np.array([0.2, 0.2, 0.1, 0.4, 0.1])
    support = np.array([True, False, True, True, False])

    def work(ranks):
        own = slice(*([0, 2, 2, 5][ranks.rank : ranks.rank + 2]))
        warm = Trace(1e-12, start=given[own], ranks=ranks)
        first = warm.start(default[own])
        assert warm.warm
        return first, Trace(1e-12, support=support[own], ranks=ranks).start(default[own])

    for k, wanted in enumerate(([0.25, 0, 0.125, 0.125, 0.5], [0.2 / 0.7, 0, 0.1 / 0.7, 0.4 / 0.7, 0])):
        np.testing.assert_allclose(np.concatenate([found[k] for found in on_ranks(3, work)]), wanted, rtol=1e-15)


@pytest.mark.parametrize("count", [2, 3])
@pytest.mark.parametrize(("more", "usable"), [(0, True), (-1, False), (1, False)])
def test_each_rank_takes_its_part_of_what_was_left(more, usable, count):
    sizes = [2, 0, 3][3 - count :]
    states, begins = sum(sizes), np.cumsum([0, *sizes]).tolist()

    class Left:
        shape = (states + more,)

        def part(self, begin, end):
            return np.arange(begin, end) / 8

    def work(ranks):
        own = sizes[ranks.rank]
        trace = Trace(1e-12, interrupted=Run({"iterate": Left()}, history=LEFT), ranks=ranks)
        return trace.resumed(np.full(own, 9.0)), trace.iteration

    found = on_ranks(count, work)
    for rank, (first, iteration) in enumerate(found):
        left = [state / 8 for state in range(begins[rank], begins[rank + 1])]
        assert first.tolist() == (left if usable else [9.0] * sizes[rank])
        assert iteration == (8 if usable else 0)
