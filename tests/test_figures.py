"""Figures of comparisons and of answers: what they show, for every edge case; names do nothing; the command."""

from __future__ import annotations

import xml.etree.ElementTree as ElementTree

import numpy as np
import pytest

pytest.importorskip("matplotlib", reason="figures need the extra plots")

import ctmc
from ctmc.cli import main
from ctmc.comparison.drawing import chosen_models, shortened, styles
from ctmc.comparison.figures import FIGURES, draw_all
from ctmc.comparison.files import save_comparison
from ctmc.comparison.model_figures import PER_MODEL, draw_defect, draw_pareto, draw_work_precision
from ctmc.comparison.overall_figures import draw_profile, draw_scaling
from ctmc.comparison.runs import ComparedModel, Comparison, Run
from ctmc.errors import CTMCError, ModelError, StorageError
from ctmc.solution import HISTORY
from ctmc.storage import save, save_solution
from ctmc.study.answer_figures import draw_joint, draw_levels, draw_marginals, joint
from ctmc.study.plots import is_ours, svg_text

HOSTILE = (
    "<img src=x onerror=alert(1)>",
    "$x^2$",
    "a_b",
    "_hidden",
    r"\$\frac{1}{2}",
    "\x1b[31mred\n",
    "</svg><script>",
    "雪",
    "{%",
)


def sample(solvers, models, *, tolerances=(1e-8,), ends=("CONVERGED",), names=None, seed=1907):
    """Return a comparison with histories; the ends of runs are taken in turn."""
    random = np.random.default_rng(seed)
    names = names or [f"gauss_seidel(relaxation={1 + k / 100}, ordering='red_black')" for k in range(solvers)]
    runs = []
    for j in range(models):
        for tolerance in tolerances:
            for k in range(solvers):
                status = ends[len(runs) % len(ends)]
                steps = int(random.integers(3, 9))
                history = np.empty(steps, HISTORY)
                history["iteration"] = np.arange(steps)
                history["products"] = 7 * np.arange(steps)
                history["seconds"] = np.arange(steps) / 10
                history["defect"] = np.geomspace(1, tolerance, steps)
                history["defect"][1] = np.nan
                runs.append(
                    Run(
                        f"model {j}", names[k], tolerance, status=status, defect=tolerance / 2 if k % 3 else 0.0,
                        distance=1e-9, iterations=steps, products=7 * steps, seconds=(float(random.uniform(0, 2)),),
                        allocated_bytes=int(random.integers(0, 1 << 30)), history=history,
                    )
                )  # fmt: skip
    models_by_name = {f"model {j}": ComparedModel(f"model {j}", states=10 ** (j + 1)) for j in range(models)}
    return Comparison("A title that goes on and on " * 4, "stationary", models_by_name, tuple(runs))


def bare(*statuses):
    """Return runs that left nothing behind but their ends."""
    runs = tuple(Run("queue", f"solver{k}", 1e-8, status=status) for k, status in enumerate(statuses))
    return Comparison("", "stationary", {"queue": ComparedModel("queue")}, runs)


CASES = {
    "three solvers": sample(3, 3, tolerances=(1e-6, 1e-10), ends=("CONVERGED", "CONVERGED", "STAGNATED")),
    "twenty solvers": sample(20, 2),
    "one run": sample(1, 1),
    "more models than panels": sample(2, 14),
    "all failed, with histories": sample(3, 2, ends=("TIME_LIMIT", "INACCURATE", "BREAKDOWN")),
    "all failed, with nothing": bare("CRASHED", "MEMORY_LIMIT", "REFUSED", "NOT_INSTALLED"),
    "not begun": bare("NOT_RUN", "NOT_RUN"),
    "no model": bare("NO_MODEL"),
    "no runs": Comparison("", "stationary", {}, ()),
    "answers of which nothing is known": bare("CONVERGED", "CONVERGED"),
}


