"""The report of a comparison, its standings and tables, and what is worse than before."""

import csv
import html.parser
import itertools
import json
import math
import re
import statistics

import numpy as np
import pytest
from compared import HOSTILE, comparison, history, hostile, large, run

from ctmc.cells import csv_cell, latex_cell
from ctmc.cli import main
from ctmc.comparison import tables
from ctmc.comparison.against import read_rule, regressions
from ctmc.comparison.charts import chart_of_costs
from ctmc.comparison.files import load_comparison, save_comparison
from ctmc.comparison.report import Figure, report
from ctmc.comparison.standings import COSTS, families, places, records
from ctmc.errors import StorageError, StudyError, printable

# ---- who wins


def test_the_best_and_the_second_by_hand():
    found = comparison(
        run("a", "gmres", 4.0, 100), run("a", "gth", 1.0, None), run("a", "power", 3.0, 50),
        run("b", "gmres", 2.0, 10), run("b", "gth", status="MEMORY_LIMIT"), run("b", "power", 9.0, 20, status="INACCURATE"),
        run("c", "gmres", status="REFUSED"), run("c", "gth", status="CRASHED"), run("c", "power", status="NOT_RUN"),
        families={"a": "queues", "b": "queues"},
    )  # fmt: skip
    by_seconds, by_products = (places(found, measure) for measure in COSTS)
    assert [(one.best, one.cost, one.second, one.ratio) for one in by_seconds] == [
        ("gth", 1.0, "power", 3.0), ("gmres", 2.0, "", math.inf), ("", math.inf, "", math.inf)
    ]  # fmt: skip
    assert [(one.best, one.cost, one.second, one.ratio) for one in by_products] == [
        ("power", 50.0, "gmres", 2.0), ("gmres", 10.0, "", math.inf), ("", math.inf, "", math.inf)
    ]  # fmt: skip
    assert [(one.label, one.certified, one.tried, one.wins, one.ratios) for one in records(found)] == [
        ("gmres", 2, 2, (1, 1), (2.5, 1.5)), ("gth", 1, 3, (1, 0), (1.0, None)), ("power", 1, 2, (0, 1), (3.0, 1.0))
    ]  # fmt: skip
    assert [(one.name, one.problems, one.solved) for one in families(found)] == [("queues", 2, 2), ("c", 1, 0)]
    queues, alone = families(found)
    assert [[(one.label, one.solved, one.wins, one.ratio) for one in ranks] for ranks in queues.ranks] == [
        [("gmres", 2, 1, 2.5), ("gth", 1, 1, 1.0), ("power", 1, 0, 3.0)], [("gmres", 2, 1, 1.5), ("power", 1, 1, 1.0)]
    ]  # fmt: skip
    assert queues.unsolved == (("gth", 1), ("power", 1))
    assert alone.ranks == ((), ())
    assert alone.unsolved == (("gth", 1),)


def test_an_answer_that_disagrees_wins_nothing():
    found = comparison(run("a", "wrong", 1.0, 10, distance=0.5), run("a", "right", 2.0, 20, distance=1e-9))
    assert [places(found, measure)[0].best for measure in COSTS] == ["right", "right"]
    assert [(one.label, one.certified) for one in records(found)] == [("right", 1), ("wrong", 0)]


def test_standings_of_many_runs_by_brute_force():
    found = large(30, 6)
    for measure in COSTS:
        for place in places(found, measure):
            paid = sorted(
                (one.seconds[0] if measure == "seconds" else one.products, one.label)
                for one in found.runs
                if one.model == place.model and one.converged
            )
            assert (place.cost, place.best) == paid[0]
            assert place.ratio == paid[1][0] / paid[0][0]
    first = records(found)[0]
    best = {place.model: place.cost for place in places(found, "seconds")}
    ratios = [one.seconds[0] / best[one.model] for one in found.runs if one.label == first.label and one.converged]
    assert first.ratios[0] == statistics.median(ratios)
    assert sum(one.wins[0] for one in records(found)) == len(best)


def test_warm_starts_and_tolerances_are_apart():
    found = comparison(
        run("a", "gmres", 2.0, 20),
        run("a", "gmres", 1.0, 10, start="warm"),
        run("a", "gmres", 5.0, 50, tolerance=1e-10),
    )
    assert [(one.tolerance, one.best) for one in places(found, "seconds")] == [(1e-8, "gmres (warm)"), (1e-10, "gmres")]


