"""Study files: what is refused, with key and line; what a run writes; and that one failing step does not stop the others."""

import json
import os
import sys
import tomllib
from pathlib import Path

import numpy as np
import pytest

import ctmc
from ctmc.cli import main
from ctmc.model.recipe import allowed_code
from ctmc.storage.container import read_container
from ctmc.storage.store import file_name
from ctmc.study import Watcher, find_study, parse_study, read_study, run_study, shipped_studies
from ctmc.study.lines import Lines
from ctmc.study.locks import only_run
from ctmc.study.plots import SIGNATURE, is_ours
from ctmc.study.run import table

MODEL = '[models.queue]\nbuilder = "birth_death"\nbirths = [1.0, 1.0]\ndeaths = [2.0, 2.0]\n'
SOLVE = '[[solve]]\nsolvers = ["gth"]\n'
GOOD = f'title = "A queue"\noutput = "out.h5"\n{MODEL}{SOLVE}'
MARKET = (
    '[models.market]\nbuilder = "supermarket"\nservice_rates = [2, 1]\narrival_rate = 1\nchoices = 2\ncapacity = 3\n'
)


@pytest.fixture
def here(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("COLUMNS", "250")
    monkeypatch.delenv("CTMC_STORE", raising=False)
    return tmp_path


@pytest.fixture
def run(here, capsys):
    """Run a study given as text by the command line; gives (exit code, standard output, standard error)."""

    def command(text, *arguments, name="study.toml"):
        Path(name).write_text(text, encoding="utf-8", newline="")
        code = main(["run", name, *arguments])
        captured = capsys.readouterr()
        return code, captured.out, captured.err

    return command


BAD = [
    # keys and tables
    ('titel = "x"\n' + MODEL + SOLVE, "line 1: there is no key of a study 'titel'; did you mean 'title'?"),
    ('title = "x"\ntitle = "y"\n' + MODEL + SOLVE, "line 2: the key 'title' stands twice"),
    (MODEL + "births = [1.0]\n" + SOLVE, "line 5: the key 'births' stands twice"),
    (MODEL + MODEL + SOLVE, "line 5: the table '[models.queue]' stands twice"),
    (GOOD.replace("[[solve]]", "[[solves]]"), "line 7: there is no key of a study 'solves'; did you mean 'solve'?"),
    (GOOD.replace("[models.queue]", "[model.queue]"), "there is no key of a study 'model'"),
    (MODEL, "the table [[solve]] is missing"),
    (MODEL + "[solve]\n", "the table [[solve]] is missing"),
    (SOLVE, "the table [models.NAME] is missing"),
    ("", "the table [models.NAME] is missing"),
    ("[models]\nqueue = 3\n" + SOLVE, "line 2: the model 'queue' is 3; allowed is a table"),
    ("title = 3\n" + MODEL + SOLVE, "line 1: title is 3; allowed is text in quotes"),
    ("title = [\n" + MODEL, "a study is a TOML file"),
    ("title = x\n", "line 1: "),
    ("\x00", "line 1: "),
    # models
    ('[models.queue]\nbirths = [1]\n' + SOLVE, "line 1: the model 'queue' has no key builder"),
    (GOOD.replace("birth_death", "birth_deaht"), "line 4: there is no builder 'birth_deaht'; did you mean 'birth_death'?"),
    (GOOD.replace("deaths =", "death ="), "line 6: there is no parameter of birth_death 'death'; did you mean 'deaths'?"),
    (GOOD.replace("deaths = [2.0, 2.0]\n", ""), "line 3: the model 'queue' has no key deaths"),
    (GOOD.replace("[1.0, 1.0]", '"one"'), "line 5: births is 'one'; allowed is FLOAT,.."),
    (GOOD.replace("[1.0, 1.0]", '[1.0, "one"]'), "line 5: births is [1.0, 'one']"),
    (GOOD.replace("[1.0, 1.0]", "2026-11-29"), "line 5: births is"),
    (MARKET.replace("choices = 2", "choices = 2.5") + SOLVE, "line 5: choices is 2.5; allowed is INT"),
    (MARKET.replace("choices = 2", "choices = true") + SOLVE, "line 5: choices is True"),
    (MARKET + 'selection = "os:system"\n' + SOLVE, "line 7: selection names the function 'os:system'"),
    # questions
    (GOOD + 'solver = ["gth"]\n', "line 9: there is no key of [[solve]] 'solver'; did you mean 'solvers'?"),
    (GOOD + 'models = ["queu"]\n', "line 9: there is no model 'queu'; did you mean 'queue'?"),
    (GOOD + "models = []\n", "line 9: models is []"),
    (GOOD + 'models = "queue"\n', "line 9: models is 'queue'; allowed is a list"),
    (GOOD + 'problem = "stationery"\n', "line 9: there is no problem 'stationery'; did you mean 'stationary'?"),
    (GOOD + "tolerance = 2\n", "line 9: tolerance is 2"),
    (GOOD + 'tolerance = "small"\n', "line 9: tolerance is 'small'"),
    (GOOD + "tolerance = nan\n", "line 9: tolerance is nan"),
    (GOOD + "times = [1]\n", "line 9: times is given for a stationary problem"),
    (GOOD + 'measures = ["jobs >"]\n', "line 9: condition 'jobs >'"),
    (GOOD + "measures = [3]\n", "line 9: measures is [3]"),
    (GOOD + SOLVE.replace("gth", "uniformization") + 'problem = "transient"\n', "line 9: a transient problem has no key times"),
    (GOOD + SOLVE.replace("gth", "uniformization") + 'problem = "transient"\ntimes = [2, 1]\n', "line 12: times is [2, 1]"),
    (GOOD + SOLVE.replace("gth", "uniformization") + 'problem = "transient"\ntimes = [-1]\n', "line 12: times is [-1]"),
    (GOOD + SOLVE.replace("gth", "uniformization") + 'problem = "transient"\ntimes = [inf]\n', "line 12: times is [inf]"),
    (GOOD + "initial = [true]\n", "line 9: initial is [True]"),
    # solvers
    (GOOD.replace("gth", "gthh"), "line 8: there is no solver 'gthh'; did you mean 'gth'?"),
    (GOOD.replace('["gth"]', '[\n  "gth",\n  "gmress",\n]'), "line 10: there is no solver 'gmress'"),
    (GOOD.replace('"gth"', '"gmres(restrat=3)"'), "line 8: there is no option of gmres 'restrat'; did you mean 'restart'?"),
    (GOOD.replace('"gth"', '{name = "gmres", restart = "x"}'), "line 8: "),
    (GOOD.replace('"gth"', '{name = "gmres", restart = -1}'), "line 8: restart is -1"),
    (GOOD.replace('"gth"', '{name = "gmres", name = "gth"}'), "line 8: the key 'name' stands twice"),
    (GOOD.replace('"gth"', '"gmres(__import__(1))"'), "line 8: solver is"),
    (GOOD.replace('"gth"', '{restart = 3}'), "line 8: solvers has the entry"),
    (GOOD.replace('["gth"]', '"gth"'), "line 8: solvers is 'gth'; allowed is a list"),
    (GOOD.replace('"gth"', "3"), "line 8: solvers has the entry 3"),
    (GOOD.replace("gth", "uniformization"), "line 8: uniformization does not take stationary problems but transient and accumulated-reward ones"),
    # output
    (GOOD.replace("out.h5", "/tmp/out.h5"), "output is '/tmp/out.h5'; allowed is a path below the current folder"),
    (GOOD.replace("out.h5", "../../../etc/x"), "output is '../../../etc/x'"),
    (GOOD.replace("out.h5", ""), "output is ''"),
    (GOOD.replace("out.h5", "results/"), "output is 'results/'"),
    (GOOD.replace('"out.h5"', "3"), "line 2: output is 3"),
]  # fmt: skip


@pytest.mark.parametrize(("text", "message"), BAD, ids=[message[:50] for _, message in BAD])
def test_a_bad_study_is_one_sentence_and_nothing_is_written(run, text, message):
    code, out, err = run(text)
    assert code == 2, err
    assert out == ""
    assert err.startswith("ctmc: study.toml")
    assert err.count("\n") == 1
    assert message in err
    assert os.listdir() == ["study.toml"]


def test_the_table_of_bad_studies_is_not_empty():
    assert len(BAD) >= 50


def test_what_is_no_study_file(here, capsys):
    os.mkdir("folder.toml")
    os.mkfifo("fifo.toml")
    Path("loop.toml").symlink_to("loop.toml")
    Path("latin.toml").write_bytes(b'title = "ok"\n# \xff\n')
    Path("long.toml").write_bytes(b"# x\n" * 300_000)
    Path("deep.toml").write_text("title = " + "[" * 100_000)
    Path("a\x1b[31m.toml").write_text("x")
    for name, message in (
        ("folder.toml", ""), ("fifo.toml", "regular"), ("loop.toml", ""), ("missing.toml", "No such file"),
        ("latin.toml", "line 2"), ("long.toml", "1,000,000"), ("deep.toml", "nested"), ("/dev/zero", "regular"),
        ("a\x1b[31m.toml", "a\\x1b[31m.toml"), ("quickstrat", "did you mean 'quickstart'"),
    ):  # fmt: skip
        assert main(["run", name]) == 2, name
        err = capsys.readouterr().err
        assert message in err
        assert err.count("\n") == 1
        assert "\x1b" not in err


def test_code_in_a_study_is_not_imported_unless_allowed(run, here):
    Path("left_a_marker.py").write_text(
        "open('marker', 'w').close()\ndef rule(lengths, rates, preferences):\n    return lengths / rates\n"
    )
    text = MARKET + 'selection = "left_a_marker:rule"\n' + SOLVE
    code, _, err = run(text)
    assert code == 2
    assert "--allow-code" in err
    assert not Path("marker").exists()
    code, out, err = run(text, "--allow-code", "--json")
    assert code == 0, err
    assert Path("marker").exists()
    assert json.loads(out)["rows"][0]["status"] == "CONVERGED"
    sys.modules.pop("left_a_marker")
    with allowed_code():
        assert parse_study(text).models["market"].parameters["selection"] == "left_a_marker:rule"


def test_names_of_modules_beside_the_study_are_left_alone(run):
    Path("solvers").mkdir()
    Path("solvers/__init__.py").write_text("open('marker', 'w').close()\n")
    Path("numpy.py").write_text("open('marker', 'w').close()\n")
    assert run(GOOD)[0] == 0
    assert not Path("marker").exists()


# ---- what a run does --------------------------------------------------------------------------------------------------


def test_a_run_solves_and_keeps_everything(run):
    code, out, err = run(GOOD + 'measures = ["jobs", "throughput", "jobs >= 1", "jobs > 1 or jobs < 1"]\n')
    assert code == 0, err
    head, _, *rows = out.splitlines()
    assert head.split()[:8] == ["model", "problem", "solver", "status", "defect", "iterations", "products", "seconds"]
    (row,) = [row.split() for row in rows]
    assert row[:4] == ["queue", "stationary", "gth", "CONVERGED"]
    assert row[-4:-2] == [f"{4 / 7:.10g}", f"{6 / 7:.10g}"]
    assert "Results: out.h5" in err
    found = read_container("out.h5", ("study",))
    assert found.manifest["title"] == "A queue"
    assert found.manifest["study"].startswith('title = "A queue"')
    (kept,) = found.manifest["rows"]
    assert kept["measures"]["jobs >= 1"] == pytest.approx(3 / 7, abs=1e-14)
    assert kept["status"] == "CONVERGED"
    assert found.manifest["about"]["versions"]["numpy"] == np.__version__
    assert ctmc.load(Path("out.store", kept["model_file"])).size == 3
    assert kept["model_file"].startswith("birth_death-")
    (solution,) = Path("out.store").rglob("*.solutions/*.h5")
    assert solution.relative_to("out.store").as_posix() == kept["solution_file"]
    assert solution.name.startswith("stationary-gth-")
    assert os.listdir("out.store/.locks") == []


def test_histories_are_kept_and_drawn(run):
    pytest.importorskip("matplotlib")
    text = GOOD.replace('"gth"', '"power_iteration", {name = "gauss_seidel", relaxation = 0.9}')
    code, out, err = run(text, "--json")
    assert code == 0, err
    document = json.loads(out)
    assert document["picture"] == "out.png"
    assert [row["solver"] for row in document["rows"]] == ["power_iteration", "gauss_seidel(relaxation=0.9)"]
    assert is_ours(Path("out.png"))
    found = read_container("out.h5", ("study",))
    assert [history["solver"] for history in found.manifest["histories"]] == [row["solver"] for row in document["rows"]]
    defects = found.arrays["histories/0/defect"]
    assert defects[-1] == pytest.approx(document["rows"][0]["defect"], rel=1e-3)
    assert (np.diff(found.arrays["histories/0/products"]) > 0).all()
    before = Path("out.png").read_bytes()
    assert run(text)[0] == 0  # a second run replaces its own files
    Path("out.png").write_bytes(b"not " + before.replace(SIGNATURE.encode(), b"somebody's"))
    code, _, err = run(text)
    assert code == 0
    assert "No picture" in err
    assert Path("out.png").read_bytes().startswith(b"not ")


def test_without_matplotlib_a_line_says_so(run, monkeypatch):
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    code, out, err = run(GOOD.replace("gth", "gauss_seidel"), "--json")
    assert code == 0
    assert json.loads(out)["picture"] is None
    assert "ctmc-lab[plots]" in err


def test_a_transient_problem_gives_a_row_for_each_time(run):
    text = GOOD + '[[solve]]\nproblem = "transient"\ninitial = [2]\ntimes = [0, 0.5, 100]\nmeasures = ["jobs"]\n'
    code, out, err = run(text, "--csv")
    assert code == 0, err
    rows = [line.split(",") for line in out.splitlines()]
    column, times = rows[0].index("jobs"), rows[0].index("time")
    assert [row[times] for row in rows[1:]] == ["", "0.0", "0.5", "100.0"]
    assert float(rows[2][column]) == 2
    assert float(rows[4][column]) == pytest.approx(4 / 7, abs=1e-9)


def test_a_failing_step_is_a_row_and_the_others_still_run(run):
    text = (
        GOOD.replace('["gth"]', '["power_iteration(max_iterations=2)", "gth", "logarithmic_reduction"]')
        + '[models.broken]\nbuilder = "birth_death"\nbirths = [1, 1]\ndeaths = [1]\n'
        + '[[solve]]\nmodels = ["queue"]\nsolvers = ["gth"]\nmeasures = ["jbos"]\n'
    )
    code, out, err = run(text, "--json")
    assert code == 1
    document = json.loads(out)
    status = [(row["model"], row["solver"].partition("(")[0], row["status"]) for row in document["rows"]]
    assert status == [
        ("queue", "power_iteration", "ITERATION_LIMIT"),
        ("queue", "gth", "CONVERGED"),
        ("queue", "logarithmic_reduction", "ERROR"),
        ("broken", "power_iteration", "NOT_BUILT"),
        ("broken", "gth", "NOT_BUILT"),
        ("broken", "logarithmic_reduction", "NOT_BUILT"),
        ("queue", "gth", "ERROR"),
    ]
    assert document["failed"] == 6
    assert document["rows"][0]["measures"] == {}
    assert "Next to try: gth" in document["rows"][0]["message"]
    assert "births has 2 rates and deaths 1" in document["rows"][3]["message"]
    assert "did you mean 'jobs'" in document["rows"][6]["message"]
    assert "births has 2 rates" in err
    assert "Traceback" not in err


def test_a_crashing_builder_is_a_row(run, monkeypatch):
    monkeypatch.setattr("ctmc.study.work.registry.prepare", lambda *_, **__: 1 / 0)
    code, out, _ = run(GOOD, "--json")
    assert code == 1
    (row,) = json.loads(out)["rows"]
    assert (row["status"], row["message"]) == ("NOT_BUILT", "ZeroDivisionError: division by zero.")


def test_without_solvers_the_default_is_taken(run):
    code, out, _ = run(MODEL + "[[solve]]\n", "--json")
    assert code == 0
    document = json.loads(out)
    assert document["rows"][0]["solver"] == "gth"
    assert document["output"] == "study.h5"


def test_an_interrupted_run_keeps_what_it_has(here):
    class Impatient(Watcher):
        steps = 0

        def step(self, number, total, label, tolerance):
            self.steps += 1
            return None if tolerance is None else lambda iteration, defect: self.stopped()

        def stopped(self):
            return self.steps >= 3  # the model, the first solver, and in the second

    text = GOOD.replace('["gth"]', '["gth", "power_iteration", "gth"]')
    result = run_study(parse_study(text, "study.toml"), watcher=Impatient())
    assert [row.status for row in result.rows] == ["CONVERGED", "STOPPED", "NOT_RUN"]
    assert result.stopped
    assert result.failed
    assert read_container("out.h5", ("study",)).manifest["stopped"] is True


@pytest.mark.parametrize(
    "name", ["<img src=x onerror=alert(1)>", "</script>", "=cmd|'/c calc'!A1", "[bold]red[/bold]", "\\u001b[31mred", "../../x", "$x_1$", "ü"]
)  # fmt: skip
def test_names_stay_inert(run, name):
    text = GOOD.replace("models.queue", f'models."{name}"').replace("gth", "gauss_seidel")
    text = text.replace("A queue", "[red]A</title>\\u001b")
    plain = tomllib.loads(text)
    (shown,) = plain["models"]
    code, out, err = run(text)
    assert code == 0, err
    assert "\x1b" not in out + err
    assert shown.replace("\x1b", "\\x1b") in out
    text = text.replace("gauss_seidel", "gth")  # no history: the picture is drawn once
    code, out, err = run(text, "--csv")
    cell = out.splitlines()[1].split(",")[0].strip('"')
    assert not cell.startswith("=")
    assert shown.replace("\x1b", "\\x1b") in cell
    code, out, err = run(text, "--json")
    assert json.loads(out)["rows"][0]["model"] == shown
    assert {path.name.partition("-")[0] for path in Path("out.store").iterdir()} == {".locks", "birth_death"}
    assert set(os.listdir()) <= {"study.toml", "out.h5", "out.png", "out.store"}


def test_different_names_have_different_files():
    names = ["a", "A", "a/b", "a b", "a%2Fb", "..", ".", "", "x" * 300, "x" * 299 + "y", "-o", "a\x00"]
    files = [file_name(name) for name in names]
    assert len(set(files)) == len(names)
    assert all("/" not in name and name.strip(".") and len(name) < 120 for name in files)


# ---- where it may write -----------------------------------------------------------------------------------------------


def test_a_symbolic_link_does_not_lead_a_study_out_of_the_folder(run, tmp_path_factory):
    outside = tmp_path_factory.mktemp("outside")
    os.symlink(outside, "link")
    (outside / "x.h5").write_text("precious")
    os.symlink(outside / "x.h5", "direct.h5")
    os.symlink(outside, "stored.store")
    for name in ("link/x.h5", "link/new.h5", "direct.h5", "stored.h5"):
        code, _, err = run(GOOD.replace("out.h5", name))
        assert code == 2
        assert "leads out of the current folder" in err
    assert [path.name for path in outside.iterdir()] == ["x.h5"]
    assert (outside / "x.h5").read_text() == "precious"
    code, _, err = run(GOOD, "-o", str(outside / "asked.h5"))  # the user's own word counts
    assert code == 0, err
    assert (outside / "asked.h5").is_file()


def test_what_is_not_ours_is_never_replaced(run):
    Path("out.h5").write_text("precious")
    code, _, err = run(GOOD)
    assert code == 2
    assert "never replaced" in err
    assert Path("out.h5").read_text() == "precious"
    Path("out.h5").unlink()
    model = ctmc.build("birth_death", births=[1.0], deaths=[1.0])
    ctmc.save("out.h5", model)
    before = Path("out.h5").read_bytes()
    assert run(GOOD)[0] == 2
    assert Path("out.h5").read_bytes() == before
    Path("out.h5").unlink()
    Path("out.store").write_text("precious")
    assert run(GOOD)[0] == 2
    assert Path("out.store").read_text() == "precious"
    assert run(GOOD, "-o", "no/such/folder.h5")[0] == 2


def test_a_folder_below_is_made(run):
    code, _, err = run(GOOD.replace("out.h5", "results/deep/out.h5"))
    assert code == 0, err
    assert len(list(Path("results/deep/out.store").glob("birth_death-*.h5"))) == 1


def test_two_runs_with_the_same_output(run, here):
    with only_run(Path("out.h5")):
        code, _, err = run(GOOD)
        assert code == 2
        assert f"process {os.getpid()} on " in err
        assert run(GOOD, "-o", "other.h5")[0] == 0
    assert run(GOOD)[0] == 0  # nothing of the lock is left


# ---- pieces -----------------------------------------------------------------------------------------------------------


def test_lines():
    lines = Lines('a = 1 # b = 2\n["x".y] # c\nb = [\n 1,\n "two",\n]\n[[z]]\nk=1\n[[z]]\n  k = {m = 1}\n')
    assert lines.number((), "a") == 1
    assert lines.number((), "b") is None
    assert lines.number(("x", "y")) == 2
    assert lines.number(("x", "y"), "b", "two") == 5
    assert lines.number(("z", 1), "k") == 10
    assert lines.number(("z", 1), "m") == 10
    assert lines.number(("z", 2)) is None


def test_rows_as_a_table_leave_out_what_there_is_not():
    result = run_rows = parse_study(GOOD)
    assert result.solves[0].solvers[0] == run_rows.solves[0].solvers[0]
    columns, cells = table(())
    assert columns[0] == "model"
    assert cells == []


def test_shipped_studies_are_good():
    assert "quickstart" in shipped_studies()
    for name in shipped_studies():
        assert read_study(find_study(name)).models


def test_the_quickstart(here, capsys):
    code = main(["run", "quickstart", "--json"])
    captured = capsys.readouterr()
    assert code == 0, captured.err
    rows = json.loads(captured.out)["rows"]
    assert [row["status"] for row in rows] == ["CONVERGED"] * 9
    for row in rows[:4]:
        assert row["measures"]["queue_length"] == pytest.approx([0.5817947978, 0.7935083628, 0.8683978543], abs=1e-9)
    for row in rows[4:6]:
        assert row["measures"]["waiting_time"] == pytest.approx(0.142336726455, abs=1e-11)
        assert row["measures"]["utilization"] == pytest.approx([0.41718542197, 0.44049800509, 0.03307687996], abs=1e-10)
    assert [row["time"] for row in rows[6:]] == [0.5, 2, 10]
    jobs = [row["measures"]["jobs"] for row in rows[6:]]
    assert jobs == sorted(jobs)
    assert jobs[2] < sum(rows[0]["measures"]["queue_length"])
    assert Path("quickstart.h5").is_file()