def check_layout(name, figure):
    """Titles, legends, and names of axes lie on the page, and none on another; none is smaller than 8 points."""
    boxes = [figure._suptitle, *figure.legends]
    for axes in figure.axes:
        if axes.get_visible():
            assert axes.lines or axes.texts, f"{name} has a panel with nothing in it"
            boxes += [axes.title, axes.xaxis.label, axes.yaxis.label, *axes.texts]
            ticks = [*axes.get_xticklabels(), *axes.get_yticklabels()]
            assert min((tick.get_fontsize() for tick in ticks), default=8) >= 8
    assert min(box.get_fontsize() for box in boxes if hasattr(box, "get_fontsize")) >= 8
    assert all(text.get_fontsize() >= 8 for legend in figure.legends for text in legend.get_texts())
    places = [box.get_window_extent() for box in boxes if not hasattr(box, "get_text") or box.get_text()]
    for k, place in enumerate(places):
        assert place.x0 >= -2, name
        assert place.y0 >= -2, name
        assert place.x1 <= figure.bbox.width + 2, name
        for other in places[:k]:
            width = min(place.x1, other.x1) - max(place.x0, other.x0)
            height = min(place.y1, other.y1) - max(place.y0, other.y0)
            assert width <= 1 or height <= 1, name


@pytest.mark.parametrize("case", CASES)
def test_every_figure_of_every_case(case):
    """Warnings are errors here; what is empty says so."""
    # the others have one panel however many models there are
    names = PER_MODEL if case == "more models than panels" else FIGURES
    for name in names:
        kind = FIGURES[name]
        figure = kind.draw(CASES[case], measure=kind.measures[0])
        figure.draw_without_rendering()
        assert figure.get_size_inches()[0] == pytest.approx(7.2)
        check_layout(name, figure)


@pytest.mark.parametrize("name", FIGURES)
def test_every_figure_by_every_measure(name):
    kind = FIGURES[name]
    for measure in kind.allowed:
        figure = kind.draw(CASES["one run"], measure=measure)
        figure.draw_without_rendering()
        check_layout(name, figure)
    with pytest.raises(CTMCError, match="measure is 'hours'; allowed are products, seconds"):
        kind.draw(CASES["one run"], measure="hours")


def test_names_do_nothing():
    """No markup in SVG, no formula, and every name readable in the legend."""
    runs = tuple(
        Run(
            model,
            solver,
            1e-8,
            status="CONVERGED",
            defect=1e-9,
            products=4,
            iterations=2,
            seconds=(1.0,),
            allocated_bytes=9,
        )
        for model in HOSTILE[:2]
        for solver in HOSTILE
    )
    found = Comparison(
        HOSTILE[0] + HOSTILE[1], "stationary", {name: ComparedModel(name, states=5) for name in HOSTILE[:2]}, runs
    )
    for name, kind in FIGURES.items():
        figure = kind.draw(found, measure="seconds")
        text = svg_text(figure)
        elements = {element.tag.rpartition("}")[2] for element in ElementTree.fromstring(text).iter()}
        assert not elements & {"img", "script", "a", "foreignObject"}, name
        assert "<img" not in text
        assert "<script" not in text
        assert "\x1b" not in text
        entries = [entry.get_text() for entry in figure.legends[0].get_texts()]
        assert any(entry.startswith(" _hidden") for entry in entries)
        for entry in entries:
            # formulas would be parsed: an even number of unescaped $ is one
            assert (entry.count("$") - entry.count(r"\$")) == 0


def test_an_svg_is_the_same_each_time(tmp_path):
    found = CASES["three solvers"]
    draw_profile(found, tmp_path / "one.svg")
    draw_profile(found, tmp_path / "two.svg")
    one = (tmp_path / "one.svg").read_bytes()
    assert one == (tmp_path / "two.svg").read_bytes()
    assert one.decode() == svg_text(draw_profile(found))
    assert b"<dc:date>" not in one


@pytest.mark.parametrize("suffix", [".svg", ".pdf", ".png"])
def test_only_our_own_pictures_are_replaced(tmp_path, suffix):
    path = tmp_path / f"figure{suffix}"
    draw_pareto(CASES["one run"], path)
    first = path.read_bytes()
    draw_pareto(CASES["one run"], path)
    assert is_ours(path)
    if suffix != ".png":
        assert path.read_bytes() == first
    path.write_bytes(b"mine")
    with pytest.raises(StorageError, match="was not drawn by ctmc"):
        draw_pareto(CASES["one run"], path)
    assert path.read_bytes() == b"mine"


def test_lines_are_told_apart_without_color():
    found = list(styles(f"s{k}" for k in range(20)).values())
    assert len({(style["linestyle"], style["marker"]) for style in found}) == 20
    for k, style in enumerate(found):
        for other in found[:k]:
            if style["color"] == other["color"]:
                assert style["linestyle"] != other["linestyle"]