def test_the_chart_steps_where_the_runs_end():
    found = comparison(run("a", "gth", 0.1), run("b", "gth", 10.0), run("b", "slow", 100.0))
    chart = chart_of_costs(found, "seconds")
    inner = chart.right - chart.left
    across = [chart.left + inner * share for share in (0.0, 2 / 3, 1.0)]
    half = (chart.top + chart.bottom) / 2
    path = (
        f"M{across[0]:g} {chart.bottom:g}H{across[0]:g}V{half:g}H{round(across[1], 1):g}V{chart.top:g}H{chart.right:g}"
    )
    assert chart.lines[0].path == path
    assert [text for _, text in chart.ticks] == ["0.1", "1", "10", "100"]
    assert chart_of_costs(found, "products") is None
    crowd = comparison(*(run("a", f"solver {k}", 1.0) for k in range(10)))
    assert [len(chart_of_costs(crowd, "seconds").lines), len(chart_of_costs(crowd, "seconds").left_out)] == [8, 2]


# ---- the page


class Page(html.parser.HTMLParser):
    """Reads a page as a browser does: its tags, attributes and text."""

    def __init__(self, text):
        super().__init__()
        self.tags, self.shown, self.within = [], [], []
        self.feed(text)

    def handle_starttag(self, tag, attributes):
        self.tags.append((tag, dict(attributes)))
        self.within.append(tag)

    def handle_endtag(self, tag):
        while self.within and self.within.pop() != tag:
            pass

    def handle_data(self, text):
        self.shown.append(text)

    def data(self):
        return json.loads(next(text for text in self.shown if text.startswith('{"models":')))


def test_nothing_in_a_file_is_markup():
    clean = comparison(
        *(
            run(f"m{k}", f"s{j}", 0.5 + j, 10, ("CONVERGED", "STAGNATED")[j], distance=0.5)
            for k in range(8)
            for j in range(2)
        )
    )
    page, found = Page(report(clean)), Page(report(hostile()))
    kinds = {tag for tag, _ in page.tags} | {"small", "code"}
    assert {tag for tag, _ in found.tags} <= kinds
    assert [tag for tag, _ in found.tags].count("script") == 2
    for tag, attributes in found.tags:
        assert not [name for name in attributes if name.startswith("on") or name == "style"], (tag, attributes)
        assert not attributes.get("href", "#").startswith(("javascript", "http", "data")), attributes
    text = "".join(found.shown)
    for name in HOSTILE:
        assert printable(name) in text, name
    assert "\x1b" not in text


def test_the_block_of_data_has_no_character_that_could_end_it():
    text = report(hostile())
    block = text[text.index('id="data">') + len('id="data">') : text.index("</script>\n<script>")]
    assert not set("<>&") & set(block)
    assert {one["model"] for one in json.loads(block)["runs"]} == {printable(name) for name in HOSTILE}


def test_a_method_that_does_not_iterate_has_no_products():
    found = comparison(run("a", "gth", 1.0, 1, iterations=0), run("a", "gmres", 2.0, 9))
    assert [places(found, measure)[0].best for measure in COSTS] == ["gth", "gmres"]


def test_the_page_holds_every_run_unrounded():
    found = comparison(
        run("a", "gth", 1 / 3, 0, defect=0.0, iterations=0, measures={"jobs": 2 / 3, "idle": 0.0}),
        run("b", "gth", status="CRASHED"),
    )
    first, second = Page(report(found)).data()["runs"]
    assert (first["seconds"], first["defect"], first["iterations"], first["products"]) == (1 / 3, 0.0, 0, 0)
    assert first["measures"] == {"jobs": 2 / 3, "idle": 0.0}
    assert second["status"] == "CRASHED"
    assert "seconds" not in second


def test_numbers_that_are_not_finite_are_left_out():
    found = comparison(run("a", "gth", math.inf, 1, defect=math.nan, measures={"jobs": math.nan}, distance=math.inf))
    first = Page(report(found)).data()["runs"][0]
    assert (first["seconds"], first["defect"], first["measures"], first["distance"]) == (
        None,
        None,
        {"jobs": None},
        None,
    )


def test_long_histories_are_thinned_and_keep_their_ends():
    products = np.arange(5000)
    found = comparison(run("a", "gmres", 1.0, 5000, history=history(products, 10.0 ** (-products / 500))))
    points = Page(report(found)).data()["runs"][0]["history"]
    assert points[0] == [0, 0.0]
    assert points[-1] == [4999, round(-4999 / 500, 2)]
    assert len(points) <= 50
    for product, exponent in points:
        assert exponent == pytest.approx(-product / 500, abs=0.006)
    flawed = comparison(run("a", "gmres", 1.0, 9, history=history([1, 2, 3], [math.nan, 0.0, 1e-3])))
    assert "history" not in Page(report(flawed)).data()["runs"][0]


@pytest.mark.parametrize("figures", [(), (Figure("A <b> figure", 'with a "curve"', "<svg onload='alert(1)'/>"),)])
def test_only_its_own_script_and_style_may_run(figures):
    import base64
    import hashlib

    text = report(large(2, 3), figures)
    policy = re.search(r'Content-Security-Policy" content="([^"]+)"', text)[1]
    assert policy.startswith("default-src 'none'; ")
    for tag in ("style", "script"):
        content = re.search(rf"<{tag}>(.*?)</{tag}>", text, re.DOTALL)[1]
        digest = base64.b64encode(hashlib.sha256(content.encode()).digest()).decode()
        assert f"{tag}-src 'sha256-{digest}'" in policy.replace("&#43;", "+")
    assert "unsafe" not in policy
    assert "alert(1)" not in text
    addresses = [
        found[name] for _, found in Page(text).tags for name in ("src", "href", "srcset", "data") if name in found
    ]
    assert addresses
    assert all(address.startswith(("#", "data:image/svg+xml;base64,")) for address in addresses)


def test_the_structure_of_the_page_is_accessible():
    tags = Page(report(large(50, 4))).tags
    assert dict(tags)["html"]["lang"] == "en"
    levels = [int(tag[1]) for tag, _ in tags if re.fullmatch("h[1-6]", tag)]
    assert levels[0] == 1
    assert levels.count(1) == 1
    assert all(after <= before + 1 for before, after in itertools.pairwise(levels))
    names = [tag for tag, _ in tags]
    assert names.count("table") == names.count("caption") == names.count("thead")
    for tag, attributes in tags:
        if tag == "th":
            assert attributes["scope"] in ("col", "row")
        if tag in ("svg", "img"):
            assert attributes.get("aria-label") or attributes.get("alt") or attributes.get("aria-hidden") == "true"
    identities = [attributes["id"] for _, attributes in tags if "id" in attributes]
    assert len(identities) == len(set(identities))
    anchors = [attributes["href"][1:] for tag, attributes in tags if tag == "a" and "=" not in attributes["href"]]
    assert set(anchors) <= set(identities)


def test_failures_stand_first_and_together():
    found = comparison(
        *(run(f"m{k}", "gmres", status="STAGNATED") for k in range(9)),
        run("m0", "gth", 1.0),
        run("m0", "pardiso", status="REFUSED"),
    )
    text = "".join(Page(report(found)).shown)
    failures = text[text.index("Failures and disagreements") : text.index("Which solver wins where")]
    assert "m0, m1, m2, m3 and 5 more" in failures
    assert "pardiso" not in failures
    assert "None: every run that applies gave a certified answer" in report(comparison(run("m", "gth", 1.0)))
    assert "is not complete" in report(comparison(run("m", "gth", status="NOT_RUN")))


@pytest.mark.parametrize(
    "found",
    [comparison(), comparison(run("m", "gth", status="NO_MODEL")), comparison(run("m", "gth", 1.0), sessions=())],
)
def test_a_page_of_nothing_is_a_page(found):
    assert "All runs" in report(found)


# ---- tables


@pytest.mark.parametrize("text", [*HOSTILE, "+1", "-1", "@sum", "\t=1", "\r=1"])
def test_no_cell_of_csv_is_a_formula(tmp_path, text):
    found = comparison(run(text, text, 0.5, 10, message=text, measures={text: 1.0}))
    tables.write_csv(tmp_path / "runs.csv", found)
    with open(tmp_path / "runs.csv", encoding="utf-8", newline="") as file:
        head, row = csv.reader(file)
    for cell in (*head, *row):
        assert not cell.startswith(("=", "+", "-", "@", "\t", "\r")), cell
        assert cell.isprintable()
    values = dict(zip(head, row, strict=True))
    assert values["model"].removeprefix("'") == printable(text)
    assert values[f"measure:{printable(text)}"] == "1.0"


def test_numbers_in_csv_are_exact(tmp_path):
    found = large(5, 5)
    tables.write_csv(tmp_path / "runs.csv", found)
    with open(tmp_path / "runs.csv", encoding="utf-8", newline="") as file:
        rows = list(csv.DictReader(file))
    assert [row["seconds"] for row in rows] == [
        "" if one.median_seconds is None else repr(one.median_seconds) for one in found.runs
    ]
    assert [row["family"] for row in rows] == [found.models[one.model].family for one in found.runs]
    with pytest.raises(StorageError, match="exists already"):
        tables.write_csv(tmp_path / "runs.csv", found)