def test_a_solver_looks_the_same_in_every_figure():
    found = CASES["three solvers"]
    looks = set()
    for _, _, figure in draw_all(found):
        handles = dict(
            zip(
                (text.get_text() for text in figure.legends[0].get_texts()),
                figure.legends[0].legend_handles,
                strict=True,
            )
        )
        (handle,) = [handle for text, handle in handles.items() if "1.01" in text]
        looks.add((handle.get_color(), handle.get_marker()))
    assert len(looks) == 1


def test_short_names_stay_different():
    names = [f"{'a' * 40}{k}{'b' * 40}" for k in range(3)]
    assert shortened(names, 20) == names  # cut, all three would be the same
    assert shortened(["a" * 40 + "b", "c"], 9) == ["aaaa…aaab", "c"]


def test_what_the_profile_draws():
    """One solver best on one of two problems, twice as dear on the other; the second solves one."""
    costs = {("A", "x"): 1.0, ("B", "x"): 4.0, ("B", "y"): 2.0}
    runs = tuple(
        Run(model, solver, 1e-8, status="CONVERGED" if (model, solver) in costs else "BREAKDOWN",
            seconds=(costs.get((model, solver), 9.0),))
        for model in "AB" for solver in "xy"
    )  # fmt: skip
    figure = draw_profile(Comparison("T", "stationary", {}, runs))
    x, y = figure.axes[0].lines
    assert {x.get_drawstyle(), y.get_drawstyle()} == {"steps-post"}
    assert x.get_xydata().tolist() == [[1, 0], [1, 0.5], [2, 1], [2.2, 1]]
    assert y.get_xydata().tolist() == [[1, 0], [1, 0.5], [2.2, 0.5]]
    assert [text.get_text() for text in figure.legends[0].get_texts()] == ["x (2 of 2)", "y (1 of 2)"]


def test_what_scaling_draws():
    runs = tuple(Run(f"m{n}", "x", 1e-8, status="CONVERGED", seconds=(2e-6 * n**1.5,)) for n in (100, 400, 1600))
    models = {f"m{n}": ComparedModel(f"m{n}", states=n) for n in (100, 400, 1600)}
    figure = draw_scaling(Comparison("T", "stationary", models, runs))
    assert figure.legends[0].get_texts()[0].get_text() == "x (1.50 ± 0.00)"
    line = figure.axes[0].lines[1].get_xydata()
    np.testing.assert_allclose(line, [[100, 2e-6 * 100**1.5], [1600, 2e-6 * 1600**1.5]], rtol=1e-12)


def test_a_defect_that_is_not_certified_is_a_cross():
    for status, marker in (("CONVERGED", "o"), ("STAGNATED", "x")):
        axes = draw_defect(sample(1, 1, ends=(status,))).axes[0]
        assert [line.get_marker() for line in axes.lines[:2]] == ["None", marker]


def test_models_are_chosen_by_name():
    found = CASES["more models than panels"]
    assert len(chosen_models(found, None)[0]) == 12
    assert "12 of 14 models" in chosen_models(found, None)[1]
    assert len(draw_defect(found, models=["model 13"]).axes) == 1
    with pytest.raises(CTMCError, match="There is no model in the comparison 'model 99'"):
        draw_defect(found, models=["model 99"])
    with pytest.raises(CTMCError, match="models names 14; allowed are 1 to 12"):
        draw_defect(found, models=list(found.models))


def test_a_sweep_does_not_take_the_room_of_other_families():
    """Of 20 points of a sweep and 3 others: the others, the largest point, and the next largest."""
    names = [f"sweep {k}" for k in range(20)] + ["net", "queue (9 levels)", "ring"]
    models = {
        name: ComparedModel(name, family=name.partition(" ")[0], states=(k * 7) % 20 + 1)
        for k, name in enumerate(names)
    }
    found = Comparison("T", "stationary", models, tuple(Run(name, "gth", 1e-8) for name in names))
    shown, _ = chosen_models(found, None)
    points = sorted(names[:20], key=lambda name: -(models[name].states or 0))[:9]
    assert shown == [name for name in names if name in {*points, *names[20:]}]