def unescaped(cell):
    """Undo what LaTeX understands: an independent reading of a cell."""
    words = {"textbackslash": "\\", "textasciitilde": "~", "textasciicircum": "^", "textless": "<", "textgreater": ">",
             "textbar": "|", "textquotedbl": '"'}  # fmt: skip
    text, place, depth = "", 0, 0
    while place < len(cell):
        if word := re.match(r"\\([a-z]+)\{\}", cell[place:]):
            text, place = text + words[word[1]], place + word.end()
        elif cell[place] == "\\":
            assert cell[place + 1] in "&%$#_{}", cell
            text, place = text + cell[place + 1], place + 2
        else:
            assert cell[place] not in "&%$#_~^<>|" or depth, cell
            depth += (cell[place] == "{") - (cell[place] == "}")
            text, place = text + cell[place].strip("{}"), place + 1
    assert depth == 0
    return text


@pytest.mark.parametrize("text", [*HOSTILE, "*", "[t]", "--x", "``''"])
def test_latex_shows_names_as_they_are(text):
    cell = latex_cell(text)
    assert unescaped(cell) == printable(text)
    assert not cell.startswith(("[", "*"))
    assert "--" not in cell
    lines = tables.latex(comparison(run(text, text, 0.5))).splitlines()
    assert lines[-2].startswith(f"{cell} & {cell} & 1e-08 & CONVERGED")


def test_data_frame_and_parquet(tmp_path):
    pandas = pytest.importorskip("pandas")
    pytest.importorskip("pyarrow")
    found = comparison(run("\x1b=a", "gth", 1 / 3, 2**40, measures={"jobs": 0.1}), run("b", "gth", status="CRASHED"))
    frame = tables.to_dataframe(found)
    assert (frame["seconds"][0], frame["products"][0], frame["measure:jobs"][0]) == (1 / 3, 2**40, 0.1)
    assert frame["products"].isna().tolist() == [False, True]
    assert frame["certified"].tolist() == [True, False]
    assert (frame.dtypes == tables.to_dataframe(large(2, 2)).reindex(columns=frame.columns).dtypes)[:-1].all()
    tables.write_parquet(tmp_path / "runs.parquet", found)
    back = pandas.read_parquet(tmp_path / "runs.parquet")
    assert back["seconds"].tolist()[0] == 1 / 3
    assert back["model"].tolist() == ["\\x1b=a", "b"]
    assert str(back["products"].dtype) == "Int64"
    assert len(tables.to_dataframe(comparison())) == 0


def test_csv_cell_keeps_numbers():
    assert [csv_cell(value) for value in (-1, True, None, 0.1)] == ["-1", "true", "", "0.1"]


# ---- against an older comparison


def test_a_rise_is_measured_by_its_rule():
    for now, rules, failures, warnings in [
        (105, ["products:+5%"], 0, 0), (106, ["products:+5%"], 1, 0), (99, ["products:+0%"], 0, 0), (101, ["products:+0%"], 1, 0),
        (106, ["products:+10%"], 0, 0), (200, ["seconds:+50%"], 0, 1), (200, ["seconds!:+50%"], 1, 0), (200, [], 0, 0),
        (200, ["products:+5%", "seconds:+5%", "iterations:+5%"], 2, 1),
    ]:  # fmt: skip
        old, new = comparison(run("a", "gmres", 100.0, 100)), comparison(run("a", "gmres", float(now), now))
        found = regressions(new, old, rules)
        assert (sum(one.fails for one in found), sum(not one.fails for one in found)) == (failures, warnings), (
            now,
            rules,
        )


@pytest.mark.parametrize("status", ["STAGNATED", "CRASHED", "NOT_INSTALLED", "REFUSED", "NOT_RUN", "NO_MODEL"])
def test_a_lost_answer_always_fails(status):
    old, new = comparison(run("a", "gmres", 1.0, 10)), comparison(run("a", "gmres", status=status, message="So it is."))
    (finding,) = regressions(new, old, [])
    assert str(finding) == f"gmres on a at tolerance 1e-08: it was CONVERGED and is {status}: So it is."
    assert finding.fails
    assert regressions(old, new, []) == ()