def test_a_legend_names_no_solver_that_takes_none_of_the_models_shown():
    ends = {("q", "gth"): "CONVERGED", ("q", "rank_one"): "REFUSED", ("r", "rank_one"): "CONVERGED"}
    runs = tuple(Run(m, s, 1e-8, status=end, defect=1e-9, seconds=(1.0,)) for (m, s), end in ends.items())
    found = Comparison("T", "stationary", {name: ComparedModel(name) for name in "qr"}, runs)
    for draw in (draw_defect, draw_work_precision):
        figure = draw(found, measure="seconds", models=["q"])
        assert [text.get_text() for text in figure.legends[0].get_texts()] == ["gth"]


def test_profiles_say_what_not_solved_means():
    """Both methods for generators were asked for one of the two models only, so that each has solved all that it was asked."""
    ends = {
        ("q", "gth"): "CONVERGED",
        ("q", "gmres"): "CONVERGED",
        ("r", "rank_one"): "CONVERGED",
        ("r", "gmres"): "REFUSED",
    }
    runs = tuple(
        Run(m, s, 1e-8, status=end, seconds=(1.0,), iterations=3 * (m == "q"), products=9)
        for (m, s), end in ends.items()
    )
    for part, said in ((runs, True), (runs[:2], False), (runs[1:2] + runs[3:], True)):
        found = Comparison("T", "stationary", {name: ComparedModel(name) for name in "qr"}, part)
        for measure in ("seconds", "products"):
            text = draw_profile(found, measure=measure).legends[0].get_title().get_text()
            assert ("does not take" in text) == said


# ---- answers


@pytest.fixture(scope="module")
def queues():
    model = ctmc.build("tandem_network", service_rates=[2.0, 1.5], arrival_rate=1.0, capacity=40)
    return ctmc.solve(ctmc.Stationary(model), "gth")


def test_joint_is_a_product_of_geometric_distributions(queues):
    """Jackson's theorem; what is cut off is below 1e-10."""
    table = joint(queues, "queue_length[0]", "queue_length[1]")
    i, j = np.arange(5)[:, None], np.arange(5)[None, :]
    np.testing.assert_allclose(table[:5, :5], 0.5 * 0.5**i * (1 / 3) * (2 / 3) ** j, rtol=1e-8)
    assert table.sum() == pytest.approx(1)


def test_what_answers_draw(queues):
    figure = draw_marginals(queues)
    heights = [bar.get_height() for bar in figure.axes[1].patches]
    np.testing.assert_allclose(heights[:6], (2 / 3) ** np.arange(6) / 3, rtol=1e-8)
    assert sum(heights) > 1 - 1e-4
    draw_joint(queues).draw_without_rendering()
    queue = ctmc.QBD.from_blocks([[1.0]], [[-3.0]], [[2.0]])
    found = ctmc.solve(ctmc.Stationary(queue))
    points, slope = draw_levels(found).axes[0].lines
    np.testing.assert_allclose(points.get_ydata(), 0.5 ** points.get_xdata(), rtol=1e-9)
    np.testing.assert_allclose(slope.get_ydata(), 0.5 ** slope.get_xdata(), rtol=1e-9)
    with pytest.raises(ModelError, match="levels belong to QBDs"):
        draw_levels(queues)
    with pytest.raises(ModelError, match="there is no variable 'nobody'"):
        draw_marginals(queues, names=["nobody"])
    with pytest.raises(ModelError, match="a heat map shows two"):
        draw_joint(queues, names=["jobs"])


def test_heavy_load_has_a_figure_too():
    """Load 0.999: ten thousands of levels, of which some are shown."""
    queue = ctmc.QBD.from_blocks([[0.999]], [[-1.999]], [[1.0]])
    points, _ = draw_levels(ctmc.solve(ctmc.Stationary(queue))).axes[0].lines
    assert len(points.get_xdata()) <= 41
    np.testing.assert_allclose(points.get_ydata(), 0.999 ** points.get_xdata(), rtol=1e-6)


# ---- the command


@pytest.fixture
def model(tmp_path):
    chain = ctmc.build("birth_death", births=[1.0] * 5, deaths=[2.0] * 5)
    path = tmp_path / "queue.h5"
    save(path, chain)
    save_solution(path, ctmc.solve(ctmc.Stationary(chain), "gth"))
    course = ctmc.solve(ctmc.Transient(chain, (0,), np.linspace(0, 3, 7), reward="jobs"))
    save_solution(path, course, "course")
    return path