def test_what_cannot_be_compared_is_said():
    old = comparison(run("a", "gmres", 1.0, 10), run("b", "gmres", 1.0, 10), run("b", "gth", 1.0))
    new = comparison(run("a", "gmres", 1.0, 99), run("b", "gmres", 1.0, 10))
    object.__setattr__(new.models["a"], "content_hash", "cd" * 32)
    assert [(str(one), one.fails) for one in regressions(new, old)] == [
        ("a is another model than before, so its runs are not compared.", False),
        ("gth on b at tolerance 1e-08: was run before and is no longer.", False),
    ]
    gone, last = regressions(comparison(run("c", "gth", 1.0)), old)
    assert str(gone) == "gmres on a at tolerance 1e-08 and 2 more: was run before and is no longer."
    assert (last.fails, "no model, solver" in str(last)) == (True, True)
    (other,) = regressions(type(old)("", "transient", old.models, old.runs), old)
    assert (other.fails, "the problem is transient, and was stationary" in str(other)) == (True, True)
    worse = comparison(run("a", "gmres", 1.0, 10, distance=0.9), run("b", "gmres", 1.0, 10), run("b", "gth", 1.0))
    (far,) = regressions(worse, old)
    assert (far.fails, "no longer agrees" in str(far)) == (True, True)


@pytest.mark.parametrize(
    "text",
    [
        "products",
        "products:5%",
        "products:+5",
        "speed:+5%",
        "products:-5%",
        "seconds!!:+5%",
        "products:+5%\n",
        "products:+٣%",
        "",
    ],
)
def test_a_rule_that_is_none_is_refused(text):
    with pytest.raises(StudyError, match=r"the rule is .*; allowed is MEASURE") as caught:
        read_rule(text)
    assert "\n" not in str(caught.value)


# ---- the command


@pytest.fixture
def command(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    save_comparison("compared.h5", large(3, 3))

    def run_command(*arguments):
        code = main(["report", *arguments])
        captured = capsys.readouterr()
        return code, captured.out, captured.err

    return run_command


def test_the_command_writes_beside_the_file(command, tmp_path):
    code, out, err = command("compared.h5", "--json", "--no-figures")
    assert (code, err) == (0, "")
    told = json.loads(out)
    assert told["written"] == {"page": "compared.html"}
    assert told["runs"] == 9
    assert (tmp_path / "compared.html").read_text(encoding="utf-8") == report(load_comparison("compared.h5"))
    assert command("compared.h5", "--csv", "runs.csv", "--latex", "runs.tex")[0] == 0
    pytest.importorskip("matplotlib")
    assert command("compared.h5", "--overwrite", "-o", "compared.html")[0] == 0
    page = (tmp_path / "compared.html").read_text(encoding="utf-8")
    assert page.count("<figure>") > report(load_comparison("compared.h5")).count("<figure>") + 5
    assert sorted(path.name for path in tmp_path.iterdir()) == ["compared.h5", "compared.html", "runs.csv", "runs.tex"]


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (["compared.h5", "-o", "-"], "-o is '-'; allowed is the name of a file."),
        (["compared.h5", "--csv", "-", "-o", "new.html"], "--csv is '-'"),
        (["compared.h5", "-o", "compared.h5", "--overwrite"], "the comparison itself"),
        (["compared.h5", "-o", "same", "--csv", "same"], "-o and --csv are both 'same'"),
        (["compared.h5", "-o", "new.html", "--csv", "taken"], "Cannot write taken: it exists already"),
        (["missing.h5"], "missing.h5"),
        (["taken"], "taken"),
        (["compared.h5", "-o", "nowhere/new.html"], "there is no folder nowhere"),
    ],
)
def test_the_command_refuses_with_one_sentence(command, tmp_path, arguments, sentence):
    (tmp_path / "taken").write_text("mine", encoding="utf-8")
    before = (tmp_path / "compared.h5").read_bytes()
    code, out, err = command(*arguments)
    assert (code, out) == (2, "")
    assert err.startswith("ctmc: ")
    assert err.count("\n") == 1
    assert sentence in err
    assert sorted(path.name for path in tmp_path.iterdir()) == ["compared.h5", "taken"]
    assert (tmp_path / "compared.h5").read_bytes() == before
    assert (tmp_path / "taken").read_text(encoding="utf-8") == "mine"


def test_without_the_library_nothing_is_written(command, tmp_path, monkeypatch):
    monkeypatch.setattr(tables.importlib.util, "find_spec", lambda name: None)
    code, _, err = command("compared.h5", "-o", "new.html", "--parquet", "runs.parquet")
    assert code == 2
    assert err == "ctmc: the table needs pandas: pip install 'ctmc-lab[dataframe]'.\n"
    assert [path.name for path in tmp_path.iterdir()] == ["compared.h5"]