def test_the_command_draws_all_figures_of_a_comparison(tmp_path, capsys):
    save_comparison(tmp_path / "out.h5", CASES["one run"])
    assert main(["plot", str(tmp_path / "out.h5"), "-o", str(tmp_path / "all")]) == 0
    found = {path.name for path in (tmp_path / "all").iterdir()}
    assert found == {f"{name}-{by}.svg" for name, kind in FIGURES.items() for by in kind.measures}
    assert len(capsys.readouterr().out.splitlines()) == len(found)
    for path in (tmp_path / "all").iterdir():
        ElementTree.parse(path)


def test_the_command_draws_answers(tmp_path, model, capsys):
    assert main(["plot", str(model), "-o", str(tmp_path / "run")]) == 0
    assert [path.name for path in (tmp_path / "run").iterdir()] == ["marginals.svg"]
    stored = model.with_name("queue.solutions") / "course.h5"
    assert main(["plot", str(stored), "--figure", "course", "-o", str(tmp_path / "course.png")]) == 0
    assert is_ours(tmp_path / "course.png")
    away = tmp_path / "away.h5"
    stored.rename(away)
    assert main(["plot", str(away), "-o", str(tmp_path / "no")]) == 2
    assert "add --model FILE" in capsys.readouterr().err
    assert not (tmp_path / "no").exists()
    assert main(["plot", str(away), "--model", str(model), "-o", str(tmp_path / "yes")]) == 0


def test_the_command_lists_every_figure(capsys):
    assert main(["plot", "--list"]) == 0
    shown = capsys.readouterr().out
    assert all(f"\n{name} " in shown for name in (*FIGURES, "marginals", "joint", "levels", "course"))
    assert set(PER_MODEL) < set(FIGURES)


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (["out.h5"], "Missing -o FILE"),
        ([], "Missing SOURCE"),
        (["out.h5", "-o", "there/deep"], "Cannot make the folder"),
        (["out.h5", "-o", "out.h5"], "a file; all figures need a folder"),
        (["out.h5", "-o", "x.jpg", "--figure", "profile"], "has the suffix '.jpg'"),
        (["out.h5", "-o", "x.svg", "--figure", "profil"], "did you mean 'profile'"),
        (
            ["out.h5", "-o", "x.svg", "--figure", "defect", "--measure", "memory"],
            "allowed are products, seconds for defect",
        ),
        (["out.h5", "-o", "x.svg", "--figure", "profile", "--measure", "hours"], "'hours'; allowed are products"),
        (["out.h5", "-o", "all", "--measure", "hours"], "'hours'; allowed are products"),
        (["out.h5", "-o", "x.svg", "--figure", "profile", "--name", "model 0"], "chooses models for the figures"),
        (["out.h5", "-o", "x.svg", "--figure", "pareto", "--name", "nobody"], "There is no model in the comparison"),
        (["out.h5", "-o", "x", "--format", "gif"], "--format is 'gif'; allowed are svg, pdf, png"),
        (["out.h5", "-o", "x", "--model", "queue.h5"], "is a comparison"),
        (["queue.h5", "-o", "x", "--measure", "seconds"], "belongs to comparisons"),
        (["queue.h5", "-o", "x.svg", "--figure", "levels"], "does not fit this answer; these do: marginals"),
        (["queue.h5", "-o", "x", "--name", "jobs"], "add --figure NAME"),
        (["bare.h5", "-o", "x"], "no certified long-run answer beside"),
        (["nothing.h5", "-o", "x"], "nothing.h5"),
    ],
)
def test_wrong_requests_leave_nothing(tmp_path, model, monkeypatch, capsys, arguments, sentence):
    monkeypatch.chdir(tmp_path)
    save_comparison("out.h5", CASES["one run"])
    save("bare.h5", ctmc.build("birth_death", births=[1.0], deaths=[3.0]))
    before = sorted(path.name for path in tmp_path.iterdir())
    assert main(["plot", *arguments]) == 2
    shown = capsys.readouterr().err
    assert sentence in shown
    assert len(shown.strip().splitlines()) == 1
    assert sorted(path.name for path in tmp_path.iterdir()) == before
